"""Group commit: whoever leads commits every write that waits, so many writes share one fsync."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import chain

from alcove.engine.rows.operations import IdempotentRequest, Outcome, PutRow, RowOperation

MOST_OPERATIONS = 2000
"""Operations after which a shared transaction is closed, so that nobody waits for it too long."""
MOST_BYTES = 8 * 1024 * 1024
"""Of sealed values; likewise."""
LINGER = 0.0002
"""Seconds a leader waits for the crowd of the last commit to come back; much less than an fsync saves."""
FAR_LINGER = 0.002
"""The same for all who write at the moment, where a commit is a journey to a server besides, or two."""


class Observer:
    """Told what an engine does, often with a lock in hand: it must be quick and never raise.

    This one takes no notice of it.
    """

    def submitted(self) -> None:
        """A write waits for a commit from now on; calls of this and of `settled` never overlap."""

    def settled(self, writes: int, *, committed: bool) -> None:
        """One commit has ended for this many writes, on the disk or with an error for all of them."""

    def expired(self, memories: int, *, which: str) -> None:
        """A sweep has recorded the end of this many memories: `due` by their own time, or `aged`."""

    def session_store(self, outcome: str) -> None:
        """The session store was asked: `hit`, `miss` where the engine had to be read, or `away`."""


class Submission:
    """One transaction that waits for a commit; asking for its result helps to bring it about.

    `concurrent.futures.Future` would do, at ten times the cost: it brings a lock of its own.
    """

    __slots__ = ("_queue", "_sleep", "abandoned", "decided_by", "once", "operations", "outcome", "signal")

    def __init__(
        self,
        queue: CommitQueue,
        operations: Sequence[RowOperation],
        once: IdempotentRequest | None,
        decided_by: int | None,
    ) -> None:
        self._queue = queue
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self.signal: Callable[[], None] | None = None
        """Tells an event loop to look again; None where a thread waits."""
        self.operations = operations
        self.once = once
        self.decided_by = decided_by
        self.outcome: Outcome | BaseException | None = None
        self.abandoned = False

    def wait(self) -> None:
        """Blocks until it is committed or refused, leading where nobody does."""
        while not self.settle():
            try:
                self._sleep.acquire()
            except BaseException:  # an interrupt: somebody else must lead
                self.abandoned = True
                self._queue.pass_on()
                raise

    def attend(self, signal: Callable[[], None]) -> None:
        """For who must not block: `signal` is called when it is done, and when `settle` can bring it on."""
        with self._queue.mutex:
            self.signal = signal
            if self.outcome is not None:  # somebody led before we were there to be told
                signal()
        self._queue.pass_on()

    def settle(self) -> bool:
        """Leads where nobody does; whether this submission is committed or refused."""
        return self.outcome is not None or self._queue.lead(self)

    def result(self) -> Outcome:
        """What the transaction answered, once it is on the disk."""
        if self.outcome is None:
            self.wait()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    def wake(self) -> None:
        """Tells who waits to look again; called only by a holder of the queue's mutex."""
        if self.signal:
            self.signal()
        elif self._sleep.locked():
            self._sleep.release()


class CommitQueue:
    """Each user's writes in order of arrival, and the users in turn: who writes much waits for himself.

    `commit` gives every submission of a batch its outcome, or raises.
    Whoever waits first leads: it commits all that wait, wakes them, and passes the lead on to the
    first that has come since. A thread that waits sleeps on a lock of its own and is woken once.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Submission]], None],
        observer: Observer | None = None,
        *,
        far: bool = False,
    ) -> None:
        """`far`: whether a commit takes much longer than those who waited for it take to come back."""
        self._commit = commit
        self._far = far
        self._observer = observer or Observer()
        self._waiting: OrderedDict[str | None, deque[Submission]] = OrderedDict()
        self._count = 0
        self.mutex = threading.Lock()
        self._led = False
        self._crowd = 1

    def submit(
        self,
        operations: Sequence[RowOperation],
        once: IdempotentRequest | None,
        user: str | None = None,
        decided_by: int | None = None,
    ) -> Submission:
        """One all-or-nothing transaction; many share one commit.

        The user's are committed in order, and those of several users in turn. `decided_by` is the version of
        the configuration by which it was allowed: it is refused where another holds when it is committed.
        """
        submission = Submission(self, operations, once, decided_by)
        with self.mutex:
            self._waiting.setdefault(user, deque()).append(submission)
            self._count += 1
            self._observer.submitted()
        return submission

    def lead(self, leader: Submission) -> bool:
        """Commits until the leader's own submission is done; False where somebody leads already."""
        leading = False
        try:
            with self.mutex:
                if self._led:
                    return False
                self._led = leading = True
            while leader.outcome is None:
                self._commit_batch(leader)
            return True
        finally:
            if leading:
                self._led = False
                if self._waiting:
                    self.pass_on()

    def pass_on(self) -> None:
        """Wakes the first that waits, unless somebody leads already."""
        with self.mutex:
            for each in chain.from_iterable(() if self._led else self._waiting.values()):
                if not each.abandoned:
                    each.wake()
                    return

    def _commit_batch(self, leader: Submission) -> None:
        if leader.signal is None and self._count < self._crowd:
            deadline = time.monotonic() + (FAR_LINGER if self._far else LINGER)
            while self._count < self._crowd and time.monotonic() < deadline:
                time.sleep(LINGER)
        batch: list[Submission] = []
        committed = False
        try:
            self._fill(batch)
            self._crowd = len(batch)
            self._commit(batch)
            self._crowd += self._count if self._far else 0
            committed = True
        except BaseException as error:
            for lost in batch:
                lost.outcome = error
            if not isinstance(error, Exception):
                raise
        finally:
            with self.mutex:
                self._observer.settled(len(batch), committed=committed)
                for done in batch:
                    if done is not leader:
                        done.wake()

    def _fill(self, batch: list[Submission]) -> None:
        operations = size = 0
        with self.mutex:
            while self._waiting and operations < MOST_OPERATIONS and size < MOST_BYTES:
                user, line = next(iter(self._waiting.items()))
                batch.append(line[0])
                line.popleft()
                self._count -= 1
                if line:
                    self._waiting.move_to_end(user)
                else:
                    del self._waiting[user]
                operations += len(batch[-1].operations)
                for each in batch[-1].operations:
                    size += len(each.sealed) if isinstance(each, PutRow) else 0
