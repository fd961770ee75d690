"""OpenAPI, made from the same resources that are served, and a page to try them on."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

from alcove.api.operations import EVENTS
from alcove.api.wire import SPELLED_TWICE
from alcove.core.errors import STATUS
from alcove.core.namespace import Namespace
from alcove.server.panel import DOCS_HEADERS
from alcove.server.routes import Page, Request, Resource

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


def describe(resources: Sequence[Resource], version: str) -> dict[str, Any]:
    """The OpenAPI 3.0 document of these resources, with every error they answer."""
    records = {r for each in resources for r in (each.body, each.answer, each.refusal) if r}
    ordered = sorted(records, key=lambda record: record.__name__)
    refs, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}", schema_hook=_of_ours
    )
    schema = dict(zip(ordered, refs, strict=True))
    for name, component in components.items():
        _describe(name, component)
    paths: dict[str, dict[str, Any]] = {}
    for each in resources:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema)
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
    """Says what each field of a record is, and adds the second spelling of a memory's times."""
    properties = component.get("properties", {})
    if name in ("Entry", "Memory"):
        for time, again in SPELLED_TWICE.items():
            properties[again] = {**properties[time], "description": f"The same as `{time}`."}
            component["required"].append(again)
    for field, schema in properties.items():
        if "$ref" not in schema and "description" not in schema:
            schema["description"] = _told(name, field)


def _told(record: str, field: str) -> str:
    return _FIELDS.get(f"{record}.{field}") or _FIELDS.get(field, "")


def _of_ours(kind: type) -> dict[str, Any]:
    """How a type that only we know goes over the wire."""
    if kind is Namespace:
        return {"type": "array", "items": {"type": "string"}}
    raise NotImplementedError(kind)


def pages(resources: Sequence[Resource], version: str) -> list[Resource]:
    """`/openapi.json` for these resources, and `/docs` with assets of our own: it works with no internet."""
    made = {
        "/openapi.json": Page(msgspec.json.encode(describe(resources, version))),
        "/docs": Page(_PAGE, b"text/html; charset=utf-8", headers=DOCS_HEADERS),
        "/docs/start.js": Page(_START, b"text/javascript", headers=DOCS_HEADERS),
    }

    async def page(request: Request) -> Struct:
        if request.route in made:
            return made[request.route]
        bundle = files("swagger_ui_bundle") / "vendor" / "swagger-ui-4.15.5"
        asset = bundle / request.route.removeprefix("/docs/")
        return Page(asset.read_bytes(), _ASSETS[request.route], headers=DOCS_HEADERS)

    return [
        Resource(name="page", path=path, handler=page, errors=(), open=True) for path in (*made, *_ASSETS)
    ]


def _operation(resource: Resource, schema: dict[type[Struct], Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": resource.name,
        "tags": [resource.tag],
        "summary": resource.summary,
        "description": inspect.cleandoc(resource.description or "").partition("\n\n")[0],
        "parameters": _parameters(resource),
        "responses": _responses(resource, schema),
    }
    if resource.body:
        content = _json(schema[resource.body])
        if resource.example is not None:
            content["application/json"]["example"] = resource.example
        if resource.raw:
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": not resource.body_optional, "content": content}
    if resource.takes_lines:
        operation["requestBody"] = {"required": True, "content": {"application/x-ndjson": {"schema": _TEXT}}}
    if resource.open:
        operation["security"] = []
    return operation


def _parameters(resource: Resource) -> list[dict[str, Any]]:
    """What stands in the path, in the query, where a list repeats its name, and in a header."""

    def parameter(where: str, name: str, schema: Any, *, required: bool, **more: object) -> dict[str, Any]:
        about = {"name": name, "in": where, "required": required, "description": _told("", name)}
        return {**about, "schema": schema, **more}

    some = {"type": "string", "minLength": 1}
    found = [parameter("path", name, some, required=True) for name in re.findall(r"\{(\w+)\}", resource.path)]
    for each in msgspec.structs.fields(resource.query):
        schema = _without_null(msgspec.json.schema(each.type))
        found.append(
            parameter("query", each.name, schema, required=each.required, style="form", explode=True)
        )
    if resource.idempotent:
        found.append(parameter("header", "Idempotency-Key", {**some, "maxLength": 255}, required=False))
    return found


def _responses(resource: Resource, schema: dict[type[Struct], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if media_type := resource.streams or resource.media_type:
        about = "It streams." if resource.streams else "Done."
        found["200"] = {"description": about, "content": {media_type: {"schema": _TEXT}}}
    elif resource.answer:
        found["200"] = {"description": "Done.", "content": _json(schema[resource.answer])}
        if resource.streams_too:
            found["200"]["content"][EVENTS] = {"schema": {}}  # events have none in OpenAPI 3.0
    if resource.quiet:
        found["204"] = {"description": "Done; 200 with `Prefer: return=representation`."}
    elif not found:
        found["204"] = {"description": "Done."}
    codes = {status: code for code, status in STATUS.items()}
    for status in sorted({*resource.errors, *(() if resource.open else (429, 500, 503))}):
        answer = resource.answer if resource.open and status == 503 else resource.refusal
        content = _json(schema[answer]) if answer else {}
        found[str(status)] = {"description": codes[status], "content": content}
    return found


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is left out rather than null."""
    some = [part for part in schema.get("anyOf", []) if part != {"type": "null"}]
    return some[0] if len(some) == 1 else schema


def _as_3_0(node: Any) -> Any:
    """JSON Schema as OpenAPI 3.0 has it: `nullable` instead of a type of null.

    An object that may have any fields says so: generators take one that does not for one that has none.
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
        rest = [part for part in parts if part != {"type": "null"}]
        node.pop("anyOf")
        if "enum" in rest[0]:
            rest[0]["enum"].append(None)
        if len(rest) == 1 and "$ref" not in rest[0]:
            return {**rest[0], **node, "nullable": True}
        return {**node, "anyOf": rest, "nullable": True}
    if "const" in node:
        node["enum"] = [node.pop("const")]
    for bound in ("Minimum", "Maximum"):
        if isinstance(node.get(f"exclusive{bound}"), int | float):
            node[bound.lower()], node[f"exclusive{bound}"] = node[f"exclusive{bound}"], True
    return node
