"""What heads, and requests to agents, to MCP and to operators cost: see `tests/support/time_fuzzer.py`."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Iterator
from typing import Any

import jwt
import msgspec
import pytest

from tests.support.chat_service import Parlour
from tests.support.conversation_service import written
from tests.support.llm_server import LLMServer, llm  # noqa: F401
from tests.support.service import serving
from tests.support.time_fuzzer import (
    ADMIN,
    FEW,
    HEAD,
    KIB,
    MIB,
    SOME,
    WORST,
    Entry,
    Fuzzer,
    Request,
    Shape,
)  # fmt: skip
from tests.support.tokens import FLAGS, SECRET
from tests.support.waiting import LONG

ids = itertools.count()
LARGE = MIB - KIB if LONG else 256 * KIB
ME = "/v1/me"


def value(text: str) -> bytes:
    """A text as the value of a header, which has no control characters."""
    return bytes(each if each > 31 and each != 127 else 63 for each in text.encode()).strip() or b"-"


def header(name: str, path: str = ME, before: bytes = b"", **more: Any) -> Entry:
    def make(text: Shape, size: int) -> list[Request]:
        return [Request("GET", path, headers={name: before + value(text(size))}, **more)]

    return 4 * HEAD, 200, make


def anonymous(name: str, before: bytes = b"") -> Entry:
    return 4 * HEAD, 401, header(name, before=before, by=None)[2]


def parameter(path: str, name: str, status: int, **more: str) -> Entry:
    def make(text: Shape, size: int) -> list[Request]:
        return [Request("GET", path, params={**more, name: text(size)})]

    return HEAD, status, make


def bearer(header: object, claims: object, *, signed: bool) -> Request:
    """Somebody whose token has these parts."""
    if signed:
        token = jwt.encode(claims, SECRET, "HS256", header)  # type: ignore[arg-type]
    else:
        parts = (each if isinstance(each, bytes) else msgspec.json.encode(each) for each in (header, claims))
        token = ".".join([*(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts), "x"])
    return Request("GET", ME, headers={"authorization": f"Bearer {token}"})


def claims(**more: object) -> dict[str, object]:
    return {"sub": "mallory", "exp": int(time.time()) + 3600, **more}


HEADS: dict[str, Entry] = {
    **{name: header(name) for name in (
        "accept", "accept-encoding", "accept-language", "x-request-id", "prefer", "origin", "forwarded",
        "x-forwarded-for", "x-api-key", "if-none-match", "traceparent", "last-event-id", "x-alcove-csrf",
        "user-agent", "range", "expect-ct", "x-session-id",
    )},
    "content-type": (4 * HEAD, 415, lambda text, size: [
        Request("PUT", "/v1/memories", b"{}", {"content-type": value(text(size))})]),
    "parameters of a content type": (4 * HEAD, 400, lambda text, size: [
        Request("PUT", "/v1/memories", b"{}", {"content-type": b"application/json;" + value(text(size))})]),
    "idempotency-key": (4 * HEAD, 400, lambda text, size: [
        Request("PUT", "/v1/memories", {"namespace": ["user", "mallory"], "key": "k", "value": {}},
                {"idempotency-key": value(text(size))})]),
    "user of a token": (4 * HEAD, 403, header("x-user-id")[2]),
    "nobody's key": anonymous("x-api-key"),
    "cookie": anonymous("cookie"),
    "cookies": anonymous("cookie", b"alcove_token="),
    "quoted cookie": anonymous("cookie", b'a="'),
    "authorization": anonymous("authorization"),
    "bearer": anonymous("authorization", b"Bearer "),
    "bearer with dots": anonymous("authorization", b"Bearer ..."),
    "head of a token": (2 * HEAD, 401, lambda text, size: [
        bearer({"alg": "HS256", "typ": text(size)}, {}, signed=False)]),
    "head of a token, nested": (2 * HEAD, 401, lambda text, size: [bearer(b"[" * size, {}, signed=False)]),
    "number in the head of a token": (2 * HEAD, 401, lambda text, size: [
        bearer(b'{"alg": %b}' % (b"7" * size), {}, signed=False)]),
    "claims of a forged token": (2 * HEAD, 401, lambda text, size: [
        bearer({"alg": "HS256"}, {"sub": text(size)}, signed=False)]),
    "claim": (2 * HEAD, 200, lambda text, size: [bearer({}, claims(more=text(size)), signed=True)]),
    "roles": (2 * HEAD, 200, lambda text, size: [
        bearer({}, claims(roles=[text(9)] * (size // 12)), signed=True)]),
    "claims": (2 * HEAD, 200, lambda text, size: [
        bearer({}, claims(**{f"{n}{text(9)}": n for n in range(size // 20)}), signed=True)]),
    "subject": (2 * HEAD, 400, lambda text, size: [bearer({}, claims(sub=text(size)), signed=True)]),
    "many headers": (3 * HEAD, 200, lambda text, size: [
        Request("GET", ME, headers={f"x-{n}": value(text(9)) for n in range(size // 20)})]),
    "path": (HEAD, 404, lambda text, size: [Request("GET", f"/v1/{path(text(size))}", by=None)]),
    "path of slashes": (4 * HEAD, 404, lambda text, size: [Request("GET", "/x" + "/" * size, by=None)]),
    "agent": (HEAD, 404, lambda text, size: [Request("GET", f"/v1/agents/{path(text(size))}")]),
    "session": (HEAD, 400, lambda text, size: [
        Request("GET", f"/v1/agents/all/sessions/{path(text(size))}")]),
    "file of the panel": (HEAD, 404, lambda text, size: [
        Request("GET", f"/panel/{path(text(size))}", by=None)]),
    "key in a query": parameter("/v1/memories", "key", 400, ns="user"),
    "namespace in a query": parameter("/v1/memories", "ns", 400, key="k"),
    "moment in a query": parameter("/v1/memories", "as_of", 400, ns="user", key="k"),
    "number in a query": parameter("/v1/memories/newest", "limit", 400, ns="user"),
    "flag in a query": parameter("/v1/memories/newest", "exact", 400, ns="user"),
    "cursor": parameter("/v1/memories/newest", "after_cursor", 400, ns="user"),
    "cursor of events": parameter("/v1/memories/events", "after_cursor", 400, ns="user"),
    "place in a tree": parameter("/v1/memories/tree", "after", 200, ns="user"),
    "prefix": parameter("/v1/memories/namespaces", "prefix", 400),
    "suffix": parameter("/v1/memories/namespaces", "suffix", 400),
    "kinds": parameter("/v1/memories/events", "kinds", 400, ns="user"),
    "name of a parameter": (HEAD, 400, lambda text, size: [Request("GET", ME, params={text(size): "1"})]),
    "parameters": (HEAD, 400, lambda text, size: [
        Request("GET", "/v1/memories", params={"ns": [text(6)] * (size // 12), "key": "k"})]),
    "unknown parameters": (HEAD, 400, lambda text, size: [
        Request("GET", ME, params={f"{n}{text(6)}": "" for n in range(size // 12)})]),
}  # fmt: skip


def path(text: str) -> str:
    """A text as a part of a path, percent-encoded."""
    return "".join(f"%{byte:02X}" for byte in text.encode()[: HEAD + 2 * KIB]) or "x"


def agent(name: str, body: object, by: str | None = "mallory") -> Request:
    return Request("POST", f"/v1/agents/{name}", body, by=by)


def messages(*said: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]


def turns(text: Shape, size: int) -> list[Request]:
    """Messages that fall out of a window, so that they are summarised."""
    room, said = f"sessions/s{next(ids)}/turns", text(size // 8)
    before = agent(f"running/{room}", {"messages": messages(*[said] * 7)})
    return [before, agent(f"running/{room}", {"messages": messages(said)})]


def completion(**more: object) -> Request:
    return Request("POST", "/v1/chat/completions", {"model": "talk", "messages": messages("Hello"), **more})


def function(**more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **more}}


def rpc(method: str, **params: object) -> Request:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return Request("POST", "/mcp/all", body, {"accept": "application/json, text/event-stream"})


AGENTS: dict[str, Entry] = {
    "context": (64 * KIB, 200, lambda text, size: [
        agent("all/context", {"session_id": "s", "message": text(size), "budget_tokens": 10**7})]),
    "long context": (LARGE, 400, lambda text, size: [
        agent("all/context", {"session_id": "s", "message": text(size)})]),
    "turn": (LARGE, 200, lambda text, size: [
        agent(f"talk/sessions/s{next(ids)}/turns", {"messages": messages(text(size))})]),
    "turns": (LARGE, 200, turns),
    "many turns": (LARGE, 400, lambda text, size: [
        agent("talk/sessions/many/turns", {"messages": messages(*[text(9)] * (size // 50))})]),
    "role": (LARGE, 400, lambda text, size: [
        agent("talk/sessions/s/turns", {"messages": [{"role": text(size), "content": "x"}]})]),
    "tool calls": (LARGE, 400, lambda text, size: [agent("talk/sessions/s/turns", {"messages": [
        {"role": "assistant", "tool_calls": [{"id": text(9), "function": {}}] * (size // 40)}]})]),
    "id of a session": (LARGE, 400, lambda text, size: [
        agent("all/context", {"session_id": text(size), "message": "x"})]),
    "chat": (12 * KIB, 200, lambda text, size: [
        agent("all/chat", {"session_id": f"s{next(ids)}", "message": text(size)})]),
    "long chat": (LARGE, 400, lambda text, size: [
        agent("all/chat", {"session_id": "s", "message": text(size)})]),
    "instances": (LARGE, 400, lambda text, size: [
        agent("all/chat", {"session_id": "s", "message": "x", "instances": {text(size): "y"}})]),
    "completion": (12 * KIB, 200, lambda text, size: [completion(messages=messages(text(size)))]),
    "long completion": (LARGE, 400, lambda text, size: [completion(messages=messages(text(size)))]),
    "told conversation": (128 * KIB, 200, lambda text, size: [
        completion(messages=messages(*[text(size // 17)] * 16, "Hello"))]),
    "long told conversation": (MIB, 400, lambda text, size: [
        completion(messages=messages(*[text(size // 1999)] * 1998, "Hello"))]),
    "many messages": (LARGE, 400, lambda text, size: [
        completion(messages=messages(*[text(9)] * (size // 50)))]),
    "parts": (12 * KIB, 200, lambda text, size: [completion(messages=[
        {"role": "user", "content": [{"type": "text", "text": text(6)}] * (size // 40)}])]),
    "tools": (12 * KIB, 200, lambda text, size: [completion(tools=[function(description=text(size))])]),
    "long tools": (LARGE, 400, lambda text, size: [completion(tools=[function(description=text(size))])]),
    "many tools": (LARGE, 400, lambda text, size: [completion(tools=[function()] * (size // 60))]),
    "response format": (LARGE, 400, lambda text, size: [
        completion(response_format={"type": "json_schema", "json_schema": {"name": text(size)}})]),
    "stop": (LARGE, 400, lambda text, size: [completion(stop=[text(9)] * (size // 12))]),
    "logit bias": (LARGE, 400, lambda text, size: [
        completion(logit_bias={f"{text(6)}{n}": 1 for n in range(size // 16)})]),
    "tool choice": (LARGE, 400, lambda text, size: [completion(tool_choice=text(size))]),
    "effort": (LARGE, 400, lambda text, size: [completion(reasoning_effort=text(size))]),
    "model": (LARGE, 404, lambda text, size: [completion(model=text(size))]),
    "session of a completion": (4 * HEAD, 400, lambda text, size: [
        Request("POST", "/v1/chat/completions", completion().body, {"x-session-id": value(text(size))})]),
    "mcp tool": (64 * KIB, 200, lambda text, size: [
        rpc("tools/call", name="memory_remember", arguments={"content": text(size)})]),
    "mcp name": (LARGE, 200, lambda text, size: [rpc("tools/call", name=text(size), arguments={})]),
    "mcp uri": (LARGE, 200, lambda text, size: [rpc("resources/read", uri=text(size))]),
    "mcp cursor": (LARGE, 200, lambda text, size: [rpc("resources/list", cursor=text(size))]),
    "mcp method": (LARGE, 200, lambda text, size: [rpc(text(size))]),
    "mcp headers": (4 * HEAD, 200, lambda text, size: [
        Request("POST", "/mcp/all", rpc("tools/list").body,
                {"accept": "application/json, text/event-stream", "mcp-session-id": value(text(size))})]),
    "run": (LARGE, 400, lambda text, size: [
        Request("POST", "/v1/runs", {"kind": "workflow", "id": text(size)})]),
    "members": (LARGE, 400, lambda text, size: [Request("POST", "/v1/runs", {
        "kind": "workflow", "id": "r", "members": [f"{text(6)}{n}" for n in range(size // 12)]})]),
    "document": (LARGE, 200, lambda text, size: [Request(
        "PUT", "/v1/knowledge/manuals/documents/x.md", text(size).encode(),
        {"content-type": "text/markdown"}, by=ADMIN)]),
    "page": (64 * KIB, 200, lambda text, size: [Request(
        "PUT", "/v1/knowledge/manuals/documents/x.html", b"<p>" + text(size).encode(),
        {"content-type": "text/html"}, by=ADMIN)]),
    "name of a document": (HEAD, 400, lambda text, size: [Request(
        "PUT", f"/v1/knowledge/manuals/documents/{path(text(size))}", b"x",
        {"content-type": "text/markdown"}, by=ADMIN)]),
    "search of documents": (64 * KIB, 200, lambda text, size: [Request(
        "POST", "/v1/knowledge/manuals/search", {"query": text(size)}, by=ADMIN)]),
    "input of a policy": (LARGE, 200, lambda text, size: [Request(
        "POST", "/v1/admin/policies/test", {"input": {"x": text(size)}}, by=ADMIN)]),
    "policy": (LARGE, 400, lambda text, size: [Request(
        "POST", "/v1/admin/policies/test", {"input": {}, "authz": text(size)}, by=ADMIN)]),
    "receipt": (LARGE, 200, lambda text, size: [Request(
        "POST", "/v1/admin/receipts/verify", {"receipt": {text(size): text(9)}}, by=ADMIN)]),
    "user of the audit log": (HEAD, 200, lambda text, size: [Request(
        "GET", "/v1/admin/audit", params={"user": text(size)}, by=ADMIN)]),
    "wiped user": (HEAD, 400, lambda text, size: [Request(
        "POST", f"/v1/admin/users/{path(text(size))}/wipe", {"dry_run": True}, by=ADMIN)]),
    "sign-in": (LARGE, 413, lambda text, size: [
        Request("POST", "/panel/session", {"token": text(size)}, by=None)]),
    "short sign-in": (15 * KIB, 400, lambda text, size: [
        Request("POST", "/panel/session", {"token": text(size)}, by=None)]),
}  # fmt: skip
LOOKED_INTO = {
    "context",
    "turn",
    "turns",
    "chat",
    "told conversation",
    "mcp tool",
    "document",
    "search of documents",
}
"""Requests whose texts are read and not only carried: all texts are tried on them."""


@pytest.fixture(scope="module")
def table(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    llm.reset()
    specs = written(folder := tmp_path_factory.mktemp("edges"))
    model = ("--llm-url", llm.url, "--llm-model", "scripted", "--embedder", "none")
    with serving(folder, *FLAGS, "--agents", specs, *model) as running:
        yield Parlour(running, specs, llm)


@pytest.mark.parametrize("what", HEADS)
def test_no_head_costs_more_than_its_size_warrants(table: Parlour, what: str) -> None:
    Fuzzer(table).check(what, HEADS[what], SOME)


@pytest.mark.parametrize("what", AGENTS)
def test_no_request_to_an_agent_costs_more_than_its_size_warrants(table: Parlour, what: str) -> None:
    Fuzzer(table).check(what, AGENTS[what], len(WORST) if what in LOOKED_INTO else FEW)
