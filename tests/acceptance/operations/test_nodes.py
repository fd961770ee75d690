"""What one node does holds on the others: two processes over one PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psycopg
import pytest

from tests.support.embeddings import embeddings
from tests.support.nodes import HOME, node, two_nodes
from tests.support.patience import until
from tests.support.postgres import new_database
from tests.support.service import Service

SKEW = 30


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    with two_nodes(tmp_path_factory.mktemp("nodes"), new_database()) as running:
        yield running


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
