"""get, search, list, namespaces, history and time travel."""

from __future__ import annotations

from datetime import datetime

import pytest

from alcove import Alcove, Namespace, PermissionDenied
from tests.support.clock import ManualClock

NOTES = ("user", "alice", "notes")


def keys(found: object) -> list[str]:
    return [each.key for each in found]  # type: ignore[attr-defined]


def test_get_reads_only_what_is_yours(alice: Alcove, bob: Alcove, memory: Alcove) -> None:
    alice.put(NOTES, "k", {"n": 1})
    assert alice.get(NOTES, "other") is None
    with pytest.raises(PermissionDenied):
        bob.get(NOTES, "k")
    with pytest.raises(PermissionDenied):
        memory.get(NOTES, "k")  # an admin may search, but does not bypass authz


def test_a_namespace_may_be_given_as_segments_or_spelled(alice: Alcove) -> None:
    alice.put("user:alice:a%3Ab", "k", {})
    assert alice.get(["user", "alice", "a:b"], "k") is not None
    assert alice.get(Namespace(("user", "alice", "a:b")), "k") is not None


def test_search_goes_in_order_of_namespace_and_key(alice: Alcove) -> None:
    places = [("b", "1"), ("a", "2"), ("a", "10"), ("a:b", "0"), ("a", "é"), ("aa", "z")]
    for last, key in places:
        alice.put(("user", "alice", last), key, {})
    found = [(each.namespace[2], each.key) for each in alice.search("user:alice", limit=100)]
    assert found == sorted(places)
    pages = [alice.search("user:alice", limit=2, offset=n) for n in range(0, 8, 2)]
    assert [(each.namespace[2], each.key) for page in pages for each in page] == sorted(places)


def test_a_prefix_is_made_of_whole_segments(alice: Alcove) -> None:
    alice.put(("user", "alice", "bot"), "k", {})
    alice.put(("user", "alice", "bot-2"), "k", {})
    alice.put(("user", "alice", "bot", "deep"), "k", {})
    found = {str(each.namespace) for each in alice.search(("user", "alice", "bot"))}
    assert found == {"user:alice:bot", "user:alice:bot:deep"}


def test_a_search_elsewhere_is_led_back_to_your_own(alice: Alcove, bob: Alcove, memory: Alcove) -> None:
    alice.put(NOTES, "hers", {})
    bob.put(("user", "bob"), "his", {})
    for prefix in ((), ("user",), ("user", "alice"), ("user", "alice", "notes"), ("org", "docs")):
        assert keys(bob.search(prefix)) == ["his"]
        assert keys(bob.list(prefix)) == ["his"]
        assert [event.key for event in bob.events(prefix).events] == ["his"]
        assert bob.namespaces(prefix) == [("user", "bob")]
    assert keys(memory.search()) == ["hers", "his"]


def test_list_shows_entries_without_values(alice: Alcove) -> None:
    alice.put(NOTES, "k", {"secret": 1})
    (entry,) = alice.list(NOTES)
    assert not hasattr(entry, "value")


def test_namespaces_are_distinct_sorted_cut_and_live(alice: Alcove, clock: ManualClock) -> None:
    for last in ("b", "a", "a"):
        alice.put(("user", "alice", last, "x"), "k", {})
    alice.put(("user", "alice", "gone"), "k", {})
    alice.delete(("user", "alice", "gone"), "k")
    alice.put(("user", "alice", "short"), "k", {}, ttl_seconds=1)
    alice.put(("user", "alice"), "k", {})
    clock.advance(2)
    spelled = [str(each) for each in alice.namespaces()]
    assert spelled == ["user:alice", "user:alice:a:x", "user:alice:b:x"]
    assert [str(n) for n in alice.namespaces(max_depth=3)] == ["user:alice", "user:alice:a", "user:alice:b"]
    assert alice.namespaces(max_depth=1) == [("user",)]
    assert [str(n) for n in alice.namespaces(suffix=("x",))] == ["user:alice:a:x", "user:alice:b:x"]
    assert [str(n) for n in alice.namespaces(suffix="b:x", max_depth=2)] == ["user:alice"]
    assert [str(n) for n in alice.namespaces(limit=1, offset=1)] == ["user:alice:a:x"]
    assert alice.namespaces(("user", "alice", "b")) == [("user", "alice", "b", "x")]


def test_listing_to_a_depth_passes_over_what_lies_below(
    alice: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads follows what it answers, and not how much there is below that."""
    for top, below in (("a", 3), ("b", 200), ("c", 1)):
        wanted = [("user", "alice", top, f"{n:03}") for n in range(below)]
        alice.batch([{"op": "put", "namespace": [*ns], "key": "k", "value": {}} for ns in wanted])
    assert len(alice.namespaces()) == 204
    read = 0

    def decode(encoded: bytes) -> Namespace:
        nonlocal read
        read += 1
        return whole(encoded)

    whole = Namespace.decode
    monkeypatch.setattr(Namespace, "decode", decode)
    assert alice.namespaces(max_depth=3) == [("user", "alice", top) for top in "abc"]
    assert read < 50


def test_reads_as_of_a_moment_answer_what_was_current_then(alice: Alcove, clock: ManualClock) -> None:
    def later() -> datetime:
        clock.advance(1)
        return datetime.fromisoformat("1970-01-01T00:00:00+00:00") + (
            datetime.fromisoformat("1970-01-01T00:00:00.000001+00:00")
            - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
        ) * (clock.now)

    before = later()
    clock.advance(1)
    first = alice.put(NOTES, "k", {"n": 1}, ttl_seconds=100).created_at
    clock.advance(1)
    second = alice.put(NOTES, "k", {"n": 2}).created_at
    clock.advance(1)
    alice.delete(NOTES, "k")
    gone = later()

    def at(moment: datetime) -> list[object]:
        got = alice.get(NOTES, "k", as_of=moment)
        found = alice.search(NOTES, as_of=moment)
        assert [each.value for each in found] == ([got.value] if got else [])
        return [each.value["n"] for each in found]

    assert at(before) == []
    assert at(first) == [1]
    assert at(second) == [2]
    assert at(gone) == []
    for text in (second.isoformat(), second.isoformat().replace("+00:00", "Z")):
        found = alice.get(NOTES, "k", as_of=text)
        assert found is not None
        assert found.value == {"n": 2}


def test_a_past_memory_had_its_expiry_then_too(alice: Alcove, clock: ManualClock) -> None:
    alice.put(NOTES, "k", {"n": 1}, ttl_seconds=10)
    clock.advance(60)
    stamp = alice.put(NOTES, "other", {}).created_at
    alice.put(NOTES, "k", {"n": 2})
    assert alice.get(NOTES, "k", as_of=stamp) is None


def test_history_is_newest_first_with_deletes_and_authors(alice: Alcove, bob: Alcove) -> None:
    alice.put(NOTES, "k", {"n": 1})
    alice.put(NOTES, "k", {"n": 2}, index={"a": "b"})
    alice.delete(NOTES, "k")
    versions = alice.history(NOTES, "k")
    assert [(v.kind, v.revision, v.value) for v in versions] == [
        ("delete", 3, None),
        ("update", 2, {"n": 2}),
        ("add", 1, {"n": 1}),
    ]
    assert versions[0].attributes is None
    assert versions[1].index == {"a": "b"}
    assert {v.written_by.user for v in versions} == {"alice"}
    with pytest.raises(PermissionDenied):
        bob.history(NOTES, "k")
