"""Workers without a parent stop, and a parent that cannot start has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import environment, free_port, refused, serving
from tests.support.waiting import PATIENCE, until
from tests.support.worker_connections import connected


def running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("busy", [False, True])
def test_workers_stop_when_their_parent_is_killed(tmp_path: Path, busy: bool) -> None:
    """With a stream open, too, although requests may take ten minutes."""
    with serving(tmp_path, "--workers", 2, "--request-seconds", 600) as service, connected(service) as client:
        until(lambda: len(service.children()) == 2)
        workers = service.children()
        if busy:
            with client.stream("GET", "/v1/memories/events/stream") as stream:
                pieces = stream.iter_raw()
                next(pieces)
                service.signal(signal.SIGKILL)
                assert list(pieces) == []
        else:
            service.signal(signal.SIGKILL)
        service.wait()
        until(lambda: not any(running(pid) for pid in workers))


@pytest.mark.parametrize("flags", [["--policy-dir", "/nonexistent"], ["--at", "/nonexistent/memory.db"]])
def test_a_service_of_workers_that_cannot_start_says_why_once(tmp_path: Path, flags: list[str]) -> None:
    said = refused(tmp_path, "--workers", 2, *flags)
    (line,) = [each for each in said.splitlines() if "/nonexistent" in each]
    assert line.startswith("alcove: ")
    assert len(said.splitlines()) <= 4, said


def test_broken_specs_are_told_of_once_and_end_the_service_before_it_has_workers(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text("agents: [{name: a, colour: red}, {name: u}]")
    said = refused(tmp_path, "--workers", 2, "--agents", specs)
    assert said.count("agents[0].colour") == said.count("agents[1].name") == 1, said
    assert "Started" not in said


def test_a_worker_that_cannot_be_replaced_yet_leaves_the_others_serving(tmp_path: Path) -> None:
    """The specs were broken since: the worker that died is back as soon as they are mended."""
    (specs := tmp_path / "agents.yaml").write_text("agents: [{name: a}]")
    with serving(tmp_path, "--workers", 2, "--agents", specs) as service:
        until(lambda: service.log.count("Application startup complete") == 2)
        first = service.children()
        specs.write_text("agents: [{name: a, colour: red}]")
        os.kill(first[0], signal.SIGKILL)
        until(lambda: '"a worker cannot start' in service.log)
        with connected(service) as client:
            assert client.get("/v1/agents").status_code == 200
        specs.write_text("agents: [{name: a}]")
        until(lambda: service.log.count("Application startup complete") == 3)
        assert first[1] in service.children()


def test_workers_that_all_fail_to_start_end_the_service(tmp_path: Path) -> None:
    """As when the specs are broken between the parent's look at them and theirs."""
    (specs := tmp_path / "agents.yaml").write_text("agents: [{name: a, colour: red}]")
    config = (
        f"ServeConfig(workers=2, port={free_port()}, at={str(tmp_path / 'm.db')!r}, agents={str(specs)!r})"
    )
    program = (
        "from alcove.server.config import ServeConfig; from alcove.server import startup as server\n"
        f"server._try_opening = lambda config: None\nserver.serve({config})"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert ended.returncode != 0
    assert "no worker could start" in ended.stderr
    assert 1 <= ended.stdout.count("agents[0].colour") <= 2, ended.stdout


def test_a_broken_policy_file_is_told_of_once_with_its_line(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "authz.rego").write_text("package memories.authz\n\ndecision := {\n")
    said = refused(tmp_path, "--workers", 2, "--policy-dir", folder)
    assert said.count("authz.rego") == 1, said
    assert os.listdir(folder) == ["authz.rego"]
