"""Who has not said who they are is told nothing of addresses, files and specs; who operates it is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from alcove import Alcove
from alcove.llm.model import ModelAnswer, ModelRequest
from tests.support.issuer import issuing
from tests.support.service import Service, assert_error, free_port, serving
from tests.support.tokens import FLAGS, token
from tests.support.waiting import until

AUDITOR, ADMIN = token("eve", roles=["auditor"]), token("root", roles=["admin"])
FIXED = {"ok", "works, with a warning: see the log, or call this as an admin",
         "does not work: see the log, or call this as an admin"}  # fmt: skip


@pytest.fixture
def troubled(tmp_path: Path) -> Iterator[Service]:
    """A service whose specs are broken since it started, and whose session store is not there."""
    (specs := tmp_path / "secret-specs.yaml").write_text("agents: [{name: bot, memory: {facts: {}}}]")
    nowhere = f"redis://127.0.0.1:{free_port()}"
    flags = [*FLAGS, "--agents", specs, "--embedder", "none", "--session-store", nowhere]
    with serving(tmp_path, *flags) as service:
        specs.write_text("agents: [{name: bot, memory: {hidden_field: {}}}]")
        until(lambda: "hidden_field" in service.log)
        yield service


def ready(service: Service, given: str | None = None) -> httpx.Response:
    return service.call("GET", "/readyz", given)


def test_a_stranger_hears_which_part_has_a_warning_and_an_operator_hears_it(troubled: Service) -> None:
    secrets = ["secret-specs", "hidden_field", "127.0.0.1", "memory.db", str(troubled.at.parent)]
    for given in (None, token("alice"), "made up"):
        answer = ready(troubled, given)
        assert answer.status_code == 200
        checks = answer.json()["checks"]
        assert {*checks.values()} <= FIXED
        assert checks["engine"] == "ok"
        assert "warning" in checks["agents"]
        assert "warning" in checks["session_store"]
        assert not [each for each in secrets if each in answer.text], answer.text
    for given in (AUDITOR, ADMIN):
        checks = ready(troubled, given).json()["checks"]
        assert "secret-specs.yaml" in checks["agents"]
        assert "away" in checks["session_store"]


def test_a_stranger_is_not_told_where_the_key_is_when_it_is_gone_and_the_log_is(troubled: Service) -> None:
    key = troubled.at.with_name("memory.db.key")
    key.rename(key.with_suffix(".gone"))
    try:
        answer = ready(troubled)
        assert answer.status_code == 503
        assert answer.json()["checks"]["keys"] in FIXED - {"ok"}
        assert key.name not in answer.text
        for _ in range(5):
            told = ready(troubled, AUDITOR)
            assert told.status_code == 503
            assert key.name in told.json()["checks"]["keys"]
        lines = [line for line in troubled.lines if key.name in str(line)]
        assert len(lines) == 1, "once, however often it is asked"
    finally:
        key.with_suffix(".gone").rename(key)
    assert ready(troubled).json()["checks"]["keys"] == "ok"


@pytest.mark.parametrize("flag", ["--jwks-url", "--oidc-issuer"])
def test_a_stranger_is_not_told_where_the_keys_of_tokens_are(tmp_path: Path, flag: str) -> None:
    port = free_port()
    with (
        issuing() as issuer,
        serving(tmp_path, "--auth", "jwt", flag, f"http://127.0.0.1:{port}/keys") as service,
    ):
        for answer in (
            service.look(issuer.sign()),
            service.call("POST", "/panel/session", json={"token": issuer.sign()}),
            ready(service, issuer.sign()),
        ):
            assert str(port) not in answer.text
            assert "http:" not in answer.text
            assert answer.status_code == 200 or assert_error(answer, 503, "service_unavailable")
        assert [line for line in service.lines if str(port) in str(line) and "key set" in line["event"]]


def test_every_answer_to_a_stranger_is_free_of_places(troubled: Service) -> None:
    key = troubled.at.with_name("memory.db.key")
    document = troubled.call("GET", "/openapi.json").json()
    key.rename(key.with_suffix(".gone"))
    try:
        for path, methods in document["paths"].items():
            for method in methods:
                filled = path.replace("{", "").replace("}", "")
                answer = troubled.call(method.upper(), filled, headers={"host": "memory.test"})
                text = f"{answer.text}{json.dumps(dict(answer.headers))}"
                for place in ("memory.db", "secret-specs", str(troubled.at.parent), "redis:"):
                    assert place not in text, (method, path, text)
    finally:
        key.with_suffix(".gone").rename(key)


class Saboteur:
    """A model that calls a tool as soon as it has broken the store."""

    def __init__(self, store: Path) -> None:
        self.store, self.results = store, list[str]()

    def ask(self, asked: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        self.results = [each.content or "" for each in asked.messages if each.role == "tool"]
        if self.results:
            yield ModelAnswer(text="It is broken.")
        else:
            with closing(sqlite3.connect(self.store)) as store:
                store.execute("ALTER TABLE versions RENAME TO gone")
            call = {"name": "recall", "arguments": '{"key": "tea"}'}
            yield ModelAnswer(text="", tool_calls=[{"id": "1", "type": "function", "function": call}])

    def close(self) -> None:
        """Has nothing to close."""


@pytest.mark.of_the_file("it is the file that breaks")
def test_a_model_is_not_told_where_the_store_is(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text("agents: [{name: bot, memory: {private: {}}}]")
    model = Saboteur(tmp_path / "secret.db")
    with Alcove(model.store, embedder=None) as memory:
        memory.agents(specs, llm=model).as_user("alice").chat("bot", "s", "Hi")
    (result,) = model.results
    assert result.startswith("error: the store")
