"""A reranker, over HTTP or as a function: it orders the first hits, sees what the caller may, can fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from email.message import Message
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, Namespace
from alcove.core.errors import InvalidRequest
from alcove.core.principal import Grant, Principal
from alcove.search.rerankers import RERANKED_HITS, RemoteReranker
from tests.support.hashed_embedder import Bag
from tests.support.json_service import answering

HOME = Namespace(("user", "noop"))


class Rerankers:
    """A rerank service whose scores are the numbers in the texts; `answer` replaces what it says."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answer: tuple[int, bytes] | None = None
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), answering(self._answer))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/rerank#judge"

    def _answer(self, body: dict[str, Any], headers: Message) -> tuple[int, bytes]:
        self.asked.append(body)
        self.keys.append(headers["authorization"])
        scores = [float(text.split()[-1]) for text in body["documents"]]
        results = [{"index": n, "relevance_score": score} for n, score in enumerate(scores)]
        return self.answer or (200, json.dumps({"results": results[::-1]}).encode())


@pytest.fixture
def service() -> Iterator[Rerankers]:
    service = Rerankers()
    thread = threading.Thread(target=service.server.serve_forever, args=(0.01,))
    thread.start()
    yield service
    service.server.shutdown()
    service.server.server_close()
    thread.join()


def filled(path: Path, reranker: object, count: int = 80) -> Alcove:
    memory = Alcove(path / "memory.db", embedder=Bag(), reranker=reranker)  # type: ignore[arg-type]
    for n in range(count):
        memory.put(HOME, f"k{n}", {}, index={"text": f"tea {n}"})
    memory.search(HOME, query="tea", wait_for_index=True)
    return memory


def test_the_first_hits_are_in_the_rerankers_order_on_every_page(tmp_path: Path, service: Rerankers) -> None:
    with filled(tmp_path, RemoteReranker(service.url, key="secret")) as memory:
        plain = [hit.key for hit in memory.search(HOME, query="tea", mode="keyword", limit=100)]
        whole = memory.search(HOME, query="tea", limit=100, explain=True)
        keys = [hit.key for hit in whole]
        first = [int(key[1:]) for key in keys[:RERANKED_HITS]]
        assert first == sorted(first, reverse=True)
        assert sorted(keys) == sorted(plain)
        pages = [memory.search(HOME, query="tea", limit=7, offset=n) for n in range(0, 80, 7)]
        assert [hit.key for page in pages for hit in page] == keys
        assert whole[0].explain
        assert whole[0].explain["reranker"].rank == 1
        assert "reranker" not in (whole[RERANKED_HITS].explain or {})
        asked = service.asked[-1]
        assert (asked["model"], asked["query"], asked["top_n"]) == ("judge", "tea", RERANKED_HITS)
        assert set(service.keys) == {"Bearer secret"}
        before = len(service.asked)
        memory.search(HOME, query="tea", offset=RERANKED_HITS)
        memory.search(HOME, query="tea", mode="semantic")
        memory.search(HOME, query="tea", mode="keyword")
        assert len(service.asked) == before, "nothing that it orders was asked for"


def test_any_function_will_do_and_sees_only_what_the_caller_may_see(tmp_path: Path) -> None:
    seen: list[str] = []

    def shortest(question: str, texts: Sequence[str]) -> list[float]:
        seen.extend(texts)
        return [-len(text) for text in texts]

    with filled(tmp_path, shortest, 12) as memory:
        alice = memory.as_principal(Principal("alice", grants=(Grant(Namespace(("org",))),)))
        for text in ("tea", "tea and cake"):
            alice.put(("org",), text, {}, index={"text": text})
        private = Namespace(("user", "alice"))
        alice.put(private, "own", {}, index={"text": "tea and cake of her own"})
        seen.clear()
        found = alice.search(("org",), query="tea and cake")
        assert [hit.key for hit in found] == ["tea", "tea and cake"]
        assert sorted(seen) == ["tea", "tea and cake"]


BAD = {
    "an error": (500, b"{}"),
    "no JSON": (200, b"<html>"),
    "too few": (200, b'{"results": [{"index": 0, "relevance_score": 1}]}'),
    "words": (200, b'{"results": [{"index": 0, "relevance_score": "much"}]}'),
    "NaN": (
        200,
        json.dumps({"results": [{"index": n, "relevance_score": float("nan")} for n in range(9)]}).encode(),
    ),
    "a redirect": (302, b""),
}


@pytest.mark.parametrize("what", BAD)
def test_where_it_fails_the_search_answers_in_its_own_order_and_says_so(
    tmp_path: Path, service: Rerankers, what: str
) -> None:
    service.answer = BAD[what]
    with filled(tmp_path, service.url, 9) as memory:
        found = memory.search(HOME, query="tea 3")
        assert found[0].key == "k3"
        assert "own order" in str(found.degraded)
        service.answer = None
        again = memory.search(HOME, query="tea 3")
        assert (again[0].key, again.degraded) == ("k8", None)


def test_a_function_that_raises_does_not_fail_the_search(tmp_path: Path) -> None:
    def raising(question: str, texts: Sequence[str]) -> list[float]:
        raise RuntimeError("out of order")

    with filled(tmp_path, raising, 3) as memory:
        found = memory.search(HOME, query="tea 1")
        assert (found[0].key, len(found)) == ("k1", 3)
        assert "RuntimeError: out of order" in str(found.degraded)


@pytest.mark.parametrize(
    "url", ["judge", "ftp://host/rerank#judge", "http://host/rerank", "http://host/rerank#m&top=3"]
)
def test_a_url_that_names_no_reranker_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="reranker"):
        RemoteReranker(url)
