"""One caller a request: one header of each kind, one credential, tokens and API keys on the same server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from alcove.client.embedded import Alcove
from tests.support.issuer import issuing
from tests.support.service import Service, alcove, assert_error, refused, serving
from tests.support.tokens import FLAGS, SECRET, token

BOTH = ("--auth", "jwt,apikey", "--jwt-secret", SECRET)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that takes tokens and API keys."""
    folder = tmp_path_factory.mktemp("both")
    with serving(folder, *BOTH) as service:
        yield service


def key_of(service: Service, *flags: str) -> str:
    done = alcove("apikey", "create", "--at", service.at, "--client", "app", *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ask(service: Service, *headers: tuple[str, str]) -> httpx.Response:
    """A request with these headers, each as often as it is given."""
    return service.client.request("GET", "/v1/me", headers=[*headers])


def test_a_token_and_a_key_are_both_taken_for_whom_they_name(both: Service) -> None:
    key = key_of(both, "--user", "bob")
    assert ask(both, ("authorization", f"Bearer {token('alice')}")).json()["user"] == "alice"
    assert ask(both, ("authorization", f"Bearer {key}")).json()["user"] == "bob"
    assert ask(both, ("x-api-key", key)).json()["user"] == "bob"


def test_where_both_are_taken_what_is_neither_is_refused(both: Service) -> None:
    key = key_of(both, "--user", "bob")
    foreign = token(secret="another secret that is as long as it should be")
    bearers = ("x", "alcove_x_y", foreign, key.upper())
    keys = ("", "x", token("alice"), f"{key}x")
    wrong = [(("authorization", f"Bearer {each}"),) for each in bearers]
    wrong += [(("x-api-key", each),) for each in keys]
    for headers in [*wrong, (), (("authorization", f"Basic {key}"),)]:
        assert_error(ask(both, *headers), 401, "unauthenticated")


def test_a_token_beside_a_key_is_refused_whoever_they_are_of(both: Service) -> None:
    key = key_of(both, "--user", "alice")
    for bearer in (token("alice"), token("bob"), key, "x"):
        answer = ask(both, ("authorization", f"Bearer {bearer}"), ("x-api-key", key))
        assert assert_error(answer, 400, "invalid_request")["details"]["field"] == "X-API-Key"


def test_only_a_trusted_key_names_the_user_where_tokens_are_taken_too(both: Service) -> None:
    trusted, plain = key_of(both, "--trusted"), key_of(both, "--user", "bob")
    named = ("x-user-id", "carol")
    assert ask(both, ("x-api-key", trusted), named).json()["user"] == "carol"
    for given in (("x-api-key", plain), ("authorization", f"Bearer {token('alice')}")):
        assert_error(ask(both, given, named), 403, "permission_denied")


def test_a_browser_signs_in_with_either(both: Service) -> None:
    for given, user in ((token("alice"), "alice"), (key_of(both, "--user", "bob"), "bob")):
        with httpx.Client(base_url=both.url, trust_env=False) as browser:
            browser.post("/panel/session", json={"token": given}).raise_for_status()
            here = browser.get("/panel/session").json()
            assert (here["user"], here["authentication"]) == (user, "jwt,apikey")


def test_signing_in_goes_by_the_token_alone(both: Service) -> None:
    """A key in a header beside it must not be what is checked."""
    key = key_of(both, "--user", "bob")
    answer = both.call("POST", "/panel/session", json={"token": "made up"}, headers={"x-api-key": key})
    assert_error(answer, 401, "unauthenticated")


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("X-User-ID", "alice", "bob"),
        ("X-User-ID", "alice", "alice"),
        ("Authorization", f"Bearer {token('alice')}", f"Bearer {token('bob')}"),
        ("X-API-Key", "alcove_a_b", "alcove_c_d"),
        ("Cookie", "a=1", "b=2"),
        ("Origin", "http://localhost", "http://elsewhere"),
    ],
)
def test_a_header_that_says_who_calls_or_whence_is_given_once(
    both: Service, name: str, first: str, second: str
) -> None:
    trusted = [("x-api-key", key_of(both, "--trusted"))] if name == "X-User-ID" else []
    known = (
        []
        if name in ("Authorization", "X-API-Key", "X-User-ID")
        else [("authorization", f"Bearer {token()}")]
    )
    answer = ask(both, *trusted, *known, (name, first), (name.lower(), second))
    told = assert_error(answer, 400, "invalid_request")
    assert told["details"]["field"] == name
    assert "once" in told["error"]


def test_two_hosts_are_refused(both: Service) -> None:
    """By a socket: no client of ours would send them."""
    known = f"Authorization: Bearer {token('alice')}\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", both.port)) as connection:
        head = f"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n{known}\r\n"
        connection.sendall(head.encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"Host: expected to be given once"' in answer


def test_a_header_that_identifies_nobody_may_be_repeated(both: Service) -> None:
    known = ("authorization", f"Bearer {token('alice')}")
    assert ask(both, known, ("accept", "a/b"), ("accept", "c/d")).status_code == 200


def test_noop_cannot_be_combined_and_tokens_need_their_secret(tmp_path: Path) -> None:
    for auth in ("noop,jwt", "jwt,noop", "apikey,noop", "jwt,magic"):
        assert "--auth" in refused(tmp_path, "--auth", auth)
    assert "--jwt-secret" in refused(tmp_path, "--auth", "jwt,apikey")


@pytest.mark.parametrize("auth", ["jwt", "jwt,apikey"])
def test_a_short_secret_is_refused_where_others_reach_the_server(tmp_path: Path, auth: str) -> None:
    for secret in ("short", "x" * 31, "é" * 15):
        said = refused(tmp_path, "--host", "0.0.0.0", "--auth", auth, "--jwt-secret", secret)
        assert "jwt-secret: expected at least 32 bytes" in said
        assert secret not in said


def test_a_short_secret_is_warned_of_on_this_machine(tmp_path: Path) -> None:
    with serving(tmp_path, "--auth", "jwt", "--jwt-secret", "x" * 31) as service:
        (line,) = [line for line in service.lines if "fewer than 32 bytes" in line["event"]]
        assert line["level"] == "warning"


def test_tokens_without_an_audience_are_warned_of_once_and_with_one_not_at_all(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS, "--workers", 2) as service:
        (line,) = [line for line in service.lines if "jwt-audience" in line["event"]]
        assert line["level"] == "warning"
        assert "--jwt-audience" in line["event"]
        assert "ALCOVE_JWT_AUDIENCE" in line["event"]
    with serving(tmp_path, *FLAGS, "--jwt-audience", "memory") as service:
        assert "audience" not in service.log
    with serving(tmp_path, "--auth", "apikey") as service:
        assert "audience" not in service.log


def test_the_way_callers_are_known_may_come_from_the_environment(tmp_path: Path) -> None:
    env = {"ALCOVE_AUTH": "jwt,apikey", "ALCOVE_JWT_SECRET": SECRET}
    Alcove(tmp_path / "memory.db").close()
    with serving(tmp_path, env=env) as service, issuing() as issuer:
        assert ask(service, ("authorization", f"Bearer {token('alice')}")).json()["user"] == "alice"
        assert ask(service, ("x-api-key", key_of(service, "--user", "bob"))).json()["user"] == "bob"
        assert_error(ask(service, ("authorization", f"Bearer {issuer.sign()}")), 401, "unauthenticated")
