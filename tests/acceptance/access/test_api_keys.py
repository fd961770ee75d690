"""API keys: made and revoked by the command line, used against a running service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove
from tests.support.service import Service, alcove, assert_error, serving
from tests.support.store_inspection import raw_bytes
from tests.support.waiting import until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("keys"), "--auth", "apikey") as one:
        yield one


def create(at: Path, *flags: object) -> str:
    """A new key, as the command prints it."""
    made = alcove("apikey", "create", "--at", at, *flags)
    assert made.returncode == 0, made.stderr
    assert len(made.stdout.split()) == 1, "one key and nothing else, so that a script can take it"
    return made.stdout.strip()


def listed(at: Path) -> str:
    done = alcove("apikey", "list", "--at", at)
    assert done.returncode == 0, done.stderr
    return done.stdout


def id_of(key: str) -> str:
    return key.split("_")[1]


def with_key(key: str, user: str | None = None) -> dict[str, Any]:
    return {"headers": {"x-api-key": key, **({} if user is None else {"x-user-id": user})}}


def test_a_key_works_in_its_header_and_as_a_bearer_token(service: Service) -> None:
    key = create(service.at, "--client", "phone", "--user", "alice")
    assert service.put(["user", "alice"], "k", {"n": 1}, **with_key(key)).status_code == 200
    assert service.get(["user", "alice"], "k", token=key).json()["value"] == {"n": 1}
    denied = service.get(["user", "bob"], "k", token=key)
    assert assert_error(denied, 403, "permission_denied")["reason"]


@pytest.mark.parametrize("wrong", ["x", "alcove", "alcove_", "alcove__", "alcove_00_00", "é", "_" * 9])
def test_what_is_no_key_is_refused(service: Service, wrong: str) -> None:
    for name, value in (("x-api-key", wrong), ("authorization", f"Bearer {wrong}")):
        answer = service.look(headers={name: value.encode()})
        assert_error(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"]


def test_a_key_with_one_character_changed_is_refused(service: Service) -> None:
    key = create(service.at, "--client", "phone", "--user", "alice")
    for at in (0, key.index("_") + 1, len(key) // 2, len(key) - 1):
        wrong = key[:at] + ("A" if key[at] != "A" else "B") + key[at + 1 :]
        assert_error(service.look(**with_key(wrong)), 401, "unauthenticated")
    for wrong in (key + "x", key[:-1], key.upper(), id_of(key)):
        assert_error(service.look(**with_key(wrong)), 401, "unauthenticated")
    assert_error(service.look(), 401, "unauthenticated")
    assert service.look(**with_key(key)).status_code == 200


def test_a_key_is_shown_once_and_kept_as_a_hash(service: Service) -> None:
    key = create(service.at, "--client", "phone", "--user", "alice")
    assert service.look(**with_key(key)).status_code == 200
    secret = key.split("_", 2)[2]
    assert id_of(key).encode() in raw_bytes(service.at), "this looks at the wrong files"
    assert secret.encode() not in raw_bytes(service.at)
    assert secret not in listed(service.at)
    assert secret not in service.log


def test_the_list_says_whose_a_key_is(service: Service) -> None:
    flags = ["--client", "desk", "--user", "zoë", "--role", "admin", "--role", "auditor", "--trusted"]
    key = create(service.at, *flags)
    (line,) = [line for line in listed(service.at).splitlines() if id_of(key) in line]
    for word in ("desk", "zoë", "admin", "auditor", "yes"):
        assert word in line


def test_a_revoked_key_is_refused_at_once_while_the_service_runs(service: Service) -> None:
    key = create(service.at, "--client", "phone", "--user", "alice")
    other = create(service.at, "--client", "phone", "--user", "alice")
    assert service.look(**with_key(key)).status_code == 200
    done = alcove("apikey", "revoke", "--at", service.at, id_of(key))
    assert done.returncode == 0, done.stderr
    for _ in range(3):
        assert_error(service.look(**with_key(key)), 401, "unauthenticated")
        assert_error(service.look(token=key), 401, "unauthenticated")
    assert service.look(**with_key(other)).status_code == 200
    assert id_of(key) not in listed(service.at)
    again = alcove("apikey", "revoke", "--at", service.at, id_of(key))
    assert again.returncode == 1
    assert id_of(key) in again.stderr


def test_only_a_trusted_key_may_name_the_user(service: Service) -> None:
    plain = create(service.at, "--client", "phone", "--user", "alice")
    assert_error(service.look(**with_key(plain, "bob")), 403, "permission_denied")
    assert_error(service.look(**with_key(plain, "alice")), 403, "permission_denied")
    assert_error(service.look(**with_key(plain, "")), 403, "permission_denied")


def test_a_trusted_key_acts_for_the_user_it_names_and_for_nobody_else(service: Service) -> None:
    trusted = create(service.at, "--client", "gateway", "--trusted")
    assert_error(service.look(**with_key(trusted)), 401, "unauthenticated")
    assert_error(service.look(**with_key(trusted, "")), 401, "unauthenticated")
    assert service.put(["user", "eve"], "k", {"n": 1}, **with_key(trusted, "eve")).status_code == 200
    assert service.get(["user", "eve"], "k", **with_key(trusted, "eve")).status_code == 200
    assert_error(service.get(["user", "eve"], "k", **with_key(trusted, "bob")), 403, "permission_denied")


def test_a_user_named_in_a_header_may_have_any_character_of_utf_8(service: Service) -> None:
    trusted = create(service.at, "--client", "gateway", "--trusted")
    for user in ("zoë", "a:b", "%25", "日本", "a/b"):
        headers = {"x-api-key": trusted.encode(), "x-user-id": user.encode()}
        assert service.put(["user", user], "k", {"of": user}, headers=headers).status_code == 200
        assert service.get(["user", user], "k", headers=headers).json()["value"] == {"of": user}
    broken = {"x-api-key": trusted.encode(), "x-user-id": b"\xff"}
    assert service.look(headers=broken).status_code in (400, 401)
    answer = service.look(**with_key(trusted, "x" * 2000))
    assert assert_error(answer, 400, "invalid_request")["details"]["field"] == "X-User-ID"


def test_the_roles_of_a_key_reach_the_policy(service: Service) -> None:
    writer = create(service.at, "--client", "phone", "--user", "frank")
    assert service.put(["user", "frank"], "k", {}, **with_key(writer)).status_code == 200
    admin = create(service.at, "--client", "desk", "--user", "root", "--role", "admin")
    plain = create(service.at, "--client", "desk", "--user", "root")
    params = {"prefix": ["user", "frank"]}
    assert service.look(params=params, **with_key(admin)).json()["namespaces"] == [["user", "frank"]]
    assert service.look(params=params, **with_key(plain)).json()["namespaces"] == []


def test_history_and_the_log_say_which_client_wrote(service: Service) -> None:
    key = create(service.at, "--client", "phone-app", "--user", "gina")
    assert service.put(["user", "gina"], "k", {}, **with_key(key)).status_code == 200
    params = {"ns": ["user", "gina"], "key": "k"}
    answer = service.call("GET", "/v1/memories/history", params=params, **with_key(key))
    assert answer.json()["versions"][0]["written_by"]["client"] == "phone-app"
    until(lambda: any(each.get("client") == "phone-app" and each["user"] == "gina" for each in service.lines))


def test_a_key_made_before_the_service_starts_works_in_every_worker(tmp_path: Path) -> None:
    at = tmp_path / "memory.db"
    Alcove(at).close()
    key = create(at, "--client", "phone", "--user", "alice")
    with serving(tmp_path, "--auth", "apikey", "--workers", 2) as service:
        for _ in range(20):
            answer = service.look(headers={"x-api-key": key, "connection": "close"})
            assert answer.status_code == 200, answer.text


def test_a_key_that_could_act_for_nobody_is_not_made(tmp_path: Path) -> None:
    at = tmp_path / "memory.db"
    Alcove(at).close()
    without = alcove("apikey", "create", "--at", at, "--client", "phone")
    assert without.returncode == 2
    assert "--user" in without.stderr
    assert alcove("apikey", "create", "--at", at, "--user", "alice").returncode == 2
    assert len(listed(at).splitlines()) == 1


def test_an_absent_store_is_not_made_by_asking_for_its_keys(tmp_path: Path) -> None:
    absent = tmp_path / "absent.db"
    for command in (["create", "--client", "c", "--user", "u"], ["list"], ["revoke", "x"]):
        done = alcove("apikey", command[0], "--at", absent, *command[1:])
        assert done.returncode == 2
        assert str(absent.name) in done.stderr
    assert not absent.exists()
