"""A compiled graph whose nodes remember and recall in an AlcoveStore, with a model that is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypedDict

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore

from alcove.integrations.langgraph import AlcoveStore
from tests.support.langgraph_stores import OWN, Deployment, at_a_url, in_a_file, serving_with_keys
from tests.support.llm_server import LLMServer, text

CAT, TOWN, QUESTION = "My cat is called Minka", "I live in Rome", "What is my cat called?"
KNOWN, UNKNOWN = "She is called Minka.", "You have not told me."


class State(TypedDict, total=False):
    said: str
    recalled: list[str]
    answer: str


class Assistant:
    """Recalls what fits, asks the model with it, and keeps what was said; each in a node of its own."""

    def __init__(self, llm: LLMServer) -> None:
        self._url = f"{llm.url}/chat/completions"

    def recall(self, state: State, config: RunnableConfig, *, store: BaseStore) -> State:
        found = store.search(_memories(config), query=state["said"], limit=1)
        return {"recalled": [each.value["text"] for each in found]}

    async def arecall(self, state: State, config: RunnableConfig, *, store: BaseStore) -> State:
        found = await store.asearch(_memories(config), query=state["said"], limit=1)
        return {"recalled": [each.value["text"] for each in found]}

    def respond(self, state: State) -> State:
        with httpx.Client(trust_env=False) as client:
            return {"answer": _told(client.post(self._url, json=_prompt(state)))}

    async def arespond(self, state: State) -> State:
        async with httpx.AsyncClient(trust_env=False) as client:
            return {"answer": _told(await client.post(self._url, json=_prompt(state)))}

    def remember(self, state: State, config: RunnableConfig) -> State:
        if not state["said"].endswith("?"):
            get_store().put(_memories(config), state["said"][:8], {"text": state["said"]})
        return {}

    async def aremember(self, state: State, config: RunnableConfig) -> State:
        if not state["said"].endswith("?"):
            await get_store().aput(_memories(config), state["said"][:8], {"text": state["said"]})
        return {}

    def graph(self, store: BaseStore, *, awaited: bool) -> Any:
        builder = StateGraph(State)
        builder.add_node("recall", self.arecall if awaited else self.recall)
        builder.add_node("respond", self.arespond if awaited else self.respond)
        builder.add_node("remember", self.aremember if awaited else self.remember)
        builder.add_edge(START, "recall")
        builder.add_edge("recall", "respond")
        builder.add_edge("respond", "remember")
        builder.add_edge("remember", END)
        return builder.compile(store=store)


def _memories(config: RunnableConfig) -> tuple[str, ...]:
    return (config["configurable"]["user_id"], "memories")


def _prompt(state: State) -> dict[str, Any]:
    known = f"You know: {state['recalled']}"
    messages = [{"role": "system", "content": known}, {"role": "user", "content": state["said"]}]
    return {"model": "scripted", "messages": messages}


def _told(answer: httpx.Response) -> str:
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


@pytest.fixture(scope="module", params=["file", "url"])
def deployment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "file":
        with in_a_file(folder / "memory.db") as one:
            yield one
    else:
        with serving_with_keys(folder) as running, at_a_url(*running) as one:
            yield one


@pytest.fixture
def assistant(llm: LLMServer) -> Assistant:
    """Its model knows the cat's name only where it is told."""
    llm.reset()
    llm.play(text(KNOWN, when="You know: ['My cat", always=True), text(UNKNOWN, always=True))
    return Assistant(llm)


def as_user(name: str) -> dict[str, Any]:
    return {"configurable": {"user_id": name}}


def test_a_graph_remembers_for_each_user_what_they_said(deployment: Deployment, assistant: Assistant) -> None:
    store = AlcoveStore(deployment.handle(deployment.new_user()), index=["text"], root=OWN)
    graph = assistant.graph(store, awaited=False)
    for said in (CAT, TOWN):
        graph.invoke({"said": said}, as_user("alice"))
    graph.invoke({"said": "I like tea"}, as_user("bob"))
    assert graph.invoke({"said": QUESTION}, as_user("alice"))["answer"] == KNOWN
    done = graph.invoke({"said": QUESTION}, as_user("bob"))
    assert (done["recalled"], done["answer"]) == (["I like tea"], UNKNOWN)
    assert store.list_namespaces() == [("alice", "memories"), ("bob", "memories")]


@pytest.mark.parametrize("awaited", [True, False], ids=["nodes that await", "nodes that block"])
def test_a_graph_that_is_awaited_remembers_for_each_user_what_they_said(
    deployment: Deployment, assistant: Assistant, awaited: bool
) -> None:
    store = AlcoveStore(deployment.handle(deployment.new_user()), index=["text"], root=OWN)
    graph = assistant.graph(store, awaited=awaited)

    async def talk() -> list[str]:
        said = [(CAT, "alice"), (TOWN, "alice"), ("I like tea", "bob")]
        await asyncio.gather(*(graph.ainvoke({"said": words}, as_user(user)) for words, user in said))
        asked = (graph.ainvoke({"said": QUESTION}, as_user(user)) for user in ("alice", "bob"))
        answers = [done["answer"] for done in await asyncio.gather(*asked)]
        assert len(await store.asearch(())) == 3
        if deployment.remote:  # a file stays open for the other tests
            await store.aclose()
        return answers

    assert asyncio.run(talk()) == [KNOWN, UNKNOWN]


def test_another_graph_recalls_what_one_remembered(deployment: Deployment, assistant: Assistant) -> None:
    user = deployment.new_user()
    one, other = (AlcoveStore(deployment.handle(user), index=["text"], root=OWN) for _ in range(2))
    assistant.graph(one, awaited=False).invoke({"said": CAT}, as_user("alice"))
    assert (
        assistant.graph(other, awaited=False).invoke({"said": QUESTION}, as_user("alice"))["answer"] == KNOWN
    )


def test_a_graph_forgets_a_user_who_was_wiped(deployment: Deployment, assistant: Assistant) -> None:
    store = AlcoveStore(deployment.gateway(), index=["text"], by_user=True)
    graph = assistant.graph(store, awaited=False)
    alice, bob = deployment.new_user("alice"), deployment.new_user("bob")
    for user in (alice, bob):
        graph.invoke({"said": CAT}, as_user(user))
    deployment.trusted.wipe(alice)
    asked = [graph.invoke({"said": QUESTION}, as_user(user)) for user in (alice, bob)]
    assert [done["answer"] for done in asked] == [UNKNOWN, KNOWN]
    assert asked[0]["recalled"] == []
    graph.invoke({"said": CAT}, as_user(alice))
    assert graph.invoke({"said": QUESTION}, as_user(alice))["answer"] == KNOWN, "a new beginning"
