"""Many nodes over one PostgreSQL, which restarts, and nodes that are killed: nothing acknowledged is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from alcove import Settings, Unavailable
from alcove.core.clock import SECOND, system_clock
from alcove.engine.postgres.connection import Connection
from alcove.engine.postgres.database import WRITER_LOCK
from alcove.engine.postgres.pool import Pool
from alcove.search.embedders import embedder_for
from tests.support.embeddings import embeddings
from tests.support.postgres import Server
from tests.support.postgres_nodes import HOME, Load, node, opened, own_server, two_nodes
from tests.support.service import Service, assert_error, refused
from tests.support.tokens import FLAGS as TOKENS
from tests.support.tokens import token
from tests.support.waiting import LONG, PATIENCE, until

RESTARTS = 10 if LONG else 2
RACES = 200 if LONG else 20
EVENTS = 5000 if LONG else 300


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as running:
        yield running


@pytest.fixture
def address(server: Server) -> str:
    return server.new_database()


def more(loads: list[Load], what: str, by: int) -> None:
    """Waits until each load has so many more answers of a kind."""
    wanted = [(getattr(load, what), len(getattr(load, what)) + by) for load in loads]
    until(lambda: all(len(answers) >= goal for answers, goal in wanted))


def all_there(folder: Path, address: str, loads: list[Load]) -> None:
    """Whatever was acknowledged is there, once, and the store is sound."""
    with opened(folder, address) as memory:
        there = [
            each.key
            for page in range(0, 100_000, 1000)
            for each in memory.list(HOME, limit=1000, offset=page)
        ]
        assert len(there) == len(set(there))
        assert {key for load in loads for key in load.acknowledged} <= set(there)
        assert [each for each in memory.doctor() if each.wrong] == []


def test_a_restart_of_postgresql_during_load_loses_no_acknowledged_write_and_needs_none_of_a_node(
    tmp_path: Path, server: Server, address: str
) -> None:
    with two_nodes(tmp_path, address) as nodes:
        loads = [Load(each, f"load-{n}") for n, each in enumerate(nodes)]
        for n in range(RESTARTS):
            more(loads, "acknowledged", 20)
            server.stop(mode="immediate" if n % 2 else "fast")
            more(loads, "refused", 1)
            for each in nodes:
                assert each.call("GET", "/healthz").status_code == 200
                ready = each.call("GET", "/readyz")
                assert ready.status_code == 503, ready.text
                assert "cannot be reached" in ready.json()["checks"]["engine"]
            server.start()
        more(loads, "acknowledged", 20)
        for load in loads:
            load.stop()
            assert load.cut_off == 0, "a node is there while its database is not"
            for answer in load.refused:
                assert_error(answer, 503, "service_unavailable")
                assert answer.headers["retry-after"] == "1"
        for each in nodes:
            assert each.call("GET", "/readyz").status_code == 200
        all_there(tmp_path, address, loads)


BOB, CAROL = "ns=user&ns=bob", {"namespace": ["user", "carol"], "key": "k"}
CALLS = [
    ("GET", f"/v1/memories?{BOB}&key=k", None),
    ("GET", "/v1/memories?ns=user&ns=carol&key=k", None),
    ("GET", "/v1/memories/namespaces", None),
    ("GET", f"/v1/memories/events?{BOB}", None),
    ("POST", "/v1/memories/search", {"namespace_prefix": ["user", "bob"], "query": "tea"}),
    ("PUT", "/v1/memories", {"namespace": ["user", "bob"], "key": "k", "value": {}}),
    ("PUT", "/v1/memories", {"namespace": ["user", "bob"], "key": "k", "value": {"n": 2**70}}),
    ("PUT", "/v1/memories", {**CAROL, "value": {}}),
    ("POST", "/v1/memories/batch", {"operations": [{"op": "get", **CAROL}]}),
    ("DELETE", f"/v1/memories?{BOB}&key=k", None),
    ("GET", "/readyz", None),
]
"""What a node is asked while its database hangs, of which it can know nothing by itself."""


def test_a_database_that_hangs_holds_up_whoever_asks_it_and_nobody_else(
    tmp_path: Path, server: Server, address: str
) -> None:
    flags = ("--request-seconds", 2)
    with opened(tmp_path, address) as memory:
        key = memory.admin.create_api_key(client="app", user="bob")
    with (
        node(tmp_path, address, *flags, *TOKENS) as by_token,
        node(tmp_path, address, *flags, "--auth", "apikey") as by_key,
        ThreadPoolExecutor(len(CALLS) + 1) as beside,
        server.hung(),
    ):
        asked = [
            beside.submit(by_token.call, method, path, token("bob"), json=body)
            for method, path, body in CALLS
        ]
        asked.append(beside.submit(by_key.look, key))
        for one in (by_token, by_key) * 10:
            assert one.call("GET", "/healthz", timeout=PATIENCE / 4).status_code == 200
        assert [each.result().status_code for each in asked] == [503] * len(asked)
        assert by_token.call("GET", "/v1/admin/audit", token("bob")).status_code == 403


def test_a_connection_that_died_while_nobody_used_it_fails_no_call(
    tmp_path: Path, server: Server, address: str
) -> None:
    with node(tmp_path, address) as one:
        assert one.put(HOME, "kept", {"n": 1}).status_code == 200
        server.stop(mode="fast")
        server.start()
        assert one.get(HOME, "kept").json()["value"] == {"n": 1}
        assert one.put(HOME, "kept", {"n": 2}).status_code == 200


def test_who_finds_every_connection_in_use_for_too_long_is_told_so_and_the_next_one_gets_it(
    address: str,
) -> None:
    pool = Pool(lambda: Connection.to(address), max_size=1, timeout_seconds=0.01)
    taken = pool.acquire()
    with pytest.raises(Unavailable, match="all connections are in use"):
        pool.acquire()
    pool.release(taken)
    assert pool.acquire() is taken
    pool.close()
    pool.release(taken)
    assert taken.closed


def test_who_listens_for_commits_hears_of_them_again_after_a_restart(
    tmp_path: Path, server: Server, address: str
) -> None:
    heard = threading.Event()
    with opened(tmp_path, address) as memory, opened(tmp_path, address) as other:
        assert memory.memories.timeline.on_commit(heard.set)
        for n in range(3):
            until(heard.is_set)  # at first, and once it listens again: some may have been missed
            heard.clear()
            other.put(("user", "noop"), "told", {"n": n})
            until(heard.is_set)
            heard.clear()
            server.stop(mode="fast")
            server.start()


def test_a_put_is_one_journey_to_the_server(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journeys = list[Connection]()
    flush = Connection._flush

    def counted(connection: Connection) -> None:
        journeys.append(connection)
        flush(connection)

    monkeypatch.setattr(Connection, "_flush", counted)
    with opened(tmp_path, address) as memory:
        writer = memory.memories._engine._db._writer  # type: ignore[attr-defined]
        for n in range(3):
            journeys.clear()
            memory.put(HOME, "over", {"n": n})
        assert journeys.count(writer) == 1


def test_whoever_commits_tells_of_it_also_as_the_last_thing_before_it_closes(
    tmp_path: Path, address: str
) -> None:
    opened(tmp_path, address).close()
    with psycopg.connect(address, autocommit=True) as other:
        other.execute("LISTEN alcove")
        for listens in (True, False):
            with opened(tmp_path, address) as memory:
                if listens:
                    told = threading.Event()
                    memory.memories.timeline.on_commit(told.set)
                    until(told.is_set)
                memory.put(HOME, "first", {})  # which makes a data key, too
                assert [*other.notifies(timeout=PATIENCE, stop_after=1)]
                for _ in other.notifies(timeout=0.2):
                    pass
                memory.put(HOME, "told", {})
            assert [*other.notifies(timeout=PATIENCE, stop_after=1)]


def test_a_lock_that_a_restart_of_postgresql_freed_is_taken_again_by_who_had_it(
    tmp_path: Path, server: Server, address: str
) -> None:
    with opened(tmp_path, address) as one, opened(tmp_path, address) as two:
        mine, theirs = one.memories._engine.locks, two.memories._engine.locks
        assert mine.try_acquire(b"turn")
        server.stop(mode="fast")
        server.start()
        assert mine.try_acquire(b"another")
        assert not theirs.try_acquire(b"turn")
        mine.release(b"turn")
        assert theirs.try_acquire(b"turn")


def test_a_node_killed_amid_requests_loses_no_acknowledged_write_and_holds_no_other_up(
    tmp_path: Path, address: str
) -> None:
    with two_nodes(tmp_path, address) as (one, two):
        loads = [Load(one, "one"), Load(two, "two")]
        more(loads, "acknowledged", 30)
        one.signal(signal.SIGKILL)
        one.wait()
        more(loads[1:], "acknowledged", 30)
        for load in loads:
            load.stop()
        assert not loads[1].refused
        assert loads[0].cut_off
        all_there(tmp_path, address, loads)


def test_what_a_killed_node_had_claimed_to_index_is_indexed_by_another_once_the_claim_runs_out(
    tmp_path: Path, address: str
) -> None:
    with embeddings() as service, ExitStack() as at_the_end:
        at_the_end.callback(service.free.set)
        service.behaviour = "held"
        url = f"{service.url}#bag"
        with node(tmp_path, address, "--embedder", url) as one:
            for n in range(3):
                body = {"namespace": HOME, "key": f"k{n}", "value": {}, "index": {"text": f"tea {n}"}}
                assert one.call("PUT", "/v1/memories", json=body).status_code == 200
            until(lambda: claimed(address))
            one.signal(signal.SIGKILL)
            one.wait()
        service.free.set()
        service.behaviour = "well"
        with opened(tmp_path, address, embedder=embedder_for(url), clock=later) as memory:
            memory.admin.trigger_index()
            until(lambda: memory.admin.index().waiting == 0)
            assert memory.admin.index().indexed == 3
            assert len(memory.search(HOME, query="tea", mode="semantic")) == 3


def test_texts_are_claimed_beside_who_writes_and_beside_who_claims_others(
    tmp_path: Path, address: str
) -> None:
    with opened(tmp_path, address) as memory, psycopg.connect(address) as other:
        for n in range(3):
            memory.put(("user", "noop"), f"k{n}", {}, index={"text": f"tea {n}"})
        other.execute(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
        ((taken,),) = other.execute("SELECT seq FROM to_index ORDER BY turn LIMIT 1 FOR UPDATE")
        now, index = system_clock(), memory.memories._engine.index
        with ThreadPoolExecutor(1) as thread:
            claim = thread.submit(index.claim, now=now, until=now + SECOND, limit=10, max_bytes=1000)
            try:
                claimed = [text.seq for text in claim.result(PATIENCE)]
            finally:
                other.rollback()
        assert len(claimed) == 2
        assert taken not in claimed


def later() -> int:
    """A clock by which every claim has run out."""
    return system_clock() + 1000 * SECOND


def claimed(address: str) -> bool:
    with psycopg.connect(address) as db:
        return bool(db.execute("SELECT 1 FROM to_index WHERE due > 0").fetchall())


def test_a_long_queue_of_one_writer_is_not_looked_through_for_another(tmp_path: Path, address: str) -> None:
    with opened(tmp_path, address) as memory, psycopg.connect(address, autocommit=True) as other:
        memory.as_user("busy").put(("user", "busy"), "k", {}, index={"text": "tea"})
        other.execute(
            "INSERT INTO to_index (ns, seq, due, writer, size, turn)"
            " SELECT '', 1000000 + n, 0, 'busy', 3, 3 * n FROM generate_series(1, 20000) n"
        )
        other.execute("ANALYZE to_index")

        def looked_at() -> int:
            other.execute("SELECT pg_stat_clear_snapshot()")
            asked = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'to_index'"
            return int(other.execute(asked).fetchall()[0][0])

        before = looked_at()
        with psycopg.connect(address) as db:
            for n in range(20):  # a plan for any writer is made after a few
                written = (n.to_bytes(16, "big"), b"k%d" % n)
                db.execute(
                    'INSERT INTO versions (id, ns, key, kind, revision, created_at, "user", attributes,'
                    " index_text) SELECT %s, ns, %s, kind, revision, created_at, 'newcomer', attributes,"
                    " index_text FROM versions LIMIT 1",
                    written,
                )
            db.execute("SELECT pg_stat_force_next_flush()")
        assert looked_at() - before < 1000


def test_nodes_that_start_together_on_an_empty_database_make_one_schema_and_one_key(
    tmp_path: Path, address: str
) -> None:
    with two_nodes(tmp_path, address) as (one, two):
        assert one.put(HOME, "from-one", {"n": 1}).status_code == 200
        assert two.put(HOME, "from-two", {"n": 2}).status_code == 200
        assert two.get(HOME, "from-one").json()["value"] == {"n": 1}
        assert one.get(HOME, "from-two").json()["value"] == {"n": 2}
    with psycopg.connect(address) as db:
        versions = db.execute("SELECT version FROM alcove_schema ORDER BY 1").fetchall()
        assert versions == [(n + 1,) for n in range(len(versions))]
    assert len([*tmp_path.glob("*.key")]) == 1


def test_a_node_refuses_a_database_of_a_newer_alcove_and_says_so(tmp_path: Path, address: str) -> None:
    opened(tmp_path, address).close()
    with psycopg.connect(address) as db:
        db.execute("INSERT INTO alcove_schema VALUES (99)")
    said = refused(tmp_path, "--engine", address, env={"ALCOVE_STATE": str(tmp_path)})
    assert "made by a newer Alcove (schema 99); upgrade first" in said


def test_a_write_that_another_node_holds_up_for_too_long_is_refused_and_the_next_one_kept(
    tmp_path: Path, address: str
) -> None:
    with (
        opened(tmp_path, address, settings=Settings(sweep_interval=0, busy_timeout=0.2)) as memory,
        psycopg.connect(address, autocommit=True) as other,
    ):
        memory.put(HOME, "k", {"n": 1})
        other.execute(f"SELECT pg_advisory_lock({WRITER_LOCK})")
        with pytest.raises(Unavailable, match="another writer took too long"):
            memory.put(HOME, "k", {"n": 2})
        other.execute("SELECT pg_advisory_unlock_all()")
        assert memory.put(HOME, "k", {"n": 3}).revision == 2


def test_of_two_nodes_that_expect_the_same_revision_one_wins_and_one_version_is_current(
    tmp_path: Path, address: str
) -> None:
    with two_nodes(tmp_path, address) as nodes, ThreadPoolExecutor(2) as threads:
        assert nodes[0].put(HOME, "raced", {"n": 0}).json()["revision"] == 1
        for revision in range(1, RACES + 1):

            def put(each: Service, expected: int = revision) -> int:
                body = {
                    "namespace": HOME,
                    "key": "raced",
                    "value": {"n": expected},
                    "expected_revision": expected,
                }
                return each.call("PUT", "/v1/memories", json=body).status_code

            assert sorted(threads.map(put, nodes)) == [200, 409]
        assert {each.get(HOME, "raced").json()["revision"] for each in nodes} == {RACES + 1}
    with psycopg.connect(address) as db:
        ((current,),) = db.execute("SELECT count(*) FROM versions WHERE key = 'raced' AND ended_at IS NULL")
        assert current == 1


def test_a_cursor_over_events_that_two_nodes_write_skips_none_and_repeats_none(
    tmp_path: Path, address: str
) -> None:
    with two_nodes(tmp_path, address) as nodes:
        first = {"ns": HOME, "limit": 7}
        seen: list[str] = []
        loads = [Load(each, f"load-{n}") for n, each in enumerate(nodes)]
        asked, stopped = dict(first), False
        while True:
            page = nodes[0].call("GET", "/v1/memories/events", params=asked).json()
            seen += [each["key"] for each in page["events"]]
            asked["after_cursor"] = page["after_cursor"]
            if stopped and not page.get("more"):
                break
            if not stopped and len(seen) > EVENTS:
                for load in loads:
                    load.stop()
                stopped = True
    acknowledged = [key for load in loads for key in load.acknowledged]
    assert sorted(seen) == sorted(acknowledged)
