"""Imports from other projects: reads their data as the lines that `Store.import_memories` takes.

Each project has a module here. Its `read` function reads the project's own export or database and yields
lines; an `ImportJob` counts the records that have no place in Alcove, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import chain, islice

import msgspec
from msgspec import UNSET, Struct, UnsetType

from alcove.core.namespace import Namespace
from alcove.importers.job import BrokenRecord, ImportJob, SkippedRecords, Target
from alcove.upkeep.transfer import Imports, Line

__all__ = ["ImportSummary", "Target", "import_from"]


class ImportSummary(Struct, frozen=True, kw_only=True):
    """The outcome of an import."""

    imported: int
    unchanged: int
    not_mapped: list[SkippedRecords]
    """Records that are not imported, by kind, each with a count and a reason."""
    failed: list[BrokenRecord]
    """Records that could not be read, or that the store refused: at most a thousand of each."""
    failures: int
    waiting: int | UnsetType = UNSET
    """The number of memories that still wait to be indexed after the import has waited for that."""


def import_from(
    import_lines: Callable[[Iterable[bytes]], Imports],
    project: str,
    source: str,
    target: Target,
    step: Callable[[int], None] = lambda _: None,
) -> ImportSummary:
    """Imports the memories of another project, and reports the records that it left out.

    `import_lines` imports lines as `Store.import_memories` does. `project` is the name of a module here,
    `source` its file or the address of a database. `step` is called for each record.
    """
    job = ImportJob(target)

    def read_lines() -> Iterator[bytes]:
        for line in _read(project, source, job):
            step(1)
            yield line

    lines = read_lines()
    first = [*islice(lines, 1)]  # refuses a wrong file before anything is sent
    imports = import_lines(chain(first, lines))
    errors = {failure.line: failure.error for failure in imports.failed}
    return ImportSummary(
        imported=imports.imported,
        unchanged=imports.unchanged,
        not_mapped=job.skipped(),
        failed=[*job.broken, *_name_refused(errors, project, source, target)],
        failures=job.failures + imports.failures,
        waiting=imports.waiting,
    )


def _read(project: str, source: str, job: ImportJob) -> Iterator[bytes]:
    read: Callable[[str, ImportJob], Iterator[bytes]] = import_module(f"{__name__}.{project}").read
    return read(source, job)


def _name_refused(
    errors: dict[int, str], project: str, source: str, target: Target
) -> Iterator[BrokenRecord]:
    """The records whose lines the store refused, by namespace and key.

    The source is read once more for them: the names of all lines would not fit in memory.
    """
    lines = enumerate(_read(project, source, ImportJob(target)), 1) if errors else ()
    for number, encoded in lines:
        if number in errors:
            line = msgspec.json.decode(encoded, type=Line)
            yield BrokenRecord(f"{Namespace(line.namespace)} {line.key}", errors.pop(number))
        if not errors:
            return
