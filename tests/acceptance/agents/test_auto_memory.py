"""`auto_memory: true` stores each turn and loads the recent turns of the same session, in every spelling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from alcove import Alcove
from tests.support.chat_service import Parlour, chatting, told
from tests.support.concurrent_workers import QUIET
from tests.support.llm_server import LLMServer, llm, text  # noqa: F401

SPELLINGS = """
name: ours
auto_memory: true
memory: {private: {}}
---
name: alone
auto_memory: true
---
name: primitives
auto_memory: true
primitives: {memory: {enabled: true, namespace: "agent:{agent_name}:{session_id}"}}
---
name: camel
autoMemory: true
systemPrompt: Be kind.
memory: {facts: {maxFacts: 3}}
---
name: types
auto_memory: true
memory: {session_memory: true, types: [{id: long_term, enabled: true}]}
---
apiVersion: example.dev/v1
kind: Agent
metadata: {name: resource}
spec: {autoMemory: true, systemPrompt: Be kind.}
"""
OFF = """
---
name: unloaded
auto_memory: true
memory: {private: {}, conversation: {enabled: false}}
---
name: types-off
instructions: You talk.
auto_memory: true
memory: {types: [{id: working_memory, enabled: false}]}
"""
SPELLED = ("ours", "alone", "primitives", "camel", "types", "resource")
FIRST = [{"role": "user", "content": "I drink green tea."}, {"role": "assistant", "content": "Noted."}]
SECOND = {"role": "user", "content": "What do I drink?"}


@pytest.fixture(scope="module")
def served(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    with chatting(tmp_path_factory.mktemp("auto"), llm, specs=SPELLINGS + OFF) as parlour:
        yield parlour


@pytest.fixture
def parlour(served: Parlour) -> Parlour:
    served.llm.reset()
    return served


def without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in messages if each["role"] != "system"]


@pytest.mark.parametrize("agent", SPELLED)
def test_the_second_turn_of_a_session_is_sent_the_first(parlour: Parlour, agent: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(text("Noted."), text("Green tea."))
    assert alice.chat(agent, "monday", "I drink green tea.")["stored"]
    assert alice.chat(agent, "monday", "What do I drink?")["text"] == "Green tea."
    _, second = parlour.llm.requests
    assert without_system(second.messages) == [*FIRST, SECOND]


@pytest.mark.parametrize("agent", SPELLED)
def test_a_context_has_the_turns_of_its_session_and_of_no_other(parlour: Parlour, agent: str) -> None:
    alice, bob = parlour.chatter("alice"), parlour.chatter("bob")
    alice.say(agent, "monday", "I drink green tea.", "Noted.")
    context = alice.context(agent, "monday", "What do I drink?")
    assert without_system(context["messages"]) == [*FIRST, SECOND]
    assert "conversation" in context["receipt"]["tiers"]
    for who, session in ((alice, "tuesday"), (bob, "monday")):
        assert "green tea" not in told(who.context(agent, session, "What do I drink?")["messages"])


@pytest.mark.parametrize("agent", ["unloaded", "types-off"])
def test_a_conversation_that_is_off_is_stored_and_not_loaded(parlour: Parlour, agent: str) -> None:
    alice = parlour.chatter("alice")
    assert alice.chat(agent, "monday", "I drink green tea.")["stored"]
    alice.chat(agent, "monday", "What do I drink?")
    assert "green tea" not in told(parlour.llm.requests[-1].messages)
    assert len(alice.kept(agent, "monday")) == 4
    context = alice.context(agent, "monday", "What do I drink?")
    assert "conversation" not in context["receipt"]["tiers"]


def test_notes_are_told_at_the_start_of_each_conversation_and_not_again(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.call("ours", "remember", key="dog", content="Her dog is called Rex")
    for session, message in (("monday", "Hello"), ("monday", "And?"), ("tuesday", "Hello")):
        alice.chat("ours", session, message)
    first, second, other = (told(request.messages) for request in parlour.llm.requests)
    assert "Rex" in first
    assert "Rex" not in second
    assert "Rex" in other


@pytest.mark.parametrize("agent", SPELLED)
def test_the_library_loads_them_from_a_file_and_from_data(
    llm: LLMServer,  # noqa: F811
    tmp_path: Path,
    agent: str,
) -> None:
    (file := tmp_path / "agents.yaml").write_text(SPELLINGS)
    written = next(each for each in yaml.safe_load_all(SPELLINGS) if agent in str(each))
    with Alcove(tmp_path / "memory.db", settings=QUIET, embedder=None) as memory:
        for n, specs in enumerate((file, written)):
            llm.reset()
            alice = memory.agents(specs, llm=f"{llm.url}#scripted").as_user(f"alice-{n}")
            alice.chat(agent, "monday", "I drink green tea.")
            alice.chat(agent, "monday", "What do I drink?")
            assert without_system(llm.requests[-1].messages) == [
                FIRST[0], {"role": "assistant", "content": "Hello."}, SECOND,
            ]  # fmt: skip
            sent = alice.context(agent, "monday", "And in the evening?").messages
            assert [each.content for each in sent if each.role == "assistant"] == ["Hello.", "Hello."]
