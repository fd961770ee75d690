"""Shows and exports what a store holds about a user: to themselves, to auditors and to admins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from alcove.core import cursor, room_template, validation
from alcove.core.clock import to_datetime
from alcove.core.cursor import take_page
from alcove.core.namespace import KNOWLEDGE_ROOT, Namespace
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal, check_user_id
from alcove.core.records import ExportedVersion, Limit, NamespaceSize, PersonalData, ReviewPage
from alcove.engine.engine import Engine
from alcove.engine.rows import Person, PersonalDataRow, Row
from alcove.store.audit import AuditLog
from alcove.store.row_decoder import RowDecoder
from alcove.vault import Vault, user_subject

_PAGE = 20
"""Rows that are read at a time; each may have a megabyte."""


class PersonalDataReader:
    """Reads everything that belongs to a user or was written by them."""

    def __init__(self, engine: Engine, vault: Vault, decoder: RowDecoder, audit: AuditLog) -> None:
        self._engine, self._vault, self._decoder, self._audit = engine, vault, decoder, audit

    def held(self, principal: Principal, user: str) -> PersonalData:
        """Summarises what the store holds about a user; users may ask about themselves."""
        person = self._readable_person(principal, user)
        rooms = self._engine.personal_data.rooms(person)
        own, others = [room for room in rooms if room.own], [room for room in rooms if not room.own]
        times = [moment for room in own for moment in (room.first, room.last)]
        figures = ("memories", "versions", "bytes")
        return PersonalData(
            user=user,
            **{name: sum(getattr(room, name) for room in own) for name in figures},
            shared=sum(room.versions for room in others),
            api_keys=sum(key.user == user for key in self._engine.admin.api_keys()),
            key=self._engine.data_keys.find(subject=person.subject) is not None,
            first_written=to_datetime(min(times)) if times else None,
            last_written=to_datetime(max(times)) if times else None,
            namespaces=[*map(to_size, own)],
            shared_rooms=[*map(to_size, others)],
        )

    def memories_of(
        self, principal: Principal, user: str, *, limit: Limit = 100, after_cursor: str | None = None
    ) -> ReviewPage:
        """The memories in a user's rooms, and those that they wrote into rooms of others; audited."""
        person = self._readable_person(principal, user)
        limit = validation.check_integer(limit, "limit", 1, 1000)
        position = 0 if after_cursor is None else cursor.decode(after_cursor)
        versions = self._engine.personal_data.versions(person, live=True, after=position)
        page, _ = take_page(read_versions(self._engine, (seq for seq, _ in versions)), limit)
        items = [*self._decoder.existing(page, self._decoder.memory)]
        self._audit.record(principal, "user.review", user=user, count=len(items))
        return ReviewPage(items, cursor.encode(page[-1].seq if page else position))

    def export(self, principal: Principal, user: str) -> Iterator[ExportedVersion]:
        """Every version held about a user, with those that they wrote into shared rooms; audited."""
        person = self._readable_person(principal, user)
        is_live = dict(self._engine.personal_data.versions(person, live=False))
        self._audit.record(principal, "user.export", user=user, count=len(is_live))

        def exported(row: Row) -> ExportedVersion:
            version = msgspec.structs.asdict(self._decoder.version(row))
            return ExportedVersion(**version, current=is_live[row.seq])

        return self._decoder.existing(read_versions(self._engine, is_live), exported)

    def _readable_person(self, principal: Principal, user: str) -> Person:
        if principal.user_id != user:
            principal.require("auditor")
        return find_person(self._engine, self._vault, user)


def find_person(engine: Engine, vault: Vault, user: str) -> Person:
    """Describes a user for queries about their data and for an erasure."""
    check_user_id(user, "user")
    return Person(
        user,
        user_subject(user),
        vault.pseudonym(user),
        [room.subtree() for room in authored_rooms(engine, user)],
        authorless=user == DEFAULT_PRINCIPAL.user_id,
    )


def authored_rooms(engine: Engine, user: str) -> list[Namespace]:
    """The rooms without an owner in which what a user wrote belongs to them.

    These are the documents of knowledge sources, and the rooms that agents of older versions had for a user.
    """
    templates = engine.admin.private_rooms()
    return [Namespace((KNOWLEDGE_ROOT,)), *(room_template.fill_for_user(each, user) for each in templates)]


def read_versions(engine: Engine, seqs: Iterable[int]) -> Iterator[Row]:
    """Reads versions, a few at a time."""
    numbers = [*seqs]
    for start in range(0, len(numbers), _PAGE):
        yield from engine.versions(numbers[start : start + _PAGE])


def to_size(row: PersonalDataRow) -> NamespaceSize:
    """How much one namespace holds."""
    return NamespaceSize(
        namespace=Namespace.decode(row.ns), memories=row.memories, versions=row.versions, bytes=row.bytes
    )
