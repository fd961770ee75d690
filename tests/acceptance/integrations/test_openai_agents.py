"""OpenAI's Agents SDK with Alcove: runs whose conversation is kept, items that come back as they were."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, Runner, SessionSettings, set_tracing_disabled
from agents.memory import Session
from agents.testing import ScriptedModel, assistant_message, function_call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import FunctionToolParam
from pydantic import TypeAdapter

import alcove
from alcove import Alcove, AsyncAlcove, InvalidRequest, NotFound, Unavailable
from alcove.client.agent import AsyncAgentHandle
from alcove.integrations.openai_agents import AlcoveSession, function_tools
from tests.support.event_loops import loop_of_its_own
from tests.support.file_and_url import Place
from tests.support.llm_server import LLMServer, calls, text
from tests.support.service import Service
from tests.support.tokens import token

CONVERSATION: list[Any] = [
    {"role": "user", "content": "Hello, 你好 \u0000"},
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        ],
    },
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "gAAA",
    },
    {
        "type": "function_call",
        "call_id": "a",
        "name": "look",
        "arguments": '{"n": 1}',
        "id": "fc_1",
        "status": "completed",
    },
    {"type": "reasoning", "id": "rs_2", "summary": []},
    {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "c", "name": "sing", "input": "la"},
    {"type": "function_call", "call_id": "d", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "a cat"},
    {
        "type": "function_call_output",
        "call_id": "b",
        "output": [{"type": "input_text", "text": "a dog"}],
        "status": None,
    },
    {"type": "function_call_output", "call_id": "d", "output": ""},
    {"role": "developer", "content": "Be brief."},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "A cat.", "annotations": [], "logprobs": [0.5, -1e-9]}],
    },
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No more."}]},
    {"type": "item_reference", "id": "msg_0"},
]


@pytest.fixture(autouse=True)
def _no_tracing() -> None:
    set_tracing_disabled(True)


@pytest.fixture
def model(llm: LLMServer) -> Iterator[OpenAIChatCompletionsModel]:
    llm.reset()
    unkept = openai.DefaultAsyncHttpxClient(limits=httpx2.Limits(max_keepalive_connections=0))  # loops go
    client = openai.AsyncOpenAI(base_url=llm.url, api_key="none", max_retries=0, http_client=unkept)
    yield OpenAIChatCompletionsModel("any", client)
    asyncio.run(client.close())


def in_session(
    place: Place, work: Callable[[AsyncAgentHandle], Awaitable[None]], session_id: str = "monday"
) -> None:
    """Does something with alice's helper, awaited."""

    async def main() -> None:
        async with place.awaited() as store:
            await work(place.async_helper(store, session_id))

    asyncio.run(main())


def test_a_run_goes_on_where_the_last_one_ended(place: Place, model: Any, llm: LLMServer) -> None:
    async def work(handle: AsyncAgentHandle) -> None:
        session, agent = AlcoveSession(handle), Agent(name="helper", model=model)
        llm.play(text("Noted."), text("Green tea."))
        assert (await Runner.run(agent, "I drink green tea.", session=session)).final_output == "Noted."
        again = AlcoveSession(handle)
        result = Runner.run_streamed(agent, "What do I drink?", session=again)
        async for _ in result.stream_events():
            pass
        assert result.final_output == "Green tea."
        sent = [(each["role"], each["content"]) for each in llm.requests[-1].messages]
        assert [role for role, _ in sent] == ["user", "assistant", "user"]
        assert "green tea" in str(sent[0])
        log = await handle.agents.session("helper", "monday")
        assert [(each.role, each.content) for each in log.said] == [
            ("user", "I drink green tea."),
            ("assistant", "Noted."),
            ("user", "What do I drink?"),
            ("assistant", "Green tea."),
        ]
        assert "green tea" in str((await handle.context("And now?")).messages)

    in_session(place, work)


def test_a_program_without_an_event_loop_has_it_too(place: Place, model: Any, llm: LLMServer) -> None:
    llm.play(
        calls(("memory_remember", {"content": "Alice drinks green tea.", "type": "preference"})),
        text("I will remember."),
        text("Yes."),
    )
    with place.open() as store:
        handle = place.helper(store, "monday")
        agent = Agent(name="helper", model=model, tools=function_tools(handle))
        for said, answer in (("I drink green tea.", "I will remember."), ("Sure?", "Yes.")):
            with loop_of_its_own():
                assert Runner.run_sync(agent, said, session=AlcoveSession(handle)).final_output == answer
        assert [each.role for each in handle.agents.session("helper", "monday").said] == [
            "user", "assistant", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert "green tea" in handle.call("memory_recall", {"query": "tea"}).text
        (window,) = [each for each in handle.context("So?").messages if each.role == "tool"]
        assert window.tool_call_id
    offered = {each["function"]["name"] for each in llm.requests[0].body["tools"]}
    assert {"remember", "memory_recall"} <= offered


def test_items_come_back_as_they_were_added_and_go_one_by_one(place: Place) -> None:
    async def work(handle: AsyncAgentHandle) -> None:
        session = AlcoveSession(handle)
        assert isinstance(session, Session)
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.clear_session()
        await session.add_items([])
        await session.add_items(CONVERSATION)
        assert await session.get_items() == CONVERSATION
        for limit in range(len(CONVERSATION) + 3):
            wanted = CONVERSATION[-limit:] if limit else []
            assert await session.get_items(limit) == wanted
            assert (
                await AlcoveSession(handle, session_settings=SessionSettings(limit=limit)).get_items()
                == wanted
            )
        for left in range(len(CONVERSATION) - 1, -1, -1):
            assert await session.pop_item() == CONVERSATION[left]
            assert await session.get_items() == CONVERSATION[:left]
        assert await session.pop_item() is None
        await session.add_items(CONVERSATION[:1])
        await session.clear_session()
        assert await session.get_items() == []

    in_session(place, work)


def test_as_turns_they_can_be_read_and_make_a_context_that_chat_apis_take(place: Place) -> None:
    async def work(handle: AsyncAgentHandle) -> None:
        await AlcoveSession(handle).add_items(CONVERSATION)
        said = (await handle.agents.session("helper", "monday")).said
        assert [(each.role, each.content) for each in said] == [
            ("user", "Hello, 你好 \u0000"),
            ("user", "What is this?\n[input_image]"),
            ("assistant", None),
            ("tool", "a cat"),
            ("tool", "a dog"),
            ("tool", ""),
            ("assistant", "A cat."),
            ("assistant", "No more."),
            ("assistant", "[item_reference]"),
        ]
        assert [call["id"] for call in said[2].tool_calls] == ["a", "b", "d"]
        context = await handle.context("And?")
        assert [each.role for each in context.messages][1:] == [*(each.role for each in said), "user"]
        assert "gAAA" not in str(context)

    in_session(place, work)


def test_many_items_are_kept_and_read_in_pages(place: Place) -> None:
    items: list[Any] = [{"role": "user", "content": f"message {n}"} for n in range(450)]

    async def work(handle: AsyncAgentHandle) -> None:
        session = AlcoveSession(handle)
        await session.add_items(items)
        large: Any = {"type": "message", "role": "user", "content": "x" * 300_000}
        for _ in range(4):
            await session.add_items([large])
        assert await session.get_items() == [*items, *[large] * 4]
        assert await session.get_items(450) == [*items, *[large] * 4][-450:]
        with pytest.raises(InvalidRequest):
            await session.add_items([{"role": "user", "content": "x" * 1_100_000}])
        assert len(await session.get_items()) == 454

    in_session(place, work)


def test_what_other_programs_said_in_the_conversation_are_items_too(place: Place) -> None:
    made = [{"id": n, "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in ("1", "2")]

    async def work(handle: AsyncAgentHandle) -> None:
        session = AlcoveSession(handle)
        await handle.remember([{"role": "user", "content": "Hi"}])
        await handle.remember([{"role": "assistant", "content": "I look.", "tool_calls": made}])
        first, second = (
            {"type": "function_call", "call_id": n, "name": "f", "arguments": "{}"} for n in "12"
        )
        spoken = {"role": "assistant", "content": "I look."}
        assert await session.get_items() == [{"role": "user", "content": "Hi"}, spoken, first, second]
        assert await session.get_items(1) == [second]
        assert [await session.pop_item() for _ in range(3)] == [second, first, spoken]
        assert await session.get_items() == [{"role": "user", "content": "Hi"}]

    in_session(place, work)


def test_two_users_and_two_conversations_at_once_see_nothing_of_each_other(
    place: Place, model: Any, llm: LLMServer
) -> None:
    llm.play(
        *(text(f"Hello {name}.", when=f"I am {name}", always=True) for name in ("alice", "bob", "carol"))
    )

    async def main() -> None:
        agent = Agent(name="helper", model=model)
        async with place.awaited("alice") as alice, place.awaited("bob") as bob:
            sessions = {
                "alice": AlcoveSession(place.async_helper(alice, "s")),
                "bob": AlcoveSession(place.async_helper(bob, "s")),
                "carol": AlcoveSession(place.async_helper(bob, "t")),
            }
            for _ in range(2):
                runs = [Runner.run(agent, f"I am {who}.", session=own) for who, own in sessions.items()]
                await asyncio.gather(*runs)
            for who, own in sessions.items():
                told = json.dumps(await own.get_items())
                assert told.count(f"Hello {who}.") == 2
                assert not any(f"Hello {other}." in told for other in sessions if other != who)
            await sessions["alice"].clear_session()
            assert len(await sessions["bob"].get_items()) == 4

    asyncio.run(main())


def test_who_pops_and_adds_at_once_gets_each_item_once(place: Place) -> None:
    async def work(handle: AsyncAgentHandle) -> None:
        session = AlcoveSession(handle)
        before: list[Any] = [{"role": "user", "content": f"{n}"} for n in range(6)]
        new: list[Any] = [{"role": "assistant", "content": f"new {n}"} for n in range(4)]
        await session.add_items(before)
        adding = [session.add_items([each]) for each in new]
        taken = await asyncio.gather(*(session.pop_item() for _ in range(6)), *adding)
        everything = [*(each for each in taken[:6] if each), *await session.get_items()]
        assert sorted(map(json.dumps, everything)) == sorted(map(json.dumps, [*before, *new]))

    in_session(place, work)


def test_a_wipe_of_the_user_takes_the_conversation(tmp_path: Any) -> None:
    async def main() -> None:
        async with AsyncAlcove(tmp_path / "m.db", embedder=None) as store:
            session = AlcoveSession(store.as_user("alice").agent("helper"))
            await session.add_items(CONVERSATION)
            await store.admin.wipe("alice")
            assert await session.get_items() == []

    asyncio.run(main())


def test_a_model_is_told_of_errors_that_it_can_mend(place: Place) -> None:
    async def work(handle: AsyncAgentHandle) -> None:
        steps: list[Any] = [
            [
                function_call("remember", '{"key": "tea"}', call_id="1"),
                function_call("recall", {"key": "missing"}, call_id="2"),
                function_call("remember", "[1]", call_id="3"),
                function_call("remember", "{", call_id="4"),
                function_call("remember", {"key": "tea", "content": "green", "user": "bob"}, call_id="5"),
            ],
            [assistant_message("Done.")],
        ]
        agent = Agent(name="helper", model=ScriptedModel(steps), tools=await function_tools(handle))
        session = AlcoveSession(handle)
        await Runner.run(agent, "Go.", session=session)
        items: list[Any] = [*await session.get_items()]
        told = {each["call_id"]: each["output"] for each in items if "output" in each}
        assert told["1"].startswith("error: content: expected")
        assert told["2"].startswith("error: ")
        assert told["3"] == told["4"] == "error: arguments: expected a JSON object"
        assert not told["5"].startswith("error")
        assert "green" in (await handle.call("recall", {"key": "tea"})).text

    in_session(place, work)


def test_a_store_that_is_away_fails_the_run(tmp_path: Any) -> None:
    async def main() -> None:
        store = AsyncAlcove(tmp_path / "m.db", embedder=None)
        handle = store.agent("helper")
        tools = await function_tools(handle)
        await store.close()
        steps: list[Any] = [[function_call("memory_recall", {"query": "tea"}, call_id="1")]]
        agent = Agent(name="helper", model=ScriptedModel(steps), tools=tools)
        with pytest.raises(Exception, match="closed") as failed:
            await Runner.run(agent, "Go.")
        assert isinstance(failed.value, Unavailable) or isinstance(failed.value.__cause__, Unavailable)
        with pytest.raises(Unavailable):
            await Runner.run(agent, "Go.", session=AlcoveSession(handle))

    asyncio.run(main())


def test_tools_in_the_responses_format_are_what_the_official_client_takes(place: Place) -> None:
    with place.open() as store:
        tools = place.helper(store).tools("responses")
    assert TypeAdapter(list[FunctionToolParam]).validate_python(tools, strict=True) == tools
    assert {each["type"] for each in tools} == {"function"}
    assert {"remember", "recall"} <= {each["name"] for each in tools}


def test_an_agent_that_is_not_there_is_no_silent_conversation(helped: Service) -> None:
    with alcove.connect(helped.url, token=token("alice")) as store:
        session = AlcoveSession(store.agent("nobody"))
        for call in (session.get_items, session.pop_item):
            with pytest.raises(NotFound, match="nobody"):
                asyncio.run(call())


ITEMS: Any = st.one_of(
    st.sampled_from(CONVERSATION),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["function_call", "function_call_output", "message", "reasoning", "x"])},
        optional={
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "call_id": st.sampled_from(["1", "2"]),
            "name": st.just("f"),
            "arguments": st.sampled_from(["{}", ""]),
            "output": st.one_of(
                st.text(max_size=3), st.lists(st.none() | st.just({"type": "y"}), max_size=2)
            ),
            "content": st.one_of(st.text(max_size=3), st.none(), st.lists(st.just({"text": 1}), max_size=2)),
            "more": st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1), st.lists),
        },
    ),
)
STEPS: Any = st.lists(st.one_of(st.lists(ITEMS, max_size=5), st.sampled_from(["pop", "clear"])), max_size=12)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_it_does_what_the_sessions_of_the_sdk_do(memory: Alcove, steps: list[Any]) -> None:
    async def main() -> None:
        model = list[Any]()
        session = AlcoveSession(memory.as_user("alice").agent("helper", session_id=uuid.uuid4().hex))
        for step in steps:
            if step == "pop":
                assert await session.pop_item() == (model.pop() if model else None)
            elif step == "clear":
                await session.clear_session()
                model.clear()
            else:
                await session.add_items(step)
                model += step
            items = await session.get_items()
            assert json.dumps(items, sort_keys=True) == json.dumps(model, sort_keys=True)  # 1 is not 1.0
            assert await session.get_items(2) == model[-2:]

    asyncio.run(main())


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['agents'] = None; import alcove.integrations.openai_agents"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs agents: pip install '.[openai-agents]' in a clone of Alcove" in done.stderr


def test_a_session_id_that_cannot_be_one_is_refused(place: Place) -> None:
    with place.open() as store, pytest.raises(alcove.InvalidRequest, match="session"):
        asyncio.run(AlcoveSession(place.helper(store, "")).add_items(CONVERSATION))
