"""Faults of a session store: it refuses, hangs or loses a primary, and only the log has noticed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alcove import Alcove, MemoryKey
from alcove.engine import valkey
from tests.support.service import alcove, free_port, serving
from tests.support.session_readers import Talk
from tests.support.valkey import Server, cluster, own_server
from tests.support.waiting import until

Open = Callable[..., Alcove]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    keys, opened = MemoryKey(), list[Alcove]()

    def tracked(**options: object) -> Alcove:
        opened.append(Alcove(tmp_path / "memory.db", keys=keys, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield tracked
    for store in opened:
        store.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with own_server() as running:
        yield running


def _back(talk: Talk) -> None:
    """Talks on until the session store is used again."""
    before = talk.outcomes.seen["hit"]

    def used() -> bool:
        talk.talk(1)
        return talk.outcomes.seen["hit"] > before

    until(used)


@pytest.mark.parametrize("fault", ["hangs", "is killed"])
def test_a_conversation_goes_on_while_it_is_away_and_comes_back_to_it(
    open_store: Open, server: Server, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "alcove")
    talk = Talk(open_store, server.address)
    talk.talk(3)
    server.hang() if fault == "hangs" else server.kill()
    talk.talk(3)
    assert talk.outcomes.seen["away"] >= 3
    assert [each.getMessage().count("does not answer") for each in caplog.records].count(1) == 1
    assert "away" in str(talk.store.memories.readiness()["session_store"]())
    server.go_on() if fault == "hangs" else server.start()
    _back(talk)
    assert "answers again" in caplog.text
    assert talk.store.memories.readiness()["session_store"]() is None
    said = talk.agents().session("guide", "s").messages
    assert said == 2 * talk._said


def test_who_is_wiped_while_it_is_away_has_nothing_there_once_it_is_back(
    open_store: Open, server: Server
) -> None:
    talk, bob = Talk(open_store, server.address), Talk(open_store, server.address, "bob")
    talk.talk(3)
    (alices,) = server.client.keys("*")
    server.dump()
    server.kill()
    talk.store.admin.wipe("alice")
    assert "thing" not in talk.context()
    server.start()
    assert server.client.exists(alices), "there was nothing to take away"
    talk.user = bob.user
    _back(talk)
    assert not server.client.exists(alices)


def test_a_store_opens_and_works_where_there_is_no_session_store(open_store: Open) -> None:
    talk = Talk(open_store, f"redis://127.0.0.1:{free_port()}")
    talk.talk(2)
    assert talk.outcomes.seen == {"away": 2}


def test_who_is_wiped_at_a_terminal_has_nothing_there_either(tmp_path: Path, server: Server) -> None:
    opened = list[Alcove]()

    def open_store(**options: object) -> Alcove:
        opened.append(Alcove(tmp_path / "memory.db", **options))  # type: ignore[arg-type]
        return opened[-1]

    Talk(open_store, server.address).talk(2)
    for store in opened:
        store.close()
    assert server.client.keys("*")
    env = {"ALCOVE_SESSION_STORE": server.address, "ALCOVE_EMBEDDER": "none"}
    done = alcove("wipe", "alice", "--yes", "--at", tmp_path / "memory.db", env=env)
    assert done.returncode == 0, done.output
    assert server.client.keys("*") == []


def test_a_primary_of_a_cluster_is_killed_in_a_conversation_and_nothing_is_lost(open_store: Open) -> None:
    with cluster() as nodes:
        talk, bob = Talk(open_store, nodes.address), Talk(open_store, nodes.address, "bob")
        bob.talk(2)
        (bobs,) = nodes.names()
        talk.talk(4)
        (alices,) = nodes.names() - {bobs}
        assert talk.outcomes.seen["hit"] >= 3
        primary = nodes.primary_of(alices)
        nodes.replica_of_another(primary).kill()
        assert talk.store.memories.readiness()["session_store"]() is None
        primary.kill()
        talk.talk(3)  # each context is compared with the engine's
        _back(talk)
        assert talk.agents().session("guide", "s").messages == 2 * talk._said
        talk.store.admin.wipe("alice")
        assert alices not in nodes.names()
        assert "thing" not in talk.context()


def test_two_nodes_count_requests_together_and_each_for_itself_while_it_is_away(
    tmp_path: Path, server: Server
) -> None:
    flags = ["--rate-limit", "0.001", "--embedder", "none", "--session-store", server.address]
    with serving(tmp_path, *flags) as one, serving(tmp_path, *flags) as other:
        assert one.look().status_code == 200
        refused = other.look()
        assert refused.status_code == 429, refused.text
        assert refused.json()["code"] == "rate_limited"
        assert int(refused.headers["retry-after"]) > 0
        server.kill()
        assert other.look().status_code == 200
        assert other.look().status_code == 429
        assert other.client.get("/readyz").json()["checks"]["session_store"].startswith("away")
        assert "does not answer; continuing without it" in other.log


def test_one_that_does_not_answer_is_not_asked_again_for_a_moment(server: Server) -> None:
    asked = valkey.Valkey(server.address)
    assert asked("PING")
    server.hang()
    assert asked("PING") is None
    server.go_on()
    assert asked("PING") is None
    time.sleep(valkey.PAUSE_SECONDS)
    assert asked("PING")
    asked.close()
