"""Methods that wait in between: a thread that calls one blocks, an event loop takes its steps one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from enum import Enum
from functools import wraps
from typing import ParamSpec, TypeVar

from alcove.engine.base import Waited

P = ParamSpec("P")
R = TypeVar("R")


class Work(Enum):
    """What a step says of what follows it."""

    LARGE = "large"
    """So much that it is not to be done on an event loop."""


Steps = Generator[Waited | float | Work, None, R]
"""What is yielded is to be waited for: a commit, or so many seconds; or it is said that much work follows."""


def stepwise(method: Callable[P, Steps[R]]) -> Callable[P, R]:
    """A method that blocks until it is done; its `steps` leave the waiting to whoever takes them."""

    @wraps(method)
    def blocking(*args: P.args, **named: P.kwargs) -> R:
        steps = method(*args, **named)
        while True:
            try:
                step = next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            if isinstance(step, float):
                time.sleep(step)
            elif step is not Work.LARGE:
                step.wait()

    blocking.steps = method  # type: ignore[attr-defined]
    return blocking
