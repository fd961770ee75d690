"""Nodes with a Qdrant beside their database, which is killed: here the local mode of Qdrant's client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from alcove.engine.qdrant.index import AWAY, CHECK_NAME
from tests.support.embeddings import embeddings
from tests.support.postgres import new_database
from tests.support.postgres_nodes import HOME, two_nodes
from tests.support.qdrant import KEY, running
from tests.support.service import Service, alcove
from tests.support.waiting import until


def put(node: Service, key: str, text: str) -> None:
    body = {"namespace": HOME, "key": key, "value": {}, "index": {"text": text}, "wait_for_index": True}
    assert node.call("PUT", "/v1/memories", json=body).status_code == 200


def found(node: Service, query: str) -> dict[str, Any]:
    answer = node.call("POST", "/v1/memories/search", json={"namespace_prefix": HOME, "query": query})
    assert answer.status_code == 200
    return answer.json()  # type: ignore[no-any-return]


def test_while_the_local_mode_of_qdrant_is_away_nodes_write_and_search_and_say_so(tmp_path: Path) -> None:
    address = new_database()
    with running(tmp_path / "qdrant") as qdrant, embeddings() as service:
        environment = {"ALCOVE_VECTORS": qdrant.address, "ALCOVE_QDRANT_KEY": KEY}
        flags = ("--vectors", qdrant.address, "--qdrant-key", KEY, "--embedder", f"{service.url}#bag",
                 "--search-memory-texts", 5, "--indexing-interval", 0.5)  # fmt: skip
        with two_nodes(tmp_path, address, *flags) as (one, other):
            for n in range(8):
                put(one, f"k{n}", f"tea number{n}")
            until(lambda: not found(other, "number3").get("degraded"))
            qdrant.kill()
            put(one, "late", "a zeppelin")
            answer = found(other, "zeppelin")
            assert (answer["items"][0]["key"], answer["degraded"]) == ("late", AWAY)
            ready = other.call("GET", "/readyz")
            assert (ready.status_code, ready.json()["checks"]["engine"]) == (200, AWAY)
            qdrant.start()
            for node in (one, other):
                until(lambda node=node: not found(node, "zeppelin").get("degraded"))  # type: ignore[misc]
            environment |= {"ALCOVE_STATE": str(tmp_path), "ALCOVE_EMBEDDER": "none"}
            said = alcove("doctor", "--at", address, env=environment).output
            assert re.search(rf"ok +9  {CHECK_NAME}", said), said
