"""What agents take of a model, in tokens: by agent, user and day; a wipe leaves only the total."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, PermissionDenied, Settings
from alcove.agents.runs import OVERSEER
from alcove.client.store import AgentsHandle
from alcove.llm.model import ModelAnswer, ModelRequest, TokenUse
from tests.support.chat_service import chatting
from tests.support.clock import ManualClock
from tests.support.llm_server import LLMServer, llm, text  # noqa: F401
from tests.support.summary_model import SUMS_UP
from tests.support.waiting import until

SPECS = """
agents:
  - {name: bot, memory: {conversation: {}}}
  - {name: "odd/name:1", memory: {conversation: {}}}
  - {name: rolling, memory: {session_memory: {idle_seconds: 3600}}}
"""
OSLO = "Anna lives in Oslo since May 2020."
DAY = 86_400
TODAY = "2027-01-15"
"""By the clock of a test."""


class Greeter:
    """Says hello, for ten tokens and two."""

    def ask(self, asked: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        summary = SUMS_UP in (asked.messages[0].content or "")
        yield ModelAnswer(text=OSLO if summary else "Hello.", use=TokenUse.of(10, 2))

    def close(self) -> None:
        """Has nothing to close."""


def opened(folder: Path, clock: ManualClock) -> Alcove:
    return Alcove(folder / "memory.db", settings=Settings(sweep_interval=0), embedder=None, clock=clock)


@pytest.fixture
def memory(tmp_path: Path, clock: ManualClock) -> Iterator[Alcove]:
    (tmp_path / "agents.yaml").write_text(SPECS)
    with opened(tmp_path, clock) as memory:
        yield memory


@pytest.fixture
def agents(memory: Alcove, tmp_path: Path) -> AgentsHandle:
    return memory.agents(tmp_path / "agents.yaml", llm=Greeter())


def chat(agents: AgentsHandle, user: str, *, agent: str = "bot", times: int = 1, session: str = "s") -> None:
    for _ in range(times):
        agents.as_user(user).chat(agent, session, "Hi")


def use(who: AgentsHandle, agent: str = "bot") -> dict[tuple[str, str], tuple[int, int, int]]:
    """What an agent took, as somebody sees it: turns and tokens in and out, by user and day."""
    found = who.usage(agent)
    assert {each.agent for each in found} <= {agent}
    return {(each.user, each.day): (each.turns, each.prompt_tokens, each.completion_tokens) for each in found}


def totals(memory: Alcove) -> dict[str, tuple[int, int, int]]:
    found = memory.admin.stats().llm
    return {each.agent: (each.turns, each.prompt_tokens, each.completion_tokens) for each in found}


# What is counted


def test_turns_are_counted_by_agent_user_and_day(
    memory: Alcove, agents: AgentsHandle, clock: ManualClock
) -> None:
    chat(agents, "alice", times=3)
    chat(agents, "bob")
    chat(agents, "alice", agent="odd/name:1")
    assert use(agents.as_user("alice")) == {("alice", TODAY): (3, 30, 6)}
    clock.advance(DAY)
    chat(agents, "alice", times=2)
    assert use(agents.as_user("alice")) == {("alice", TODAY): (3, 30, 6), ("alice", "2027-01-16"): (2, 20, 4)}
    assert use(agents.as_user("bob")) == {("bob", TODAY): (1, 10, 2)}
    assert use(agents) == use(agents.as_user("alice")) | use(agents.as_user("bob"))
    assert use(agents.as_user("alice"), "odd/name:1") == {("alice", TODAY): (1, 10, 2)}
    assert totals(memory) == {"bot": (6, 60, 12), "odd/name:1": (1, 10, 2)}


def test_what_a_summary_took_is_counted_without_a_turn(memory: Alcove, agents: AgentsHandle) -> None:
    alice = agents.as_user("alice")
    chat(agents, "alice", agent="rolling")
    alice.add_turns("rolling", "t", [{"role": "user", "content": OSLO}])
    alice.end_session("rolling", "t")
    until(lambda: use(alice, "rolling") == {("alice", TODAY): (1, 20, 4)})
    assert totals(memory) == {"rolling": (1, 20, 4)}


def test_sums_are_right_however_many_talk_at_once(
    memory: Alcove, agents: AgentsHandle, tmp_path: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, clock) as other, ThreadPoolExecutor(12) as threads:
        elsewhere = other.agents(tmp_path / "agents.yaml", llm=Greeter())  # as another process would have it

        def work(n: int) -> None:
            chat((agents, elsewhere)[n % 2], ("alice", "bob", "carol")[n % 3], times=5, session=f"s{n}")
            use((agents, elsewhere)[n % 2])  # writes what was gathered

        list(threads.map(work, range(12)))
        use(agents), use(elsewhere)
    expected = {(user, TODAY): (20, 200, 40) for user in ("alice", "bob", "carol")}
    assert use(agents) == expected
    assert totals(memory) == {"bot": (60, 600, 120)}


def test_counts_are_kept_for_ninety_days(memory: Alcove, agents: AgentsHandle, clock: ManualClock) -> None:
    chat(agents, "alice")
    assert use(agents)
    clock.advance(89 * DAY)
    assert use(agents)
    assert totals(memory)
    clock.advance(2 * DAY)
    assert use(agents) == {}
    assert totals(memory) == {}


# Wipes


def test_a_wipe_takes_a_users_counts_and_the_total_stays_without_a_name(
    memory: Alcove, agents: AgentsHandle
) -> None:
    chat(agents, "alice", times=2)
    chat(agents, "bob")
    assert len(use(agents)) == 2
    memory.wipe("alice")
    assert use(agents) == {("bob", TODAY): (1, 10, 2)}
    assert totals(memory) == {"bot": (3, 30, 6)}
    memory.wipe("bob")
    left = [*memory.memories.reader.export(OVERSEER, ["usage"])]
    assert [(str(each.namespace), each.key) for each in left] == [("usage:bot", TODAY)]
    assert not any(name in str(left) for name in ("alice", "bob"))


def test_what_a_user_took_just_before_they_were_wiped_is_in_the_total(
    memory: Alcove, agents: AgentsHandle
) -> None:
    chat(agents, "alice")
    memory.wipe("alice")  # before it was written
    assert use(agents) == {}
    assert totals(memory) == {"bot": (1, 10, 2)}
    assert memory.admin.held("alice").memories == 0


def test_the_wipe_of_somebody_else_takes_no_count_away(memory: Alcove, agents: AgentsHandle) -> None:
    chat(agents, "bob")
    use(agents)
    chat(agents, "alice")  # who was never here before
    memory.wipe("bob")
    assert use(agents) == {("alice", TODAY): (1, 10, 2)}
    assert totals(memory) == {"bot": (2, 20, 4)}


# What users write there


@pytest.mark.parametrize("forged", [-(10**6), 10**6, 2**63 - 1, "many", None])
def test_what_users_write_into_their_room_is_not_taken_for_what_they_took(
    memory: Alcove, agents: AgentsHandle, forged: Any
) -> None:
    mallory, room = memory.as_user("mallory"), ["usage", "bot", "u", "mallory"]
    value = {"turns": 0, "prompt_tokens": forged, "completion_tokens": 0}
    for key in (TODAY, "2026-01-01", "no day"):
        mallory.put(room, key, value)
    assert use(agents) == {}
    chat(agents, "mallory")
    expected = {("mallory", TODAY): (1, 10, 2)}
    assert use(agents) == use(agents.as_user("mallory")) == expected
    chat(agents, "mallory")
    assert use(agents) == {("mallory", TODAY): (2, 20, 4)}
    assert totals(memory) == {"bot": (2, 20, 4)}


def test_users_write_neither_into_the_total_nor_for_others(memory: Alcove, agents: AgentsHandle) -> None:
    mallory, value = memory.as_user("mallory"), {"turns": 5, "prompt_tokens": 5}
    for room in (["usage"], ["usage", "bot"], ["usage", "bot", "u", "alice"]):
        with pytest.raises(PermissionDenied):
            mallory.put(room, TODAY, value)
    for room in (
        ["usage", "u", "mallory"],
        ["usage", "bot", "u", "mallory", "x"],
        ["usage", "no", "u", "mallory"],
    ):
        mallory.put(room, TODAY, value)
    assert (use(agents), totals(memory)) == ({}, {})


# Over REST


def test_a_service_shows_what_was_taken(llm: LLMServer, tmp_path: Path) -> None:  # noqa: F811
    llm.reset()
    with chatting(tmp_path, llm, specs=SPECS) as parlour:
        alice, bob = parlour.chatter(), parlour.chatter()
        llm.play(text("Hello.", usage=(10, 2), times=3))
        for who in (alice, alice, bob):
            who.chat("bot", "s", "Hi")
        shown = parlour.admin.see("/v1/agents/bot/usage")["usage"]
        assert {each["user"]: (each["turns"], each["prompt_tokens"]) for each in shown} == {
            alice.name: (2, 20),
            bob.name: (1, 10),
        }
        assert [each["user"] for each in bob.see("/v1/agents/bot/usage")["usage"]] == [bob.name]
        total = {"agent": "bot", "turns": 3, "prompt_tokens": 30, "completion_tokens": 6}
        assert parlour.admin.see("/v1/admin/stats")["llm"] == [total]
        assert alice.ask("GET", "/v1/admin/stats").status_code == 403
