"""The OpenAPI document of all endpoints, and a page to try them on."""

from __future__ import annotations

import asyncio
import inspect
import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

from alcove.api.operation import CAMEL_CASE_FIELDS, Operation
from alcove.api.operations import EVENTS
from alcove.core.errors import STATUS
from alcove.core.namespace import Namespace
from alcove.server.panel import DOCS_HEADERS
from alcove.server.routes import Endpoint, Page, Request, endpoint

_ASSETS = {"/docs/swagger-ui.css": b"text/css", "/docs/swagger-ui-bundle.js": b"text/javascript"}
_TEXT = {"type": "string"}
_FIELDS: dict[str, str] = tomllib.loads((files("alcove.api") / "fields.toml").read_text(encoding="utf-8"))
_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Alcove API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css"></head>
<body><div id="ui"></div><script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script></body></html>
"""
_START = b"""SwaggerUIBundle({url: "/openapi.json", dom_id: "#ui", validatorUrl: null});
"""


def describe(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """The OpenAPI 3.0 document of these endpoints, with every error that they answer."""
    described = [each.operation for each in endpoints]
    records: set[type[Struct]] = {each.body for each in endpoints if each.body}
    records |= {record for each in described for record in (each.answer, each.error_record) if record}
    ordered = sorted(records, key=lambda record: record.__name__)
    refs, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}", schema_hook=_custom_schema
    )
    schema = dict(zip(ordered, refs, strict=True))
    for name, component in components.items():
        _describe(name, component)
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        operation = each.operation
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(each, schema)
    document = {
        "openapi": "3.0.3",
        "info": {
            "title": "Alcove",
            "version": version,
            "description": "Memory for AI agents: namespaced JSON memories, sealed and policy-guarded.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "security": [{"token": []}, {"key": []}, {}],
    }
    return _as_3_0(document)  # type: ignore[no-any-return]


def _describe(name: str, component: dict[str, Any]) -> None:
    """Adds the description of each field of a record, and the second spelling of a memory's times."""
    properties = component.get("properties", {})
    if name in ("Entry", "Memory"):
        for time, alias in CAMEL_CASE_FIELDS.items():
            properties[alias] = {**properties[time], "description": f"The same as `{time}`."}
            component["required"].append(alias)
    for field, schema in properties.items():
        if "$ref" not in schema and "description" not in schema:
            schema["description"] = _field_text(name, field)


def _field_text(record: str, field: str) -> str:
    return _FIELDS.get(f"{record}.{field}") or _FIELDS.get(field, "")


def _custom_schema(kind: type) -> dict[str, Any]:
    """The schema of a type that msgspec does not know."""
    if kind is Namespace:
        return {"type": "array", "items": {"type": "string"}}
    raise NotImplementedError(kind)


def pages(endpoints: Sequence[Endpoint], version: str) -> list[Endpoint]:
    """`/openapi.json` for these endpoints, and `/docs` with its own assets, so that it works offline."""
    generated = {
        "/docs": Page(_PAGE, b"text/html; charset=utf-8", headers=DOCS_HEADERS),
        "/docs/start.js": Page(_START, b"text/javascript", headers=DOCS_HEADERS),
    }

    async def description(request: Request) -> Struct:
        if request.route not in generated:  # a server starts a third faster without it
            document = await asyncio.to_thread(describe, endpoints, version)
            generated[request.route] = Page(msgspec.json.encode(document))
        return generated[request.route]

    async def page(request: Request) -> Struct:
        if request.route in generated:
            return generated[request.route]
        bundle = files("swagger_ui_bundle") / "vendor" / "swagger-ui-4.15.5"
        asset = bundle / request.route.removeprefix("/docs/")
        return Page(asset.read_bytes(), _ASSETS[request.route], headers=DOCS_HEADERS)

    handlers = {"/openapi.json": description, **dict.fromkeys((*generated, *_ASSETS), page)}
    return [endpoint(f"GET {path}", handler, is_public=True) for path, handler in handlers.items()]


def _operation(endpoint: Endpoint, schema: dict[type[Struct], Any]) -> dict[str, Any]:
    operation = endpoint.operation
    text = operation.function.__doc__ if operation.function else None
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": inspect.cleandoc(text or "").partition("\n\n")[0],
        "parameters": _parameters(endpoint),
        "responses": _responses(operation, schema),
    }
    if endpoint.body:
        content = _json(schema[endpoint.body])
        if operation.example is not None:
            content["application/json"]["example"] = operation.example
        if operation.raw_body:
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        described["requestBody"] = {"required": not endpoint.is_body_optional, "content": content}
    if operation.line_body:
        lines = {"application/x-ndjson": {"schema": _TEXT}}
        described["requestBody"] = {"required": True, "content": lines}
    if operation.is_public:
        described["security"] = []
    return described


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """The parameters in the path, in the query, where a list repeats its name, and in headers."""

    def parameter(place: str, name: str, schema: Any, *, required: bool, **more: object) -> dict[str, Any]:
        described = {"name": name, "in": place, "required": required, "description": _field_text("", name)}
        return {**described, "schema": schema, **more}

    text, path = {"type": "string", "minLength": 1}, endpoint.operation.path
    parameters = [parameter("path", name, text, required=True) for name in re.findall(r"\{(\w+)\}", path)]
    for each in msgspec.structs.fields(endpoint.query):
        schema = _without_null(msgspec.json.schema(each.type))
        parameters.append(
            parameter("query", each.name, schema, required=each.required, style="form", explode=True)
        )
    if endpoint.operation.idempotent:
        key = {**text, "maxLength": 255}
        parameters.append(parameter("header", "Idempotency-Key", key, required=False))
    return parameters


def _responses(operation: Operation[..., Any], schema: dict[type[Struct], Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if media_type := operation.stream_type or operation.media_type:
        text = "It streams." if operation.stream_type else "Done."
        responses["200"] = {"description": text, "content": {media_type: {"schema": _TEXT}}}
    elif operation.answer:
        responses["200"] = {"description": "Done.", "content": _json(schema[operation.answer])}
        if operation.can_stream:
            responses["200"]["content"][EVENTS] = {"schema": {}}  # OpenAPI 3.0 has no schema of events
    if operation.no_content:
        responses["204"] = {"description": "Done; 200 with `Prefer: return=representation`."}
    elif not responses:
        responses["204"] = {"description": "Done."}
    codes = {status: code for code, status in STATUS.items()}
    for status in sorted({*operation.errors, *(() if operation.is_public else (429, 500, 503))}):
        record = operation.answer if operation.is_public and status == 503 else operation.error_record
        content = _json(schema[record]) if record else {}
        responses[str(status)] = {"description": codes[status], "content": content}
    return responses


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter, which is left out rather than null."""
    parts = [part for part in schema.get("anyOf", []) if part != {"type": "null"}]
    return parts[0] if len(parts) == 1 else schema


def _as_3_0(node: Any) -> Any:
    """JSON Schema as OpenAPI 3.0 has it: `nullable` instead of a type of null.

    An object with any fields says so with `additionalProperties`; generators give it no fields otherwise.
    """
    if isinstance(node, list):
        return [_as_3_0(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {name: _as_3_0(each) for name, each in node.items()}
    if node.get("type") == "object" and not node.keys() & {"properties", "additionalProperties"}:
        node["additionalProperties"] = True
    parts = node.get("anyOf")
    if parts and {"type": "null"} in parts:
        kinds = [part for part in parts if part != {"type": "null"}]
        node.pop("anyOf")
        if "enum" in kinds[0]:
            kinds[0]["enum"].append(None)
        if len(kinds) == 1 and "$ref" not in kinds[0]:
            return {**kinds[0], **node, "nullable": True}
        return {**node, "anyOf": kinds, "nullable": True}
    if "const" in node:
        node["enum"] = [node.pop("const")]
    for bound in ("Minimum", "Maximum"):
        if isinstance(node.get(f"exclusive{bound}"), int | float):
            node[bound.lower()], node[f"exclusive{bound}"] = node[f"exclusive{bound}"], True
    return node
