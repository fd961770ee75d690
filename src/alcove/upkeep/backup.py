"""Backup of a store in use into one file, and restore, which never brings back who was forgotten.

What is not in a backup: the key that opens it, and the ledger of wipes. Both stay with the operator,
away from the backups, and `restore` asks for both.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
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

_CHUNK = 4 * 1024 * 1024
_BUSY_TIMEOUT = 10.0
_LOST_FUTURE = 2**32
"""Sequence numbers left out after a restore: cursors from the time that was lost stay behind what is
written from now on, so that who holds one misses nothing."""


class Progress(NamedTuple, Generic[T]):
    """How far a step is; the last one has the result."""

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
    """Values that do not open in the store either; `alcove doctor` names them."""


class Restored(NamedTuple):
    """A store that was restored, and what it was made to forget again."""

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
        yield from backup(self._engine, self._vault, to)
        with suppress(Unavailable):
            self._audit.record(principal, "store.backup", file=to.name)


def backup(engine: Engine, vault: Vault, to: Path) -> Iterator[Progress[BackedUp]]:
    """Copies one moment of a store into a new file, and gives it its name once all of it was read back.

    Whatever goes wrong, a full disk included, no part of the file is left and the store is as it was.
    """
    with Partial(to) as partial:
        for copied in engine.copy(partial.path):
            yield Progress("copying", copied.copied_pages, copied.page_count)
        partial.sync()
        with BackupFile(partial.path) as copy:
            if (summary := copy.figures()) != copied.figures:
                raise StoreError(f"{to} was not written as it should be: {summary}, not {copied.figures}")
            copy.check_integrity()
            unreadable = yield from _opening(copy, vault.for_data_keys(copy.data_keys), summary.versions)
        for row in unreadable:  # it may be copied as it is, but must not have become so in the copy
            if any(each.seq == row.seq and each != row for each in engine.history(row.ns, row.key)):
                raise StoreError(f"{to} was not written as it should be: version {row.seq} differs")
        partial.complete()
    size = to.stat().st_size
    result = BackedUp(to, size, summary.memories, summary.versions, summary.last_seq, len(unreadable))
    yield Progress("done", 1, 1, result)


def restore(
    backup: Path,
    at: Path,
    *,
    ledger: Path | None = None,
    without_ledger: bool = False,
    keys: KeyProvider | None = None,
) -> Iterator[Progress[Restored]]:
    """Makes a store of a backup where there is none, and makes it forget again who was wiped since.

    The wipes are those of the ledger beside `at` and of the one that is given. Where a backup speaks
    of wipes and no ledger is found, `without_ledger` is needed to go on. Nothing stands at `at` before
    all of it is done.
    """
    provider = keys or default_keys(at)
    local = ErasureLedger.of_store(at)
    with Partial(at) as partial:
        found = _notes(at, ledger)
        with BackupFile(backup) as copy:
            Vault(copy.data_keys, provider)  # a missing or wrong key is refused here
            held = copy.figures()
            if found is None and held.wipes and not without_ledger:
                raise StoreError(
                    f"somebody was wiped from the store of {backup}, but there is no ledger "
                    f"{local.path}: give it, or whoever was wiped since the backup would come "
                    "back; to accept that, say that you restore without a ledger"
                )
            copy.check_integrity()
        notes = found or []
        yield from _copying(backup, partial)
        with closing(_opened(partial.path)) as engine:
            vault = Vault(engine.data_keys, provider)
            unreadable = yield from _opening(engine, vault, held.versions)
            users, memories = yield from _forgetting(engine, vault, notes, partial.path)
        with BackupFile(partial.path) as copy:  # the log beside it is empty and gone
            summary = copy.figures()
        local.include(notes)
        partial.complete()
    figures = (summary.memories, summary.versions, summary.last_seq, len(unreadable))
    yield Progress("done", 1, 1, Restored(at, at.stat().st_size, *figures, users, memories))


class Forgotten(NamedTuple):
    """What a restored database was made to forget again."""

    users_forgotten: int
    memories_forgotten: int


def forget_again(
    address: str, beside: Path, *, ledger: Path | None = None, keys: KeyProvider | None = None
) -> Iterator[Progress[Forgotten]]:
    """Makes a database that its own tools restored forget who was wiped since; before any node serves it.

    The wipes are those of the ledger beside the path `beside`, as the key is, and of the one that is given.
    """
    notes, local = _notes(beside, ledger), ErasureLedger.of_store(beside)
    if notes is None:
        raise StoreError(f"there is no ledger {local.path}: give the one of the lost store")
    with closing(_opened(address)) as engine:
        vault = Vault(engine.data_keys, keys or default_keys(beside))
        done = yield from _forgetting(engine, vault, notes, without_password(address))
    local.include(notes)
    yield Progress("done", 1, 1, Forgotten(*done))


def _forgetting(
    engine: Engine, vault: Vault, notes: Sequence[LedgerEntry], place: object
) -> Generator[Progress[T], None, tuple[int, int]]:
    """Forgets what the ledger says, notes it, and scrubs; how many users and single memories that touched."""
    yield Progress("forgetting", 0, len(notes))
    users, memories = _forget_again(engine, vault, notes)
    # The audit log's last entries are of the time before the backup.
    details = msgspec.json.encode({"users_forgotten": users, "memories_forgotten": memories}).decode()
    engine.admin.add_audit([AuditRow(0, system_clock(), None, "store.restore", None, details)])
    yield Progress("scrubbing", 0, 1)
    engine.erasure.skip_numbers(max((note.position or 0 for note in notes), default=0), _LOST_FUTURE)
    if not engine.erasure.scrub():
        raise Unavailable(f"{place} could not be scrubbed: another process has it open")
    return users, memories


def _opening(
    contents: BackupFile | Engine, vault: Vault, total: int
) -> Generator[Progress[T], None, list[Row]]:
    """Unwraps every data key, and opens every value: the rows that do not open.

    A key that does not open is an error.
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


def _copying(source: Path, partial: Partial) -> Iterator[Progress[T]]:
    total = source.stat().st_size
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK):
            partial.write(chunk)
            yield Progress("copying", file.tell(), total)
    partial.sync()


def _notes(at: Path, ledger: Path | None) -> list[LedgerEntry] | None:
    """What the ledgers say, oldest first; None where there is none."""
    if ledger is not None and not ledger.exists():
        raise StoreError(f"the ledger {ledger} is not there")
    ledgers = [
        each
        for each in (ErasureLedger.of_store(at), ledger and ErasureLedger(ledger))
        if each and each.path.exists()
    ]
    notes = {note: None for each in ledgers for note in each.read()}
    return sorted(notes, key=lambda note: note.moment) if ledgers else None


def _forget_again(engine: Engine, vault: Vault, notes: Sequence[LedgerEntry]) -> tuple[int, int]:
    """Wipes whom and what the ledger names, up to the moment it names; how many that touched.

    Only the store can tell who a pseudonym is, by making that of everybody it knows.
    """
    users = {vault.pseudonym(user): user for user in (engine.erasure.users() if notes else ())}
    known, rooms = {*users, *engine.erasure.pseudonyms()}, dict[str, bytes]()
    if any(note.rooms for note in notes):
        rooms = {vault.pseudonym(ns.hex()): ns for ns in engine.erasure.unowned_namespaces()}
    forgotten = set[str]()
    for note in notes:
        if note.api_key is not None:
            engine.admin.remove_api_key(note.api_key)
        if note.user in known:
            user = users.get(note.user, "")
            older = [(rooms[each], rooms[each] + b"\0") for each in note.rooms if each in rooms]
            # The note names the rooms that still held something; a backup may be older than that.
            older += [room.subtree() for room in authored_rooms(engine, user)]
            nobody = user == DEFAULT_PRINCIPAL.user_id
            wiped = engine.erasure.wipe(
                Person(user, user_subject(user), note.user, older, authorless=nobody),
                shared=note.shared or "anonymise",
                note=lambda _: None,
                until=_until(engine, note),
            )
            vault.forget(user_subject(user))
            if any(wiped.removed.values()) or wiped.key_destroyed or wiped.shared:
                forgotten.add(note.user)
    cleaned = 0
    for ns, key, last in _places(engine, vault, notes):
        cleaned += engine.erasure.erase_key(ns, key, until=last, attributes="{}", note=lambda _: None) > 0
    return len(forgotten), cleaned


def _places(engine: Engine, vault: Vault, notes: Sequence[LedgerEntry]) -> list[tuple[bytes, bytes, int]]:
    """The keys that single notes speak of, by the id of a version or by the pseudonym of the place."""
    named: dict[str | None, int] = {}
    for note in notes:
        for name in (str(UUID(note.memory)), note.place) if note.memory else ():
            named[name] = max(named.get(name, 0), _until(engine, note))
    found: dict[tuple[bytes, bytes], int] = {}
    for row in engine.every_version() if named else ():
        if until := max(named.get(uuid(row.id), 0), named.get(vault.pseudonym(place(row)), 0)):
            found[row.ns, row.key] = max(until, found.get((row.ns, row.key), 0))
    return [(ns, key, until) for (ns, key), until in found.items()]


def _until(engine: Engine, note: LedgerEntry) -> int:
    """How far the log was at a note; by its time, where an older version wrote it."""
    return engine.erasure.position_at(note.moment) if note.position is None else note.position


class Partial:
    """A file beside its target for the length of a `with`; unless completed, nothing is left of it.

    Its name is always the same and it is locked, so that what a killed process left is known for what
    it is: the next attempt removes it.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".partial")

    def __enter__(self) -> Self:
        if not self.target.parent.is_dir():
            raise StoreError(f"{self.target} cannot be written: the folder {self.target.parent} is not there")
        self._refuse_what_is_there()
        with self._explained():
            self._file = self._claimed()
        return self

    def write(self, chunk: bytes) -> None:
        """Adds to the end."""
        with self._explained():
            while chunk:
                chunk = chunk[self._file.write(chunk) :]

    def sync(self) -> None:
        """What was written is on the disk when this returns."""
        with self._explained():
            os.fsync(self._file)

    def complete(self) -> None:
        """Puts the file on the disk and gives it its name, unless something else has it meanwhile."""
        self.sync()
        with self._explained():
            try:
                os.link(self.path, self.target)  # unlike a rename, it never replaces a file
            except OSError:  # it is there by now, or the file system has no links
                self._refuse_what_is_there()
                self.path.rename(self.target)
            sync_folder(self.target.parent)

    def __exit__(self, *_: object) -> None:
        for path in (self.path, *_companions(self.path)):
            path.unlink(missing_ok=True)
        self._file.close()

    def _refuse_what_is_there(self) -> None:
        for path in (self.target, *_companions(self.target)):
            if os.path.lexists(path):
                raise StoreError(f"{path} is already there; nothing is written over it")

    def _claimed(self) -> FileIO:
        """A new, empty, locked file of that name, once what a killed process left of it is gone."""
        while True:
            with ExitStack() as stack:
                file = stack.enter_context(open(self.path, "ab", buffering=0, opener=_private))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Unavailable(f"{self.path} is being written by another process") from None
                found = os.fstat(file.fileno())
                if found.st_nlink and not found.st_size:
                    for path in _companions(self.path):
                        path.unlink(missing_ok=True)
                    stack.pop_all()
                    return file
                # Not emptied but removed: it may be another name of a file that was completed.
                if found.st_nlink:
                    self.path.unlink()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"{self.target} cannot be written: {error.strerror}") from None


def _companions(path: Path) -> list[Path]:
    """What SQLite keeps beside a file; found beside none, it would be taken for part of a new one."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _opened(at: Path | str) -> Engine:
    return Engine(at, clock=system_clock, busy_timeout=_BUSY_TIMEOUT, on_create=_refuse_new)


def _refuse_new() -> None:
    raise StoreError("this is not a backup: it has no schema")
