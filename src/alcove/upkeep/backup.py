"""Backs up a store in use into one file, and restores it without the users who were wiped since.

A backup contains neither the key that decrypts it nor the ledger of wipes. Both stay with the operator, away
from the backups, and `restore` needs both.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Self, TypeVar
from uuid import UUID

import msgspec

from alcove.core.addresses import without_password
from alcove.core.clock import system_clock
from alcove.core.errors import StoreError, Unavailable, Unreadable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.engine.engine import Engine
from alcove.engine.rows import AuditRow, Person, Row
from alcove.engine.sqlite.backup_file import BackupFile
from alcove.store.audit import AuditLog
from alcove.store.erasure_ledger import ErasureLedger, LedgerEntry, sync_folder
from alcove.store.personal_data import authored_rooms
from alcove.store.row_decoder import RowDecoder, place, uuid
from alcove.vault import KeyProvider, Vault, default_keys, user_subject

T = TypeVar("T")
Step = Literal["copying", "verifying", "forgetting", "scrubbing", "done"]

_CHUNK_BYTES = 4 * 1024 * 1024
_BUSY_TIMEOUT = 10.0
_LOST_NUMBERS = 2**32
"""Sequence numbers skipped by a restore: a cursor from the lost time then precedes all new writes, so that
its client misses nothing."""


class Progress(NamedTuple, Generic[T]):
    """The progress of a step; the last one has the result."""

    step: Step
    done: int
    total: int
    result: T | None = None


class BackedUp(NamedTuple):
    """A backup that was verified."""

    path: Path
    bytes: int
    memories: int
    versions: int
    last_sequence: int
    unreadable: int
    """Values that cannot be decrypted in the store either; `alcove doctor` lists them."""


class Restored(NamedTuple):
    """A store that was restored, and how much was wiped from it again."""

    path: Path
    bytes: int
    memories: int
    versions: int
    last_sequence: int
    unreadable: int
    users_forgotten: int
    memories_forgotten: int


class BackupWriter:
    """Backs up a store that is open."""

    def __init__(self, engine: Engine, vault: Vault, audit: AuditLog) -> None:
        self._engine, self._vault, self._audit = engine, vault, audit

    def write(self, principal: Principal, to: Path) -> Iterator[Progress[BackedUp]]:
        """Copies the store into one new file, step by step; audited, but a full disk does not prevent it."""
        principal.require("admin")
        return self._write(principal, to)

    def _write(self, principal: Principal, to: Path) -> Iterator[Progress[BackedUp]]:
        """Copies one moment of the store, reads all of it back, and then gives the file its name.

        If anything fails, a full disk included, no part of the file is left and the store is unchanged.
        """
        engine = self._engine
        with Partial(to) as partial:
            for copied in engine.copy(partial.path):
                yield Progress("copying", copied.copied_pages, copied.page_count)
            partial.sync()
            with BackupFile(partial.path) as copy:
                if (summary := copy.figures()) != copied.figures:
                    raise StoreError(f"{to} differs from the store: {summary}, not {copied.figures}")
                copy.check_integrity()
                unreadable = yield from _verify(
                    copy, self._vault.for_data_keys(copy.data_keys), summary.versions
                )
            for row in unreadable:  # the store may have such rows, but the copy must have no others
                if any(each.seq == row.seq and each != row for each in engine.history(row.ns, row.key)):
                    raise StoreError(f"{to} differs from the store in version {row.seq}")
            partial.complete()
        size = to.stat().st_size
        result = BackedUp(to, size, summary.memories, summary.versions, summary.last_seq, len(unreadable))
        yield Progress("done", 1, 1, result)
        with suppress(Unavailable):
            self._audit.record(principal, "store.backup", file=to.name)


def restore(
    backup: Path,
    at: Path,
    *,
    ledger: Path | None = None,
    without_ledger: bool = False,
    keys: KeyProvider | None = None,
) -> Iterator[Progress[Restored]]:
    """Restores a backup to a path where there is no store, and repeats the wipes since the backup.

    The wipes are those of the ledger next to `at`, and of `ledger`. If the backup mentions wipes and there is
    no ledger, `without_ledger` is needed to go on. The file gets its name once everything is done.
    """
    provider = keys or default_keys(at)
    local = ErasureLedger.of_store(at)
    with Partial(at) as partial:
        notes = _read_ledgers(at, ledger)
        with BackupFile(backup) as copy:
            Vault(copy.data_keys, provider)  # refuses a missing or wrong key
            versions = copy.figures().versions
            if notes is None and copy.figures().wipes and not without_ledger:
                raise StoreError(
                    f"users were wiped from the store of {backup}, but there is no ledger {local.path}: "
                    "give it, or users who were wiped since the backup would come back; to accept that, "
                    "restore without a ledger"
                )
            copy.check_integrity()
        total = backup.stat().st_size
        with backup.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                partial.write(chunk)
                yield Progress("copying", file.tell(), total)
        partial.sync()
        with closing(_open_engine(partial.path)) as engine:
            vault = Vault(engine.data_keys, provider)
            unreadable = yield from _verify(engine, vault, versions)
            users, memories = yield from _repeat_wipes(engine, vault, notes or [], partial.path)
        with BackupFile(partial.path) as copy:  # its write-ahead log is empty and was removed
            summary = copy.figures()
        local.include(notes or [])
        partial.complete()
    figures = (summary.memories, summary.versions, summary.last_seq, len(unreadable))
    yield Progress("done", 1, 1, Restored(at, at.stat().st_size, *figures, users, memories))


class Forgotten(NamedTuple):
    """How much was wiped again from a restored database."""

    users_forgotten: int
    memories_forgotten: int


def forget_again(
    address: str, beside: Path, *, ledger: Path | None = None, keys: KeyProvider | None = None
) -> Iterator[Progress[Forgotten]]:
    """Repeats the wipes in a database that its own tools restored; before any node serves it.

    `beside`: the path next to which the ledger and the key are. `ledger`: another ledger.
    """
    notes, local = _read_ledgers(beside, ledger), ErasureLedger.of_store(beside)
    if notes is None:
        raise StoreError(f"there is no ledger {local.path}: give the one of the lost store")
    with closing(_open_engine(address)) as engine:
        vault = Vault(engine.data_keys, keys or default_keys(beside))
        counts = yield from _repeat_wipes(engine, vault, notes, without_password(address))
    local.include(notes)
    yield Progress("done", 1, 1, Forgotten(*counts))


def _repeat_wipes(
    engine: Engine, vault: Vault, notes: Sequence[LedgerEntry], store: object
) -> Generator[Progress[T], None, tuple[int, int]]:
    """Repeats the wipes in the ledger, audits that, and scrubs; returns the affected users and memories."""
    yield Progress("forgetting", 0, len(notes))
    users, memories = _apply_ledger(engine, vault, notes)
    # The last entries of the audit log are older than the backup.
    details = msgspec.json.encode({"users_forgotten": users, "memories_forgotten": memories}).decode()
    engine.admin.add_audit([AuditRow(0, system_clock(), None, "store.restore", None, details)])
    yield Progress("scrubbing", 0, 1)
    engine.erasure.skip_numbers(max((note.position or 0 for note in notes), default=0), _LOST_NUMBERS)
    if not engine.erasure.scrub():
        raise Unavailable(f"{store} could not be scrubbed: another process has it open")
    return users, memories


def _verify(
    contents: BackupFile | Engine, vault: Vault, total: int
) -> Generator[Progress[T], None, list[Row]]:
    """Unwraps every data key and decrypts every value; returns the rows that cannot be decrypted.

    A key that cannot be unwrapped raises.
    """
    for key in contents.data_keys.find_all():
        vault.key(key.subject)
    decoder, unreadable = RowDecoder(vault), []
    for number, row in enumerate(contents.every_version()):
        if number % 1000 == 0:
            yield Progress("verifying", number, total)
        if row.sealed is not None:
            try:
                decoder.value(row)
            except Unreadable:
                unreadable.append(row)
    return unreadable


def _read_ledgers(store: Path, other: Path | None) -> list[LedgerEntry] | None:
    """The entries of the ledger next to the store and of another one, oldest first; None without ledgers."""
    if other is not None and not other.exists():
        raise StoreError(f"there is no ledger {other}")
    ledgers = [ErasureLedger.of_store(store), *([ErasureLedger(other)] if other else [])]
    ledgers = [each for each in ledgers if each.path.exists()]
    notes = {note: None for each in ledgers for note in each.read()}
    return sorted(notes, key=lambda note: note.moment) if ledgers else None


def _apply_ledger(engine: Engine, vault: Vault, notes: Sequence[LedgerEntry]) -> tuple[int, int]:
    """Wipes the users and memories in the ledger, as of the time of each entry; returns how many had data.

    A pseudonym is resolved by computing those of all users in the store.
    """
    users = {vault.pseudonym(user): user for user in (engine.erasure.users() if notes else ())}
    pseudonyms, rooms = {*users, *engine.erasure.pseudonyms()}, dict[str, bytes]()
    if any(note.rooms for note in notes):
        rooms = {vault.pseudonym(ns.hex()): ns for ns in engine.erasure.unowned_namespaces()}
    wiped_users = set[str]()
    for note in notes:
        if note.api_key is not None:
            engine.admin.remove_api_key(note.api_key)
        if note.user in pseudonyms:
            user = users.get(note.user, "")
            scopes = [(rooms[each], rooms[each] + b"\0") for each in note.rooms if each in rooms]
            # The entry lists the rooms that had data at the wipe; an older backup may have others.
            scopes += [room.subtree() for room in authored_rooms(engine, user)]
            is_default = user == DEFAULT_PRINCIPAL.user_id
            person = Person(user, user_subject(user), note.user, scopes, authorless=is_default)
            result = engine.erasure.wipe(
                person,
                shared=note.shared or "anonymise",
                note=lambda _: None,
                until=_position(engine, note),
            )
            vault.forget(user_subject(user))
            if any(result.removed.values()) or result.key_destroyed or result.shared:
                wiped_users.add(note.user)
    erase = partial(engine.erasure.erase_key, attributes="{}", note=lambda _: None)
    erased = [erase(ns, key, until=last) > 0 for ns, key, last in _erased_keys(engine, vault, notes)]
    return len(wiped_users), sum(erased)


def _erased_keys(
    engine: Engine, vault: Vault, notes: Sequence[LedgerEntry]
) -> list[tuple[bytes, bytes, int]]:
    """The keys that were erased singly: entries have the id of a version or the pseudonym of the place."""
    positions: dict[str | None, int] = {}
    for note in notes:
        for name in (str(UUID(note.memory)), note.place) if note.memory else ():
            positions[name] = max(positions.get(name, 0), _position(engine, note))
    keys: dict[tuple[bytes, bytes], int] = {}
    for row in engine.every_version() if positions else ():
        names = uuid(row.id), vault.pseudonym(place(row))
        if until := max(positions.get(name, 0) for name in names):
            keys[row.ns, row.key] = max(until, keys.get((row.ns, row.key), 0))
    return [(ns, key, until) for (ns, key), until in keys.items()]


def _position(engine: Engine, note: LedgerEntry) -> int:
    """The position of the log at an entry; found by its time if an older version wrote the entry."""
    return engine.erasure.position_at(note.moment) if note.position is None else note.position


class Partial:
    """A file next to its target, in a `with` statement; unless `complete` is called, nothing is left of it.

    It always has the same name and is locked, so that the next attempt removes the file of a killed process.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".partial")

    def __enter__(self) -> Self:
        if not self.target.parent.is_dir():
            raise StoreError(f"{self.target} cannot be written: there is no folder {self.target.parent}")
        self._refuse_existing()
        with self._translate_errors():
            self._file = self._create()
        return self

    def write(self, chunk: bytes) -> None:
        """Appends bytes."""
        with self._translate_errors():
            while chunk:
                chunk = chunk[self._file.write(chunk) :]

    def sync(self) -> None:
        """Returns once everything that was written is on the disk."""
        with self._translate_errors():
            os.fsync(self._file)

    def complete(self) -> None:
        """Puts the file on the disk and gives it its name, unless another file has it by now."""
        self.sync()
        with self._translate_errors():
            try:
                os.link(self.path, self.target)  # unlike a rename, it never replaces a file
            except OSError:  # the target exists by now, or the file system has no links
                self._refuse_existing()
                self.path.rename(self.target)
            sync_folder(self.target.parent)

    def __exit__(self, *_: object) -> None:
        for path in (self.path, *_companions(self.path)):
            path.unlink(missing_ok=True)
        self._file.close()

    def _refuse_existing(self) -> None:
        for path in (self.target, *_companions(self.target)):
            if os.path.lexists(path):
                raise StoreError(f"{path} is already there; nothing is written over it")

    def _create(self) -> FileIO:
        """Creates the file, empty and locked, after removing that of a killed process."""
        while True:
            with ExitStack() as stack:
                file = stack.enter_context(open(self.path, "ab", buffering=0, opener=_open_private))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Unavailable(f"{self.path} is being written by another process") from None
                status = os.fstat(file.fileno())
                if status.st_nlink and not status.st_size:
                    for path in _companions(self.path):
                        path.unlink(missing_ok=True)
                    stack.pop_all()
                    return file
                # Removed instead of truncated: it may be another name of a file that was completed.
                if status.st_nlink:
                    self.path.unlink()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"{self.target} cannot be written: {error.strerror}") from None


def _companions(path: Path) -> list[Path]:
    """The files that SQLite keeps next to a database, and would take for those of a new one."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _open_engine(address: Path | str) -> Engine:
    return Engine(address, clock=system_clock, busy_timeout=_BUSY_TIMEOUT, on_create=_refuse_new)


def _refuse_new() -> None:
    raise StoreError("this is not a backup: it has no schema")
