"""Erasure in PostgreSQL: what `scrubbed` says of its data files, and what the receipt says of its log.

Every file of a server of the tests' own is read, byte by byte.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from alcove import Alcove, Receipt, Settings
from alcove.engine import erasure
from alcove.engine.postgres import pgvector
from alcove.engine.postgres import scrub as postgres_scrub
from alcove.engine.postgres.connection import STATEMENTS
from alcove.engine.postgres.scrub import STATISTICS, WAL
from tests.support.hashed_embedder import Bag
from tests.support.marked_users import PLAIN, POLICY, Markers, fill
from tests.support.postgres import Server, split
from tests.support.postgres_nodes import opened, own_server
from tests.support.store_inspection import assert_sound
from tests.support.waiting import PATIENCE, until

QUIET = Settings(sweep_interval=0, busy_timeout=1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as running:
        yield running


class Place:
    """A store in a database of the server, and the bytes of the server's files."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self._server = folder, server
        self.address = server.new_database()
        (folder / "policy").mkdir()
        (folder / "policy" / "attributes.rego").write_text(POLICY)

    def open(self, **options: object) -> Alcove:
        usual: dict[str, object] = {"policy_dir": self.folder / "policy", "settings": QUIET}
        return opened(self.folder, self.address, **{**usual, **options})

    def new_role(self) -> str:
        """The name of a role that may make tables in the database."""
        name = f"{urlsplit(self.address).path.strip('/')}_role"
        self.run(f"CREATE ROLE {name} LOGIN; GRANT CREATE, USAGE ON SCHEMA public TO {name}")
        return name

    def open_as(self, role: str) -> Alcove:
        """Opens the store as another role than the owner of the database."""
        at = urlsplit(self.address)
        address = at._replace(netloc=f"{role}:@{at.netloc.rpartition('@')[2]}").geturl()
        return opened(self.folder, address, policy_dir=self.folder / "policy", settings=QUIET)

    def run(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.address, autocommit=True) as db:
            found = db.execute(sql.encode())
            return found.fetchall() if found.description else []

    def on_disk(self, who: Markers, folder: str = "base") -> set[tuple[str, str]]:
        """Which markers stand in which files: in tables by their name, if they have one."""
        self.run("CHECKPOINT")
        found = self.run("SELECT CAST(pg_relation_filenode(oid) AS TEXT), relname FROM pg_class")
        names = {row[0]: row[1] for row in found}
        return {
            (str(names.get(file.name.partition(".")[0], file.name)), marker)
            for file in (self._server.data / folder).rglob("*")
            if file.is_file()
            for marker in who.found_in(file.read_bytes())
        }


@pytest.fixture
def place(tmp_path: Path, server: Server) -> Place:
    return Place(tmp_path, server)


@pytest.fixture
def al() -> Markers:
    return Markers.new()


def plain(found: set[tuple[str, str]]) -> set[str]:
    return {marker for _, marker in found}


def erased(receipt: Receipt) -> bool:
    return receipt.scrubbed and receipt.key_destroyed


def test_after_a_wipe_no_data_file_of_the_database_has_a_byte_of_the_user(place: Place, al: Markers) -> None:
    others = Markers.new()
    with place.open() as memory:
        key = memory.admin.create_api_key(client=al.client, user=al.user)
        fill(memory, al, others, rows=300)
        alice = memory.as_user(al.user)
        for n in range(20):
            alice.touch(
                ("user", al.user, f"{al.namespace}-1"), f"{1 * 7919 % 1000}-{al.key}-1", ttl_seconds=n + 1000
            )
        place.run("ANALYZE")  # as the server does by itself: samples of texts and keys
        assert plain(place.on_disk(al)) == PLAIN
        assert erased(receipt := memory.wipe(al.user))
        assert place.on_disk(al) == set()
        assert plain(place.on_disk(others)) == PLAIN
        assert receipt.removed["api_keys"] == 1
        assert key
        assert_sound(memory)


def test_after_a_wipe_of_everybody_no_statistics_of_empty_tables_tell_of_them(
    place: Place, al: Markers
) -> None:
    with place.open(embedder=Bag()) as memory:
        fill(memory, al, rows=100)
        until(lambda: memory.admin.index().waiting == 0)
        until(lambda: place.run("SELECT 1 FROM pg_tables WHERE tablename = 'windows'"))
        until(lambda: place.run("SELECT 1 FROM windows LIMIT 1"))
        place.run("ANALYZE")
        assert "pg_statistic" in {table for table, _ in place.on_disk(al)}
        assert erased(memory.wipe(al.user))
        assert place.on_disk(al) == set()
        assert place.run("SELECT 1 FROM versions") == place.run("SELECT 1 FROM to_index") == []
        memory.as_user("bob").put(("user", "bob"), "k", {"topic": "tea"}, index={"text": "tea"})
        assert_sound(memory)


def test_what_was_deleted_or_expired_before_a_wipe_is_gone_after_it_too(place: Place, al: Markers) -> None:
    with place.open() as memory:
        fill(memory, al, rows=200)
        alice = memory.as_user(al.user)
        alice.memories.eraser.clear(alice.principal, ("user", al.user, f"{al.namespace}-1"))
        place.run("VACUUM")
        assert erased(memory.wipe(al.user))
        assert place.on_disk(al) == set()


def test_a_store_that_is_split_by_tenant_is_scrubbed_in_every_part(place: Place, al: Markers) -> None:
    others = Markers.new()
    with place.open() as memory:
        fill(memory, al, others, rows=100)
    split(place.address, "{agent:b,user:h,user:u}")
    with place.open() as memory:
        fill(memory, al, rows=100)
        place.run("ANALYZE")
        assert erased(memory.wipe(al.user))
        assert place.on_disk(al) == set()
        assert erased(memory.wipe(others.user))
        assert place.on_disk(others) == set()
        assert_sound(memory)


def test_the_receipt_names_the_log_and_its_command_empties_it(place: Place, al: Markers) -> None:
    with place.open() as memory:
        fill(memory, al, rows=100)
        receipt = memory.wipe(al.user)
        assert receipt.remains == [WAL]
        assert plain(place.on_disk(al, "pg_wal")) >= {"user", "key", "text"}
        place.run(receipt.remains[0].command)
        assert place.on_disk(al, "pg_wal") == place.on_disk(al, "") == set()


@pytest.mark.of_the_file("nothing remains of a scrub")
def test_a_file_of_sqlite_has_the_same_receipt_of_which_nothing_remains(tmp_path: Path, al: Markers) -> None:
    with Alcove(tmp_path / "memory.db", settings=QUIET, embedder=None) as memory:
        memory.as_user(al.user).put(("user", al.user), al.key, {"topic": ""})
        receipt = memory.wipe(al.user)
        assert (receipt.scrubbed, receipt.remains) == (True, [])
        assert memory.admin.verify_receipt(receipt)


def test_a_reader_who_still_sees_the_user_delays_the_scrub_and_holds_nobody_else_up(
    place: Place, al: Markers
) -> None:
    with place.open() as memory, psycopg.connect(place.address) as reader:
        fill(memory, al, rows=100)
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM marks")  # a snapshot: no lock on the tables that hold the user
        before = place.run("SELECT relfilenode FROM pg_class WHERE relname = 'versions'")
        assert not memory.wipe(al.user).scrubbed
        assert place.run("SELECT relfilenode FROM pg_class WHERE relname = 'versions'") == before
        memory.as_user("bob").put(("user", "bob"), "k", {"topic": ""})
        memory.sweep()
        assert plain(place.on_disk(al)) == PLAIN
        reader.rollback()
        memory.sweep()
        assert place.on_disk(al) == set()
        (entry,) = memory.admin.audit(action="scrub").entries
        assert entry.details == {"wipes": 1, "remains": [WAL.where]}


def test_a_rewrite_that_kept_a_row_for_a_reader_is_not_taken_for_a_scrub(
    place: Place, al: Markers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader whom this role may not see in the list of sessions is noticed by what the rewrite kept."""
    monkeypatch.setitem(STATEMENTS, "no_old_snapshots", "SELECT CAST(? AS TEXT) IS NOT NULL")
    with place.open() as memory, psycopg.connect(place.address) as reader:
        fill(memory, al, rows=100)
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        assert not memory.wipe(al.user).scrubbed
        reader.rollback()
        memory.sweep()
        assert place.on_disk(al) == set()


def test_a_scrub_does_not_queue_behind_who_holds_a_table(place: Place, al: Markers) -> None:
    with place.open() as memory, psycopg.connect(place.address) as holder:
        fill(memory, al, rows=100)
        holder.execute("LOCK TABLE replays IN ACCESS SHARE MODE")
        done = threading.Event()

        def wipe() -> None:
            assert not memory.wipe(al.user).scrubbed
            done.set()

        thread = threading.Thread(target=wipe)
        thread.start()
        bob, puts = memory.as_user("bob"), 0
        while not done.is_set():  # the same key again and again asks for the table that the scrub waits for
            bob.put(("user", "bob"), "k", {"topic": str(puts)}, idempotency_key=f"again-{puts}")
            puts += 1
        thread.join(PATIENCE)
        assert puts
        holder.rollback()
        memory.sweep()
        assert place.on_disk(al) == set()


def test_of_two_nodes_that_scrub_the_same_wipes_one_rewrites_the_tables(place: Place, al: Markers) -> None:
    with place.open() as one, place.open() as two:
        fill(one, al, rows=100)
        assert not one.wipe(al.user, wait=False).scrubbed
        files = "SELECT oid, relfilenode FROM pg_class WHERE relname = 'versions'"
        threads = [threading.Thread(target=each.sweep) for each in (one, two)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE)
        after = place.run(files)
        one.sweep()
        two.sweep()
        assert place.run(files) == after
        assert place.on_disk(al) == set()
        assert len(one.admin.audit(action="scrub").entries) == 1


def test_a_scrub_that_took_long_is_followed_by_a_rest_in_which_wipes_gather(
    place: Place, al: Markers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "LONG_SCRUB_SECONDS", 0.0)
    monkeypatch.setattr(erasure, "PAUSE_FACTOR", 1e6)
    with place.open() as memory:
        for name, scrubbed in (("carol", True), ("dave", False), (al.user, False)):
            memory.as_user(name).put(("user", name), "k", {"topic": ""})
            assert memory.wipe(name).scrubbed is scrubbed
        memory.memories._engine.erasure._paused_until = 0.0
        memory.sweep()
        assert [each.details["wipes"] for each in memory.admin.audit(action="scrub").entries] == [2, 1]
        assert place.on_disk(al) == set()


def test_the_index_by_meaning_is_made_again_after_a_scrub_beside_who_searches(
    place: Place, al: Markers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "MIN_INDEXED", 3)
    whole = "SELECT 1 FROM pg_index WHERE indisvalid AND indexrelid = to_regclass('windows_by_meaning')"
    with place.open(embedder=Bag(), settings=Settings(sweep_interval=0, indexing_interval=0.2)) as memory:
        bob = memory.as_user("bob")
        for n in range(8):
            bob.put(("user", "bob"), f"k{n}", {"topic": ""}, index={"text": f"tea {n}"}, wait_for_index=True)
        memory.as_user(al.user).put(("user", al.user), al.key, {"topic": ""}, index={"text": al.text})
        until(lambda: place.run(whole))
        before = place.run("SELECT relfilenode FROM pg_class WHERE relname = 'windows_by_meaning'")
        assert erased(memory.wipe(al.user))
        until(lambda: place.run(whole))
        assert place.run("SELECT relfilenode FROM pg_class WHERE relname = 'windows_by_meaning'") != before
        assert bob.search(("user", "bob"), query="tea 3", mode="semantic")[0].key == "k3"
        assert place.on_disk(al) == set()


def test_a_role_that_does_not_own_the_database_says_what_it_could_not_reach(
    place: Place, al: Markers
) -> None:
    with place.open_as(place.new_role()) as memory:
        fill(memory, al, rows=100)
        place.run("ANALYZE")
        receipt = memory.wipe(al.user)
        assert (receipt.scrubbed, receipt.remains) == (False, [STATISTICS, WAL])
        assert {table for table, _ in place.on_disk(al)} == {"pg_statistic"}
        place.run(receipt.remains[0].command)
        assert place.on_disk(al) == set()
        files = place.run("SELECT relfilenode FROM pg_class WHERE relname = 'versions'")
        memory.sweep()  # nothing is left to do for it here, again and again
        assert place.run("SELECT relfilenode FROM pg_class WHERE relname = 'versions'") == files


def test_a_role_that_does_not_own_the_tables_names_them_and_who_can_rewrite_them(
    place: Place, al: Markers
) -> None:
    place.open().close()
    name = place.new_role()
    for kind in ("TABLES", "SEQUENCES"):
        place.run(f"GRANT SELECT, UPDATE ON ALL {kind} IN SCHEMA public TO {name}")
    place.run(f"GRANT INSERT, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
    with place.open_as(name) as memory:
        fill(memory, al, rows=100)
        receipt = memory.wipe(al.user)
        assert not receipt.scrubbed
        foreign, *others = receipt.remains
        assert others == [STATISTICS, WAL]
        assert "versions" in foreign.where
        assert foreign.in_data_files
        assert plain(place.on_disk(al)) == PLAIN
        place.run(foreign.command)
        place.run(STATISTICS.command)
        assert place.on_disk(al) == set()


def test_statistics_of_several_columns_that_an_operator_made_are_rewritten(place: Place, al: Markers) -> None:
    others = Markers.new()
    with place.open() as memory:
        place.run(
            'CREATE STATISTICS theirs (mcv, ndistinct, dependencies) ON "user", client, kind FROM versions'
        )
        fill(memory, al, others, rows=100)
        place.run("ANALYZE")
        assert "pg_statistic_ext_data" in {table for table, _ in place.on_disk(al)}
        assert erased(memory.wipe(al.user))
        assert place.on_disk(al) == set()
        assert erased(memory.wipe(others.user))
        assert place.on_disk(others) == set()


def test_every_table_of_a_store_is_among_those_that_are_rewritten(place: Place) -> None:
    with place.open(embedder=Bag()) as memory:
        memory.put(("user", "noop"), "k", {"topic": ""}, index={"text": "tea"}, wait_for_index=True)
        until(lambda: place.run("SELECT 1 FROM pg_class WHERE relname = 'windows'"))
        there = place.run(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        assert {name for (name,) in there} == {*postgres_scrub.table_names()}
