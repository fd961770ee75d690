"""What operators do about one person: what is held of them, their copy of it, and its erasure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from alcove.core import cursor, validation
from alcove.core.clock import to_datetime
from alcove.core.cursor import take_page
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.namespace import Namespace
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal, check_user_id
from alcove.core.records import (
    AgentUse,
    ExportedVersion,
    Limit,
    NamespaceSize,
    PersonalData,
    Receipt,
    ReviewPage,
    SharedHandling,
)
from alcove.engine.rows import Person, PersonalDataRow, Row, WipeResult
from alcove.store import row_decoding
from alcove.store.common import Parts, Service
from alcove.store.erasure_ledger import LedgerEntry
from alcove.vault import user_subject

_AT_ONCE = 20
"""Rows read at a time, each of which may have a megabyte."""


class People(Service):
    """A store, asked about a person: by themselves, by an auditor or by an admin."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._rows = parts.engine.admin
        self.older_rooms: Callable[[str], Iterable[Namespace]] = lambda user: ()
        """Where what a user wrote is theirs, although the rooms there belong to nobody."""
        self.rooms_left_alone: Callable[[str], Iterable[Namespace]] = lambda user: ()
        """The rooms that go with a user because nobody else is in them."""
        self.token_use: Callable[[], list[AgentUse]] = list
        """What agents took of an LLM."""
        self.wake: Callable[[], None] = lambda: None
        """Called when something is to be scrubbed in the background."""

    def pseudonym(self, name: str) -> str:
        """What stands for a name in the audit log, in the ledger and, if wished, in access logs."""
        return self._vault.pseudonym(name)

    def keep_private_rooms(self, templates: Collection[str]) -> None:
        """Notes below which prefixes agents show users what they wrote as theirs; see `older_rooms`."""
        if new := {*templates}.difference(self._rows.private_rooms()):
            self._rows.add_private_rooms(sorted(new))

    def held(self, principal: Principal, user: str) -> PersonalData:
        """What is held of a user; they may ask for themselves."""
        self._may_read(principal, user)
        rooms = self._engine.personal_data.rooms(self._person(user))
        own, others = [room for room in rooms if room.own], [room for room in rooms if not room.own]
        written = [moment for room in own for moment in (room.first, room.last)]
        figures = ("memories", "versions", "bytes")
        return PersonalData(
            user=user,
            **{name: sum(getattr(room, name) for room in own) for name in figures},
            shared=sum(room.versions for room in others),
            api_keys=sum(key.user == user for key in self._rows.api_keys()),
            key=self._engine.data_keys.find(subject=user_subject(user)) is not None,
            first_written=to_datetime(min(written)) if written else None,
            last_written=to_datetime(max(written)) if written else None,
            namespaces=[*map(_room, own)],
            shared_rooms=[*map(_room, others)],
        )

    def memories_of(
        self, principal: Principal, user: str, *, limit: Limit = 100, after_cursor: str | None = None
    ) -> ReviewPage:
        """What is live in a user's rooms or was written by them into others', page by page; audited."""
        self._may_read(principal, user)
        limit = validation.check_integer(limit, "limit", 1, 1000)
        position = 0 if after_cursor is None else cursor.decode(after_cursor)
        found = self._engine.personal_data.versions(self._person(user), live=True, after=position)
        page, _ = take_page(self._read(seq for seq, _ in found), limit)
        items = [*self._opener.still_there(page, self._opener.memory)]
        self._audit.record(principal, "user.review", user=user, count=len(items))
        return ReviewPage(items, cursor.encode(page[-1].seq if page else position))

    def export(self, principal: Principal, user: str) -> Iterator[ExportedVersion]:
        """Every version that is held of a user, what they wrote into shared rooms included; audited."""
        self._may_read(principal, user)
        current = dict(self._engine.personal_data.versions(self._person(user), live=False))
        self._audit.record(principal, "user.export", user=user, count=len(current))

        def held(row: Row) -> ExportedVersion:
            version = msgspec.structs.asdict(self._opener.version(row))
            return ExportedVersion(**version, current=current[row.seq])

        return self._opener.still_there(self._read(current), held)

    def remove(self, principal: Principal, user: str, id: str) -> None:
        """Takes one memory away with every version it had; audited, and not undone by a restore."""
        principal.require("admin")
        person = self._person(user)
        found = self._engine.personal_data.versions(person, live=True, id=_id(id))
        row = next(self._read(seq for seq, _ in found), None)
        if row is None or not self.cleaned(principal, row):
            raise NotFound("this user has no such memory")
        self._audit.record(principal, "memory.remove", user=user, memory=id)

    def cleaned(self, principal: Principal, row: Row) -> int:
        """Takes away every version of the key that this one was the newest of; how many that were."""

        def note(moment: int) -> None:
            place, id = self._vault.pseudonym(row_decoding.place(row)), row_decoding.uuid(row.id)
            note = LedgerEntry(wiped_at=to_datetime(moment), memory=id, place=place, position=row.seq)
            self._ledger.record(note)

        # Attributes of no content: what the policy made of this memory's must not stay in its tombstone.
        attributes = self._configuration.current().policy.attributes(
            principal, Namespace.decode(row.ns), row.key.decode(), b"null", None
        )
        removed = self._engine.erasure.erase_key(
            row.ns, row.key, until=row.seq, attributes=attributes.decode(), note=note
        )
        self._erased(Namespace.decode(row.ns).owner)
        self.wake()
        return removed

    def wipe(
        self,
        principal: Principal,
        user: str,
        *,
        shared: SharedHandling = "anonymise",
        wait: bool = True,
        dry_run: bool = False,
    ) -> Receipt:
        """Erases everything that belongs to a user and destroys their key; only they or an admin may.

        What they wrote into shared rooms loses its author, or is kept as it is, or is removed too; the
        receipt lists what stays. With `wait`, it comes when no byte of what was removed is left in the files
        of the store; otherwise that follows. Its `remains` names where else bytes stay for a while. With
        `dry_run` nothing is erased, and it says what would be. Of somebody of whom nothing is held, it raises
        NotFound.
        """
        person = self._person(user)
        if shared not in ("keep", "anonymise", "remove"):
            raise InvalidRequest("shared", "keep, anonymise or remove")
        if principal.user_id != user:
            principal.require("admin")
        person = person._replace(rooms=[room.encode() for room in self.rooms_left_alone(user)])
        note = None if dry_run else partial(self._note, person, shared)
        wiped = self._engine.erasure.wipe(person, shared=shared, note=note)
        if not wiped.is_known:
            expected = "somebody of whom something is held"
            raise NotFound(
                f"user: expected {expected}, not {user!r}", details={"field": "user", "expected": expected}
            )
        receipt, remains = _receipt(user, shared, wiped), self._engine.erasure.residues()
        if dry_run:
            return msgspec.structs.replace(receipt, wiped_at=None, remains=remains)
        self._vault.forget(person.subject)
        self._erased(user)
        actor = None if principal.user_id == user else principal
        self._audit.record(actor, "user.wipe", user=user, removed=receipt.removed, shared=shared)
        is_rebuilt = self.scrub(wiped.generation) if wait else False
        if not is_rebuilt:
            self.wake()
        scrubbed = is_rebuilt and not any(residue.in_data_files for residue in remains)
        return msgspec.structs.replace(receipt, scrubbed=scrubbed, remains=remains)

    def _note(self, person: Person, shared: SharedHandling, wiped: WipeResult) -> None:
        """Puts a wipe down in the ledger, with what its receipt is recognised by."""
        receipt = _receipt(person.user, shared, wiped)
        note = LedgerEntry(
            wiped_at=to_datetime(wiped.moment),
            user=person.pseudonym,
            shared=shared,
            position=wiped.position,
            rooms=tuple(self._vault.pseudonym(ns.hex()) for ns in wiped.rooms),
            receipt=self._digest(msgspec.to_builtins(receipt)),
        )
        self._ledger.record(note)

    def verify_receipt(self, principal: Principal, receipt: Receipt | Mapping[str, object]) -> bool:
        """Whether the ledger has the wipe that a receipt is of, and the receipt is as it was given."""
        principal.require("auditor")
        digest = self._digest(msgspec.to_builtins(receipt))
        return any(note.receipt == digest for note in self._ledger.read())

    def _digest(self, receipt: Mapping[str, object]) -> str:
        """A keyed digest of a receipt, without what depends on the moment: its scrub, and what remains."""
        fields = {name: value for name, value in receipt.items() if name not in ("scrubbed", "remains")}
        return self._vault.pseudonym(msgspec.json.encode(fields, order="sorted").decode())

    def scrub(self, generation: int | None = None) -> bool:
        """Rebuilds the file if something erased may have left bytes in it; audited when it did."""
        erasure = self._engine.erasure

        def note(wipes: int) -> None:
            details: dict[str, Any] = {"wipes": wipes}
            if remains := [residue.where for residue in erasure.residues()]:
                details["remains"] = remains
            self._audit.record(None, "scrub", **details)

        return erasure.scrub(generation, note)

    def _person(self, user: str) -> Person:
        return Person(
            check_user_id(user, "user"),
            user_subject(user),
            self._vault.pseudonym(user),
            [room.subtree() for room in self.older_rooms(user)],
            authorless=user == DEFAULT_PRINCIPAL.user_id,
        )

    def _read(self, seqs: Iterable[int]) -> Iterator[Row]:
        """Some versions, a few at a time."""
        wanted = [*seqs]
        for start in range(0, len(wanted), _AT_ONCE):
            yield from self._engine.versions(wanted[start : start + _AT_ONCE])

    def _may_read(self, principal: Principal, user: str) -> None:
        if principal.user_id != user:
            principal.require("auditor")


def _id(spelled: str) -> bytes:
    """A version's id as it is stored; empty for a text that is no id."""
    try:
        return UUID(spelled).bytes
    except ValueError:
        return b""


def _room(row: PersonalDataRow) -> NamespaceSize:
    return NamespaceSize(
        namespace=Namespace.decode(row.ns), memories=row.memories, versions=row.versions, bytes=row.bytes
    )


def _receipt(user: str, shared: SharedHandling, wiped: WipeResult) -> Receipt:
    return Receipt(
        user=user,
        removed=wiped.removed,
        key_destroyed=wiped.key_destroyed,
        shared={shared: wiped.shared},
        shared_left=[*map(_room, wiped.remaining)],
        wiped_at=to_datetime(wiped.moment),
        scrubbed=False,
    )
