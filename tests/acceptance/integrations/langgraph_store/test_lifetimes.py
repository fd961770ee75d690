"""How long items live, and what their times say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from langgraph.store.base import (
    PutOp,
)

from alcove import InvalidRequest
from alcove.client.store import Store
from alcove.integrations.langgraph import AlcoveStore
from tests.support.clock import ManualClock
from tests.support.langgraph_stores import (
    HOME,
    OWN,
    Deployment,
    Open,
    in_a_file,
    keys,
    room,
)
from tests.support.waiting import until


def expiry(handle: Store, user: str, key: str) -> datetime:
    memory = handle.get(room(user, *HOME), key)
    assert memory
    assert memory.expires_at
    return memory.expires_at


def test_ttls_are_minutes_and_reading_begins_them_anew(open_store: Open, deployment: Deployment) -> None:
    handle = deployment.handle(user := deployment.new_user())
    store = open_store(handle, index=["text"])
    before = datetime.now(UTC)
    store.put(HOME, "k", {"text": "tea"}, ttl=2.5)
    first = expiry(handle, user, "k")
    assert timedelta(seconds=150) <= first - before < timedelta(seconds=210)
    store.get(HOME, "k", refresh_ttl=False)
    store.search(HOME, refresh_ttl=False)
    assert expiry(handle, user, "k") == first
    store.get(HOME, "k")
    second = expiry(handle, user, "k")
    store.search(HOME)
    third = expiry(handle, user, "k")
    store.search(HOME, query="tea")
    assert first < second < third < expiry(handle, user, "k")
    assert expiry(handle, user, "k") - third < timedelta(seconds=60), "as long as before, not twice as long"
    item = store.get(HOME, "k")
    assert item
    assert item.updated_at < second - timedelta(seconds=150) + timedelta(seconds=1), "reading is no writing"


def test_a_ttl_config_gives_a_ttl_and_says_whether_reading_refreshes_it(
    open_store: Open, deployment: Deployment
) -> None:
    handle = deployment.handle(user := deployment.new_user())
    store = open_store(handle, ttl={"default_ttl": 5, "refresh_on_read": False})
    store.put(HOME, "k", {})
    store.put(HOME, "longer", {}, ttl=60)
    store.put(HOME, "for ever", {}, ttl=None)
    first = expiry(handle, user, "k")
    assert timedelta(minutes=54) < expiry(handle, user, "longer") - first < timedelta(minutes=56)
    memory = handle.get(room(user, *HOME), "for ever")
    assert memory
    assert memory.expires_at is None
    store.get(HOME, "k")
    store.search(HOME)
    assert expiry(handle, user, "k") == first
    store.get(HOME, "k", refresh_ttl=True)
    assert expiry(handle, user, "k") > first
    store.put(HOME, "k", {}, ttl=None)
    memory = handle.get(room(user, *HOME), "k")
    assert memory
    assert memory.expires_at is None, "the last put says how long"


def test_an_item_is_gone_when_its_time_is_over(path: Path, clock: ManualClock) -> None:
    with (
        in_a_file(path, clock) as deployment,
        AlcoveStore(deployment.trusted, index=["text"], root=OWN) as store,
    ):
        store.put(HOME, "k", {"text": "tea"}, ttl=2)
        store.put(("brief",), "brief", {"text": "tea"}, ttl=0.001)
        clock.advance(1.1)
        assert store.get(("brief",), "brief") is None, "a second is the least"
        clock.advance(100)
        assert store.get(HOME, "k"), "which refreshes it"
        clock.advance(110)
        assert keys(store.search((), query="tea")) == ["k"], "which refreshes it"
        clock.advance(110)
        assert store.get(HOME, "k", refresh_ttl=False)
        assert store.search(HOME, refresh_ttl=False)
        assert store.list_namespaces() == [HOME]
        clock.advance(11)
        assert store.get(HOME, "k") is None
        assert store.search(()) == store.search((), query="tea") == store.list_namespaces() == []
        store.put(HOME, "k", {"text": "rain"})
        clock.advance(10**6)
        assert store.get(HOME, "k")


def test_an_item_of_a_server_is_gone_when_its_time_is_over(at_url: Deployment) -> None:
    store = AlcoveStore(at_url.handle(at_url.new_user()), root=OWN)
    store.put(HOME, "k", {}, ttl=1 / 60)
    until(lambda: store.get(HOME, "k", refresh_ttl=False) is None)
    assert store.search(()) == store.list_namespaces() == []


def test_more_than_a_thousand_items_that_expire_are_found_at_once(path: Path) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted, root=OWN) as store:
        store.batch([PutOp(HOME, f"k{n}", {}, ttl=5) for n in range(1001)])
        assert len(store.search(HOME, limit=2000)) == 1001


def test_a_ttl_that_no_item_can_have_is_refused(path: Path) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted, root=OWN) as store:
        for ttl in (1e12, float("inf"), float("nan")):
            with pytest.raises(InvalidRequest, match="ttl"):
                store.put(HOME, "k", {}, ttl=ttl)


def test_an_item_knows_when_it_was_made_and_when_it_was_last_changed(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "k", {"text": "tea"}, ttl=5)
    first = store.get(HOME, "k")
    assert first
    assert first.created_at == first.updated_at
    assert timedelta() <= datetime.now(UTC) - first.created_at < timedelta(minutes=1)
    store.put(HOME, "k", {"text": "rain"})
    for again in (store.get(HOME, "k"), *store.search(HOME), *store.search(HOME, query="rain")):
        assert again
        assert again.created_at == first.created_at
        assert again.updated_at > first.updated_at
    store.delete(HOME, "k")
    store.put(HOME, "k", {"text": "tea"})
    anew = store.get(HOME, "k")
    assert anew
    assert anew.created_at == anew.updated_at > first.created_at
