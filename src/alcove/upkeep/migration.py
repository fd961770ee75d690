"""A store into another database: all that one moment of it holds, its key and its ledger; and back again.

The store may be in use. What is written after the moment is brought by another round, in which a target gets
just what differs; where writers never rest, what the last round missed is counted and told. The key comes
last, so that nobody opens a target before all of it was read back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from alcove.core.addresses import locate_store, server_name, without_password
from alcove.core.clock import system_clock
from alcove.core.errors import StoreError, Unavailable
from alcove.engine.database import Connection
from alcove.engine.engine import Engine
from alcove.engine.table_copy import (
    COPIED_AS,
    COPIED_FROM,
    Checksum,
    compute_checksums,
    copy_tables,
    count_rows,
    differences,
    map_progress,
)
from alcove.store.erasure_ledger import ErasureLedger
from alcove.upkeep.backup import Progress
from alcove.vault import KeyFile, Vault, default_keys

ROUNDS = 3
"""How often what was written meanwhile is brought after; each round compares everything."""
_BUSY_TIMEOUT = 10.0
_LOCK = b"alcove migrate"


class Migrated(NamedTuple):
    """A store that was copied, and read back."""

    path: str
    versions: int
    rows: dict[str, int]
    """Of each table."""
    rounds: int
    missed: int
    """Versions that were written since the moment that was copied: another run brings them."""
    changed: bool
    """Whether anything at all was changed since."""
    key: Path | None
    """The key file of the copy; None where the key is in the environment."""
    ledger: Path | None
    """Its ledger of wipes; None where there is none yet."""


class _Condition(NamedTuple):
    """What of a store changes with whatever is done to it."""

    last: int
    rest: tuple[int, ...]
    wipes: int

    @classmethod
    def of(cls, db: Connection) -> _Condition:
        last, *rest, wipes = db.run("store_state").fetchall()[0]
        return cls(last, tuple(rest), wipes)

    @property
    def number(self) -> int:
        return _number(*self)


def migrate(source: str | Path, target: str | Path) -> Iterator[Progress[Migrated]]:
    """Copies a store, from a file or a PostgreSQL database, to where there is none, or a copy of it.

    Whatever goes wrong, the store is as it was, and starting again goes on where it ended.
    """
    (at, beside), (to, beside_target) = locate_store(source), locate_store(target)
    shown = without_password(str(target))
    with ExitStack() as stack:
        ours = stack.enter_context(closing(_opened(at)))
        Vault(ours.data_keys, default_keys(beside))  # a wrong or missing key is refused here
        _bring_key(beside, beside_target, only_check=True)
        _bring_ledger(beside, beside_target, only_check=True)
        theirs = stack.enter_context(
            closing(Engine(to, clock=system_clock, busy_timeout=_BUSY_TIMEOUT, on_create=lambda: None))
        )
        if not theirs.locks.try_acquire(_LOCK):
            raise Unavailable(f"{shown} is being filled by another process")
        identity = _number(_identity(at))
        replaced, rounds = _refuse_another(theirs, identity, shown), 0
        while True:
            rounds += 1
            with ours.database.snapshot() as db:
                copied = yield from _round(db, theirs, shown)
            replaced = replaced or copied.replaced
            with ours.database.read() as db:
                now = _Condition.of(db)
                missed = int(db.run("versions_since", (copied.condition.last,)).get)
            if now == copied.condition or rounds == ROUNDS:
                break
        if now.wipes != copied.condition.wipes:
            raise Unavailable(
                f"somebody was wiped while {shown} was being made, in each of {ROUNDS} rounds: run it again"
            )
        if replaced and not theirs.database.rebuild():
            raise Unavailable(f"{shown} could not be scrubbed: another process has it open")
        _mark(theirs, identity, copied.condition.number)
        key = _bring_key(beside, beside_target)
        ledger = _bring_ledger(beside, beside_target)
        vault = Vault(theirs.data_keys, default_keys(beside_target))
        for each in theirs.data_keys.find_all():
            vault.key(each.subject)
    counts = {name: one.rows for name, one in copied.checksums.items()}
    changed = now != copied.condition
    result = Migrated(shown, counts["versions"], counts, rounds, missed, changed, key, ledger)
    yield Progress("done", 1, 1, result)


class _Copied(NamedTuple):
    condition: _Condition
    checksums: dict[str, Checksum]
    replaced: bool


def _round(db: Connection, theirs: Engine, shown: str) -> Generator[Progress[Migrated], None, _Copied]:
    """Copies a moment, and reads all of the copy back."""
    condition, total = _Condition.of(db), count_rows(db)
    copied = yield from map_progress(
        copy_tables(db, theirs.database), lambda done: Progress("copying", done, total)
    )
    with theirs.database.snapshot() as copy:
        found = yield from map_progress(
            compute_checksums(copy), lambda done: Progress("verifying", done, total)
        )
        if count_rows(copy) != total:
            raise StoreError(
                f"{shown} was not written as it should be: it has {count_rows(copy):,} rows, not {total:,}"
            )
    if wrong := differences(copied.checksums, found):
        raise StoreError(f"{shown} was not written as it should be: {'; '.join(wrong)}")
    return _Copied(condition, copied.checksums, copied.replaced)


def _refuse_another(theirs: Engine, identity: int, shown: str) -> bool:
    """Raises unless it is new, or a copy of this store that nobody has written to; marks it as not whole.

    Whether it was that before: then who was left half-way may have deleted what bytes are left of.
    """
    with theirs.database.snapshot() as db:
        copied_from, copied_as = db.run("copy_marks").fetchall()[0]
        found = _Condition.of(db)
    if copied_from is None and (any(found.rest) or found.last or found.wipes):
        raise StoreError(f"{shown} holds another store; nothing is written over it")
    if copied_from not in (None, identity):
        raise StoreError(f"{shown} is a copy of a store at another place; nothing is written over it")
    if copied_as and copied_as != found.number:
        raise StoreError(f"{shown} has been written to since it was copied; nothing is written over it")
    _mark(theirs, identity, 0)
    return bool(copied_as == 0)


def _mark(theirs: Engine, identity: int, condition: int) -> None:
    with theirs.database.write() as db:
        db.run("set_copy_mark", (COPIED_FROM, identity))
        db.run("set_copy_mark", (COPIED_AS, condition))


def _bring_key(beside: Path, target: Path, *, only_check: bool = False) -> Path | None:
    """The data keys stay wrapped as they are, so the key that opens them goes along."""
    if not target.parent.is_dir():
        raise StoreError(f"the folder {target.parent} is not there, in which the key of the copy is to lie")
    ours, theirs = default_keys(beside), default_keys(target)
    if not isinstance(ours, KeyFile) or not isinstance(theirs, KeyFile):
        return None
    theirs.follow(ours, only_check=only_check)
    return theirs.path


def _bring_ledger(beside: Path, target: Path, *, only_check: bool = False) -> Path | None:
    """A backup from before the copy, restored beside it, must forget again whom it has to."""
    ours, theirs = ErasureLedger.of_store(beside), ErasureLedger.of_store(target)
    notes = ours.read()
    if not {*theirs.read()} <= {*notes}:
        raise StoreError(f"{theirs.path} is the ledger of another store; nothing is written over it")
    if not only_check:
        theirs.include(notes)
    return theirs.path if theirs.path.exists() else None


def _opened(at: Path | str) -> Engine:
    if isinstance(at, Path) and not at.is_file():
        raise StoreError(f"there is no store at {at}")
    return Engine(at, clock=system_clock, busy_timeout=_BUSY_TIMEOUT, on_create=lambda: _refuse_new(at))


def _refuse_new(at: Path | str) -> None:
    raise StoreError(f"there is no store at {without_password(str(at))}")


def _identity(at: Path | str) -> str:
    """Of a place, whoever asks there."""
    if isinstance(at, Path):
        return str(at.resolve())
    parts = urlsplit(at)
    return f"{server_name(at)}{parts.path}?{parts.query}"


def _number(*parts: object) -> int:
    """A number from 1 on that stands for something."""
    digest = hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).digest()
    return (int.from_bytes(digest) >> 2) + 1
