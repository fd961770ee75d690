"""Checkpoints that somebody else than the saver wrote: nothing in them becomes code, and none is resumed."""

from __future__ import annotations

import asyncio
import json
import pickle
import sqlite3
import subprocess
import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import ormsgpack
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

import alcove
from alcove import Alcove, InvalidRequest, Unreadable
from alcove.client.store import Store
from alcove.integrations import signed_values
from alcove.integrations.langgraph import AlcoveStore
from alcove.integrations.langgraph_threads import AlcoveSaver
from tests.support.command import Command as Alcommand
from tests.support.concurrent_workers import QUIET
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS, token

KEY = "a secret of the app, which its users do not know"
ROOM = ["user", "alice", "langgraph-threads", "t", "ns:"]
NEWEST = "!" * 36
"""A key that comes before that of any checkpoint: the saver takes it for the newest."""
VALUE = {"type": "msgpack", "data": "", "parts": 0}


def thread(name: str = "t") -> Any:
    return {"configurable": {"thread_id": name, "checkpoint_ns": ""}}


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return subprocess.getoutput, (self._command,)


def record(**more: Any) -> dict[str, Any]:
    """A checkpoint as the saver writes it."""
    checkpoint = {**empty_checkpoint(), "channel_values": {}}
    return {"checkpoint": {**checkpoint, **more}, "metadata": {}, "parent": None, "values": {}}


def packed(code: int, *parts: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb(parts))


def attacks(command: str) -> dict[str, tuple[str, bytes]]:
    """What a user may send as a checkpoint, by the way in which it runs a command."""
    constructor = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [command]}
    nested = packed(5, "app", "Model", {"x": packed(0, "os", "system", command)}, "model_validate_json")
    extensions = {
        "one argument": packed(0, "os", "system", command),
        "arguments": packed(1, "os", "system", [command]),
        "named arguments": packed(2, "subprocess", "getoutput", {"cmd": command}),
        "a method": packed(3, "subprocess", "os", command, "system"),
        "pydantic 1": packed(4, "subprocess", "getoutput", {"cmd": command}),
        "pydantic 2": packed(5, "subprocess", "getoutput", {"cmd": command}, "model_validate_json"),
        "nested": nested,
        "a snapshot": ormsgpack.Ext(7, ormsgpack.packb(packed(0, "os", "system", command))),
    }
    told = {name: ("msgpack", ormsgpack.packb(record(x=each))) for name, each in extensions.items()}
    return {
        **told,
        "pickle": ("pickle", pickle.dumps(record(x=Bomb(command)))),
        "json": ("json", json.dumps(record(x=constructor)).encode()),
    }


WAYS = [*attacks("")]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("served"), *FLAGS) as service:
        yield service


def plant(service: Service, value: dict[str, Any]) -> None:
    """What a user writes over REST, with their own token and in their own namespace."""
    answer = service.put([*ROOM, "at"], NEWEST, value, token("alice"))
    assert answer.status_code == 200, answer.text


def saver_of(service: Service, **more: Any) -> AlcoveSaver:
    """The app's saver, with Alice's token and a secret that she does not have."""
    return AlcoveSaver(service.url, token=token("alice"), signing_key=KEY, **more)


class State(TypedDict, total=False):
    said: str


def graph(saver: AlcoveSaver, answer: Any = lambda state: {"said": "done"}) -> Any:
    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


# What a user plants


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("awaited", [False, True], ids=["called", "awaited"])
def test_a_planted_checkpoint_runs_nothing_and_is_refused_by_its_name(
    service: Service, tmp_path: Path, way: str, awaited: bool
) -> None:
    marker = tmp_path / "marker"
    kind, data = attacks(f"touch {marker}")[way]
    plant(service, {"type": kind, "data": b64encode(data).decode(), "parts": 0})
    told = f"user:alice:langgraph-threads:t:ns%3A:at '{NEWEST}' is not signed"
    if awaited:

        async def resume() -> None:
            async with saver_of(service) as saver:
                with pytest.raises(Unreadable, match=told):
                    await graph(saver).ainvoke({"said": "hello"}, thread())
                with pytest.raises(Unreadable, match=told):
                    [each async for each in saver.alist(thread())]

        asyncio.run(resume())
    else:
        with saver_of(service) as saver:
            for work in (
                lambda: graph(saver).invoke({"said": "hello"}, thread()),
                lambda: graph(saver).get_state(thread()),
                lambda: [*saver.list(thread())],
                lambda: saver.copy_thread("t", "copy"),
                lambda: saver.prune(["t"]),
                lambda: saver.delete_for_runs(["r"]),
            ):
                with pytest.raises(Unreadable, match=told):
                    work()
            assert saver.get_tuple(thread("copy")) is None
            saver.delete_thread("t")
            assert saver.get_tuple(thread()) is None
    assert not marker.exists()


@pytest.mark.parametrize("way", WAYS)
def test_what_an_app_vouches_for_by_mistake_still_runs_nothing(path: Path, tmp_path: Path, way: str) -> None:
    """Decoding is safe by itself, and not only because of the signature."""
    marker = tmp_path / "marker"
    kind, data = attacks(f"touch {marker}")[way]
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        alice = memory.as_user("alice")
        alice.put([*ROOM, "at"], NEWEST, {"type": kind, "data": b64encode(data).decode(), "parts": 0})
        saver = AlcoveSaver(alice)
        assert saver.sign_threads() == 1
        with pytest.raises(Unreadable, match=r"allowed_types|is not decoded"):
            saver.get_tuple(thread())
    assert not marker.exists()


def stored(store: Store, *more: str) -> list[alcove.Memory]:
    return [*store.search((*ROOM, *more), limit=100, exact=True)]


def checkpointed(store: Store, name: str = "t", said: str = "hello") -> AlcoveSaver:
    saver = AlcoveSaver(store)
    graph(saver).invoke({"said": said}, thread(name))
    return saver


@pytest.fixture
def memory(path: Path) -> Iterator[Alcove]:
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        yield memory


@pytest.mark.parametrize("field", ["type", "data", "parts", "digest", "signature"])
@pytest.mark.parametrize("room", [("at",), ("values",)], ids=["checkpoint", "value"])
def test_a_checkpoint_that_was_changed_is_refused(memory: Alcove, room: tuple[str, ...], field: str) -> None:
    alice = memory.as_user("alice")
    saver = checkpointed(alice)
    for found in stored(alice, *room):
        value: dict[str, Any] = {**found.value}
        value[field] = {"type": "bytes", "data": b64encode(b"\x81\xa1a\x01").decode(), "parts": 1}.get(field)
        alice.put(found.namespace, found.key, value)
    with pytest.raises(Unreadable, match=r"is not signed|was changed after it was written"):
        saver.get_tuple(thread())


def test_a_checkpoint_of_another_thread_or_user_is_refused(memory: Alcove) -> None:
    alice, bob = memory.as_user("alice"), memory.as_user("bob")
    checkpointed(alice, "other")
    for user, store in (("alice", alice), ("bob", bob)):
        for found in alice.search(("user", "alice", "langgraph-threads", "other"), limit=100):
            room = ("user", user, "langgraph-threads", "moved", *found.namespace[4:])
            store.put(room, found.key, found.value)
        with pytest.raises(Unreadable, match="is not signed"):
            AlcoveSaver(store).get_tuple(thread("moved"))


def test_a_checkpoint_under_another_id_is_refused(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    saver = checkpointed(alice)
    found = stored(alice, "at")[-1]
    alice.put(found.namespace, NEWEST, found.value)
    with pytest.raises(Unreadable, match="is not signed"):
        saver.get_tuple(thread())


def test_parts_of_a_large_state_cannot_be_exchanged(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    saver = checkpointed(alice, said="x" * 2_000_000)
    parts = [each for each in stored(alice, "values", "parts") if each.key.endswith("#0")]
    assert parts
    for each in parts:
        text = b64decode(str(each.value["data"])).replace(b"x", b"y")
        alice.put(each.namespace, each.key, {"data": b64encode(text).decode()})
    with pytest.raises(Unreadable, match="a part of it was changed"):
        [*saver.list(thread())]


def test_a_write_that_a_user_plants_is_refused_and_replaced_by_the_apps_own(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    saver = checkpointed(alice)
    (newest, *_) = saver.list(thread())
    room = [*ROOM, "writes", newest.config["configurable"]["checkpoint_id"]]
    alice.put(room, "task:0", VALUE)
    with pytest.raises(Unreadable, match="is not signed"):
        saver.get_tuple(thread())
    saver.put_writes(newest.config, [("said", "the app's own")], "task")
    found = saver.get_tuple(thread())
    assert found
    assert found.pending_writes == [("task", "said", "the app's own")]


@pytest.mark.parametrize("parts", [10_000_000, 10**18, -1, True, "7", 1.5, None, [1]], ids=str)
def test_a_checkpoint_that_claims_any_number_of_parts_ends_as_an_error_at_once(
    service: Service, memory: Alcove, monkeypatch: pytest.MonkeyPatch, parts: Any
) -> None:
    requested: list[int] = []

    def count(alcove: Any, gets: Any) -> list[Any]:
        requested.append(len(gets))
        return [None for _ in gets]

    monkeypatch.setattr(signed_values, "read_all", count)
    plant(service, {**VALUE, "parts": parts})
    with saver_of(service) as saver, pytest.raises(Unreadable, match="is not signed"):
        saver.get_tuple(thread())
    alice = memory.as_user("alice")
    alice.put([*ROOM, "at"], NEWEST, {**VALUE, "parts": parts})
    assert AlcoveSaver(alice).sign_threads() == 0
    with pytest.raises(Unreadable, match="parts: expected a number from 0 to 4096"):
        signed_values.deletes(stored(alice, "at"))
    assert sum(requested) == 0


# The key


def test_a_store_at_a_url_needs_a_key_of_the_app(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALCOVE_CHECKPOINT_KEY", raising=False)
    with alcove.connect(service.url, token=token("alice")) as remote:
        for at in (service.url, remote):
            with pytest.raises(InvalidRequest, match=r"signing_key: .*secrets.*ALCOVE_CHECKPOINT_KEY"):
                AlcoveSaver(at)
        with pytest.raises(InvalidRequest, match="at least 32 bytes"):
            AlcoveSaver(remote, signing_key="short")
        monkeypatch.setenv("ALCOVE_CHECKPOINT_KEY", KEY)
        checkpointed(remote, "by-environment")
        monkeypatch.delenv("ALCOVE_CHECKPOINT_KEY")
        found = AlcoveSaver(remote, signing_key=KEY.encode()).get_tuple(thread("by-environment"))
        assert found
        other = AlcoveSaver(remote, signing_key="another secret, of an app that is not this one")
        with pytest.raises(Unreadable, match="is not signed with the key of this saver"):
            other.get_tuple(thread("by-environment"))


def test_a_file_has_a_key_by_itself_which_outlives_a_rotation(path: Path) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        checkpointed(memory)
        [*memory.rotate_keys()]
    with AlcoveSaver(path, settings=QUIET, embedder=None) as again:
        assert again.get_tuple(thread())
    with AlcoveSaver(path, settings=QUIET, embedder=None, signing_key=KEY) as with_both:
        assert with_both.get_tuple(thread())


def test_two_files_have_different_keys(tmp_path: Path) -> None:
    with (
        Alcove(tmp_path / "one.db", settings=QUIET, embedder=None) as one,
        Alcove(tmp_path / "other.db", settings=QUIET, embedder=None) as other,
    ):
        checkpointed(one)
        for found in one.search(("user", "noop", "langgraph-threads"), limit=100):
            other.put(found.namespace, found.key, found.value)
        with pytest.raises(Unreadable, match="is not signed"):
            AlcoveSaver(other).get_tuple(thread())


def test_the_key_of_a_file_is_not_the_pseudonym_of_any_name(memory: Alcove) -> None:
    """Pseudonyms are in the audit log, and a user chooses their name."""
    derived = memory.transport.derive_key("langgraph checkpoints")
    vault = memory.memories._vault
    for name in ("langgraph checkpoints", "alcove langgraph checkpoints"):
        assert vault.pseudonym(name) != derived.hex()
    assert memory.transport.derive_key("something else") != derived


def unsign(store: Store) -> int:
    """Makes threads what they were before they were signed."""
    threads, cursor = ("user", store.whoami().user, "langgraph-threads"), None
    found: list[alcove.Memory] = []
    while page := store.search(threads, limit=100, after_cursor=cursor):
        found += page
        if (cursor := page.after_cursor) is None:
            break
    signed = [each for each in found if "signature" in each.value]
    for each in signed:
        older = {name: each.value[name] for name in ("type", "data", "parts")}
        store.put(each.namespace, each.key, older)
    return len(signed)


@pytest.mark.parametrize("said", ["hello", "x" * 2_000_000], ids=["small", "in parts"])
def test_threads_from_before_signatures_go_on_once_the_app_signs_them(memory: Alcove, said: str) -> None:
    alice, bob = memory.as_user("alice"), memory.as_user("bob")
    saver = checkpointed(alice, said=said)
    checkpointed(alice, "second", said=said)
    checkpointed(bob)
    count = unsign(alice)
    unsign(bob)
    with pytest.raises(Unreadable, match=r"sign_threads\(\)"):
        saver.get_tuple(thread())
    assert 0 < saver.sign_threads(["t"]) < count
    assert saver.get_tuple(thread())
    with pytest.raises(Unreadable):
        saver.get_tuple(thread("second"))
    assert asyncio.run(saver.asign_threads()) > 0
    assert saver.sign_threads() == 0
    assert graph(saver).invoke({"said": "again"}, thread("second"))["said"] == "done"
    with pytest.raises(Unreadable):
        AlcoveSaver(bob).get_tuple(thread())


def test_a_copy_is_signed_for_its_own_place(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    saver = checkpointed(alice, said="x" * 2_000_000)
    saver.copy_thread("t", "copy")
    for name in ("t", "copy"):
        assert len([*saver.list(thread(name))]) == 3
    assert graph(saver).get_state(thread("copy")).values == {"said": "done"}


# Types


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    dish: str


class Guest(BaseModel):
    name: str
    order: Order | None = None


class Shape(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    thing: Any


def run(saver: AlcoveSaver, thing: Any, name: str = "t") -> Any:
    """What a graph has after its state was written and read again."""
    builder = StateGraph(Shape)
    builder.add_node("set", lambda state: {"thing": thing, "messages": [AIMessage("yes", id="2")]})
    builder.add_edge(START, "set")
    builder.add_edge("set", END)
    compiled = builder.compile(checkpointer=saver)
    compiled.invoke({"messages": [HumanMessage("hello", id="1")]}, thread(name))
    return compiled.get_state(thread(name)).values


@pytest.mark.parametrize(
    "thing",
    [
        datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=7), uuid.UUID(int=7), Decimal("1.5"), {1, 2},
        frozenset("ab"), Path("/tmp/x"), b"bytes", None, (1, 2), Send("node", {"a": 1}),
        Command(goto="node", update={"a": 1}), Document("text"), ToolMessage("x", tool_call_id="1"),
    ],
    ids=lambda thing: type(thing).__name__,
)  # fmt: skip
def test_what_graphs_usually_hold_is_read_back_as_it_was(memory: Alcove, thing: Any) -> None:
    found = run(AlcoveSaver(memory), thing)
    assert found["thing"] == ([*thing] if isinstance(thing, tuple) else thing)
    assert [type(each) for each in found["messages"]] == [HumanMessage, AIMessage]


def test_an_array_of_numpy_is_read_back(memory: Alcove) -> None:
    assert np.array_equal(run(AlcoveSaver(memory), np.eye(3))["thing"], np.eye(3))


@pytest.mark.parametrize(
    "thing",
    [Colour.RED, Order("soup"), Guest(name="Ada", order=Order("soup"))],
    ids=["enum", "data", "basemodel"],
)
def test_a_class_of_the_app_is_built_where_the_app_allows_it(memory: Alcove, thing: Any) -> None:
    name = type(thing).__name__
    with pytest.raises(Unreadable, match=rf"it holds .*{__name__}\.{name}.*allowed_types"):
        run(AlcoveSaver(memory), thing, "refused")
    by_class = AlcoveSaver(memory, allowed_types=[Colour, Order, Guest])
    by_name = AlcoveSaver(memory, allowed_types=[(__name__, each) for each in ("Colour", "Order", "Guest")])
    assert run(by_class, thing, "allowed")["thing"] == thing
    assert run(by_name, thing, "named")["thing"] == thing
    found = by_class.get_tuple(thread("refused"))
    assert found
    assert found.checkpoint["channel_values"]["thing"] == thing, "nothing was lost"


def test_the_types_that_a_graph_declares_can_be_added_as_langgraph_does(memory: Alcove) -> None:
    saver = AlcoveSaver(memory).with_allowlist({(__name__, "Order")})
    assert run(saver, Order("soup"))["thing"] == Order("soup")  # type: ignore[arg-type]
    with pytest.raises(Unreadable, match="Colour"):
        run(saver, Colour.RED, "other")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["app.Order", [1], [("app",)], True, {"app": "Order"}], ids=str)
def test_types_that_are_none_are_refused(memory: Alcove, given: Any) -> None:
    with pytest.raises(InvalidRequest, match="allowed_types: expected a list of classes"):
        AlcoveSaver(memory, allowed_types=given)


def test_a_serialiser_of_the_apps_own_decodes_only_what_is_signed(memory: Alcove, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    alice, lax = memory.as_user("alice"), JsonPlusSerializer(pickle_fallback=True)
    saver = AlcoveSaver(alice, serde=lax)
    run(saver, Order("soup"))
    kind, data = attacks(f"touch {marker}")["pickle"]
    alice.put([*ROOM, "at"], NEWEST, {"type": kind, "data": b64encode(data).decode(), "parts": 0})
    with pytest.raises(Unreadable, match="is not signed"):
        saver.get_tuple(thread())
    assert not marker.exists()
    with pytest.raises(InvalidRequest, match="allowed_types: expected none with a serde"):
        AlcoveSaver(alice, serde=lax, allowed_types=[Order])


def test_an_interrupted_graph_goes_on(memory: Alcove) -> None:
    saver = AlcoveSaver(memory)
    asks = graph(saver, lambda state: {"said": interrupt({"question": "how are you?"})})
    assert asks.invoke({"said": "hello"}, thread())["__interrupt__"][0].value == {"question": "how are you?"}
    assert asks.invoke(Command(resume="well"), thread())["said"] == "well"


# The store, and what is brought from elsewhere


def test_a_value_of_the_store_is_data_whatever_it_looks_like(memory: Alcove, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    value = {
        "lc": 2, "type": "constructor", "id": ["os", "system"], "args": [f"touch {marker}"],
        "data": b64encode(attacks(f"touch {marker}")["one argument"][1]).decode(),
    }  # fmt: skip
    store = AlcoveStore(memory)
    store.put(("user", "noop"), "k", value)
    item = store.get(("user", "noop"), "k")
    assert item
    assert item.value == store.search(("user", "noop"))[0].value == value
    assert not marker.exists()


def test_a_hostile_database_of_checkpoints_is_imported_without_being_decoded(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALCOVE_EMBEDDER", "none")
    marker, file = tmp_path / "marker", tmp_path / "theirs.db"
    with SqliteStore.from_conn_string(str(file)) as store:
        store.setup()
        store.put(("user", "noop"), "k", {"lc": 2, "type": "constructor", "id": ["os", "system"]})
    with SqliteSaver.from_conn_string(str(file)) as saver:
        graph(saver).invoke({"said": "hello"}, thread())  # type: ignore[arg-type]
    with sqlite3.connect(file) as damage:
        for kind, data in attacks(f"touch {marker}").values():
            damage.execute("UPDATE checkpoints SET type = ?, checkpoint = ?", (kind, data))
    damage.close()
    told = Alcommand(str(path)).json("import", "--from", "langgraph", file)
    assert told["imported"] == 1
    assert [(each["kind"], each["count"]) for each in told["not_mapped"]] == [("checkpoint", 3)]
    assert not marker.exists()
