"""A time fuzzer: what requests cost the server, measured against their size.

Each request is made in three sizes, the largest near its limit, out of texts that are hard on parsers:
one endless word, brackets, dates, characters that grow when they are normalised. What is measured is the
processor time of the server's threads, so that a busy machine changes little. A cost that grows faster than
the size, or that is too large for it, is reported with the text that shows it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.support.inspection import processor_seconds
from tests.support.patience import LONG
from tests.support.players import SPECS, Table
from tests.support.service import serving
from tests.support.tokens import FLAGS

STEP = 4
"""Each size is so many times the one before."""
FASTER = 2.2
"""A cost may grow by so much more than the size; where it goes with the square, that is 4."""
NOTICED = 0.06
"""Seconds below which growth is not looked at: other work of the server is of that order."""
SECONDS_A_MIB, ANYHOW = 1.2, 0.3
"""What a request may cost: so much for each MiB of it, and so much whatever its size."""
ROUNDS = 60 if LONG else 2

ATOMS = [
    "a", "e", "y", "ya", "ab", "ing", "[", "]", "(", "*", "?", "**", "%", ":", "\n", "\0", "\x01", " ", "\\",
    '"', "_", "-", ".", "$", "é", "e\u0301", "\ufdfa", "東", "ไ", "\U0001f642", "0", "9", "12 of may ",
    "in may ", "last ", "a week ", "Ann: ", "u:", "recent ", "2020-01-", "{", "}", "</", "#", "|", ",",
]  # fmt: skip
ENDS = ["", "", "ing", "ed", "e", "ational", "ness", "ies", "!", "]", ")", "$", "\n"]
"""What comes after all the others, and shows to a matcher that it has to go back over them."""
WORST = [
    ("a", ""), ("e", ""), ("a", "ing"), ("y", "ness"), ("[", ""), ("ab", ""), ("\ufdfa", ""), ("e\u0301", ""),
    ("12 of may ", ""), (" a", "!"), ("[a", "]"), ("\n", "x"), ("東", ""), ("\\", ""),
]  # fmt: skip
"""What is repeated, and how it ends: texts that are tried in every run. Others are put together by chance."""

Shape = Callable[[int], str]
"""A text of about so many bytes."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: object = None
    headers: dict[str, str] | None = None
    params: dict[str, str] | None = None


Make = Callable[[Shape, int], list[Request]]
"""What is sent, with a text of some size in it; only the last request is measured."""
USER = "mallory"
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


def filed(shape: Shape, size: int) -> list[Request]:
    return [
        tool("shared_memory_write", key="ab" * 500, value=1, namespace="agent"),
        tool("shared_memory_list", namespace="agent", pattern=shape(size)),
    ]


KIB, MIB, BODY = 1 << 10, 1 << 20, 3 << 20
REQUESTS: dict[str, tuple[int, int, Make]] = {
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
        BODY, 413, lambda text, size: [put(fresh(), {text(size // 2): [1] * (size // 4)})],
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
    "shared_memory_list": (BODY, 400, filed),
}  # fmt: skip
SMALL_TEXTS = {"filter conditions", "memory_remember tags", "nesting", "segments", "batch"}
"""Requests that are many small texts, or one that nobody looks into: a few texts show what they cost."""


def shapes(chance: random.Random, *, few: bool) -> Iterator[tuple[str, Shape]]:
    """The worst ones known, and some that chance puts together; or a few of both."""
    found = [("".join(chance.choices(ATOMS, k=chance.choice([1, 2, 2, 3]))), chance.choice(ENDS))
             for _ in range(2 if few else ROUNDS)]  # fmt: skip
    for text, end in (WORST[::3] if few else WORST) + found:
        yield f"{text!a} and {end!a}", partial(repeated, text, end)


def repeated(text: str, end: str, size: int) -> str:
    return text * max(1, (size - len(end)) // len(text.encode())) + end


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    folder = tmp_path_factory.mktemp("cost")
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", specs, "--embedder", "none") as running:
        yield Table(running, specs)


class Fuzzer:
    """Sends requests and says what they cost."""

    def __init__(self, table: Table) -> None:
        self._mallory = table.known(USER)
        self._pid = table.service.process.pid

    def cost(self, make: Make, shape: Shape, size: int) -> tuple[float, int]:
        """The processor time of the last of some requests, and its status."""
        *before, last = make(shape, size)
        for each in before:
            self._send(each)
        started = processor_seconds(self._pid)
        status = self._send(last)
        return processor_seconds(self._pid) - started, status

    def _send(self, request: Request) -> int:
        more: dict[str, Any] = {"headers": request.headers or {}, "params": request.params}
        if request.body is not None:
            more["content"] = msgspec.json.encode(request.body)
            more["headers"] = {**more["headers"], "content-type": "application/json"}
        answer = self._mallory.ask(request.method, request.path, **more)
        assert answer.status_code < 500, (answer.status_code, answer.text[:300])
        if answer.status_code >= 400:
            assert len(answer.content) < 4 * KIB, f"a refusal of {len(answer.content)} bytes"
        return answer.status_code

    def complaint(self, make: Make, shape: Shape, largest: int) -> str | None:
        """What is wrong with the cost of a request, if it is so again and again."""
        told = None
        sizes = [largest // STEP**2, largest // STEP, largest]
        for _ in range(3):
            told = _judged(sizes, [self.cost(make, shape, size) for size in sizes])
            if told is None:
                break
        return told


def _judged(sizes: list[int], measured: list[tuple[float, int]]) -> str | None:
    costs = " → ".join(
        f"{cost:.3f} s for {size >> 10} KiB ({status})"
        for size, (cost, status) in zip(sizes, measured, strict=True)
    )
    for size, (cost, _) in zip(sizes, measured, strict=True):
        if cost > ANYHOW + SECONDS_A_MIB * size / MIB:
            return f"too much: {costs}"
    for (less, status), (more, same) in itertools.pairwise(measured):
        if status == same and more > NOTICED and more > STEP * FASTER * max(less, NOTICED / STEP):
            return f"faster than its size: {costs}"
    return None


@pytest.mark.parametrize("what", REQUESTS)
def test_no_request_costs_more_than_its_size_warrants(table: Table, what: str) -> None:
    fuzzer, (largest, status, make) = Fuzzer(table), REQUESTS[what]
    assert fuzzer.cost(make, plain, largest)[1] == status, "it is measured at what it is meant to do"
    chance = random.Random(None if LONG else what)
    tried = shapes(chance, few=what in SMALL_TEXTS and not LONG)
    told = {name: fuzzer.complaint(make, shape, largest) for name, shape in tried}
    assert {name: complaint for name, complaint in told.items() if complaint} == {}


def plain(size: int) -> str:
    return ("tea and rain " * (size // 13 + 1))[:size]


def test_the_fuzzer_notices_what_grows_with_the_square_of_its_size() -> None:
    sizes = [1000, 4000, 16_000]
    assert _judged(sizes, [(0.01 * 4**n, 200) for n in range(3)]) is None
    assert "faster than its size" in str(_judged(sizes[:2], [(0.01 * 16**n, 200) for n in range(2)]))
    assert "too much" in str(_judged(sizes, [(9.0, 200)] * 3))
