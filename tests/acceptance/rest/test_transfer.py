"""Export and import over REST: the same memories elsewhere, and one bad line holds up no other."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service, assert_error, serving
from tests.support.store_inspection import query
from tests.support.tokens import FLAGS, token
from tests.support.waiting import PATIENCE, until

AT = "/v1/memories"
OWN = ["user", "noop"]
LINES = {"content-type": "application/x-ndjson"}
KEPT = ("namespace", "key", "value", "index", "expires_at")
FAR = "2999-01-01T00:00:00.123456Z"


def exported(
    service: Service, ns: list[str] | None = None, bearer: str | None = None
) -> list[dict[str, Any]]:
    answer = service.call("GET", f"{AT}/export", bearer, params={"ns": ns or []})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text == "" or answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def line(key: str, value: Any = None, namespace: list[str] | None = None, **more: Any) -> bytes:
    made = {"namespace": namespace or OWN, "key": key, "value": {} if value is None else value, **more}
    return json.dumps(made).encode()


def imported(service: Service, lines: Any, bearer: str | None = None) -> dict[str, Any]:
    content = b"\n".join(lines) if isinstance(lines, list) else lines
    answer = service.call("POST", f"{AT}/import", bearer, content=content, headers=LINES)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def counts(report: dict[str, Any]) -> tuple[int, int, int]:
    assert report["failures"] >= len(report["failed"])
    return report["imported"], report["unchanged"], report["failures"]


@pytest.fixture
def jwt(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path, *FLAGS) as service:
        yield service


def test_what_is_exported_and_imported_elsewhere_is_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        assert one.put(
            [*OWN, "zoë 東京", "a:b%c"], 'k "1"\n', {"deep": [{"n": 1.5}, None, "\x00"]}
        ).is_success
        body = {"namespace": OWN, "key": "indexed", "value": {"big": 2**63 - 1}, "index": {"text": "tea ☕"}}
        assert one.call("PUT", AT, json={**body, "ttl_seconds": 3600}).is_success
        for n in range(450):
            assert one.put(OWN, f"k{n}", {"n": n}).is_success
        before = exported(one)
        assert len(before) == 452
        assert sum(each["expires_at"] is not None for each in before) == 1
        text = one.call("GET", f"{AT}/export").content
        assert counts(imported(two, text)) == (452, 0, 0)
        after = exported(two)
        assert [[each[name] for name in KEPT] for each in after] == [
            [each[name] for name in KEPT] for each in before
        ]
        cursor = two.call("GET", f"{AT}/events", params={"limit": 200}).json()["after_cursor"]
        for again in (two, one):
            assert counts(imported(again, text)) == (0, 452, 0)
        revisions = {each["revision"] for each in exported(two)}
        assert revisions == {1}, cursor


def test_only_what_differs_is_written(service: Service, room: list[str]) -> None:
    given = [line(f"k{n}", {"n": n}, room) for n in range(4)]
    assert counts(imported(service, given)) == (4, 0, 0)
    changed = [
        line("k0", {"n": 0}, room),
        line("k1", {"n": 1.0}, room),
        line("k2", {"n": 2}, room, index={"text": "tea"}),
        line("k3", {"n": 3}, room, expires_at=FAR),
    ]
    assert imported(service, changed)["imported"] in (2, 3)  # 1 and 1.0 may be told apart
    assert imported(service, changed)["imported"] == 0
    assert [each["expires_at"] for each in exported(service, room)][3] == FAR
    assert exported(service, room)[2]["index"] == {"text": "tea"}


def test_an_author_is_kept_for_an_admin_and_for_nobody_else(jwt: Service) -> None:
    who = {"user": "carol", "client": "phone", "agent": None}
    root, alice = token("root", roles=["admin"]), token("alice")
    for bearer, user, author in ((root, "root", "carol"), (alice, "alice", "alice")):
        given = line("k", {}, ["user", user], written_by=who)
        assert counts(imported(jwt, given, bearer)) == (1, 0, 0)
        assert exported(jwt, ["user", user], bearer)[0]["written_by"]["user"] == author


def test_one_broken_line_among_thousands_is_named_and_the_rest_imported(
    service: Service, room: list[str]
) -> None:
    given = [line(f"k{n:04}", {"n": n}, room) for n in range(3000)]
    given[1776] = b'{"namespace": ["user'
    report = imported(service, given)
    assert counts(report) == (2999, 0, 1)
    assert report["failed"][0]["line"] == 1777
    assert report["failed"][0]["error"]
    keys = [each["key"] for each in exported(service, room)]
    assert keys == [f"k{n:04}" for n in range(3000) if n != 1776]


@pytest.mark.parametrize(
    "wrong",
    [
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"key": "\xff"}',
        b"[" * 5000,
        line("k", {"a": "\ud800"}),
        line("", {}),
        line("k" * 1025, {}),
        line("k", []),
        line("k", {}, ["user", ""]),
        line("k", {}, [*OWN, "a", "b", "c", "d"]),
        line("k", {}, index={"a": 1}),
        line("k", {}, expires_at="soon"),
        line("k", {}, expires_at="2999-01-01T00:00:00"),
        line("k", {"a": "x" * 2**20}),
    ],
    ids=repr,
)
def test_a_line_that_is_wrong_fails_alone(service: Service, room: list[str], wrong: bytes) -> None:
    report = imported(service, [line("a", {}, room), b"", wrong, line("b", {}, room)])
    assert counts(report) == (2, 0, 1), report
    assert report["failed"][0]["line"] == 3
    assert [each["key"] for each in exported(service, room)] == ["a", "b"]


def test_lines_may_end_in_any_way(service: Service, room: list[str]) -> None:
    given = b"\r\n".join([line("a", {}, room), b"", b"  ", line("b", {}, room)])
    assert counts(imported(service, given)) == (2, 0, 0)
    assert counts(imported(service, given + b"\r\n")) == (0, 2, 0)
    assert counts(imported(service, b"")) == (0, 0, 0)
    one_by_one = (bytes([each]) for each in line("c", {}, room) + b"\n")
    assert counts(imported(service, one_by_one)) == (1, 0, 0)


def test_what_has_expired_stays_gone(service: Service, room: list[str]) -> None:
    given = [line("old", {}, room, expires_at="2020-01-01T00:00:00Z"), line("new", {}, room, expires_at=FAR)]
    assert imported(service, given)["imported"] == 1
    assert [each["key"] for each in exported(service, room)] == ["new"]


def test_lines_for_others_fail_alone_for_who_is_no_admin(jwt: Service) -> None:
    alice = token("alice")
    given = [line(f"k{n:03}", {}, ["user", "alice" if n % 3 else "bob"]) for n in range(300)]
    report = imported(jwt, given, alice)
    assert counts(report) == (200, 0, 100)
    assert [each["line"] for each in report["failed"]] == list(range(1, 301, 3))
    assert len(exported(jwt, [], alice)) == 200
    assert exported(jwt, ["user", "bob"], token("root", roles=["admin"])) == []


def test_at_most_a_thousand_failures_are_told_and_all_are_counted(service: Service) -> None:
    report = imported(service, [b"nonsense"] * 1500)
    assert counts(report) == (0, 0, 1500)
    assert [each["line"] for each in report["failed"]] == list(range(1, 1001))


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain"])
def test_lines_of_another_type_are_unsupported(
    service: Service, room: list[str], content_type: str | None
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    answer = service.call("POST", f"{AT}/import", content=line("k", {}, room), headers=headers)
    assert_error(answer, 415, "unsupported_media_type")
    assert exported(service, room) == []


def test_an_export_is_of_what_the_caller_may_see(jwt: Service) -> None:
    alice, bob, root = token("alice"), token("bob"), token("root", roles=["admin"])
    for user, bearer in (("alice", alice), ("bob", bob)):
        assert jwt.put(["user", user], "k", {"of": user}, bearer).is_success
    assert [each["value"] for each in exported(jwt, [], alice)] == [{"of": "alice"}]
    assert [each["value"] for each in exported(jwt, ["user", "bob"], alice)] in ([], [{"of": "alice"}])
    assert [each["value"]["of"] for each in exported(jwt, [], root)] == ["alice", "bob"]
    assert_error(jwt.call("GET", f"{AT}/export"), 401, "unauthenticated")
    assert_error(jwt.call("GET", f"{AT}/export", alice, params={"key": "k"}), 400, "invalid_request")


def test_a_client_that_goes_away_half_way_leaves_whole_lines_and_no_fault(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        whole = b"".join(line(f"k{n:04}", {"n": n}) + b"\n" for n in range(1000))
        with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as one:
            head = f"POST {AT}/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            one.sendall(head.encode() + b"Content-Length: 10000000\r\n\r\n" + whole[:-10])
            until(lambda: query(service.at, "SELECT 1 FROM versions LIMIT 1"))
        found = exported(service)
        assert [each["value"] for each in found] == [{"n": n} for n in range(len(found))]
        assert 0 < len(found) < 1000
        added, unchanged, failed = counts(imported(service, whole))
        assert (added + unchanged, failed) == (1000, 0)
        assert unchanged >= len(found)  # what was under way when the client left may have come since


def test_an_export_under_writes_has_everything_untouched_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", 2) as service:
        fixed = [line(f"fixed-{n:04}", {"n": n}, [*OWN, f"{n % 7}"]) for n in range(2000)]
        assert counts(imported(service, fixed)) == (2000, 0, 0)
        stop = threading.Event()
        writer = threading.Thread(target=_disturb, args=(service, stop))
        writer.start()
        try:
            for _ in range(5):
                keys = [each["key"] for each in exported(service)]
                untouched = [key for key in keys if key.startswith("fixed")]
                assert sorted(untouched) == [f"fixed-{n:04}" for n in range(2000)]
                assert len(set(keys)) == len(keys)
        finally:
            stop.set()
            writer.join(PATIENCE)


def _disturb(service: Service, stop: threading.Event) -> None:
    """Writes and deletes all around, until told to stop."""
    n = 0
    while not stop.is_set():
        n += 1
        ns, before = [*OWN, f"{n % 7}"], "agz"[n % 3]  # before, beside and behind what is fixed
        operations = [
            {"op": "put", "namespace": ns, "key": f"{before}-{n % 7}-{n % 50}", "value": {"n": n}},
            {"op": "delete", "namespace": ns, "key": f"{before}-{n % 7}-{n % 49}"},
        ]
        answer = service.call("POST", f"{AT}/batch", json={"operations": operations})
        assert answer.status_code == 200
