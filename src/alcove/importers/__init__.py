"""Coming from elsewhere: what other projects kept, as the lines that an import takes.

Each source is a file here, with a function that reads the project's own export or database and yields lines.
What it cannot map it counts, with the reason. The lines go down the one road, `Store.import_memories`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import chain, islice

import msgspec
from msgspec import UNSET, Struct, UnsetType

from alcove.core.namespace import Namespace
from alcove.importers.account import Account, Broken, NotMapped, Target
from alcove.upkeep.transfer import Imports, Line

__all__ = ["Brought", "Target", "bring"]


class Brought(Struct, frozen=True, kw_only=True):
    """What became of all that a source had."""

    imported: int
    unchanged: int
    not_mapped: list[NotMapped]
    """What has no place in Alcove, or was left where it is: each kind with a count and a reason."""
    failed: list[Broken]
    """Records that could not be read, or that the store refused: at most a thousand of each."""
    failures: int
    waiting: int | UnsetType = UNSET
    """How many wait to be indexed, if some still do after the import has waited for that."""


def bring(
    take: Callable[[Iterable[bytes]], Imports],
    project: str,
    where: str,
    target: Target,
    step: Callable[[int], None] = lambda _: None,
) -> Brought:
    """Imports what a project kept, and tells what was not brought.

    `take` imports lines, as `Store.import_memories` does. `project` is the name of a module here, `where` the
    file that it reads, or the address of a database, and `target` says where things go. `step` is called for
    each record that is brought.
    """
    account = Account()

    def watched() -> Iterator[bytes]:
        for line in _lines(project, where, target, account):
            step(1)
            yield line

    found = watched()
    first = [*islice(found, 1)]  # what is no source at all is refused before anything is sent
    done = take(chain(first, found))
    refused = {each.line: each.error for each in done.failed}
    return Brought(
        imported=done.imported,
        unchanged=done.unchanged,
        not_mapped=account.not_mapped(),
        failed=[*account.broken, *_named(refused, project, where, target)],
        failures=account.failures + done.failures,
        waiting=done.waiting,
    )


def _lines(project: str, where: str, target: Target, account: Account) -> Iterator[bytes]:
    read: Callable[[str, Target, Account], Iterator[bytes]] = import_module(f"{__name__}.{project}").read
    return read(where, target, account)


def _named(refused: dict[int, str], project: str, where: str, target: Target) -> Iterator[Broken]:
    """The records whose lines the store refused, by namespace and key.

    The source is read once more for them: the names of all lines would not fit in memory.
    """
    if not refused:
        return
    for number, line in enumerate(_lines(project, where, target, Account()), 1):
        if number in refused:
            brought = msgspec.json.decode(line, type=Line)
            yield Broken(f"{Namespace(brought.namespace)} {brought.key}", refused.pop(number))
        if not refused:
            return
