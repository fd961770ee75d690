"""What requests about memories cost, measured against their size: see `tests/support/time_fuzzer.py`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest

from tests.support.agent_service import SPECS, Table
from tests.support.service import serving
from tests.support.time_fuzzer import (
    FEW,
    KIB,
    MIB,
    ONE,
    USER,
    WORST,
    Entry,
    Fuzzer,
    Request,
    Shape,
    judged,
)  # fmt: skip
from tests.support.tokens import FLAGS
from tests.support.waiting import LONG

count = itertools.count()


def put(room: str, value: object, index: dict[str, str] | None = None, key: str = "k") -> Request:
    body = {"namespace": ["user", USER, room], "key": key, "value": value, "index": index or {}}
    return Request("PUT", "/v1/memories", body)


def search(*room: str, **more: object) -> Request:
    return Request("POST", "/v1/memories/search", {"namespace_prefix": ["user", USER, *room], **more})


def tool(name: str, **arguments: object) -> Request:
    return Request("POST", f"/v1/agents/bot/tools/{name}", {"arguments": arguments})


def fresh() -> str:
    return f"room{next(count)}"


def fields(shape: Shape, size: int) -> dict[str, str]:
    """Index texts of some size together, each as long as one may be."""
    whole = 60_000
    return {f"f{n}": shape(min(whole, size - n * whole)) for n in range(-(-size // whole))}


def nested(depth: int) -> object:
    return {"a": nested(depth - 1)} if depth else 1


def first_search(shape: Shape, size: int) -> list[Request]:
    room = fresh()
    return [put(room, {}, fields(shape, size)), search(room, query="tea", mode="keyword")]


def filtered(shape: Shape, size: int) -> list[Request]:
    """Many conditions on large values, none of which the store can decide without opening them."""
    room = fresh()
    value = {"parts": [{"text": shape(1)}] * (size // 40), "numbers": [{"n": 1}] * (size // 16)}
    puts = [put(room, value, {"t": "tea"}, key=f"k{n}") for n in range(4)]
    return [*puts, search(room, filter={f"absent{n}": None for n in range(60)})]


def chosen(shape: Shape, size: int) -> list[Request]:
    """Many choices, of which a long array has none."""
    room = fresh()
    value = {"words": [f"{shape(6)}{n}" for n in range(size // 40)]}
    return [put(room, value, {"t": "tea"}), search(room, filter={"words": {"in": [*map(str, range(1000))]}})]


def batch(shape: Shape, size: int) -> list[Request]:
    put = {"op": "put", "namespace": ["user", USER, fresh()], "value": {"t": shape(64)}}
    operations = [{**put, "key": f"k{n}"} for n in range(1 + size // 400)]
    return [Request("POST", "/v1/memories/batch", {"operations": operations})]


def raw(value: bytes, body: bytes = b"", path: str = "/v1/memories") -> Request:
    """A request whose JSON is spelled here."""
    body = body or b'{"namespace": ["user", "%b"], "key": "k", "value": %%b}' % USER.encode()
    return Request("POST" if path.endswith("search") else "PUT", path, body % value)


def imported(values: list[object]) -> Request:
    room = fresh()
    lines = [
        msgspec.json.encode({"namespace": ["user", USER, room], "key": f"k{n}", "value": value})
        for n, value in enumerate(values)
    ]
    headers = {"content-type": "application/x-ndjson"}
    return Request("POST", "/v1/memories/import", b"\n".join(lines), headers)


def filed(shape: Shape, size: int) -> list[Request]:
    return [
        tool("shared_memory_write", key="ab" * 500, value=1, namespace="agent"),
        tool("shared_memory_list", namespace="agent", pattern=shape(size)),
    ]


BODY = (3 if LONG else 1) * MIB
REQUESTS: dict[str, Entry] = {
    # what varies: how large it may become, the status of a small one, and what is sent
    "value": (MIB - KIB, 200, lambda text, size: [put(fresh(), {"text": text(size)})]),
    "field name": (MIB - KIB, 200, lambda text, size: [put(fresh(), {text(size): 1})]),
    "field names": (
        MIB, 200, lambda text, size: [put(fresh(), {f"{text(20)}{n}": n for n in range(size // 40)})],
    ),
    "field name of many": (
        MIB - KIB, 200, lambda text, size: [put(fresh(), {text(size // 2): [1] * (size // 4)})],
    ),
    "field name of too many": (
        3 * MIB, 413, lambda text, size: [put(fresh(), {text(size // 2): [1] * (size // 4)})],
    ),
    "nesting": (
        MIB, 200, lambda text, size: [put(fresh(), {"a": [[text(4)]] * (size // 10), "b": nested(60)})],
    ),
    "index": (BODY, 200, lambda text, size: [put(fresh(), {}, fields(text, size))]),
    "key": (BODY, 400, lambda text, size: [put(fresh(), {}, key=text(size))]),
    "first search": (BODY, 200, first_search),
    "query": (64 * KIB, 200, lambda text, size: [
        put("some", {}, {"t": "tea"}), search("some", query=text(size), mode="keyword")]),
    "long query": (BODY, 400, lambda text, size: [search("some", query=text(size))]),
    "filter value": (BODY, 200, lambda text, size: [search("none", filter={"a": text(size)})]),
    "filter field": (BODY, 400, lambda text, size: [search("none", filter={text(size): 1})]),
    "filter list": (
        BODY, 400, lambda text, size: [search("none", filter={"a": {"in": [text(8)] * (size // 12)}})],
    ),
    "filter conditions": (MIB - KIB, 200, filtered),
    "filter choices": (MIB - KIB, 200, chosen),
    "moment": (BODY, 400, lambda text, size: [search("none", as_of=text(size))]),
    "namespace": (BODY, 400, lambda text, size: [search(text(size))]),
    "segments": (BODY, 400, lambda text, size: [search(*[text(6)] * (size // 9))]),
    "unknown field": (BODY, 400, lambda text, size: [search("none", **{f"x{text(size)}": 1})]),
    "parameter": (24_000, 400, lambda text, size: [
        Request("GET", "/v1/memories/events", params={"prefix": text(size // 4), "after_cursor": "x"})]),
    "idempotency key": (6_000, 400, lambda text, size: [
        Request("PUT", "/v1/memories", put(fresh(), {}).body, headers={"idempotency-key": "k" * size})]),
    "batch": (399_000, 200, batch),
    "remember": (64 * KIB, 200, lambda text, size: [tool("remember", key="k", content=text(size))]),
    "search_memory": (64 * KIB, 200, lambda text, size: [tool("search_memory", query=text(size))]),
    "learn_fact": (64 * KIB, 200, lambda text, size: [tool("learn_fact", content=text(size))]),
    "memory_remember": (
        64 * KIB, 200, lambda text, size: [tool("memory_remember", content=text(size), tags=["t"])],
    ),
    "memory_remember tags": (
        BODY, 400, lambda text, size: [
            tool("memory_remember", content="c", tags=[f"{text(6)}{n}" for n in range(size // 14)])],
    ),
    "memory_remember too long": (
        BODY, 400, lambda text, size: [tool("memory_remember", content=text(size))],
    ),
    "memory_recall": (64 * KIB, 200, lambda text, size: [
        tool("memory_remember", content="tea"), tool("memory_recall", query=text(size), tags=["t"])]),
    "recall_facts": (64 * KIB, 200, lambda text, size: [
        tool("learn_fact", content="tea"), tool("recall_facts", query=text(size))]),
    "first search of a pool": (64 * KIB, 200, lambda text, size: [
        tool("share_to", pool="org:docs", key="k", content=text(size)),
        tool("search_pool", pool="org:docs", query="tea")]),
    "list of a pool": (64 * KIB, 200, lambda text, size: [
        tool("share_to", pool="org:docs", key="k", content=text(size)), tool("list_pool", pool="org:docs")]),
    "shared_memory_read": (MIB - KIB, 200, lambda text, size: [
        tool("shared_memory_write", key="k", value={text(99): text(size)}, namespace="agent"),
        tool("shared_memory_read", key="k", namespace="agent")]),
    "shared_memory_list": (BODY, 400, filed),
    "unknown argument": (BODY, 404, lambda text, size: [
        tool("recall", **{"key": "absent", f"x{text(size)}": text(9)})]),
    "number": (BODY, 400, lambda text, size: [raw(b'{"n": %b}' % (b"7" * size))]),
    "number in a filter": (BODY, 400, lambda text, size: [
        raw(b"7" * size, b'{"namespace_prefix": ["user"], "filter": {"n": %b}}', "/v1/memories/search")]),
    "exponent": (BODY, 400, lambda text, size: [raw(b'{"n": 1e%b}' % (b"9" * size))]),
    "fraction": (BODY, 200, lambda text, size: [raw(b'{"n": 0.%b}' % (b"7" * size))]),
    "depth": (BODY, 400, lambda text, size: [raw(b'{"n": %b}' % (b"[" * size))]),
    "depth of objects": (BODY, 400, lambda text, size: [raw(b'{"a":' * (size // 5))]),
    "width": (MIB - KIB, 200, lambda text, size: [raw(b'{"n": [%b0]}' % (b"0," * (size // 2)))]),
    "line": (BODY, 200, lambda text, size: [imported([{"a": text(size)}])]),
    "lines": (256 * KIB, 200, lambda text, size: [imported([{"a": text(9)}] * (size // 90))]),
    "list": (BODY, 200, lambda text, size: [
        Request("POST", "/v1/memories/list",
                {"namespace_prefix": ["user", USER, "none"], "filter": {"a": {"in": [text(size)]}}})]),
    "touch": (BODY, 400, lambda text, size: [
        Request("POST", "/v1/memories/touch", {"namespace": ["user", USER], "key": text(size)})]),
}  # fmt: skip
NUMBERS = {
    "number", "exponent", "number in a filter", "fraction", "depth", "depth of objects", "width",
    "idempotency key",
}  # fmt: skip
"""Requests that have no text."""
SMALL_TEXTS = {
    "filter conditions", "memory_remember tags", "nesting", "segments", "batch", "lines", "field names",
    "field name of too many", "filter choices", "filter list", "unknown field", "moment", "key", "touch",
}  # fmt: skip
"""Requests that are many small texts, or one that nobody looks into: a few texts show what they cost."""
TEXTS = dict.fromkeys(SMALL_TEXTS, FEW) | dict.fromkeys(NUMBERS, ONE)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    folder = tmp_path_factory.mktemp("cost")
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", specs, "--embedder", "none") as running:
        yield Table(running, specs)


@pytest.mark.parametrize("what", REQUESTS)
def test_no_request_costs_more_than_its_size_warrants(table: Table, what: str) -> None:
    Fuzzer(table).check(what, REQUESTS[what], TEXTS.get(what, len(WORST)))


def test_the_fuzzer_notices_what_grows_with_the_square_of_its_size() -> None:
    sizes = [1000, 4000, 16_000]
    assert judged(sizes, [(0.01 * 4**n, 200) for n in range(3)]) is None
    assert "faster than its size" in str(judged(sizes[:2], [(0.01 * 16**n, 200) for n in range(2)]))
    assert "too much" in str(judged(sizes, [(9.0, 200)] * 3))
