"""Whatever is sent, the server answers as its own description says, and never breaks."""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from schemathesis import Case
from schemathesis.checks import CheckContext
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.acceptance.server import PATIENCE, Server

EXAMPLES = 300 if os.environ.get("ALCOVE_LONG") else 30


@pytest.fixture(scope="module")
def described(server: Server) -> Any:
    """The running server's own description, with the same cases in every run."""
    generation = GenerationConfig(
        max_examples=EXAMPLES, deterministic=True, with_security_parameters=False, database="none"
    )
    project = ProjectConfig(generation=generation, request_timeout=PATIENCE, base_url=server.url)
    config = SchemathesisConfig(projects=ProjectsConfig(default=project), seed=1)
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)


anything = schemathesis.pytest.from_fixture("described")


def nothing_breaks(context: CheckContext, response: Response, case: Case) -> None:
    """No 5xx, but for searches by meaning, which have no embedder to ask."""
    by_meaning = case.path == "/v1/memories/search" and response.status_code == 503
    assert response.status_code < 500 or by_meaning, response.text
    assert "Traceback" not in response.text


CHECKS: list[Any] = [
    nothing_breaks,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@anything.parametrize()
def test_every_answer_is_one_that_the_description_names(case: Case) -> None:
    case.call_and_validate(checks=CHECKS)


@anything.include(path_regex="^/v1/").parametrize()
def test_every_answer_in_ones_own_rooms_is_one_that_the_description_names(case: Case) -> None:
    _move_into_own_rooms(case)
    case.call_and_validate(checks=CHECKS)


def _move_into_own_rooms(case: Case) -> None:
    """Random namespaces are somebody else's; these lie where the caller may read and write."""
    places = [case.query, case.body]
    if isinstance(case.body, dict) and isinstance(case.body.get("operations"), list):
        places += case.body["operations"]
    for place in places:
        if isinstance(place, dict):
            for name in ("ns", "namespace", "namespace_prefix", "prefix"):
                if isinstance(place.get(name), list):
                    place[name] = ["user", "noop", *place[name][:3]]
