"""Agents whose model is one of Anthropic's: the same turns in its words, through its official library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from alcove.core.settings import DEFAULT_ANSWER_TOKENS
from tests.support.chat_service import (
    KEY,
    Parlour,
    all_tried,
    asked,
    chatting,
    nothing_is_kept_until_it_works,
)
from tests.support.llm_server import LLMServer, Play, calls, cut, endless, fails, garbage, llm, silent, text  # noqa: F401
from tests.support.openai_clients import WAYS, complete
from tests.support.service import assert_error
from tests.support.waiting import PATIENCE, until

RETRIES = 1
TEA: Any = ("remember", {"key": "tea", "content": "Green tea"})
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def served(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    flags = ("--llm-retries", RETRIES, "--llm-timeout", 2, "--turn-rounds", 2)
    reached = ("--llm-provider", "anthropic", "--llm-url", llm.root)
    with chatting(tmp_path_factory.mktemp("anthropic"), llm, *reached, *flags) as parlour:
        yield parlour


@pytest.fixture
def parlour(served: Parlour) -> Parlour:
    served.llm.reset()
    return served


def stream_of(*events: tuple[str, Any]) -> Play:
    """An answer of just these events."""
    lines = (f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in events)
    return garbage("".join(lines), "text/event-stream")


def begun(**usage: int) -> tuple[str, Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    ends = {"stop_reason": None, "stop_sequence": None}
    return "message_start", {
        "message": {**message, **ends, "usage": {"input_tokens": 3, "output_tokens": 1, **usage}}
    }


SPOKEN: list[tuple[str, Any]] = [
    ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "Green."}}),
    ("content_block_stop", {"index": 0}),
]
ENDED: tuple[str, Any] = (
    "message_delta",
    {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 7}},
)


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_in_anthropics_words(parlour: Parlour, stream: bool) -> None:
    alice = parlour.chatter("alice")
    alice.call("bot", "learn_fact", content="The cat is called Miau")
    parlour.llm.play(text("Miau.", pieces=2, usage=(12, 3)))
    heard = (
        alice.hears("bot", "s", "Which cat?") if stream else [("reply", alice.chat("bot", "s", "Which cat?"))]
    )
    assert [kind for kind, _ in heard] == (["text", "text", "reply"] if stream else ["reply"])
    reply = heard[-1][1]
    assert (reply["text"], reply["finish"], reply["stored"]) == ("Miau.", "stop", True)
    assert reply["usage"] == {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    (request,) = parlour.llm.requests
    assert request.path == "/v1/messages"
    assert KEY in (
        request.headers.get("x-api-key"),
        request.headers.get("authorization", "")[len("Bearer ") :],
    )
    body = request.body
    assert (body["model"], body["max_tokens"], body["stream"]) == ("scripted", DEFAULT_ANSWER_TOKENS, True)
    (system,) = body["system"]
    assert system["type"] == "text"
    assert system["text"].startswith("You remember.")
    (message,) = body["messages"]
    assert message["role"] == "user"
    recalled, question = message["content"]
    assert "Miau" in recalled["text"]
    assert question == {"type": "text", "text": "Which cat?"}
    assert body["tools"] == alice.see("/v1/agents/bot/tools", format="anthropic")["tools"]
    alice.chat("bot", "s", "And the dog?")
    roles = [each["role"] for each in parlour.llm.requests[1].messages]
    assert roles == ["user", "assistant", "user"]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_blocks_whose_results_come_together(parlour: Parlour, stream: bool) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(TEA, ("recall", {"key": "tea"}), ("recall", {"key": "nope"}), text="A moment."))
    heard = alice.hears("bot", "s", "Tea") if stream else [("reply", alice.chat("bot", "s", "Tea"))]
    assert heard[-1][1]["text"] == "A moment.\n\nHello."
    assert [use["outcome"] for use in heard[-1][1]["tools"]] == ["ok", "ok", "not_found"]
    _, spoken, results = parlour.llm.requests[1].messages
    first, *uses = spoken["content"]
    assert (spoken["role"], results["role"]) == ("assistant", "user")
    assert first == {"type": "text", "text": "A moment."}
    assert [(use["type"], use["name"], use["input"]) for use in uses] == [
        ("tool_use", *TEA), ("tool_use", "recall", {"key": "tea"}), ("tool_use", "recall", {"key": "nope"}),
    ]  # fmt: skip
    assert {each["type"] for each in results["content"]} == {"tool_result"}
    assert [each["tool_use_id"] for each in results["content"]] == [use["id"] for use in uses]
    assert "Green tea" in results["content"][1]["content"]
    assert results["content"][2]["content"].startswith("error: ")
    assert alice.kept("bot", "s") == [("user", "Tea"), ("assistant", "A moment.\n\nHello.")]


def test_arguments_that_are_no_object_are_told_of(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(("remember", '{"key": ')), calls(("make_coffee", {})))
    reply = alice.chat("bot", "s", "Tea")
    assert [use["outcome"] for use in reply["tools"]] == ["invalid_request", "not_found"]
    assert parlour.llm.requests[1].messages[-2]["content"][0]["input"] == {}


def test_a_model_that_only_calls_has_to_answer_in_the_end(parlour: Parlour) -> None:
    parlour.llm.play(calls(TEA, times=2))
    reply = parlour.chatter().chat("bot", "s", "Tea")
    assert (reply["text"], reply["rounds"]) == ("Hello.", 3)
    last = parlour.llm.requests[-1].body
    assert "tools" not in last or last["tool_choice"] == {"type": "none"}


def test_a_conversation_begins_with_the_user_as_anthropic_wants_it(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.say("talk", "s", *(f"message {n}" for n in range(9)))  # of which the window has the last six
    alice.chat("talk", "s", "And now?")
    messages = parlour.llm.requests[0].messages
    assert messages[0]["role"] == "user"
    for before, after in pairwise(messages):
        assert before["role"] != after["role"]


@pytest.mark.parametrize("way", WAYS)
def test_options_and_tools_of_a_caller_are_translated(parlour: Parlour, way: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(("get_weather", {"city": "Porto"})), text("Dry."))
    options: Any = {
        "tools": [WEATHER], "tool_choice": "required", "max_tokens": 99, "stop": "END", "seed": 7, "way": way,
        "session": "s",
    }  # fmt: skip
    rule = {"role": "system", "content": "Be brief."}
    first = complete(alice, "bot", rule, "Will it rain?", **options)
    assert (first.finish, first.calls) == ("tool_calls", [("get_weather", {"city": "Porto"})])
    body = parlour.llm.requests[0].body
    assert (body["max_tokens"], body["stop_sequences"], body["tool_choice"]) == (99, ["END"], {"type": "any"})
    assert not {"seed", "stop", "tool_calls"} & body.keys()
    assert [each["text"] for each in body["system"]][1:] == ["Be brief."]
    assert body["tools"][-1] == {"name": "get_weather", "description": "", "input_schema": {"type": "object"}}
    result = {"role": "tool", "tool_call_id": first.ids[0], "content": "Dry"}
    options |= {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "stop": ["A", "B"]}
    last = complete(alice, "bot", "Will it rain?", first.message(), result, **options)
    assert last.text == "Dry."
    body = parlour.llm.requests[1].body
    assert (body["tool_choice"], body["stop_sequences"]) == (
        {"type": "tool", "name": "get_weather"},
        ["A", "B"],
    )
    assert body["messages"][-1]["content"] == [
        {"type": "tool_result", "tool_use_id": first.ids[0], "content": "Dry"}
    ]
    assert [role for role, _ in alice.kept("bot", "s")] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("option", ["temperature", "top_p"])
def test_how_an_answer_is_chosen_may_be_said(parlour: Parlour, option: str) -> None:
    given: Any = {option: 0.5}
    assert complete(parlour.chatter(), "talk", "Hello", **given).text == "Hello."
    assert parlour.llm.requests[0].body[option] == 0.5


ENDS = [
    ("max_tokens", "length"),
    ("refusal", "content_filter"),
    ("stop_sequence", "stop"),
    ("something_new", "stop"),
]


@pytest.mark.parametrize(("theirs", "ours"), ENDS)
def test_why_an_answer_ended_is_told_in_openais_words(parlour: Parlour, theirs: str, ours: str) -> None:
    parlour.llm.play(text("Well,", finish=theirs))
    assert complete(parlour.chatter(), "talk", "Hello").finish == ours


def test_tokens_of_a_cache_are_counted(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    start = begun(cache_creation_input_tokens=100, cache_read_input_tokens=1000)
    parlour.llm.play(stream_of(start, *SPOKEN, ENDED, ("message_stop", {})))
    reply = alice.chat("talk", "s", "Which tea?")
    assert reply["text"] == "Green."
    assert reply["usage"] == {"prompt_tokens": 1103, "completion_tokens": 7, "total_tokens": 1110}


ERROR = ("error", {"error": {"type": "overloaded_error", "message": f"Overloaded {KEY}"}})
FAILURES: dict[str, tuple[Play, int, int]] = {
    "the key is wrong": (fails(401), 502, 1),
    "the request is wrong": (fails(400, {"type": "error", "error": {"message": "no {key}"}}), 502, 1),
    "too many": (fails(429), 503, 2),
    "an error": (fails(500), 502, 2),
    "overloaded": (fails(529), 503, 2),
    "an error instead of an answer": (stream_of(ERROR), 502, 2),
    "an error that is begun": (stream_of(begun(), ERROR), 502, 2),
    "cut before anything was said": (cut(after=0), 502, 2),
    "reset before anything was said": (cut(after=0, resets=True), 502, 2),
    "no end": (stream_of(begun()), 502, 2),
    "no JSON": (garbage(b"{no"), 502, 2),
    "a page": (garbage(b"<html>Sign in</html>", "text/html"), 502, 2),
    "something else": (garbage({"choices": []}), 502, 2),
    "another shape": (stream_of(("message_start", {"message": "no"}), ENDED), 502, 2),
    "silence": (silent(), 504, 2),
    "nothing": (text(""), 502, 2),
}
CODES = {502: "upstream_failed", 503: "service_unavailable", 504: "upstream_timeout"}


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_answer_is_asked_for_again_and_then_told(parlour: Parlour, stream: bool) -> None:
    tried = all_tried(parlour, {name: play for name, (play, _, _) in FAILURES.items()}, stream=stream)
    for name, each in tried.items():
        _, status, tries = FAILURES[name]
        assert (each.answer.status_code, each.asked) == (status, tries), name
        assert_error(each.answer, status, CODES[status])
        assert KEY not in each.answer.text
    assert KEY not in parlour.service.log
    nothing_is_kept_until_it_works(parlour, tried)


@pytest.mark.parametrize(
    "play", [stream_of(begun(), *SPOKEN, ERROR), stream_of(begun(), *SPOKEN), cut(after=3)]
)
def test_what_goes_wrong_after_the_first_word_is_an_event(parlour: Parlour, play: Play) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(play)
    (first, _), *_, (last, error) = alice.hears("talk", "s", "Hello")
    assert (first, last, error["code"]) == ("text", "error", "upstream_failed")
    assert alice.kept("talk", "s") == []
    assert len(parlour.llm.requests) == 1


def test_what_works_the_second_time_has_worked(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(fails(429, headers={"retry-after": "1"}), text("There."))
    assert alice.chat("talk", "s", "Hello")["text"] == "There."
    parlour.llm.play(fails(429, headers={"retry-after": "3600"}))
    assert_error(alice.tries("talk", "s", "Hello"), 503, "service_unavailable")
    assert len(parlour.llm.requests) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_model(parlour: Parlour, stream: bool) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(endless("word ", delay=0.01))
    with asked(alice, "/v1/agents/talk/chat", {"session_id": "s", "message": "Hello", "stream": stream}):
        parlour.asking()
    until(lambda: parlour.llm.requests[-1].gone)
    assert alice.kept("talk", "s") == []


def test_a_turn_has_an_end_though_a_call_has_none(llm: LLMServer, tmp_path: Path) -> None:  # noqa: F811
    llm.reset()
    flags = ("--llm-provider", "anthropic", "--llm-url", llm.url, "--turn-seconds", 3)  # with its /v1, too
    with chatting(tmp_path, llm, *flags) as parlour:
        alice = parlour.chatter("alice")
        assert alice.chat("talk", "s", "Hello")["text"] == "Hello."
        assert llm.requests[0].path == "/v1/messages"
        llm.play(calls(("remember", "x" * 9000), pieces=9000, delay=0.05))
        slow = alice.tries("talk", "s", "Hello", timeout=PATIENCE / 4)
        assert_error(slow, 504, "upstream_timeout")
