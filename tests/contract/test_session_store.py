"""A session store is a fast copy: answers are the engine's, whatever is lost, late or old in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from alcove import Alcove, MemoryKey
from alcove.agents.transcripts import ROLLING, STATE, summary_room, turns_room
from alcove.store.session_cache import SessionLocation
from tests.contract.conftest import Open
from tests.support.clock import ManualClock
from tests.support.session_readers import Talk
from tests.support.valkey import Given, Server, any_server

AnyServer = Server | Given


@pytest.fixture(scope="module")
def running() -> Iterator[AnyServer]:
    with any_server() as server:
        yield server


@pytest.fixture
def server(running: AnyServer) -> AnyServer:
    running.client.flushall()
    return running


@pytest.fixture
def talk(open_store: Open, server: AnyServer) -> Talk:
    return Talk(open_store, server.address)


def test_a_conversation_reads_the_same_with_and_without_it_and_is_mostly_read_from_it(talk: Talk) -> None:
    talk.talk(8)
    talk.agents().end_session("guide", "s")
    talk.talk(3, "second")
    talk.talk(2, "s")
    assert talk.outcomes.seen["hit"] >= 9, talk.outcomes.seen
    assert talk.outcomes.seen["away"] == 0


def test_what_is_changed_past_it_is_seen_at_the_next_message(talk: Talk) -> None:
    talk.talk(4)
    room, plain = "turns:guide:u:alice:s", talk.plain.as_user("alice")
    newest, *_, oldest = plain.list(room)
    assert talk.context()
    plain.put(room, newest.key, {"role": "assistant", "content": "Something else."})
    assert "Something else." in talk.context()
    plain.delete(room, newest.key)
    assert "Something else." not in talk.context()
    plain.put(room, "note", {"of": "another kind"})
    plain.delete(room, oldest.key)
    talk.say()
    talk.context()
    talk.agents(talk.plain).delete_session("guide", "s")
    assert "thing" not in talk.context()


def test_a_message_that_expires_is_in_no_window(
    open_store: Open, server: AnyServer, clock: ManualClock
) -> None:
    talk = Talk(open_store, server.address, clock=clock)
    talk.talk(2)
    room, plain = "turns:guide:u:alice:s", talk.plain.as_user("alice")
    plain.touch(room, plain.list(room)[0].key, ttl_seconds=1)
    before = talk.context()
    clock.advance(2)
    assert talk.context() != before


def test_flushing_it_between_messages_loses_nothing(talk: Talk, server: AnyServer) -> None:
    for _ in range(4):
        talk.talk(1)
        server.client.flushall()
    assert talk.agents().session("guide", "s").messages == 8
    talk.talk(3)
    assert talk.outcomes.seen["hit"] > 0


def test_an_older_copy_that_a_failover_brings_back_is_not_shown(talk: Talk, server: AnyServer) -> None:
    talk.talk(3)
    (name,) = server.client.keys("*")
    older: Any = server.client.hgetall(name)
    talk.talk(3)
    server.client.delete(name)
    server.client.hset(name, mapping=older)
    assert "The 6. thing" in talk.context()
    hits = talk.outcomes.seen["hit"]
    talk.context()
    assert talk.outcomes.seen["hit"] == hits + 1, "it was not put right"


def test_who_read_before_a_message_does_not_put_what_they_read_over_what_came_after(
    talk: Talk, open_store: Open, server: AnyServer
) -> None:
    talk.talk(3)
    late = Talk(open_store, server.address)
    server.client.flushall()
    late.before("_PUT", lambda: talk.talk(1))  # it has read, and puts when others went on
    late.agents().context("guide", "s", "What did I say?")
    hits = talk.outcomes.seen["hit"]
    assert "The 4. thing" in talk.context()
    assert talk.outcomes.seen["hit"] == hits + 1, "the older copy took the newer one's place"


def test_a_wipe_leaves_no_key_of_the_user(talk: Talk, open_store: Open, server: AnyServer) -> None:
    bob = Talk(open_store, server.address, "bob")
    bob.talk(2)
    (bobs,) = server.client.keys("*")
    talk.talk(2)
    talk.talk(2, "second", "other")
    assert len(server.client.keys("*")) == 2
    talk.store.admin.wipe("alice")
    assert server.client.keys("*") == [bobs]
    assert "thing" not in talk.context()
    talk.talk(3)
    hits = bob.outcomes.seen["hit"]
    bob.context()
    assert bob.outcomes.seen["hit"] == hits + 1


@pytest.mark.parametrize("reading", [True, False], ids=["a reader", "a writer"])
def test_a_wipe_is_not_undone_by_who_puts_after_it_what_they_read_or_wrote_before_it(
    talk: Talk, open_store: Open, server: AnyServer, reading: bool
) -> None:
    talk.talk(3)
    late = Talk(open_store, server.address)
    if reading:
        server.client.flushall()
    late.before("_PUT", lambda: talk.store.admin.wipe("alice"))
    if reading:
        late.agents().context("guide", "s", "What did I say?")
    else:
        late.say()
    assert server.client.keys("*") == []
    assert "thing" not in late.context()


@pytest.mark.parametrize(
    ("way", "gone"), [("delete_session", {0, 1}), ("remove", {0}), ("forget_summary", {2})]
)
def test_what_is_erased_leaves_no_copy_even_if_somebody_puts_it_afterwards(
    talk: Talk, open_store: Open, server: AnyServer, way: str, gone: set[int]
) -> None:
    talk.talk(3)
    talk.agents().end_session("guide", "s")
    talk.agents().context("guide", "new", "Hello?")  # so that it is merged
    talk.context()
    turns = turns_room("guide", "alice", "s")
    state, rolling = summary_room("guide", "alice", "s"), summary_room("guide", "alice")

    def erase() -> object:
        if way == "remove":
            return talk.store.admin.remove("alice", talk.plain.as_user("alice").list(turns)[0].id)
        arguments = ("guide", "s") if way == "delete_session" else ("guide",)
        return getattr(talk.agents(), way)(*arguments)

    late = Talk(open_store, server.address)
    fields = late.valkey._session(SessionLocation(turns, (state, STATE), (rolling, ROLLING))).fields
    (name,) = server.client.keys("*")
    assert {*server.client.hkeys(name)} >= {field.encode() for field in fields}
    server.client.flushall()
    late.before("_PUT", erase)
    late.agents().context("guide", "s", "What did I say?")
    held = {*server.client.hkeys(name)}
    assert {n for n, field in enumerate(fields) if field.encode() not in held} >= gone
    late.context()


def test_what_lies_there_tells_nothing_of_what_was_said_nor_by_whom(talk: Talk, server: AnyServer) -> None:
    secret = "xylophone-4711"
    talk.say(text=f"My word is {secret}.")
    talk.talk(3)
    dump = server.dump()
    assert len(dump) > 1000
    for told in (secret, "thing that", "alice", "guide", "turns", "role", "content"):
        assert told.encode() not in dump, told


def test_users_agents_sessions_and_stores_are_kept_apart(
    talk: Talk, open_store: Open, server: AnyServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys, folder = MemoryKey(), tmp_path_factory.mktemp("another")
    opened: list[Alcove] = []

    def open_another(**options: Any) -> Alcove:
        opened.append(Alcove(folder / "memory.db", keys=keys, **options))
        return opened[-1]

    bob, elsewhere = Talk(open_store, server.address, "bob"), Talk(open_another, server.address)
    for _ in range(3):
        for each in (talk, bob, elsewhere):
            each.talk(1)
            each.talk(1, "second")
            each.talk(1, "s", "other")
    assert "bob" not in talk.context()
    assert "alice" not in bob.context()
    assert len(server.client.keys("*")) == 3
    for store in opened:
        store.close()


def test_a_copy_that_somebody_puts_in_anothers_place_is_not_shown(
    talk: Talk, open_store: Open, server: AnyServer
) -> None:
    talk.talk(3)
    (alices,) = server.client.keys("*")
    bob = Talk(open_store, server.address, "bob")
    bob.talk(3)
    (bobs,) = {*server.client.keys("*")} - {alices}
    stolen = server.client.hgetall(alices)
    assert all(talk.valkey._decrypt(alices.decode(), each.decode(), copy) for each, copy in stolen.items())
    for field, copy in zip(server.client.hkeys(bobs), stolen.values(), strict=False):
        assert talk.valkey._decrypt(bobs.decode(), field.decode(), copy) is None
        server.client.hset(bobs, field, copy)
    assert "alice" not in bob.context()
    server.client.hset(bobs, mapping=dict.fromkeys(server.client.hkeys(bobs), b"x" * 90))
    assert "alice" not in bob.context()


def test_each_copy_has_an_end_and_a_bound(talk: Talk, server: AnyServer) -> None:
    talk.talk(2)
    (name,) = server.client.keys("*")
    assert 0 < server.client.ttl(name) <= 3600
    for n in range(100):
        server.client.hset(name, f"session {n}", b"held")
    talk.talk(2, "second")
    assert server.client.hlen(name) < 10
    talk.say(text="long " * 30_000)
    talk.context()
    talk.talk(2)
    assert max(map(len, server.client.hvals(name))) < 140_000
