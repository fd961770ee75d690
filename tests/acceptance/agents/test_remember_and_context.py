"""Memory for any program in two lines: `remember` and `context` of one agent, with or without a spec."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import alcove
from alcove.client.agent import AgentHandle
from alcove.core.errors import InvalidRequest, NotFound
from tests.support.clock import ManualClock
from tests.support.llm_server import llm_server, text
from tests.support.service import serving
from tests.support.store_inspection import raw_bytes
from tests.support.tokens import FLAGS, token

SPECS = """
agents:
  - name: helper
    memory:
      conversation: {window_size: 4, recall: 3}
"""
ALLERGY = [
    {"role": "user", "content": "I am allergic to peanuts."},
    {"role": "assistant", "content": "I will keep that in mind."},
]
CHAT = [
    {"role": role, "content": f"{what} number {n}"}
    for n in range(4)
    for role, what in (("user", "a remark on the weather"), ("assistant", "a polite answer"))
]


@pytest.fixture(params=["file", "url"])
def helper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentHandle]:
    """An agent of a spec, in a file and behind a server."""
    specs = tmp_path / "agents.yaml"
    specs.write_text(SPECS)
    if request.param == "file":
        with alcove.connect(tmp_path / "memory.db") as memory:
            yield memory.agent("helper", specs=specs)
        return
    with serving(tmp_path, "--agents", specs) as service, alcove.connect(service.url) as memory:
        yield memory.agent("helper")


def told(handle: AgentHandle, message: str, tier: str) -> list[str]:
    """What a tier of a context says, a line each."""
    context = handle.context(message)
    if tier not in context.receipt.tiers:
        return []
    (found,) = (m.content for m in context.messages if m.content and f"{tier} messages" in m.content)
    return found.splitlines()[1:-1]


def test_what_was_said_long_ago_comes_back_where_it_fits(helper: AgentHandle) -> None:
    helper.in_session("monday").remember(ALLERGY)
    helper.in_session("tuesday").remember(CHAT)
    assert "allergic to peanuts" in "".join(told(helper, "Can I eat peanuts?", "earlier"))
    assert len(told(helper, "Can I eat peanuts?", "earlier")) == 3


def test_what_the_window_has_is_not_told_twice(helper: AgentHandle) -> None:
    helper.remember(ALLERGY)
    context = helper.context("Can I eat peanuts?")
    assert [m.content for m in context.messages[1:3]] == [m["content"] for m in ALLERGY]
    assert "earlier" not in context.receipt.tiers
    helper.remember(CHAT)
    assert "allergic" in "".join(told(helper, "Can I eat peanuts?", "earlier"))


def test_a_handle_has_the_agents_tools(helper: AgentHandle) -> None:
    assert helper.tools() == []
    with pytest.raises(NotFound, match="no tool"):
        helper.call("remember", {"key": "k", "content": "c"})


def test_a_program_without_specs_gets_an_agent_that_remembers(tmp_path: Path) -> None:
    with alcove.connect(tmp_path / "memory.db", user="alice") as memory:
        helper = memory.agent("helper")
        helper.in_session("monday").remember(ALLERGY)
        assert "peanuts" in "".join(told(helper, "Can I eat peanuts?", "earlier"))
        names = [tool["function"]["name"] for tool in helper.tools()]
        assert names == ["memory_remember", "memory_recall", "memory_forget"]
        helper.call("memory_remember", {"content": "Likes short answers", "type": "instruction"})
        assert "short answers" in str(helper.context("Hello").messages)


def test_two_users_of_one_agent_do_not_meet(tmp_path: Path) -> None:
    with alcove.Alcove(tmp_path / "memory.db") as memory:
        alice, bob = (memory.as_user(name).agent("helper") for name in ("alice", "bob"))
        alice.in_session("monday").remember(ALLERGY)
        assert told(bob, "Can I eat peanuts?", "earlier") == []
        assert bob.in_session("monday").context("Can I eat peanuts?").receipt.tiers.keys() == {
            "instructions", "message",
        }  # fmt: skip
        assert memory.wipe("alice").removed["memories"] > 0
        assert told(alice, "Can I eat peanuts?", "earlier") == []


def test_messages_stay_sealed_unless_they_are_to_be_found(tmp_path: Path) -> None:
    for recall, plain in ((0, False), (3, True)):
        path = tmp_path / f"{recall}.db"
        specs = {"agents": [{"name": "helper", "memory": {"conversation": {"recall": recall}}}]}
        with alcove.connect(path) as memory:
            memory.agent("helper", specs=specs).remember(ALLERGY)
        assert (b"allergic" in raw_bytes(path)) is plain


def test_event_loops_have_the_same_two_lines(tmp_path: Path) -> None:
    async def talk() -> str:
        async with alcove.AsyncAlcove(tmp_path / "memory.db", user="alice") as memory:
            helper = memory.agent("helper")
            await helper.in_session("monday").remember(ALLERGY)
            context = await helper.context("Can I eat peanuts?")
            await helper.call("memory_remember", {"content": "Cooks on Sundays"})
            return str(context.messages)

    assert "allergic to peanuts" in asyncio.run(talk())


def test_specs_may_be_given_as_data_and_are_checked_as_those_of_a_file(tmp_path: Path) -> None:
    with alcove.connect(tmp_path / "memory.db") as memory:
        agents = memory.agents({"agents": [{"name": "a"}, {"name": "b"}]})
        assert [each.name for each in agents.agents()] == ["a", "b"]
        assert agents.of("a").session_id == "default"
        with pytest.raises(alcove.AlcoveError, match=r"specs: agents\[0\].memory.convers"):
            memory.agent("a", specs={"agents": [{"name": "a", "memory": {"convers": {}}}]})
        with pytest.raises(InvalidRequest, match="specs"):
            memory.agents({"agents": {1, 2}})
        for name in ("u", "user", "", "x" * 129):
            with pytest.raises(NotFound, match="there is no agent"):
                memory.agent(name).context("hello")


def test_a_server_without_specs_has_agents_of_any_name_and_one_with_specs_has_those(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as service, alcove.connect(service.url) as memory:
        helper = memory.agent("helper")
        helper.in_session("monday").remember(ALLERGY)
        assert "peanuts" in "".join(told(helper, "Can I eat peanuts?", "earlier"))
        assert helper.call("memory_remember", '{"content": "Cooks on Sundays"}').text
        with pytest.raises(InvalidRequest, match="arguments: expected an object"):
            helper.call("memory_remember", "not JSON")
        with pytest.raises(NotFound, match="there is no agent 'u'"):
            memory.agent("u").context("hello")
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    (other := tmp_path / "other").mkdir()
    with serving(other, "--agents", specs) as service, alcove.connect(service.url) as memory:
        nobody = memory.agent("nobody")
        with pytest.raises(NotFound, match="there is no agent 'nobody'"):
            nobody.context("hello")


def test_on_a_server_with_authentication_only_agents_of_specs_take_a_models_time(tmp_path: Path) -> None:
    with llm_server(tmp_path) as llm, serving(tmp_path, *FLAGS, "--llm-url", llm.url) as service:
        llm.play(text("Hello.", always=True))
        with alcove.connect(service.url, token=token("alice")) as memory:
            memory.agent("helper").remember(ALLERGY)
            with pytest.raises(NotFound, match="does not talk"):
                memory.agents().chat("helper", "monday", "Hello?")
        assert llm.requests == []


def test_the_newest_private_notes_come_first_and_the_oldest_are_left_out(
    tmp_path: Path, clock: ManualClock
) -> None:
    specs = {"agents": [{"name": "bot", "memory": {"private": {}}}]}
    with alcove.Alcove(tmp_path / "memory.db", embedder=None, clock=clock) as memory:
        bot = memory.agents(specs).as_user("alice").of("bot", session_id="s")
        for n in [*range(30, 60), *range(30)]:  # the keys are in another order than the times
            clock.advance(1)
            bot.call("remember", key=f"k{n:02}", content=f"note {n}")
        context = bot.context("hello")
    newest = [f"k{n:02}" for n in [*range(30, 60), *range(30)]][::-1][:50]
    assert re.findall(r"k\d\d", str(context.messages)) == newest
    left = [(each.tier, each.count, each.why) for each in context.receipt.left_out]
    assert left == [("preamble", 10, "older than the newest 50")]
