"""Backup of a store in use into one file, and restore, which never brings back who was forgotten.

What is not in a backup: the key that opens it, and the ledger of wipes. Both stay with the operator,
away from the backups, and `restore` asks for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from alcove.agents.rooms import older_room
from alcove.core.clock import system_clock
from alcove.core.errors import StoreError, Unavailable, Unreadable
from alcove.core.principal import DEFAULT_PRINCIPAL
from alcove.engine.base import Engine
from alcove.engine.copying import Copy
from alcove.engine.rows import AuditRow, DataKey, Person, Row
from alcove.engine.sqlite import SqliteEngine
from alcove.store.decoding import Opener, place
from alcove.upkeep.atomic_file import Partial
from alcove.upkeep.wipe_ledger import Ledger, Note
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


def backup(engine: Engine, vault: Vault, to: Path) -> Iterator[Progress[BackedUp]]:
    """Copies one moment of a store into a new file, and gives it its name once all of it was read back.

    Whatever goes wrong, a full disk included, no part of the file is left and the store is as it was.
    """
    with Partial(to) as partial:
        for copied in engine.copy(partial.path):
            yield Progress("copying", copied.done, copied.total)
        partial.sync()
        with Copy(partial.path) as copy:
            if (summary := copy.summary()) != copied.summary:
                raise StoreError(f"{to} was not written as it should be: {summary}, not {copied.summary}")
            copy.refuse_damaged()
            unreadable: list[Row] = []
            yield from _opening(copy, vault.over(copy), summary.versions, unreadable)
        for row in unreadable:
            _refuse_altered(engine, row, to)
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
    with Partial(at) as partial:
        notes = _notes(at, ledger)
        with Copy(backup) as copy:
            Vault(copy, provider)  # a missing or wrong key is refused here
            held = copy.summary()
            if notes is None and held.wipes and not without_ledger:
                raise StoreError(
                    f"somebody was wiped from the store of {backup}, but there is no ledger "
                    f"{Ledger.beside(at).path}: give it, or whoever was wiped since the backup would come "
                    "back; to accept that, say that you restore without a ledger"
                )
            copy.refuse_damaged()
        yield from _copying(backup, partial)
        engine = SqliteEngine(
            partial.path, clock=system_clock, busy_timeout=_BUSY_TIMEOUT, on_create=_refuse_new
        )
        try:
            vault, unreadable = Vault(engine, provider), list[Row]()
            yield from _opening(engine, vault, held.versions, unreadable)
            yield Progress("forgetting", 0, len(notes or ()))
            users, memories = _forget_again(engine, vault, notes or ())
            _note_restore(engine, users, memories)
            yield Progress("scrubbing", 0, 1)
            engine.erasure.skip(max((note.position or 0 for note in notes or ()), default=0), _LOST_FUTURE)
            if not engine.erasure.scrub():
                raise Unavailable(f"{partial.path} could not be scrubbed: another process has it open")
        finally:
            engine.close()
        with Copy(partial.path) as copy:  # the log beside it is empty and gone
            summary = copy.summary()
        Ledger.beside(at).include(notes or ())
        partial.complete()
    figures = (summary.memories, summary.versions, summary.last_seq, len(unreadable))
    yield Progress("done", 1, 1, Restored(at, at.stat().st_size, *figures, users, memories))


class _Contents(Protocol):
    def data_keys(self) -> list[DataKey]: ...
    def every_version(self) -> Iterator[Row]: ...


def _opening(contents: _Contents, vault: Vault, total: int, unreadable: list[Row]) -> Iterator[Progress[T]]:
    """Unwraps every data key and opens every value; a key that does not open is an error."""
    for key in contents.data_keys():
        vault.key(key.subject)
    opener = Opener(vault)
    for number, row in enumerate(contents.every_version()):
        if number % 1000 == 0:
            yield Progress("verifying", number, total)
        if row.sealed is not None:
            try:
                opener.value(row)
            except Unreadable:
                unreadable.append(row)


def _refuse_altered(engine: Engine, row: Row, to: Path) -> None:
    """A value that does not open may be copied as it is, but must not have become so in the copy."""
    for original in engine.history(row.ns, row.key):
        if original.seq == row.seq and original != row:
            raise StoreError(f"{to} was not written as it should be: version {row.seq} differs")


def _copying(source: Path, partial: Partial) -> Iterator[Progress[T]]:
    total, done = source.stat().st_size, 0
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK):
            partial.write(chunk)
            done += len(chunk)
            yield Progress("copying", done, total)
    partial.sync()


def _notes(at: Path, ledger: Path | None) -> list[Note] | None:
    """What the ledgers say, oldest first; None where there is none."""
    beside = Ledger.beside(at)
    if ledger is not None and not ledger.exists():
        raise StoreError(f"the ledger {ledger} is not there")
    ledgers = [each for each in (beside, Ledger(ledger or beside.path)) if each.path.exists()]
    notes = {note: None for each in ledgers for note in each.read()}
    return sorted(notes, key=lambda note: note.moment) if ledgers else None


def _forget_again(engine: Engine, vault: Vault, notes: Sequence[Note]) -> tuple[int, int]:
    """Wipes whom and what the ledger names, up to the moment it names; how many that touched.

    Only the store can tell who a pseudonym is, by making that of everybody it knows.
    """
    users = {vault.pseudonym(user): user for user in (engine.erasure.users() if notes else ())}
    known, rooms = {*users, *engine.erasure.pseudonyms()}, dict[str, bytes]()
    if any(note.rooms for note in notes):
        rooms = {vault.pseudonym(ns.hex()): ns for ns in engine.erasure.common_rooms()}
    forgotten = set[str]()
    for note in notes:
        if note.api_key is not None:
            engine.admin.remove_api_key(note.api_key)
        if note.user in known:
            user = users.get(note.user, "")
            older = [(rooms[each], rooms[each] + b"\0") for each in note.rooms if each in rooms]
            # The note names the rooms that still held something; a backup may be older than that.
            older += [older_room(each, user).subtree() for each in engine.admin.private_rooms()]
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
        cleaned += engine.erasure.clean(ns, key, until=last, attributes="{}", note=lambda _: None) > 0
    return len(forgotten), cleaned


def _places(engine: Engine, vault: Vault, notes: Sequence[Note]) -> list[tuple[bytes, bytes, int]]:
    """The keys that single notes speak of, by the id of a version or by the pseudonym of the place."""
    single = sorted(((note, _until(engine, note)) for note in notes if note.memory), key=lambda each: each[1])
    by_id = {bytes.fromhex(note.memory.replace("-", "")): until for note, until in single if note.memory}
    by_place = {note.place: until for note, until in single if note.place}
    found: dict[tuple[bytes, bytes], int] = {}
    for row in engine.every_version() if by_id else ():
        name = vault.pseudonym(place(row)) if by_place else ""
        until = max(by_id.get(row.id, 0), by_place.get(name, 0))
        if until:
            found[row.ns, row.key] = max(until, found.get((row.ns, row.key), 0))
    return [(ns, key, until) for (ns, key), until in found.items()]


def _until(engine: Engine, note: Note) -> int:
    """How far the log was at a note; by its time, where an older version wrote it."""
    return engine.erasure.position(note.moment) if note.position is None else note.position


def _note_restore(engine: Engine, users: int, memories: int) -> None:
    """In the audit log of the restored store, whose last entries are of the time before the backup."""
    details = msgspec.json.encode({"users_forgotten": users, "memories_forgotten": memories}).decode()
    engine.admin.add_audit([AuditRow(0, system_clock(), None, "store.restore", None, details)])


def _refuse_new() -> None:
    raise StoreError("this is not a backup: it has no schema")
