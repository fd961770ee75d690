"""Conversations and documents while others come in between: wipes, deletions, retention, users' garbage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, PermissionDenied, Settings
from alcove.agents.rooms import RecallBudget, Rooms
from alcove.agents.specs.records import Agent, AgentMemory, LongTerm
from alcove.client.store import AgentsHandle
from alcove.core.records import SearchResults
from tests.support.conversation_service import SPECS, written
from tests.support.waiting import until

HI = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Alcove]:
    written(tmp_path)
    with Alcove(tmp_path / "memory.db", settings=Settings(sweep_interval=0), embedder=None) as memory:
        yield memory


@pytest.fixture
def agents(memory: Alcove, tmp_path: Path) -> AgentsHandle:
    return memory.agents(tmp_path / "agents.yaml")


def once_before_the_next_batch(
    memory: Alcove, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]
) -> None:
    """Has something happen between what the next write reads and what it writes."""
    done = list[bool]()

    def between(write: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if not done:
            done.append(True)
            happens()
        return write(*args, **more)

    writer = memory.memories.writer
    for name in ("batch", "batch_in_session"):
        monkeypatch.setattr(writer, name, partial(between, getattr(writer, name)))


def texts(alice: AgentsHandle, session: str) -> str:
    return str(alice.session("running", session).running_summary)


@pytest.mark.parametrize("how", ["wipe", "delete"])
def test_what_was_said_before_a_wipe_or_a_deletion_is_not_written_after_it(
    memory: Alcove, agents: AgentsHandle, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    alice = agents.as_user("alice")
    secret = "My secret friend Quetzal lives in Porto."
    alice.add_turns(
        "running", "s", [{"role": "user", "content": secret}, *HI, {"role": "user", "content": "So."}]
    )

    def gone() -> None:
        memory.wipe("alice") if how == "wipe" else alice.delete_session("running", "s")

    once_before_the_next_batch(memory, monkeypatch, gone)
    alice.add_turns("running", "s", [*HI, *HI])
    assert "Quetzal" not in texts(alice, "s")
    assert alice.session("running", "s").messages == 4


def test_an_end_that_a_wipe_overtakes_brings_no_summary_back(
    memory: Alcove, agents: AgentsHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = agents.as_user("alice")
    alice.add_turns("running", "s", [{"role": "user", "content": "Quetzal lives in Porto."}, *HI, *HI, *HI])
    assert "Quetzal" in texts(alice, "s")

    def anew() -> None:
        memory.wipe("alice")
        alice.add_turns("running", "s", [*HI, *HI, *HI])

    once_before_the_next_batch(memory, monkeypatch, anew)
    alice.end_session("running", "s")
    assert "Quetzal" not in texts(alice, "s")


def test_what_is_said_after_retention_took_the_turns_still_reaches_the_summary(
    memory: Alcove, agents: AgentsHandle
) -> None:
    alice = agents.as_user("alice")
    alice.add_turns("rolling", "s", [*HI, *HI, *HI])
    alice.end_session("rolling", "s")
    until(lambda: not alice.summary("rolling").pending)
    memory.admin.put_settings({"retention_max_age": {"turns": 1e-9}})
    memory.sweep()
    memory.admin.put_settings({"retention_max_age": None})
    alice.add_turns("rolling", "s", [{"role": "user", "content": "The boat to Kiel leaves on 9 March 2027."}])
    alice.end_session("rolling", "s")
    until(lambda: "Kiel" in str(alice.summary("rolling").points))


def test_what_a_user_writes_into_their_own_rooms_breaks_nothing(memory: Alcove, agents: AgentsHandle) -> None:
    mallory, own = agents.as_user("mallory"), memory.as_user("mallory")
    mallory.add_turns("rolling", "s", HI)
    for key, value in (
        ("²", {"role": "user", "content": "x"}),
        ("999999999998", {"role": "assistant", "tool_calls": [{}]}),
        ("000000000007", {"role": "nobody"}),
        ("!", {"n": 1}),
    ):
        own.put(["turns", "rolling", "u", "mallory", "s"], key, value)
    own.put(["turns", "rolling", "u", "mallory"], "u", {"ended": True})
    own.put(["turns", "rolling", "u", "mallory"], "x" * 600, {"ended": True})
    own.put(["turns", "rolling", "u", "mallory", "empty"], "k", {})
    points = [{"text": "", "speaker": "user", "weight": 1}, {"text": "the", "speaker": "u", "weight": 1}]
    own.put(["summary", "rolling", "u", "mallory"], "rolling", {"points": points, "conversations": 3})
    own.put(["summary", "rolling", "u", "mallory", "s"], "state", {"running": points, "merged": "x"})
    mallory.add_turns("rolling", "s", HI)
    assert [each.id for each in mallory.sessions("rolling")] == ["s"]
    assert len(mallory.session("rolling", "s").said) == 3  # one of hers she has spoilt
    mallory.end_session("rolling", "s")
    assert mallory.context("rolling", "new", "Hello").messages
    victim = agents.as_user("victim")
    victim.add_turns("rolling", "s", [{"role": "user", "content": "I moved to Lisbon."}])
    victim.end_session("rolling", "s")
    until(lambda: "Lisbon" in str(victim.summary("rolling").points))
    assert mallory.prune_sessions("rolling", keep=0).sessions == 1


def test_a_policy_sees_the_claims_of_who_talks(memory: Alcove, agents: AgentsHandle) -> None:
    rule = """package memories.authz

default decision := {"allow": true}

decision := {"allow": false, "reason": "no"} if input.context.jwt_claims.groups[_] == "suspended"
"""
    memory.admin.put_policies({"authz": rule})
    agents.as_user("alice").add_turns("talk", "s", HI)
    with pytest.raises(PermissionDenied, match="no"):
        agents.as_user("alice", groups=["suspended"]).add_turns("talk", "s", HI)
    with pytest.raises(PermissionDenied, match="no"):
        agents.as_user("alice", groups=["suspended"]).delete_session("talk", "s")


def test_a_call_that_still_searches_gives_back_to_its_own_turn() -> None:
    rooms = _rooms(3)
    budget, searching, go_on = RecallBudget(), threading.Event(), threading.Event()
    budget.begin(rooms, 3)

    def slow(limit: int) -> SearchResults:
        searching.set()
        go_on.wait(10)
        return SearchResults()

    call = threading.Thread(target=budget.spend, args=(rooms, 3, slow))
    call.start()
    searching.wait(10)
    budget.begin(rooms, 0)  # a context that gave all three
    go_on.set()
    call.join()
    assert budget.spend(rooms, 3, lambda limit: pytest.fail(f"{limit} more")) == []


def _rooms(budget: int) -> Rooms:
    return Rooms(Agent(name="a", memory=AgentMemory(long_term=LongTerm(recall_budget=budget))), "alice", "s")


# Documents


def test_a_source_that_is_added_to_the_specs_is_followed(tmp_path: Path) -> None:
    written(tmp_path)
    (specs := tmp_path / "other.yaml").write_text("agents: [{name: bot, memory: {private: {}}}]")
    with Alcove(tmp_path / "memory.db", embedder=None) as memory:
        agents = memory.agents(specs)
        assert agents.sources() == []
        specs.write_text(SPECS)
        until(lambda: [each.documents for each in agents.sources()] == [1, 1])


def test_a_folder_that_is_missing_for_a_while_empties_nothing(agents: AgentsHandle, tmp_path: Path) -> None:
    agents.sync_source("manuals")
    (tmp_path / "manuals").rename(tmp_path / "away")
    status = agents.sync_source("manuals")
    assert status.documents == 1
    assert "is not there" in " ".join(status.errors.values())
    (tmp_path / "away").rename(tmp_path / "manuals")
    assert agents.sync_source("manuals").errors == {}


def test_a_file_that_can_be_no_document_holds_up_no_other(agents: AgentsHandle, tmp_path: Path) -> None:
    deep = tmp_path / "manuals" / "/".join(["d" * 200] * 6)
    deep.mkdir(parents=True)
    (deep / "a.md").write_text("# Deep")
    (tmp_path / "manuals" / "z.md").write_text("# Last\n\nThe last one.")
    status = agents.sync_source("manuals")
    assert status.documents == 2
    assert any("1024 bytes" in why for why in status.errors.values())


def test_two_who_put_a_document_at_once_leave_one_of_the_two(
    memory: Alcove, agents: AgentsHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edition(n: int) -> str:
        return "# Guide\n\n" + "\n".join(f"## Part {k}\n\nEdition {n}, part {k}.\n" for k in range(300))

    once_before_the_next_batch(
        memory, monkeypatch, lambda: agents.put_document("manuals", "guide.md", edition(2))
    )
    agents.put_document("manuals", "guide.md", edition(1))
    assert {piece.text[:9] for piece in agents.document("manuals", "guide.md").pieces} == {"Edition 1"}
    assert len(memory.list("knowledge:manuals:guide.md", limit=1000)) == 301


def test_a_wipe_takes_what_of_an_upload_was_written_when_it_broke_off(
    memory: Alcove, agents: AgentsHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = "\n".join(f"## Day {k}\n\nOn day {k} Quetzal and I went to Porto.\n" for k in range(500))
    editor = agents.as_user("writer")
    writer, calls = memory.memories.writer, list[int]()
    batch = writer.batch

    def breaking(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("killed")
        return batch(*args)

    monkeypatch.setattr(writer, "batch", breaking)
    with pytest.raises(RuntimeError):
        editor.put_document("manuals", "diary.md", f"# Diary\n\n{parts}")
    monkeypatch.undo()
    memory.wipe("writer")
    assert memory.list("knowledge:manuals:diary.md") == []
