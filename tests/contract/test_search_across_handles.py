"""Searches through other handles and other processes, in the past, and of what has no vectors yet."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from alcove import Alcove, Grant, Namespace, Principal, Settings
from alcove.core.filters import Filter
from alcove.core.records import SearchMode
from alcove.engine.rows import Scope
from alcove.search import SearchOptions
from tests.contract.conftest import Open
from tests.support.child_programs import say, started
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag, Counted
from tests.support.waiting import until

MODES: list[SearchMode] = ["hybrid", "semantic", "keyword"]
HOME = ("user", "noop")
TEXTS = ["tea", "tea rain", "tea rain Rome", "tea rain Rome violin", "tea rain Rome violin garden"]


def test_what_one_handle_does_another_finds_at_once(open_store: Open, clock: ManualClock) -> None:
    one, other = (open_store(clock=clock, embedder=Bag()).as_user("alice") for _ in range(2))
    room = ("user", "alice")

    def found(limit: int = 3) -> list[str]:
        return [memory.key for memory in other.search(room, query="tea", mode="semantic", limit=limit)]

    for n in range(5):
        one.put(room, f"k{n}", {"n": n}, index={"text": TEXTS[n]}, wait_for_index=True)
    assert found() == ["k0", "k1", "k2"]
    one.delete(room, "k0")
    assert found() == ["k1", "k2", "k3"]
    one.touch(room, "k1", ttl_seconds=1)
    assert found() == ["k1", "k2", "k3"]
    clock.advance(1.1)
    assert found() == ["k2", "k3", "k4"], "expired, and not swept yet"
    one.sweep()
    one.put(room, "k2", {"n": 9}, index={"text": "rain"}, wait_for_index=True)
    assert found() == ["k3", "k4", "k2"]
    assert [m.key for m in other.search(room, query="tea", mode="keyword", limit=3)] == ["k3", "k4"]
    one.put(room, "k3", {"n": 9})
    assert found() == ["k4", "k2"], "an update without a text is not indexed any more"
    one.wipe("alice", wait=False)
    assert found() == []


def test_a_text_without_vectors_is_found_by_its_words_and_has_no_score(open_store: Open) -> None:
    memory = open_store(embedder=Bag(), settings=Settings(sweep_interval=0, indexing_interval=0))
    memory.put(HOME, "k", {}, index={"text": "tea"})
    memory.put(HOME, "none", {}, index={})
    memory.put(HOME, "omitted", {})
    for mode in MODES:
        found = memory.search(HOME, query="tea", mode=mode)
        assert [(m.key, m.score) for m in found] == ([] if mode == "semantic" else [("k", None)])
    indexer = open_store(embedder=Bag())
    indexer.admin.trigger_index()
    until(lambda: indexer.admin.index().waiting == 0)
    assert [round(m.score or 0, 3) for m in memory.search(HOME, query="tea")] == [1.0]
    assert indexer.admin.index().indexed == 1


def test_the_past_is_ranked_as_it_was_and_says_where_it_was_too_much(
    open_store: Open, clock: ManualClock
) -> None:
    embedder = Counted()
    memory = open_store(clock=clock, embedder=embedder)
    many = [{"op": "put", "namespace": HOME, "key": f"k{n}", "value": {}} for n in range(200)]
    for text in ("tea", "rain"):
        memory.batch([{**each, "index": {"text": f"{text} w{n}"}} for n, each in enumerate(many)])
        memory.put(HOME, "long", {}, index={"text": f"{text} " + "long " * 4000}, wait_for_index=True)
        clock.advance(10)
    until(lambda: memory.admin.index().waiting == 0)
    then = datetime.fromtimestamp(clock.now / 1e6 - 15, UTC)
    embedder.calls.clear()
    found = memory.search(HOME, query="tea w177", as_of=then)
    assert max(embedder.calls) == 16, "windows of the past that one search embeds"
    assert found.degraded == "185 texts of that time are ranked by words alone"
    assert {m.index["text"].split()[0] for m in found} == {"tea"}
    assert (found[0].key, found[0].score is not None) == ("k177", True), "the likeliest by words are embedded"
    narrow = memory.search(HOME, query="tea", as_of=then, filter={"text": "tea w7"})
    assert narrow.degraded is None
    assert [(m.key, m.score is not None) for m in narrow] == [("k7", True)]
    assert memory.search(HOME, query="rain long", limit=1)[0].key == "long"


def test_who_sees_only_what_some_wrote_shares_nothing_with_who_sees_more(memory: Alcove) -> None:
    """As a policy with `written_by` has it; the names go with a wipe."""
    low, high = Namespace(("org",)).subtree()
    for user in ("alice", "bob"):
        grants = (Grant(Namespace(("org",))),)
        room = memory.as_principal(Principal(user, grants=grants))
        room.put(["org"], user, {}, index={"text": f"tea {user}"})

    def found(*writers: str | None, filter: Filter = Filter()) -> set[str]:  # noqa: B008 - frozen
        scope = Scope(low, high, written_by=writers or None, filter=filter)
        searcher = memory.memories.searcher._hybrid_search
        query, options = searcher.parse_query("tea", "keyword"), SearchOptions(limit=9, mode="keyword")
        best = searcher.search(scope, query, options, row_matches=lambda _: True)
        return {row.key.decode() for row, _ in best.hits}

    texts = Filter.parse({"text": {"$exists": True}})
    for _ in range(2):
        assert found() == {"alice", "bob"}
        assert found("alice") == found("alice", filter=texts) == {"alice"}
        assert found("bob", None) == found("bob", None, filter=texts) == {"bob"}
    memory.wipe("alice", shared="anonymise", wait=False)
    assert found("alice") == found("alice", filter=texts) == set()
    assert found("bob", None) == found("bob", None, filter=texts) == {"alice", "bob"}


def test_another_process_finds_it_at_once(tmp_path: Path) -> None:
    path, room = tmp_path / "memory.db", HOME
    with (
        Alcove(path, settings=Settings(sweep_interval=0), embedder=Bag()) as memory,
        started(tmp_path / "said", "tests.contract.test_search_across_handles", path) as child,
    ):
        asked = 0

        def found() -> list[str]:
            nonlocal asked
            asked += 1
            child.tell("search")
            line = until(lambda: child.lines[asked - 1 :])[0]
            return [str(key) for key in json.loads(line)]

        assert found() == []
        for n in range(4):
            memory.put(room, f"k{n}", {}, index={"text": TEXTS[n]}, wait_for_index=True)
            assert found() == [f"k{m}" for m in range(n + 1)]
        memory.delete(room, "k0")
        assert found() == ["k1", "k2", "k3"]
        memory.touch(room, "k1", ttl_seconds=1)
        time.sleep(1.05)
        assert found() == ["k2", "k3"]
        memory.wipe("noop")
        assert found() == []


if __name__ == "__main__":
    with Alcove(sys.argv[1], settings=Settings(sweep_interval=0), embedder=Bag()) as store:
        for _ in sys.stdin:
            say(json.dumps([m.key for m in store.search(HOME, query="tea", mode="semantic")]))
