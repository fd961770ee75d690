"""Erases keys, namespaces and whole users, and makes the receipt of a wipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from alcove.core import cancellation, validation
from alcove.core.clock import to_datetime
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import NamespaceLike, Receipt, Residue, SharedHandling
from alcove.engine.engine import Engine
from alcove.engine.rows import Person, Row, WipeResult
from alcove.store.access import Access
from alcove.store.audit import AuditLog
from alcove.store.erasure_ledger import ErasureLedger, LedgerEntry
from alcove.store.field_value_cache import FieldValueCache
from alcove.store.personal_data import find_person, read_versions, to_size
from alcove.store.row_decoder import place, uuid
from alcove.store.session_cache import SessionCache
from alcove.vault import Vault


class Eraser:
    """Erases one key or one namespace, where the policy allows to delete, and scrubs the store's files."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        vault: Vault,
        ledger: ErasureLedger,
        audit: AuditLog,
        field_values: FieldValueCache,
        session_cache: SessionCache | None,
        scrub_soon: Callable[[], None],
    ) -> None:
        """`scrub_soon`: has a background thread call `scrub`."""
        self._engine, self._access, self._vault = engine, access, vault
        self._ledger, self._audit = ledger, audit
        self._field_values, self._session_cache = field_values, session_cache
        self.scrub_soon = scrub_soon

    def clear(self, principal: Principal, namespace: NamespaceLike) -> int:
        """Empties one namespace, history and tombstones included; returns the count of versions."""
        location = validation.parse_location(namespace, "*", self._access.current().settings)
        self._access.authorise(principal, "delete", location.namespace, "*")
        removed = self._engine.erasure.clear_namespace(location.ns)
        self.drop_caches(location.namespace.owner)
        return removed

    def erase(self, principal: Principal, namespace: NamespaceLike, key: str) -> bool:
        """Erases every version of a key, in restored backups too; returns whether there was a memory."""
        _, ns, encoded = location = validation.parse_location(namespace, key, self._access.current().settings)
        self._access.authorise(principal, "delete", location.namespace, key)
        count = 0
        while row := self._engine.get(ns, encoded, now=self._engine.clock()):  # others may write again
            count += self.erase_versions(principal, row)
        return count > 0

    def erase_versions(self, principal: Principal, newest: Row) -> int:
        """Erases the versions of a key up to `newest`; returns how many there were."""

        def note(moment: int) -> None:
            self._ledger.record(
                LedgerEntry(
                    wiped_at=to_datetime(moment),
                    memory=uuid(newest.id),
                    place=self._vault.pseudonym(place(newest)),
                    position=newest.seq,
                )
            )

        # The tombstone keeps attributes, so these must not come from the content of this memory.
        namespace = Namespace.decode(newest.ns)
        attributes = self._access.current().policy.attributes(
            principal, namespace, newest.key.decode(), b"null", None
        )
        removed = self._engine.erasure.erase_key(
            newest.ns, newest.key, until=newest.seq, attributes=attributes.decode(), note=note
        )
        self.drop_caches(namespace.owner)
        self.scrub_soon()
        return removed

    def drop_caches(self, owner: str | None) -> None:
        """Empties the caches that may have rows of a user, or of rooms without an owner."""
        self._field_values.clear()
        if self._session_cache and owner is not None:
            self._session_cache.forget(owner)

    def scrub(self, generation: int | None = None) -> bool:
        """Rebuilds the file if it may contain bytes of something erased; audited if it did.

        `generation`: that of a wipe; by default of the newest. Returns whether none of its bytes are left.
        """
        erasure = self._engine.erasure

        def note(wipes: int) -> None:
            details: dict[str, Any] = {"wipes": wipes}
            if remains := [residue.where for residue in erasure.residues()]:
                details["remains"] = remains
            self._audit.record(None, "scrub", **details)

        return erasure.scrub(generation, note)


class Wiper:
    """Erases users, and single memories of theirs for admins."""

    def __init__(
        self,
        engine: Engine,
        vault: Vault,
        ledger: ErasureLedger,
        audit: AuditLog,
        eraser: Eraser,
        rooms_left_alone: Callable[[str], Iterable[Namespace]],
    ) -> None:
        """`rooms_left_alone`: returns the shared rooms that only this user can still enter."""
        self._engine, self._vault, self._ledger, self._audit = engine, vault, ledger, audit
        self._eraser = eraser
        self._rooms_left_alone = rooms_left_alone

    def remove(self, principal: Principal, user: str, id: str) -> None:
        """Erases one memory of a user with every version; audited, and a restore does not bring it back."""
        principal.require("admin")
        person = find_person(self._engine, self._vault, user)
        versions = self._engine.personal_data.versions(person, live=True, id=_parse_id(id))
        row = next(read_versions(self._engine, (seq for seq, _ in versions)), None)
        if row is None or not self._eraser.erase_versions(principal, row):
            raise NotFound("this user has no such memory")
        self._audit.record(principal, "memory.remove", user=user, memory=id)

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

        `shared`: whether their memories in shared rooms lose their author, stay unchanged, or are removed;
        the receipt lists what stays. With `wait`, the call returns when the files of the store have no byte
        of the removed data left; otherwise they are rebuilt later. `remains` of the receipt names other
        places where bytes stay for a while. With `dry_run` nothing is erased, and the receipt says what
        would be. NotFound if the store has nothing about this user.
        """
        person = find_person(self._engine, self._vault, user)
        if shared not in ("keep", "anonymise", "remove"):
            raise InvalidRequest("shared", "keep, anonymise or remove")
        if principal.user_id != user:
            principal.require("admin")
        person = person._replace(rooms=[room.encode() for room in self._rooms_left_alone(user)])
        note = None if dry_run else partial(self._note, person, shared)
        result = self._engine.erasure.wipe(person, shared=shared, note=note)
        if not result.is_known:
            expected = "a user about whom the store has data"
            raise NotFound(
                f"user: expected {expected}, not {user!r}", details={"field": "user", "expected": expected}
            )
        receipt = _receipt(user, shared, result)
        if dry_run:
            return msgspec.structs.replace(receipt, wiped_at=None, remains=self._engine.erasure.residues())

        def follow_up() -> list[Residue]:
            self._vault.forget(person.subject)
            self._eraser.drop_caches(user)
            actor = None if principal.user_id == user else principal
            self._audit.record(actor, "user.wipe", user=user, removed=receipt.removed, shared=shared)
            return self._engine.erasure.residues()

        remains = cancellation.run_uncancelled(follow_up)  # the wipe is committed, whoever still waits for it
        is_rebuilt = self._eraser.scrub(result.generation) if wait else False
        if not is_rebuilt:
            self._eraser.scrub_soon()
        scrubbed = is_rebuilt and not any(residue.in_data_files for residue in remains)
        return msgspec.structs.replace(receipt, scrubbed=scrubbed, remains=remains)

    def _note(self, person: Person, shared: SharedHandling, result: WipeResult) -> None:
        """Records a wipe in the ledger, with a digest of its receipt."""
        receipt = _receipt(person.user, shared, result)
        self._ledger.record(
            LedgerEntry(
                wiped_at=to_datetime(result.moment),
                user=person.pseudonym,
                shared=shared,
                position=result.position,
                rooms=tuple(self._vault.pseudonym(ns.hex()) for ns in result.rooms),
                receipt=self._digest(receipt),
            )
        )

    def verify_receipt(self, principal: Principal, receipt: Receipt | Mapping[str, object]) -> bool:
        """Whether the ledger has the wipe of a receipt, and the receipt is unchanged."""
        principal.require("auditor")
        digest = self._digest(receipt)
        return any(entry.receipt == digest for entry in self._ledger.read())

    def _digest(self, receipt: Receipt | Mapping[str, object]) -> str:
        """A keyed digest of a receipt, without the fields that depend on when it was made."""
        fields = msgspec.to_builtins(receipt)
        fields = {name: value for name, value in fields.items() if name not in ("scrubbed", "remains")}
        return self._vault.pseudonym(msgspec.json.encode(fields, order="sorted").decode())


def _receipt(user: str, shared: SharedHandling, result: WipeResult) -> Receipt:
    return Receipt(
        user=user,
        removed=result.removed,
        key_destroyed=result.key_destroyed,
        shared={shared: result.shared},
        shared_left=[*map(to_size, result.remaining)],
        wiped_at=to_datetime(result.moment),
        scrubbed=False,
    )


def _parse_id(text: str) -> bytes:
    """The id of a version as it is stored; empty for text that is no id."""
    try:
        return UUID(text).bytes
    except ValueError:
        return b""
