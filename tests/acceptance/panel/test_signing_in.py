"""A browser is let in by a cookie that no script reads, and what it writes must come from our own page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.service import Service, assert_error
from tests.support.tokens import token

HEADER = "X-Alcove-CSRF"
MEMORY = {"namespace": ["user", "cookie", "notes"], "key": "k", "value": {"n": 1}}


@pytest.fixture
def signed_in(service: Service) -> Iterator[httpx.Client]:
    with browser_of(service, "cookie") as client:
        yield client


@contextmanager
def browser_of(service: Service, user: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, trust_env=False) as client:
        client.post("/panel/session", json={"token": token(user)}).raise_for_status()
        yield client


def test_the_page_may_load_nothing_from_elsewhere_and_run_nothing_that_is_not_a_file_of_ours(
    service: Service,
) -> None:
    answer = service.call("GET", "/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in answer.text  # each has a source


def test_every_file_that_the_page_names_is_there_and_no_other_path_is(service: Service) -> None:
    for name in ("app.js", "api.js", "dom.js", "style.css", "memory.js"):
        assert service.call("GET", f"/panel/{name}").status_code == 200
    for name in ("nothing.js", "..%2Fserver%2Fpanel.py", "__init__.py", "%2e%2e"):
        assert_error(service.call("GET", f"/panel/{name}"), 404, "not_found")


def test_the_cookie_is_out_of_the_reach_of_scripts_and_of_other_sites(service: Service) -> None:
    answer = service.call("POST", "/panel/session", json={"token": token("cookie")})
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie
    assert cookie.startswith("alcove_token=")
    for said in ({"origin": "https://memory.test"}, {"x-forwarded-proto": "https"}):
        over_tls = service.call("POST", "/panel/session", json={"token": token("cookie")}, headers=said)
        cookie = over_tls.headers["set-cookie"]
        assert cookie.startswith("__Host-alcove_token=")
        assert {"Secure", "HttpOnly", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "Domain" not in cookie


def test_a_token_that_does_not_hold_signs_nobody_in(service: Service) -> None:
    for wrong in (
        "made up",
        token("cookie", secret="another secret that is as long as the one it should be"),
    ):
        answer = service.call("POST", "/panel/session", json={"token": wrong})
        assert_error(answer, 401, "unauthenticated")
        assert "set-cookie" not in answer.headers
    told = service.call("POST", "/panel/session", json={"token": "x" * 5000})
    assert assert_error(told, 400, "invalid_request")["error"].startswith("token: expected")


def test_who_has_signed_in_reads_with_the_cookie_and_writes_only_with_the_pages_own_token(
    signed_in: httpx.Client,
) -> None:
    assert signed_in.get("/v1/me").json()["user"] == "cookie"
    assert_error(signed_in.put("/v1/memories", json=MEMORY), 403, "permission_denied")
    wrong = signed_in.put("/v1/memories", json=MEMORY, headers={HEADER: "0" * 64})
    assert_error(wrong, 401, "unauthenticated")
    own = signed_in.get("/panel/session").json()["csrf"]
    assert signed_in.put("/v1/memories", json=MEMORY, headers={HEADER: own}).status_code == 200
    assert_error(
        signed_in.post("/v1/memories/search", json={"namespace_prefix": []}), 403, "permission_denied"
    )


def test_a_program_with_a_token_of_its_own_needs_none_whatever_cookies_it_sends(
    signed_in: httpx.Client,
) -> None:
    headers = {"authorization": f"Bearer {token('cookie')}"}
    assert signed_in.put("/v1/memories", json=MEMORY, headers=headers).status_code == 200


def test_one_persons_page_token_is_of_no_use_with_the_cookie_of_another(
    service: Service, signed_in: httpx.Client
) -> None:
    with browser_of(service, "mallory") as other:
        theirs = other.get("/panel/session").json()["csrf"]
    assert_error(signed_in.put("/v1/memories", json=MEMORY, headers={HEADER: theirs}), 401, "unauthenticated")


def test_a_page_token_that_is_not_ascii_is_refused_like_any_wrong_one(signed_in: httpx.Client) -> None:
    for wrong in ("é".encode(), "é".encode("latin-1"), b"\xff" * 64):
        answer = signed_in.put("/v1/memories", json=MEMORY, headers={HEADER.encode(): wrong})
        assert_error(answer, 401, "unauthenticated")
    answer = signed_in.put("/v1/memories", json=MEMORY, headers={HEADER: ""})
    assert_error(answer, 403, "permission_denied")


def test_signing_out_takes_the_cookie_away(signed_in: httpx.Client) -> None:
    answer = signed_in.delete("/panel/session").raise_for_status()
    gone = answer.headers.get_list("set-cookie")
    assert [each.partition("=")[0] for each in gone] == ["__Host-alcove_token", "alcove_token"]
    assert all("Max-Age=0" in each for each in gone)
    assert "; Secure" in gone[0], "without it, browsers keep a cookie of this name"
    assert_error(signed_in.get("/panel/session"), 401, "unauthenticated")


def test_cookies_of_others_and_broken_ones_are_nobody(service: Service) -> None:
    for cookie in ("alcove_token=", "other=1", "alcove_token=%00%ff", "=;=;", "alcove_token=a%7Fb"):
        answer = service.call("GET", "/panel/session", headers={"cookie": cookie})
        assert_error(answer, 401, "unauthenticated")
