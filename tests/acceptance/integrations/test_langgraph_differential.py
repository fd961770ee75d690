"""Random operations on AlcoveStore and on LangGraph's own store in memory: the same answers.

`ALCOVE_SEED=17 pytest …` does again what a failure with the seed 17 did.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchItem,
    SearchOp,
)

from alcove import Alcove
from alcove.integrations.langgraph import AlcoveStore
from tests.support.langgraph_stores import (
    OWN,
    Awaited,
    Deployment,
    Reference,
    at_a_url,
    in_a_file,
    serving_with_keys,
)
from tests.support.store_inspection import assert_sound
from tests.support.waiting import LONG

SEED = int(os.environ.get("ALCOVE_SEED", "1"))
ON_A_FILE = 50_000 if LONG else 5_000
"""For each way to index."""
AT_A_URL = 8_000 if LONG else 800
AWAITED = 3_000 if LONG else 300
FIELDS = {"some": ["text", "meta.title", "tags[*]"], "all": ["$"]}
EVERYTHING = 10**6

Labels = tuple[str, ...]
Spot = tuple[Labels, str]

LABELS = [
    "a",
    "b",
    "users",
    "memories",
    "Zoë",
    "東京",
    "🍵",
    "a:b",
    "50%",
    "%3A",
    "*",
    "x y",
    "\x01",
    "A",
    "ß",
]
KEYS = ["k", "K", "k2", "ü", "a:b", "../x", "🍵", "a.b", "k\0", "%2F", "with space"]
WORDS = ["tea", "rain", "Rome", "violin", "garden", "über", "naïve", "東京", "snow", "lamp", "7", "not"]
NUMBERS = [0, 1, -1, 2, 7, 1.0, 2.5, -0.75, True, False, 1e-300, 1e300, 2**53, 2**62, -(2**63), "12", "1e3"]
"""What bounds compare. Its own store compares as floats: of large integers only those that are floats."""
BOUNDS = [*NUMBERS, math.inf, -math.inf, 2**64, -(2**70), 10**30]
SCALARS: list[Any] = [None, True, False, 0, 1, 1.0, 2, 2.5, -3, "1", "true", "a", "Ü", 2**53 + 1, 2**63 - 1]
OPERATORS = ["$gt", "$gte", "$lt", "$lte"]


@pytest.fixture(scope="module")
def at_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with serving_with_keys(tmp_path_factory.mktemp("served")) as running, at_a_url(*running) as deployment:
        yield deployment


@pytest.mark.parametrize("fields", FIELDS)
def test_a_file_answers_as_the_store_in_memory_does(path: Path, fields: str) -> None:
    with in_a_file(path) as deployment:
        ours = AlcoveStore(deployment.trusted, index=FIELDS[fields], root=OWN)
        Comparison(ours, FIELDS[fields], ON_A_FILE).run()
        assert isinstance(deployment.trusted, Alcove)
        assert_sound(deployment.trusted)


@pytest.mark.parametrize("fields", FIELDS)
def test_a_url_answers_as_the_store_in_memory_does(at_url: Deployment, fields: str) -> None:
    ours = AlcoveStore(at_url.handle(at_url.new_user()), index=FIELDS[fields], root=OWN)
    Comparison(ours, FIELDS[fields], AT_A_URL // 2).run()


@pytest.mark.parametrize("kind", ["file", "url"])
def test_what_is_awaited_is_answered_as_the_store_in_memory_does(
    request: pytest.FixtureRequest, path: Path, kind: str
) -> None:
    fields = FIELDS["some"]
    with asyncio.Runner() as runner, in_a_file(path) as in_file:
        deployment: Deployment = in_file if kind == "file" else request.getfixturevalue("at_url")
        ours = AlcoveStore(deployment.handle(deployment.new_user()), index=fields, root=OWN)
        try:
            Comparison(Awaited(ours, runner), fields, AWAITED).run()
        finally:
            runner.run(ours.aclose())


class Comparison:
    """Does the same to both stores, and compares every answer."""

    def __init__(self, ours: BaseStore, fields: list[str], operations: int) -> None:
        self.ours, self.theirs = ours, Reference(fields)
        self.operations = operations
        self.chance = random.Random(f"{SEED} {fields}")
        few = operations < 1000  # in many places, a short run would hardly find anything
        self.keys = KEYS[:5] if few else KEYS
        depths = [1, 2, 10] if few else [1, 2, 2, 3, 4, 10] * 3
        self.places = [tuple(self.chance.choices(LABELS, k=depth)) for depth in depths]
        self.places += [
            place[: self.chance.randint(1, len(place))] for place in self.places if len(place) > 2
        ]
        self.spots: list[Spot] = []
        """Where operations are to be, if not anywhere."""
        self.written: list[dict[str, Any]] = [{}]
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        weighted: dict[Callable[[], Op], int] = {
            self.put: 30,
            self.get: 18,
            self.delete: 8,
            self.search: 22,
            self.namespaces: 7,
        }
        done = 0
        while done < self.operations:
            single = self.chance.random() < 0.7
            count = 1 if single else self.chance.randint(2, 8)
            self.spots = []
            if not single and self.chance.random() < 0.5:  # in which the same key is there several times
                self.spots = [self.spot(), self.spot()]
            ops = [each() for each in self.chance.choices([*weighted], [*weighted.values()], k=count)]
            try:
                self.alone(ops[0]) if single else self.together(ops)
            except BaseException as error:
                error.add_note(f"ALCOVE_SEED={SEED}, after {done} operations, with {ops}")
                raise
            done += count
        whole = SearchOp((), limit=EVERYTHING)
        self.check(whole, self.ours.batch([whole])[0], self.theirs.batch([whole])[0])
        self.check_that_enough_was_seen()

    # What is done

    def alone(self, op: Op) -> None:
        """By the method that it has."""
        try:
            (theirs,) = self.theirs.batch([_whole(op)])
        except (TypeError, ValueError, OverflowError):
            # It raises where it compares a bound with what is no number; ours finds that it does not fit.
            self.seen["raises"] += 1
            theirs = None
        ours: Any = None
        match op:
            case GetOp():
                ours = self.ours.get(op.namespace, op.key)
            case SearchOp():
                how = {"query": op.query, "filter": op.filter, "limit": op.limit, "offset": op.offset}
                ours = self.ours.search(op.namespace_prefix, **how)  # type: ignore[arg-type]
                if theirs is None:
                    return
            case ListNamespacesOp():
                ours = self.ours.batch([op])[0]
                by_type = {each.match_type: each.path for each in op.match_conditions or ()}
                if len(by_type) == len(op.match_conditions or ()):
                    named = {"max_depth": op.max_depth, "limit": op.limit, "offset": op.offset}
                    assert self.ours.list_namespaces(**by_type, **named) == ours  # type: ignore[arg-type]
            case PutOp(value=None):
                self.ours.delete(op.namespace, op.key)
            case PutOp():
                self.ours.put(op.namespace, op.key, op.value, op.index)  # type: ignore[arg-type]
        self.check(op, ours, theirs)

    def together(self, ops: Sequence[Op]) -> None:
        """In one batch, of which nothing is done at all where theirs raises."""
        try:
            theirs = self.theirs.batch(map(_whole, ops))
        except (TypeError, ValueError, OverflowError):
            return
        self.seen["batches"] += 1
        for op, mine, other in zip(ops, self.ours.batch(ops), theirs, strict=True):
            self.check(op, mine, other)

    # Whether it is answered alike

    def check(self, op: Op, ours: Any, theirs: Any) -> None:
        self.seen[type(op).__name__] += 1
        match op:
            case GetOp():
                assert (ours is None) is (theirs is None)
                if ours:
                    self.seen["got"] += 1
                    assert _shown(ours) == _shown(theirs)
                    assert ours.created_at <= ours.updated_at
            case SearchOp():
                self.check_search(op, ours, theirs)
            case _:
                assert ours == theirs

    def check_search(self, op: SearchOp, ours: list[SearchItem], theirs: list[SearchItem]) -> None:
        """`theirs` is everything that fits.

        Its pages are no measure: without a query it has items in the order of their insertion, and with one
        it gives those without a score again on each page.
        """
        by_spot = {_spot(each): each for each in theirs}
        assert len(by_spot) == len(theirs)
        assert by_spot.keys() >= {*map(_spot, ours)}
        for each in ours:
            assert _shown(each) == _shown(by_spot[_spot(each)])
        scores = sorted((each.score for each in theirs if each.score is not None), reverse=True)
        unscored = sorted(_spot(each) for each in theirs if each.score is None)
        page = slice(op.offset, op.offset + op.limit)
        wanted: list[Any] = [*scores, *([None] * len(unscored))][page]
        assert [each.score for each in ours] == [_near(score) for score in wanted]
        for each in ours:
            assert each.score == _near(by_spot[_spot(each)].score)
        assert len({_spot(each) for each in ours}) == len(ours)
        last = slice(max(0, op.offset - len(scores)), max(0, op.offset + op.limit - len(scores)))
        assert [_spot(each) for each in ours if each.score is None] == unscored[last]
        self.seen["found"] += bool(ours)
        self.seen["scored"] += any(each.score is not None for each in ours)
        self.seen["filtered"] += bool(op.filter and ours)
        self.seen["paged"] += bool(op.offset and ours)

    def check_that_enough_was_seen(self) -> None:
        for what in ("got", "found", "scored", "filtered", "paged", "batches"):
            assert self.seen[what] > self.operations / 100, (what, self.seen)
        assert self.seen["raises"] < self.operations / 20, self.seen

    # What operations there are

    def put(self) -> PutOp:
        value = self.value()
        self.written = [*self.written[-50:], value]
        index: Literal[False] | list[str] | None = None
        if self.chance.random() < 0.3:
            paths = ["text", "meta.title", "tags[*]", "tags[-1]", "meta", "{text,n}", "n", "absent", "*"]
            index = self.chance.choice([False, self.chance.sample(paths, self.chance.randint(0, 3))])
        return PutOp(*self.spot(), value, index)

    def get(self) -> GetOp:
        return GetOp(*self.spot())

    def delete(self) -> PutOp:
        return PutOp(*self.spot(), None)

    def search(self) -> SearchOp:
        place = self.chance.choice(self.places)
        prefix = place[: self.chance.choice([0, 0, 1, 1, 2, 3, 10])]
        filter = {name: self.condition(name) for name in self.some(["n", "x", "text", "meta", "tags", "no"])}
        return SearchOp(
            prefix,
            filter or None,
            self.chance.choice([0, 1, 2, 5, 10, 10, 10, 100, 150, EVERYTHING]),
            self.chance.choice([0, 0, 0, 0, 1, 3, 20, 100]),
            self.chance.choice([None, None, "", self.phrase(), self.phrase()]),
        )

    def namespaces(self) -> ListNamespacesOp:
        conditions = []
        for _ in range(self.chance.choice([0, 1, 1, 2, 3])):
            place = self.chance.choice(self.places)
            place = tuple("*" if self.chance.random() < 0.3 else label for label in place)
            size = self.chance.randint(1, len(place))
            kind: Literal["prefix", "suffix"] = self.chance.choice(["prefix", "suffix"])
            conditions.append(MatchCondition(kind, place[:size] if kind == "prefix" else place[-size:]))
        depth = self.chance.choice([None, None, 1, 2, 3, 20])
        limit, offset = self.chance.choice([1, 3, 100, EVERYTHING]), self.chance.choice([0, 0, 1, 5])
        return ListNamespacesOp(tuple(conditions) or None, depth, limit, offset)

    # Of what they are made

    def spot(self) -> Spot:
        if self.spots:
            return self.chance.choice(self.spots)
        return self.chance.choice(self.places), self.chance.choice(self.keys)

    def some(self, names: Sequence[str]) -> list[str]:
        return self.chance.sample(names, self.chance.choice([0, 0, 0, 1, 1, 2]))

    def phrase(self) -> str:
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(1, 8)))

    def value(self) -> dict[str, Any]:
        """It always has the number `n`, so that bounds can be compared with it."""
        value: dict[str, Any] = {"n": self.chance.choice(NUMBERS)}
        for name, share in (("text", 0.8), ("meta", 0.4), ("tags", 0.3), ("x", 0.7)):
            if self.chance.random() < share:
                value[name] = self.part(name)
        return value

    def part(self, name: str) -> Any:
        if name == "text":
            return self.chance.choice([self.phrase(), self.phrase(), self.phrase(), None, 7])
        if name == "meta":
            return {"title": self.phrase(), "x": self.anything(), "deep": {"a": self.chance.choice(SCALARS)}}
        if name == "tags":
            return [self.phrase() for _ in range(self.chance.randint(0, 3))]
        return self.anything()

    def anything(self) -> Any:
        few = [self.chance.choice(SCALARS) for _ in range(self.chance.randint(0, 2))]
        return self.chance.choice([*self.chance.choices(SCALARS, k=4), few, {"a": few}, [{"a": 1, "b": few}]])

    def condition(self, name: str) -> Any:
        """Half of them are of what some item holds, or held."""
        held = self.chance.choice(self.written).get(name) if self.chance.random() < 0.5 else self.part(name)
        kind = self.chance.randint(0, 9)
        if name == "n" and kind < 6:
            signs = self.chance.sample(OPERATORS, self.chance.choice([1, 1, 2]))
            return {sign: self.chance.choice(BOUNDS) for sign in signs}
        if name == "meta" and kind < 6:
            return self.chance.choice(
                [
                    {"x": self.anything()},
                    {"deep": {"a": self.chance.choice(SCALARS)}},
                    {"deep": {"a": {"$ne": None}}},
                    {"deep": {}},
                    {"absent": None},
                ]
            )
        if kind < 8:
            return {self.chance.choice(["$eq", "$ne"]): held}
        if kind == 8:
            return {self.chance.choice(OPERATORS): self.chance.choice(BOUNDS)}
        return held


def _whole(op: Op) -> Op:
    """A search for everything that fits, of which a page can be told."""
    return op._replace(limit=EVERYTHING, offset=0) if isinstance(op, SearchOp) else op


def _spot(item: Item) -> Spot:
    return item.namespace, item.key


def _shown(item: Item) -> tuple[Spot, str]:
    """Where it is and what it holds, in words: in Python, 1 is True and 1.0."""
    return _spot(item), json.dumps(item.value, sort_keys=True)


def _near(score: float | None) -> Any:
    return None if score is None else pytest.approx(score, abs=1e-4)
