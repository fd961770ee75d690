"""Operating a store over REST: who may, what is held of a person, and what is left of them."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from alcove import Alcove, Grant, Namespace, Principal
from tests.support.service import Service, alcove, assert_error, serving
from tests.support.store_inspection import raw_bytes
from tests.support.tokens import FLAGS, token
from tests.support.waiting import until

AT = "/v1/admin"
ADMIN = token("root", roles=["admin"])
AUDITOR = token("eve", roles=["auditor"])
ODD_USERS = ["a/b", "50%", "%2F", "a:b", "a b", "zoë 東京", "..", ".", "a?b#c", "\x00", "'; --", "+", "\\"]
READS = [
    "users/al",
    "users/al/memories",
    "users/al/export",
    "policies",
    "keys",
    "settings",
    "stats",
    "audit",
    "doctor",
    "apikeys",
]
CHANGES = [
    ("POST", "users/al/wipe"),
    ("DELETE", "users/al/memories/1"),
    ("PUT", "policies"),
    ("POST", "policies/test"),
    ("POST", "keys/rotate"),
    ("PUT", "settings"),
    ("GET", "backup"),
    ("POST", "apikeys"),
    ("DELETE", "apikeys/1"),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose callers have tokens, so that each test may have users of its own."""
    with serving(tmp_path_factory.mktemp("desk"), *FLAGS) as service:
        yield service


def at(user: str, rest: str = "") -> str:
    """Where a user is; dots too are encoded, for clients take `..` out of a path."""
    return f"{AT}/users/{quote(user, safe='').replace('.', '%2E')}{rest}"


def done(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def somebody(service: Service, user: str | None = None, memories: int = 2) -> str:
    """A user who has written something, as they would have."""
    user = user or f"user-{secrets.token_hex(8)}"
    for n in range(memories):
        done(service.put(["user", user], f"k{n}", {"n": n}, token(user)))
    return user


def entries(service: Service, **query: Any) -> list[dict[str, Any]]:
    return list(done(service.call("GET", f"{AT}/audit", ADMIN, params=query))["entries"])


@pytest.mark.parametrize("path", READS)
def test_an_auditor_reads(desk: Service, path: str) -> None:
    for who in (ADMIN, AUDITOR):
        assert desk.call("GET", f"{AT}/{path}", who).status_code == 200
    assert_error(desk.call("GET", f"{AT}/{path}", token("bo")), 403, "permission_denied")
    assert_error(desk.call("GET", f"{AT}/{path}"), 401, "unauthenticated")


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_an_auditor_changes_nothing(desk: Service, method: str, path: str) -> None:
    somebody(desk, "al", memories=1)
    for who in (AUDITOR, token("al"), token("bo", roles="admin"), token("bo", roles=["Admin"])):
        assert_error(desk.call(method, f"{AT}/{path}", who), 403, "permission_denied")
    assert desk.get(["user", "al"], "k0", token("al")).status_code == 200


@pytest.mark.parametrize(("method", "path"), [*CHANGES, *(("GET", path) for path in READS)])
def test_the_role_is_asked_for_before_what_was_sent_is_looked_at(
    desk: Service, method: str, path: str
) -> None:
    wrong: dict[str, Any] = {"params": {"colour": "red"}, "content": b"{"}
    assert_error(desk.call(method, f"{AT}/{path}", token("bo"), **wrong), 403, "permission_denied")
    assert_error(desk.call(method, f"{AT}/{path}", ADMIN, **wrong), 400, "invalid_request")


@pytest.mark.parametrize("user", ODD_USERS)
def test_a_user_may_be_called_anything(desk: Service, user: str) -> None:
    somebody(desk, user)
    held = done(desk.call("GET", at(user), ADMIN))
    assert (held["user"], held["memories"], held["key"]) == (user, 2, True)
    assert held["namespaces"][0]["namespace"] == ["user", user]
    items = done(desk.call("GET", at(user, "/memories"), ADMIN))["items"]
    assert [item["key"] for item in items] == ["k0", "k1"]
    assert desk.call("DELETE", at(user, f"/memories/{items[0]['id']}"), ADMIN).status_code == 204
    exported = desk.call("GET", at(user, "/export"), ADMIN).text.splitlines()
    versions = [json.loads(line) for line in exported]
    assert [(each["key"], each["kind"]) for each in versions] == [("k1", "add"), ("k0", "delete")]
    receipt = done(desk.call("POST", at(user, "/wipe"), ADMIN, json={}))
    assert (receipt["user"], receipt["removed"]["memories"]) == (user, 1)
    assert done(desk.call("GET", at(user), ADMIN))["memories"] == 0


def test_a_user_in_a_path_is_percent_encoded_utf_8(desk: Service) -> None:
    assert_error(desk.call("GET", f"{AT}/users/%FF", ADMIN), 400, "invalid_request")
    for path in (f"{AT}/users/", f"{AT}/users", f"{AT}/users//memories", f"{AT}/users/a/b/c"):
        assert_error(desk.call("GET", path, ADMIN), 404, "not_found")


def test_a_review_goes_page_by_page(desk: Service) -> None:
    user, seen, cursor = somebody(desk, memories=5), [], None
    while True:
        params = {"limit": 2, **({"after_cursor": cursor} if cursor else {})}
        page = done(desk.call("GET", at(user, "/memories"), AUDITOR, params=params))
        if not page["items"]:
            break
        seen += [item["key"] for item in page["items"]]
        cursor = page["after_cursor"]
    assert seen == [f"k{n}" for n in range(5)]
    for wrong in ({"limit": 0}, {"limit": 1001}, {"after_cursor": "x"}, {"colour": "red"}):
        answer = desk.call("GET", at(user, "/memories"), AUDITOR, params=wrong)
        assert assert_error(answer, 400, "invalid_request")["details"]["field"] == next(iter(wrong))


def test_a_memory_is_cleaned_once_and_only_of_its_user(desk: Service) -> None:
    user, other = somebody(desk), somebody(desk)
    (first, _) = done(desk.call("GET", at(user, "/memories"), ADMIN))["items"]
    for wrong in (at(other, f"/memories/{first['id']}"), at(user, "/memories/nothing")):
        assert_error(desk.call("DELETE", wrong, ADMIN), 404, "not_found")
    assert desk.call("DELETE", at(user, f"/memories/{first['id']}"), ADMIN).status_code == 204
    assert_error(desk.call("DELETE", at(user, f"/memories/{first['id']}"), ADMIN), 404, "not_found")
    history = desk.call(
        "GET", "/v1/memories/history", token(user), params={"ns": ["user", user], "key": "k0"}
    )
    assert [(each["kind"], each["value"]) for each in done(history)["versions"]] == [("delete", None)]
    (entry,) = entries(desk, action="memory.remove", user=user)
    assert (entry["actor"], entry["details"]["memory"]) == ("root", first["id"])


def test_a_wipe_that_waits_leaves_no_byte_and_says_so(desk: Service) -> None:
    user = somebody(desk)
    assert user.encode() in raw_bytes(desk.at), "this looks at the wrong files"
    receipt = done(desk.call("POST", at(user, "/wipe"), ADMIN, json={"wait": True}))
    assert receipt["scrubbed"] is receipt["key_destroyed"] is True
    assert receipt["removed"]["memories"] == receipt["removed"]["versions"] == 2
    assert receipt["shared"] == {"anonymise": 0}
    assert user.encode() not in raw_bytes(desk.at)
    assert desk.get(["user", user], "k0", token(user)).status_code == 404


def test_a_wipe_that_does_not_wait_is_finished_in_the_background(desk: Service) -> None:
    user, scrubs = somebody(desk), len(entries(desk, action="scrub"))
    receipt = done(desk.call("POST", at(user, "/wipe"), ADMIN))
    assert receipt["scrubbed"] is False
    until(lambda: len(entries(desk, action="scrub")) > scrubs)
    until(lambda: user.encode() not in raw_bytes(desk.at))


def test_wiping_nobody_is_not_found_and_harmless(desk: Service) -> None:
    other, nobody = somebody(desk), f"nobody-{secrets.token_hex(8)}"
    for body in ({"wait": True}, {"dry_run": True}):
        refused = assert_error(desk.call("POST", at(nobody, "/wipe"), ADMIN, json=body), 404, "not_found")
        assert refused["details"]["field"] == "user"
        assert refused["details"]["expected"]
    assert nobody.encode() not in raw_bytes(desk.at)
    assert done(desk.call("GET", at(other), ADMIN))["memories"] == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [({"shared": "burn"}, "shared"), ({"wait": 1}, "wait"), ({"shard": "keep"}, "shard"), ([], "body")],
)
def test_a_wipe_that_is_wrong_wipes_nothing(desk: Service, body: Any, field: str) -> None:
    user = somebody(desk)
    answer = desk.call("POST", at(user, "/wipe"), ADMIN, json=body)
    assert assert_error(answer, 400, "invalid_request")["details"]["field"] == field
    assert done(desk.call("GET", at(user), ADMIN))["memories"] == 2


@pytest.mark.parametrize(
    ("shared", "left", "author"), [("keep", 1, True), ("anonymise", 1, False), ("remove", 0, False)]
)
def test_what_was_written_into_shared_rooms_goes_as_told(
    desk: Service, shared: str, left: int, author: bool
) -> None:
    user, room = f"user-{secrets.token_hex(8)}", Namespace(("team", secrets.token_hex(8)))
    with Alcove(desk.at) as store:
        store.as_principal(Principal(user, grants=(Grant(room),))).put(room, "k", {"n": 2})
    assert done(desk.call("GET", at(user), ADMIN))["shared"] == 1
    receipt = done(desk.call("POST", at(user, "/wipe"), ADMIN, json={"wait": True, "shared": shared}))
    assert receipt["shared"].keys() == {shared}
    exported = desk.call("GET", "/v1/memories/export", ADMIN, params={"ns": room}).text.splitlines()
    assert len(exported) == left
    assert (user.encode() in raw_bytes(desk.at)) is author


def test_every_action_is_in_the_audit_log_and_no_content_is(desk: Service) -> None:
    user = somebody(desk)
    calls: list[tuple[str, str, Any]] = [
        ("user.export", at(user, "/export"), None),
        ("keys.rotate", f"{AT}/keys/rotate", None),
        ("settings.put", f"{AT}/settings", {"audit_days": 300}),
        ("policies.put", f"{AT}/policies", {}),
        ("store.backup", f"{AT}/backup", None),
        ("apikey.create", f"{AT}/apikeys", {"client": "phone", "user": user}),
        ("user.wipe", at(user, "/wipe"), {"wait": True}),
    ]
    for action, path, body in calls:
        put = action.endswith(".put")
        method = "PUT" if put else "GET" if path.endswith(("/export", "/backup")) else "POST"
        assert desk.call(method, path, ADMIN, json=body).status_code == 200, action
        newest = entries(desk, action=action, limit=1)[0]
        assert (newest["actor"], newest["action"]) == ("root", action)
    assert [entry["action"] for entry in entries(desk, user=user)] == ["user.wipe", "user.export"]
    assert user not in json.dumps(entries(desk, limit=1000))
    assert user.encode() not in raw_bytes(desk.at)


def test_the_audit_log_goes_page_by_page_newest_first(desk: Service) -> None:
    user, seen, cursor = somebody(desk), [], None
    for _ in range(5):
        desk.call("GET", at(user, "/export"), ADMIN)
    while True:
        params = {"user": user, "limit": 2, **({"after_cursor": cursor} if cursor else {})}
        page = done(desk.call("GET", f"{AT}/audit", AUDITOR, params=params))
        if not page["entries"]:
            break
        seen += page["entries"]
        cursor = page["after_cursor"]
    assert len(seen) == 5
    assert [each["at"] for each in seen] == sorted((each["at"] for each in seen), reverse=True)


def test_a_flood_of_denials_is_summarised(desk: Service) -> None:
    """Denied by the policy and by role alike; the names are pseudonyms."""
    stranger = f"stranger-{secrets.token_hex(8)}"
    for n in range(200):
        assert desk.get(["user", "al"], f"k{n}", token(stranger)).status_code == 403
        assert desk.call("POST", at("al", "/wipe"), token(stranger)).status_code == 403
    found = entries(desk, user=stranger, action="denied", limit=1000)
    assert len(found) < 20
    counts: Counter[str] = Counter()
    for entry in found:
        counts[entry["details"]["operation"]] += entry["details"]["count"]
    assert counts == {"read": 200, "POST /v1/admin/users/{user}/wipe": 200}
    assert stranger.encode() not in raw_bytes(desk.at)


def test_a_backup_taken_over_the_wire_restores(desk: Service, tmp_path: Path) -> None:
    user = somebody(desk)
    taken = desk.call("GET", f"{AT}/backup", ADMIN)
    assert taken.headers["content-type"] == "application/octet-stream"
    file, restored = tmp_path / "backup.db", tmp_path / "restored.db"
    file.write_bytes(taken.content)
    for beside in desk.at.parent.glob("memory.db.*"):
        (tmp_path / beside.name.replace("memory.db", "restored.db")).write_bytes(beside.read_bytes())
    said = alcove("restore", file, "--at", restored)
    assert said.returncode == 0, said.stderr
    with Alcove(restored) as store:
        found = store.as_user(user).get(["user", user], "k1")
        assert found is not None
        assert found.value == {"n": 1}
