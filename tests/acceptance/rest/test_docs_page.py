"""The description of the API and the page that shows it, both served by us alone."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from jsonschema_rs import validator_for

ROUTES = {
    ("put", "/v1/memories"): {"200", "400", "401", "403", "409", "413", "415", "429", "500", "503"},
    ("get", "/v1/memories"): {"200", "400", "401", "403", "404", "429", "500", "503"},
    ("delete", "/v1/memories"): {"204", "400", "401", "403", "409", "429", "500", "503"},
    ("post", "/v1/memories/search"): {"200", "400", "401", "403", "413", "415", "429", "500", "503"},
    ("post", "/v1/memories/batch"): {"200", "400", "401", "403", "409", "413", "415", "429", "500", "503"},
    ("get", "/v1/memories/namespaces"): {"200", "400", "401", "403", "429", "500", "503"},
    ("get", "/v1/memories/events"): {"200", "400", "401", "403", "429", "500", "503"},
    ("get", "/v1/memories/history"): {"200", "400", "401", "403", "429", "500", "503"},
    ("get", "/healthz"): {"200"},
    ("get", "/readyz"): {"200", "503"},
    ("get", "/metrics"): {"200", "400", "401", "403", "429", "500", "503"},
}
SCHEMA_WORDS = {
    "$ref", "title", "description", "type", "nullable", "enum", "default", "format", "properties", "required",
    "additionalProperties", "items", "anyOf", "oneOf", "allOf", "not", "discriminator", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "minItems",
    "maxItems", "uniqueItems", "minProperties", "maxProperties", "readOnly", "writeOnly", "example",
    "deprecated", "externalDocs", "xml",
}  # fmt: skip
"""All that a Schema Object of OpenAPI 3.0 may say; `type: null`, `const` and lists of types came later."""
TYPES = {"array", "boolean", "integer", "number", "object", "string"}


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    return dict(answer.json())


def test_the_page_and_its_assets_come_from_here(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    named = re.findall(r"""(?:src|href)=["']?(/[^"' >]+)""", page.text)
    assert len(named) >= 3
    assert not re.search(r"https?://|[\"'(]//", page.text)
    for name in named:
        asset = client.get(urljoin("/docs", name))
        assert asset.status_code == 200, name
        expected = "text/css" if name.endswith(".css") else "text/javascript"
        assert asset.headers["content-type"].startswith(expected)
        assert len(asset.content) > 10_000 or name == "/docs/start.js"
        assert asset.headers["x-content-type-options"] == "nosniff"
        if name.endswith(".css"):
            assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", asset.text)
            assert not re.search(r"@import", asset.text)


def test_the_page_shows_this_servers_description(client: httpx.Client) -> None:
    start = client.get("/docs/start.js").text
    assert '"/openapi.json"' in start
    assert "validatorUrl: null" in start  # otherwise it asks validator.swagger.io


def test_the_page_stands_in_no_frame_and_runs_no_script_but_its_files(client: httpx.Client) -> None:
    page = client.get("/docs")
    policy = page.headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script>|<style|\bon\w+=", page.text)


def test_the_description_is_open_api_3_0(document: dict[str, Any]) -> None:
    assert re.fullmatch(r"3\.0\.\d", document["openapi"])
    assert {"title", "version"} <= set(document["info"])
    identities = [operation["operationId"] for _, operation in operations(document)]
    assert len(identities) == len(set(identities))
    for where, operation in operations(document):
        assert operation["summary"], where
        for parameter in operation["parameters"]:
            assert {"name", "in", "schema"} <= set(parameter), where
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", status), where
            assert response["description"], where


def test_every_schema_uses_only_words_of_3_0_and_every_reference_leads_somewhere(
    document: dict[str, Any],
) -> None:
    seen = 0
    for schema in schemas(document):
        seen += 1
        assert set(schema) <= SCHEMA_WORDS, schema
        assert schema.get("type", "object") in TYPES, schema
        if "nullable" in schema and "enum" in schema:
            assert None in schema["enum"], schema  # else null would not be among what it may be
        if "$ref" in schema:
            assert schema["$ref"].removeprefix("#/components/schemas/") in document["components"]["schemas"]
        if schema.get("type") == "array":
            assert "items" in schema, schema
    assert seen > 50


def test_every_route_is_described_with_its_errors(document: dict[str, Any]) -> None:
    described = {where: set(operation["responses"]) for where, operation in operations(document)}
    assert set(described) >= set(ROUTES)
    for where, statuses in ROUTES.items():
        assert described[where] >= statuses, where


def test_every_route_describes_its_errors_as_the_one_shape_and_openais_as_theirs(
    document: dict[str, Any],
) -> None:
    for where, operation in operations(document):
        for status, response in operation["responses"].items():
            if status[0] in "45" and where[1].startswith("/v1/"):
                schema = response["content"]["application/json"]["schema"]
                openais = where[1].startswith(("/v1/chat/", "/v1/models"))
                shape = "OpenAIError" if openais else "ErrorAnswer"
                assert schema == {"$ref": f"#/components/schemas/{shape}"}, (where, status)


def test_an_error_is_as_described(client: httpx.Client, document: dict[str, Any]) -> None:
    shape = {"components": document["components"], "$ref": "#/components/schemas/ErrorAnswer"}
    validator_for(shape).validate(client.get("/v1/memories").json())


def test_every_operation_parameter_and_field_says_what_it_is(document: dict[str, Any]) -> None:
    silent: list[str] = []
    for where, operation in operations(document):
        assert operation["tags"], where
        assert operation["summary"], where
        told = operation["parameters"]
        silent += [f"{where} {each['name']}" for each in told if not each.get("description")]
    for name, schema in document["components"]["schemas"].items():
        for field, about in schema.get("properties", {}).items():
            if "$ref" not in about and not about.get("description"):
                silent.append(f"{name}.{field}")
    assert silent == []


def test_every_example_works_as_it_is_offered(client: httpx.Client, document: dict[str, Any]) -> None:
    tried = []
    for (method, path), operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if "example" in content and "{" not in path:
            answer = client.request(method, path, json=content["example"])
            assert answer.status_code == 200, (method, path, answer.text)
            tried.append(path)
    assert len(tried) >= 7


def operations(document: dict[str, Any]) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    return [
        ((method, path), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def schemas(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every Schema Object of the document, with those inside it."""
    found = list(document["components"]["schemas"].values())
    for _, operation in operations(document):
        found += [parameter["schema"] for parameter in operation["parameters"]]
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        found += [content["schema"] for body in bodies for content in body.get("content", {}).values()]
    for schema in found:  # which grows meanwhile
        inner = [schema.get("items"), schema.get("additionalProperties"), schema.get("not")]
        inner += schema.get("properties", {}).values()
        inner += [part for word in ("anyOf", "oneOf", "allOf") for part in schema.get(word, [])]
        found += [each for each in inner if isinstance(each, dict)]
    return found
