"""put, delete, touch: what a write does to one key."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from alcove import Alcove, Conflict, InvalidRequest, NotFound, PayloadTooLarge, PermissionDenied, Settings
from tests.support.clock import ManualClock

NOTES = ("user", "alice", "notes")


def test_put_answers_everything_but_the_value(alice: Alcove, clock: ManualClock) -> None:
    entry = alice.put(NOTES, "k", {"text": "tea"}, index={"text": "tea"}, ttl_seconds=60)
    assert (entry.namespace, entry.key, entry.revision) == (NOTES, "k", 1)
    assert entry.attributes == {"namespace": "user", "sub": "alice"}
    assert entry.created_at == datetime.fromtimestamp(clock.now / 1e6, UTC)
    assert entry.expires_at is not None
    assert (entry.expires_at - entry.created_at).total_seconds() == 60
    assert not hasattr(entry, "value")


def test_every_write_has_an_id_of_its_own(alice: Alcove) -> None:
    ids = {alice.put(NOTES, "k", {"n": n}).id for n in range(5)}
    assert len(ids) == 5


def test_what_was_put_is_what_is_read(alice: Alcove) -> None:
    value: dict[str, object] = {
        "text": "naïve \0 ☕ 😀",
        "n": -(2**63),
        "f": 0.1 + 0.2,
        "deep": {"list": [1, 2.5, None, True, {"x": []}]},
        "": "an empty name",
    }
    alice.put(NOTES, "k\0 ☕", value, index={"text": "a\0b", "ü": "ß"})
    found = alice.get(NOTES, "k\0 ☕")
    assert found is not None
    assert found.value == value
    assert found.index == {"text": "a\0b", "ü": "ß"}
    assert found.written_by.user == "alice"


def test_revisions_count_on_through_deletes(alice: Alcove) -> None:
    assert alice.put(NOTES, "k", {}).revision == 1
    assert alice.delete(NOTES, "k").revision == 2
    assert alice.put(NOTES, "k", {}).revision == 3
    assert [v.kind for v in alice.history(NOTES, "k")] == ["add", "delete", "add"]


def test_a_put_over_a_live_key_is_an_update(alice: Alcove) -> None:
    alice.put(NOTES, "k", {"n": 1})
    alice.put(NOTES, "k", {"n": 2})
    assert [v.kind for v in alice.history(NOTES, "k")] == ["update", "add"]


def test_deleting_what_is_not_there_is_not_an_error(alice: Alcove) -> None:
    deletion = alice.delete(NOTES, "k")
    assert (deletion.deleted, deletion.revision) == (False, None)
    assert alice.history(NOTES, "k") == []


def test_an_expected_revision_must_match(alice: Alcove) -> None:
    alice.put(NOTES, "k", {"n": 1})
    with pytest.raises(Conflict):
        alice.put(NOTES, "k", {"n": 2}, expected_revision=2)
    with pytest.raises(Conflict):
        alice.delete(NOTES, "k", expected_revision=7)
    assert alice.put(NOTES, "k", {"n": 2}, expected_revision=1).revision == 2
    assert alice.delete(NOTES, "k", expected_revision=2).deleted


def test_an_expected_revision_on_an_absent_key_is_a_conflict(alice: Alcove) -> None:
    for call in (
        lambda: alice.put(NOTES, "k", {}, expected_revision=1),
        lambda: alice.delete(NOTES, "k", expected_revision=1),
    ):
        with pytest.raises(Conflict):
            call()


def test_revision_zero_and_create_only_mean_absent(alice: Alcove) -> None:
    alice.put(NOTES, "a", {}, expected_revision=0)
    alice.put(NOTES, "b", {}, create_only=True)
    for key in ("a", "b"):
        with pytest.raises(Conflict):
            alice.put(NOTES, key, {}, expected_revision=0)
        with pytest.raises(Conflict):
            alice.put(NOTES, key, {}, create_only=True)
        with pytest.raises(Conflict):
            alice.delete(NOTES, key, expected_revision=0)
    assert not alice.delete(NOTES, "c", expected_revision=0).deleted


def test_a_put_without_a_ttl_never_expires_even_over_one_that_did(alice: Alcove, clock: ManualClock) -> None:
    alice.put(NOTES, "k", {}, ttl_seconds=10)
    assert alice.put(NOTES, "k", {}).expires_at is None
    assert alice.put(NOTES, "z", {}, ttl_seconds=0).expires_at is None
    clock.advance(1000)
    assert alice.get(NOTES, "k") is not None


def test_an_expired_memory_is_gone_at_once(alice: Alcove, clock: ManualClock) -> None:
    alice.put(NOTES, "k", {"n": 1}, ttl_seconds=10)
    clock.advance(9.999999)
    assert alice.get(NOTES, "k") is not None
    clock.advance(0.000001)
    assert alice.get(NOTES, "k") is None
    assert alice.search(NOTES) == []
    assert alice.list(NOTES) == []
    assert alice.namespaces(NOTES) == []


def test_a_write_records_an_expiry_that_is_due_first(alice: Alcove, clock: ManualClock) -> None:
    alice.put(NOTES, "put", {"n": 1}, ttl_seconds=10)
    alice.put(NOTES, "delete", {"n": 1}, ttl_seconds=10)
    clock.advance(11)
    assert alice.put(NOTES, "put", {"n": 2}, create_only=True).revision == 3
    assert alice.delete(NOTES, "delete").deleted is False
    assert [v.kind for v in alice.history(NOTES, "put")] == ["add", "expired", "add"]
    assert [v.kind for v in alice.history(NOTES, "delete")] == ["expired", "add"]


def test_touch_changes_the_expiry_and_nothing_else(alice: Alcove, clock: ManualClock) -> None:
    alice.put(NOTES, "k", {"n": 1}, ttl_seconds=10)
    events = alice.events().events
    clock.advance(5)
    touched = alice.touch(NOTES, "k", ttl_seconds=10)
    assert touched.revision == 1
    clock.advance(9)
    found = alice.get(NOTES, "k")
    assert found is not None
    assert found.value == {"n": 1}
    assert len(alice.events().events) == len(events)
    alice.touch(NOTES, "k")
    clock.advance(10_000)
    assert alice.get(NOTES, "k") is not None


def test_touching_what_is_not_there_is_not_found(alice: Alcove, clock: ManualClock) -> None:
    with pytest.raises(NotFound):
        alice.touch(NOTES, "k", ttl_seconds=10)
    alice.put(NOTES, "k", {}, ttl_seconds=1)
    clock.advance(2)
    with pytest.raises(NotFound):
        alice.touch(NOTES, "k", ttl_seconds=10)


def test_nobody_writes_into_a_namespace_that_is_not_theirs(bob: Alcove, alice: Alcove) -> None:
    alice.put(NOTES, "k", {"n": 1})
    for call in (
        lambda: bob.put(NOTES, "k", {}),
        lambda: bob.delete(NOTES, "k"),
        lambda: bob.touch(NOTES, "k"),
        lambda: bob.put(("org", "docs"), "k", {}),
    ):
        with pytest.raises(PermissionDenied) as denied:
            call()
        assert denied.value.reason
    found = alice.get(NOTES, "k")
    assert found is not None
    assert found.revision == 1


@pytest.mark.parametrize("size", [1024 * 1024, 1024 * 1024 + 1])
def test_a_value_may_have_one_mebibyte_and_no_more(alice: Alcove, size: int) -> None:
    value: dict[str, object] = {"t": "x" * (size - len('{"t":""}'))}
    if size > 1024 * 1024:
        with pytest.raises(PayloadTooLarge, match="value"):
            alice.put(NOTES, "k", value)
        assert alice.get(NOTES, "k") is None
    else:
        alice.put(NOTES, "k", value)
        found = alice.get(NOTES, "k")
        assert found is not None
        assert found.value == value


def test_limits_are_settings(open_store: object, clock: ManualClock) -> None:
    settings = Settings(max_depth=2, max_value_bytes=10, max_index_fields=1, sweep_interval=0)
    alice = open_store(clock=clock, settings=settings).as_user("alice")  # type: ignore[operator]
    alice.put(("user", "alice"), "k", {"a": 1}, index={"a": "1"})
    with pytest.raises(InvalidRequest, match="namespace"):
        alice.put(NOTES, "k", {})
    with pytest.raises(PayloadTooLarge, match="value"):
        alice.put(("user", "alice"), "k", {"a": "123456789"})
    with pytest.raises(InvalidRequest, match="index"):
        alice.put(("user", "alice"), "k", {}, index={"a": "1", "b": "2"})


def test_times_never_run_backwards(alice: Alcove, clock: ManualClock) -> None:
    first = alice.put(NOTES, "a", {})
    clock.advance(-3600)
    second = alice.put(NOTES, "b", {})
    assert second.created_at > first.created_at
