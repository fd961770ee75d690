"""How long the audit log keeps entries, and that nobody shortens that unseen."""

from __future__ import annotations

import msgspec
import pytest

from alcove import Alcove, AlcoveError
from alcove.core.records import AuditEntry
from alcove.engine.postgres.connection import STATEMENTS
from alcove.engine.sqlite.database import STATEMENTS as SQL
from tests.contract.conftest import Open
from tests.support.clock import ManualClock

DAY = 86_400.0


@pytest.fixture
def memory(open_store: Open, clock: ManualClock) -> Alcove:
    return open_store(clock=clock)


def entries(memory: Alcove, action: str = "settings.put") -> list[AuditEntry]:
    return memory.admin.audit(action=action).entries


def later(memory: Alcove, clock: ManualClock, days: float) -> None:
    clock.advance(days * DAY)
    memory.sweep()


def put(memory: Alcove, user: str, **settings: object) -> None:
    memory.as_user(user, roles=["admin"]).admin.put_settings(settings)


def test_who_shortens_the_life_of_the_audit_log_is_on_record_for_as_long_as_it_lived_before(
    memory: Alcove, clock: ManualClock
) -> None:
    memory.admin.create_api_key(client="app", user="bob")
    put(memory, "mallory", audit_days=1.0)
    (said,) = entries(memory)
    assert (said.actor, said.details["audit_days"]) == ("mallory", {"from": 365.0, "to": 1.0})
    later(memory, clock, 30)
    assert entries(memory) == [said]
    assert entries(memory, "apikey.create") == []  # of which the life was shortened
    later(memory, clock, 334)
    assert entries(memory) == [said]
    later(memory, clock, 2)
    assert entries(memory) == []


def test_a_life_that_is_shortened_step_by_step_leaves_every_step(memory: Alcove, clock: ManualClock) -> None:
    for days in (200.0, 100.0, 0.5):
        put(memory, "mallory", audit_days=days)
    put(memory, "mallory", audit_days=None)  # back to what the store was started with
    put(memory, "mallory", audit_days=0.5)

    def steps() -> list[float]:
        return [each.details["audit_days"]["from"] for each in entries(memory)]

    assert steps() == [365.0, 0.5, 100.0, 200.0, 365.0]
    later(memory, clock, 50)
    assert steps() == [365.0, 100.0, 200.0, 365.0]
    later(memory, clock, 100)
    assert steps() == [365.0, 200.0, 365.0]
    later(memory, clock, 200)
    assert steps() == [365.0, 365.0]
    later(memory, clock, 20)
    assert steps() == []


def test_entries_about_other_settings_go_with_the_rest(memory: Alcove, clock: ManualClock) -> None:
    put(memory, "alice", max_depth=4)
    put(memory, "alice", audit_days=400.0)
    put(memory, "alice", audit_days=400.0, max_depth=3)
    assert [each.details["changed"] for each in entries(memory)] == [
        ["audit_days", "max_depth"], ["audit_days"], ["max_depth"]
    ]  # fmt: skip
    later(memory, clock, 401)
    assert entries(memory) == []


def test_a_change_that_cannot_be_put_on_record_is_not_made(
    memory: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        for statements in (SQL, STATEMENTS):
            patched.setitem(statements, "add_audit", "INSERT INTO nowhere VALUES (?, ?, ?, ?, ?)")
        with pytest.raises(AlcoveError):
            put(memory, "mallory", audit_days=1.0)
    assert memory.admin.settings()["audit_days"] == 365.0


def test_a_wipe_leaves_what_a_user_did_under_their_pseudonym(memory: Alcove) -> None:
    root = memory.as_user("root", roles=["admin"])
    memory.as_user("alice").put("user:alice", "k", {"n": 1})
    put(memory, "root", audit_days=300.0)
    assert root.search("user:alice")
    before = memory.admin.audit(user="root").entries
    root.wipe("root")
    wiped, *after = memory.admin.audit(user="root").entries
    pseudonym = memory.memories.pseudonym("root")
    assert (wiped.action, wiped.subject) == ("user.wipe", pseudonym)
    assert [each.action for each in after] == ["memories.read", "settings.put"]
    assert after == [msgspec.structs.replace(each, actor=pseudonym) for each in before]
    assert memory.admin.audit(user=pseudonym).entries == after
    assert memory.admin.audit(user="alice").entries == after[:1]


def test_a_wipe_of_a_user_named_like_a_pseudonym_hides_nobodys_entries(memory: Alcove) -> None:
    """Admins read pseudonyms in the log, and may make an API key for any user."""
    put(memory, "root", audit_days=300.0)
    memory.wipe("root")
    pseudonym = memory.memories.pseudonym("root")
    memory.as_user(pseudonym).put(("user", pseudonym), "k", {"n": 1})
    memory.wipe(pseudonym)
    assert [each.action for each in memory.admin.audit(user="root").entries] == ["user.wipe", "settings.put"]
