"""Group commit: whoever leads commits every write that waits, so many writes share one fsync."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from alcove.engine.base import Replay, Replayed, Row, RowOperation

Outcome = list[Row | None] | Replayed

MOST_OPERATIONS = 2000
"""Operations after which a shared transaction is closed, so that nobody waits for it too long."""
LINGER = 0.0002
"""Seconds a leader waits for the crowd of the last commit to come back; much less than an fsync saves."""


class Submission:
    """One transaction that waits for a commit; asking for its result helps to bring it about.

    `concurrent.futures.Future` would do, at ten times the cost: it brings a lock of its own.
    """

    __slots__ = ("_queue", "_signal", "abandoned", "leads", "operations", "outcome", "replay")

    def __init__(self, queue: CommitQueue, operations: Sequence[RowOperation], replay: Replay | None) -> None:
        self._queue = queue
        self._signal = threading.Lock()
        self._signal.acquire()
        self.operations = operations
        self.replay = replay
        self.leads = self.abandoned = False
        self.outcome: Outcome | BaseException | None = None

    def result(self) -> Outcome:
        """What the transaction answered, once it is on the disk."""
        if not self.leads:
            try:
                self._signal.acquire()
            except BaseException:  # an interrupt must not take the lead with it
                self._queue.abandon(self)
                raise
        if self.outcome is None:
            self._queue.lead(self)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    def wake(self) -> None:
        """Tells the waiting thread that its outcome is there, or that it is to lead."""
        self._signal.release()


class CommitQueue:
    """Writes in order of arrival; `commit` gives every submission of a batch its outcome, or raises.

    The first to come leads: it commits all that wait, wakes them, and passes the lead on to the first
    that has come since. A thread that waits sleeps on a lock of its own and is woken once.
    """

    def __init__(self, commit: Callable[[Sequence[Submission]], None]) -> None:
        self._commit = commit
        self._waiting: deque[Submission] = deque()
        self._mutex = threading.Lock()
        self._led = False
        self._crowd = 1

    def submit(self, operations: Sequence[RowOperation], replay: Replay | None) -> Submission:
        submission = Submission(self, operations, replay)
        with self._mutex:
            self._waiting.append(submission)
            if not self._led:
                self._led = submission.leads = True
        return submission

    def lead(self, leader: Submission) -> None:
        """Commits until the leader's own submission is done, then passes the lead on."""
        try:
            while leader.outcome is None:
                self._commit_batch(leader)
        finally:
            self._pass_on()

    def abandon(self, submission: Submission) -> None:
        """Nobody waits for this submission any more: somebody commits it, but it cannot lead."""
        submission.abandoned = True
        if submission.leads:
            self._pass_on()

    def _pass_on(self) -> None:
        with self._mutex:
            heir = next((each for each in self._waiting if not each.abandoned), None)
            self._led = heir is not None
            if heir:
                heir.leads = True
                heir.wake()

    def _commit_batch(self, leader: Submission) -> None:
        if len(self._waiting) < self._crowd:
            time.sleep(LINGER)
        with self._mutex:
            batch = self._next_batch()
        self._crowd = len(batch)
        try:
            self._commit(batch)
        except BaseException as error:
            for lost in batch:
                lost.outcome = error
            if not isinstance(error, Exception):
                raise
        finally:
            for done in batch:
                if done is not leader:
                    done.wake()

    def _next_batch(self) -> list[Submission]:
        batch: list[Submission] = []
        size = 0
        while self._waiting and size < MOST_OPERATIONS:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].operations)
        return batch
