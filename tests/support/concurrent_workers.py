"""A crowd of workers on one store: several processes with threads in each, or sixteen threads in one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from alcove import Alcove, Settings
from tests.support.child_programs import say, started

QUIET = Settings(sweep_interval=0)

Work = Callable[[Alcove, int], list[int]]
"""What one worker does, given its number; it returns what it was told, for the test to add up."""
Results = dict[int, list[int]]
"""What each worker returned."""
Crowd = Callable[..., Results]


def in_processes(path: Path, work: Work, meanwhile: Callable[[], None] = lambda: None) -> Results:
    """Four processes with three threads each, let loose together; their module must call `join`."""
    processes, threads = 4, 3
    with ExitStack() as stack:
        children = []
        for n in range(processes):
            workers = range(n * threads, (n + 1) * threads)
            said = path.with_name(f"said-{n}")
            arguments = (work.__module__, work.__name__, path, *workers)
            children.append(stack.enter_context(started(said, *arguments)))
        for child in children:
            child.wait_for("ready")
        for child in children:
            child.tell("go")
        meanwhile()
        for child in children:
            child.finish()
        told = [line for child in children for line in child.lines if line != "ready"]
    return dict(enumerate(map(json.loads, told)))


def in_threads(path: Path, work: Work, meanwhile: Callable[[], None] = lambda: None) -> Results:
    """Sixteen threads over one handle."""
    with Alcove(path, settings=QUIET) as memory, ThreadPoolExecutor(16) as pool:
        results = pool.map(lambda worker: work(memory, worker), range(16))
        meanwhile()
        return dict(enumerate(results))


def join(works: Iterable[Work], name: str, path: str, *workers: str) -> None:
    """One of the processes: it says `ready`, waits for a line, works, and says what it was told."""
    (work,) = [each for each in works if each.__name__ == name]
    with Alcove(path, settings=QUIET) as memory, ThreadPoolExecutor(len(workers)) as pool:
        say("ready")
        sys.stdin.readline()
        for result in pool.map(lambda worker: work(memory, int(worker)), workers):
            say(json.dumps(result))
