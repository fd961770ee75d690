"""Whatever is sent, the server answers as its own description says, and never breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import EngineEvent, FatalError, NonFatalError, ScenarioFinished
from schemathesis.engine.recorder import Interaction, ScenarioRecorder

from tests.support.llm_server import llm_server, text
from tests.support.service import Service, serving
from tests.support.waiting import LONG

EXAMPLES = 250 if LONG else 12
LEAST_REQUESTS = 500
"""Far fewer than are made; a run that makes fewer has tested nothing."""
SETTINGS = {
    "seed": 1,
    "continue-on-failure": True,
    "request-timeout": 30,
    "generation": {"max-examples": EXAMPLES, "deterministic": True, "database": "none"},
    "operations": [
        # What is wrong in a line fails that line and not the request.
        {"include-path": "/v1/memories/import", "checks": {"negative_data_rejection": {"enabled": False}}},
    ],
    "phases": {"stateful": {"enabled": False}},
    "checks": {
        "enabled": False,
        "status_code_conformance": {"enabled": True},
        "content_type_conformance": {"enabled": True},
        "response_headers_conformance": {"enabled": True},
        "response_schema_conformance": {"enabled": True},
        "unsupported_method": {"enabled": True},
        "negative_data_rejection": {"enabled": True, "expected-statuses": ["4xx", "503"]},
    },
}
AGENTS = """
agents: [{name: talk, memory: {conversation: {}}}]
teams: [{name: pair, workers: [talk]}]
"""
NAMES = {"agent": "talk", "team": "pair", "model": "talk"}
NOT_RUNNING = r"^/(?!v1/(agents/\{agent\}/(chat|usage)$|teams/\{team\}/run$|chat/|models))"
ADMIN = "^/v1/admin/"
NOT_ADMIN = "^/(?!v1/admin/)"
ENDLESS = "/v1/memories/events/stream"
OWN = ["user", "noop"]
KEYS = ("a", "b", "c")
SELDOM_MET: dict[str, type] = {
    "expected_revision": int, "as_of": str, "after": str, "before": str, "after_cursor": str, "query": str,
}  # fmt: skip
NAMESPACES = ("ns", "namespace", "namespace_prefix", "prefix")


@schemathesis.serializer("application/x-ndjson")
def as_lines(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.mark.parametrize("rooms", ["anybody's", "one's own"])
def test_every_answer_is_one_that_the_description_names(service: Service, rooms: str) -> None:
    schema = _described(service).exclude(path_regex=ADMIN).exclude(path=ENDLESS).exclude(path_regex="/chat$")
    if rooms == "one's own":
        for key in KEYS:
            body = {"namespace": OWN, "key": key, "value": {"n": 1}, "index": {"text": "tea"}}
            assert httpx.put(f"{service.url}/v1/memories", json=body).status_code == 200
        schema.hook("map_query")(_into_own_rooms)
        schema.hook("map_body")(_into_own_rooms)
    statuses = _fuzzed(service, schema)
    if rooms == "one's own":
        assert [each for each in _never_done(statuses) if "/v1/memories" in each] == []


def test_every_answer_to_an_operator_is_one_that_the_description_names(tmp_path: Path) -> None:
    """On a service of its own, for who operates one at random wipes it and changes its rules."""
    with serving(tmp_path) as service:
        statuses = _fuzzed(service, _described(service).exclude(path_regex=NOT_ADMIN))
    found_by_chance = ("DELETE", "POST /v1/admin/users/{user}/wipe")  # only what is there can be removed
    assert [label for label in _never_done(statuses) if not label.startswith(found_by_chance)] == []


def test_every_answer_of_agents_that_run_is_one_that_the_description_names(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(AGENTS)
    flags = ["--agents", specs, "--embedder", "none"]
    with llm_server(tmp_path) as llm, serving(tmp_path, *flags, "--llm-url", llm.url) as service:
        llm.play(text("Indeed.", pieces=2, always=True))
        schema = _described(service).exclude(path_regex=NOT_RUNNING)
        schema.hook("map_path_parameters")(_named)
        schema.hook("map_body")(_to_an_agent)
        statuses = _fuzzed(service, schema, least=50)
        assert _never_done(statuses) == []
        assert llm.requests


def _named(context: Any, sent: Any) -> Any:
    return {name: NAMES[name] for name in sent} if sent else sent


def _to_an_agent(context: Any, sent: Any) -> Any:
    """Random names of models are of none, and random messages seldom ones that can be answered."""
    if isinstance(sent, dict) and isinstance(sent.get("model"), str):
        sent["model"] = NAMES["model"]
        if isinstance(sent.get("messages"), list):
            sent["messages"].append({"role": "user", "content": "Hello"})
    return sent


def _described(service: Service) -> Any:
    config = SchemathesisConfig.from_dict({**SETTINGS, "base-url": service.url})
    return schemathesis.openapi.from_url(f"{service.url}/openapi.json", config=config)


def _fuzzed(service: Service, schema: Any, least: int = LEAST_REQUESTS) -> dict[str, list[int]]:
    """The statuses that each operation answered, once nothing was found wrong with any of them."""
    wrong: set[str] = set()
    statuses: dict[str, list[int]] = {}
    for event in from_schema(schema).execute():
        wrong.update(_errors(event))
        if isinstance(event, ScenarioFinished):
            answers = [made.response for made in event.recorder.interactions.values()]
            met = statuses.setdefault(event.recorder.label, [])
            met += [answer.status_code for answer in answers if answer is not None]
            wrong.update(_failures(event.recorder))
    assert not wrong, "\n\n".join(sorted(wrong)[:20])
    assert sum(map(len, statuses.values())) > least
    assert "Traceback" not in service.log
    return statuses


def _never_done(statuses: dict[str, list[int]]) -> list[str]:
    return [label for label, met in statuses.items() if not {200, 204} & set(met)]


def _errors(event: EngineEvent) -> Iterator[str]:
    """What kept the fuzzer from its work."""
    if isinstance(event, NonFatalError):
        yield f"{event.label}: {event.value!r}"
    if isinstance(event, FatalError):
        yield repr(event.exception)


def _failures(recorder: ScenarioRecorder) -> Iterator[str]:
    """What a check found wrong, and every 5xx but a search by meaning, which has no embedder to ask."""
    for checks in recorder.checks.values():
        for check in checks:
            if check.failure_info is not None:
                yield f"{recorder.label}: {check.failure_info.failure}\n{check.failure_info.code_sample}"
    for made in recorder.interactions.values():
        if made.response is None:
            yield f"{recorder.label}: no answer to {made.request.method} {made.request.uri}"
        elif made.response.status_code >= 500 and not _is_by_meaning(made):
            yield f"{recorder.label}: {made.response.status_code} {made.response.text}"


def _is_by_meaning(made: Interaction) -> bool:
    response = made.response
    searched = made.request.uri.endswith("/v1/memories/search")
    return searched and response is not None and "no embedder is configured" in response.text


def _into_own_rooms(context: Any, sent: Any) -> Any:
    """Random places are somebody else's and empty; these few are the caller's, and hold something.

    Whatever was made wrong on purpose stays as it is; what is seldom met by chance (a revision, a moment,
    a cursor) is left out, and a delete keeps its key, so that the others find something.
    """
    if not isinstance(sent, dict):
        return sent
    for name in NAMESPACES:
        segments = sent.get(name)
        if isinstance(segments, list) and segments and all(isinstance(each, str) for each in segments):
            sent[name] = OWN
    key = sent.get("key")
    if isinstance(key, str) and 1 <= len(key) <= 1024 and context.operation.method != "delete":
        sent["key"] = KEYS[len(key) % len(KEYS)]
    for name, kind in SELDOM_MET.items():
        value = sent.get(name)
        if type(value) is kind and not (isinstance(value, int) and value < 0):
            del sent[name]
    operations = sent.get("operations")
    for operation in operations if isinstance(operations, list) else ():
        _into_own_rooms(context, operation)
    return sent
