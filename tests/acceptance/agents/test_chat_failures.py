"""Turns that fail because the model does: asked again, told with a status, nothing kept, no key shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.chat_service import KEY, Parlour, all_tried, chatting, nothing_is_kept_until_it_works
from tests.support.llm_server import LLMServer, Play, calls, cut, endless, fails, garbage, llm, silent, text  # noqa: F401
from tests.support.service import assert_error, free_port
from tests.support.waiting import PATIENCE

RETRIES = 1


@pytest.fixture(scope="module")
def served(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    flags = ("--llm-retries", RETRIES, "--turn-seconds", 45)
    with chatting(tmp_path_factory.mktemp("failures"), llm, *flags) as parlour:
        yield parlour


@pytest.fixture
def parlour(served: Parlour) -> Parlour:
    served.llm.reset()
    return served


FAILED = {502: "upstream_failed", 503: "service_unavailable"}
NO_ANSWERS: dict[str, tuple[Play, int]] = {
    "an error": (fails(500), 502),
    "a bad gateway": (fails(502, b"<html>Bad gateway</html>"), 502),
    "no service": (fails(503), 503),
    "too many requests": (fails(429), 503),
    "overloaded": (fails(529), 503),
    "no JSON": (garbage(b"{no"), 502),
    "no UTF-8": (garbage(b'{"choices": [{"message": {"content": "\xff"}, "finish_reason": "stop"}]}'), 502),
    "a page": (garbage(b"<html>Sign in</html>", "text/html"), 502),
    "nothing at all": (garbage(b"", "application/json"), 502),
    "a list": (garbage([]), 502),
    "no choices": (garbage({"choices": []}), 502),
    "choices of another shape": (garbage({"choices": "no"}), 502),
    "a message of another shape": (
        garbage({"choices": [{"message": {"content": 7}, "finish_reason": "stop"}]}),
        502,
    ),
    "calls of another shape": (garbage({"choices": [{"message": {"tool_calls": ["x"]}}]}), 502),
    "an error inside": (garbage({"error": {"message": "model crashed"}}), 502),
    "deep nesting": (garbage(b"[" * 100_000), 502),
    "closed before it said anything": (silent(0), 502),
    "closed in the middle": (cut(after=0), 502),
    "reset in the middle": (cut(after=0, resets=True), 502),
    "a call that breaks off": (calls(("remember", {"key": "k", "content": "c"}), cut=2), 502),
}
BLANK = {"an answer of nothing": text(""), "an answer of blanks": text(" \n ")}


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_answer_is_asked_for_again_and_then_told(parlour: Parlour, stream: bool) -> None:
    tried = all_tried(parlour, {name: play for name, (play, _) in NO_ANSWERS.items()}, stream=stream)
    for name, each in tried.items():
        status = NO_ANSWERS[name][1]
        assert each.answer.status_code == status, (name, each.answer.text)
        error = assert_error(each.answer, status, FAILED[status])
        for theirs in ("crashed", "gateway</", "Sign in", "choices", "127.0.0.1"):
            assert theirs not in each.answer.text, name
        assert error["error"].startswith("the LLM"), name
        assert each.who.keys("bot", "list_memories") == []
    assert {name: each.asked for name, each in tried.items()} == dict.fromkeys(tried, RETRIES + 1)
    nothing_is_kept_until_it_works(parlour, tried)


def test_an_answer_that_says_nothing_is_none(parlour: Parlour) -> None:
    tried = all_tried(parlour, BLANK)
    for each in tried.values():
        assert_error(each.answer, 502, "upstream_failed")
    assert tried["an answer of nothing"].asked == RETRIES + 1
    nothing_is_kept_until_it_works(parlour, tried)


def test_silence_is_waited_for_so_long_and_asked_again(tmp_path: Path, parlour: Parlour) -> None:
    with chatting(tmp_path, parlour.llm, "--llm-retries", RETRIES, "--llm-timeout", 0.5) as impatient:
        for stream in (False, True):
            parlour.llm.reset()
            tried = all_tried(impatient, {"silence": silent()}, stream=stream)
            assert_error(tried["silence"].answer, 504, "upstream_timeout")
            assert tried["silence"].asked == RETRIES + 1
            nothing_is_kept_until_it_works(impatient, tried)


def test_a_stream_that_says_nothing_is_no_answer_either(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(text("", times=2))
    assert_error(alice.tries("talk", "s", "Hello", stream=True), 502, "upstream_failed")
    assert len(parlour.llm.requests) == RETRIES + 1
    assert alice.kept("talk", "s") == []


@pytest.mark.parametrize("stream", [False, True])
def test_what_works_the_second_time_has_worked(parlour: Parlour, stream: bool) -> None:
    for number, play in enumerate(
        (fails(500), cut(after=0), garbage(b"{no"), fails(429, headers={"retry-after": "1"}))
    ):
        alice, message = parlour.chatter("alice"), f"Try {number}"
        parlour.llm.reset()
        parlour.llm.play(play, text("There."))
        heard = alice.hears("talk", "s", message) if stream else [("reply", alice.chat("talk", "s", message))]
        assert heard[-1][1]["text"] == "There."
        first, second = parlour.llm.requests
        assert first.body == second.body
        assert alice.kept("talk", "s") == [("user", message), ("assistant", "There.")]


def test_a_failure_after_a_round_of_tools_fails_the_turn_but_what_was_done_is_done(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(
        calls(("remember", {"key": "tea", "content": "green"}), text="Noted."), fails(500, times=2)
    )
    assert_error(alice.tries("bot", "s", "Tea"), 502, "upstream_failed")
    assert len(parlour.llm.requests) == 3
    assert alice.kept("bot", "s") == []
    assert alice.keys("bot", "list_memories") == ["tea"]
    assert alice.see("/v1/agents/bot/usage")["usage"][0]["turns"] == 1  # what it took is counted all the same
    parlour.llm.play(
        calls(("remember", {"key": "tea", "content": "green"}), text="Noted."), fails(500, times=2)
    )
    *heard, (last, error) = alice.hears("bot", "s", "Tea")
    assert [kind for kind, _ in heard] == ["text", "text", "text", "tool"]
    assert (last, error["code"]) == ("error", "upstream_failed")
    assert alice.kept("bot", "s") == []


def test_who_asks_to_be_left_alone_for_longer_than_a_turn_is_not_asked_again(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(fails(429, headers={"retry-after": "3600"}))
    assert_error(alice.tries("talk", "s", "Hello"), 503, "service_unavailable")
    assert len(parlour.llm.requests) == 1


def test_a_model_that_is_not_there_is_told_of(tmp_path: Path, parlour: Parlour) -> None:
    flags = ("--llm-url", f"http://127.0.0.1:{free_port()}/v1", "--llm-retries", 1)
    with chatting(tmp_path, parlour.llm, *flags) as alone:
        alice = alone.chatter("alice")
        for stream in (False, True):
            refused = alice.tries("talk", "s", "Hello", stream=stream)
            assert "reached" in assert_error(refused, 503, "service_unavailable")["error"]
        assert alice.kept("talk", "s") == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_has_an_end_however_the_model_drags_it_out(
    llm: LLMServer,  # noqa: F811
    tmp_path: Path,
    stream: bool,
) -> None:
    llm.reset()
    slow: dict[str, Play] = {
        "silence": silent(),
        "an answer that takes its time": text("Well", delay=PATIENCE),
        "a trickle of words": text("word " * 20_000, pieces=10_000, delay=0.1),
        "a trickle of nothing": endless("" if stream else " ", delay=0.05),  # chunks without a text; blanks
        "a call without an end": calls(("remember", '{"key": "' + "x" * 9000), pieces=9000, delay=0.05),
        "tools for ever": calls(("recall", {"key": "k"}), delay=0.05),
    }
    with chatting(tmp_path, llm, "--turn-seconds", 2, "--turn-rounds", 1000) as parlour:
        tried = all_tried(parlour, slow, stream=stream, timeout=PATIENCE / 4)
        assert {name: each.failed for name, each in tried.items()} == dict.fromkeys(slow, "upstream_timeout")
        nothing_is_kept_until_it_works(parlour, tried)


# The key


def seen(parlour: Parlour, *answers: httpx.Response) -> str:
    """All that users and operators can read."""
    return parlour.service.log + "".join(f"{each.headers} {each.text}" for each in answers)


SHOWN = {
    "a refusal": fails(401),
    "a plain text": fails(403, b"no {key} here"),
    "a server error": fails(500, {"error": {"message": "bad key {key}", "headers": "Bearer {key}"}}),
    "at the end of what is read of it": fails(400, "x" * 385 + "{key}"),
    "at the end of what is logged of it": fails(400, "x" * 480 + "{key}"),
    "in an answer": garbage({"error": {"message": f"bad key {KEY}"}}),
    "at the end of an answer": garbage({"error": {"message": "x" * 375 + KEY}}),
}


@pytest.mark.parametrize("stream", [False, True])
def test_the_key_is_shown_to_nobody(parlour: Parlour, stream: bool) -> None:
    tried = all_tried(parlour, SHOWN, stream=stream)
    for name, each in tried.items():
        assert_error(each.answer, 502, "upstream_failed")
        assert len(json.loads(each.answer.text)["error"]) < 100, name
    everything = seen(parlour, *(each.answer for each in tried.values()))
    assert "the LLM failed" in everything
    pieces = {KEY[at : at + 10] for at in range(len(KEY) - 9)}
    assert not [piece for piece in pieces if piece in everything]


def test_a_refusal_is_not_asked_for_twice(parlour: Parlour) -> None:
    refusals: dict[str, Play] = {str(status): fails(status) for status in (400, 401, 403, 404, 422)}
    for name, each in all_tried(parlour, refusals).items():
        assert name in assert_error(each.answer, 502, "upstream_failed")["error"]
        assert each.asked == 1, name


def test_the_settings_that_name_a_model_are_no_part_of_any_answer(parlour: Parlour) -> None:
    alice, looks = parlour.chatter("alice"), list[Callable[[], httpx.Response]]()
    looks += [lambda path=path: parlour.admin.ask("GET", path) for path in (  # type: ignore[misc]
        "/v1/admin/stats", "/v1/admin/config", "/v1/admin/settings", "/v1/agents", "/v1/agents/bot",
        "/v1/models", "/openapi.json", "/metrics", "/readyz", "/healthz")]  # fmt: skip
    looks += [lambda: alice.tries("bot", "s", "Hello", explain=True)]
    assert KEY not in seen(parlour, *(look() for look in looks))
