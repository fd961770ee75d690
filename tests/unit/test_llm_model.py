"""A model and its bounds: how often and how long it is asked, by how many at once, and what is told of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from alcove.core.errors import (
    STATUS,
    AlcoveError,
    InvalidRequest,
    Unavailable,
    UpstreamFailed,
    UpstreamTimeout,
)
from alcove.core.settings import LLMSettings
from alcove.llm import make_provider, resolve_llm
from alcove.llm.model import (
    MAX_TOKENS,
    FailedAttempt,
    Model,
    ModelAnswer,
    ModelRequest,
    ProviderError,
    TokenUse,
)
from tests.support.llm_server import LLMServer, fails, llm  # noqa: F401
from tests.support.model_turns import Pauses, Scripted, ask, asked, reached
from tests.support.waiting import until

DONE = ModelAnswer(text="Hello.")
KEY = "sk-0123456789abcdef0123456789abcdef"


def a_model(provider: Any, **settings: Any) -> tuple[Model, Pauses]:
    pauses = Pauses()
    return Model(provider, LLMSettings(**settings), sleep=pauses.sleep), pauses


def troubles(status: int | None = 503, **more: Any) -> list[str | ModelAnswer | ProviderError]:
    return [ProviderError("no", status=status, **more)]


# How often


def test_it_is_asked_again_while_nothing_was_passed_on() -> None:
    provider = Scripted(troubles(503), troubles(None, timeout=True), ["Hel", "lo.", DONE])
    model, pauses = a_model(provider)
    assert ask(model) == [FailedAttempt(is_last=False), "Hel", "lo.", DONE]
    assert (len(provider.given), pauses.seconds) == (3, [0.5, 1.0])
    assert provider.closed == 3


def test_once_something_was_passed_on_it_fails() -> None:
    provider = Scripted(["Hel", *troubles(503)], ["Hello.", DONE])
    model, pauses = a_model(provider)
    pieces: Any = model.ask(asked())
    assert next(pieces) == "Hel"
    assert next(pieces) == FailedAttempt(is_last=True)
    with pytest.raises(Unavailable):
        next(pieces)
    assert (len(provider.given), pauses.seconds) == (1, [])


@pytest.mark.parametrize("retries", [0, 1, 2, 6])
def test_it_is_asked_again_as_often_as_the_settings_say(retries: int) -> None:
    provider = Scripted(troubles(500))
    model, pauses = a_model(provider, llm_retries=retries)
    with pytest.raises(UpstreamFailed):
        ask(model)
    assert len(provider.given) == 1 + retries
    assert pauses.seconds == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0][:retries]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 501])
def test_what_would_fail_again_is_not_asked_again(status: int) -> None:
    model, pauses = a_model(provider := Scripted(troubles(status)))
    with pytest.raises(UpstreamFailed, match=str(status)):
        ask(model)
    assert (len(provider.given), pauses.seconds) == (1, [])


@pytest.mark.parametrize("status", [None, 200, 408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_work_the_next_time_is_asked_again(status: int | None) -> None:
    model, _ = a_model(provider := Scripted(troubles(status), [DONE]))
    assert ask(model)[-1] == DONE
    assert len(provider.given) == 2


def test_an_answer_of_nothing_is_none_unless_it_may_be() -> None:
    silent = ModelAnswer(text=" \n")
    model, _ = a_model(provider := Scripted([silent], [DONE]))
    assert ask(model) == [FailedAttempt(is_last=False), DONE]
    assert len(provider.given) == 2
    model, _ = a_model(Scripted([silent]))
    assert ask(model, may_be_empty=True) == [silent]
    with pytest.raises(UpstreamFailed, match="no usable answer"):
        ask(model)


def failed_attempts(model: Model, **more: Any) -> list[tuple[FailedAttempt, TokenUse]]:
    """The attempts that failed and may be billed, and what each took if its request has 10 tokens."""
    request, found = asked(**more), list[tuple[FailedAttempt, TokenUse]]()
    with suppress(AlcoveError):
        for piece in model.ask(request):
            if isinstance(piece, FailedAttempt):
                assert not request.meter.is_open
                found.append((piece, request.meter.cost(10)))
    return found


def test_an_empty_answer_says_what_it_took_before_the_model_is_asked_again() -> None:
    model, _ = a_model(provider := Scripted([ModelAnswer(text="", use=TokenUse.of(10, 2))], [DONE]))
    request = asked()
    pieces: Any = model.ask(request)
    assert next(pieces) == FailedAttempt(is_last=False)
    assert (len(provider.given), request.meter.use) == (1, TokenUse.of(10, 2))
    assert next(pieces) == DONE


BILLED: dict[str, ProviderError] = {
    "garbage": ProviderError("no", status=200),
    "silence": ProviderError("no", timeout=True),
    "broken off": ProviderError("no", status=502, may_be_billed=True),
}


@pytest.mark.parametrize("kind", BILLED)
def test_each_attempt_that_may_be_billed_is_told_before_the_next(kind: str) -> None:
    model, _ = a_model(provider := Scripted([BILLED[kind]]), llm_retries=2)
    assert failed_attempts(model) == [
        (FailedAttempt(is_last), TokenUse.of(10, 0)) for is_last in (False, False, True)
    ]
    assert len(provider.given) == 3


@pytest.mark.parametrize("status", [None, 400, 401, 429, 500, 502, 503, 529])
def test_an_attempt_that_no_provider_bills_is_not_told(status: int | None) -> None:
    model, _ = a_model(Scripted(troubles(status)))
    assert failed_attempts(model) == []


def test_what_came_before_an_answer_broke_off_is_part_of_what_it_took() -> None:
    model, _ = a_model(Scripted(["word " * 100, *troubles(502)]))
    assert failed_attempts(model) == [(FailedAttempt(is_last=True), TokenUse.of(10, 125))]


def test_an_answer_that_is_too_long_is_not_asked_for_again() -> None:
    model, _ = a_model(provider := Scripted([ProviderError("too long", status=200, retry=False)]))
    assert failed_attempts(model) == [(FailedAttempt(is_last=True), TokenUse.of(10, 0))]
    assert len(provider.given) == 1


@pytest.mark.parametrize(
    ("prompt", "completion", "counted"),
    [(10, 2, (10, 2)), (-(10**9), -1, (0, 0)), (10**30, 2**63, (MAX_TOKENS, MAX_TOKENS))],
)
def test_no_provider_counts_less_than_nothing_or_more_than_any_model_takes(
    prompt: int, completion: int, counted: tuple[int, int]
) -> None:
    use = TokenUse.of(prompt, completion)
    assert (use.prompt_tokens, use.completion_tokens) == counted
    assert use.total_tokens == sum(counted)
    assert use + TokenUse() == use


# For how long


def test_a_provider_that_asks_to_be_left_alone_is() -> None:
    model, pauses = a_model(Scripted(troubles(429, retry_after=7.0), troubles(429, retry_after=0.1), [DONE]))
    assert ask(model) == [DONE]
    assert pauses.seconds == [7.0, 1.0]


def test_but_never_longer_than_there_is_time() -> None:
    model, pauses = a_model(provider := Scripted(troubles(429, retry_after=60.0), [DONE]))
    with pytest.raises(Unavailable, match="busy"):
        ask(model, seconds=59.0)
    assert (len(provider.given), pauses.seconds) == (1, [])


@pytest.mark.parametrize(
    ("said", "paused"), [("3", 3), ("0", 0.5), ("-5", 0.5), ("1e9", 0.5), ("99999999", 0.5), ("soon", 0.5)]
)
def test_retry_after_is_read_where_it_is_a_number_of_seconds(
    llm: LLMServer,  # noqa: F811
    said: str,
    paused: float,
) -> None:
    with reached(llm) as (model, pauses):
        llm.play(fails(429, headers={"retry-after": said}))
        assert ask(model)[0] == "Hello."
    assert pauses.seconds == [paused]


def test_a_call_may_be_silent_as_long_as_the_settings_say_and_the_turn_has_time() -> None:
    model, _ = a_model(provider := Scripted([DONE]), llm_timeout=30.0)
    ask(model)
    ask(model, seconds=20.0)
    assert provider.given[0] == 30.0
    assert 19.0 < provider.given[1] <= 20.0


def test_an_answer_that_goes_on_past_the_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("alcove.llm.model.time", SimpleNamespace(monotonic=lambda: now[0]))
    model, _ = a_model(provider := Scripted(["one ", "two ", DONE]))
    pieces = model.ask(structs.replace(asked(), deadline=10.0))
    assert next(pieces) == "one "
    now[0] = 10.0
    with pytest.raises(UpstreamTimeout, match="longer than it may"):
        next(pieces)
    assert (len(provider.given), provider.closed) == (1, 1)


# What is told


@pytest.mark.parametrize(
    ("trouble", "error", "status", "words"),
    [
        (ProviderError("x", timeout=True), UpstreamTimeout, 504, "did not answer in time"),
        (ProviderError("x"), Unavailable, 503, "cannot be reached"),
        (ProviderError("x", status=429), Unavailable, 503, "busy"),
        (ProviderError("x", status=503), Unavailable, 503, "busy"),
        (ProviderError("x", status=529), Unavailable, 503, "busy"),
        (ProviderError("x", status=400), UpstreamFailed, 502, "refused the request (400)"),
        (ProviderError("x", status=401), UpstreamFailed, 502, "refused the request (401)"),
        (ProviderError("x", status=500), UpstreamFailed, 502, "failed (500)"),
        (ProviderError("x", status=502), UpstreamFailed, 502, "failed (502)"),
        (ProviderError("x", status=200), UpstreamFailed, 502, "no usable answer"),
    ],
)
def test_each_trouble_is_told_as_an_error_of_ours(
    trouble: ProviderError, error: type[AlcoveError], status: int, words: str
) -> None:
    model, _ = a_model(Scripted([trouble]))
    with pytest.raises(AlcoveError) as told:
        ask(model)
    assert (type(told.value), STATUS[told.value.code]) == (error, status)
    assert words in told.value.message
    assert "x" not in told.value.message.split()


# At once


def test_only_so_many_calls_are_under_way() -> None:
    inside, most, full = list[int](), list[int](), threading.Barrier(3)

    class Slow(Scripted):
        def ask(self, asked: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
            inside.append(1)
            most.append(len(inside))
            full.wait(60)  # three are inside, or nobody goes on
            inside.pop()
            yield DONE

    model = Model(Slow(), LLMSettings(llm_at_once=3))
    with ThreadPoolExecutor(12) as threads:
        assert [*threads.map(lambda n: ask(model, user=f"user-{n}"), range(12))] == [[DONE]] * 12
    assert max(most) == 3


def test_who_goes_away_leaves_the_place_to_the_next() -> None:
    model, _ = a_model(provider := Scripted(["Hel", "lo.", DONE]), llm_at_once=1)
    pieces: Any = model.ask(asked())
    assert next(pieces) == "Hel"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ask, model)
        assert not waiting.done()
        pieces.close()
        until(waiting.done)
    assert waiting.result()[-1] == DONE
    assert provider.closed == 2


def test_a_place_is_waited_for_no_longer_than_there_is_time() -> None:
    model, _ = a_model(provider := Scripted(["Hel", "lo.", DONE]), llm_at_once=1)
    pieces: Any = model.ask(asked())
    assert next(pieces) == "Hel"
    with pytest.raises(Unavailable, match="too many calls are in progress"):
        ask(model, seconds=0.01)
    pieces.close()
    assert ask(model)[-1] == DONE
    assert len(provider.given) == 2


def test_a_pause_before_the_next_try_holds_no_place() -> None:
    def sleep(seconds: float) -> None:
        assert [*model.ask(asked())] == [DONE]

    model = Model(Scripted(troubles(), [DONE]), LLMSettings(llm_at_once=1), sleep=sleep)
    assert ask(model) == [DONE]


# Which one


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("ALCOVE_")]:
        monkeypatch.delenv(name)
    assert not LLMSettings.from_environment().is_configured
    given = {"URL": "http://h/v1", "KEY": KEY, "MODEL": "m", "TIMEOUT": "7.5", "RETRIES": "3"}
    for name, value in given.items():
        monkeypatch.setenv(f"ALCOVE_LLM_{name}", value)
    monkeypatch.setenv("ALCOVE_TURN_ROUNDS", "5")
    monkeypatch.setenv("ALCOVE_CONTEXT_TOKENS", "")
    meant, provider = resolve_llm(None)
    assert meant == LLMSettings(
        llm_url="http://h/v1", llm_key=KEY, llm_model="m", llm_timeout=7.5, llm_retries=3, turn_rounds=5
    )
    assert (provider, meant.is_configured) == (None, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("LLM_TIMEOUT", "soon"), ("LLM_RETRIES", "2.5"), ("LLM_AT_ONCE", "0"), ("LLM_TIMEOUT", "-1"),
     ("LLM_TIMEOUT", "nan"), ("TURN_SECONDS", "inf"), ("TURN_TOKENS", "many"), ("LLM_PROVIDER", "nobody")],
)  # fmt: skip
def test_a_variable_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ALCOVE_{name}", value)
    with pytest.raises(InvalidRequest) as told:
        LLMSettings.from_environment()
    assert told.value.field == name.lower()


def test_a_model_is_named_by_url_and_name_by_settings_or_by_a_provider() -> None:
    assert resolve_llm("http://h:1/v1#a/b:7") == (
        LLMSettings(llm_url="http://h:1/v1", llm_model="a/b:7"),
        None,
    )
    assert resolve_llm("http://h:1/v1") == (LLMSettings(llm_url="http://h:1/v1"), None)
    assert resolve_llm(meant := LLMSettings(llm_key=KEY)) == (meant, None)
    assert resolve_llm(own := Scripted([DONE])) == (LLMSettings(), own)
    assert make_provider(LLMSettings(llm_model="m")) is None
