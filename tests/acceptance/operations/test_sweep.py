"""The sweep: expiry is seen at once and recorded once, and retention forgets what it should.

This file is also the program of the crowd's processes: `python -m tests.acceptance.operations.test_sweep …`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from alcove import Alcove, InvalidRequest, Settings, SweepResult
from alcove.core.clock import DAY, to_datetime
from tests.support.clock import ManualClock
from tests.support.concurrent_workers import Crowd, join
from tests.support.store_inspection import assert_sound, follow, locked, timeline
from tests.support.waiting import until

AL = ("user", "al")
SECONDS_OF_A_DAY = DAY / 1_000_000


Open = Callable[..., Alcove]


@pytest.fixture
def opened(path: Path, clock: ManualClock) -> Open:
    def open_store(**settings: object) -> Alcove:
        settings.setdefault("sweep_interval", 0)
        return Alcove(path, settings=Settings(**settings), clock=clock)  # type: ignore[arg-type]

    return open_store


# Expiry


def test_an_expired_memory_is_gone_at_once_without_a_sweep(opened: Open, clock: ManualClock) -> None:
    with opened() as memory:
        al = memory.as_user("al")
        entry = al.put((*AL, "room"), "key", {"n": 1}, ttl_seconds=10)
        al.put(AL, "other", {"n": 2}, ttl_seconds=0)
        clock.advance(9.999_999)
        assert al.get((*AL, "room"), "key") is not None
        clock.advance(0.000_001)
        assert to_datetime(clock.now) == entry.expires_at
        assert al.get((*AL, "room"), "key") is None
        assert [each.key for each in al.search(AL)] == ["other"]
        assert [each.key for each in al.list(AL)] == ["other"]
        assert al.namespaces(AL) == [AL]
        assert al.batch([{"op": "get", "namespace": (*AL, "room"), "key": "key"}]) == [None]
        assert [event.kind for event in timeline(memory)] == ["add", "add"]
        assert al.get((*AL, "room"), "key", as_of=entry.created_at) is not None
        assert_sound(memory)


def test_a_sweep_records_each_expiry_once(opened: Open, clock: ManualClock) -> None:
    with opened() as memory, opened() as another:
        al = memory.as_user("al")
        for n in range(1200):  # more than a sweep takes in one transaction
            al.put(AL, f"key-{n}", {"n": n}, ttl_seconds=1 + n % 3)
        clock.advance(2.5)
        assert memory.sweep() == SweepResult(expired=800, aged=0, purged=0)
        assert another.sweep() == SweepResult(expired=0, aged=0, purged=0)
        clock.advance(10)
        assert another.sweep().expired == 400
        assert memory.sweep().expired == 0
        kinds = Counter((event.key, event.kind) for event in timeline(memory, AL))
        assert kinds == Counter((f"key-{n}", kind) for n in range(1200) for kind in ("add", "expired"))
        (ended, _) = al.history(AL, "key-0")
        assert (ended.kind, ended.revision, ended.value, ended.attributes) == ("expired", 2, None, None)
        assert_sound(memory)


def test_sweepers_that_meet_record_each_expiry_once(path: Path, crowd: Crowd) -> None:
    with Alcove(path, settings=Settings(sweep_interval=0)) as memory:
        crowd(path, expire_and_sweep)
        until(lambda: memory.sweep().expired == 0 and not memory.list(AL))
        kinds = Counter(event.kind for event in timeline(memory, AL))
        assert kinds["add"] == kinds["expired"] > 0
        expired = Counter(
            (event.key, event.revision) for event in timeline(memory) if event.kind == "expired"
        )
        assert set(expired.values()) == {1}
        assert_sound(memory)


def expire_and_sweep(memory: Alcove, worker: int) -> list[int]:
    """Puts that live for a second, and sweeps until all of them are over: everybody's, at one time."""
    al = memory.as_user("al")
    for n in range(30):
        al.put(AL, f"key-{worker}-{n}", {"n": n}, ttl_seconds=1)
    end = time.monotonic() + 1.2
    swept = 0
    while time.monotonic() < end:
        swept += memory.sweep().expired
        time.sleep(0.002)
    return [swept + memory.sweep().expired]


def test_a_write_to_an_expired_key_records_the_expiry_first(opened: Open, clock: ManualClock) -> None:
    with opened() as memory:
        al = memory.as_user("al")
        for key in ("put", "deleted"):
            al.put(AL, key, {"n": 1}, ttl_seconds=1)
        clock.advance(5)
        assert al.put(AL, "put", {"n": 2}, create_only=True).revision == 3
        assert al.delete(AL, "deleted").deleted is False
        assert memory.sweep().expired == 0
        kinds = [(event.key, event.kind, event.revision) for event in timeline(memory)]
        assert kinds[2:] == [("put", "expired", 2), ("put", "add", 3), ("deleted", "expired", 2)]
        assert_sound(memory)


# Retention


def test_retention_removes_what_ended_long_ago_and_nothing_that_lives(
    opened: Open, clock: ManualClock
) -> None:
    with opened(retention_days=10) as memory:
        al = memory.as_user("al")
        for n in range(3):
            al.put(AL, "updated", {"n": n})
        al.put((*AL, "room"), "deleted", {"n": 0})
        al.put((*AL, "room"), "expired", {"n": 0}, ttl_seconds=1)
        clock.advance(2)
        al.delete((*AL, "room"), "deleted")
        memory.sweep()
        clock.advance(9 * SECONDS_OF_A_DAY)
        al.put(AL, "recent", {"n": 0})
        al.put(AL, "recent", {"n": 1})
        assert memory.sweep().purged == 0
        clock.advance(2 * SECONDS_OF_A_DAY)
        assert memory.sweep() == SweepResult(expired=0, aged=0, purged=6)
        assert [version.value for version in al.history(AL, "updated")] == [{"n": 2}]
        assert al.history((*AL, "room"), "deleted") == al.history((*AL, "room"), "expired") == []
        assert [version.value for version in al.history(AL, "recent")] == [{"n": 1}, {"n": 0}]
        assert al.put(AL, "updated", {"n": 3}).revision == 4
        assert al.put((*AL, "room"), "deleted", {"n": 1}).revision == 1
        assert_sound(memory)


def test_a_moment_before_the_retained_history_is_refused_naming_the_earliest(
    opened: Open, clock: ManualClock
) -> None:
    with opened(retention_days=10) as memory:
        al = memory.as_user("al")
        first = al.put(AL, "key", {"n": 0}).created_at
        clock.advance(1)
        al.put(AL, "key", {"n": 1})
        found = al.get(AL, "key", as_of=first)
        assert found is not None
        assert found.value == {"n": 0}
        clock.advance(11 * SECONDS_OF_A_DAY)
        memory.sweep()
        earliest = to_datetime(clock.now - 10 * DAY)
        for read in (
            lambda: al.get(AL, "key", as_of=first),
            lambda: al.search(AL, as_of=first),
            lambda: al.list(AL, as_of=first),
        ):
            with pytest.raises(InvalidRequest) as refusal:
                read()
            assert refusal.value.field == "as_of"
            assert str(earliest) in refusal.value.message or earliest.isoformat() in refusal.value.message
        found = al.get(AL, "key", as_of=earliest)
        assert found is not None
        assert found.value == {"n": 1}


def test_a_cursor_older_than_the_retained_history_is_told_so(opened: Open, clock: ManualClock) -> None:
    with opened(retention_days=10) as memory:
        al = memory.as_user("al")
        al.put(AL, "first", {"n": 0})
        old = al.events(AL).after_cursor
        for n in range(3):
            al.put(AL, "key", {"n": n})
        assert al.events(AL, after_cursor=old).truncated_before is None
        clock.advance(11 * SECONDS_OF_A_DAY)
        al.put(AL, "key", {"n": 3})
        recent = al.events(AL).after_cursor
        clock.advance(SECONDS_OF_A_DAY)
        memory.sweep()
        page = al.events(AL, after_cursor=old)
        assert page.truncated_before == to_datetime(clock.now - 10 * DAY)
        assert [event.value for event in page.events] == [{"n": 2}, {"n": 3}]
        assert al.events(AL, after_cursor=recent).truncated_before is None
        assert al.events(AL, after_cursor=page.after_cursor).truncated_before is None
        al.put(AL, "key", {"n": 4})
        assert [event.value for event in follow(al, AL, recent)] == [{"n": 4}]


def test_a_maximum_age_expires_live_memories_of_its_root_only(
    opened: Open, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(retention_max_age={"user": 30}) as memory:
        al = memory.as_user("al")
        for n in range(600):
            al.put(AL, f"key-{n}", {"n": n})
        al.put(("agent", "bot", "u", "al"), "key", {"n": 0})
        al.put(("users", "u", "al"), "key", {"n": 0})
        clock.advance(29 * SECONDS_OF_A_DAY)
        al.put(AL, "key-0", {"n": 0})
        assert memory.sweep().aged == 0
        clock.advance(2 * SECONDS_OF_A_DAY)
        with caplog.at_level(logging.INFO, "alcove"):
            assert memory.sweep() == SweepResult(expired=0, aged=599, purged=0)
        assert "599" in caplog.text
        assert memory.sweep().aged == 0
        assert [each.key for each in al.list(AL)] == ["key-0"]
        assert al.get(("agent", "bot", "u", "al"), "key") is not None
        assert al.get(("users", "u", "al"), "key") is not None
        assert Counter(event.kind for event in timeline(memory, AL))["expired"] == 599
        assert_sound(memory)


# The background


def test_the_background_sweeps_at_its_interval(opened: Open, clock: ManualClock) -> None:
    with opened(sweep_interval=0.02, retention_days=10, retention_max_age={"user": 1}) as memory:
        al = memory.as_user("al")
        for n in range(3):  # not only the first time
            clock.advance(1)
            al.put(AL, f"short-{n}", {"n": 1}, ttl_seconds=60)
            al.put(AL, f"aged-{n}", {"n": 1})
            clock.advance(1.5 * SECONDS_OF_A_DAY)
            until(lambda: [event.kind for event in timeline(memory)][-4:][2:] == ["expired"] * 2)
        clock.advance(20 * SECONDS_OF_A_DAY)
        until(lambda: timeline(memory) == [])
        assert_sound(memory)


def test_a_sweep_that_fails_is_tried_again(
    opened: Open, clock: ManualClock, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(busy_timeout=0.01, sweep_interval=0.02) as memory:
        al = memory.as_user("al")
        al.put(AL, "key", {"n": 1}, ttl_seconds=60)
        with locked(path):
            clock.advance(61)
            until(lambda: "is busy" in caplog.text)
            assert [event.kind for event in timeline(al)] == ["add"]
        until(lambda: [event.kind for event in timeline(al)] == ["add", "expired"])


if __name__ == "__main__":
    join((expire_and_sweep,), *sys.argv[1:])
