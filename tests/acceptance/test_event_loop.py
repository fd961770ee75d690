"""What runs on the event loop: nothing that may have to wait for the store's write lock."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from alcove import audit, logs
from alcove.config import ServeConfig
from alcove.engine.database import Database
from alcove.http.server import build
from tests.acceptance.players import SECRET, SPECS, token

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
    write = Database.write

    @contextmanager
    def noted(database: Database) -> Iterator[apsw.Connection]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            found.append("".join(traceback.format_stack(limit=12)))
        with write(database) as db:
            yield db

    monkeypatch.setattr(Database, "write", noted)
    return found


def test_nothing_on_the_event_loop_takes_the_write_lock(
    config: ServeConfig, written_on_the_loop: list[str]
) -> None:
    async def visit() -> None:
        app = build(config)
        written_on_the_loop.clear()  # a store is opened before anybody is served
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

            async def call(user: str, method: str, path: str, **more: Any) -> httpx.Response:
                roles = ["admin"] if user == "root" else []
                headers = {"authorization": f"Bearer {token(user, roles=roles)}", **more.pop("headers", {})}
                return await client.request(method, path, headers=headers, **more)

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

    asyncio.run(visit())
    assert written_on_the_loop == []
