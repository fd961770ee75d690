"""A single put, which PostgreSQL decides by itself, does what the same put does among other operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from alcove import Alcove, Conflict
from alcove.engine.commit import Submission
from alcove.engine.rows import DataKeyGone, GetRow, PutRow, Row, RowOperation, StaleDecision, Writer
from alcove.engine.transaction import new_id
from tests.support.clock import ManualClock

NS = b"user\0alice\0"


@pytest.fixture
def put(memory: Alcove) -> Callable[..., PutRow]:
    memory.as_user("alice").put(("user", "alice"), "first", {})  # makes the data key

    def one(key: bytes, expected: int | None = None, **more: int | None) -> PutRow:
        its = dict.fromkeys(("ttl", "until", "original_at", "added_at"), None) | more
        return PutRow(
            new_id(), NS, key, "alice", Writer("alice", None, None), 1, b"sealed", "{}", None,
            its["ttl"], expected, its["until"], its["original_at"], its["added_at"],
        )  # fmt: skip

    return one


def told(row: Row) -> tuple[object, ...]:
    """What must be the same by both roads."""
    return row.kind, row.revision, row.expires_at is None, row.original_at, row.ttl, row.added_at is None


def test_a_single_put_and_one_among_others_leave_the_same_versions(
    memory: Alcove, clock: ManualClock, put: Callable[..., PutRow]
) -> None:
    engine = memory.memories._engine

    def done(*operations: RowOperation) -> Row | Conflict:
        try:
            (row, *_) = engine.submit(operations, None).result()
        except Conflict as refused:
            return refused
        assert isinstance(row, Row)
        return row

    second = 1_000_000
    steps: list[dict[str, int | None]] = [
        {},
        {"ttl": 5 * second},
        {"expected": 2},
        {"expected": 9},
        {"expected": 0},
        {"ttl": second, "original_at": 1, "added_at": 1},
        {},  # after the last one's expiry, which is a version, too
        {"until": clock() + 100 * second, "original_at": clock() + 1000 * second},
    ]
    for n, step in enumerate(steps):
        if n == 6:
            clock.advance(2)
        ours, theirs = done(put(b"alone", **step)), done(put(b"among", **step), GetRow(NS, b"none"))
        if isinstance(ours, Conflict) or isinstance(theirs, Conflict):
            assert isinstance(ours, Conflict)
            assert isinstance(theirs, Conflict)
            assert ours.details == theirs.details
        else:
            assert told(ours) == told(theirs)
            assert engine.get(NS, b"alone", now=ours.created_at) == ours
    one, other = ([told(each) for each in engine.history(NS, key)] for key in (b"alone", b"among"))
    assert one == other
    assert len(one) == 7
    assert [name for name, _, wrong in engine.check() if wrong] == []


@pytest.mark.parametrize(
    "moment", [0, 1, -1, -62_135_596_800_000_000], ids=["1970", "after", "before", "year-1"]
)
@pytest.mark.parametrize("field", ["original_at", "added_at"])
def test_a_time_at_the_epoch_or_before_it_is_kept_by_a_single_put_and_by_one_among_others(
    memory: Alcove, put: Callable[..., PutRow], field: str, moment: int
) -> None:
    engine, added = memory.memories._engine, set[int | None]()
    for step in ({field: moment}, {}, {field: moment - 1}, {"original_at": 5}, {}):
        alone, *_ = engine.submit([put(b"alone", **step)], None).result()
        among, *_ = engine.submit([put(b"among", **step), GetRow(NS, b"none")], None).result()
        assert isinstance(alone, Row)
        assert isinstance(among, Row)
        assert (alone.original_at, among.original_at) == (step.get("original_at"),) * 2
        for row in (alone, among):
            assert engine.get(NS, row.key, now=row.created_at) == row
        added = {alone.added_at, among.added_at}
    assert added == {moment - 1 if field == "original_at" else min(moment, 5)}


def test_a_put_that_is_refused_fails_none_of_those_it_is_committed_with(
    memory: Alcove, put: Callable[..., PutRow]
) -> None:
    engine = memory.memories._engine
    version = engine._db.mark("documents")
    late = put(b"late")._replace(data_key=999)
    group: list[tuple[PutRow, int | None]] = [
        (put(b"a", expected=0), version),
        (put(b"b", expected=7), None),
        (late, None),
        (put(b"c"), version + 1),
        (put(b"a", expected=1), None),
    ]
    waiting: list[Submission] = [engine.submit([each], None, None, by) for each, by in group]
    kept = [waiting[0].result(), waiting[4].result()]
    for each, error in zip(waiting[1:4], (Conflict, DataKeyGone, StaleDecision), strict=True):
        with pytest.raises(error):
            each.result()
    first, second = (row for outcome in kept for row in outcome)
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert (first.revision, second.revision) == (1, 2)
    assert first.seq < second.seq
    assert first.created_at < second.created_at
    assert [engine.get(NS, key, now=second.created_at) for key in (b"b", b"c", b"late")] == [None] * 3
