"""Search by meaning and words: as a model finds it that looks at everything, through whatever happens."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Hashable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alcove import Alcove, Grant, Namespace, NotFound, Principal
from alcove.core.records import SearchMode
from alcove.search.corpus import Corpus, Item, JoinedCorpus
from alcove.search.embedders import embed_query
from alcove.search.hybrid_search import MAX_PAST_WINDOWS
from alcove.search.query import ParsedQuery
from alcove.search.ranking import rank
from alcove.search.words import term_counts
from tests.contract.conftest import ENGINES, Open
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag
from tests.support.reference_store import Model, Place, Refused, Version, owner
from tests.support.waiting import LONG, until

USERS = ["alice", "bob", "al"]
GRANTS: dict[str, list[tuple[str, ...]]] = {
    "alice": [("org", "docs"), ("team", "x")],
    "bob": [("org", "docs")],
}
ROOMS: list[tuple[str, ...]] = [
    ("org", "docs"),
    ("org", "docs", "deep"),
    ("team", "x"),
    *(("user", user) for user in USERS),
    ("user", "alice", "notes"),
    ("org", "docs", "u", "alice"),  # private rooms inside a shared one
    ("org", "docs", "u", "bob"),
]
WORDS = ["tea", "coffee", "rain", "Rome", "bicycle", "violin", "Ann", "Bob", "garden", "yesterday", "blue"]
FILTERS: list[dict[str, object] | None] = [
    None, None, None, {"n": 1}, {"n": {"gte": 1}}, {"topic": "a"}, {"namespace": "user"},
    {"topic": {"$ne": "a"}, "n": 0},
]  # fmt: skip
MODES: list[SearchMode] = ["hybrid", "semantic", "keyword"]
BULK = 80
OPERATIONS, EXAMPLES = (1000, 40) if LONG else (150, 3)


def fits(version: Version, filter: Mapping[str, object] | None) -> bool:
    """The few filters above, spelled out."""
    value = version.value or {}
    index: dict[str, str] = value["index"]  # type: ignore[assignment]
    n, topic = int(str(value["n"])), index.get("topic")
    match filter:
        case {"topic": {"$ne": _}}:
            return topic != "a" and n == 0
        case {"n": {"gte": _}}:
            return n >= 1
        case {"n": _}:
            return n == 1
        case {"topic": _}:
            return topic == "a"
        case {"namespace": _}:
            return version.ns[0] == "user"
    return True


def item(version: Version, embedder: Bag) -> Item:
    fields: dict[str, str] = (version.value or {})["index"]  # type: ignore[assignment]
    vectors = {name: embedder.embed(embedder.windows(text)) for name, text in fields.items()}
    place = (version.ns, version.key)
    return Item(id=place, namespace=version.ns, sequence=version.seq, fields=fields, vectors=vectors,
                written_at=version.at / 1e6)  # fmt: skip


class Recalling:
    """Does the same to two handles on one store and to the model, and searches in both."""

    def __init__(self, open_store: Open, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock, self.embedder = ManualClock(), Bag()
        self.model = Model(grants=GRANTS)
        self.moments = [self.clock.now]
        self.many = False
        self.stores = [open_store(clock=self.clock, embedder=self.embedder) for _ in range(2)]

    def run(self, operations: int) -> None:
        weighted = {self.put: 12, self.delete: 3, self.touch: 4, self.pass_time: 4, self.search: 12}
        for n in range(operations):
            if n == operations // 2:
                self.write_many()
            (operation,) = self.chance.choices(list(weighted), weights=list(weighted.values()))
            operation()
        assert [each for each in self.stores[0].doctor() if each.wrong] == []

    def handle(self, user: str) -> Alcove:
        """One handle and then the other."""
        self.stores.reverse()
        grants = tuple(Grant(Namespace(room)) for room in GRANTS.get(user, []))
        return self.stores[0].as_principal(Principal(user, grants=grants))

    def place(self) -> tuple[str, Place, int]:
        """Somebody, where they may write, and the moment at which they do."""
        user = self.chance.choice(USERS)
        room = self.chance.choice([room for room in ROOMS if self.model.allowed(user, room)])
        self.clock.advance(0.01)
        self.moments.append(self.clock.now)
        return user, (room, f"k{self.chance.randrange(6)}"), self.clock.now

    def text(self) -> str:
        return " ".join(self.chance.choices(WORDS, k=self.chance.choice([1, 3, 20])))

    def put(self) -> None:
        user, place, now = self.place()
        index = {"text": self.text(), "topic": self.chance.choice("ab")}
        value: dict[str, object] = {"n": self.chance.randrange(3), "index": index}
        ttl = self.chance.choice([None, None, 1, 30])
        self.model.put(user, place, value, ttl, None, now)
        self.handle(user).put(*place, value, index=index, ttl_seconds=ttl)

    def delete(self) -> None:
        user, place, now = self.place()
        self.model.delete(user, place, None, now)
        self.handle(user).delete(*place)

    def touch(self) -> None:
        user, place, now = self.place()
        ttl = self.chance.choice([None, 1, 5])
        with suppress(Refused):
            self.model.touch(user, place, ttl, now)
            self.handle(user).touch(*place, ttl_seconds=ttl)

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice([0.5, 2, 20]))
        user, _, now = self.place()
        match self.chance.randrange(8):
            case 0:
                self.model.wipe(user, now)
                with suppress(NotFound):
                    self.stores[0].wipe(user, wait=False)
            case 1 | 2:
                assert self.stores[0].sweep().expired == self.model.sweep(now)

    def write_many(self) -> None:
        """So many that a change is added to what is in memory, rather than all built anew."""
        self.many, (_, _, now), operations = True, self.place(), []
        for n in range(BULK):
            place = ("org", "docs"), f"many-{n}"
            index = {"text": f"{self.text()} {WORDS[n % len(WORDS)]}", "topic": "ab"[n % 2]}
            value: dict[str, object] = {"n": n % 3, "index": index}
            self.model.put("bob", place, value, None, None, now)
            where = {"namespace": place[0], "key": place[1]}
            operations.append({"op": "put", **where, "value": value, "index": index})
        self.handle("bob").batch(operations)

    def search(self) -> None:
        until(lambda: self.stores[0].admin.index().waiting == 0)
        for _ in range(3):
            past = self.chance.random() < 0.2
            self.search_once(
                self.chance.choice(USERS), self.chance.choice([(), ("user",), ("org", "docs"), *ROOMS]),
                self.chance.choice(FILTERS), self.text(), self.chance.choice(MODES),
                self.chance.choice(self.moments[-30:]) if past else None,
                self.chance.choice([0, 0, 3]), self.chance.choice([1, 5, 100]),
            )  # fmt: skip

    def search_once(self, user: str, prefix: tuple[str, ...], filter: dict[str, object] | None, query: str,
                    mode: SearchMode, at: int | None, offset: int, limit: int) -> None:  # fmt: skip
        visible = [version for version in self.versions(user, prefix, at) if fits(version, filter)]
        items = {(v.ns, v.key): item(v, self.embedder) for v in visible}
        as_of = (
            None
            if at is None
            else (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).isoformat()
        )
        found = self.handle(user).search(
            prefix, query=query, mode=mode, filter=filter, limit=limit, offset=offset, as_of=as_of
        )
        windows = sum(len(rows) for each in items.values() for rows in each.vectors.values())
        assert found.degraded is None or (at is not None and windows > MAX_PAST_WINDOWS)
        got = [((m.namespace, m.key), m.score) for m in found]
        asked = embed_query(self.embedder, query)
        cosines = {
            place: max(float(np.max(np.asarray(rows) @ asked)) for rows in each.vectors.values())
            for place, each in items.items()
        }
        assert {place for place, _ in got} <= set(items), "outside of what may be seen or was asked for"
        for memory in found:
            assert memory.value == next(
                v.value for v in visible if (v.ns, v.key) == (memory.namespace, memory.key)
            )
        if found.degraded:
            return  # more of the past than one search embeds: some of it was ranked by words alone
        for place, score in got:
            assert score == pytest.approx(min(1.0, max(0.0, cosines[place])), abs=1e-4)
        if mode == "semantic":
            best = sorted(cosines.values(), reverse=True)[offset : offset + limit]
            assert [cosines[place] for place, _ in got] == pytest.approx(best, abs=1e-4)
            return
        if mode == "keyword":
            terms = set(term_counts(query))
            items = {
                place: each for place, each in items.items()
                if terms & {term for text in each.fields.values() for term in term_counts(text)}
            }  # fmt: skip
        assert len(got) == max(0, min(limit, len(items) - offset))
        if not self.many:
            now = self.versions(user, prefix, at, lapsed=True)
            corpus = self.corpus(now) if at is None else self.whole(visible)
            ranked = self.ranked(corpus, visible, query, mode)
            # By value: equal texts differ in the last bits of a multiplication, and so may change places.
            wanted = [*ranked.values()][offset : offset + limit]
            assert [ranked[place] for place, _ in got] == pytest.approx(wanted, abs=1e-4)

    def versions(
        self, user: str, prefix: tuple[str, ...], at: int | None, *, lapsed: bool = False
    ) -> list[Version]:
        """What a search has to look at; with `lapsed`, also what has expired and was not swept yet."""
        now = self.clock.now
        if at is None:
            seen = {(v.ns, v.key) for v in self.model.log if self.model.visible(user, prefix, v.ns)}
            last = [v for place in seen if (v := self.model.last(place)) and v.content]
            return sorted(
                (v for v in last if lapsed or v.expires is None or v.expires > now), key=lambda v: v.seq
            )
        found = self.model.search(user, prefix, now, at)
        return [[v for v in self.model.log if (v.ns, v.key) == place and v.at <= at][-1] for place in found]

    def ranked(
        self, corpus: Corpus | JoinedCorpus, visible: list[Version], query: str, mode: SearchMode
    ) -> dict[Hashable, float]:
        """The order and the values of what is visible in a corpus, which has only what the caller may see."""
        shown = {(v.ns, v.key) for v in visible}
        mask = np.array([id in shown for id in corpus.columns.id], dtype=bool)
        question = ParsedQuery.of(query, embed_query(self.embedder, query), now=self.clock.now / 1e6)
        return {hit.id: hit.fused for hit in rank(corpus, question, limit=300, mask=mask, mode=mode)}

    def corpus(self, versions: list[Version]) -> Corpus | JoinedCorpus:
        """One of all, unless what is nobody's and what is one's own differ in what they take for a label or
        in whether their order matters: each decides that for itself.
        """
        common, own = ([v for v in versions if (owner(v.ns) is None) is nobodys] for nobodys in (True, False))
        whole, parts = self.whole(versions), [*map(self.whole, filter(None, (common, own)))]
        alike = {(frozenset(each.groups), each.order_matters) for each in (whole, *parts)}
        return whole if len(alike) == 1 else JoinedCorpus(parts)

    def whole(self, versions: list[Version]) -> Corpus:
        return Corpus.of(item(version, self.embedder) for version in versions)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@settings(max_examples=EXAMPLES, deadline=None, derandomize=not LONG)
@given(seed=st.integers(0, 2**32))
def test_searches_find_what_a_model_finds_that_looks_at_everything(engine: str, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        comparison = Recalling(ENGINES[engine](Path(folder)), seed)
        try:
            comparison.run(OPERATIONS)
        finally:
            for store in comparison.stores:
                store.close()
