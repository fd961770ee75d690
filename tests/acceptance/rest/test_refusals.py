"""The API through a real socket: what it refuses, in which words, and what it keeps to itself.

Wrong arguments that a store in this process refuses as well are in `test_rules.py`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.service import Service, assert_error, serving
from tests.support.waiting import until

AT = "/v1/memories"
OWN = ["user", "noop"]
JSON = {"content-type": "application/json"}
GOOD: dict[str, Any] = {"namespace": OWN, "key": "k", "value": {}}
MEBI = 1024 * 1024


def names(answer: httpx.Response, field: str) -> None:
    """A 400 that says which field it is about, to people and to programs."""
    error = assert_error(answer, 400, "invalid_request")
    assert error["details"]["field"] == field
    assert field in error["error"]


@pytest.mark.parametrize("field", ["namespace", "key", "value"])
def test_a_put_that_lacks_something_names_it(client: httpx.Client, field: str) -> None:
    names(client.put(AT, json={name: GOOD[name] for name in GOOD if name != field}), field)


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("PUT", AT, {**GOOD, "namespace": "user:noop"}, "namespace"),
        ("PUT", AT, {**GOOD, "colour": "red"}, "colour"),
        ("POST", f"{AT}/search", {"namespace_prefix": None}, "namespace_prefix"),
        ("POST", f"{AT}/search", {"namespace_prefix": OWN, "order": "key"}, "order"),
    ],
)
def test_a_body_that_is_not_as_described_names_the_field(
    client: httpx.Client, method: str, path: str, body: dict[str, Any], field: str
) -> None:
    names(client.request(method, path, json=body), field)


@pytest.mark.parametrize(
    ("method", "path", "query", "field"),
    [
        ("GET", AT, "key=k", "ns"),
        ("GET", AT, "ns=user&ns=noop", "key"),
        ("GET", AT, "ns=user&ns=noop&key=k&key=l", "key"),
        ("GET", AT, "ns=user&ns=noop&key=k&colour=red", "colour"),
        ("DELETE", AT, "ns=user&ns=noop&key=k&expected_revision=null", "expected_revision"),
        ("DELETE", AT, "ns=user&ns=noop&key=k&expected_revision=1.0", "expected_revision"),
        ("DELETE", AT, "ns=user&ns=noop&key=k&as_of=now", "as_of"),
        ("GET", f"{AT}/namespaces", "max_depth=null", "max_depth"),
        ("GET", f"{AT}/namespaces", "depth=1", "depth"),
        ("GET", f"{AT}/history", "ns=user&ns=noop&key=k&limit=1", "limit"),
        ("PUT", AT, "ns=user", "ns"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(
    client: httpx.Client, method: str, path: str, query: str, field: str
) -> None:
    names(client.request(method, f"{path}?{query}", json=GOOD if method == "PUT" else None), field)


def test_a_batch_that_is_wrong_names_the_operation(client: httpx.Client) -> None:
    wrong = {"op": "get", "namespace": OWN, "key": ""}
    answer = client.post(f"{AT}/batch", json={"operations": [{"op": "put", **GOOD}, wrong]})
    names(answer, "operations[1].key")
    assert answer.json()["details"]["operation"] == 1


def test_a_batch_may_have_a_thousand_operations(client: httpx.Client) -> None:
    read = {"op": "get", "namespace": OWN, "key": "k"}
    assert client.post(f"{AT}/batch", json={"operations": [read] * 1000}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"namespace": ["a"],}', b'{"key": "\xff"}', b'{"key": NaN}', b"[" * 100_000],
)
def test_a_body_that_is_no_json_object_in_utf_8_is_refused(client: httpx.Client, body: bytes) -> None:
    names(client.put(AT, content=body, headers=JSON), "body")


def test_a_query_that_is_not_utf_8_is_refused(client: httpx.Client) -> None:
    for key in ("%ff", "%ED%A0%80"):
        assert_error(client.get(f"{AT}?ns=user&ns=noop&key={key}"), 400, "invalid_request")


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_of_another_type_is_unsupported(client: httpx.Client, content_type: str | None) -> None:
    headers = {"content-type": content_type} if content_type else {}
    answer = client.put(AT, content=json.dumps(GOOD).encode(), headers=headers)
    assert_error(answer, 415, "unsupported_media_type")


def test_a_content_type_may_name_its_charset(client: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.put(AT, content=json.dumps(GOOD).encode(), headers=headers).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_four_mebibytes_is_too_large(client: httpx.Client, declared: bool) -> None:
    body = json.dumps({**GOOD, "value": {"a": "x" * (4 * MEBI)}}).encode()
    pieces: Iterator[bytes] = (body[at : at + 65536] for at in range(0, len(body), 65536))
    answer = client.put(AT, content=body if declared else pieces, headers=JSON)
    assert_error(answer, 413, "payload_too_large")


def test_a_value_over_one_mebibyte_is_too_large(client: httpx.Client) -> None:
    fits = {"a": "x" * (MEBI - len('{"a":""}'))}
    assert client.put(AT, json={**GOOD, "key": "large", "value": fits}).status_code == 200
    answer = client.put(AT, json={**GOOD, "value": {"a": fits["a"] + "x"}})
    assert assert_error(answer, 413, "payload_too_large")["details"]["field"] == "value"


def test_a_path_that_leads_nowhere_is_not_found(client: httpx.Client) -> None:
    for path in ("/v", "/v1", f"{AT}/", "/v1/memories/nope", "/%ff"):
        assert_error(client.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"), [("POST", AT, "DELETE, GET, PUT"), ("PUT", "/healthz", "GET")]
)
def test_a_method_that_is_not_there_is_told_which_are(
    client: httpx.Client, method: str, path: str, allow: str
) -> None:
    answer = client.request(method, path)
    assert_error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allow


def test_a_request_id_is_echoed_or_made(client: httpx.Client) -> None:
    assert client.get("/healthz", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
    answer = client.get("/nope", headers={"X-Request-ID": "mine-2"})
    assert assert_error(answer, 404, "not_found")["request_id"] == "mine-2"
    made = {client.get("/healthz").headers["x-request-id"] for _ in range(10)}
    assert len(made) == 10
    for unfit in ("a b", "x" * 200, ""):
        assert client.get("/healthz", headers={"X-Request-ID": unfit}).headers["x-request-id"] not in (
            "",
            unfit,
        )


def test_a_moment_before_the_retained_history_names_the_earliest_one(tmp_path: Path) -> None:
    with serving(tmp_path, "--retention-days", "0.000001", "--sweep-interval", "0.1") as forgetful:
        *_, written = [forgetful.put(OWN, key, {}).json() for key in ("k", "k", "other")]
        params = {"ns": OWN, "key": "k", "as_of": "1999-01-01T00:00:00Z"}
        until(lambda: forgetful.call("GET", AT, params=params).status_code != 404)
        answer = forgetful.call("GET", AT, params=params)
    names(answer, "as_of")
    assert written["created_at"][:10] in answer.json()["error"]


def test_somebody_elses_room_is_denied_with_the_policys_reason(client: httpx.Client) -> None:
    foreign = {"ns": ["user", "somebody"], "key": "k"}
    for answer in (
        client.put(AT, json={**GOOD, "namespace": foreign["ns"]}),
        client.get(AT, params=foreign),
        client.delete(AT, params=foreign),
        client.get(f"{AT}/history", params=foreign),
    ):
        assert assert_error(answer, 403, "permission_denied")["reason"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8080"},
    ],
)
def test_noop_serves_no_other_origin_and_no_other_host(client: httpx.Client, headers: dict[str, str]) -> None:
    answer = client.get(AT, params={"ns": OWN, "key": "k"}, headers=headers)
    assert_error(answer, 403, "permission_denied")


def test_noop_serves_pages_of_this_machine(client: httpx.Client) -> None:
    for headers in ({"Origin": "http://localhost:3000"}, {"Host": "localhost"}, {"Host": "[::1]:8080"}):
        assert client.get(f"{AT}/namespaces", headers=headers).status_code == 200


def test_the_log_has_one_line_a_request_and_no_content(service: Service, client: httpx.Client) -> None:
    secret = uuid.uuid4().hex
    room = [*OWN, f"ns-{secret}"]
    at = {"ns": room, "key": f"key-{secret}"}
    body = {"namespace": room, "key": f"key-{secret}", "value": {"v": secret}, "index": {"t": secret}}
    sent = [
        client.put(AT, json=body),
        client.get(AT, params=at),
        client.post(f"{AT}/search", json={"namespace_prefix": room, "query": secret}),
        client.post(f"{AT}/search", json={"namespace_prefix": room, "filter": {secret: secret}}),
        client.put(AT, json={**body, "expected_revision": 9}),
        client.put(AT, json={**body, secret: 1}),
        client.put(AT, content=b'{"' + secret.encode(), headers=JSON),
        client.get(f"/{secret}?{secret}=1"),
        client.delete(AT, params=at),
    ]
    assert [each.status_code for each in sent] == [200, 200, 200, 200, 409, 400, 400, 404, 204]
    for answer in sent:
        (line,) = service.requests(answer.headers["x-request-id"])
        assert (line["status"], line["method"]) == (answer.status_code, answer.request.method)
        assert {"time", "level", "path", "ms", "user"} <= set(line)
    assert secret not in service.log
