"""An admin's reads of other people's memories are in the audit log, by REST, streams, clients and MCP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import alcove
from alcove import AsyncAlcove
from alcove.core.namespace import Namespace
from alcove.integrations.mcp import memory_uri
from tests.support.agent_service import SPECS, Player, Table
from tests.support.mcp_clients import at_url, run
from tests.support.service import serving
from tests.support.store_inspection import locked
from tests.support.tokens import FLAGS, token
from tests.support.waiting import PATIENCE, until
from tests.support.worker_connections import one_client_each

MEMORIES = "/v1/memories"
OPEN = {
    "authz": 'package memories.authz\ndecision := {"allow": true}',
    "filter": "package memories.filter\nnamespace_prefix := input.namespace_prefix\nattribute_filter := {}",
}
"""A policy that lets everybody read everything."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    folder = tmp_path_factory.mktemp("privileged")
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", specs, "--embedder", "none") as running:
        yield Table(running, specs)


@pytest.fixture
def alice(table: Table) -> Player:
    """Somebody with a memory, and a conversation of two messages."""
    alice = table.player()
    assert alice.put("user", alice.name, "notes", key="tea", value={"text": "green"}).status_code == 200
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    turns = alice.ask("POST", "/v1/agents/bot/sessions/monday/turns", json={"messages": messages})
    assert turns.status_code == 200, turns.text
    return alice


@pytest.fixture
def root(table: Table) -> Player:
    return table.player(roles=["admin"])


def reads(who: Player, **asked: Any) -> list[dict[str, Any]]:
    """The entries about reads by this admin."""
    found = who.see("/v1/admin/audit", action="memories.read", user=who.name, **asked)["entries"]
    assert {each["actor"] for each in found} <= {who.name}
    return list(found)


def operations(who: Player) -> list[tuple[str, int]]:
    return [(each["details"]["operation"], each["details"]["count"]) for each in reversed(reads(who))]


def test_every_route_that_shows_somebodys_memories_leaves_an_entry(alice: Player, root: Player) -> None:
    notes = ["user", alice.name, "notes"]
    for path in ("search", "list"):
        assert root.ask("POST", f"{MEMORIES}/{path}", json={"namespace_prefix": notes}).json()["items"]
    assert root.see(f"{MEMORIES}/newest", ns=notes)["items"]
    assert root.see(f"{MEMORIES}/events", ns=notes)["events"]
    exported = root.ask("GET", f"{MEMORIES}/export", params={"ns": notes})
    assert json.loads(exported.text)["value"] == {"text": "green"}
    assert operations(root) == [(each, 1) for each in ("search", "list", "newest", "events", "export")]
    assert {each["subject"] for each in reads(root)} == {reads(root)[0]["subject"]} != {None}
    assert alice.name not in str([each["details"] for each in reads(root)])


def test_an_admin_who_reads_a_conversation_leaves_an_entry_about_its_user(
    alice: Player, root: Player
) -> None:
    turns = ["turns", "bot", "u", alice.name]
    assert root.see(f"{MEMORIES}/tree", ns=turns)["branches"], "counts are not content"
    assert operations(root) == []
    assert len(root.see(f"{MEMORIES}/newest", ns=[*turns, "monday"])["items"]) == 2
    (entry,) = root.see("/v1/admin/audit", user=alice.name, action="memories.read")["entries"]
    assert (entry["actor"], entry["details"]["count"]) == (root.name, 2)
    assert entry["details"]["scope"].startswith("turns:")


def test_what_an_admin_reads_of_their_own_and_of_pools_that_everybody_reads_leaves_none(
    alice: Player, root: Player
) -> None:
    assert root.put("user", root.name, key="k").status_code == 200
    alice.call("bot", "share_to", pool="org:docs", key="k", content="for all")
    assert root.see(f"{MEMORIES}/newest", ns=["org", "docs"])["items"]
    assert root.see(f"{MEMORIES}/newest", ns=["user", root.name])["items"]
    assert root.see(MEMORIES, ns=["user", root.name], key="k")
    assert root.see("/v1/agents/bot/memory")["rooms"]
    assert "calls" in root.see("/v1/agents/bot/calls")
    assert operations(root) == []


def test_an_admin_who_is_refused_leaves_a_denial_and_no_read(alice: Player, root: Player) -> None:
    refused = root.ask("GET", MEMORIES, params={"ns": ["user", alice.name, "notes"], "key": "tea"})
    assert refused.status_code == 403
    assert operations(root) == []


def test_events_are_recorded_before_a_stream_shows_them(alice: Player, root: Player) -> None:
    params = {"ns": ["user", alice.name]}
    headers = {"authorization": f"Bearer {root.token}"}
    with (
        httpx.Client(base_url=root.service.url, timeout=PATIENCE) as client,
        client.stream("GET", f"{MEMORIES}/events/stream", headers=headers, params=params) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        assert operations(root) == [], "nothing was shown yet"
        assert alice.put("user", alice.name, key="new").status_code == 200
        assert next(line for line in lines if line.startswith("data: "))
        assert operations(root) == [("follow", 1)]


def test_polling_does_not_flood_the_log(alice: Player, root: Player) -> None:
    for _ in range(30):
        root.see(f"{MEMORIES}/newest", ns=["user", alice.name])
    (entry,) = reads(root)
    assert (entry["details"]["reads"], entry["details"]["count"]) == (30, 30)


def test_a_resource_of_mcp_that_is_somebody_elses_leaves_an_entry(table: Table) -> None:
    alice, root = table.player(), table.player(roles=["admin"])
    assert alice.put("user", alice.name, key="tea", value={"text": "green"}).status_code == 200
    before = root.see("/v1/admin/policies")
    assert root.ask("PUT", "/v1/admin/policies", json=OPEN).status_code == 200

    async def read() -> str:
        async with at_url(f"{table.service.url}/mcp/bot", root.token) as client:
            (content,) = (
                await client.read_resource(memory_uri(Namespace(("user", alice.name)), "tea"))
            ).contents
            return str(content.text)  # type: ignore[union-attr]

    try:
        assert "green" in run(read())
    finally:
        restored = {name: before[name] for name in OPEN}
        assert root.ask("PUT", "/v1/admin/policies", json=restored).status_code == 200
    assert operations(root) == [("get", 1)]


def test_clients_leave_entries_as_anybody_does(alice: Player, root: Player, tmp_path: Path) -> None:
    with alcove.connect(root.service.url, token=root.token) as store:
        assert store.newest(["user", alice.name])

    async def search() -> int:
        async with AsyncAlcove(root.service.url, token=root.token) as store:
            return len(await store.search(["user", alice.name]))

    assert asyncio.run(search()) == 1
    assert operations(root) == [("newest", 1), ("search", 1)]

    async def here() -> list[dict[str, Any]]:
        async with AsyncAlcove(tmp_path / "own.db", embedder=None) as store:
            await store.as_user("bob").put("user:bob", "k", {})
            assert len(await store.search("user:bob")) == 1
            return [each.details for each in (await store.admin.audit(action="memories.read")).entries]

    assert [each["operation"] for each in asyncio.run(here())] == ["search"]


def test_each_worker_records_what_it_shows_and_a_kill_loses_none_of_it(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS, "--workers", 2, "--embedder", "none") as service:
        alice, root = Player(service, "alice"), Player(service, "root", roles=["admin"])
        assert alice.put("user", "alice", key="k").status_code == 200
        with one_client_each(service) as clients:
            for client in clients:
                headers = {"authorization": f"Bearer {root.token}"}
                shown = client.get(f"{MEMORIES}/newest", headers=headers, params={"ns": ["user", "alice"]})
                assert len(shown.json()["items"]) == 1
        for pid in (service.process.pid, *service.children()):
            os.kill(pid, signal.SIGKILL)
        service.wait()
    with serving(tmp_path, *FLAGS, "--embedder", "none") as service:
        root = Player(service, "root", roles=["admin"])
        assert operations(root) == [("newest", 1), ("newest", 1)]


def test_admins_who_wait_for_the_log_keep_no_reader_waiting(tmp_path: Path) -> None:
    """Whoever writes for long holds up what must be recorded, and nobody else's reads."""
    patient = ("--busy-timeout", 600, "--request-seconds", 600)
    with serving(tmp_path, *FLAGS, *patient, "--threads", 2, "--embedder", "none") as service:
        alice = Player(service, "alice")
        assert alice.put("user", "alice", key="k").status_code == 200

        def newest(admin: int) -> int:
            headers = {"authorization": f"Bearer {token(f'root-{admin}', roles=['admin'])}"}
            with httpx.Client(base_url=service.url, timeout=PATIENCE, trust_env=False) as client:
                asked = {"ns": ["user", "alice"]}
                return client.get(f"{MEMORIES}/newest", headers=headers, params=asked).status_code

        with ThreadPoolExecutor(8) as pool:
            with locked(service.at):
                waiting = [pool.submit(newest, n) for n in range(8)]
                until(lambda: service.gauge("alcove_requests_in_flight") > 8)
                for _ in range(5):
                    assert alice.see(f"{MEMORIES}/newest", ns=["user", "alice"])["items"]
                    assert alice.ask("GET", f"{MEMORIES}/export").text
                assert not any(each.done() for each in waiting)
            assert [each.result(PATIENCE) for each in waiting] == [200] * 8
