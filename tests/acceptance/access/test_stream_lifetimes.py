"""Streams, exports and imports last as long as what opened them: key, token, specs, membership, policy."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import alcove
from alcove import Alcove
from alcove.core.errors import Unauthenticated
from tests.support.agent_service import SPECS, Player, Table
from tests.support.service import Service, serving
from tests.support.store_inspection import query
from tests.support.tokens import FLAGS
from tests.support.waiting import PATIENCE, until

STREAM = "/v1/memories/events/stream"
ALICE = ["user", "alice"]
NOWHERE = """package memories.filter
attribute_filter := {}
"""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("keyed"), "--auth", "apikey") as service:
        yield service


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """Not the one that all tests share: policies and specs change here."""
    (specs := tmp_path_factory.mktemp("lasting") / "agents.yaml").write_text(SPECS)
    with serving(specs.parent, *FLAGS, "--agents", specs) as service:
        yield Table(service, specs)


class Key:
    """An API key of alice's, which can be revoked."""

    def __init__(self, service: Service) -> None:
        self._at = service.at
        with Alcove(self._at, embedder=None) as store:
            self.text = store.api_keys.create(client="c", user="alice", roles=[], trusted=False)

    def revoke(self) -> None:
        with Alcove(self._at, embedder=None) as store:
            store.api_keys.revoke(self.text.split("_")[1])


def stored(service: Service) -> int:
    """How many versions there are, of whatever."""
    ((count,),) = query(service.at, "SELECT count(*) FROM versions")
    assert isinstance(count, int)
    return count


def narrow() -> httpx.HTTPTransport:
    """Connections on which little is under way."""
    return httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)])


@contextmanager
def following(service: Service, bearer: str, path: str = STREAM, **params: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream that has begun."""
    headers = {"authorization": f"Bearer {bearer}"}
    with (
        httpx.Client(base_url=service.url, timeout=PATIENCE, transport=narrow()) as client,
        client.stream("GET", path, headers=headers, params=params) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        next(lines)
        yield lines


def last_words(lines: Iterator[str]) -> dict[str, Any]:
    """Why an event stream ended, which it did without anything breaking."""
    *_, comment, _ = lines
    assert comment.startswith(": ended {")
    return dict(json.loads(comment.removeprefix(": ended ")))


def test_an_idle_stream_ends_when_its_key_is_revoked(keyed: Service) -> None:
    key = Key(keyed)
    with following(keyed, key.text) as lines:
        key.revoke()
        assert last_words(lines)["code"] == "unauthenticated"


def test_an_export_ends_when_its_key_is_revoked_and_says_so_in_its_last_line(keyed: Service) -> None:
    key = Key(keyed)
    for n in range(16):
        assert keyed.put(ALICE, f"k{n:02}", {"text": "x" * 900_000}, key.text).is_success
    with following(keyed, key.text, "/v1/memories/export") as lines:
        key.revoke()
        *memories, last = map(json.loads, lines)
    assert [each["key"] for each in memories] == [f"k{n:02}" for n in range(1, len(memories) + 1)]
    assert len(memories) < 15
    assert last["code"] == "unauthenticated"


def test_a_client_is_told_that_its_export_was_ended(keyed: Service) -> None:
    key = Key(keyed)
    for n in range(16):
        assert keyed.put(ALICE, f"k{n:02}", {"text": "x" * 900_000}, key.text).is_success
    with alcove.connect(keyed.url, api_key=key.text) as store:
        vars(store.transport)["_client"] = httpx.Client(transport=narrow(), timeout=PATIENCE)
        found = store.export_memories()
        assert next(found).key == "k00"
        key.revoke()
        with pytest.raises(Unauthenticated):
            list(found)


def test_an_import_ends_when_its_key_is_revoked_and_says_how_far_it_came(keyed: Service) -> None:
    key = Key(keyed)
    lines = [json.dumps({"namespace": ALICE, "key": f"{n}", "value": {}}).encode() for n in range(250)]
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=PATIENCE) as one:
        head = (
            f"POST /v1/memories/import HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-API-Key: {key.text}\r\n"
        )
        one.sendall(f"{head}Content-Type: application/x-ndjson\r\nContent-Length: 999999\r\n\r\n".encode())
        before = stored(keyed)
        one.sendall(b"\n".join(lines))
        until(lambda: stored(keyed) == before + 200)
        key.revoke()
        status, _, answer = one.makefile("rb").read(2000).partition(b"\r\n")
    assert b" 401 " in status
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert told["code"] == "unauthenticated"
    assert told["details"] == {"imported": 200, "unchanged": 0, "failures": 0}


def test_an_idle_stream_ends_with_its_token(table: Table) -> None:
    alice = Player(table.service, "alice", exp=int(time.time()) + 4)
    with following(table.service, alice.token) as lines:
        assert last_words(lines)["code"] == "unauthenticated"


def test_a_stream_of_a_pool_ends_when_its_agent_is_no_longer_shared(table: Table) -> None:
    carol = table.known("carol")
    with following(table.service, carol.token, ns=["org", "secret"]) as lines:
        assert carol.call("secret", "share_to", pool="org:secret", key="k", content="tea")
        assert json.loads(next(line for line in lines if line.startswith("data"))[6:])["key"] == "k"
        (new := table.specs.with_suffix(".new")).write_text(SPECS.replace("[carol, ", "["))
        os.replace(new, table.specs)
        assert last_words(lines)["code"] == "permission_denied"


@pytest.mark.parametrize("written", [False, True])
def test_a_stream_of_a_room_ends_cleanly_when_its_reader_is_let_go(table: Table, written: bool) -> None:
    alice, bob, where = table.player(), table.player(), {"instances": {"workflow": (run := table.new_id())}}
    alice.ask("POST", "/v1/runs", json={"kind": "workflow", "id": run, "members": [bob.name]})
    with following(table.service, bob.token, "/v1/agents/bot/rooms/workflow/events", instance=run) as lines:
        alice.ask("PATCH", f"/v1/runs/workflow/{run}", json={"members": []})
        if written:
            alice.call("bot", "shared_memory_write", where=where, namespace="workflow", key="k", value=1)
        assert last_words(lines)["code"] == "not_found"
    assert "cut off" not in table.service.log


def test_an_idle_stream_ends_when_the_policy_no_longer_lets_its_reader_look(table: Table) -> None:
    alice = table.player()
    with following(table.service, alice.token) as lines:
        answer = table.admin.ask("PUT", "/v1/admin/policies", json={"filter": NOWHERE})
        assert answer.is_success, answer.text
        assert last_words(lines)["code"] == "permission_denied"
    assert table.admin.ask("PUT", "/v1/admin/policies", json={}).is_success
