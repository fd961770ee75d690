"""Searching what is too large to hold in memory: candidates are found first, here from the first text on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from alcove import Alcove, Grant, MemoryKey, Namespace, Principal, Settings
from alcove.core.clock import to_datetime
from alcove.engine import quantized_index
from alcove.engine.postgres import database as postgres
from alcove.engine.postgres import pgvector, term_index
from alcove.engine.postgres.connection import Connection
from alcove.search.embedders import EmbedderUnavailable
from alcove.search.sources import indexed
from alcove.search.sources.memory import ScopeCorpus
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag
from tests.support.postgres import new_database
from tests.support.store_inspection import query
from tests.support.waiting import until

POOL = ("org", "docs")
TOPICS = ["tea", "rain", "bicycle", "harbour", "violin", "garden", "winter", "bread", "lantern", "river"]
FEW = 5
"""Texts above which a subtree is large here."""


class Place:
    """One database, which can be opened to be searched either way."""

    def __init__(self, folder: Path, address: str = "") -> None:
        """`address`: a file, or else there is a new database."""
        self.clock, self._folder, self._keys = ManualClock(), folder, MemoryKey()
        self.address = address or new_database()
        self.opened: list[Alcove] = []

    def open(self, *, in_memory: bool = False, embedder: object = None, **more: object) -> Alcove:
        most = 10**6 if in_memory else FEW
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("ALCOVE_STATE", str(self._folder))
            self.opened.append(
                Alcove(
                    self.address,
                    settings=Settings(sweep_interval=0, search_memory_texts=most, **more),  # type: ignore[arg-type]
                    keys=self._keys,
                    clock=self.clock,
                    embedder=embedder or Bag(),  # type: ignore[arg-type]
                )
            )
        return self.opened[-1]

    def without_pgvector(self) -> None:
        """From now on it is opened by somebody who may make tables and no more."""
        name = urlsplit(self.address).path[1:]
        with psycopg.connect(self.address, autocommit=True) as db:
            db.execute(f"CREATE ROLE {name}_owner LOGIN")
            db.execute(f"GRANT ALL ON SCHEMA public TO {name}_owner")
        self.address += f"{'&' if '?' in self.address else '?'}user={name}_owner"

    def rows(self, table: str) -> int:
        if "://" not in self.address:
            ((count,),) = query(Path(self.address), f"SELECT count(*) FROM {table}")
            return int(str(count))
        with psycopg.connect(self.address) as db:
            ((found,),) = db.execute(f"SELECT count(*) FROM {table}")
        return int(found)

    @property
    def vectors(self) -> str:
        """Where those lie that are searched."""
        return "windows" if "://" in self.address else "terms"


@pytest.fixture(params=["sqlite", "postgres"])
def place(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(quantized_index, "MIN_VECTORS", 0)
    place = Place(tmp_path, str(tmp_path / "store.db") if request.param == "sqlite" else "")
    yield place
    for store in place.opened:
        store.close()


on_postgresql = pytest.mark.parametrize("place", ["postgres"], indirect=True)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[ScopeCorpus]:
    """The subtrees that were read into memory as a whole."""
    found: list[ScopeCorpus] = []
    read = ScopeCorpus.find

    def noted(self: ScopeCorpus, *args: object, **how: object) -> object:
        found.append(self)
        return read(self, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(ScopeCorpus, "find", noted)
    return found


def noted_statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that PostgreSQL is asked from now on."""
    asked: list[str] = []

    def noting(run: Callable[..., object]) -> Callable[..., object]:
        def noted(self: Connection, name: str, *args: object, **parts: str) -> object:
            asked.append(name)
            return run(self, name, *args, **parts)

        return noted

    for way in ("run", "run_prepared"):
        monkeypatch.setattr(Connection, way, noting(getattr(Connection, way)))
    return asked


def reader(store: Alcove, user: str) -> Alcove:
    return store.as_principal(Principal(user, grants=(Grant(Namespace(POOL[:1])),)))


def filled(place: Place, count: int = 40) -> Alcove:
    """A store with a large pool, all of which the database can find."""
    store, chance = place.open(), random.Random(7)
    writer = reader(store, "bob")
    writer.batch(
        [
            {
                "op": "put",
                "namespace": POOL,
                "key": f"k{n}",
                "value": {"n": n, "hidden": n % 4},
                "index": {
                    "text": " ".join(chance.choices(TOPICS, k=6)) + f" number{n}",
                    "shelf": "upper" if n % 2 else "lower",
                },
            }
            for n in range(count)
        ]
    )
    until(lambda: place.rows("terms") == count)
    return store


def keys(store: Alcove, query: str, *, user: str = "bob", **how: object) -> list[str]:
    return [each.key for each in reader(store, user).search(POOL, query=query, **how)]  # type: ignore[arg-type]


def test_a_large_pool_is_found_by_words_and_meaning_and_never_read_as_a_whole(
    place: Place, held: list[ScopeCorpus]
) -> None:
    store = filled(place)
    for mode in ("hybrid", "keyword", "semantic"):
        assert keys(store, "number17", mode=mode)[0] == "k17"
    assert not held


def test_a_small_subtree_stays_in_memory(place: Place, held: list[ScopeCorpus]) -> None:
    store = filled(place, FEW)
    assert keys(store, "number3")[0] == "k3"
    assert held


def test_what_is_written_updated_or_deleted_is_seen_by_the_next_search(
    place: Place, held: list[ScopeCorpus]
) -> None:
    store = filled(place)
    writer = reader(store, "bob")
    writer.put(POOL, "new", {}, index={"text": "a zeppelin"})
    assert keys(store, "zeppelin", mode="keyword") == ["new"]
    writer.put(POOL, "new", {}, index={"text": "a submarine"}, wait_for_index=True)
    assert keys(store, "zeppelin", mode="keyword") == []
    assert keys(store, "submarine")[0] == "new"
    writer.delete(POOL, "new")
    assert "new" not in keys(store, "submarine", limit=100)
    assert not held


def test_what_has_expired_is_not_found(place: Place, held: list[ScopeCorpus]) -> None:
    store = filled(place)
    reader(store, "bob").put(
        POOL, "brief", {}, index={"text": "a zeppelin"}, ttl_seconds=10, wait_for_index=True
    )
    assert keys(store, "zeppelin")[0] == "brief"
    place.clock.advance(11)
    assert "brief" not in keys(store, "zeppelin", limit=100)
    assert not held


@pytest.mark.parametrize("filter", [{"shelf": "upper"}, {"n": {"gte": 30}}, {"hidden": 1}])
def test_a_filter_leaves_out_what_does_not_fit_and_nothing_else(
    place: Place, filter: Mapping[str, object]
) -> None:
    store, other = filled(place), place.open(in_memory=True)
    found = keys(store, "tea rain", filter=filter, limit=100)
    assert found
    assert {*found} == {*keys(other, "tea rain", filter=filter, limit=100)}


def test_rooms_of_others_below_the_pool_are_not_found_and_weigh_nothing(place: Place) -> None:
    store = filled(place)
    for user in ("alice", "carol"):
        room = (*POOL, "u", user)
        operations = [
            {
                "op": "put",
                "namespace": room,
                "key": f"{user}{n}",
                "value": {},
                "index": {"text": f"zeppelin {n}"},
            }
            for n in range(2 * FEW)
        ]
        reader(store, user).batch(operations)
    until(lambda: place.rows("terms") == 40 + 4 * FEW)
    assert keys(store, "zeppelin", mode="keyword", limit=100) == []
    found = keys(store, "zeppelin", user="alice", mode="keyword", limit=100)
    assert {*found} == {f"alice{n}" for n in range(2 * FEW)}


def test_a_wipe_leaves_no_row_of_what_a_person_owned(place: Place) -> None:
    store = filled(place, 2)
    before = place.rows("terms"), place.rows(place.vectors)
    alice = store.as_user("alice")
    for n in range(8):
        alice.put(("user", "alice"), f"a{n}", {}, index={"text": f"tea {n}"}, wait_for_index=True)
    until(lambda: place.rows("terms") == 10)
    assert alice.search(("user", "alice"), query="tea")
    store.wipe("alice")
    assert (place.rows("terms"), place.rows(place.vectors)) == before
    assert alice.search(("user", "alice"), query="tea") == []
    assert not [each for each in store.doctor() if each.wrong]


def test_what_waits_for_its_vectors_is_found_by_words_and_told(place: Place) -> None:
    filled(place).close()
    store = place.open(indexing_interval=0)
    reader(store, "bob").put(POOL, "late", {}, index={"text": "a zeppelin"})
    found = reader(store, "bob").search(POOL, query="zeppelin")
    assert found[0].key == "late"
    assert "1 memory waits for its vectors" in (found.degraded or "")


def test_an_embedder_that_fails_leaves_words_and_says_so(place: Place, held: list[ScopeCorpus]) -> None:
    class Failing(Bag):
        def embed(self, texts: object) -> object:  # type: ignore[override]
            raise EmbedderUnavailable("it is away")

    filled(place).close()
    found = reader(place.open(embedder=Failing()), "bob").search(POOL, query="number9")
    assert (found[0].key, found.degraded) == ("k9", "it is away")
    assert not held


def test_a_new_embedder_is_searched_by_once_it_serves(place: Place) -> None:
    filled(place).close()
    store = place.open(embedder=Bag("wider", 64))
    for _ in store.admin.reindex():
        pass
    until(lambda: place.rows(place.vectors) and keys(store, "number5", mode="semantic")[0] == "k5")
    assert not reader(store, "bob").search(POOL, query="number5").degraded


def test_the_ten_best_are_those_that_searching_in_memory_finds(place: Place) -> None:
    store, same, asked = filled(place, 300), 0, random.Random(3)
    other = place.open(in_memory=True)
    questions = [" ".join(asked.sample(TOPICS, 3)) + f" number{asked.randrange(300)}" for _ in range(20)]
    for question in questions:
        exact = keys(other, question, mode="semantic")
        assert len({*exact} & {*keys(store, question, mode="semantic")}) >= 9
        same += len({*keys(other, question)} & {*keys(store, question)})
    assert same >= 0.9 * 10 * len(questions)


def test_what_is_said_right_after_the_words_of_a_question_is_found_too(
    place: Place, held: list[ScopeCorpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed, "MIN_CANDIDATES", 4)
    store = place.open()
    turns = [
        turn
        for n in range(40)
        for turn in (f"we went to place{n}", f"what did you like at place{n}", f"the colours {n * n}")
    ]
    reader(store, "bob").batch(
        [
            {"op": "put", "namespace": POOL, "key": f"t{n}", "value": {}, "index": {"text": text}}
            for n, text in enumerate(turns)
        ]
    )
    until(lambda: place.rows("terms") == len(turns))
    assert {*keys(store, "place17", limit=3)} == {"t51", "t52", "t53"}
    assert not held


def test_a_moment_of_the_past_is_searched_with_the_vectors_that_are_kept(place: Place) -> None:
    store = filled(place)
    place.clock.advance(5)
    moment = to_datetime(place.clock.now)
    place.clock.advance(5)
    reader(store, "bob").delete(POOL, "k3")
    found = reader(store, "bob").search(POOL, query="number3", as_of=moment)
    assert found[0].key == "k3"


def test_pages_follow_one_another_without_a_gap(place: Place) -> None:
    store = filled(place)
    pages = [keys(store, "tea", limit=10, offset=n, mode="semantic") for n in (0, 10, 20, 30)]
    assert sorted(chain.from_iterable(pages)) == sorted(f"k{n}" for n in range(40))


@on_postgresql
def test_without_pgvector_everything_is_searched_in_memory_and_the_doctor_says_so(
    place: Place, held: list[ScopeCorpus]
) -> None:
    place.without_pgvector()
    store = place.open()
    for n in range(2 * FEW):
        reader(store, "bob").put(POOL, f"k{n}", {}, index={"text": f"tea number{n}"}, wait_for_index=True)
    assert keys(store, "number7")[0] == "k7"
    assert held
    assert any("pgvector" in each for found in store.doctor() for each in found.noticed)
    assert "pgvector" in str(store.memories.readiness()["engine"]())


@on_postgresql
def test_an_index_by_meaning_is_made_once_it_pays_and_one_that_was_left_half_done_is_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "MIN_INDEXED", 20)
    whole = "pg_index WHERE indisvalid AND indexrelid = to_regclass('windows_by_meaning')"
    store = filled(place)
    until(lambda: place.rows(whole))
    with psycopg.connect(place.address) as db:
        db.execute(
            "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = to_regclass('windows_by_meaning')"
        )
    reader(store, "bob").put(POOL, "more", {}, index={"text": "a zeppelin"}, wait_for_index=True)
    until(lambda: place.rows(whole))
    assert keys(store, "zeppelin", mode="semantic")[0] == "more"


@on_postgresql
def test_a_small_part_of_a_large_store_is_compared_as_a_whole_and_nothing_of_it_is_missed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "SMALL_SHARE", 2)
    asked, store = noted_statements(monkeypatch), filled(place)
    alice = store.as_user("alice")
    for n in range(2 * FEW):
        alice.put(("user", "alice"), f"a{n}", {}, index={"text": f"tea {n}"}, wait_for_index=True)
    until(lambda: place.rows("terms") == 40 + 2 * FEW)
    found = alice.search(("user", "alice"), query="tea 3", mode="semantic", limit=100)
    assert {each.key for each in found} == {f"a{n}" for n in range(2 * FEW)}
    assert "nearest_of_few" in asked
    assert "nearest" not in asked
    assert keys(store, "number17", mode="semantic")[0] == "k17"
    assert "nearest" in asked


@on_postgresql
def test_the_index_by_meaning_is_made_with_what_the_server_gives_if_that_is_more(place: Place) -> None:
    store = place.open()
    with Connection.to(place.address) as db:
        for room, given in (("1MB", "64MB"), ("300MB", "300MB")):
            db.run("raise_setting", (room,))
            assert db.run("setting", ("maintenance_work_mem",)).get == given
    store.close()


@on_postgresql
def test_what_is_found_is_read_as_it_is_found_and_not_asked_for_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(place)
    expected = {mode: keys(store, "number17 tea", mode=mode) for mode in ("hybrid", "keyword", "semantic")}
    asked = noted_statements(monkeypatch)
    for mode, found in expected.items():
        assert keys(store, "number17 tea", mode=mode) == found
    assert {"nearest", "texts_with_terms"} <= {*asked}
    assert "texts_of" not in asked


@on_postgresql
def test_words_are_looked_for_while_meaning_is_and_both_connections_come_back_whatever_happens(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MAX_READERS", 4)
    store, look, looked = filled(place), term_index.TermIndex._rows_with_terms, list[int]()
    by_meaning = (
        "pg_stat_activity WHERE datname = current_database() AND query LIKE '%<=>%' AND state = 'active'"
        " AND pid != pg_backend_pid()"
    )

    def noted(self: term_index.TermIndex, *args: object, **how: object) -> object:
        until(lambda: place.rows(by_meaning))
        looked.append(1)
        if len(looked) <= 4:
            raise EmbedderUnavailable("one of the two failed")
        return look(self, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(term_index.TermIndex, "_rows_with_terms", noted)
    for _ in range(4):
        with pytest.raises(EmbedderUnavailable):
            keys(store, "number17")
    assert keys(store, "number17")[0] == "k17"
    assert len(looked) == 5


@on_postgresql
@pytest.mark.parametrize("most", [1, 2, 3])
def test_searches_that_read_on_two_connections_never_wait_for_one_another(
    place: Place, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(postgres, "MAX_READERS", most)
    store = filled(place)
    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(lambda n: keys(store, f"number{n % 40}")[0], range(80))]
    assert found == [f"k{n % 40}" for n in range(80)]


@on_postgresql
def test_the_one_text_with_both_words_is_found_among_hundreds_that_hold_either(place: Place) -> None:
    store = place.open(indexing_batch=512)
    texts = [*(f"zeppelin number{n}" for n in range(400)), *(f"harbour number{n}" for n in range(400))]
    reader(store, "bob").batch(
        [
            {"op": "put", "namespace": POOL, "key": text, "value": {}, "index": {"text": text}}
            for text in (*texts, "a zeppelin in the harbour")
        ]
    )
    until(lambda: place.rows("terms") == len(texts) + 1)
    assert keys(store, "zeppelin harbour", mode="keyword")[0] == "a zeppelin in the harbour"
