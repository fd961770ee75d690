"""Work that nobody waits for stops at its next step, and leaves the store as fit for use as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from alcove import Alcove, Namespace, Principal
from alcove.core.cancellation import Cancellation, Cancelled
from alcove.core.filters import Filter
from alcove.engine.rows import Scope
from alcove.engine.sqlite import database as sqlite
from alcove.search.sources.base import CandidateRequest
from alcove.search.sources.memory import ScopeCorpus

NOTES = ("user", "alice", "notes")


def puts(count: int) -> list[dict[str, object]]:
    return [
        {"op": "put", "namespace": [*NOTES], "key": f"k{n:04}", "value": {"n": n}, "index": {"text": f"n{n}"}}
        for n in range(count)
    ]


READS: dict[str, Callable[[Alcove], object]] = {
    "get": lambda a: a.get(NOTES, "k0000"),
    "history": lambda a: a.history(NOTES, "k0000"),
    "list": lambda a: a.list(NOTES, filter={"n": 7}),
    "search": lambda a: a.search(NOTES),
    "events": lambda a: a.events(NOTES),
    "export": lambda a: list(a.export_memories(NOTES)),
    "count": lambda a: a.memories.reader.count(Principal("alice"), NOTES),
    "namespaces": lambda a: a.namespaces(NOTES),
    "batch": lambda a: a.batch(puts(10)),
}


@pytest.fixture(autouse=True)
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of few rows looks as often whether anybody waits as one of many."""
    monkeypatch.setattr(sqlite, "STEPS_BETWEEN_CHECKS", 1)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_cancelled_work_stops_and_the_next_call_is_answered(
    alice: Alcove, read: Callable[[Alcove], object]
) -> None:
    alice.batch(puts(10))
    before = alice.events(NOTES).after_cursor
    work = Cancellation()
    work.cancelled = True
    with pytest.raises(Cancelled):
        work.run(lambda: read(alice))
    assert alice.events(NOTES, after_cursor=before).events == []
    read(alice)
    assert alice.get(NOTES, "k0003") is not None


def test_a_scan_ends_where_it_is_when_it_is_cancelled(alice: Alcove) -> None:
    alice.batch(puts(10))
    work, seen = Cancellation(), []

    def scan() -> None:
        for memory in alice.export_memories(NOTES):
            seen.append(memory.key)
            work.cancelled = len(seen) == 3

    with pytest.raises(Cancelled):
        work.run(scan)
    assert seen == ["k0000", "k0001", "k0002"]


def test_a_subtree_that_is_read_for_a_search_is_kept_for_the_next(memory: Alcove, alice: Alcove) -> None:
    """Or one that takes longer to read than a request may would never be read."""
    alice.batch(puts(10))
    work = Cancellation()
    work.cancelled = True
    corpus = ScopeCorpus(Scope(*Namespace(NOTES).subtree()), memory.memories._engine.index, max_bytes=2**30)
    request = CandidateRequest(lambda _: True, embedder="", now=0)
    candidates = work.run(lambda: corpus.find(Filter(), request))
    assert len(candidates.corpus) == 10


def test_a_wipe_whose_caller_leaves_once_it_is_committed_is_audited(
    memory: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.as_user("alice").put(NOTES, "k", {"n": 1})
    work, erasure = Cancellation(), memory.memories._engine.erasure
    commit = erasure.wipe

    def commit_and_leave(*args: object, **options: object) -> object:
        result = commit(*args, **options)  # type: ignore[arg-type]
        work.cancel()
        return result

    monkeypatch.setattr(erasure, "wipe", commit_and_leave)
    with suppress(Cancelled):
        work.run(lambda: memory.wipe("alice"))
    assert [each.action for each in memory.admin.audit(action="user.wipe").entries] == ["user.wipe"]
