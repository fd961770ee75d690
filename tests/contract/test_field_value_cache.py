"""Lists by a field of sealed values, asked again: what is remembered of a version, and what is not."""

from __future__ import annotations

import pytest

from alcove import Alcove
from alcove.store import field_value_cache
from alcove.vault import Vault
from tests.contract.conftest import Open
from tests.support.clock import ManualClock

NOTES = ("user", "alice", "notes")


def filled(user: Alcove, count: int = 30) -> None:
    for n in range(count):
        user.put(NOTES, f"{n:02}", {"shelf": n % 3, "text": "x" * 1000, "tags": ["a", n % 2]})


def keys(user: Alcove, **expression: object) -> list[str]:
    found = [each.key for each in user.search(NOTES, filter=expression, limit=100)]
    assert found == [each.key for each in user.list(NOTES, filter=expression)]
    return found


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each value that was opened."""
    opened: list[int] = []
    open_value = Vault.open

    def counted(self: Vault, data_key: int, sealed: bytes, bound_to: bytes) -> bytes:
        opened.append(data_key)
        return open_value(self, data_key, sealed, bound_to)

    monkeypatch.setattr(Vault, "open", counted)
    return opened


def remembered(memory: Alcove) -> bool:
    return bool(memory.memories._field_values.cached._fields)


def test_each_value_is_opened_once_for_lists_by_one_field(alice: Alcove, openings: list[int]) -> None:
    filled(alice)
    assert len(alice.list(NOTES, filter={"shelf": 1})) == 10
    assert len(openings) == 30
    for shelf in range(3):
        assert keys(alice, shelf=shelf) == [f"{n:02}" for n in range(shelf, 30, 3)]
    assert len(openings) == 60, "only what a search answers is opened again"


def test_what_is_written_replaced_and_deleted_is_seen_at_once(open_store: Open, clock: ManualClock) -> None:
    alice = open_store(clock=clock).as_user("alice")
    filled(alice, 6)
    assert keys(alice, shelf=0) == ["00", "03"]
    elsewhere = open_store(clock=clock).as_user("alice")
    elsewhere.put(NOTES, "00", {"shelf": 1})
    elsewhere.put(NOTES, "01", {"shelf": 0})
    elsewhere.delete(NOTES, "03")
    elsewhere.put(NOTES, "09", {"shelf": 0}, ttl_seconds=60)
    assert keys(alice, shelf=0) == ["01", "09"]
    assert keys(alice, shelf=1) == ["00", "04"]
    clock.advance(61)
    assert keys(alice, shelf=0) == ["01"]


def test_a_past_moment_is_told_as_it_was(alice: Alcove, clock: ManualClock) -> None:
    filled(alice, 6)
    assert keys(alice, shelf=0) == ["00", "03"]
    clock.advance(1)
    then = alice.put(NOTES, "00", {"shelf": 2}).created_at
    assert keys(alice, shelf=0) == ["03"]
    clock.advance(1)
    alice.put(NOTES, "03", {"shelf": 2})
    assert [each.key for each in alice.list(NOTES, filter={"shelf": 0}, as_of=then)] == ["03"]


def test_lists_that_are_read_in_turns_keep_their_own_conditions(alice: Alcove) -> None:
    filled(alice)
    keys(alice, shelf=0)
    searcher = alice.memories.searcher
    scans = [
        searcher._scan(alice.memories.access.scope(alice.principal, NOTES, {"shelf": n}), None)
        for n in range(3)
    ]
    for first, second, third in zip(*scans, strict=True):
        assert [int(row.key) % 3 for row in (first, second, third)] == [0, 1, 2]


def test_what_one_user_listed_opens_nothing_for_another(memory: Alcove, alice: Alcove, bob: Alcove) -> None:
    filled(alice)
    keys(alice, shelf=0)
    bob.put(("user", "bob"), "own", {"shelf": 0})
    assert [each.key for each in bob.search((), filter={"shelf": 0})] == ["own"]
    assert [each.key for each in bob.search(NOTES, filter={"shelf": 0})] == ["own"]


def test_long_texts_lists_and_objects_are_found_without_being_remembered(
    alice: Alcove, openings: list[int]
) -> None:
    filled(alice, 4)
    assert keys(alice, text="x" * 1000) == keys(alice, tags="a") == ["00", "01", "02", "03"]
    before = len(openings)
    alice.list(NOTES, filter={"text": "x" * 1000})
    assert len(openings) == before + 4


@pytest.mark.parametrize("erase", ["wipe", "clear", "erase", "wipe elsewhere"])
def test_an_erasure_empties_what_is_remembered(open_store: Open, clock: ManualClock, erase: str) -> None:
    memory = open_store(clock=clock)
    alice = memory.as_user("alice")
    filled(alice, 3)
    keys(alice, shelf=0)
    assert remembered(memory)
    match erase:
        case "wipe":
            memory.admin.wipe("alice")
        case "clear":
            memory.memories.eraser.clear(alice.principal, NOTES)
        case "erase":
            memory.memories.eraser.erase(alice.principal, NOTES, "00")
        case "wipe elsewhere":
            open_store(clock=clock).admin.wipe("alice")
            memory.sweep()
    assert not remembered(memory)


def test_what_is_remembered_is_bounded(
    alice: Alcove, memory: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_value_cache, "MAX_BYTES", 3000)
    filled(alice)
    for field in ("shelf", "other", "third"):
        keys(alice, **{field: 1})
        cached = memory.memories._field_values.cached
        assert sum(map(len, cached._fields.values())) <= 20
        assert cached._bytes <= 3000
