"""Cookies that others put into the same browser neither change nor end a session, nor cost much."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.service import Service, assert_error, serving
from tests.support.store_inspection import processor_seconds
from tests.support.tokens import FLAGS, token

HEADER = "X-Alcove-CSRF"
PLAIN, SECURE = "alcove_token", "__Host-alcove_token"
HTTPS = {"origin": "https://memory.test"}
NEIGHBOURS = [
    "other=1", '$Version="1"', 'quoted="a;b\\""', "naïve=é", "=", "==", "a", "", "; ;", "alcove_token",
    "alcove_tokens=x", "Alcove_Token=x", f"x={'y' * 20_000}", "alcove_token =x", '"alcove_token=x"',
    "bad name=1", "a=\\", "expires=Thu, 01 Jan 1970 00:00:00 GMT", "path=/; domain=x",
]  # fmt: skip
PLANTED = ["", "x", "%00%ff", token("mallory"), f"{'0' * 64}.{token('mallory')}", f".{token('mallory')}",
           f"{'0' * 64}.", '"' + token("mallory") + '"']  # fmt: skip


class Session:
    """A browser that is signed in as `cookie`, with other cookies of its own choosing."""

    def __init__(self, service: Service, headers: dict[str, str] | None = None) -> None:
        self._house, self._headers = service, headers or {}
        given = cookie_of(service, "cookie", headers)
        self.name, _, self.value = given.partition("=")
        self.csrf = self._ask([given]).json()["csrf"]

    def _ask(
        self, cookies: list[str], method: str = "GET", path: str = "/panel/session", **more: Any
    ) -> httpx.Response:
        headers = {
            **self._headers,
            "cookie": "; ".join(cookies).strip().encode(),
            HEADER: more.pop("csrf", ""),
        }
        return self._house.call(method, path, headers=headers, **more)

    def goes_on(self, before: list[str], after: list[str]) -> None:
        """Reads and writes as the same user, whatever stands around the cookie."""
        cookies = [*before, f"{self.name}={self.value}", *after]
        here = self._ask(cookies)
        assert here.status_code == 200, (cookies, here.text)
        assert here.json()["user"] == "cookie"
        assert here.json()["csrf"] == self.csrf
        body = {"namespace": ["user", "cookie", "notes"], "key": "k", "value": {"n": 1}}
        stored = self._ask(cookies, "PUT", "/v1/memories", json=body, csrf=self.csrf)
        assert stored.status_code == 200, (cookies, stored.text)


def cookie_of(service: Service, user: str, headers: dict[str, str] | None = None) -> str:
    """The cookie that signing in gives, as a browser sends it back."""
    answer = service.call("POST", "/panel/session", json={"token": token(user)}, headers=headers or {})
    return str(answer.raise_for_status().headers["set-cookie"]).partition(";")[0]


@pytest.fixture
def session(service: Service) -> Session:
    return Session(service)


def test_cookies_of_a_neighbour_are_not_looked_at(session: Session) -> None:
    for other in NEIGHBOURS:
        session.goes_on([other], [])
        session.goes_on([], [other])
    session.goes_on(NEIGHBOURS, NEIGHBOURS)


@pytest.mark.parametrize("name", [PLAIN, SECURE])
def test_a_planted_cookie_of_our_name_neither_changes_nor_ends_a_session(session: Session, name: str) -> None:
    for value in PLANTED:
        planted = f"{name}={value}"
        session.goes_on([planted], [])
        session.goes_on([], [planted])
        session.goes_on([planted] * 20, [planted] * 20)
    session.goes_on([f"{session.name}={session.value}"], [])


def test_a_planted_cookie_alone_signs_nobody_in(service: Service) -> None:
    for name, value in itertools.product((PLAIN, SECURE), PLANTED):
        answer = service.call("GET", "/v1/me", headers={"cookie": f"{name}={value}"})
        assert_error(answer, 401, "unauthenticated")


@pytest.mark.parametrize(
    "browser",
    [{"x-forwarded-proto": "https"}, {"x-forwarded-proto": "HTTPS, http"}, HTTPS,
     {"sec-fetch-site": "same-origin", "host": "memory.test"}],
)  # fmt: skip
def test_over_https_only_the_cookie_that_nobody_else_can_set_is_read(
    service: Service, browser: dict[str, str]
) -> None:
    planted = cookie_of(service, "mallory")
    assert planted.startswith(f"{PLAIN}=")
    answer = service.call("GET", "/v1/me", headers={**browser, "cookie": planted})
    assert_error(answer, 401, "unauthenticated")
    ours = cookie_of(service, "cookie", HTTPS)
    assert ours.startswith(f"{SECURE}=")
    for cookies in (f"{planted}; {ours}", f"{ours}; {planted}"):
        answer = service.call("GET", "/v1/me", headers={**browser, "cookie": cookies})
        assert answer.json()["user"] == "cookie"
    secure = Session(service, HTTPS)
    secure.goes_on([planted], [])
    secure.goes_on([], [planted])


def test_without_https_a_page_keeps_its_session_when_somebody_plants_one_of_their_own(
    service: Service, session: Session
) -> None:
    """Made by signing in, so that nothing but the page's own token tells the two apart."""
    ours, theirs = f"{session.name}={session.value}", cookie_of(service, "mallory")
    for cookies in (f"{theirs}; {ours}", f"{ours}; {theirs}"):
        page = {"cookie": cookies, HEADER: session.csrf}
        assert service.call("GET", "/v1/me", headers=page).json()["user"] == "cookie"
        answer = service.call("GET", "/v1/me", headers={"cookie": cookies})
        assert "two sessions" in assert_error(answer, 401, "unauthenticated")["error"]


@pytest.mark.parametrize("browser", [{}, HTTPS])
def test_a_page_whose_cookie_was_replaced_is_refused_and_not_answered_as_somebody_else(
    service: Service, browser: dict[str, str]
) -> None:
    ours, theirs = Session(service, browser), cookie_of(service, "mallory", browser)
    page = {**browser, "cookie": theirs, HEADER: ours.csrf}
    body = {"namespace": ["user", "mallory", "notes"], "key": "k", "value": {"n": 1}}
    for answer in (
        service.call("GET", "/v1/me", headers=page),
        service.call("HEAD", "/v1/me", headers=page),
        service.call("PUT", "/v1/memories", headers=page, json=body),
    ):
        assert answer.status_code == 401
    assert (
        "another session"
        in assert_error(service.call("GET", "/v1/me", headers=page), 401, "unauthenticated")["error"]
    )
    loaded_anew = {**browser, "cookie": theirs}
    assert service.call("GET", "/v1/me", headers=loaded_anew).json()["user"] == "mallory"


def test_a_session_goes_on_in_every_worker_and_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS, "--workers", 2) as service:
        cookie = {"cookie": cookie_of(service, "cookie"), "connection": "close"}
        for _ in range(20):
            assert service.call("GET", "/v1/me", headers=cookie).json()["user"] == "cookie"
    with serving(tmp_path, *FLAGS) as service:
        assert service.call("GET", "/v1/me", headers=cookie).json()["user"] == "cookie"


STEP, FASTER, NOTICED = 4, 2.2, 0.06
"""As for the other requests (tests/acceptance/limits/test_cost.py): a square would be STEP times faster."""
SIZES = (3_800, STEP * 3_800, STEP**2 * 3_800)
UNITS = [
    "a", "=", ";", "; ", '"', "\\", '"\\', "a=b; ", 'a="', "alcove_token=", "alcove_token=a;", "a b", ",",
    "[", f"alcove_token={'0' * 64}.a;", "expires=", " ", "%", "$Version=", "a=a ", 'a="\\"',
]  # fmt: skip


@pytest.mark.parametrize("begin", ["x=", 'x="'])
def test_the_cookies_of_a_stranger_cost_no_more_than_their_size_warrants(
    service: Service, begin: str
) -> None:
    def cost(size: int, unit: str) -> float:
        started = processor_seconds(service.process.pid)
        text = f'{begin}{unit * (size // len(unit))}"'
        assert_error(service.call("GET", "/v1/me", headers={"cookie": text}), 401, "unauthenticated")
        return processor_seconds(service.process.pid) - started

    def grows_too_fast(unit: str) -> bool:
        costs = [cost(size, unit) for size in SIZES]
        return any(
            more > NOTICED and more > STEP * FASTER * max(less, NOTICED / STEP)
            for less, more in itertools.pairwise(costs)
        )

    assert [unit for unit in UNITS if all(grows_too_fast(unit) for _ in range(3))] == []
