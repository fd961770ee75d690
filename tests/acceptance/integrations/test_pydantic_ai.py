"""Pydantic AI with Alcove: its agents call memory tools, and are told what they can do better."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from alcove import Alcove, AsyncAlcove, Unavailable
from alcove.integrations.pydantic_ai import AlcoveToolset
from tests.support.event_loops import loop_of_its_own
from tests.support.file_and_url import Place

Call = tuple[str, Any]


@pytest.fixture(autouse=True)
def _loop() -> Iterator[None]:
    with loop_of_its_own():
        yield


class Script:
    """A model that makes these calls, one after the other, and keeps what it was told of each."""

    def __init__(self, *calls: Call) -> None:
        self.calls, self.told, self.offered = [*calls], list[ToolReturnPart](), dict[str, Any]()
        self.model = FunctionModel(self._answer)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.offered = {tool.name: tool for tool in info.function_tools}
        self.told += [each for each in messages[-1].parts if isinstance(each, ToolReturnPart)]
        if not self.calls:
            return ModelResponse(parts=[TextPart("Done.")])
        name, arguments = self.calls.pop(0)
        return ModelResponse(parts=[ToolCallPart(name, arguments)])

    @property
    def texts(self) -> list[str]:
        return [str(each.content) for each in self.told]


def test_an_agent_remembers_across_runs(place: Place) -> None:
    with place.open() as store:
        toolset = AlcoveToolset(place.helper(store))
        first = Script(("remember", {"key": "tea", "content": "green"}))
        assert Agent(first.model, toolsets=[toolset]).run_sync("I drink green tea.").output == "Done."
    with place.open() as store:
        second = Script(("recall", '{"key": "tea"}'))
        agent = Agent(second.model, toolsets=[AlcoveToolset(place.helper(store, "another"))])
        agent.run_sync("What do I drink?")
    assert '"green"' in second.texts[0]
    assert {"remember", "recall", "memory_remember"} <= second.offered.keys()
    schema = second.offered["remember"].parameters_json_schema
    assert schema["required"] == ["key", "content"]
    assert second.offered["remember"].description


def test_awaited_two_users_at_once_see_nothing_of_each_other(place: Place) -> None:
    async def run(user: str, *calls: Call) -> Sequence[str]:
        async with place.awaited(user) as store:
            script = Script(*calls)
            toolset = AlcoveToolset(place.async_helper(store))
            await Agent(script.model, toolsets=[toolset]).run("Go.")
            return script.texts

    async def main() -> None:
        keep = [("remember", {"key": "tea", "content": f"{who}'s"}) for who in ("alice", "bob")]
        read: Call = ("list_memories", {})
        told = await asyncio.gather(
            run("alice", keep[0], read), run("bob", keep[1], read), run("carol", read)
        )
        assert "alice's" in told[0][1]
        assert "bob's" not in told[0][1]
        assert "bob's" in told[1][1]
        assert "alice's" not in told[1][1]
        assert told[2] == ["Nothing found."]

    asyncio.run(main())


def test_the_test_model_calls_every_tool(place: Place) -> None:
    model = TestModel(call_tools=["remember", "list_memories", "memory_recall", "shared_memory_list"])
    with place.open() as store:
        result = Agent(model, toolsets=[AlcoveToolset(place.helper(store))]).run_sync("Go.")
    returned = [
        part for each in result.all_messages() for part in each.parts if isinstance(part, ToolReturnPart)
    ]
    assert len(returned) == 4


def test_a_model_is_asked_again_where_it_can_do_better(place: Place) -> None:
    script = Script(
        ("remember", {"key": "tea"}),
        ("remember", "[1]"),
        ("remember", {"key": "tea", "content": "green", "user": "bob"}),
        ("recall", {"key": "coffee"}),
        ("shared_memory_write", {"key": "n", "value": 1, "namespace": "session", "expected_version": 7}),
        ("shared_memory_write", {"key": "n", "value": 1, "namespace": "attic"}),
        ("memory_remember", {"content": "x", "tags": [*"abcdefghi"]}),
    )
    with place.open() as store:
        Agent(script.model, toolsets=[AlcoveToolset(place.helper(store, "s"))]).run_sync("Go.")
    outcomes = [each.outcome for each in script.told]
    assert outcomes == ["retried", "retried", "success", "success", "success", "retried", "retried"]
    assert all(text.startswith("error: ") for text in script.texts[3:5])
    assert script.texts[0].startswith("content: expected")
    assert script.texts[1] == "arguments: expected a JSON object"
    assert "namespace: expected one of" in script.texts[5]


def test_who_does_not_do_better_ends_the_run(place: Place) -> None:
    script = Script(*[("remember", {"key": "coffee"})] * 9)
    with place.open() as store:
        toolset = AlcoveToolset(place.helper(store), max_retries=2)
        with pytest.raises(UnexpectedModelBehavior, match="remember"):
            Agent(script.model, toolsets=[toolset]).run_sync("Go.")
    assert len(script.told) == 2


def test_what_no_model_can_mend_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        store = AsyncAlcove(tmp_path / "m.db", embedder=None)
        toolset = AlcoveToolset(store.agent("helper"))
        await store.close()
        with pytest.raises(Unavailable):
            await Agent(Script().model, toolsets=[toolset]).run("Go.")

    asyncio.run(main())


def test_a_store_that_is_closed_during_a_run_is_raised(tmp_path: Path) -> None:
    store = Alcove(tmp_path / "m.db", embedder=None)

    def close(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        store.close()
        return ModelResponse(parts=[ToolCallPart("memory_recall", {"query": "tea"})])

    with pytest.raises(Unavailable):
        Agent(FunctionModel(close), toolsets=[AlcoveToolset(store.agent("helper"))]).run_sync("Go.")


def test_it_is_a_toolset_like_any_other(tmp_path: Path) -> None:
    def may(ctx: RunContext[Any], tool: Any) -> bool:
        return bool(tool.name == "memory_recall")

    script = Script(("my_memory_recall", {"query": "tea"}))
    with Alcove(tmp_path / "m.db", embedder=None) as store:
        toolset = AlcoveToolset(store.as_user("alice").agent("helper"), id="alcove")
        assert toolset.id == "alcove"
        Agent(script.model, toolsets=[toolset.filtered(may).prefixed("my")]).run_sync("Go.")
    assert script.offered.keys() == {"my_memory_recall"}
    assert script.texts == ["Nothing found."]


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['pydantic_ai'] = None; import alcove.integrations.pydantic_ai"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs pydantic_ai: pip install '.[pydantic-ai]' in a clone of Alcove" in done.stderr
