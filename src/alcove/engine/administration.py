"""The data of a store other than memories: the audit log, documents, API keys, private rooms, figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

from alcove.core.clock import Clock, parse_moment, to_datetime
from alcove.core.namespace import Namespace
from alcove.core.records import ApiKey, RootSize
from alcove.engine.database import Database
from alcove.engine.rows import AuditRow


class Administration:
    """Reads and writes the data of operators and of the service itself."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self.version: Callable[[], int] = partial(db.mark, "documents")
        """Returns the version of the newest document; every decision calls it, so it must be fast."""

    def is_incomplete_copy(self) -> bool:
        """True if a migration into this store has begun and not ended: see `upkeep/migration.py`."""
        ((_, copied_as),) = self._db.fetch("copy_marks")
        return bool(copied_as == 0)

    # The audit log

    def add_audit(self, entries: Sequence[AuditRow]) -> None:
        with self._db.write() as db:
            db.run_many("add_audit", [entry[1:] for entry in entries])

    def add_audit_entry(self, entry: AuditRow) -> int:
        """Adds one entry; returns its number, for `update_audit`."""
        with self._db.write() as db:
            db.run("add_audit", entry[1:])
            return db.last_id()

    def update_audit(self, details: Sequence[tuple[str, int]]) -> None:
        """Replaces the details of entries: for each, the new details and the entry's number."""
        with self._db.write() as db:
            db.run_many("update_audit", details)

    def audit(
        self, *, before: int, action: str | None, actor: str | None, subject: str | None, limit: int
    ) -> list[AuditRow]:
        return [*map(AuditRow._make, self._db.fetch("audit", before, action, actor, subject, limit))]

    def audit_before(self, before: int, action: str) -> list[AuditRow]:
        """Returns the entries of one action that are older than a moment."""
        return [*map(AuditRow._make, self._db.fetch("audit_before", before, action))]

    def purge_audit(self, *, before: int, keep: Sequence[int] = ()) -> int:
        """Removes entries that are older than a moment; `keep`: the numbers of entries that stay."""
        return self._db.update("purge_audit", before, json.dumps([*keep]))

    # Documents

    def document(self, kind: str) -> tuple[int, str] | None:
        """Returns the version and the JSON of the newest document of a kind."""
        return next(iter(self._db.fetch("document", kind)), None)

    def add_document(self, kind: str, actor: str, body: str, entries: Sequence[AuditRow] = ()) -> int:
        """Stores a new version of a document, and its audit entries in the same transaction."""
        with self._db.write() as db:
            db.run("add_document", (kind, self._clock(), actor, body))
            version = db.last_id()
            db.run_many("add_audit", [entry[1:] for entry in entries])
            db.run("set_mark", (version, "documents"))
            return version

    # API keys

    def add_api_key(self, key: ApiKey, digest: bytes) -> None:
        created_at, roles = parse_moment(key.created_at, "created_at"), " ".join(key.roles)
        self._db.update("add_api_key", key.id, key.client, key.user, roles, key.trusted, digest, created_at)

    def api_key(self, id: str) -> tuple[ApiKey, bytes] | None:
        """Returns an API key and the digest of its secret."""
        rows = self._db.fetch("api_key", id)
        return (_api_key(*rows[0]), rows[0][-1]) if rows else None

    def api_keys(self) -> list[ApiKey]:
        return [_api_key(*row) for row in self._db.fetch("api_keys")]

    def remove_api_key(self, id: str) -> bool:
        return self._db.update("remove_api_key", id) > 0

    # Private rooms and figures

    def private_rooms(self) -> list[str]:
        """Returns the templates of private rooms, as `add_private_rooms` stored them."""
        return [template for (template,) in self._db.fetch("private_rooms")]

    def add_private_rooms(self, templates: Sequence[str]) -> None:
        with self._db.write() as db:
            db.run_many("add_private_room", [(template,) for template in templates])

    def stats(self) -> list[RootSize]:
        """Returns the figures of each root segment."""
        rows = self._db.fetch("stats", self._clock())
        return [RootSize(Namespace.decode(ns)[0], *figures) for ns, *figures in rows]

    def keys_by_wrapper(self) -> list[tuple[str, int]]:
        """Returns how many data keys each key-encryption key wraps."""
        return self._db.fetch("keys_by_wrapper")


def _api_key(
    id: str, client: str, user: str | None, roles: str, trusted: int, created_at: int, _: bytes
) -> ApiKey:
    return ApiKey(id, client, user, roles.split(), bool(trusted), to_datetime(created_at))
