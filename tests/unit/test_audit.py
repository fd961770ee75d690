"""What the audit log counts and writes later: denials, and equal reads by a role. None is lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from alcove import Principal, Unavailable
from alcove.core.namespace import Namespace
from alcove.engine.administration import Administration
from alcove.engine.rows import AuditRow
from alcove.store import audit
from alcove.store.audit import AuditLog
from alcove.vault import Vault


class Rows:
    """Takes entries, unless it is busy."""

    def __init__(self) -> None:
        self.busy = False
        self.taken: list[tuple[AuditRow, threading.Thread]] = []
        self.told = threading.Event()
        self.updated: list[tuple[str, int]] = []

    def add_audit_entry(self, entry: AuditRow) -> int:
        self.add_audit([entry])
        return len(self.taken)

    def update_audit(self, details: Sequence[tuple[str, int]]) -> None:
        if self.busy:
            raise Unavailable("busy")
        self.updated += details
        self.told.set()

    def add_audit(self, entries: Sequence[AuditRow]) -> None:
        if self.busy:
            raise Unavailable("busy")
        self.taken += [(entry, threading.current_thread()) for entry in entries]
        self.told.set()


class Names:
    def pseudonym(self, text: str) -> str:
        return text[::-1]


def log(rows: Any) -> AuditLog:
    return AuditLog(cast(Administration, rows), cast(Vault, Names()), lambda: 7)


def test_a_denial_is_written_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_FLUSH_SECONDS", 0.01)
    rows = Rows()
    denials = log(rows)
    denials.count_denial(Principal("alice"), "read")
    assert rows.told.wait(60)
    ((entry, thread),) = rows.taken
    assert (entry.subject, entry.details) == ("ecila", '{"operation":"read","count":1}')
    assert thread is not threading.current_thread()


def test_denials_that_cannot_be_written_are_counted_on() -> None:
    rows = Rows()
    denials = log(rows)
    rows.busy = True
    for _ in range(2):
        denials.count_denial(Principal("alice"), "read")
        with pytest.raises(Unavailable):
            denials.flush()
    rows.busy = False
    denials.flush()
    assert [entry.details for entry, _ in rows.taken] == ['{"operation":"read","count":2}']


def test_denials_that_could_not_be_written_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_FLUSH_SECONDS", 0.01)
    tried = threading.Event()

    class Busy(Rows):
        def add_audit(self, entries: Sequence[AuditRow]) -> None:
            try:
                super().add_audit(entries)
            finally:
                tried.set()

    rows = Busy()
    rows.busy = True
    denials = log(rows)
    denials.count_denial(Principal("alice"), "read")
    assert tried.wait(60)
    rows.busy = False
    assert rows.told.wait(60), "nobody else is denied, and nothing else writes"
    denials.close()
    assert [entry.details for entry, _ in rows.taken] == ['{"operation":"read","count":1}']


ROOT = Principal("root", claims={"roles": ["admin"]})
ALICE = Namespace(("user", "alice"))


def read(reads: AuditLog, count: int = 1) -> bool:
    """Reads memories of alice; whether that wrote an entry."""
    unrecorded = reads.unrecorded_read(ROOT, "search", ALICE, [ALICE] * count)
    if unrecorded:
        reads.record_read(*unrecorded)
    return unrecorded is not None


def test_a_read_is_written_by_the_thread_that_reads_and_equal_ones_are_counted_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "_FLUSH_SECONDS", 0.01)
    rows = Rows()
    reads = log(rows)
    assert read(reads, 3)
    ((entry, thread),) = rows.taken
    assert (entry.actor, entry.action, entry.subject) == ("root", "memories.read", "ecila")
    assert thread is threading.current_thread()
    rows.told.clear()
    assert not read(reads, 4)
    assert rows.told.wait(60)
    reads.close()
    details = '{"operation":"search","scope":"user:ecila:resu","reads":2,"count":7}'
    assert rows.updated == [(details, 1)]


def test_counts_of_reads_that_cannot_be_written_are_written_later() -> None:
    rows = Rows()
    reads = log(rows)
    read(reads)
    rows.busy = True
    for _ in range(2):
        read(reads)
        with pytest.raises(Unavailable):
            reads.flush()
    rows.busy = False
    reads.flush()
    assert [(seq, '"reads":3' in details) for details, seq in rows.updated] == [(1, True)]


def test_a_read_that_could_not_be_recorded_is_tried_anew_by_the_next() -> None:
    rows = Rows()
    reads = log(rows)
    rows.busy = True
    for _ in range(2):
        with pytest.raises(Unavailable, match="could not record this read: busy"):
            read(reads)
    rows.busy = False
    assert read(reads)
    assert len(rows.taken) == 1


def test_counts_of_a_minute_that_is_over_go_into_its_own_entry() -> None:
    rows = Rows()
    reads = log(rows)
    read(reads)
    read(reads)
    (entry,) = reads._open_reads.values()
    entry.expires_at = 0.0
    assert read(reads)
    read(reads)
    read(reads)
    reads.flush()
    assert sorted((seq, msgspec.json.decode(details)["reads"]) for details, seq in rows.updated) == [
        (1, 2),
        (2, 3),
    ]


def test_nobody_is_shown_anything_while_another_thread_still_writes_the_entry() -> None:
    """Two reads that are the first at once are both written."""
    rows = Rows()
    reads = log(rows)
    first = reads.unrecorded_read(ROOT, "search", ALICE, [ALICE])
    assert read(reads), "the entry of the first is not on the disk yet"
    assert first
    reads.record_read(*first)
    assert len(rows.taken) == 2
