"""Copies a store into another database: the contents of one moment, its key and its ledger.

The store may be in use. Writes after that moment are copied in another round, which replaces only what
differs; if writers never pause, the result counts what the last round missed. The key is copied last, so that
nobody opens a target before all of it was read back.
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
    CopyResult,
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
"""The most rounds, each of which copies what was written since the last; each compares everything."""
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
    """Versions that were written after the copied moment: another run copies them."""
    changed: bool
    """Whether anything changed since that moment."""
    key: Path | None
    """The key file of the copy; None if the key is in the environment."""
    ledger: Path | None
    """Its ledger of wipes; None if there is none yet."""


class _State(NamedTuple):
    """Counters of a store, of which every change of the store changes one."""

    last: int
    counters: tuple[int, ...]
    wipes: int

    @classmethod
    def of(cls, db: Connection) -> _State:
        last, *counters, wipes = db.run("store_state").fetchall()[0]
        return cls(last, tuple(counters), wipes)


def migrate(source: str | Path, target: str | Path) -> Iterator[Progress[Migrated]]:
    """Copies a store, from a file or a PostgreSQL database, to a new one or an earlier copy of it.

    The store is unchanged, whatever goes wrong; another start continues an interrupted copy.
    """
    (address, path), (target_address, target_path) = locate_store(source), locate_store(target)
    name = without_password(str(target))
    with ExitStack() as stack:
        store = stack.enter_context(closing(_open_engine(address)))
        Vault(store.data_keys, default_keys(path))  # refuses a wrong or missing key
        _copy_key(path, target_path, only_check=True)
        _copy_ledger(path, target_path, only_check=True)
        copy = Engine(target_address, clock=system_clock, busy_timeout=_BUSY_TIMEOUT, on_create=lambda: None)
        stack.enter_context(closing(copy))
        if not copy.locks.try_acquire(_LOCK):
            raise Unavailable(f"{name} is being filled by another process")
        identity = _digest(_identify(address))
        replaced, rounds = _refuse_other_store(copy, identity, name), 0
        while True:
            rounds += 1
            with store.database.snapshot() as db:
                state, result = yield from _copy_round(db, copy, name)
            replaced = replaced or result.replaced
            with store.database.read() as db:
                now = _State.of(db)
                missed = int(db.run("versions_since", (state.last,)).get)
            if now == state or rounds == ROUNDS:
                break
        if now.wipes != state.wipes:
            raise Unavailable(
                f"users were wiped while {name} was being made, in each of {ROUNDS} rounds: run it again"
            )
        if replaced and not copy.database.rebuild():
            raise Unavailable(f"{name} could not be scrubbed: another process has it open")
        _mark_copy(copy, identity, _digest(*state))
        key = _copy_key(path, target_path)
        ledger = _copy_ledger(path, target_path)
        vault = Vault(copy.data_keys, default_keys(target_path))
        for each in copy.data_keys.find_all():
            vault.key(each.subject)
    rows = {table: checksum.rows for table, checksum in result.checksums.items()}
    yield Progress(
        "done", 1, 1, Migrated(name, rows["versions"], rows, rounds, missed, now != state, key, ledger)
    )


def _copy_round(
    db: Connection, copy: Engine, name: str
) -> Generator[Progress[Migrated], None, tuple[_State, CopyResult]]:
    """Copies a snapshot, and reads all of the copy back."""
    state, total = _State.of(db), count_rows(db)
    result = yield from map_progress(
        copy_tables(db, copy.database), lambda count: Progress("copying", count, total)
    )
    with copy.database.snapshot() as copy_db:
        checksums = yield from map_progress(
            compute_checksums(copy_db), lambda count: Progress("verifying", count, total)
        )
        if count_rows(copy_db) != total:
            raise StoreError(f"{name} has {count_rows(copy_db):,} rows, not the {total:,} of the store")
    if wrong := differences(result.checksums, checksums):
        raise StoreError(f"{name} differs from the store: {'; '.join(wrong)}")
    return state, result


def _refuse_other_store(copy: Engine, identity: int, name: str) -> bool:
    """Raises unless the target is new, or an unchanged copy of this store; marks it as incomplete.

    Returns whether it was incomplete before: then bytes of rows that it deleted may be left.
    """
    with copy.database.snapshot() as db:
        copied_from, copied_as = db.run("copy_marks").fetchall()[0]
        state = _State.of(db)
    if copied_from is None and (any(state.counters) or state.last or state.wipes):
        raise StoreError(f"{name} holds another store; nothing is written over it")
    if copied_from not in (None, identity):
        raise StoreError(f"{name} is a copy of a store at another place; nothing is written over it")
    if copied_as and copied_as != _digest(*state):
        raise StoreError(f"{name} has been written to since it was copied; nothing is written over it")
    _mark_copy(copy, identity, 0)
    return bool(copied_as == 0)


def _mark_copy(copy: Engine, identity: int, state: int) -> None:
    with copy.database.write() as db:
        db.run("set_copy_mark", (COPIED_FROM, identity))
        db.run("set_copy_mark", (COPIED_AS, state))


def _copy_key(path: Path, target: Path, *, only_check: bool = False) -> Path | None:
    """Copies the key file that wraps the data keys, if there is one."""
    if not target.parent.is_dir():
        raise StoreError(f"there is no folder {target.parent} for the key of the copy: create it")
    key, target_key = default_keys(path), default_keys(target)
    if not isinstance(key, KeyFile) or not isinstance(target_key, KeyFile):
        return None
    target_key.follow(key, only_check=only_check)
    return target_key.path


def _copy_ledger(path: Path, target: Path, *, only_check: bool = False) -> Path | None:
    """Copies the ledger of wipes, which a restore of an older backup next to the copy needs."""
    notes, target_ledger = ErasureLedger.of_store(path).read(), ErasureLedger.of_store(target)
    if not {*target_ledger.read()} <= {*notes}:
        raise StoreError(f"{target_ledger.path} is the ledger of another store; nothing is written over it")
    if not only_check:
        target_ledger.include(notes)
    return target_ledger.path if target_ledger.path.exists() else None


def _open_engine(address: Path | str) -> Engine:
    if isinstance(address, Path) and not address.is_file():
        raise StoreError(f"there is no store at {address}")

    def refuse_new() -> None:
        raise StoreError(f"there is no store at {without_password(str(address))}")

    return Engine(address, clock=system_clock, busy_timeout=_BUSY_TIMEOUT, on_create=refuse_new)


def _identify(address: Path | str) -> str:
    """The identity of a store's address, the same for every user and password."""
    if isinstance(address, Path):
        return str(address.resolve())
    parts = urlsplit(address)
    return f"{server_name(address)}{parts.path}?{parts.query}"


def _digest(*parts: object) -> int:
    """A digest as a positive number."""
    digest = hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).digest()
    return (int.from_bytes(digest) >> 2) + 1
