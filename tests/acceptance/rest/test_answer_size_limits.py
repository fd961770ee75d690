"""Answers bounded in bytes over REST, by its client and by commands: whole records, and all in the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import alcove
from alcove.core.cursor import MAX_PAGE_BYTES
from tests.support.command import Command
from tests.support.service import Service, assert_error, serving

AT = "/v1/memories"
HOME = ["user", "noop"]
COUNT = 12
FIT = MAX_PAGE_BYTES // 900_000
KEYS = [f"k{n:02}" for n in range(COUNT)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One with a dozen large memories, and one memory with a dozen large versions."""
    with serving(tmp_path_factory.mktemp("bounds")) as service:
        for n, key in enumerate(KEYS):
            assert service.put([*HOME, "many"], key, {"n": n, "text": "x" * 900_000}).is_success
            assert service.put([*HOME, "one"], "k", {"n": n, "text": "x" * 900_000}).is_success
        yield service


def asked(service: Service, method: str, path: str, **more: Any) -> dict[str, Any]:
    answer = service.call(method, f"{AT}/{path}", **more)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < MAX_PAGE_BYTES + 2**20
    return dict(answer.json())


def test_a_batch_of_gets_goes_on_from_its_cursor(service: Service) -> None:
    body: dict[str, Any] = {
        "operations": [{"op": "get", "namespace": [*HOME, "many"], "key": key} for key in KEYS]
    }
    found = []
    while True:
        answer = asked(service, "POST", "batch", json=body)
        assert 1 <= len(answer["results"]) <= FIT
        found += [each["key"] for each in answer["results"]]
        if "after_cursor" not in answer:
            break
        body["after_cursor"] = answer["after_cursor"]
    assert found == KEYS
    thousand = {"operations": body["operations"][:1] * 1000}
    assert len(asked(service, "POST", "batch", json=thousand)["results"]) == FIT
    for wrong in ("x", 7):
        answer_ = service.call("POST", f"{AT}/batch", json={**body, "after_cursor": wrong})
        assert_error(answer_, 400, "invalid_request")


def test_a_batch_that_could_not_tell_what_it_wrote_is_413(service: Service) -> None:
    get = {"op": "get", "namespace": [*HOME, "many"], "key": KEYS[0]}
    put = {"op": "put", "namespace": HOME, "key": "new", "value": {}}
    answer = service.call("POST", f"{AT}/batch", json={"operations": [*[get] * COUNT, put]})
    assert assert_error(answer, 413, "payload_too_large")["details"]["operation"] == FIT
    assert service.get(HOME, "new").status_code == 404


def test_a_history_goes_on_from_its_cursor(service: Service) -> None:
    params: dict[str, Any] = {"ns": [*HOME, "one"], "key": "k"}
    found = []
    while True:
        answer = asked(service, "GET", "history", params=params)
        found += [each["revision"] for each in answer["versions"]]
        if "after_cursor" not in answer:
            break
        params["after_cursor"] = answer["after_cursor"]
    assert found == [*range(COUNT, 0, -1)]


def test_events_and_searches_say_that_there_is_more(service: Service) -> None:
    params: dict[str, Any] = {"ns": [*HOME, "many"], "limit": 200}
    keys, more = [], True
    while more:
        answer = asked(service, "GET", "events", params=params)
        keys += [each["key"] for each in answer["events"]]
        params["after_cursor"], more = answer["after_cursor"], "more" in answer
    assert keys == KEYS
    body: dict[str, Any] = {"namespace_prefix": [*HOME, "many"], "limit": 100, "offset": 0}
    keys = []
    while body["offset"] is not None:
        answer = asked(service, "POST", "search", json=body)
        keys += [each["key"] for each in answer["items"]]
        body["offset"] = answer.get("next_offset")
    assert keys == KEYS


def test_a_client_has_the_same_answers_and_lists_all(service: Service) -> None:
    with alcove.connect(service.url) as store:
        gets = [alcove.Get(namespace=[*HOME, "many"], key=key) for key in KEYS]
        results = store.batch(gets)
        after = results.after_cursor
        assert len(results) == FIT
        assert [each and each.key for each in store.batch(gets, after_cursor=after)] == KEYS[FIT : 2 * FIT]
        versions = store.history([*HOME, "one"], "k")
        older = store.history([*HOME, "one"], "k", after_cursor=versions.after_cursor)
        assert [each.revision for each in [*versions, *older]] == [*range(COUNT, COUNT - 2 * FIT, -1)]
        assert store.events([*HOME, "many"], limit=200).more
        assert store.search([*HOME, "many"], limit=100).next_offset == FIT
        assert [each.key for each in store.list([*HOME, "many"])] == KEYS


def test_a_command_goes_on_by_itself(service: Service) -> None:
    for at in (service.url, str(service.at)):
        command = Command(at)
        assert [each["key"] for each in command.lines("search", "user:noop:many")] == KEYS
        assert [each["key"] for each in command.lines("events", "user:noop:many")] == KEYS
        revisions = [each["revision"] for each in command.lines("history", "user:noop:one", "k")]
        assert revisions == [*range(COUNT, 0, -1)]
        assert command.json("diff", "user:noop:one", "k", "1", "2")["changes"] == [
            {"path": "n", "before": 0, "after": 1}
        ]


def test_a_stream_tells_every_event_however_large(service: Service) -> None:
    first = asked(service, "GET", "events", params={"ns": [*HOME, "many"], "limit": 1})["after_cursor"]
    keys: list[str] = []
    with alcove.connect(service.url) as store:
        for event in store.follow([*HOME, "many"], after_cursor=first):
            keys.append(event.key)
            if len(keys) == COUNT - 1:
                break
    assert keys == KEYS[1:]
