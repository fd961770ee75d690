"""The memories API through a real socket: what it answers to requests that are in order."""

from __future__ import annotations

import socket
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from alcove.server.jwt_tokens import make_token
from tests.support.service import Service, serving
from tests.support.waiting import PATIENCE, until

AT = "/v1/memories"
ENTRY = {
    "id", "namespace", "key", "attributes", "revision",
    "created_at", "added_at", "expires_at", "createdAt", "expiresAt",
}  # fmt: skip
MEMORY = ENTRY | {"value", "index", "written_by", "score"}
VERSION = {
    "id", "namespace", "key", "kind", "revision", "created_at", "expires_at",
    "value", "attributes", "index", "written_by",
}  # fmt: skip
EVENT = (VERSION - {"created_at", "index"}) | {"occurred_at", "cursor"}


def put(client: httpx.Client, room: list[str], key: str = "k", **more: Any) -> httpx.Response:
    headers = more.pop("headers", None)
    body = {"namespace": room, "key": key, "value": {"n": 1}, **more}
    return client.put(AT, json=body, headers=headers)


def get(client: httpx.Client, room: list[str], key: str = "k", **more: Any) -> httpx.Response:
    return client.get(AT, params={"ns": room, "key": key, **more})


def delete(client: httpx.Client, room: list[str], key: str = "k", **more: Any) -> httpx.Response:
    headers = more.pop("headers", None)
    return client.delete(AT, params={"ns": room, "key": key, **more}, headers=headers)


def search(client: httpx.Client, room: list[str], **more: Any) -> list[dict[str, Any]]:
    answer = client.post(f"{AT}/search", json={"namespace_prefix": room, **more})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def batch(client: httpx.Client, *operations: dict[str, Any], **headers: str) -> httpx.Response:
    return client.post(f"{AT}/batch", json={"operations": operations}, headers=headers)


def events(client: httpx.Client, room: list[str], **more: Any) -> dict[str, Any]:
    answer = client.get(f"{AT}/events", params={"ns": room, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def versions(client: httpx.Client, room: list[str], key: str = "k") -> list[dict[str, Any]]:
    answer = client.get(f"{AT}/history", params={"ns": room, "key": key})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["versions"])


def exchanged(service: Service, method: str, path: str) -> tuple[set[bytes], bytes]:
    """The head's lines and the body as they come from the socket: a client drops what follows a HEAD."""
    request = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-ID: same\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as connection:
        connection.sendall(request.encode())
        with connection.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
    return {line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:")}, body


def moment(text: str) -> datetime:
    """A time of an answer: RFC 3339, in UTC, to the microsecond."""
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


def test_a_put_answers_the_entry_without_its_value(client: httpx.Client, room: list[str]) -> None:
    answer = put(client, room, value={"drink": "tea"}, index={"text": "tea"}, ttl_seconds=60)
    assert answer.status_code == 200
    entry = answer.json()
    assert set(entry) == ENTRY | {"ttl_seconds"}
    assert (entry["namespace"], entry["key"], entry["revision"]) == (room, "k", 1)
    assert entry["createdAt"] == entry["created_at"]
    assert entry["expiresAt"] == entry["expires_at"]
    assert abs(moment(entry["created_at"]) - datetime.now(UTC)) < timedelta(minutes=1)
    assert moment(entry["expires_at"]) - moment(entry["created_at"]) == timedelta(seconds=60)


def test_a_get_answers_the_value_and_both_spellings_of_its_times(
    client: httpx.Client, room: list[str]
) -> None:
    value = {"text": "naïve \x00 🫖", "deep": {"list": [1, 2.5, None, True]}}
    entry = put(client, room, value=value, index={"text": "tea"}).json()
    memory = get(client, room).json()
    assert set(memory) == MEMORY
    assert memory["value"] == value
    assert memory["index"] == {"text": "tea"}
    assert memory["written_by"]["user"] == "noop"
    assert {name: memory[name] for name in ENTRY} == entry
    assert memory["expires_at"] is None
    assert memory["expiresAt"] is None


def test_what_is_absent_is_not_found_and_deletes_all_the_same(client: httpx.Client, room: list[str]) -> None:
    assert get(client, room).status_code == 404
    answer = delete(client, room)
    assert (answer.status_code, answer.content) == (204, b"")
    assert "x-request-id" in answer.headers


def test_a_head_answers_like_a_get_without_the_body(
    service: Service, client: httpx.Client, room: list[str]
) -> None:
    put(client, room)
    there, absent = (get(client, room, key).request.url.raw_path.decode() for key in ("k", "absent"))
    for path, status in (("/healthz", 200), ("/readyz", 200), (there, 200), (absent, 404)):
        expected, body = exchanged(service, "GET", path)
        assert any(line.startswith(b"HTTP/1.1 %d " % status) for line in expected), path
        assert body, path
        assert exchanged(service, "HEAD", path) == (expected, b""), path


def test_a_delete_takes_away_and_revisions_count_on(client: httpx.Client, room: list[str]) -> None:
    put(client, room)
    assert put(client, room).json()["revision"] == 2
    assert delete(client, room).status_code == 204
    assert get(client, room).json()["code"] == "not_found"
    assert put(client, room).json()["revision"] == 4


@pytest.mark.parametrize("guard", [{"expected_revision": 7}, {"expected_revision": 0}, {"create_only": True}])
def test_a_put_that_expects_something_else_is_a_conflict(
    client: httpx.Client, room: list[str], guard: dict[str, Any]
) -> None:
    put(client, room)
    answer = put(client, room, value={"n": 2}, **guard)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert get(client, room).json()["value"] == {"n": 1}


def test_revisions_that_are_as_expected_pass(client: httpx.Client, room: list[str]) -> None:
    assert put(client, room, create_only=True).status_code == 200
    assert put(client, room, expected_revision=1).status_code == 200
    assert delete(client, room, expected_revision=1).status_code == 409
    assert delete(client, room, expected_revision=2).status_code == 204
    assert delete(client, room, expected_revision=2).status_code == 409
    assert put(client, room, expected_revision=2).status_code == 409
    assert put(client, room, expected_revision=0).status_code == 200


def test_a_memory_lives_as_long_as_it_was_given(client: httpx.Client, room: list[str]) -> None:
    assert put(client, room, ttl_seconds=0).json()["expires_at"] is None
    put(client, room, "short", ttl_seconds=3)
    assert get(client, room, "short").status_code == 200
    until(lambda: get(client, room, "short").status_code == 404)
    assert [item["key"] for item in search(client, room)] == ["k"]
    assert put(client, room, "short").json()["expires_at"] is None
    kinds = [event["kind"] for event in events(client, room, limit=200)["events"] if event["key"] == "short"]
    assert kinds == ["add", "expired", "add"]


def test_as_of_shows_what_was_there(client: httpx.Client, room: list[str]) -> None:
    first = put(client, room).json()["created_at"]
    put(client, room, value={"n": 2})
    before = (moment(first) - timedelta(microseconds=1)).isoformat()
    assert get(client, room, as_of=first).json()["value"] == {"n": 1}
    assert get(client, room).json()["value"] == {"n": 2}
    assert get(client, room, as_of=before).status_code == 404
    assert [item["value"] for item in search(client, room, as_of=first)] == [{"n": 1}]
    elsewhere = moment(first).astimezone().isoformat()
    assert get(client, room, as_of=elsewhere).json()["revision"] == 1


def test_a_search_filters_orders_and_pages(client: httpx.Client, room: list[str]) -> None:
    for n in range(12):
        put(client, [*room, "b" if n % 2 else "a"], f"k{n:02}", value={"n": n, "odd": bool(n % 2)})
    everything = search(client, room, limit=100)
    assert [item["key"][-2:] for item in everything] == [
        "00", "02", "04", "06", "08", "10", "01", "03", "05", "07", "09", "11",
    ]  # fmt: skip
    assert set(everything[0]) == MEMORY
    assert {item["score"] for item in everything} == {None}
    assert len(search(client, room)) == 10
    assert search(client, room, limit=3, offset=5) == everything[5:8]
    assert [item["value"]["n"] for item in search(client, room, filter={"odd": True, "n": {"gt": 6}})] == [
        7, 9, 11,
    ]  # fmt: skip
    assert search(client, room, filter={"n": "7"}) == []
    assert [item["value"]["n"] for item in search(client, room, filter={"n": {"in": [3, 4.0]}})] == [4, 3]


def test_an_empty_prefix_is_narrowed_to_what_the_caller_may_see(tmp_path: Path) -> None:
    secret = "a secret that is long enough for a test"
    with serving(tmp_path, "--auth", "jwt", "--jwt-secret", secret) as service:
        bearers = {user: make_token(secret, user, [], seconds=600) for user in ("alice", "bob")}
        for user, bearer in bearers.items():
            body = {"namespace": ["user", user], "key": "k", "value": {}}
            assert service.call("PUT", AT, bearer, json=body).status_code == 200
        answer = service.call("POST", f"{AT}/search", bearers["alice"], json={"namespace_prefix": []})
        assert [item["namespace"] for item in answer.json()["items"]] == [["user", "alice"]]


def test_a_query_finds_by_meaning_and_says_how_near_and_why(client: httpx.Client, room: list[str]) -> None:
    for key, text in {"tea": "She drinks green tea every morning", "cat": "The cat is called Momo"}.items():
        body = {"namespace": room, "key": key, "value": {}, "index": {"text": text}, "wait_for_index": True}
        assert client.put(AT, json=body).status_code == 200
    asked = {"namespace_prefix": room, "query": "what is her favourite beverage?", "explain": True}
    answer = client.post(f"{AT}/search", json=asked).json()
    assert "degraded" not in answer
    assert [item["key"] for item in answer["items"]] == ["tea", "cat"]
    assert 1 >= answer["items"][0]["score"] > answer["items"][1]["score"] >= 0
    assert answer["items"][0]["explain"]["meaning"]["rank"] == 1


def test_namespaces_are_listed_by_prefix_suffix_and_depth(client: httpx.Client, room: list[str]) -> None:
    for below in (["a", "x"], ["b", "x"], ["b"]):
        put(client, [*room, *below])
    put(client, [*room, "gone"])
    delete(client, [*room, "gone"])

    def listed(**more: Any) -> list[list[str]]:
        answer = client.get(f"{AT}/namespaces", params={"prefix": room, **more})
        assert answer.status_code == 200, answer.text
        return [namespace[len(room) :] for namespace in answer.json()["namespaces"]]

    assert sorted(listed()) == [["a", "x"], ["b"], ["b", "x"]]
    assert sorted(listed(suffix=["x"])) == [["a", "x"], ["b", "x"]]
    assert listed(suffix=["b", "x"]) == [["b", "x"]]
    assert sorted(listed(max_depth=len(room) + 1)) == [["a"], ["b"]]


def test_events_tell_what_happened_page_by_page(client: httpx.Client, room: list[str]) -> None:
    put(client, room)
    put(client, room, value={"n": 2})
    delete(client, room)
    page = events(client, room)
    told = page["events"]
    assert [(event["kind"], event["revision"]) for event in told] == [
        ("add", 1),
        ("update", 2),
        ("delete", 3),
    ]
    assert {frozenset(event) for event in told} == {frozenset(EVENT)}
    assert (told[2]["value"], told[2]["attributes"]) == (None, None)
    assert told[1]["value"] == {"n": 2}
    assert [event["occurred_at"] for event in told] == sorted(event["occurred_at"] for event in told)

    first = events(client, room, limit=1)
    rest = events(client, room, after_cursor=first["after_cursor"])
    assert first["events"] + rest["events"] == told
    end = events(client, room, after_cursor=rest["after_cursor"])
    assert (end["events"], end["after_cursor"]) == ([], rest["after_cursor"])
    kept = events(client, room, kinds=["add", "delete"], after_cursor=told[0]["cursor"])
    assert [event["kind"] for event in kept["events"]] == ["delete"]
    between = {"after": told[0]["occurred_at"], "before": told[2]["occurred_at"]}
    assert [event["kind"] for event in events(client, room, **between)["events"]] == ["update"]


def test_history_is_newest_first_with_deletes(client: httpx.Client, room: list[str]) -> None:
    put(client, room)
    put(client, room, value={"n": 2})
    delete(client, room)
    found = versions(client, room)
    assert {frozenset(version) for version in found} == {frozenset(VERSION)}
    assert [(version["kind"], version["revision"], version["value"]) for version in found] == [
        ("delete", 3, None), ("update", 2, {"n": 2}), ("add", 1, {"n": 1}),
    ]  # fmt: skip
    assert found[0]["written_by"]["user"] == "noop"
    assert versions(client, room, "never") == []


def test_a_batch_answers_in_order_and_reads_its_own_writes(client: httpx.Client, room: list[str]) -> None:
    at = {"namespace": room, "key": "k"}
    answer = batch(
        client,
        {"op": "get", **at},
        {"op": "put", **at, "value": {"n": 1}},
        {"op": "get", **at},
        {"op": "touch", **at, "ttl_seconds": 60},
        {"op": "delete", **at, "expected_revision": 1},
        {"op": "get", **at},
    )
    assert answer.status_code == 200, answer.text
    absent, entry, memory, touched, gone, after = answer.json()["results"]
    assert (absent, after) == (None, None)
    assert set(entry) == ENTRY
    assert set(memory) == MEMORY
    assert memory["value"] == {"n": 1}
    assert (touched["revision"], touched["expires_at"] is None) == (1, False)
    assert (gone["deleted"], gone["revision"]) == (True, 2)


def test_a_refused_operation_refuses_its_batch(client: httpx.Client, room: list[str]) -> None:
    fine = {"op": "put", "namespace": room, "key": "k", "value": {}}
    foreign = {"op": "put", "namespace": ["user", "somebody"], "key": "k", "value": {}}
    for refused, status in (
        ({**fine, "expected_revision": 9}, 409),
        (foreign, 403),
        ({**fine, "key": "é" * 600}, 400),
    ):
        answer = batch(client, fine, {**fine, "key": "other"}, refused)
        assert (answer.status_code, answer.json()["details"]["operation"]) == (status, 2)
        assert search(client, room) == []


def test_an_idempotency_key_makes_a_write_happen_once(client: httpx.Client, room: list[str]) -> None:
    once = {"Idempotency-Key": uuid.uuid4().hex}
    first = put(client, room, headers=once)
    assert put(client, room, headers=once).json() == first.json()
    assert get(client, room).json()["revision"] == 1
    other = put(client, room, value={"n": 2}, headers=once)
    assert (other.status_code, other.json()["code"]) == (409, "conflict")

    once = {"Idempotency-Key": uuid.uuid4().hex}
    assert delete(client, room, headers=once).status_code == 204
    put(client, room)
    assert delete(client, room, headers=once).status_code == 204
    assert get(client, room).status_code == 200
    assert delete(client, room, "another", headers=once).status_code == 409

    once = {"Idempotency-Key": uuid.uuid4().hex}
    write = {"op": "put", "namespace": room, "key": "b", "value": {}}
    assert batch(client, write, **once).json() == batch(client, write, **once).json()
    assert batch(client, write, write, **once).status_code == 409
    assert get(client, room, "b").json()["revision"] == 1
