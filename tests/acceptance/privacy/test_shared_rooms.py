"""What a wiped user wrote into shared rooms: kept, kept without its author, or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from msgspec import structs

from alcove import Alcove, Author, Grant, Namespace, NotFound, Principal, Settings
from alcove.core.records import AuditEntry, NamespaceSize, SharedHandling
from tests.support.clock import ManualClock
from tests.support.store_inspection import assert_sound, raw_bytes, timeline

QUIET = Settings(sweep_interval=0)
DOCS = Namespace(("org", "docs"))
USER, CLIENT, TEXT = "al-c1f3b2d4e5", "client-9a8b7c6d", "indexed-5f6e7d8c"


@pytest.fixture
def memory(path: Path, clock: ManualClock) -> Iterator[Alcove]:
    with Alcove(path, settings=QUIET, clock=clock) as memory:
        yield memory


@pytest.fixture
def al(memory: Alcove) -> Alcove:
    return memory.as_principal(Principal(USER, client_id=CLIENT, grants=(Grant(DOCS),)))


@pytest.fixture
def bob(memory: Alcove) -> Alcove:
    return memory.as_principal(Principal("bob", client_id="his", grants=(Grant(DOCS),)))


def write(al: Alcove, bob: Alcove) -> None:
    al.put(DOCS, "al's", {"n": 1}, index={"text": TEXT})
    al.put(DOCS, "al's", {"n": 2}, index={"text": TEXT})
    bob.put(DOCS, "bob's", {"n": 3})
    al.put(("user", USER), "private", {"n": 4})


def authors(memory: Alcove) -> dict[str, list[Author]]:
    by_key: dict[str, list[Author]] = {}
    for event in timeline(memory, DOCS):
        by_key.setdefault(event.key, []).append(event.written_by)
    return by_key


def test_keep_leaves_it_as_it_is(memory: Alcove, al: Alcove, bob: Alcove) -> None:
    write(al, bob)
    before = timeline(memory, DOCS)
    assert memory.wipe(USER, shared="keep").shared.keys() == {"keep"}
    assert timeline(memory, DOCS) == before
    assert authors(memory)["al's"] == [Author(USER, CLIENT, None)] * 2
    assert timeline(memory, ("user", USER)) == []
    assert_sound(memory)


def test_anonymise_keeps_it_without_its_author(memory: Alcove, path: Path, al: Alcove, bob: Alcove) -> None:
    write(al, bob)
    assert {USER.encode() in raw_bytes(path), CLIENT.encode() in raw_bytes(path)} == {True}
    receipt = memory.wipe(USER)
    assert receipt.shared == {"anonymise": 2}
    assert authors(memory) == {"al's": [Author()] * 2, "bob's": [Author("bob", "his", None)]}
    found = bob.get(DOCS, "al's")
    assert found is not None
    assert (found.value, found.index, found.written_by) == ({"n": 2}, {"text": TEXT}, Author())
    assert [version.written_by for version in bob.history(DOCS, "al's")] == [Author()] * 2
    assert USER.encode() not in raw_bytes(path)
    assert CLIENT.encode() not in raw_bytes(path)
    assert memory.wipe(USER).shared == {"anonymise": 0}
    assert_sound(memory)


def test_remove_takes_it_away_and_tells_readers(memory: Alcove, path: Path, al: Alcove, bob: Alcove) -> None:
    write(al, bob)
    cursor = timeline(memory, DOCS)[-1].cursor
    receipt = memory.wipe(USER, shared="remove")
    assert (receipt.shared, receipt.shared_left) == ({"remove": 2}, [])
    assert bob.get(DOCS, "al's") is None
    assert [each.key for each in bob.search(DOCS)] == ["bob's"]
    (told,) = bob.events(DOCS, after_cursor=cursor).events
    assert (told.key, told.kind, told.revision, told.written_by) == ("al's", "delete", 3, Author())
    for left in (USER, CLIENT, TEXT):
        assert left.encode() not in raw_bytes(path)
    assert bob.put(DOCS, "al's", {"n": 5}).revision == 4
    with pytest.raises(NotFound):
        memory.wipe(USER, shared="remove")
    assert_sound(memory)


Story = Callable[[Alcove, Alcove], object]
STORIES: dict[str, Story] = {
    "al puts, bob updates": lambda al, bob: (al.put(DOCS, "key", {}), bob.put(DOCS, "key", {"by": "bob"})),
    "bob puts, al updates": lambda al, bob: (bob.put(DOCS, "key", {}), al.put(DOCS, "key", {})),
    "bob puts, al deletes": lambda al, bob: (bob.put(DOCS, "key", {}), al.delete(DOCS, "key")),
    "al puts, bob deletes": lambda al, bob: (al.put(DOCS, "key", {}), bob.delete(DOCS, "key")),
    "al puts and deletes": lambda al, bob: (al.put(DOCS, "key", {}), al.delete(DOCS, "key")),
    "al puts, it expires": lambda al, bob: al.put(DOCS, "key", {}, ttl_seconds=1),
    "al, bob, al": lambda al, bob: [each.put(DOCS, "key", {}) for each in (al, bob, al)],
    "al, bob, al deletes, bob": lambda al, bob: (
        al.put(DOCS, "key", {}),
        bob.put(DOCS, "key", {}),
        al.delete(DOCS, "key"),
        bob.put(DOCS, "key", {"by": "bob"}),
    ),
    "all of one room is al's": lambda al, bob: (
        al.put((*DOCS, "room"), "key", {}),
        al.delete((*DOCS, "room"), "key"),
    ),
}


@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("shared", get_args(SharedHandling))
def test_whoever_wrote_before_and_after_the_log_stays_sound(
    memory: Alcove,
    al: Alcove,
    bob: Alcove,
    clock: ManualClock,
    story: str,
    shared: SharedHandling,
    sweep: bool,
) -> None:
    STORIES[story](al, bob)
    clock.advance(2)
    if sweep:
        memory.sweep()
    current = bob.get(DOCS, "key")
    his = [event for event in timeline(memory, DOCS) if event.written_by.user == "bob"]
    memory.wipe(USER, shared=shared)
    assert_sound(memory)
    found = bob.get(DOCS, "key")
    if current and (shared != "remove" or current.written_by.user == "bob"):
        assert found is not None
        assert (found.value, found.revision) == (current.value, current.revision)
    else:
        assert found is None
    assert [event for event in timeline(memory, DOCS) if event.written_by.user == "bob"] == his
    last = max((version.revision for version in bob.history(DOCS, "key")), default=0)
    assert bob.put(DOCS, "key", {}).revision > last
    assert_sound(memory)


def rooms(found: list[NamespaceSize]) -> list[tuple[str, int, int]]:
    return [(str(room.namespace), room.memories, room.versions) for room in found]


@pytest.mark.parametrize("shared", ["keep", "anonymise"])
def test_what_stays_is_listed_and_a_later_wipe_reaches_it(
    memory: Alcove, path: Path, al: Alcove, bob: Alcove, shared: SharedHandling
) -> None:
    write(al, bob)
    al.put((*DOCS, "more"), "al's", {"n": 5})
    expected = [("org:docs", 1, 2), ("org:docs:more", 1, 1)]
    assert rooms(memory.admin.held(USER).shared_rooms) == expected
    receipt = memory.wipe(USER, shared=shared)
    assert rooms(receipt.shared_left) == expected
    held = memory.admin.held(USER)
    assert (held.shared, rooms(held.shared_rooms), held.namespaces) == (3, expected, [])
    assert (USER.encode() in raw_bytes(path)) == (shared == "keep")
    assert (
        memory.wipe(USER, shared=shared).removed["versions"] == 0
    )  # it is somebody, and nothing is left to do
    receipt = memory.wipe(USER, shared="remove")
    assert (receipt.shared, receipt.shared_left) == ({"remove": 3}, [])
    assert [each.key for each in bob.search(DOCS)] == ["bob's"]
    for left in (USER, CLIENT, TEXT):
        assert left.encode() not in raw_bytes(path)
    with pytest.raises(NotFound):
        memory.wipe(USER)
    assert_sound(memory)


def operated(memory: Alcove) -> list[AuditEntry]:
    """The audit log without the reads of this test."""
    return [entry for entry in memory.admin.audit().entries if entry.action != "memories.read"]


def test_a_dry_run_says_what_a_wipe_then_does_and_does_none_of_it(
    memory: Alcove, path: Path, al: Alcove, bob: Alcove
) -> None:
    write(al, bob)
    al.put(("user", USER), "private", {"n": 6}, idempotency_key="once")
    before, told = timeline(memory), operated(memory)
    for shared in get_args(SharedHandling):
        dry = memory.wipe(USER, shared=shared, dry_run=True)
        assert (dry.scrubbed, dry.wiped_at) == (False, None)
    assert timeline(memory) == before
    assert operated(memory) == told
    assert not path.with_name("memory.db.wipes").exists()
    assert al.get(("user", USER), "private") is not None
    real = memory.wipe(USER, shared="remove")
    assert structs.replace(real, wiped_at=None, scrubbed=False) == dry
    assert dry.removed == {
        "memories": 1, "turns": 0, "versions": 2, "vectors": 0, "replays": 1, "api_keys": 0
    }  # fmt: skip


def test_a_tombstone_keeps_no_attributes_of_what_was_removed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "attributes.rego").write_text(
        'package memories.attributes\nattributes := {"topic": input.value.topic}\n'
    )
    with Alcove(path, settings=QUIET, policy_dir=tmp_path) as memory:
        al, bob = (memory.as_principal(Principal(who, grants=(Grant(DOCS),))) for who in (USER, "bob"))
        al.put(DOCS, "key", {"topic": "MARKER"})
        bob.delete(DOCS, "key")
        memory.wipe(USER, shared="remove")
        assert b"MARKER" not in raw_bytes(path)
        assert_sound(memory)
