"""What a turn costs: whatever a caller sends or a model does, a provider is sent no more than is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from alcove.agents.tokens import token_counter
from alcove.core.settings import DEFAULT_ANSWER_TOKENS
from tests.support.chat_service import Chatter, Parlour, asked, chatting, events
from tests.support.llm_server import (  # noqa: F401
    Asked,
    LLMServer,
    Play,
    calls,
    cut,
    fails,
    garbage,
    llm,
    silent,
    text,
)
from tests.support.openai_clients import WAYS, complete
from tests.support.service import assert_error
from tests.support.summary_model import SUMS_UP
from tests.support.waiting import until

TURN, CONTEXT, ANSWER = 6000, 2000, 300
JSON_TOKENS = 15
"""What the frame of a request in JSON takes, at least."""
SPECS = """
agents:
  - {name: bare, instructions: You have no memory.}
  - {name: keeper, memory: {private: {}, conversation: {}}}
"""


LIMITS: tuple[object, ...] = ("--turn-tokens", TURN, "--context-tokens", CONTEXT, "--llm-timeout", 2)


@pytest.fixture(scope="module", params=[ANSWER, 0], ids=["answer-tokens", "no-answer-tokens"])
def served(
    llm: LLMServer,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Parlour]:
    limits = (*LIMITS, "--answer-tokens", request.param)
    with chatting(tmp_path_factory.mktemp("cost"), llm, *limits, specs=SPECS) as parlour:
        yield parlour


@pytest.fixture
def parlour(served: Parlour) -> Parlour:
    served.llm.reset()
    return served


@pytest.fixture
def longest(request: pytest.FixtureRequest) -> int:
    """The longest answer that the service asks for, if a caller asks for more."""
    return ANSWER if "no-answer-tokens" not in request.node.name else TURN


def tokens(request: Asked) -> int:
    """Tokens of all that a provider was sent in one request."""
    sent = {
        name: request.body[name] for name in ("messages", "tools", "response_format") if name in request.body
    }
    return token_counter()(msgspec.json.encode(sent).decode())


def cost(requests: Sequence[Asked], *, answer: int = 0) -> int:
    """The most that a turn can be billed for: all that was sent, and the longest answer to the last request.

    `answer`: the tokens of each earlier answer. What JSON adds is counted here, and is left out of the sum.
    """
    *before, last = requests
    sent = sum(tokens(each) - JSON_TOKENS for each in requests)
    return sent + len(before) * answer + answer_limit(last)


def answer_limit(request: Asked) -> int:
    names = ("max_tokens", "max_completion_tokens")
    return max(int(request.body[name]) for name in names if name in request.body)


def refused(parlour: Parlour, field: str, **options: Any) -> str:
    """What a caller is told whose request is not sent to the provider at all."""
    message = options.pop("message", "Hello")
    with pytest.raises(openai.BadRequestError) as error:
        complete(parlour.chatter(), options.pop("agent", "bare"), message, **options)
    assert str(error.value.param) == field
    assert parlour.llm.requests == []
    return error.value.message


def weather(description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "description": description, "parameters": {}}}


# One answer


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_is_no_longer_than_the_operator_and_the_caller_allow(
    parlour: Parlour, longest: int, name: str
) -> None:
    for given in (ANSWER - 1, ANSWER + 1, 10**9):
        parlour.llm.reset()
        limit: Any = {name: given}
        complete(parlour.chatter(), "bare", "Hello", **limit)
        (request,) = parlour.llm.requests
        most = min(given, longest)
        assert most - 100 <= request.body[name] == answer_limit(request) <= most
        assert cost([request]) <= TURN


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_an_answer_has_a_limit_where_nobody_names_one(
    llm: LLMServer,  # noqa: F811
    tmp_path: Path,
    provider: str,
) -> None:
    for turn_tokens, most in ((3000, 3000), (200_000, DEFAULT_ANSWER_TOKENS)):
        (folder := tmp_path / str(turn_tokens)).mkdir()
        flags = ("--llm-provider", provider, "--turn-tokens", turn_tokens)
        with chatting(folder, llm, *flags, specs=SPECS) as parlour:
            llm.reset()
            parlour.chatter().chat("bare", "s", "Hello")
            (request,) = llm.requests
            assert most - 100 < answer_limit(request) <= most
            assert cost([request]) <= turn_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_tool_that_is_longer_than_the_turn_is_cut_off_and_not_run(
    parlour: Parlour, stream: bool
) -> None:
    alice, long = parlour.chatter("alice"), "word " * 100_000
    parlour.llm.play(
        calls(("remember", {"key": "k", "content": long}), usage=(50, 100_000), pieces=1000, delay=0.0001)
    )
    answer = alice.tries("keeper", "s", "Hello", stream=stream)
    told = dict(events(answer.text))["error"] if answer.status_code == 200 else answer.json()
    assert told["code"] == "upstream_failed"
    assert "tokens" in told["error"]
    assert alice.keys("keeper", "list_memories") == []
    assert len(parlour.llm.requests) == 1
    taken = sum(told["details"]["usage"].values()) // 2
    assert taken == 100_050 if not stream else ANSWER < taken <= TURN + 100
    assert parlour.llm.requests[0].gone == stream


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_server_that_knows_another_name_of_the_limit_is_sent_that(parlour: Parlour, name: str) -> None:
    alice = parlour.chatter("alice")
    limit: Any = {name: 77}
    parlour.llm.play(fails(422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs"}]}))
    for _ in range(2):
        assert complete(alice, "bare", "Hello", **limit).text == "Hello."
    sent = [request.body.keys() & {"max_tokens", "max_completion_tokens"} for request in parlour.llm.requests]
    other = {"max_tokens", "max_completion_tokens"} - {name}
    assert sent == [{name}, other, other]
    for refused_name in other:
        parlour.llm.play(fails(400, f"{refused_name} is too large", times=2))
        assert alice.tries("bare", "s", "Hello").status_code == 502


def test_of_two_limits_the_smaller_one_counts(parlour: Parlour) -> None:
    complete(parlour.chatter(), "bare", "Hello", max_tokens=7, max_completion_tokens=10**6)
    assert answer_limit(parlour.llm.requests[0]) == 7


@pytest.mark.parametrize("given", [0, -1, 10**12])
def test_a_limit_that_is_none_is_refused(parlour: Parlour, given: int) -> None:
    refused(parlour, "max_tokens", max_tokens=given)


@pytest.mark.parametrize("given", [0, 2, 100])
def test_several_answers_to_one_request_are_refused(parlour: Parlour, given: int) -> None:
    refused(parlour, "n", n=given)
    assert complete(parlour.chatter(), "bare", "Hello", extra_body={"best_of": given}).text == "Hello."
    assert "best_of" not in parlour.llm.requests[0].body


# One request


def test_tools_that_are_larger_than_a_context_are_refused(parlour: Parlour) -> None:
    said = refused(parlour, "tools", tools=[weather("word " * 2 * CONTEXT)])
    assert f"at most {CONTEXT} tokens (--context-tokens)" in said


def test_a_schema_of_the_answer_that_is_larger_than_a_context_is_refused(parlour: Parlour) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"title": "word " * 2 * CONTEXT}}}
    assert "--context-tokens" in refused(parlour, "response_format", response_format=schema)


@pytest.mark.parametrize("name", ["stop", "tool_choice", "reasoning_effort", "logit_bias"])
def test_no_other_option_is_larger_than_a_context(parlour: Parlour, name: str) -> None:
    long = "word " * 2 * CONTEXT
    given: Any = {"stop": [long], "logit_bias": {str(n): 1 for n in range(CONTEXT)}}.get(name, long)
    assert "--context-tokens" in refused(parlour, name, **{name: given})


def test_tools_are_counted_with_the_message(parlour: Parlour) -> None:
    half = "word " * (CONTEXT * 6 // 10)
    complete(parlour.chatter(), "bare", half)
    complete(parlour.chatter(), "bare", "Hello", tools=[weather(half)])
    parlour.llm.reset()
    assert "--context-tokens" in refused(parlour, "messages", message=half, tools=[weather(half)])


def test_tools_leave_less_room_for_what_is_recalled(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    for n in range(20):
        alice.chat("keeper", "s", f"{n}: {'word ' * 100}")
    parlour.llm.reset()
    complete(alice, "keeper", "And now?", session="s", tools=[weather("word " * 1000)])
    own = alice.see("/v1/agents/keeper/tools")["tools"]
    (request,) = parlour.llm.requests
    assert tokens(request) <= CONTEXT + token_counter()(msgspec.json.encode(own).decode()) + 100


@pytest.mark.parametrize("told", [10, 1000])
def test_a_conversation_that_is_larger_than_a_turn_is_refused(parlour: Parlour, told: int) -> None:
    """Without a session, all of it is sent beside the context."""
    each = "word " * (2 * TURN // told)
    history = [{"role": role, "content": each} for _ in range(told // 2) for role in ("user", "assistant")]
    with pytest.raises(openai.BadRequestError) as error:
        complete(parlour.chatter(), "bare", *history, "And now?")
    assert (error.value.param, parlour.llm.requests) == ("messages", [])
    assert f"at most {TURN} tokens in one turn (--turn-tokens)" in error.value.message


def test_a_caller_chooses_no_larger_context_than_the_operator(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    assert alice.chat("keeper", "s", "Hi", budget_tokens=CONTEXT)["receipt"]["budget_tokens"] == CONTEXT
    answer = alice.tries("keeper", "s", "Hi", budget_tokens=CONTEXT + 1)
    told = assert_error(answer, 400, "invalid_request")
    assert told["details"]["field"] == "budget_tokens"
    assert f"at most {CONTEXT}, which --context-tokens allows" in told["error"]


# One turn


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_all_rounds_of_a_turn_together_stay_within_its_tokens(
    parlour: Parlour, usage: bool, stream: bool
) -> None:
    alice = parlour.chatter("alice")
    alice.call("keeper", "remember", key="long", content="word " * 3000)
    recalled = ("recall", {"key": "long"})
    parlour.llm.play(calls(recalled, text="Hm.", usage=usage, times=20))
    body = {"session_id": "s", "message": "Read it again and again", "stream": stream}
    answer = alice.ask("POST", "/v1/agents/keeper/chat", json=body)
    assert answer.status_code == 200, answer.text
    assert parlour.llm.requests
    rounding = TURN // 20  # the provider of the test counts in its own way
    assert cost(parlour.llm.requests, answer=15) <= TURN + rounding


def test_a_result_that_does_not_fit_is_left_out_and_the_model_is_told(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.call("keeper", "remember", key="long", content="word " * 3000)
    alice.call("keeper", "remember", key="short", content="tea")
    parlour.llm.play(
        calls(("recall", {"key": "long"}), ("recall", {"key": "long"}), ("recall", {"key": "short"}))
    )
    reply = alice.chat("keeper", "s", "Read it")
    assert reply["text"] == "Hello."
    assert [use["outcome"] for use in reply["tools"]] == ["ok"] * 3
    results = [each["content"] for each in parlour.llm.requests[1].messages if each["role"] == "tool"]
    assert results[0].startswith('long: "word word')
    assert results[1] == "error: the result is left out: this turn may take no more tokens"
    assert "tea" in results[2]


def test_a_turn_that_has_taken_its_tokens_ends_with_what_was_said(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(("recall", {"key": "k"}), text="Let me look.", usage=(TURN, 1)))
    reply = alice.chat("keeper", "s", "Look")
    assert (reply["text"], reply["finish"], len(parlour.llm.requests)) == ("Let me look.", "length", 1)


def test_a_turn_that_has_taken_its_tokens_and_said_nothing_fails(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(("recall", {"key": "k"}), usage=(TURN, 1)))
    told = assert_error(alice.tries("keeper", "s", "Look"), 502, "upstream_failed")
    assert "--turn-tokens" in told["error"]
    assert len(parlour.llm.requests) == 1
    assert alice.kept("keeper", "s") == []


def test_empty_answers_count_and_the_model_is_asked_again_only_while_there_are_tokens(
    parlour: Parlour,
) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(text("", usage=(TURN - 1000, 1)))
    reply = alice.chat("keeper", "s", "Look")
    assert reply["text"] == "Hello."
    assert reply["usage"]["prompt_tokens"] > TURN - 1000
    parlour.llm.reset()
    parlour.llm.play(text("", usage=(TURN, 1), times=9))
    told = assert_error(alice.tries("keeper", "t", "Look"), 502, "upstream_failed")
    assert "--turn-tokens" in told["error"]
    assert len(parlour.llm.requests) == 1


def usage(who: Chatter, agent: str) -> tuple[int, int]:
    """Tokens that a user has taken of an agent, in and out."""
    taken = who.see(f"/v1/agents/{agent}/usage")["usage"]
    return sum(each["prompt_tokens"] for each in taken), sum(each["completion_tokens"] for each in taken)


FAILURES: dict[str, Play] = {
    "broken off": cut(2, times=9),
    "garbage": garbage(times=9),
    "silent": silent(times=9),
    "empty": text("", usage=False, times=9),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", FAILURES)
def test_each_attempt_that_fails_counts_and_no_more_are_made_than_the_turn_may_take(
    parlour: Parlour, kind: str, stream: bool
) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(FAILURES[kind])
    history = [{"role": "user", "content": "word " * (TURN - 2000)}, {"role": "assistant", "content": "Yes."}]
    with pytest.raises(openai.OpenAIError):
        complete(alice, "bare", *history, "And now?", way="streamed" if stream else WAYS[0])
    (request,) = parlour.llm.requests
    assert usage(alice, "bare")[0] == pytest.approx(tokens(request), abs=100)


@pytest.mark.parametrize("kind", FAILURES)
def test_attempts_that_fail_are_made_as_long_as_there_are_tokens(parlour: Parlour, kind: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(FAILURES[kind])
    assert alice.tries("bare", "s", "word " * 1000).status_code in (502, 504)
    requests = parlour.llm.requests
    assert len(requests) == 3
    assert usage(alice, "bare")[0] == pytest.approx(sum(map(tokens, requests)), abs=150)
    assert cost(requests) <= TURN


@pytest.mark.parametrize("status", [429, 500, 503])
def test_attempts_that_nobody_bills_do_not_count(parlour: Parlour, status: int) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(fails(status, times=9))
    assert alice.tries("bare", "s", "word " * 1500).status_code in (502, 503)
    assert len(parlour.llm.requests) == 3
    assert usage(alice, "bare") == (0, 0)


def test_an_answer_of_more_than_a_million_characters_is_asked_for_once_and_counts(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(text("x " * 510_000, usage=(20, 510_000), times=9))
    assert_error(alice.tries("bare", "s", "Hello"), 502, "upstream_failed")
    assert len(parlour.llm.requests) == 1
    assert usage(alice, "bare") == (20, 510_000)


def test_a_summary_is_asked_for_within_the_tokens_of_a_context(
    llm: LLMServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    specs = "agents: [{name: bot, memory: {conversation: {window_size: 4}, session_memory: true}}]"
    with chatting(tmp_path, llm, "--turn-tokens", 3000, "--context-tokens", 1500, specs=specs) as parlour:
        llm.reset()
        llm.play(garbage(when=SUMS_UP, times=9))
        alice = parlour.chatter("alice")
        alice.say("bot", "s", *(f"My name is Bo{n} and I like tea <{n}>. " * 20 for n in range(100)))
        alice.end("bot", "s")
        until(lambda: llm.requests and alice.see("/v1/agents/bot/usage")["usage"])
        until(lambda: usage(alice, "bot")[0] > 0)
        for request in llm.requests:
            escapes = request.messages[-1]["content"].count("\\")
            assert 300 < tokens(request) <= 1500 + 3 * escapes + 50
        assert cost(llm.requests[:1]) <= 3000 + 100


def test_what_a_client_asked_for_is_counted_although_it_left(parlour: Parlour) -> None:
    mallory = parlour.chatter("mallory")
    parlour.llm.play(silent(), text("Hello.", usage=(10, 2)))
    with asked(mallory, "/v1/agents/bare/chat", {"session_id": "s", "message": "word " * 1000}):
        parlour.asking()
    until(lambda: parlour.llm.requests[-1].gone)
    mallory.chat("bare", "s", "Hello")
    (taken,) = mallory.see("/v1/agents/bare/usage")["usage"]
    assert taken["prompt_tokens"] > 1000
