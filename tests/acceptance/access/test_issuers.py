"""Keys that an issuer publishes: found, rotated, and gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.issuer import Issuer, issuing
from tests.support.service import Service, assert_error, free_port, serving
from tests.support.waiting import until


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as one:
        yield one


def by_url(issuer: Issuer) -> list[object]:
    return ["--auth", "jwt", "--jwks-url", issuer.jwks_url]


def by_discovery(issuer: Issuer) -> list[object]:
    return ["--auth", "jwt", "--oidc-issuer", issuer.url]


def assert_not_let_in(service: Service, given: str) -> None:
    """401 or 503 in the one shape, and nothing that looks like a fault of the service."""
    answer = service.look(given)
    assert answer.status_code in (401, 503), answer.text
    code = "unauthenticated" if answer.status_code == 401 else "service_unavailable"
    assert_error(answer, answer.status_code, code)
    assert ("retry-after" in answer.headers) is (answer.status_code == 503)


@pytest.mark.parametrize("found", [by_url, by_discovery])
def test_rsa_and_ec_tokens_of_an_issuer_are_good(issuer: Issuer, tmp_path: Path, found: object) -> None:
    assert callable(found)
    with serving(tmp_path, *found(issuer)) as service:
        for kid in (issuer.rsa, issuer.ec):
            given = issuer.sign(kid, sub="alice")
            assert service.put(["user", "alice"], kid, {"by": kid}, given).status_code == 200
            assert service.get(["user", "alice"], kid, given).json()["value"] == {"by": kid}
        with issuing() as other:
            impostor = other.sign(named=issuer.rsa, iss=issuer.url)
            assert_error(service.look(impostor), 401, "unauthenticated")
        expired = issuer.sign(exp=1_000_000_000)
        assert_error(service.look(expired), 401, "unauthenticated")
        assert issuer.fetches() == 1


def test_a_discovered_issuer_is_checked(issuer: Issuer, tmp_path: Path) -> None:
    with serving(tmp_path, *by_discovery(issuer)) as service:
        assert service.look(issuer.sign()).status_code == 200
        assert_error(service.look(issuer.sign(iss="https://elsewhere")), 401, "unauthenticated")
        assert service.look(issuer.sign(aud="anybody")).status_code == 200


def test_an_issuer_and_audience_are_checked_with_a_key_set_too(issuer: Issuer, tmp_path: Path) -> None:
    flags = ["--jwt-issuer", "us", "--jwt-audience", "memory"]
    with serving(tmp_path, *by_url(issuer), *flags) as service:
        assert service.look(issuer.sign(iss="us", aud="memory")).status_code == 200
        for wrong in ({"iss": "us"}, {"iss": "us", "aud": "x"}, {"iss": "them", "aud": "memory"}):
            assert_error(service.look(issuer.sign(**wrong)), 401, "unauthenticated")


def test_a_token_of_a_new_key_works_without_a_restart(issuer: Issuer, tmp_path: Path) -> None:
    with serving(tmp_path, *by_url(issuer)) as service:
        old = issuer.sign()
        assert service.look(old).status_code == 200
        issuer.rotate()
        new = issuer.sign(issuer.ec, sub="bob")
        until(lambda: service.look(new).status_code == 200)
        assert issuer.fetches() < 10


def test_names_of_keys_that_nobody_has_do_not_make_it_fetch_without_bound(
    issuer: Issuer, tmp_path: Path
) -> None:
    with serving(tmp_path, *by_url(issuer)) as service:
        assert service.look(issuer.sign()).status_code == 200
        for n in range(100):
            assert_error(service.look(issuer.sign(named=f"nobody-{n}")), 401, "unauthenticated")
        assert issuer.fetches() < 10
        assert service.look(issuer.sign(issuer.ec)).status_code == 200


def test_tokens_of_known_keys_go_on_when_the_issuer_is_away(issuer: Issuer, tmp_path: Path) -> None:
    with serving(tmp_path, *by_url(issuer)) as service:
        assert service.look(issuer.sign()).status_code == 200
        issuer.go_away()
        assert service.look(issuer.sign(issuer.ec, sub="bob")).status_code == 200
        assert_not_let_in(service, issuer.sign(named="nobody"))
        assert service.look(issuer.sign(sub="carol")).status_code == 200


@pytest.mark.parametrize("found", [by_url, by_discovery])
def test_nobody_is_let_in_while_the_issuer_is_away_from_the_start(
    issuer: Issuer, tmp_path: Path, found: object
) -> None:
    assert callable(found)
    issuer.go_away()
    with serving(tmp_path, *found(issuer)) as service:
        for _ in range(3):
            assert_not_let_in(service, issuer.sign())
        assert service.call("GET", "/healthz").status_code == 200


@pytest.mark.parametrize("found", [by_url, by_discovery])
@pytest.mark.parametrize("body", [b"<html>busy</html>", b"", b"[]", b"{}", b"\xff", b'{"keys": []}', b"null"])
def test_an_issuer_that_answers_nonsense_lets_nobody_in_until_it_recovers(
    issuer: Issuer, tmp_path: Path, found: object, body: bytes
) -> None:
    assert callable(found)
    issuer.broken = body
    with serving(tmp_path, *found(issuer)) as service:
        assert_not_let_in(service, issuer.sign())
        issuer.broken = None
        until(lambda: service.look(issuer.sign()).status_code == 200)


def test_a_url_of_something_that_is_no_issuer_lets_nobody_in(issuer: Issuer, tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/keys"
    with serving(tmp_path, "--auth", "jwt", "--jwks-url", nowhere) as service:
        assert_not_let_in(service, issuer.sign())
    with serving(tmp_path, "--auth", "jwt", "--jwks-url", f"{issuer.url}/absent") as service:
        assert_not_let_in(service, issuer.sign())
