"""SIGHUP reads policies, specs and the log's file anew, in every worker, and ends nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.service import Service, serving
from tests.support.waiting import until
from tests.support.worker_connections import connected, one_client_each

MINE = ["user", "noop"]
CLOSED = 'package memories.authz\n\ndecision := {"allow": false, "reason": "closed for today"}\n'
OPEN = 'package memories.authz\n\ndecision := {"allow": true}\n'


@contextmanager
def each_worker(service: Service, workers: int) -> Iterator[list[httpx.Client]]:
    if workers == 1:
        with connected(service) as client:
            yield [client]
    else:
        with one_client_each(service, workers) as clients:
            yield clients


def reloads(log: Path) -> int:
    return log.read_text().count('"reloaded"')


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hangup_reloads_policies_specs_and_the_log_file_in_every_worker(
    tmp_path: Path, workers: int
) -> None:
    (policies := tmp_path / "policies").mkdir()
    (specs := tmp_path / "agents.yaml").write_text("agents: [{name: one}]")
    log, older = tmp_path / "alcove.log", tmp_path / "alcove.log.1"
    flags = ("--workers", workers, "--policy-dir", policies, "--agents", specs, "--log-file", log)
    with serving(tmp_path, *flags) as service, each_worker(service, workers) as clients:
        question = {"ns": MINE, "key": "k"}
        assert [each.get("/v1/memories", params=question).status_code for each in clients] == [404] * workers
        until(lambda: log.read_text().count('"status":404') == workers)
        log.rename(older)
        (policies / "authz.rego").write_text(CLOSED)
        specs.write_text("agents: [{name: two}]")
        service.signal(signal.SIGHUP)
        until(lambda: log.exists() and reloads(log) == workers)
        assert log.stat().st_mode & 0o777 == 0o600
        written = older.read_text()
        for each in clients:
            answer = each.get("/v1/memories", params=question)
            assert (answer.status_code, answer.json()["reason"]) == (403, "closed for today")
            assert [agent["name"] for agent in each.get("/v1/agents").json()["agents"]] == ["two"]
            until(lambda each=answer: each.headers["x-request-id"] in log.read_text())  # type: ignore[misc]
        assert older.read_text() == written

        (policies / "authz.rego").write_text("package memories.authz\n\ndecision := {")
        service.signal(signal.SIGHUP)
        until(lambda: log.read_text().count("authz.rego:") >= workers)
        assert {each.get("/v1/memories", params=question).status_code for each in clients} == {403}
        (policies / "authz.rego").write_text(OPEN)
        service.signal(signal.SIGHUP)
        until(lambda: reloads(log) == 2 * workers)
        assert {each.get("/v1/memories", params=question).status_code for each in clients} == {404}
        assert service.running
    assert service.log == ""
