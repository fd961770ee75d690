"""The last message of a conversation: replaced or taken away only as long as it is the one that was read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from alcove import Alcove, Conflict, InvalidRequest, NotFound
from alcove.client.agent import AgentHandle
from alcove.core.records import Message
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET
from tests.support.conversation_service import Salon, at
from tests.support.service import assert_error

TWO = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]


def said(handle: AgentHandle) -> list[Message]:
    return handle.agents.session(handle.name, handle.session_id).said


def texts(handle: AgentHandle) -> list[str | None]:
    return [message.content for message in said(handle)]


def take_last(handle: AgentHandle) -> str:
    """Takes one away, however many others do so at the same time; what it was."""
    while True:
        (last,) = handle.agents.session(handle.name, handle.session_id, 1).said
        try:
            handle.agents.replace_last(handle.name, handle.session_id, last=last)
            return last.content or ""
        except Conflict:
            continue


def test_it_is_replaced_and_then_taken_away_and_the_next_one_comes_after_what_is_left(memory: Alcove) -> None:
    alice = memory.as_user("alice").agent("helper")
    alice.remember(TWO)
    done = alice.agents.replace_last(
        "helper", "default", last=said(alice)[-1], message={**TWO[1], "content": "2"}
    )
    assert (done.added, done.messages) == (1, 2)
    assert texts(alice) == ["one", "2"]
    assert said(alice)[0].at == said(alice)[1].at  # when it was said stays
    done = alice.agents.replace_last("helper", "default", last=said(alice)[-1])
    assert (done.added, done.messages) == (0, 1)
    alice.remember([{"role": "assistant", "content": "three"}])
    assert texts(alice) == ["one", "three"]


def test_a_conversation_of_which_all_was_taken_away_is_no_more_and_can_begin_again(memory: Alcove) -> None:
    alice = memory.as_user("alice").agent("helper")
    alice.remember(TWO)
    assert [take_last(alice), take_last(alice)] == ["two", "one"]
    with pytest.raises(NotFound):
        said(alice)
    assert alice.agents.sessions("helper") == []
    alice.remember(TWO)
    assert texts(alice) == ["one", "two"]


def test_another_message_than_the_last_is_a_conflict_and_changes_nothing(memory: Alcove) -> None:
    alice = memory.as_user("alice").agent("helper")
    with pytest.raises(Conflict):
        alice.agents.replace_last("helper", "default", last=TWO[0])
    alice.remember(TWO)
    first, last = said(alice)
    for wrong in (first, Message(role="assistant", content="two"), {"role": "assistant", "content": "3"}):
        with pytest.raises(Conflict):
            alice.agents.replace_last("helper", "default", last=wrong)
    with pytest.raises(InvalidRequest, match=r"message\.role"):
        alice.agents.replace_last(
            "helper", "default", last=last, message={"role": "system", "content": "obey"}
        )
    with pytest.raises(InvalidRequest, match=r"last\.role"):
        alice.agents.replace_last("helper", "default", last={"content": "two"})
    assert texts(alice) == ["one", "two"]


def test_who_adds_and_takes_away_at_once_loses_and_repeats_nothing(memory: Alcove) -> None:
    alice = memory.as_user("alice").agent("helper")
    alice.remember([{"role": "user", "content": f"before {n}"} for n in range(30)])

    def work(n: int) -> str | None:
        if n % 2:
            return take_last(alice)
        alice.remember([{"role": "user", "content": f"new {n}"}])
        return None

    with ThreadPoolExecutor(8) as threads:
        taken = [each for each in threads.map(work, range(40)) if each]
    everything = {f"before {n}" for n in range(30)} | {f"new {n}" for n in range(0, 40, 2)}
    left = texts(alice)
    assert sorted([*taken, *map(str, left)]) == sorted(everything)
    old = [int(text.split()[1]) for text in map(str, left) if text.startswith("before")]
    assert all(one < other for one, other in pairwise(old))


def test_what_a_framework_had_is_given_back_and_reaches_no_prompt(memory: Alcove) -> None:
    alice = memory.as_user("alice").agent("helper")
    original = [{"type": "reasoning", "id": "r", "encrypted_content": "Quetzal", "n": 1.5, "none": None}]
    alice.remember([{**TWO[0], "original": original}, TWO[1]])
    assert said(alice)[0].original == original
    assert said(alice)[1].original == []
    context = alice.context("And then?")
    assert "one" in str(context.messages)
    assert "Quetzal" not in str(context)
    kept = memory.as_user("alice").search("turns:helper:u:alice", limit=100)
    assert "Quetzal" in str(kept)


def test_over_rest_it_is_the_callers_own_conversation(salon: Salon) -> None:
    alice, bob = salon.talker("alice"), salon.talker("bob")
    alice.say("talk", "s", "one", "two")
    bob.say("talk", "s", "other")
    last = alice.see(at("talk", "s"))["said"][-1]
    path = f"{at('talk', 's')}/turns/last"
    assert_error(bob.ask("PUT", path, json={"last": last}), 409, "conflict")
    assert_error(alice.ask("PUT", path, json={"last": {**last, "role": "fool"}}), 400, "invalid_request")
    assert_error(alice.ask("PUT", path, json={}), 400, "invalid_request")
    assert alice.ask("PUT", path, json={"last": last}).json() == {"added": 0, "messages": 1}
    assert_error(alice.ask("PUT", path, json={"last": last}), 409, "conflict")
    assert bob.see(at("talk", "s"))["messages"] == 1


def test_prune_sessions_still_has_its_former_name(tmp_path: Path) -> None:
    with Alcove(tmp_path / "m.db", settings=QUIET) as store:
        agents = store.as_user("alice").agent("helper").agents
        for session in ("old", "new"):
            agents.add_turns("helper", session, TWO)
        assert agents.keep_sessions("helper", keep=1).sessions == 1
        assert [each.id for each in agents.sessions("helper")] == ["new"]


def test_the_command_takes_the_last_message_away(tmp_path: Path) -> None:
    with Alcove(tmp_path / "m.db", settings=QUIET) as store:
        store.as_user("alice").agent("helper").remember(TWO)
    (tmp_path / "agents.yaml").write_text("agents: [{name: helper, memory: {conversation: {}}}]")
    command = Command(str(tmp_path / "m.db"))
    words = ["helper", "default", "--as-user", "alice", "--agents", str(tmp_path / "agents.yaml")]
    assert "assistant: two" in command.refuses("session", "remove-last", *words)
    assert command.says("session", "remove-last", *words, "--yes") == "removed, 1 message left\n"
    assert "two" not in command.says("session", "show", *words)
