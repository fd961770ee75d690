"""What an OpenAI-compatible server says: calls of tools in any shape, garbage, and answers without end."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from alcove.core.errors import AlcoveError, UpstreamFailed
from alcove.llm import openai
from alcove.llm.model import ModelAnswer, TokenUse
from tests.support.llm_server import Json, LLMServer, Play, endless, fails, garbage, llm, text  # noqa: F401
from tests.support.model_turns import ask, reached
from tests.support.waiting import until

KEY = "sk-4f1d0c9ab7qwertzuiopasdfghjklyxcv"
END: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


@pytest.fixture
def server(llm: LLMServer) -> LLMServer:  # noqa: F811
    return llm


def call(arguments: object = None, **more: Any) -> Json:
    """A part of a call: `index`, `id` and `name` as given."""
    name = {"name": more.pop("name")} if "name" in more else {}
    return {**more, "function": {**name, **({} if arguments is None else {"arguments": arguments})}}


def streamed(server: LLMServer, *deltas: list[Json]) -> ModelAnswer:
    """What a stream with these parts of calls comes to."""
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": parts}}]} for parts in deltas]
    return played(server, garbage("\n".join(map(json.dumps, [*chunks, END]))), stream=True)


def played(server: LLMServer, play: Play, *, stream: bool) -> ModelAnswer:
    with reached(server) as (model, _):
        server.play(play)
        (answered,) = (piece for piece in ask(model, stream=stream) if isinstance(piece, ModelAnswer))
        assert len(server.requests) == 1
    return answered


def made(answered: ModelAnswer) -> list[tuple[str, Any]]:
    """The calls, once they have what every call must have."""
    calls = answered.tool_calls
    assert answered.finish == "tool_calls"
    assert all(each["id"] and each["type"] == "function" for each in calls)
    assert len({each["id"] for each in calls}) == len(calls)
    return [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in calls]


# Calls of tools


def test_arguments_come_in_pieces_and_calls_by_turns(server: LLMServer) -> None:
    answered = streamed(
        server,
        [call("", index=0, id="a", name="tea")],
        [call('{"ke', index=0), call("", index=1, id="b", name="cup")],
        [call('{"n"', index=1)],
        [call('y": "green"}', index=0)],
        [call(": 2}", index=1)],
    )
    assert made(answered) == [("tea", {"key": "green"}), ("cup", {"n": 2})]
    assert [each["id"] for each in answered.tool_calls] == ["a", "b"]


def test_a_name_and_an_id_that_are_repeated_are_those_of_the_call(server: LLMServer) -> None:
    parts = [[call(piece, index=0, id="a", name="tea")] for piece in ('{"key"', ': "green"', "}")]
    assert made(streamed(server, *parts)) == [("tea", {"key": "green"})]


def test_calls_without_an_id_are_given_one_each(server: LLMServer) -> None:
    parts = [call("{}", index=0, name="tea"), call("{}", index=1, name="cup", id="")]
    assert made(streamed(server, parts)) == [("tea", {}), ("cup", {})]


def test_calls_with_the_same_id_are_given_their_own(server: LLMServer) -> None:
    parts = [call("{}", index=n, id="a", name=name) for n, name in enumerate(("tea", "cup", "pot"))]
    answered = streamed(server, *([each] for each in parts))
    assert made(answered) == [("tea", {}), ("cup", {}), ("pot", {})]
    assert answered.tool_calls[0]["id"] == "a"


def test_arguments_may_be_an_object_or_none(server: LLMServer) -> None:
    answered = streamed(server, [call({"key": "green"}, index=0, name="tea"), call(index=1, name="cup")])
    assert made(answered) == [("tea", {"key": "green"}), ("cup", {})]


def test_calls_without_an_index_that_come_together_are_several(server: LLMServer) -> None:
    assert made(streamed(server, [call("{}", name="tea"), call("{}", name="cup")])) == [
        ("tea", {}),
        ("cup", {}),
    ]


def test_calls_that_all_have_the_first_index_are_several_if_their_ids_are(server: LLMServer) -> None:
    """As Ollama (issue 15457) and some gateways send them."""
    parts = [[call('{"n": 1}', index=0, id="a", name="tea")], [call('{"n": 2}', index=0, id="b", name="tea")]]
    assert made(streamed(server, *parts)) == [("tea", {"n": 1}), ("tea", {"n": 2})]


def test_calls_without_an_index_that_come_one_by_one_are_several_if_their_ids_are(server: LLMServer) -> None:
    """As Gemini's compatible address sends them."""
    parts = [[call('{"n": 1}', id="a", name="tea")], [call('{"n": ', id="b", name="cup")], [call("2}")]]
    assert made(streamed(server, *parts)) == [("tea", {"n": 1}), ("cup", {"n": 2})]


def test_a_whole_answer_has_calls_too(server: LLMServer) -> None:
    message = {
        "content": None,
        "tool_calls": [call({"key": "green"}, name="tea"), call("", id="b", name="cup")],
    }
    play = garbage({"choices": [{"message": message, "finish_reason": "stop"}]})
    assert made(played(server, play, stream=False)) == [("tea", {"key": "green"}), ("cup", {})]


# Text, and what it took


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_a_text_comes_with_its_tokens_streamed_or_not(server: LLMServer, stream: bool, streams: bool) -> None:
    play = text("Green tea, please.", pieces=3, usage=(12, 3), streams=streams)
    assert played(server, play, stream=stream) == ModelAnswer(
        text="Green tea, please.", use=TokenUse.of(12, 3)
    )


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_are_not_told_are_not_made_up(server: LLMServer, stream: bool) -> None:
    assert played(server, text("Green.", usage=False), stream=stream).use is None


def test_the_lines_of_a_stream_may_be_written_as_servers_like(server: LLMServer) -> None:
    said = (
        {"choices": [{"delta": {"content": "Green."}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    )
    raw = ": hello\r\n" + "".join(f"id: 7\r\ndata:{json.dumps(each)}\r\n\r\n" for each in said)
    assert played(server, garbage(raw, "text/event-stream"), stream=True).text == "Green."


@pytest.mark.parametrize(
    "play",
    [
        garbage(b"<html>"),
        garbage({"choices": "none"}),
        garbage({"choices": []}),
        garbage({"choices": [{"delta": {"content": 7}}]}),
        garbage({"error": {"message": "out of memory"}}),
        garbage(b"\xff\xfe"),
        garbage(b"[" * 100_000),
        text("Half of it", pieces=4, cut=0),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_answer_is_asked_for_again_and_then_told(
    server: LLMServer, play: Play, stream: bool
) -> None:
    with reached(server, llm_retries=2) as (model, _):
        server.play(*[play] * 2)
        assert ask(model, stream=stream)[-1].text == "Hello."  # type: ignore[union-attr]
        server.play(*[play] * 3)
        with pytest.raises(UpstreamFailed):
            ask(model, stream=stream)
        assert len(server.requests) == 6


# Without end


def test_a_text_that_does_not_end_is_cut_off(server: LLMServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alcove.llm.model.MAX_CHARACTERS", 1000)
    with reached(server) as (model, _):
        server.play(endless("word ", always=True))
        with pytest.raises(UpstreamFailed, match="no usable answer"):
            ask(model, stream=True)
        until(lambda: [each.gone for each in server.requests] == [True])


def test_a_call_that_does_not_end_is_cut_off(server: LLMServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alcove.llm.model.MAX_CHARACTERS", 1000)
    line = json.dumps({"choices": [{"delta": {"tool_calls": [call("x" * 100, index=0, name="tea")]}}]})
    with reached(server, llm_retries=1) as (model, _):
        server.play(garbage("\n".join([line] * 50), times=2))
        with pytest.raises(UpstreamFailed, match="no usable answer"):
            ask(model, stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_or_a_line_that_does_not_end_is_cut_off(
    server: LLMServer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(openai, "MAX_BYTES", 10_000)
    kind = {"content-type": "text/event-stream" if stream else "application/json"}
    with reached(server, llm_retries=1) as (model, _):
        server.play(endless("x" * 1000, headers=kind, times=2))
        with pytest.raises(UpstreamFailed, match="no usable answer"):
            ask(model, stream=stream)
        until(lambda: [each.gone for each in server.requests] == [True])


def test_an_error_that_does_not_end_is_cut_off(server: LLMServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "MAX_BYTES", 10_000)
    with reached(server, llm_retries=1) as (model, _):
        server.play(endless("x" * 1000, status=500, headers={"content-type": "text/plain"}, times=2))
        with pytest.raises(UpstreamFailed):
            ask(model)
        until(lambda: all(each.gone for each in server.requests))


# The key


@pytest.mark.parametrize("before", [0, 8, 380, 398])
def test_the_key_is_in_no_log_and_no_error(
    server: LLMServer, caplog: pytest.LogCaptureFixture, before: int
) -> None:
    with reached(server, llm_key=KEY) as (model, _), caplog.at_level(logging.DEBUG):
        server.play(fails(401, "x" * before + "{key} is wrong"))
        with pytest.raises(UpstreamFailed) as told:
            ask(model)
    assert "401" in caplog.text
    assert not _told_of_the_key(f"{caplog.text}{told.value!r}{told.value.details}")


@pytest.mark.parametrize(
    "key", [f"{KEY}\n", f" {KEY}\r\n", f"{KEY}…", f"ü{KEY}"], ids=["a line", "blanks", "dots", "an umlaut"]
)
def test_nor_is_one_that_cannot_be_sent(
    server: LLMServer, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    told = None
    with caplog.at_level(logging.DEBUG):
        try:
            with reached(server, llm_key=key) as (model, _):
                ask(model)
        except AlcoveError as error:
            told = error
    assert not _told_of_the_key(f"{caplog.text}{told!r}{told and told.details}")


def _told_of_the_key(text: str) -> list[str]:
    return [part for part in (KEY[:10], KEY[10:20], KEY[-10:]) if part in text]
