"""What runs on the event loop: nothing that is large, or may have to wait for the store's write lock."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from alcove.agents.specs import loading
from alcove.core import validation
from alcove.engine.sqlite.database import SqliteDatabase
from alcove.server import application, chat, logs
from alcove.server.config import ServeConfig
from alcove.server.routes import Endpoint
from alcove.server.startup import build
from alcove.store import audit
from alcove.store.reader import SMALL_BYTES
from alcove.store.row_decoder import RowDecoder
from tests.support.agent_service import SPECS
from tests.support.tokens import SECRET, token

MEMORIES = "/v1/memories"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServeConfig:
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # pytest's own log is left alone
    monkeypatch.setattr(audit, "_FLUSH_SECONDS", 0.01)
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    return ServeConfig(
        at=str(tmp_path / "memory.db"),
        auth="jwt",
        jwt_secret=SECRET,
        agents=str(specs),
        embedder="none",
        sweep_interval=0,
    )


@pytest.fixture
def written_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where from the write lock was asked for on an event loop, as it happens."""
    found: list[str] = []
    write = SqliteDatabase.write

    @contextmanager
    def noted(database: SqliteDatabase, **how: bool) -> Iterator[apsw.Connection]:
        if on_a_loop():
            found.append("".join(traceback.format_stack(limit=12)))
        with write(database, **how) as db:
            yield db

    monkeypatch.setattr(SqliteDatabase, "write", noted)
    return found


class Visitors:
    """Callers of an application in this process, on this event loop."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def call(self, user: str, method: str, path: str, **more: Any) -> httpx.Response:
        roles = ["admin"] if user == "root" else []
        headers = {"authorization": f"Bearer {token(user, roles=roles)}", **more.pop("headers", {})}
        return await self._client.request(method, path, headers=headers, **more)


def visit(config: ServeConfig, visits: Callable[[Visitors], Awaitable[None]], opened: list[str]) -> None:
    """Serves some visitors; what was noted while the store was opened is forgotten."""

    async def serve() -> None:
        transport = httpx.ASGITransport(app=build(config))
        opened.clear()
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await visits(Visitors(client))

    asyncio.run(serve())


def on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_nothing_on_the_event_loop_takes_the_write_lock(
    config: ServeConfig, written_on_the_loop: list[str]
) -> None:
    async def visits(visitors: Visitors) -> None:
        call = visitors.call

        def memory(user: str, key: str = "k") -> dict[str, Any]:
            return {"namespace": ["user", user], "key": key, "value": {"n": 1}}

        once = {"idempotency-key": "once"}
        allowed = [
            await call("newcomer", "PUT", MEMORIES, json=memory("newcomer")),
            await call("root", "PUT", MEMORIES, json=memory("root"), headers=once),
            await call("another", "DELETE", MEMORIES, params={"ns": ["user", "another"], "key": "k"},
                       headers=once),
            await call("third", "POST", f"{MEMORIES}/batch",
                       json={"operations": [{"op": "put", **memory("third", k)} for k in "abc"]}),
            await call("fourth", "POST", "/v1/agents/bot/tools/remember",
                       json={"arguments": {"key": "k", "content": "c"}}),
            await call("fourth", "POST", "/v1/agents/bot/tools/shared_memory_write",
                       json={"arguments": {"key": "k", "value": 1}}),
            await call("eighth", "POST", "/v1/agents/bot/tools/shared_memory_read",
                       json={"arguments": {"key": "k"}}),
            await call("fifth", "POST", "/v1/runs", json={"kind": "swarm", "members": ["sixth"]}),
            await call("seventh", "POST", f"{MEMORIES}/import", content=b"",
                       headers={"content-type": "application/x-ndjson"}),
            await call("root", "GET", "/v1/admin/audit"),
            await call("root", "GET", f"{MEMORIES}/export"),
        ]  # fmt: skip
        assert [each.status_code for each in allowed if not each.is_success] == []
        for path in (MEMORIES, "/v1/admin/stats"):
            for _ in range(3):
                params = {"ns": ["user", "another"], "key": "k"} if path == MEMORIES else {}
                assert (await call("stranger", "GET", path, params=params)).status_code == 403
                await asyncio.sleep(0.02)

    visit(config, visits, written_on_the_loop)
    assert written_on_the_loop == []


OPEN = {
    "authz": 'package memories.authz\ndecision := {"allow": true}',
    "filter": "package memories.filter\nnamespace_prefix := input.namespace_prefix\nattribute_filter := {}",
}


def test_a_read_that_is_recorded_does_not_take_the_write_lock_on_the_event_loop(
    config: ServeConfig, written_on_the_loop: list[str]
) -> None:
    async def visits(visitors: Visitors) -> None:
        call, there = visitors.call, {"ns": ["user", "alice"], "key": "k"}
        memory = {"namespace": there["ns"], "key": "k", "value": {}}
        batch = {"operations": [{"op": "get", "namespace": there["ns"], "key": "k"}]}
        answers = [
            await call("alice", "PUT", MEMORIES, json=memory),
            await call("root", "PUT", "/v1/admin/policies", json=OPEN),
            await call("root", "GET", MEMORIES, params=there),
            await call("root", "GET", f"{MEMORIES}/history", params=there),
            await call("root", "POST", f"{MEMORIES}/batch", json=batch),
            await call("root", "POST", f"{MEMORIES}/search", json={"namespace_prefix": there["ns"]}),
            await call("root", "POST", f"{MEMORIES}/list", json={"namespace_prefix": there["ns"]}),
            *[
                await call("root", "GET", f"{MEMORIES}/{each}", params={"ns": there["ns"]})
                for each in ("newest", "events", "export")
            ],
        ]
        assert [each.text for each in answers if not each.is_success] == []
        log = await call("root", "GET", "/v1/admin/audit", params={"action": "memories.read"})
        assert len(log.json()["entries"]) == 8

    visit(config, visits, written_on_the_loop)
    assert written_on_the_loop == []


@pytest.fixture
def large_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done on an event loop with something large, as it happens."""
    found: list[str] = []

    def noted(owner: Any, name: str, size: Callable[..., int]) -> None:
        done = getattr(owner, name)

        def note(*given: Any, **options: Any) -> Any:
            answer = done(*given, **options)
            if size(answer, *given) > SMALL_BYTES and on_a_loop():
                found.append(name)
            return answer

        monkeypatch.setattr(owner, name, note)

    noted(Endpoint, "parse_body", lambda answer, endpoint, raw, content_type: len(raw))
    noted(validation, "encode_json", lambda encoded, *_: len(encoded))
    noted(RowDecoder, "value", lambda value, opener, row: len(row.sealed))
    noted(application, "_encode", lambda encoded, *_: len(encoded))
    noted(chat, "_parse_turn", lambda turn, asked, _: sum(len(each["content"]) for each in asked.messages))
    return found


def test_nothing_large_is_read_checked_opened_or_encoded_on_the_event_loop(
    config: ServeConfig, large_on_the_loop: list[str]
) -> None:
    async def visits(visitors: Visitors) -> None:
        call, room, value = visitors.call, ["user", "alice"], {"text": "x" * 2 * SMALL_BYTES}
        memory = {"namespace": room, "key": "k", "value": value}
        place = {"ns": room, "key": "k"}
        written = {"arguments": {"key": "large", "value": value}}
        for answer in (
            await call("alice", "PUT", MEMORIES, json=memory),
            await call("alice", "GET", MEMORIES, params=place),
            await call("alice", "POST", f"{MEMORIES}/batch", json={"operations": [{"op": "put", **memory}]}),
            await call("alice", "POST", f"{MEMORIES}/search", json={"namespace_prefix": room}),
            await call("alice", "GET", f"{MEMORIES}/history", params=place),
            await call("alice", "GET", f"{MEMORIES}/events", params={"ns": room}),
            await call("alice", "POST", "/v1/agents/bot/tools/shared_memory_write", json=written),
            await call("alice", "POST", "/v1/agents/bot/tools/shared_memory_read",
                       json={"arguments": {"key": "large"}}),
        ):  # fmt: skip
            assert answer.status_code == 200, answer.text
        export = await call("alice", "GET", f"{MEMORIES}/export", params={"ns": room})
        lines = {"content-type": "application/x-ndjson"}
        again = await call("alice", "POST", f"{MEMORIES}/import", content=export.content, headers=lines)
        assert again.json()["unchanged"] == 1
        messages = [{"role": "user", "content": "word " * SMALL_BYTES}]
        said = await call(
            "alice", "POST", "/v1/chat/completions", json={"model": "bot", "messages": messages}
        )
        assert (said.status_code, said.json()["error"]["param"]) == (400, "messages")

    visit(replace(config, llm_url="http://127.0.0.1:1/v1"), visits, large_on_the_loop)
    assert large_on_the_loop == []


def test_nobodys_request_loads_specs(config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many take seconds; a service looks at their files in a thread."""
    loads: list[str] = []
    load = loading.build_catalogue

    def noted(*given: Any) -> Any:
        loads.append("".join(traceback.format_stack(limit=12)))
        return load(*given)

    async def visits(visitors: Visitors) -> None:
        assert config.agents
        Path(config.agents).write_text(f"{SPECS}\n# changed")
        await asyncio.sleep(1.1)  # after which requests used to look again
        assert (await visitors.call("alice", "GET", "/v1/agents")).status_code == 200

    monkeypatch.setattr(loading, "build_catalogue", noted)
    visit(config, visits, loads)
    assert loads == []
