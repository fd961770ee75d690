"""Group commit: whoever's turn it is commits every write that waits, so many writes share one fsync."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from alcove.engine.base import Replay, Replayed, Row, RowOperation

Outcome = list[Row | None] | Replayed
MOST_OPERATIONS = 2000
"""Operations after which a shared transaction is closed, so that nobody waits for it too long."""


class Submission(Future[Outcome]):
    """One transaction that waits for a commit; asking for its result helps to bring it about."""

    def __init__(self, queue: CommitQueue, operations: Sequence[RowOperation], replay: Replay | None) -> None:
        super().__init__()
        self._queue = queue
        self.operations = operations
        self.replay = replay

    def result(self, timeout: float | None = None) -> Outcome:
        if not self.done():
            self._queue.settle(self)
        return super().result(timeout)


class CommitQueue:
    """Writes in order of arrival; `commit` settles every submission of a batch, or raises for all."""

    def __init__(self, turn: threading.Lock, commit: Callable[[Sequence[Submission]], None]) -> None:
        self._waiting: deque[Submission] = deque()
        self._turn = turn
        self._commit = commit

    def submit(self, operations: Sequence[RowOperation], replay: Replay | None) -> Submission:
        submission = Submission(self, operations, replay)
        self._waiting.append(submission)
        return submission

    def settle(self, submission: Submission) -> None:
        """Waits for its turn, then commits batches until this submission is in one of them."""
        with self._turn:
            while not submission.done():
                batch = self._next_batch()
                try:
                    self._commit(batch)
                except BaseException as error:
                    for lost in batch:
                        lost.set_exception(error)
                    if not isinstance(error, Exception):
                        raise

    def _next_batch(self) -> list[Submission]:
        batch: list[Submission] = []
        size = 0
        while self._waiting and size < MOST_OPERATIONS:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].operations)
        return batch
