"""What a wiped user wrote into shared rooms: kept, kept without its author, or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from alcove import Alcove, Author, Grant, Namespace, Principal, Settings
from alcove.records import Shared
from tests.acceptance.inspection import assert_sound, raw_bytes, timeline
from tests.conftest import ManualClock

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
    assert receipt.shared == {"remove": 2}
    assert bob.get(DOCS, "al's") is None
    assert [each.key for each in bob.search(DOCS)] == ["bob's"]
    (told,) = bob.events(DOCS, after_cursor=cursor).events
    assert (told.key, told.kind, told.revision, told.written_by) == ("al's", "delete", 3, Author())
    for left in (USER, CLIENT, TEXT):
        assert left.encode() not in raw_bytes(path)
    assert bob.put(DOCS, "al's", {"n": 5}).revision == 4
    assert memory.wipe(USER, shared="remove").shared == {"remove": 0}
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
@pytest.mark.parametrize("shared", get_args(Shared))
def test_whoever_wrote_before_and_after_the_log_stays_sound(
    memory: Alcove, al: Alcove, bob: Alcove, clock: ManualClock, story: str, shared: Shared, sweep: bool
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
