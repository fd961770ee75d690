"""Whatever is sent, the server answers as its own description says, and never breaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import EngineEvent, FatalError, NonFatalError, ScenarioFinished
from schemathesis.engine.recorder import Interaction, ScenarioRecorder

from tests.acceptance.server import Server

EXAMPLES = 250 if os.environ.get("ALCOVE_LONG") else 25
LEAST_REQUESTS = 500
"""Far fewer than are made; a run that makes fewer has tested nothing."""
SETTINGS = {
    "seed": 1,
    "continue-on-failure": True,
    "request-timeout": 30,
    "generation": {"max-examples": EXAMPLES, "deterministic": True, "database": "none"},
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
NAMESPACES = ("ns", "namespace", "namespace_prefix", "prefix")


@pytest.mark.parametrize("rooms", ["anybody's", "one's own"])
def test_every_answer_is_one_that_the_description_names(server: Server, rooms: str) -> None:
    config = SchemathesisConfig.from_dict({**SETTINGS, "base-url": server.url})
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
    if rooms == "one's own":
        schema.hook("map_query")(_into_own_rooms)
        schema.hook("map_body")(_into_own_rooms)
    wrong: set[str] = set()
    requests = 0
    for event in from_schema(schema).execute():
        wrong.update(_errors(event))
        if isinstance(event, ScenarioFinished):
            requests += len(event.recorder.interactions)
            wrong.update(_failures(event.recorder))
    assert not wrong, "\n\n".join(sorted(wrong)[:20])
    assert requests > LEAST_REQUESTS
    assert "Traceback" not in server.log


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
    """Random namespaces are somebody else's; these lie where the caller may read and write."""
    if isinstance(sent, dict):
        for name in NAMESPACES:
            if isinstance(sent.get(name), list):
                sent[name] = ["user", "noop", *sent[name][:3]]
        for operation in sent.get("operations") or () if isinstance(sent.get("operations"), list) else ():
            _into_own_rooms(context, operation)
    return sent
