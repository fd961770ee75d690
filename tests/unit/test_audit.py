"""Denials in the audit log: counted at once, written a little later by another thread, and none lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from alcove import Principal, Unavailable
from alcove.engine.administration import Administration
from alcove.engine.rows import AuditRow
from alcove.store import audit
from alcove.store.audit import Audit
from alcove.vault import Vault


class Rows:
    """Takes entries, unless it is busy."""

    def __init__(self) -> None:
        self.busy = False
        self.taken: list[tuple[AuditRow, threading.Thread]] = []
        self.told = threading.Event()

    def add_audit(self, entries: Sequence[AuditRow]) -> None:
        if self.busy:
            raise Unavailable("busy")
        self.taken += [(entry, threading.current_thread()) for entry in entries]
        self.told.set()


class Names:
    def pseudonym(self, text: str) -> str:
        return text[::-1]


def log(rows: Any) -> Audit:
    return Audit(cast(Administration, rows), cast(Vault, Names()), lambda: 7)


def test_a_denial_is_written_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_FLUSH_SECONDS", 0.01)
    rows = Rows()
    denials = log(rows)
    denials.denied(Principal("alice"), "read")
    assert rows.told.wait(60)
    ((entry, thread),) = rows.taken
    assert (entry.subject, entry.details) == ("ecila", '{"operation":"read","count":1}')
    assert thread is not threading.current_thread()


def test_denials_that_cannot_be_written_are_counted_on() -> None:
    rows = Rows()
    denials = log(rows)
    rows.busy = True
    for _ in range(2):
        denials.denied(Principal("alice"), "read")
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
    denials.denied(Principal("alice"), "read")
    assert tried.wait(60)
    rows.busy = False
    assert rows.told.wait(60), "nobody else is denied, and nothing else writes"
    denials.close()
    assert [entry.details for entry, _ in rows.taken] == ['{"operation":"read","count":1}']
