"""What a turn costs: whatever a caller sends or a model does, a provider is sent no more than is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest

from alcove.agents.tokens import token_counter
from tests.support.chatting import Parlour, asked, chatting
from tests.support.llm_server import Asked, LLMServer, calls, llm, silent, text  # noqa: F401
from tests.support.openai_clients import complete
from tests.support.patience import until
from tests.support.service import assert_error

TURN, CONTEXT, ANSWER = 6000, 2000, 300
SPECS = """
agents:
  - {name: bare, instructions: You have no memory.}
  - {name: keeper, memory: {private: {}, conversation: {}}}
"""


@pytest.fixture(scope="module")
def served(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    limits = ("--turn-tokens", TURN, "--context-tokens", CONTEXT, "--answer-tokens", ANSWER)
    with chatting(tmp_path_factory.mktemp("cost"), llm, *limits, specs=SPECS) as parlour:
        yield parlour


@pytest.fixture
def parlour(served: Parlour) -> Parlour:
    served.llm.reset()
    return served


def tokens(request: Asked) -> int:
    """Tokens of all that a provider was sent in one request."""
    sent = {
        name: request.body[name] for name in ("messages", "tools", "response_format") if name in request.body
    }
    return token_counter()(msgspec.json.encode(sent).decode())


def cost(parlour: Parlour) -> int:
    """The most that a turn can be billed for: all that was sent, and the longest answers asked for."""
    return sum(tokens(each) + answer_limit(each) for each in parlour.llm.requests)


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
def test_an_answer_is_no_longer_than_the_operator_and_the_caller_allow(parlour: Parlour, name: str) -> None:
    for given, sent in ((ANSWER - 1, ANSWER - 1), (ANSWER + 1, ANSWER), (10**9, ANSWER)):
        parlour.llm.reset()
        limit: Any = {name: given}
        complete(parlour.chatter(), "bare", "Hello", **limit)
        (request,) = parlour.llm.requests
        assert request.body[name] == answer_limit(request) == sent


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
    assert cost(parlour) <= TURN


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


def test_what_a_client_asked_for_is_counted_although_it_left(parlour: Parlour) -> None:
    mallory = parlour.chatter("mallory")
    parlour.llm.play(silent(), text("Hello.", usage=(10, 2)))
    with asked(mallory, "/v1/agents/bare/chat", {"session_id": "s", "message": "word " * 1000}):
        parlour.asking()
    until(lambda: parlour.llm.requests[-1].gone)
    mallory.chat("bare", "s", "Hello")
    (taken,) = mallory.see("/v1/agents/bare/usage")["usage"]
    assert taken["prompt_tokens"] > 1000
