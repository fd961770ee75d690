"""Writes as futures: what begins a write does not wait, and its result comes after the commit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

from alcove.core.errors import AlcoveError
from alcove.engine.commit import Submission
from alcove.engine.rows import DataKeyGone, Outcome, StaleDecision

P = ParamSpec("P")
R = TypeVar("R")


class PendingWrite(Generic[R]):
    """A write that is checked, sealed and in the commit queue.

    An event loop awaits `commit` and then asks for the result; a thread asks at once and blocks.
    """

    def __init__(
        self,
        submit: Callable[[], Submission],
        finish: Callable[[Outcome], R],
        recover: Callable[[Exception], None],
    ) -> None:
        """`submit`: decides, seals and submits the write. `finish`: makes the result of what was committed.

        `recover`: called with the error of a commit; it raises, or prepares for submitting the write again.
        """
        self._submit, self._finish, self._recover = submit, finish, recover
        self.commit = submit()

    def result(self) -> R:
        """Waits for the commit and returns the answer, or raises why the write was refused."""
        while True:
            try:
                outcome = self.commit.result()
            except (StaleDecision, DataKeyGone, AlcoveError) as error:
                self._recover(error)
                self.commit = self._submit()
            else:
                return self._finish(outcome)


def commits(begin: Callable[P, PendingWrite[R]]) -> Callable[P, R]:
    """Makes a method that begins a write block until it is committed; its `begin` does not."""

    @wraps(begin)
    def write(*args: P.args, **named: P.kwargs) -> R:
        return begin(*args, **named).result()

    answer = begin.__annotations__["return"].removeprefix("PendingWrite[").removesuffix("]")
    write.__annotations__ = {**begin.__annotations__, "return": answer}
    write.__signature__ = inspect.signature(begin).replace(return_annotation=answer)  # type: ignore[attr-defined]
    write.begin = begin  # type: ignore[attr-defined]
    return write
