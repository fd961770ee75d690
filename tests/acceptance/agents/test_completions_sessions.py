"""Conversations by OpenAI's client: all in the caller's hands, or kept in a session that a header names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.chat_service import Chatter, Parlour, chatting, told
from tests.support.conversation_service import at
from tests.support.llm_server import LLMServer, calls, fails, llm, text  # noqa: F401
from tests.support.openai_clients import WAYS, complete

WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
PORTO: Any = ("get_weather", {"city": "Porto"})
BRAGA: Any = ("get_weather", {"city": "Braga"})


@pytest.fixture(scope="module")
def served(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    with chatting(tmp_path_factory.mktemp("sessions"), llm, "--llm-retries", 1) as parlour:
        yield parlour


@pytest.fixture
def parlour(served: Parlour) -> Parlour:
    served.llm.reset()
    return served


def user(said: str) -> dict[str, str]:
    return {"role": "user", "content": said}


def spoken(said: str) -> dict[str, str]:
    return {"role": "assistant", "content": said}


def result(id: str, content: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def log(who: Chatter, agent: str, session: str) -> list[Any]:
    """What is kept of a session, without when it was said."""
    said = who.see(at(agent, session))["said"]
    return [{name: value for name, value in each.items() if name != "at"} for each in said]


# Without a session


@pytest.mark.parametrize("way", WAYS)
def test_without_a_session_the_callers_messages_are_the_whole_conversation(
    parlour: Parlour, way: str
) -> None:
    alice = parlour.chatter("alice")
    alice.chat("bot", "kept", "My friend is Quetzal")
    history = [user("What is a prime?"), spoken("A number with two divisors."), user("Is 7 one?")]
    said = complete(alice, "bot", *history, way=way)
    assert "x-session-id" not in said.headers
    sent = parlour.llm.requests[-1].messages
    assert sent[-3:] == history
    assert "Quetzal" not in told(sent)
    (session,) = alice.see("/v1/agents/bot/sessions")["sessions"]
    assert (session["id"], session["messages"]) == ("kept", 2)


def test_without_a_session_what_is_known_is_still_recalled(parlour: Parlour) -> None:
    alice, bob = parlour.chatter("alice"), parlour.chatter("bob")
    alice.call("bot", "learn_fact", content="The cat is called Miau")
    alice.call("bot", "memory_remember", content="The cat is afraid of the vacuum cleaner", scope="all")
    bob.call("bot", "learn_fact", content="The cat is called Tom")
    complete(alice, "bot", "Hello", spoken("Hi"), "What about the cat?")
    sent = told(parlour.llm.requests[-1].messages[1:])
    assert "Miau" in sent
    assert "vacuum" in sent
    assert "Tom" not in sent


def test_a_long_conversation_of_the_callers_is_sent_whole(parlour: Parlour) -> None:
    history = [each(f"{n}: {'word ' * 400}") for n in range(20) for each in (user, spoken)]  # 16,000 tokens
    complete(parlour.chatter(), "talk", *history, "And now?")
    assert parlour.llm.requests[-1].messages[1:] == [*history, user("And now?")]


def test_a_message_that_is_too_long_is_refused_by_its_own_name(parlour: Parlour) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(parlour.chatter(), "talk", "word " * 20_000)
    assert str(refused.value.param).startswith("messages")


def test_a_call_that_was_never_answered_is_left_out(parlour: Parlour) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    given_up = {"role": "assistant", "content": None, "tool_calls": [call]}
    for more in ({}, {"session": "s"}):
        complete(
            parlour.chatter(), "talk", "Will it rain?", given_up, "Never mind. Hello", tools=[WEATHER], **more
        )
        sent = parlour.llm.requests[-1].messages
        assert sent[-1] == user("Never mind. Hello")
        assert not [each for each in sent if each.get("tool_calls")]  # which providers would refuse


# With one


@pytest.mark.parametrize("way", WAYS)
def test_a_session_keeps_the_conversation_however_much_of_it_is_sent_again(
    parlour: Parlour, way: str
) -> None:
    answers, asked = ["One.", "Two.", "Three.", "Three.", "Five."], [f"Question {n}" for n in range(1, 6)]
    alice = parlour.chatter("alice")
    parlour.llm.play(*map(text, answers))
    whole = [each for n in range(5) for each in (user(asked[n]), spoken(answers[n]))]
    for n, sent in enumerate((
        [user(asked[0])],
        [*whole[:2], user(asked[1])],  # all of it
        [user(asked[2])],  # only what is new
        [*whole[4:6], user(asked[3])],  # the last of it
        [whole[0], spoken("In short: one, two, three."), user(asked[4])],  # something else in its place
    )):  # fmt: skip
        said = complete(alice, "talk", *sent, way=way, session="s")
        assert said.text == answers[n]
        assert said.headers["x-session-id"] == "s"
        assert parlour.llm.requests[n].messages[1:] == [*whole[: 2 * n], user(asked[n])][-7:]
    assert log(alice, "talk", "s") == whole


def test_a_session_is_the_same_by_either_road(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.chat("talk", "s", "Hello")
    complete(alice, "talk", "And now?", session="s")
    alice.chat("talk", "s", "Bye")
    assert [each["content"] for each in parlour.llm.requests[-1].messages[1:]] == [
        "Hello", "Hello.", "And now?", "Hello.", "Bye",
    ]  # fmt: skip
    assert len(log(alice, "talk", "s")) == 6


def test_what_failed_is_sent_again_and_kept_once(parlour: Parlour) -> None:
    alice, history = parlour.chatter("alice"), [user("Hello"), spoken("Hello."), user("Which tea?")]
    complete(alice, "talk", history[0], session="s")
    parlour.llm.play(fails(500, times=2))
    with pytest.raises(openai.InternalServerError):
        complete(alice, "talk", *history, session="s")
    assert log(alice, "talk", "s") == history[:2]
    complete(alice, "talk", *history, session="s")
    assert log(alice, "talk", "s") == [*history, spoken("Hello.")]


def test_two_messages_since_the_last_answer_are_both_kept(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    complete(alice, "talk", "Hello", session="s")
    complete(alice, "talk", "Hello", spoken("Hello."), "Are you there?", "I asked something", session="s")
    assert [each["content"] for each in log(alice, "talk", "s")] == [
        "Hello", "Hello.", "Are you there?", "I asked something", "Hello.",
    ]  # fmt: skip


def test_what_an_agent_keeps_nothing_of_is_all_new_each_time(parlour: Parlour) -> None:
    alice, history = parlour.chatter("alice"), [user("Hello"), spoken("Hello."), user("And now?")]
    said = complete(alice, "bare", *history, session="s")
    assert said.headers["x-session-id"] == "s"
    assert parlour.llm.requests[-1].messages[1:] == history
    assert alice.kept("bare", "s") == []


def test_a_session_of_somebody_else_is_another_one(parlour: Parlour) -> None:
    alice, bob = parlour.chatter("alice"), parlour.chatter("bob")
    complete(alice, "talk", "My friend is Quetzal", session="s")
    complete(bob, "talk", "Who is my friend?", session="s")
    assert "Quetzal" not in told(parlour.llm.requests[-1].messages)
    assert len(log(bob, "talk", "s")) == len(log(alice, "talk", "s")) == 2


def test_instructions_of_the_caller_follow_those_of_the_agent_and_are_never_kept(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    for n, role in enumerate(("system", "developer")):
        rule = {"role": role, "content": f"Rule {n}: be brief."}
        complete(
            alice, "bot", rule, "Hello", {"role": role, "content": "And kind."}, "Are you there?", session="s"
        )
        sent = parlour.llm.requests[-1].messages
        assert [each["role"] for each in sent[:4]] == ["system", "system", "system", "user"]
        assert sent[0]["content"].startswith("You remember.")
        assert [each["content"] for each in sent[1:3]] == [f"Rule {n}: be brief.", "And kind."]
        assert {each["role"] for each in sent[3:]} <= {"user", "assistant"}
    assert "Rule" not in str(log(alice, "bot", "s"))
    exported = parlour.admin.ask("GET", "/v1/memories/export").text
    assert "be brief" not in exported


# Tools of the caller


@pytest.mark.parametrize("way", WAYS)
def test_a_round_trip_through_the_callers_tools_is_one_turn(parlour: Parlour, way: str) -> None:
    alice, history = parlour.chatter("alice"), [user("Will it rain?")]
    parlour.llm.play(
        calls(PORTO, text="Let me look."),
        calls(("remember", {"key": "k", "content": "c"}), BRAGA),
        text("No."),
    )
    asked: Any = {"tools": [WEATHER], "way": way, "session": "s"}
    first = complete(alice, "bot", *history, **asked)
    assert (first.finish, first.calls) == ("tool_calls", [PORTO])
    assert alice.kept("bot", "s") == []
    history += [first.message(), result(first.ids[0], "Dry in Porto")]
    second = complete(alice, "bot", *history, **asked)
    assert (second.finish, second.calls) == ("tool_calls", [BRAGA])
    assert alice.kept("bot", "s") == []
    assert parlour.llm.requests[-1].messages[-3:] == history
    history += [second.message(), result(second.ids[0], "Dry in Braga")]
    last = complete(alice, "bot", *history, **asked)
    assert (last.text, last.finish) == ("No.", "stop")
    kept = log(alice, "bot", "s")
    assert [each["role"] for each in kept] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [each.get("content") for each in kept[2::2]] == ["Dry in Porto", "Dry in Braga"]
    assert alice.keys("bot", "list_memories") == ["k"]
    complete(alice, "bot", *history, spoken("No."), "And tomorrow?", **asked)
    sent = parlour.llm.requests[-1].messages
    told_of = [each["content"] for each in sent if each["role"] == "tool"]
    assert told_of == ["Dry in Porto", "Dry in Braga"]
    assert len(log(alice, "bot", "s")) == 8


def test_a_round_trip_may_be_sent_without_what_came_before_it(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    complete(alice, "bot", "Hello", session="s")
    parlour.llm.play(calls(PORTO), text("No."))
    first = complete(alice, "bot", "Will it rain?", tools=[WEATHER], session="s")
    back = [first.message(), result(first.ids[0], "Dry")]
    complete(alice, "bot", "Will it rain?", *back, tools=[WEATHER], session="s")
    assert [each.get("content") for each in log(alice, "bot", "s")] == [
        "Hello", "Hello.", "Will it rain?", None, "Dry", "No.",
    ]  # fmt: skip
    roles = [each["role"] for each in parlour.llm.requests[-1].messages]
    assert roles[1:] == ["user", "assistant", "user", "assistant", "tool"]
