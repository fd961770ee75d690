"""Group commit: the first waiting writer commits for all others, so that many writes share one fsync."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import chain

from alcove.engine.rows import IdempotentRequest, Outcome, PutRow, RowOperation

MAX_OPERATIONS = 2000
"""Operations after which a shared transaction is full, so that no writer waits for it too long."""
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of sealed values after which it is full."""
GATHER_SECONDS = 0.0002
"""How long a leader waits for the writers of the last commit to write again; an fsync costs much more."""
REMOTE_GATHER_SECONDS = 0.002
"""The same if a commit also costs a round trip or two to a server."""


class Observer:
    """Receives events of an engine, often under a lock: methods must be quick and never raise.

    This class ignores them.
    """

    def write_submitted(self) -> None:
        """A write was queued for a commit; calls of this and of `commit_ended` never overlap."""

    def commit_ended(self, writes: int, *, committed: bool) -> None:
        """A commit of this many writes has ended: they are on the disk, or all of them failed."""

    def memories_expired(self, count: int, *, reason: str) -> None:
        """A sweep has ended memories: `due` by their own expiry, or `aged` by retention."""

    def session_store(self, outcome: str) -> None:
        """The session store was read: `hit`, `miss` if the engine had to be read, or `away`."""


class Submission:
    """One transaction in the queue; a thread that waits for its result helps to commit.

    A `concurrent.futures.Future` would cost ten times as much, because it has a condition of its own.
    """

    __slots__ = ("_queue", "_sleep", "abandoned", "once", "operations", "outcome", "rules_version", "signal")

    def __init__(
        self,
        queue: CommitQueue,
        operations: Sequence[RowOperation],
        once: IdempotentRequest | None,
        rules_version: int | None,
    ) -> None:
        self._queue = queue
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self.signal: Callable[[], None] | None = None
        """Makes an event loop check again; None if a thread waits."""
        self.operations = operations
        self.once = once
        self.rules_version = rules_version
        self.outcome: Outcome | BaseException | None = None
        self.abandoned = False

    def wait(self) -> None:
        """Blocks until it is committed or refused; leads if no other writer does."""
        while not self.try_commit():
            try:
                self._sleep.acquire()
            except BaseException:  # an interrupt: another writer must lead
                self.abandoned = True
                self._queue.pass_on()
                raise

    def watch(self, signal: Callable[[], None]) -> None:
        """For callers that must not block: calls `signal` at the end, and when `try_commit` would help."""
        with self._queue.mutex:
            self.signal = signal
            if self.outcome is not None:  # it was committed before there was a signal
                signal()
        self._queue.pass_on()

    def try_commit(self) -> bool:
        """Leads if no other writer does; returns whether this submission is committed or refused."""
        return self.outcome is not None or self._queue.lead(self)

    def result(self) -> Outcome:
        """Returns the outcome of the transaction, once it is on the disk."""
        if self.outcome is None:
            self.wait()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    def wake(self) -> bool:
        """Makes the waiting caller check again, if it still can; call it only with the queue's mutex."""
        if self.signal:
            try:
                self.signal()
            except RuntimeError:  # its event loop or its threads are closed
                return False
        elif self._sleep.locked():
            self._sleep.release()
        return True


class CommitQueue:
    """Commits each user's writes in order and lets users take turns, so that none waits for a busy user.

    The first writer that waits leads: it commits all waiting writes, wakes their writers, and passes the lead
    on to the first write that has arrived since. A waiting thread sleeps on its own lock and is woken once.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Submission]], Sequence[Outcome | Exception]],
        observer: Observer | None = None,
        *,
        is_remote: bool = False,
    ) -> None:
        """`commit` returns an outcome for each submission of a batch, or raises for all of them.

        `is_remote`: a commit takes much longer than its writers need for their next write.
        """
        self._commit = commit
        self._is_remote = is_remote
        self._observer = observer or Observer()
        self._queues: OrderedDict[str | None, deque[Submission]] = OrderedDict()
        """Waiting submissions by user; the first user is served next."""
        self._count = 0
        self.mutex = threading.Lock()
        self._has_leader = False
        self._expected_count = 1
        """How many writers took part in the last commit and may write again soon."""

    def submit(
        self,
        operations: Sequence[RowOperation],
        once: IdempotentRequest | None,
        user: str | None = None,
        rules_version: int | None = None,
    ) -> Submission:
        """Queues one all-or-nothing transaction; many share one commit.

        `rules_version`: the configuration that allowed the write. Under any other, the commit refuses it.
        """
        submission = Submission(self, operations, once, rules_version)
        with self.mutex:
            self._queues.setdefault(user, deque()).append(submission)
            self._count += 1
            self._observer.write_submitted()
        return submission

    def lead(self, leader: Submission) -> bool:
        """Commits until the leader's own submission is done; False if there is a leader already."""
        is_leading = False
        try:
            with self.mutex:
                if self._has_leader:
                    return False
                self._has_leader = is_leading = True
            while leader.outcome is None:
                self._commit_batch(leader)
            return True
        finally:
            if is_leading:
                self._has_leader = False
                if self._queues:
                    self.pass_on()

    def pass_on(self) -> None:
        """Wakes the first waiting submission, unless there is a leader already."""
        with self.mutex:
            for submission in chain.from_iterable(() if self._has_leader else self._queues.values()):
                if not submission.abandoned and submission.wake():
                    return

    def _commit_batch(self, leader: Submission) -> None:
        if leader.signal is None and self._count < self._expected_count:
            deadline = time.monotonic() + (REMOTE_GATHER_SECONDS if self._is_remote else GATHER_SECONDS)
            while self._count < self._expected_count and time.monotonic() < deadline:
                time.sleep(GATHER_SECONDS)
        batch: list[Submission] = []
        committed = False
        try:
            self._fill(batch)
            self._expected_count = len(batch)
            for submission, outcome in zip(batch, self._commit(batch), strict=True):
                submission.outcome = outcome
            self._expected_count += self._count if self._is_remote else 0
            committed = True
        except BaseException as error:
            for submission in batch:
                submission.outcome = error
            if not isinstance(error, Exception):
                raise
        finally:
            with self.mutex:
                self._observer.commit_ended(len(batch), committed=committed)
                for submission in batch:
                    if submission is not leader:
                        submission.wake()

    def _fill(self, batch: list[Submission]) -> None:
        """Takes waiting submissions, one of each user in turn, until the batch is full."""
        operations = size = 0
        with self.mutex:
            while self._queues and operations < MAX_OPERATIONS and size < MAX_BYTES:
                user, queue = next(iter(self._queues.items()))
                batch.append(queue.popleft())
                self._count -= 1
                if queue:
                    self._queues.move_to_end(user)
                else:
                    del self._queues[user]
                operations += len(batch[-1].operations)
                size += sum(len(each.sealed) for each in batch[-1].operations if isinstance(each, PutRow))
