"""A LangGraph agent with memory: its store and its checkpoints in one encrypted file.

Run it: pip install '.[langgraph]' langgraph, then python examples/langgraph_memory.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from alcove import Alcove
from alcove.integrations.langgraph import AlcoveStore
from alcove.integrations.langgraph_threads import AlcoveSaver


class State(TypedDict, total=False):
    user: str
    message: str
    answer: str


def answer(state: State, runtime: Runtime[None]) -> State:
    """Stands in for a model: looks up a relevant memory, stores the new message, and answers."""
    memories, store = (state["user"], "memories"), runtime.store
    assert store
    hits = store.search(memories, query=state["message"], limit=1)
    store.put(memories, str(len(store.search(memories, limit=100))), {"text": state["message"]})
    return {"answer": f"You once said: {hits[0].value['text']}" if hits else "Nice to meet you."}


def main(folder: Path) -> None:
    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    with Alcove(folder / "memory.db") as memory:
        store = AlcoveStore(memory, by_user=True)
        graph = builder.compile(store=store, checkpointer=AlcoveSaver(memory))

        def say(user: str, thread: str, message: str) -> None:
            config: Any = {"configurable": {"thread_id": thread}}
            result = graph.invoke({"user": user, "message": message}, config)
            print(f"{user}: {message}\n    {result['answer']}")

        say("alice", "monday", "I am allergic to peanuts")
        say("alice", "friday", "What can I eat?")
        say("bob", "friday-bob", "What can I eat?")
        checkpoints = AlcoveSaver(memory).list(None)
        print("threads:      ", sorted({each.config["configurable"]["thread_id"] for each in checkpoints}))
        print("alice, erased:", memory.wipe("alice").removed["memories"], "memories")
        remaining = {user: len(store.search((user,))) for user in ("alice", "bob")}
        print("remaining:    ", remaining)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
