"""How long items live and since when, through refreshes, other processes, backups and older files."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from alcove import Alcove
from alcove.core.records import Memory, Touch
from alcove.integrations.langgraph import AlcoveStore
from tests.support.clock import ManualClock
from tests.support.concurrent_workers import QUIET
from tests.support.hashed_embedder import Bag
from tests.support.langgraph_stores import OWN
from tests.support.older_schema import aged
from tests.support.service import alcove

ROOM = ("user", "noop", "langgraph", "n")


def got(memory: Alcove, key: str) -> Memory:
    found = memory.get(ROOM, key)
    assert found
    return found


def test_a_refresh_by_another_process_and_a_put_with_another_time_count_at_once(path: Path) -> None:
    clock = ManualClock()
    with ExitStack() as stack:
        handles = (Alcove(path, settings=QUIET, embedder=Bag(), clock=clock) for _ in range(2))
        one, other = (AlcoveStore(stack.enter_context(each), index=["t"], root=OWN) for each in handles)

        def found(*, refresh: bool = False) -> int:
            return len(other.search(("n",), query="tea", refresh_ttl=refresh))

        one.put(("n",), "k", {"t": "tea"}, ttl=1)
        assert found()
        clock.advance(50)
        one.get(("n",), "k", refresh_ttl=True)
        clock.advance(50)
        assert found(), "which remembered when it was to expire"
        one.put(("n",), "k", {"t": "tea"}, ttl=3)
        clock.advance(170)
        assert found(refresh=True)
        clock.advance(170)
        assert found(), "by the time to live that was put last"
        clock.advance(20)
        assert not found(refresh=True)
        assert one.get(("n",), "k") is None, "a refresh wakes nothing that has expired"
        one.put(("n",), "k", {"t": "tea"})
        clock.advance(10**6)
        assert found(refresh=True)


def test_a_backup_keeps_how_long_a_memory_lives_and_since_when(memory: Alcove, path: Path) -> None:
    memory.put(ROOM, "k", {"n": 1}, ttl_seconds=500)
    memory.put(ROOM, "k", {"n": 2}, ttl_seconds=700)
    before, to, again = got(memory, "k"), path.with_name("backup.db"), path.with_name("again.db")
    [*memory.admin.backup(to)]
    (key := path.with_name("memory.db.key")).with_name("again.db.key").write_bytes(key.read_bytes())
    assert alcove("restore", to, "--at", again, "--without-ledger").returncode == 0
    with Alcove(again, settings=QUIET) as restored:
        after = got(restored, "k")
        assert (after.added_at, after.created_at, after.expires_at, after.ttl_seconds) == (
            before.added_at, before.created_at, before.expires_at, 700,
        )  # fmt: skip
        restored.batch([Touch(ROOM, "k", refresh=True)])
        assert got(restored, "k").expires_at > before.expires_at  # type: ignore[operator]


@pytest.mark.of_the_file("of an older schema")
def test_a_store_of_the_schema_before_opens_with_what_it_knew(memory: Alcove, path: Path) -> None:
    memory.put(ROOM, "once", {"n": 1}, ttl_seconds=500)
    memory.put(ROOM, "twice", {"n": 1})
    memory.put(ROOM, "twice", {"n": 2}, ttl_seconds=700)
    memory.put(ROOM, "anew", {"n": 1})
    memory.delete(ROOM, "anew")
    memory.put(ROOM, "anew", {"n": 2})
    memory.put(ROOM, "anew", {"n": 3})
    before = {key: got(memory, key) for key in ("once", "twice", "anew")}
    memory.close()
    aged(path, old := path.with_name("old.db"), 8)
    with Alcove(old, settings=QUIET) as opened:
        after = {key: got(opened, key) for key in before}
        assert after == before
        opened.batch([Touch(ROOM, key, refresh=True) for key in before])
        lives = got(opened, "twice")
        assert lives.expires_at
        assert lives.expires_at - lives.created_at >= timedelta(seconds=700)
        assert got(opened, "anew").expires_at is None
        opened.put(ROOM, "twice", {"n": 3})
        assert got(opened, "twice").added_at == before["twice"].added_at
    assert alcove("doctor", "--at", old).returncode == 0
