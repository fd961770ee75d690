"""Group commit: many threads, one commit, and nobody left waiting."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from alcove.core.errors import Unavailable
from alcove.engine.commit import MAX_BYTES, CommitQueue, Submission
from alcove.engine.rows import GetRow, Outcome, PutRow, Writer


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns as often as they can, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def commit(batch: Sequence[Submission]) -> list[Outcome | Exception]:
    return [[None] for _ in batch]


def in_threads(queue: CommitQueue, threads: int, times: int) -> list[BaseException]:
    wrong: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(times):
                assert queue.submit([GetRow(b"", b"")], None).result() == [None]
        except BaseException as error:
            wrong.append(error)

    writers = [threading.Thread(target=write) for _ in range(threads)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(60)
    assert not any(each.is_alive() for each in writers)
    return wrong


@pytest.mark.usefixtures("hasty")
def test_every_writer_of_a_crowd_gets_its_own_answer() -> None:
    assert in_threads(CommitQueue(commit), threads=16, times=400) == []


def test_a_commit_that_fails_fails_for_all_in_it_and_for_nobody_after() -> None:
    fail = [True]

    def sometimes(batch: Sequence[Submission]) -> list[Outcome | Exception]:
        if fail.pop() if fail else False:
            raise Unavailable("full")
        return commit(batch)

    queue = CommitQueue(sometimes)
    first, second = queue.submit([], None), queue.submit([], None)
    for each in (first, second):
        with pytest.raises(Unavailable):
            each.result()
    assert queue.submit([], None).result() == [None]


def test_an_interrupt_of_the_leader_leaves_the_lead_to_the_next() -> None:
    interrupts = [True]

    def interrupted(batch: Sequence[Submission]) -> list[Outcome | Exception]:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return commit(batch)

    queue = CommitQueue(interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.submit([], None).result()
    assert queue.submit([], None).result() == [None]


def test_who_attends_after_another_has_led_is_told_at_once() -> None:
    queue, told = CommitQueue(commit), list[str]()
    late, leader = queue.submit([GetRow(b"", b"")], None), queue.submit([GetRow(b"", b"")], None)
    leader.wait()
    late.watch(lambda: told.append("done"))
    assert told
    assert late.outcome is not None


def test_who_writes_little_does_not_wait_for_all_that_another_writes() -> None:
    batches: list[list[str]] = []

    def noted(batch: Sequence[Submission]) -> list[Outcome | Exception]:
        batches.append([owners[each] for each in batch])
        return commit(batch)

    queue, value = CommitQueue(noted), b"x" * (MAX_BYTES // 2)
    large = PutRow(b"", b"", b"", None, Writer(None, None, None), 1, value, "{}", None, None, None)
    owners: dict[Submission, str] = {}
    for user in (*["mallory"] * 10, "alice", "bob"):
        submission = queue.submit([large if user == "mallory" else GetRow(b"", b"")], None, user)
        owners[submission] = user
    for submission in owners:
        submission.wait()
    assert sorted(batches[0]) == ["alice", "bob", "mallory", "mallory"]
    assert batches[1:] == [["mallory"] * 2] * 4


def test_a_writer_that_can_no_longer_be_woken_holds_up_no_other() -> None:
    """As when a server stops: the threads that would lead for its event loop are gone."""

    def closed() -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    queue = CommitQueue(lambda batch: [[] for _ in batch])
    gone, other = queue.submit([], None, "a"), queue.submit([], None, "b")
    gone.signal = closed
    woken = threading.Event()
    other.signal = woken.set
    queue.pass_on()
    assert woken.is_set()
    assert other.try_commit()
    assert gone.outcome is not None
