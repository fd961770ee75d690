"""What one node does holds on the others: two processes over one PostgreSQL."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from alcove.engine.postgres.database import WRITER_LOCK
from tests.support.conversation_service import written as written_specs
from tests.support.embeddings import embeddings
from tests.support.postgres import new_database
from tests.support.postgres_nodes import HOME, node, opened, two_nodes
from tests.support.processes import Process
from tests.support.service import Service, environment
from tests.support.waiting import PATIENCE, until

SKEW = 30
NDJSON = {"content-type": "application/x-ndjson"}


CLOSED = """package memories.authz
default decision := {"allow": false, "reason": "closed for today"}
"""


class Nodes(NamedTuple):
    """Two of them, and the key of an operator."""

    one: Service
    two: Service
    key: str

    def versions(self) -> list[dict[str, str]]:
        return [each.call("GET", "/readyz").json()["versions"] for each in (self.one, self.two)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder, address = tmp_path_factory.mktemp("nodes"), new_database()
    with opened(folder, address) as memory:
        key = memory.admin.create_api_key(client="ops", user="root", roles=["admin"])
    with two_nodes(folder, address, "--auth", "apikey") as (one, two):
        yield Nodes(one, two, key)


def test_a_policy_put_at_one_node_is_what_the_other_goes_by(nodes: Nodes) -> None:
    one, two, key = nodes
    home = ["user", "root"]
    assert two.put(home, "before", {}, key).status_code == 200
    before = nodes.versions()
    assert before[0] == before[1]
    assert one.call("PUT", "/v1/admin/policies", key, json={"authz": CLOSED}).is_success
    assert two.put(home, "after", {}, key).status_code == 403
    assert two.get(home, "before", key).status_code == 403
    after = nodes.versions()
    assert after[0] == after[1]
    assert int(after[0]["policies"]) > int(before[0]["policies"])
    assert two.call("PUT", "/v1/admin/policies", key, json={}).is_success
    assert one.get(home, "before", key).status_code == 200


def test_an_api_key_revoked_at_one_node_opens_nothing_at_the_other(nodes: Nodes) -> None:
    one, two, key = nodes
    given = one.call("POST", "/v1/admin/apikeys", key, json={"client": "app", "user": "alice"}).json()["key"]
    assert two.look(given).status_code == 200
    (known,) = [
        each for each in two.call("GET", "/v1/admin/apikeys", key).json()["keys"] if each["client"] == "app"
    ]
    assert one.call("DELETE", f"/v1/admin/apikeys/{known['id']}", key).is_success
    assert two.look(given).status_code == 401


def test_what_is_wiped_at_one_node_is_gone_at_the_other_that_had_it_in_mind(nodes: Nodes) -> None:
    one, two, key = nodes
    hers = {"client": "hers", "user": "bea"}
    given = one.call("POST", "/v1/admin/apikeys", key, json=hers).json()["key"]
    home, asked = ["user", "bea"], {"namespace_prefix": ["user", "bea"], "query": "tea", "mode": "keyword"}
    body = {"namespace": home, "key": "drink", "value": {"likes": "tea"}, "index": {"text": "tea"}}
    assert one.call("PUT", "/v1/memories", given, json=body).status_code == 200
    assert two.get(home, "drink", given).json()["value"] == {"likes": "tea"}
    assert "drink" in two.call("POST", "/v1/memories/search", given, json=asked).text
    assert one.call("POST", "/v1/admin/users/bea/wipe", key, json={}).is_success
    assert two.look(given).status_code == 401, "her keys went with her"
    given = two.call("POST", "/v1/admin/apikeys", key, json=hers).json()["key"]
    assert two.get(home, "drink", given).status_code == 404
    assert "drink" not in two.call("POST", "/v1/memories/search", given, json=asked).text
    assert two.put(home, "drink", {"likes": "coffee"}, given).status_code == 200, "under a new data key"
    assert one.get(home, "drink", given).json()["value"] == {"likes": "coffee"}


def test_nodes_whose_clocks_differ_go_by_the_clock_of_the_database(tmp_path: Path) -> None:
    address = new_database()
    with (
        node(tmp_path, address) as one,
        node(tmp_path, address, skew=SKEW) as ahead,
        node(tmp_path, address, skew=-SKEW) as behind,
    ):
        body = {"namespace": HOME, "key": "short", "value": {}, "ttl_seconds": SKEW - 5}
        assert one.call("PUT", "/v1/memories", json=body).status_code == 200
        assert ahead.get(HOME, "short").status_code == 200, "it is not over yet by anybody's clock"
        written = []
        with psycopg.connect(address, autocommit=True) as db:
            for each in (behind, ahead, one, behind):
                ((before,),) = db.execute("SELECT clock_timestamp() - interval '1 second'").fetchall()
                told = each.put(HOME, "when", {}).json()["created_at"]
                ((after,),) = db.execute("SELECT clock_timestamp() + interval '1 second'").fetchall()
                written.append(datetime.fromisoformat(told))
                assert before < written[-1] < after
        assert written == sorted(written)
        soon = (datetime.now(UTC) + timedelta(seconds=SKEW - 5)).isoformat()
        line = json.dumps({"namespace": HOME, "key": "brought", "value": {}, "expires_at": soon})
        assert ahead.call("POST", "/v1/memories/import", content=line, headers=NDJSON).json()["imported"] == 1


def test_a_text_written_by_a_node_that_indexes_nothing_is_indexed_by_one_that_hears_of_it(
    tmp_path: Path,
) -> None:
    address = new_database()
    with embeddings() as service:
        model = ("--embedder", f"{service.url}#bag")
        with (
            node(tmp_path, address, *model, "--indexing-interval", 0) as writes,
            node(tmp_path, address, *model, "--indexing-interval", 3600) as hears,
        ):
            for n in range(3):
                body = {"namespace": HOME, "key": f"k{n}", "value": {}, "index": {"text": f"tea {n}"}}
                assert writes.call("PUT", "/v1/memories", json=body).status_code == 200
                until(lambda done=n + 1: hears.call("GET", "/v1/admin/index").json()["indexed"] == done)  # type: ignore[misc]


@contextmanager
def worker(folder: Path, address: str, *flags: object) -> Iterator[Process]:
    """`alcove worker` for the length of a `with`; no stack may be in what it says."""
    words, said = ["worker", "--engine", address, *map(str, flags)], folder / "worker"
    started = Process(words, folder=folder, says=said, env=environment(ALCOVE_STATE=str(folder)))
    try:
        yield started
    finally:
        started.end()
    assert "Traceback" not in said.read_text()


def test_a_worker_indexes_and_sweeps_for_nodes_that_do_not_and_ends_when_told_to(tmp_path: Path) -> None:
    address = new_database()
    with embeddings() as service:
        model = ["--embedder", f"{service.url}#bag"]
        with (
            node(tmp_path, address, *model, "--indexing-interval", 0, "--sweep-interval", 0) as one,
            worker(tmp_path, address, *model, "--sweep-interval", "0.1") as working,
        ):
            body = {"namespace": HOME, "key": "k", "value": {}, "index": {"text": "tea"}, "ttl_seconds": 1}
            assert one.call("PUT", "/v1/memories", json=body).status_code == 200
            until(lambda: service.embedded)
            asked = {"ns": HOME, "kinds": "expired"}
            until(lambda: one.call("GET", "/v1/memories/events", params=asked).json()["events"])
            working.signal(signal.SIGTERM)
            assert working.wait(PATIENCE) == 0


def test_a_worker_keeps_knowledge_in_step_with_its_files(tmp_path: Path) -> None:
    address, specs = new_database(), written_specs(tmp_path)
    with opened(tmp_path, address) as memory:
        agents = memory.agents(specs)
        assert not agents.documents("manuals")
        with worker(tmp_path, address, "--agents", specs, "--embedder", "none"):
            until(lambda: [each.name for each in agents.documents("manuals")] == ["espresso.md"])


def test_a_worker_summarises_the_conversations_of_a_node_that_was_killed(tmp_path: Path) -> None:
    address, specs = new_database(), tmp_path / "agents.yaml"
    specs.write_text("agents: [{name: helper, memory: {session_memory: {idle_seconds: 2}}}]")
    with node(tmp_path, address, "--agents", specs, "--embedder", "none") as one:
        said = [
            {"role": "user", "content": "My sister lives in Rome."},
            {"role": "assistant", "content": "Ah."},
        ]
        path = "/v1/agents/helper/sessions/monday/turns"
        assert one.call("POST", path, json={"messages": said}).is_success
        one.signal(signal.SIGKILL)
        one.wait()
    with opened(tmp_path, address) as memory:
        agents = memory.agents(specs).as_user("noop")
        assert not agents.summary("helper").points
        with worker(tmp_path, address, "--agents", specs, "--embedder", "none"):
            until(lambda: agents.summary("helper").points)
        summary = agents.summary("helper")
        assert [point.text for point in summary.points] == ["My sister lives in Rome."]
        assert (summary.conversations, summary.pending) == (1, [])


def test_stores_in_schemas_of_one_database_are_apart_and_do_not_wait_for_one_another(tmp_path: Path) -> None:
    address = new_database()
    with psycopg.connect(address, autocommit=True) as database:
        database.execute("CREATE SCHEMA one; CREATE SCHEMA two")
    more = "&" if "?" in address else "?"
    one, two = (f"{address}{more}options=-csearch_path%3D{name}%2Cpublic" for name in ("one", "two"))
    with opened(tmp_path, one) as first, opened(tmp_path, two) as second:
        for memory, said in ((first, "green tea"), (second, "black coffee")):
            memory.put(HOME, "drink", {"text": said}, index=["text"], wait_for_index=True)
        assert [found.value["text"] for found in second.search(query="a hot drink")] == ["black coffee"]
        assert len(first.events().events) == 1
        assert len([*tmp_path.glob("*.key")]) == 2
        with psycopg.connect(one) as busy, ThreadPoolExecutor() as beside:
            busy.execute(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
            waiting = beside.submit(first.put, HOME, "later", {})
            second.put(HOME, "now", {})
            assert not waiting.done()
            busy.rollback()
            waiting.result(PATIENCE)
