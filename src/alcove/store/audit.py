"""The audit log: operations, reads by a role and denials, with their actors; never any content."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from alcove.core import cursor
from alcove.core.background import Worker
from alcove.core.clock import DAY, Clock, to_datetime
from alcove.core.errors import Unavailable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import AuditEntry, AuditPage
from alcove.engine.administration import Administration
from alcove.engine.rows import AuditRow
from alcove.vault import Vault

_MAX_DENIED_CALLERS = 1000
_FLUSH_SECONDS = 5.0
_NEWEST = 2**62
SETTINGS_PUT = "settings.put"
"""The action of an entry about changed settings."""
READ = "memories.read"
"""The action of a read by a role; `details.operation` says which operation it was."""
_READ_SECONDS = 60.0
"""How long one entry stands for equal reads."""
_MAX_OPEN_READS = 10_000
"""Entries that equal reads are counted in; beyond that, each read gets an entry of its own."""
_SCOPE_DIGITS = 16
"""Digits of a scope's pseudonym: enough to tell rooms apart."""
_NOT_RECORDED = "nothing is shown, because the audit log could not record this read"


class PrivilegedRead(NamedTuple):
    """A read of memories that only a role opens to the caller; equal ones share an entry for a while."""

    actor: str
    operation: str
    scope: Namespace
    """Where the caller looked."""
    owner: str | None
    """The owner of the memories in the answer; None if they have several owners or none."""


@dataclass
class _OpenEntry:
    """An entry in the log that equal reads are still counted in."""

    seq: int
    expires_at: float
    details: Mapping[str, object]
    read_count: int
    memory_count: int

    def encode(self) -> str:
        return _encode({**self.details, "reads": self.read_count, "count": self.memory_count})


class AuditLog:
    """Records actions at once, and denials a few seconds later as one entry for each caller.

    The user whom an entry is about is stored as a pseudonym. So is a denied caller: their name may be any
    text, and may belong to a user who is wiped before the entry is written.

    A read by a role is in the log before its answer is given. Equal reads of the same minute are counted in
    that entry a few seconds later, so that a stream or a page that polls does not flood the log. Counting
    changes only the figures of the entry, so no name comes back after a wipe removed it.
    """

    def __init__(self, rows: Administration, vault: Vault, clock: Clock) -> None:
        self._rows, self._vault, self._clock = rows, vault, clock
        self._denials: Counter[tuple[str | None, str]] = Counter()
        self._open_reads: dict[PrivilegedRead, _OpenEntry] = {}
        self._unsaved: dict[int, _OpenEntry] = {}
        """By sequence number, the entries whose figures have changed since they were written."""
        self._saving = threading.Lock()
        self._mutex = threading.Lock()
        self._writer = Worker("audit", self.flush, _FLUSH_SECONDS)

    def record(
        self, actor: Principal | None, action: str, *, user: str | None = None, **details: object
    ) -> None:
        """Writes an entry; it is on the disk when this returns."""
        self._rows.add_audit([self.entry(actor, action, user=user, **details)])

    def entry(
        self, actor: Principal | None, action: str, *, user: str | None = None, **details: object
    ) -> AuditRow:
        """An entry that the caller writes in the same transaction as the change it describes."""
        subject = None if user is None else self._vault.pseudonym(user)
        actor_id = actor.user_id if actor else None
        return AuditRow(0, self._clock(), actor_id, action, subject, _encode(details))

    def purge(self, *, now: int, days: float) -> None:
        """Removes entries that are older than `days`.

        An entry that shortened the retention of the log stays for the former retention: a caller must not be
        able to shorten the log without leaving a trace.
        """
        before = max(0, now - int(days * DAY))
        shortened = [
            entry.seq
            for entry in self._rows.audit_before(before, SETTINGS_PUT)
            if now - entry.created_at < _former_days(entry) * DAY
        ]
        self._rows.purge_audit(before=before, keep=shortened)

    def imported(self, actor: Principal, owners: Iterable[str | None]) -> None:
        """Records how many memories an import wrote for each owner; None is for rooms without an owner."""
        counts = Counter(owners).items()
        self._rows.add_audit(
            [self.entry(actor, "memories.import", user=owner, count=n) for owner, n in counts]
        )

    def count_denial(self, principal: Principal, operation: str) -> None:
        """Counts a denial without waiting; beyond 1000 different callers, others are counted together."""
        with self._mutex:
            caller: tuple[str | None, str] = (principal.user_id, operation)
            if caller not in self._denials and len(self._denials) >= _MAX_DENIED_CALLERS:
                caller = (None, operation)
            self._denials[caller] += 1
        self._writer.start()

    def unrecorded_read(
        self, principal: Principal, operation: str, scope: Namespace, namespaces: Iterable[Namespace]
    ) -> tuple[PrivilegedRead, int] | None:
        """The read that `record_read` must write before its answer is given; does not wait.

        None if the caller needs no role for any of these memories, or if an entry of the last minute counts
        the read. `namespaces`: that of each memory in the answer.
        """
        if not principal.has_role:
            return None
        counts = Counter(namespaces)
        rooms = {each for each in counts if principal.reads_by_role(each)}
        if not rooms:
            return None
        memory_count = sum(counts[each] for each in rooms)
        first, *others = {each.owner for each in rooms}
        read = PrivilegedRead(principal.user_id, operation, scope, None if others else first)
        with self._mutex:
            entry = self._open_reads.get(read)
            if entry is None or time.monotonic() >= entry.expires_at:
                return read, memory_count
            entry.read_count += 1
            entry.memory_count += memory_count
            self._unsaved[entry.seq] = entry
        self._writer.start()
        return None

    def record_read(self, read: PrivilegedRead, memory_count: int) -> None:
        """Writes an entry for a read; it is on the disk when this returns. Raises if it cannot be written.

        The log outlives a wipe, so it holds no words of a user: no query, and of the scope only the first
        segment and a pseudonym.
        """
        scope = ":".join(read.scope[:1])
        if len(read.scope) > 1:
            scope += f":{self._vault.pseudonym(str(read.scope))[:_SCOPE_DIGITS]}"
        details = {"operation": read.operation, "scope": scope}
        entry = _OpenEntry(0, time.monotonic() + _READ_SECONDS, details, 1, memory_count)
        subject = None if read.owner is None else self._vault.pseudonym(read.owner)
        row = AuditRow(0, self._clock(), read.actor, READ, subject, entry.encode())
        try:
            entry.seq = self._rows.add_audit_entry(row)
        except Unavailable as error:
            refused = Unavailable(f"{_NOT_RECORDED}: {error.message}")
            refused.public_message = f"{_NOT_RECORDED}: {error.public_message}"
            raise refused from error
        with self._mutex:
            if read in self._open_reads or len(self._open_reads) < _MAX_OPEN_READS:
                self._open_reads[read] = entry
        self._writer.start()

    def _save_reads(self) -> None:
        """Writes the figures that have changed, and drops entries that have expired."""
        with self._saving:
            with self._mutex:
                unsaved, self._unsaved = self._unsaved, {}
                details = [(entry.encode(), seq) for seq, entry in unsaved.items()]
                now = time.monotonic()
                self._open_reads = {
                    read: entry for read, entry in self._open_reads.items() if now < entry.expires_at
                }
            try:
                if details:
                    self._rows.update_audit(details)
            except BaseException:
                with self._mutex:
                    self._unsaved = {**unsaved, **self._unsaved}
                raise

    def flush(self) -> None:
        """Writes the counted reads and denials; counts that cannot be written stay for the next flush."""
        self._save_reads()
        with self._mutex:
            denials, self._denials = self._denials, Counter()
        entries = [
            self.entry(None, "denied", user=user, operation=operation, count=count)
            for (user, operation), count in denials.items()
        ]
        if entries:
            try:
                self._rows.add_audit(entries)
            except BaseException:
                with self._mutex:
                    self._denials.update(denials)
                raise

    def close(self) -> None:
        """Stops the background thread and flushes."""
        self._writer.stop()
        self.flush()

    def page(
        self, *, user: str | None, action: str | None, after_cursor: str | None, limit: int
    ) -> AuditPage:
        """Entries, newest first: all of them, or those by or about one user."""
        self.flush()
        rows = self._rows.audit(
            before=_NEWEST if after_cursor is None else cursor.decode(after_cursor),
            action=action,
            actor=user,
            subject=None if user is None else self._vault.pseudonym(user),
            limit=limit,
        )
        entries = [
            AuditEntry(to_datetime(at), actor, action, subject, msgspec.json.decode(details))
            for _, at, actor, action, subject, details in rows
        ]
        return AuditPage(entries, cursor.encode(rows[-1].seq) if rows else None)


def _encode(details: Mapping[str, object]) -> str:
    return msgspec.json.encode(details).decode()


def _former_days(entry: AuditRow) -> float:
    """The retention in days before a change of settings; 0 if it did not change the retention."""
    match msgspec.json.decode(entry.details):
        case {"audit_days": {"from": int() | float() as days}}:
            return days
        case _:
            return 0
