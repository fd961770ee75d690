"""An import brings memories with the times they had; the log keeps its own."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from alcove import Alcove, InvalidRequest, Settings
from alcove.core.clock import DAY, to_datetime
from tests.contract.conftest import Open
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag

HOME = ("user", "alice")
THEN = datetime(2020, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


def line(key: str, created_at: object = THEN.isoformat(), **more: object) -> bytes:
    given = {"namespace": HOME, "key": key, "value": {"n": 1}, "created_at": created_at}
    return json.dumps({**given, **more}).encode()


def test_what_was_written_years_ago_is_not_written_today(alice: Alcove, clock: ManualClock) -> None:
    assert alice.import_memories([line("k")]).imported == 1
    memory = alice.get(HOME, "k")
    assert memory is not None
    entries = [memory, *alice.list(HOME), *alice.search(HOME), *alice.history(HOME, "k")]
    assert [entry.created_at for entry in [*entries, *alice.export_memories(HOME)]] == [THEN] * 5
    assert alice.import_memories([line("k")]).unchanged == 1


@pytest.mark.parametrize("year", [1, 1950, 1970])
def test_what_was_written_at_the_epoch_or_before_keeps_its_time_however_it_comes(
    open_store: Open, clock: ManualClock, year: int
) -> None:
    settings = Settings(sweep_interval=0, retention_max_age={"user": 1_000_000})
    alice = open_store(clock=clock, settings=settings).as_user("alice")
    then = datetime(year, 1, 1, tzinfo=UTC)
    written = (f"{year:04}-01-01T00:00:00Z", then.isoformat())
    for key in ("alone", "again"):
        assert alice.import_memories([line(key, written[0])]).imported == 1
    assert alice.import_memories([line("a", written[1]), line("b", written[1])]).imported == 2
    clock.advance(1)
    alice.import_memories([line("again", written[0], value={"n": 2})])
    alice.put(HOME, "a", {"n": 2})
    alice.batch([{"op": "put", "namespace": HOME, "key": "b", "value": {"n": 2}}])
    alice.sweep()
    found = {memory.key: (memory.created_at, memory.added_at) for memory in alice.list(HOME)}
    now = to_datetime(clock.now)
    assert found.pop("alone") == found.pop("again") == (then, then)
    assert {key: added for key, (_, added) in found.items()} == {"a": then, "b": then}
    assert all(created >= now for created, _ in found.values())


def test_it_keeps_its_time_from_store_to_store(alice: Alcove, bob: Alcove, clock: ManualClock) -> None:
    alice.import_memories([line("k", namespace=["user", "bob"])])
    alice.import_memories([line("k")])
    exported = [json.dumps({"namespace": ["user", "bob"], "key": each.key, "value": each.value,
                            "created_at": each.created_at.isoformat()}).encode()
                for each in alice.export_memories(HOME)]  # fmt: skip
    clock.advance(1)
    assert bob.import_memories(exported).imported == 1
    assert [each.created_at for each in bob.list(("user", "bob"))] == [THEN]


def test_the_log_has_its_own_time(alice: Alcove, clock: ManualClock) -> None:
    """Events stay in the order of time, and the past is what this store held then."""
    alice.put(HOME, "a", {})
    clock.advance(10)
    before = to_datetime(clock.now)
    clock.advance(10)
    alice.import_memories([line("a"), line("b")])
    alice.put(HOME, "c", {})
    times = [event.occurred_at for event in alice.events(HOME).events]
    assert times == sorted(times)
    assert times[1] > before
    found = alice.get(HOME, "a", as_of=before)
    assert found is not None
    assert (found.revision, alice.get(HOME, "b", as_of=before)) == (1, None)
    assert [each.key for each in alice.list(HOME, as_of=times[-1])] == ["a", "b", "c"]
    assert [each.key for each in alice.events(HOME, before=before).events] == ["a"]
    assert [each.wrong for each in alice.as_user("root", roles=["admin"]).doctor() if each.wrong] == []


def test_a_time_to_come_is_not_believed(alice: Alcove, clock: ManualClock) -> None:
    alice.import_memories([line("k", "2999-01-01T00:00:00Z")])
    assert [each.created_at for each in alice.list(HOME)] == [to_datetime(clock.now)]


def test_what_is_written_over_is_written_now(alice: Alcove, clock: ManualClock) -> None:
    alice.import_memories([line("k")])
    assert alice.touch(HOME, "k", ttl_seconds=60).created_at == THEN
    clock.advance(1)
    assert alice.put(HOME, "k", {}).created_at == to_datetime(clock.now)


def test_retention_counts_from_when_it_was_written(open_store: Open, clock: ManualClock) -> None:
    settings = Settings(sweep_interval=0, retention_max_age={"user": 365})
    memory = open_store(clock=clock, settings=settings)
    recent = to_datetime(clock.now - 364 * DAY).isoformat()
    memory.import_memories([line("old"), line("recent", recent)])
    assert memory.sweep().aged == 1
    assert [each.key for each in memory.list(HOME)] == ["recent"]
    clock.advance(2 * 86400)
    assert memory.sweep().aged == 1


def test_a_search_knows_when_it_was_written(open_store: Open, clock: ManualClock) -> None:
    memory = open_store(clock=clock, embedder=Bag())
    texts = {"index": {"text": "we went to the sea"}}
    memory.import_memories([line("then", **texts), line("other", "2021-07-01T00:00:00Z", **texts)])
    for year, key in (("2020", "then"), ("2021", "other")):
        found = memory.search(HOME, query=f"when did we go to the sea in {year}", mode="keyword")
        assert found[0].key == key


@pytest.mark.parametrize("wrong", ["soon", "2020-01-01T00:00:00", 7, "0001-01-01T00:00:00+14:00"])
@pytest.mark.parametrize("field", ["created_at", "expires_at"])
def test_a_time_that_is_none_is_refused_with_its_line(alice: Alcove, field: str, wrong: object) -> None:
    report = alice.import_memories([line("k"), line("l", **{field: wrong})])
    assert (report.imported, [each.line for each in report.failed]) == (1, [2])


def test_a_moment_beyond_the_calendar_is_refused(alice: Alcove) -> None:
    for moment in ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(InvalidRequest, match="as_of"):
            alice.get(HOME, "k", as_of=moment)


@pytest.mark.parametrize(("one", "other"), [("1", "true"), ("1", "1.0"), ("false", "0"), ("0.0", "-0.0")])
def test_values_that_only_python_takes_for_equal_differ(alice: Alcove, one: str, other: str) -> None:
    for spelled in (one, other):
        brought = b'{"namespace": ["user", "alice"], "key": "k", "value": {"n": [%s]}}' % spelled.encode()
        assert alice.import_memories([brought]).imported == 1
        assert alice.import_memories([brought]).unchanged == 1
    memory = alice.get(HOME, "k")
    assert memory is not None
    assert json.dumps(memory.value) == json.dumps({"n": [json.loads(other)]})


def test_of_several_lines_for_one_key_the_last_holds(alice: Alcove) -> None:
    """As where an older export and a newer one are imported together."""
    older, newer = line("k", value={"n": "older"}), line("k", value={"n": "newer"})
    alice.import_memories([newer])
    assert alice.import_memories([older, newer]).failures == 0
    memory = alice.get(HOME, "k")
    assert memory is not None
    assert memory.value == {"n": "newer"}


@pytest.mark.parametrize("author", ["", "a" * 1019])
def test_an_author_whom_no_wipe_could_name_is_refused_with_its_line(alice: Alcove, author: str) -> None:
    admin = alice.as_user("root", roles=["admin"])
    report = admin.import_memories([line("k"), line("l", written_by={"user": author})])
    assert [(each.line, each.error.partition(":")[0]) for each in report.failed] == [(2, "written_by.user")]
