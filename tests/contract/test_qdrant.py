"""Qdrant beside PostgreSQL: each test's name says whether it was the client's local mode or a server."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from struct import pack
from typing import Any

import psycopg
import pytest
from qdrant_client import QdrantClient, models

from alcove import Alcove, InvalidRequest, Namespace, Settings
from alcove.engine.postgres.pgvector import VECTORS_IN_QDRANT
from alcove.engine.qdrant import index as qdrant_index
from alcove.engine.qdrant.client import BITS, QdrantPoints, VersionVectors
from alcove.engine.qdrant.index import AWAY, CHECK_NAME
from alcove.search.sources import indexed
from tests.contract.test_search_large_scopes import FEW, POOL, TOPICS, Place, filled, keys, reader
from tests.support.hashed_embedder import Bag
from tests.support.qdrant import KEY, Server, running
from tests.support.waiting import LONG, until

REAL = os.environ.get("ALCOVE_TEST_QDRANT")
OVER = ("a", "a:", "a%3A", "a%", "a\0", "a\0b", "a\1", "ab", "😀", "u", "user")
"""Segments of which one begins with another, in one spelling or other."""


class Beside(Place):
    """A database with a Qdrant beside it, which is looked into by Qdrant's own client."""

    def __init__(self, folder: Path, qdrant: str, key: str) -> None:
        super().__init__(folder)
        self.qdrant, self.key = qdrant, key
        self.client = QdrantClient(
            url=qdrant.replace("qdrant", "http", 1), headers={"api-key": key}, check_compatibility=False
        )

    def open(self, *, in_memory: bool = False, embedder: object = None, **more: Any) -> Alcove:
        vectors = more.pop("vectors", self.qdrant)
        most = 10**6 if in_memory else FEW
        more = {"indexing_interval": 0.2, "search_memory_texts": most, **more}
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("ALCOVE_STATE", str(self._folder))
            patched.setenv("ALCOVE_QDRANT_KEY", self.key)
            self.opened.append(
                Alcove(
                    self.address,
                    settings=Settings(sweep_interval=0, **more),
                    keys=self._keys,
                    clock=self.clock,
                    embedder=embedder or Bag(),  # type: ignore[arg-type]
                    vectors=vectors,
                )
            )
        return self.opened[-1]

    @property
    def collections(self) -> list[str]:
        with psycopg.connect(self.address) as db:
            ((store,),) = db.execute("SELECT store FROM vector_store").fetchall()
        names = (each.name for each in self.client.get_collections().collections)
        return [name for name in names if name.startswith(f"alcove_{store}_")]

    def points(self) -> dict[int, models.Record]:
        """Everything that is there."""
        (name,) = self.collections or (None,)
        found, _ = self.client.scroll(name, limit=10_000, with_vectors=True) if name else ((), None)
        return {int(point.id): point for point in found}

    def versions(self) -> set[int]:
        return {id >> BITS for id in self.points()}

    def live(self) -> set[int]:
        """What the database says that should be there."""
        with psycopg.connect(self.address) as db:
            return {seq for (seq,) in db.execute("SELECT seq FROM vectors")}

    def in_step(self) -> bool:
        return self.versions() == self.live() and not self.rows("to_remove")


@pytest.fixture(scope="module", params=["a server" if REAL else "the client's local mode"])
def qdrant() -> Iterator[tuple[str, str]]:
    if REAL:
        yield REAL, os.environ.get("ALCOVE_TEST_QDRANT_KEY", "")
    else:
        with running() as server:
            yield server.address, KEY


@pytest.fixture
def place(tmp_path: Path, qdrant: tuple[str, str]) -> Iterator[Beside]:
    yield from _place(tmp_path, *qdrant)


def _place(folder: Path, address: str, key: str) -> Iterator[Beside]:
    place = Beside(folder, address, key)
    yield place
    for store in place.opened:
        store.close()
    place.client.close()


@pytest.fixture(params=["the client's local mode"])
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Beside, Server]]:
    """A server of this test's own, which it may stop; whoever finds it away asks again soon."""
    monkeypatch.setattr(qdrant_index, "RETRY_SECONDS", 0.2)
    with running(tmp_path / "qdrant") as server:
        for place in _place(tmp_path, server.address, KEY):
            yield place, server


def noticed(store: Alcove) -> list[str]:
    return next(found.noticed for found in store.doctor() if found.name == CHECK_NAME)


def test_a_large_pool_is_found_by_meaning_and_the_database_keeps_no_windows(place: Beside) -> None:
    store = filled(place)
    until(place.in_step)
    for mode in ("hybrid", "keyword", "semantic"):
        assert keys(store, "number17", mode=mode)[0] == "k17"
    assert not reader(store, "bob").search(POOL, query="number17").degraded
    assert not place.rows("pg_tables WHERE tablename = 'windows'")
    assert noticed(store) == []


def test_the_ten_best_are_those_that_searching_in_memory_finds(place: Beside) -> None:
    store, same, asked = filled(place, 300), 0, random.Random(3)
    other = place.open(in_memory=True)
    until(place.in_step)
    questions = [" ".join(asked.sample(TOPICS, 3)) + f" number{asked.randrange(300)}" for _ in range(8)]
    for question in questions:
        exact = keys(other, question, mode="semantic")
        assert len({*exact} & {*keys(store, question, mode="semantic")}) >= 9
        same += len({*keys(other, question)} & {*keys(store, question)})
    assert same >= 0.9 * 10 * len(questions)


def test_nothing_is_found_below_a_namespace_but_what_lies_below_it(qdrant: tuple[str, str]) -> None:
    points, name, chance = QdrantPoints(*qdrant), f"alcove_test_{secrets.token_hex(4)}_3", random.Random(5)
    every = [Namespace(segments) for n in (1, 2) for segments in product(OVER, repeat=n)]
    every += [Namespace(chance.choices(OVER, k=chance.randint(3, 5))) for _ in range(100)]
    points.prepare(name, 3, name)
    try:
        windows = [pack("3f", 1, 0, 0)]
        points.put(name, [VersionVectors(n, each.encode(), windows) for n, each in enumerate(every)])
        for prefix in [Namespace(), *chance.sample(every, 30)]:
            below = {n for n, each in enumerate(every) if each[: len(prefix)] == prefix}
            common = {n for n in below if every[n].owner is None or prefix.owner is not None}
            for unowned, expected in ((False, below), (True, common)):
                found = points.nearest(name, [1, 0, 0], prefix, len(every), unowned=unowned)
                assert {*found} == expected, (prefix, unowned)
    finally:
        points._upkeep.delete_collection(name)
        points.close()


def test_a_point_holds_a_vector_a_number_and_digests_and_nothing_else(place: Beside) -> None:
    store = filled(place, 3)
    store.as_user("alice").put(("user", "alice"), "zzkey", {"zzvalue": 1}, index={"text": "zztext"})
    until(lambda: len(place.versions()) == 4)
    for point in place.points().values():
        assert point.payload
        assert {*point.payload} == {"seq", "within", "tenant"}
        for each in [point.payload["tenant"], *point.payload["within"]]:
            assert len(bytes.fromhex(each.lstrip("+"))) == 16
    assert not any(word in str(place.points()) for word in ("zz", "alice", "user", "org", "docs"))


def test_what_was_handed_over_twice_is_there_once(place: Beside) -> None:
    filled(place)
    until(place.in_step)
    before = {id: point.payload for id, point in place.points().items()}
    with psycopg.connect(place.address) as db:
        db.execute("UPDATE vector_store SET upto = 0")
    until(lambda: not place.rows("vector_store WHERE upto = 0"))
    assert {id: point.payload for id, point in place.points().items()} == before


def test_what_is_over_is_removed_and_not_found_before_that(place: Beside) -> None:
    store = filled(place)
    bob = reader(store, "bob")
    bob.put(POOL, "k1", {}, index={"text": "a zeppelin"}, wait_for_index=True)
    bob.put(POOL, "brief", {}, index={"text": "a zeppelin"}, ttl_seconds=10, wait_for_index=True)
    bob.delete(POOL, "k2")
    place.clock.advance(11)
    found = keys(store, "a zeppelin", mode="semantic", limit=100)
    assert found[0] == "k1"
    assert not {"brief", "k2"} & {*found}
    store.sweep()
    until(place.in_step)
    assert len(place.versions()) == 39


def test_a_wipe_is_answered_when_no_point_is_left(place: Beside) -> None:
    store = filled(place, 2)
    alice = store.as_user("alice")
    for n in range(8):
        alice.put(("user", "alice"), f"a{n}", {}, index={"text": f"tea {n}"}, wait_for_index=True)
    until(lambda: len(place.versions()) == 10)
    assert store.wipe("alice").scrubbed
    assert len(place.versions()) == 2


def test_what_differs_is_noticed_and_repaired_both_ways(place: Beside) -> None:
    first = filled(place)
    until(place.in_step)
    first.close()
    (name,) = place.collections
    *lost, last = sorted(place.versions())[-11:]
    match = models.MatchAny(any=lost)
    place.client.delete(name, models.Filter(must=[models.FieldCondition(key="seq", match=match)]))
    over = last + 7
    place.client.upsert(name, [models.PointStruct(id=over << BITS, vector=[1.0] * 48, payload={"seq": over})])
    store = place.open(indexing_interval=0)
    assert len(noticed(store)) == 11
    store = place.open()
    store.admin.trigger_index()
    until(place.in_step)
    assert noticed(store) == []


def test_a_filter_that_lets_few_pass_leaves_those_few_to_be_found(
    place: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant_index, "MAX_POINTS", 4)
    monkeypatch.setattr(indexed, "MIN_CANDIDATES", 2)
    store = filled(place)
    until(place.in_step)
    # Each of the four nearest windows says "lower", and is of a memory that is left out.
    (found,) = keys(store, "lower", mode="semantic", filter={"shelf": "upper"}, limit=1)
    assert int(found[1:]) % 2


def test_another_embedder_gets_another_collection_and_the_one_before_is_dropped(place: Beside) -> None:
    first = filled(place)
    until(place.in_step)
    first.close()
    before = place.collections
    store = place.open(embedder=Bag("wider", 64))
    for _ in store.admin.reindex():
        pass
    store.admin.trigger_index()
    until(lambda: place.collections != before and place.in_step())
    assert len(place.collections) == 1
    assert {len(point.vector) for point in place.points().values()} == {64}  # type: ignore[arg-type]
    assert keys(store, "number5", mode="semantic")[0] == "k5"


def test_two_nodes_hand_over_and_remove_together(place: Beside) -> None:
    one, other = filled(place), place.open()
    for n in range(20):
        node = reader((one, other)[n % 2], "bob")
        node.put(POOL, f"k{n}", {}, index={"text": f"zeppelin{n}"})
        node.delete(POOL, f"k{n + 20}")
    until(lambda: place.in_step() and len(place.versions()) == 20)
    assert keys(other, "zeppelin4", mode="semantic")[0] == "k4"


def test_pgvector_takes_over_where_it_is_chosen_and_not_by_itself(place: Beside) -> None:
    first = filled(place)
    until(place.in_step)
    first.close()
    unaware = place.open(vectors=None)
    found = reader(unaware, "bob").search(POOL, query="number7")
    assert (found[0].key, found.degraded) == ("k7", VECTORS_IN_QDRANT)
    assert [each for each in unaware.doctor() if any("alcove_" in told for told in each.noticed)]
    unaware.as_user("alice").put(("user", "alice"), "a", {}, index={"text": "tea"})
    assert not unaware.wipe("alice").scrubbed  # by nobody here
    unaware.close()
    store = place.open(vectors="pgvector")
    until(lambda: place.rows("terms") == 40 and not place.rows("vector_store"))
    assert keys(store, "number7", mode="semantic")[0] == "k7"
    assert not reader(store, "bob").search(POOL, query="number7").degraded


def test_without_pgvector_it_is_qdrant_that_finds(place: Beside) -> None:
    place.without_pgvector()
    store = filled(place)
    until(place.in_step)
    assert keys(store, "number7", mode="semantic")[0] == "k7"
    assert not any("pgvector" in each for found in store.doctor() for each in found.noticed)


def test_a_file_has_no_vector_store_beside_it_and_an_address_is_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="vectors"):
        Alcove(tmp_path / "memory.db", vectors="qdrant://127.0.0.1:6333")
    for wrong in ("qdrant", "http://127.0.0.1:6333", "qdrant://", "qdrant://somebody@127.0.0.1"):
        with pytest.raises(InvalidRequest, match="vectors: expected pgvector, qdrant://HOST:PORT"):
            Alcove("postgresql://nowhere/at_all", vectors=wrong)


@pytest.mark.parametrize("lost", [False, True] if LONG else [False])
def test_while_it_is_gone_writes_go_on_searches_say_so_and_it_is_brought_up_to_date(
    own: tuple[Beside, Server], lost: bool, tmp_path: Path
) -> None:
    place, server = own
    store = filled(place)
    bob, alice = reader(store, "bob"), store.as_user("alice")
    alice.put(("user", "alice"), "a", {}, index={"text": "tea"}, wait_for_index=True)
    until(lambda: place.in_step() and len(place.versions()) == 41)
    server.kill()
    bob.put(POOL, "late", {}, index={"text": "a zeppelin"}, wait_for_index=True)
    bob.delete(POOL, "k1")
    for mode in ("hybrid", "semantic"):
        found = bob.search(POOL, query="number17", mode=mode)
        assert (found[0].key, found.degraded) == ("k17", AWAY)
    assert keys(store, "zeppelin", mode="semantic")[0] == "late"
    receipt = store.wipe("alice")
    assert not receipt.scrubbed
    assert "must still be removed there: 2" in noticed(store)[-1]
    if lost:
        shutil.rmtree(tmp_path / "qdrant")
    server.start()
    until(lambda: place.in_step() and len(place.versions()) == 40)
    until(lambda: not bob.search(POOL, query="number17").degraded)
    store.sweep()
    assert not place.rows(
        "marks a JOIN marks b ON a.name = 'wipes' AND b.name = 'scrubbed' AND a.value > b.value"
    )
    assert noticed(store) == []


def test_one_that_hangs_holds_up_no_search_and_no_write(own: tuple[Beside, Server]) -> None:
    place, server = own
    store = filled(place)
    until(place.in_step)
    server.process.send_signal(signal.SIGSTOP)
    try:
        reader(store, "bob").put(POOL, "late", {}, index={"text": "a zeppelin"}, wait_for_index=True)
        found = reader(store, "bob").search(POOL, query="zeppelin")
        assert (found[0].key, found.degraded) == ("late", AWAY)
    finally:
        server.process.send_signal(signal.SIGCONT)
    until(lambda: place.in_step() and not reader(store, "bob").search(POOL, query="zeppelin").degraded)
