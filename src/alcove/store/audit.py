"""The audit log: who operated on what, and how often somebody was turned away; never any content."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from alcove.core import cursor
from alcove.core.background import Worker
from alcove.core.clock import Clock, to_datetime
from alcove.core.principal import Principal
from alcove.engine.administration import Administration
from alcove.engine.rows import AuditRow
from alcove.store.admin_records import AuditEntry, AuditPage
from alcove.vault import Vault

_DENIALS_APART = 1000
_FLUSH_SECONDS = 5.0
_NEWEST = 2**62


class Audit:
    """Notes actions at once, and denials a few seconds later as one entry for each caller.

    Whom it is about is kept as a pseudonym; so is who was denied, because their name may be anything,
    and may be that of somebody who is wiped before the entry is written.
    """

    def __init__(self, rows: Administration, vault: Vault, clock: Clock) -> None:
        self._rows = rows
        self._vault = vault
        self._clock = clock
        self._denials: Counter[tuple[str | None, str]] = Counter()
        self._mutex = threading.Lock()
        self._writer = Worker("audit", self.flush, _FLUSH_SECONDS)

    def record(
        self, actor: Principal | None, action: str, *, user: str | None = None, **details: object
    ) -> None:
        """Writes an entry; it is on the disk when this returns."""
        self._rows.add_audit([self._entry(actor.user_id if actor else None, action, user, details)])

    def imported(self, actor: Principal, owners: Iterable[str | None]) -> None:
        """Writes how many memories an import put into whose rooms; None is nobody's."""
        counted = Counter(owners).items()
        self._rows.add_audit(
            [self._entry(actor.user_id, "memories.import", owner, {"count": n}) for owner, n in counted]
        )

    def denied(self, principal: Principal, operation: str) -> None:
        """Counts a denial, and waits for nothing; a flood by ever new names is counted under nobody's."""
        with self._mutex:
            known: tuple[str | None, str] = (principal.user_id, operation)
            if known not in self._denials and len(self._denials) >= _DENIALS_APART:
                known = (None, operation)
            self._denials[known] += 1
        self._writer.start()

    def flush(self) -> None:
        """Writes what was counted; what could not be written is counted on."""
        with self._mutex:
            counted, self._denials = self._denials, Counter()
        entries = [
            self._entry(None, "denied", user, {"operation": operation, "count": count})
            for (user, operation), count in counted.items()
        ]
        if entries:
            try:
                self._rows.add_audit(entries)
            except BaseException:
                with self._mutex:
                    self._denials.update(counted)
                raise

    def close(self) -> None:
        """Writes what was counted, for the last time."""
        self._writer.stop()
        self.flush()

    def page(
        self, *, user: str | None, action: str | None, after_cursor: str | None, limit: int
    ) -> AuditPage:
        """Entries, newest first: all of them, or those by or about one user."""
        self.flush()
        found = self._rows.audit(
            before=_NEWEST if after_cursor is None else cursor.decode(after_cursor),
            action=action,
            actor=user,
            subject=None if user is None else self._vault.pseudonym(user),
            limit=limit,
        )
        entries = [
            AuditEntry(to_datetime(at), actor, action, subject, msgspec.json.decode(details))
            for _, at, actor, action, subject, details in found
        ]
        return AuditPage(entries, cursor.encode(found[-1].seq) if found else None)

    def _entry(
        self, actor: str | None, action: str, user: str | None, details: Mapping[str, object]
    ) -> AuditRow:
        subject = None if user is None else self._vault.pseudonym(user)
        return AuditRow(0, self._clock(), actor, action, subject, msgspec.json.encode(details).decode())
