"""The scripted language model, as the official clients of both dialects see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.support.llm_server import LLMServer, Play, calls, cut, endless, fails, garbage, llm, silent, text  # noqa: F401
from tests.support.waiting import until

ASKED: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Which tea?"}]}
TOLD: Any = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
TEA: Any = ("remember", {"key": "tea", "content": "green"})
CUP: Any = ("recall", {})


@pytest.fixture
def server(llm: LLMServer) -> LLMServer:  # noqa: F811
    llm.reset()
    return llm


@pytest.fixture
def chat(server: LLMServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=server.url, api_key="k-1", max_retries=0) as client:
        yield client.chat.completions


@pytest.fixture
def messages(server: LLMServer) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.root, api_key="k-2", max_retries=0) as client:
        yield client.messages


def checked(*answers: Any) -> None:
    """They have the shape that the client says they have, which it does not look at itself."""
    for answer in answers:
        type(answer).model_validate(answer.to_dict())


def test_a_text_is_told_and_the_request_is_kept(server: LLMServer, chat: Any, messages: Any) -> None:
    server.play(text("Green.", usage=(12, 3)), text("Black.", usage=(7, 5), finish="max_tokens"))
    green, black = chat.create(**ASKED), messages.create(**ASKED)
    checked(green, black)
    assert (green.choices[0].message.content, green.choices[0].finish_reason) == ("Green.", "stop")
    assert (green.usage.prompt_tokens, green.usage.completion_tokens, green.usage.total_tokens) == (12, 3, 15)
    assert (black.content[0].text, black.stop_reason, black.model) == ("Black.", "max_tokens", "m")
    assert (black.usage.input_tokens, black.usage.output_tokens) == (7, 5)
    one, other = server.requests
    assert (one.method, one.path, other.path) == ("POST", "/v1/chat/completions", "/v1/messages")
    assert (one.headers["authorization"], other.headers["authorization"]) == ("Bearer k-1", "Bearer k-2")
    assert one.body == other.body == ASKED
    assert one.messages == ASKED["messages"]
    assert [(each.answered, each.gone) for each in (one, other)] == [(True, False)] * 2


def test_a_text_is_streamed_in_pieces(server: LLMServer, chat: Any, messages: Any) -> None:
    server.play(text("Green tea, please.", pieces=3, usage=(12, 3), times=2))
    checked(*(chunks := list(chat.create(**TOLD))))
    *said, end, usage = chunks
    assert [chunk.choices[0].delta.content for chunk in said] == ["", "Green ", "tea, p", "lease."]
    assert (end.choices[0].finish_reason, end.usage) == ("stop", None)
    assert (usage.choices, usage.usage.total_tokens) == ([], 15)
    with messages.stream(**ASKED) as stream:
        assert list(stream.text_stream) == ["Green ", "tea, p", "lease."]
        whole = stream.get_final_message()
    assert (whole.stop_reason, whole.usage.input_tokens, whole.usage.output_tokens) == ("end_turn", 12, 3)
    assert all(each.answered and not each.gone for each in server.requests)


def test_tools_are_called_in_parallel(server: LLMServer, chat: Any, messages: Any) -> None:
    server.play(calls(TEA, CUP, text="Let me see.", times=4))
    checked(whole := chat.create(**ASKED), *(chunks := list(chat.create(**TOLD))))
    made = whole.choices[0].message.tool_calls
    assert [(each.function.name, json.loads(each.function.arguments)) for each in made] == [TEA, CUP]
    deltas = [call for chunk in chunks[:-1] for call in chunk.choices[0].delta.tool_calls or []]
    named = [call for call in deltas if call.id]
    written = ["".join(call.function.arguments for call in deltas if call.index == n) for n in (0, 1)]
    assert [*zip([call.function.name for call in named], map(json.loads, written), strict=True)] == [TEA, CUP]
    assert len(deltas) == 4 + 3  # a name and three pieces, and for `{}` only two
    assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "tool_calls"
    ids = {call.id for call in [*made, *named]}

    with messages.stream(**ASKED) as stream:
        checked(*(event for event in stream if event.type in ("message_start", "message_delta")))
        streamed = stream.get_final_message()
    for message in (messages.create(**ASKED), streamed):
        checked(message)
        spoken, *used = message.content
        assert (spoken.text, message.stop_reason) == ("Let me see.", "tool_use")
        assert [(each.name, each.input) for each in used] == [TEA, CUP]
        ids |= {each.id for each in used}
    assert len(ids) == 8


def test_an_answer_may_be_odd(server: LLMServer, chat: Any, messages: Any) -> None:
    server.play(calls(("remember", '{"key": '), times=2), text("", usage=False, times=3))
    assert chat.create(**ASKED).choices[0].message.tool_calls[0].function.arguments == '{"key": '
    assert messages.create(**ASKED).content[0].input == '{"key": '
    said = chat.create(**ASKED)
    assert (said.choices[0].message.content, said.choices[0].finish_reason, said.usage) == ("", "stop", None)
    assert [chunk.choices[0].finish_reason for chunk in chat.create(**TOLD)] == [None, "stop"]
    assert messages.create(**ASKED).content == []


def test_an_error_is_told_as_often_as_it_should(server: LLMServer, chat: Any, messages: Any) -> None:
    server.play(fails(429, headers={"retry-after": "7"}, times=2), fails(401, times=2))
    server.play(fails(500, {"error": {"message": "no {key}"}}))
    for client, library in ((chat, openai), (messages, anthropic)):
        with pytest.raises(library.RateLimitError, match="Too Many") as limited:
            client.create(**ASKED, stream=True)
        assert limited.value.response.headers["retry-after"] == "7"
    with pytest.raises(openai.AuthenticationError, match="key provided: k-1"):
        chat.create(**ASKED)
    with pytest.raises(anthropic.AuthenticationError, match="key provided: k-2"):
        messages.create(**ASKED)
    with pytest.raises(openai.InternalServerError, match="no k-1"):
        chat.create(**ASKED)
    assert chat.create(**ASKED).choices[0].message.content == "Hello."


@pytest.mark.parametrize("resets", [False, True])
def test_an_answer_is_cut(server: LLMServer, chat: Any, messages: Any, resets: bool) -> None:
    server.play(cut(after=2, resets=resets, times=4), calls(TEA, cut=2, resets=resets))
    said: list[str] = []
    with pytest.raises(openai.APIConnectionError):
        said.extend(chunk.choices[0].delta.content for chunk in chat.create(**TOLD))
    assert said == ["", "Once u", "pon a t"]
    with pytest.raises(httpx2.TransportError), messages.stream(**ASKED) as stream:
        stream.get_final_message()
    for client, error in ((chat, openai.APIConnectionError), (messages, anthropic.APIConnectionError)):
        with pytest.raises(error):
            client.create(**ASKED)
    with pytest.raises(openai.APIConnectionError):
        list(chat.create(**TOLD))
    assert not any(each.answered or each.gone for each in server.requests)


@pytest.mark.parametrize("play", [endless(times=2), text("Hello", pieces=5, delay=600, times=2)])
def test_a_client_that_goes_away_is_seen(server: LLMServer, chat: Any, messages: Any, play: Play) -> None:
    server.play(play, silent(), silent(0))
    for client in (chat, messages):
        with client.create(**ASKED, stream=True) as stream:
            next(iter(stream))
            until(lambda: server.waiting == 1)
    with pytest.raises(openai.APITimeoutError):
        chat.create(**ASKED, timeout=0.1)
    with pytest.raises(openai.APIConnectionError):
        chat.create(**ASKED)
    until(lambda: [each.gone for each in server.requests] == [True, True, True, False])
    assert not any(each.answered for each in server.requests)


def test_an_answer_is_chosen_by_what_is_asked(server: LLMServer, messages: Any) -> None:
    server.play(text("One"), text("Tea", when="tea", always=True), text("Be", when="Be “kind”"), text("Two"))
    for asked, told in (("Hi", "Be"), ("Hi", "One"), ("tea", "Tea"), ("tea", "Tea"), ("Hi", "Two")):
        said = {"messages": [{"role": "user", "content": asked}], "system": "Be “kind”"}
        assert messages.create(**{**ASKED, **said}).content[0].text == told


def test_what_comes_may_be_garbage(server: LLMServer, chat: Any, messages: Any) -> None:
    server.play(garbage(b"{no", times=3), garbage({"choices": "no"}), garbage("<p>", "text/html"))
    server.play(text("Whole.", streams=False))
    for client, streams in ((chat, False), (chat, True), (messages, True)):
        with pytest.raises(json.JSONDecodeError):
            list(client.create(**ASKED, stream=streams))
    assert chat.create(**ASKED).choices == "no"
    for kind, body in (("text/html", "<p>"), ("application/json", "Whole.")):  # though a stream was asked for
        told = httpx.post(f"{server.url}/chat/completions", json=TOLD, trust_env=False)
        assert told.headers["content-type"] == kind
        assert body in told.text


def test_many_are_streamed_to_at_once_until_a_reset(server: LLMServer) -> None:
    async def crowd() -> None:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
            asking = (client.chat.completions.create(**ASKED, stream=True) for _ in range(200))
            streams: Any = await asyncio.gather(*asking)
            assert server.waiting == 200
            await asyncio.gather(*(anext(stream) for stream in streams))
            await asyncio.gather(*(stream.close() for stream in streams[1:]))
            until(lambda: sum(each.gone for each in server.requests) == 199)
            server.reset()
            with pytest.raises(openai.APIConnectionError):
                _ = [each async for each in streams[0]]

    server.play(endless(delay=0.05, times=200))
    asyncio.run(crowd())
    assert (server.waiting, server.requests) == (0, [])
