"""What `import alcove` offers: exceptions, records, and methods that explain themselves."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct

import alcove
from alcove import AlcoveError, AsyncAlcove, MemoryKey
from alcove.api.agent_operations import (
    AgentOperations,
    ChatOperations,
    ChatStreaming,
    KnowledgeOperations,
    SessionOperations,
)
from alcove.api.operation import operations
from alcove.api.operations import AdminOperations, MemoryOperations
from alcove.client.remote import Remote
from alcove.core import errors
from tests.support.concurrent_workers import QUIET

TABLES = (
    MemoryOperations, AdminOperations, AgentOperations, SessionOperations, KnowledgeOperations,
    ChatOperations, ChatStreaming,
)  # fmt: skip


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for each in get_args(hint):
        yield from _parts(each)


def _records(function: Any) -> set[type]:
    """The records of ours in a function's signature, and the lists that carry a cursor."""
    hints = get_type_hints(function)
    every = {part for hint in hints.values() for part in _parts(hint) if inspect.isclass(part)}
    return {
        each
        for each in every
        if each.__module__.startswith("alcove") and issubclass(each, Struct | list | tuple)
        if each.__name__ not in ("BatchOperation", "Namespace")
    }


def test_every_error_with_a_code_is_exported() -> None:
    names = {
        name for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, AlcoveError)
    }  # fmt: skip
    assert names <= {*alcove.__all__}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_record_of_an_operation_is_exported(table: type) -> None:
    for operation in operations(table):
        for record in _records(operation.function):
            assert getattr(alcove, record.__name__) is record
            assert record.__name__ in alcove.__all__


def test_what_a_caller_imports_to_annotate_is_exported() -> None:
    assert {"Remote", "Context", "Message", "LLMSettings", "AgentHandle", "Embedder"} <= {*alcove.__all__}


def test_handles_show_signature_and_text(tmp_path: Path) -> None:
    """What `help()` and IPython show is that of the service's method, without the principal."""
    with alcove.Alcove(tmp_path / "memory.db", keys=MemoryKey(), settings=QUIET, embedder=None) as store:
        handles: list[Any] = [store.put, store.admin.wipe, store.agents({}).add_turns, store.api_keys.create]
        handles += [AsyncAlcove.over(store).put, AsyncAlcove.over(store).admin.wipe]
        with Remote("http://127.0.0.1:9") as remote:
            handles += [remote.put, remote.admin.wipe, remote.agents().add_turns]
        for method in handles:
            parameters = inspect.signature(method).parameters
            assert {"namespace", "user", "agent", "client"} & {*parameters}
            assert not {"self", "principal"} & {*parameters}
            assert method.__doc__
            text = pydoc.render_doc(method, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
            assert f"{method.__name__}(" in text
            assert inspect.cleandoc(method.__doc__).splitlines()[0] in text


def test_a_prefix_has_two_names_in_calls(tmp_path: Path) -> None:
    with alcove.Alcove(tmp_path / "memory.db", keys=MemoryKey(), settings=QUIET, embedder=None) as store:
        store.put("user:noop:a", "k", {"n": 1})
        old: dict[str, Any] = {"namespace_prefix": "user:noop:a"}
        assert store.search(**old) == store.search(prefix="user:noop:a") != []
        assert store.namespaces(**old) == [("user", "noop", "a")]
        with pytest.raises(TypeError):
            store.search("user:noop:a", **old)


def test_both_kinds_of_calls_take_the_arguments_of_a_tool_alike(tmp_path: Path) -> None:
    with alcove.Alcove(tmp_path / "memory.db", keys=MemoryKey(), settings=QUIET, embedder=None) as store:
        agents, helper = store.agent("helper").agents, store.agent("helper")
        entry = {"content": "Tea at five.", "type": "fact"}
        agents.call("helper", "memory_remember", entry)
        agents.call("helper", "memory_remember", '{"content": "Tea at six."}')
        helper.call("memory_remember", content="Tea at seven.")
        assert helper.call(tool="memory_recall", arguments='{"query": "tea"}').result["items"]
        found = helper.call("memory_recall", {"query": "tea"}, limit=2).result
        assert len(found["items"]) == 2
        assert agents.spec("helper") == agents.agent("helper")
        with pytest.raises(alcove.InvalidRequest, match="arguments"):
            helper.call("memory_recall", "[1]")
