"""Indexing through crashes and with embedders that are down, slow or talk nonsense: nothing is lost."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, Grant, Namespace, Principal, Settings
from alcove.core.clock import SECOND, system_clock
from alcove.search.embedders import EmbedderUnavailable, Matrix
from alcove.search.embedders.openai import RemoteEmbedder
from tests.support.child_programs import say, started
from tests.support.clock import ManualClock
from tests.support.embeddings import POISON, Embeddings, embeddings
from tests.support.hashed_embedder import Bag
from tests.support.store_inspection import query
from tests.support.waiting import LONG, until

BUSY = Settings(sweep_interval=0, indexing_interval=0.05, indexing_batch=20)
HOME = ("user", "noop")
KILLS = 20 if LONG else 4
TEXTS = 600
"""More than one step of a reindex takes."""


class Stuck(Bag):
    """Embeds nothing, and says that it has begun."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        say("embedding")
        time.sleep(600)
        raise AssertionError


class Breaking(Bag):
    """Says when it has answered once, and then gets stuck with more."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        if len(texts) > 1 and not hasattr(self, "answered"):
            self.answered = True
            return super().embed(texts)
        if len(texts) > 1:
            say("half-way")
            time.sleep(600)
        return super().embed(texts)


@pytest.fixture
def service() -> Iterator[Embeddings]:
    with embeddings() as running:
        yield running


def later() -> int:
    """A clock by which every claim has run out."""
    return system_clock() + 1000 * SECOND


def opened(path: Path, embedder: object, clock: object = system_clock, settings: Settings = BUSY) -> Alcove:
    return Alcove(path, settings=settings, embedder=embedder, clock=clock)  # type: ignore[arg-type]


def _put(n: int) -> dict[str, object]:
    return {"op": "put", "namespace": HOME, "key": f"k{n}", "value": {}, "index": {"text": f"tea {n}"}}


def sound(memory: Alcove) -> None:
    assert [each for each in memory.doctor() if each.wrong] == []


def settled(memory: Alcove) -> None:
    until(lambda: memory.admin.index().waiting == 0)


def test_what_a_killed_indexer_had_claimed_is_indexed_by_another_once_its_claim_runs_out(path: Path) -> None:
    with started(path.with_name("said"), __name__, "stuck", path) as child:
        child.wait_for("embedding")
        child.kill()
    with opened(path, Bag()) as memory:
        memory.put(HOME, "later", {}, index={"text": "tea"}, wait_for_index=True)
        status = memory.admin.index()
        assert (status.indexed, status.waiting) == (1, 20), "claimed, and never marked as indexed"
        sound(memory)
    with opened(path, Bag(), later) as memory:
        memory.admin.trigger_index()
        settled(memory)
        assert memory.admin.index().indexed == 21
        assert len(memory.search(HOME, query="tea", mode="semantic", limit=100)) == 21


def test_no_kill_at_any_moment_loses_a_text_or_marks_one_without_vectors(path: Path) -> None:
    chance, written = random.Random(1), 0
    for n in range(KILLS):
        said = path.with_name(f"said-{n}")
        with started(said, __name__, "writing", path, n) as child:
            child.wait_for("0")
            time.sleep(chance.random() / 3)
            child.kill()
        written += len(said.read_text().splitlines())
    with opened(path, Bag(), later) as memory:
        sound(memory)
        memory.admin.trigger_index()
        settled(memory)
        pages = range(0, written + 1000, 1000)
        live = sum(len(memory.list(HOME, limit=1000, offset=at)) for at in pages)
        assert live >= written
        assert memory.admin.index().indexed == live
        sound(memory)


@pytest.mark.parametrize("company", [True, False])
def test_a_text_that_cannot_be_embedded_is_parked_and_tried_again_when_told_to(
    path: Path, service: Embeddings, company: bool
) -> None:
    service.behaviour, clock = "poison", ManualClock()
    with opened(path, RemoteEmbedder(f"{service.url}#m"), clock) as memory:
        memory.put(HOME, "bad", {}, index={"text": POISON})
        if company:
            for n in range(5):
                memory.put(HOME, f"k{n}", {}, index={"text": "tea"}, wait_for_index=True)
                assert memory.search(HOME, query="tea", mode="semantic")[0].score == pytest.approx(1)

        def parked() -> bool:
            clock.advance(70)
            return bool(memory.admin.index().parked == 1)

        until(parked)
        (item,) = memory.admin.index().parked_items
        assert (item.namespace, item.key) == (HOME, "bad")
        assert "400" in item.error
        assert [m.score for m in memory.search(HOME, query=f"{POISON} x", limit=1)] == [None] or company
        service.behaviour = "well"
        memory.admin.trigger_index()
        settled(memory)
        assert memory.admin.index().parked == 0
        assert memory.search(HOME, query=POISON, mode="semantic", limit=1)[0].key == "bad"


@pytest.mark.parametrize("behaviour", ["down", "slow", "garbage", "dimensions", "nan", "refuses"])
def test_a_faulty_embedder_stops_no_write_and_no_search_and_the_index_catches_up(
    path: Path, service: Embeddings, behaviour: str
) -> None:
    with opened(path, RemoteEmbedder(f"{service.url}#m")) as memory:
        memory.put(HOME, "before", {}, index={"text": "rain"}, wait_for_index=True)
    service.behaviour = behaviour
    if behaviour == "down":
        service.stop()
    # Another process, which has never seen the embedder well.
    with opened(path, RemoteEmbedder(f"{service.url}#m", timeout=0.3)) as memory:
        memory.put(HOME, "k", {}, index={"text": "tea"}, wait_for_index=True)
        assert memory.get(HOME, "k")
        found = memory.search(HOME, query="tea")
        assert found.degraded, behaviour
        assert [(m.key, m.score) for m in found][:1] == [("k", None)]
        with pytest.raises(EmbedderUnavailable):
            memory.search(HOME, query="tea", mode="semantic")
        assert [m.key for m in memory.search(HOME, query="tea", mode="keyword")] == ["k"]
        status = memory.admin.index()
        assert (status.indexed, status.waiting, status.parked) == (1, 1, 0)
        if behaviour == "down":
            service.start()
        service.behaviour = "well"
        settled(memory)
        found = memory.search(HOME, query="tea", mode="semantic")
        assert found.degraded is None
        assert [m.key for m in found] == ["k", "before"]


def test_vectors_go_with_their_version_and_none_of_their_bytes_outlives_a_wipe(path: Path) -> None:
    with opened(path, Bag()) as memory:

        def bodies() -> list[Any]:
            return [body for (body,) in query(path, "SELECT body FROM vectors ORDER BY seq")]

        for n in range(4):
            memory.put(HOME, f"k{n}", {}, index={"text": f"tea {n}"}, wait_for_index=True)
        first = bodies()
        memory.put(HOME, "k0", {}, index={"text": "rain"})
        assert first[0] not in bodies()
        memory.delete(HOME, "k1")
        assert first[1] not in bodies()
        memory.touch(HOME, "k2", ttl_seconds=1)
        time.sleep(1.05)
        memory.sweep()
        assert first[2] not in bodies()
        settled(memory)
        seen = [*first, *bodies()]
        assert len(bodies()) == 2
        assert memory.wipe("noop").scrubbed
        assert bodies() == []
        left = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert [body for body in seen if body[40:72] in left] == []


def test_of_a_writer_who_is_wiped_while_texts_wait_nothing_is_left_in_the_queue(path: Path) -> None:
    room = Namespace(("org",))
    with opened(path, Bag(), settings=Settings(sweep_interval=0, indexing_interval=0)) as memory:
        mallory = memory.as_principal(Principal("mallory-4711", grants=(Grant(room),)))
        mallory.put(room, "k", {}, index={"text": "tea"})
        mallory.put(("user", "mallory-4711"), "k", {}, index={"text": "rain"})
        assert memory.wipe("mallory-4711", shared="anonymise").scrubbed
        assert memory.admin.index().waiting == 1
        files = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
        assert b"mallory-4711" not in b"".join(file.read_bytes() for file in files)


def test_another_embedder_is_not_mixed_in_and_serves_once_everything_has_its_vectors(path: Path) -> None:
    with opened(path, Bag("one")) as old:
        for n in range(0, TEXTS, 300):
            old.batch([_put(k) for k in range(n, n + 300)])
        settled(old)
        with opened(path, Bag("two", 32)) as new:
            found = new.search(HOME, query="tea 7")
            assert "alcove reindex" in str(found.degraded)
            assert found
            assert found[0].score is None
            with pytest.raises(EmbedderUnavailable, match="alcove reindex"):
                new.search(HOME, query="tea 7", mode="semantic")
            new.put(
                HOME, "new", {}, index={"text": "rain"}, wait_for_index=True
            )  # which it does not wait for
        with started(path.with_name("said"), __name__, "reindex", path) as child:
            child.wait_for("half-way")
            assert old.search(HOME, query="tea 7", mode="semantic", limit=1)[0].key == "k7"
            child.kill()
        assert old.admin.index().serving == "one"
        # The old vectors serve until the switch; what came meanwhile gets some, too.
        until(lambda: old.search(HOME, query="tea 7").degraded is None)
        with opened(path, Bag("two", 32)) as new:
            steps = list(new.admin.reindex())
            assert (steps[0], steps[-1]) == (50, TEXTS + 1), "the first step was kept"
            assert new.search(HOME, query="tea 7", mode="semantic", limit=1)[0].score == pytest.approx(1)
            assert "alcove reindex" in str(old.search(HOME, query="tea 7").degraded)
            status = new.admin.index()
            assert (status.serving, status.indexed, status.waiting) == ("two", TEXTS + 1, 0)
            sound(new)


def test_a_reindex_parks_what_its_embedder_does_not_take(path: Path, service: Embeddings) -> None:
    with opened(path, Bag("one")) as old:
        for n in range(9):
            text = POISON if n == 4 else "tea"
            old.put(HOME, f"k{n}", {}, index={"text": text}, wait_for_index=True)
    service.behaviour = "poison"
    with opened(path, RemoteEmbedder(f"{service.url}#two")) as new:
        list(new.admin.reindex())
        status = new.admin.index()
        assert (status.serving, status.indexed, status.parked) == ("two", 8, 1)
        assert status.parked_items[0].key == "k4"
        sound(new)
        service.stop()
        with pytest.raises(EmbedderUnavailable):
            list(new.admin.reindex())


def test_the_doctor_compares_vectors_with_memories(path: Path) -> None:
    with opened(path, Bag()) as memory:
        for n in range(3):
            memory.put(HOME, f"k{n}", {}, index={"text": "tea"}, wait_for_index=True)
        sound(memory)
        query(path, "DELETE FROM vectors WHERE seq = 1")
        query(path, "UPDATE vectors SET seq = 77 WHERE seq = 2")
        wrong = {each.name: each.wrong for each in memory.doctor() if each.wrong}
        assert wrong == {
            "vectors belong to live memories": ["77"],
            "every live text has its vectors, or waits for them": ["1", "2"],
        }
        assert list(memory.admin.reindex()) == [2, 4], "as it advises"
        sound(memory)


def _stuck(path: str) -> None:
    with opened(Path(path), Stuck()) as memory:
        memory.batch([_put(n) for n in range(20)])
        time.sleep(600)


def _writing(path: str, turn: str) -> None:
    with opened(Path(path), Bag()) as memory:
        for n in range(100_000):
            text = f"tea {n} " * (4000 if n % 20 == 0 else 1)  # some in pieces
            memory.put(HOME, f"{turn}-{n}", {}, index={"text": text})
            say(n)


def _reindex(path: str) -> None:
    with opened(Path(path), Breaking("two", 32)) as memory:
        list(memory.admin.reindex())


if __name__ == "__main__":
    works: dict[str, Callable[..., None]] = {"stuck": _stuck, "writing": _writing, "reindex": _reindex}
    works[sys.argv[1]](*sys.argv[2:])
