"""What is remembered of a token holds as long as the key set it was verified with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jwt
import pytest

from alcove.core.errors import Unauthenticated, Unavailable
from alcove.server import jwt_tokens
from alcove.server.config import ServeConfig
from tests.support.issuer import Issuer, issuing

REFRESH = jwt_tokens.FRESH_SECONDS + 1


@dataclass
class Clock:
    """The time, as far as authentication knows it."""

    now: float = 2_000_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(jwt_tokens, "time", clock)
    return clock


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as one:
        yield one


Ask = Callable[[str], Awaitable[str]]


def story(issuer: Issuer, told: Callable[[Ask], Awaitable[None]]) -> None:
    """Runs a story of tokens, each of which is asked for its user."""

    async def run() -> None:
        tokens = jwt_tokens.TokenAuthenticator(ServeConfig(auth="jwt", jwks_url=issuer.jwks_url))

        async def ask(token: str) -> str:
            return (await tokens({b"authorization": f"Bearer {token}".encode()})).user_id

        await told(ask)

    asyncio.run(run())


def hours(clock: Clock, count: float = 10) -> int:
    return int(clock.now + 3600 * count)


def test_a_key_that_is_withdrawn_verifies_nothing_once_the_set_is_fetched_again(
    issuer: Issuer, clock: Clock
) -> None:
    async def told(ask: Ask) -> None:
        remembered = issuer.sign(exp=hours(clock))
        assert await ask(remembered) == await ask(remembered) == "alice"
        issuer.rotate()
        clock.now += REFRESH
        with pytest.raises(Unauthenticated):
            await ask(remembered)
        assert await ask(issuer.sign(sub="bob", exp=hours(clock))) == "bob"

    story(issuer, told)


def test_a_set_without_any_key_withdraws_them_all(issuer: Issuer, clock: Clock) -> None:
    async def told(ask: Ask) -> None:
        remembered = issuer.sign(exp=hours(clock))
        assert await ask(remembered) == "alice"
        issuer.private = {}
        clock.now += REFRESH
        with pytest.raises(Unauthenticated):
            await ask(remembered)

    story(issuer, told)


def test_another_key_under_the_same_name_does_not_take_over_its_tokens(issuer: Issuer, clock: Clock) -> None:
    async def told(ask: Ask) -> None:
        remembered = issuer.sign(exp=hours(clock))
        assert await ask(remembered) == "alice"
        name = issuer.rsa
        issuer.rotate()
        issuer.private[name] = issuer.private.pop(issuer.rsa)
        clock.now += REFRESH
        with pytest.raises(Unauthenticated):
            await ask(remembered)
        assert await ask(issuer.sign(name, exp=hours(clock))) == "alice"

    story(issuer, told)


def test_the_set_is_fetched_again_even_when_every_token_is_remembered(issuer: Issuer, clock: Clock) -> None:
    async def told(ask: Ask) -> None:
        remembered = issuer.sign(exp=hours(clock))
        for _ in range(5):
            assert await ask(remembered) == await ask(remembered) == "alice"
            clock.now += REFRESH
        assert issuer.fetches() == 5

    story(issuer, told)


def test_tokens_go_on_while_the_issuer_is_away_until_its_set_is_too_old(issuer: Issuer, clock: Clock) -> None:
    async def told(ask: Ask) -> None:
        remembered = issuer.sign(exp=hours(clock))
        assert await ask(remembered) == "alice"
        issuer.go_away()
        until = clock.now + jwt_tokens.TRUSTED_SECONDS
        while clock.now + REFRESH < until:
            clock.now += REFRESH
            assert await ask(remembered) == await ask(remembered) == "alice"
        clock.now = until + 1
        with pytest.raises(Unavailable):
            await ask(remembered)
        with pytest.raises(Unavailable):
            await ask(remembered)

    story(issuer, told)


def test_names_of_keys_that_nobody_has_leave_remembered_tokens_alone(
    issuer: Issuer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that finds the same set changes nothing: a stranger cannot have every token verified anew."""
    verified: list[str] = []
    decode = jwt.decode

    def counted(token: str, **how: Any) -> Any:
        verified.append(token)
        return decode(token, **how)

    monkeypatch.setattr(jwt, "decode", counted)

    async def told(ask: Ask) -> None:
        remembered = issuer.sign(exp=hours(clock))
        await ask(remembered)
        await ask(remembered)
        before = verified.count(remembered)
        for n in range(5):
            clock.now += 10
            with pytest.raises(Unauthenticated):
                await ask(issuer.sign(named=f"nobody-{n}", exp=hours(clock)))
            assert await ask(remembered) == "alice"
        assert issuer.fetches() > 4
        assert verified.count(remembered) == before

    story(issuer, told)
