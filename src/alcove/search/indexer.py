"""The indexer: gives what was written its vectors, soon after the write and never instead of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from alcove.clock import SECOND, Clock
from alcove.engine.base import Index, TextToIndex
from alcove.errors import AlcoveError
from alcove.search.embedders import Embedder, EmbedderUnavailable, Matrix

log = logging.getLogger("alcove")

LEASE_SECONDS = 120
"""How long a claim holds; a process that dies with it delays its texts by that much."""
ALONE_FROM = 3
"""Tries after which texts are embedded one by one, to find out which of them is the trouble."""
MOST_TRIES = 6
LONGEST_PAUSE = 60


class Indexer:
    """A thread that is woken by commits and looks by itself now and then; it starts when first needed."""

    def __init__(
        self, index: Index, embedder: Embedder, clock: Clock, *, interval: float, batch: int
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._interval = interval
        self._batch = batch
        self._wake = threading.Event()
        self._round = threading.Condition()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopping = False
        self._told = ""

    def wake(self) -> None:
        """There is something to index."""
        with self._starting:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="alcove-index", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Lets the batch that is under way finish; the rest is found again."""
        with self._starting:
            self._stopping = True
        self._wake.set()
        if self._thread:
            self._thread.join()

    def wait(self, seq: int, seconds: float) -> bool:
        """Waits until a version has its vectors; False where it failed, or took longer."""
        self.wake()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._stopping:
            waits, error = self._index.waits(seq)
            if not waits or error is not None:
                return not waits
            with self._round:
                self._round.wait(0.02)
        return False

    def step(self) -> int:
        """Indexes one batch; how many texts it took."""
        name = self._embedder.name
        if self._index.serving(first=name) != name:
            self._tell(f"the index is of another model than {name}: run `alcove reindex`")
            return 0
        now = self._clock()
        texts = self._index.claim(now=now, until=now + LEASE_SECONDS * SECOND, limit=self._batch)
        if texts and max(text.tries for text in texts) > ALONE_FROM:
            self._one_by_one(texts)
        elif texts:
            self._together(texts)
        with self._round:
            self._round.notify_all()
        return len(texts)

    def _together(self, texts: Sequence[TextToIndex]) -> None:
        try:
            bodies = [*embedded(self._embedder, texts)]
        except Exception as error:
            self._put_back(texts, error)
        else:
            self._index.store(self._embedder.name, bodies)

    def _one_by_one(self, texts: Sequence[TextToIndex]) -> None:
        """A text that fails while others do not is the trouble itself, and is parked after some tries."""
        failed: list[tuple[TextToIndex, Exception]] = []
        for text in texts:
            try:
                self._index.store(self._embedder.name, [*embedded(self._embedder, [text])])
            except Exception as error:
                failed.append((text, error))
        for text, why in failed:
            poison = len(failed) < len(texts) or not isinstance(why, EmbedderUnavailable)
            self._put_back([text], why, park=poison and text.tries >= MOST_TRIES)

    def _put_back(self, texts: Sequence[TextToIndex], error: Exception, *, park: bool = False) -> None:
        pause = min(2 ** min(text.tries for text in texts), LONGEST_PAUSE)
        due = None if park else self._clock() + pause * SECOND
        words = error.message if isinstance(error, AlcoveError) else f"{type(error).__name__}: {error}"
        self._tell(f"{len(texts)} texts are not indexed: {words}; {'parked' if park else 'trying again'}")
        self._index.postpone([text.seq for text in texts], due, words)

    def _tell(self, words: str) -> None:
        if words != self._told:
            log.warning("indexing: %s", words)
            self._told = words

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                if self.step():
                    continue
            except AlcoveError as error:
                self._tell(error.message)
            except Exception:
                log.exception("indexing failed; trying again in %g s", self._interval)
            self._wake.wait(self._pause())

    def _pause(self) -> float:
        """Until the next text is due, at most the interval."""
        try:
            due = self._index.next_due()
        except AlcoveError:
            due = None
        ahead = self._interval if due is None else (due - self._clock()) / SECOND
        return min(max(ahead, 0.05), self._interval)


def embedded(embedder: Embedder, texts: Sequence[TextToIndex]) -> Iterator[tuple[int, bytes]]:
    """The vectors of each version's texts, as they are kept."""
    parts = [
        (number, field, window)
        for number, text in enumerate(texts)
        for field, words in msgspec.json.decode(text.index_text, type=dict[str, str]).items()
        if words.strip()
        for window in embedder.windows(words)
    ]
    rows = embedder.embed([window for _, _, window in parts]) if parts else np.zeros((0, 1), np.float32)
    found: list[dict[str, list[Matrix]]] = [{} for _ in texts]
    for (number, field, _), row in zip(parts, rows, strict=True):
        found[number].setdefault(field, []).append(row)
    for text, fields in zip(texts, found, strict=True):
        yield (
            text.seq,
            msgspec.msgpack.encode({name: np.stack(some).tobytes() for name, some in fields.items()}),
        )


def opened(body: bytes, dimensions: int) -> dict[str, Matrix]:
    """Vectors as they were kept, by field."""
    fields = msgspec.msgpack.decode(body, type=dict[str, bytes])
    return {
        name: np.frombuffer(raw, dtype=np.float32).reshape(-1, dimensions) for name, raw in fields.items()
    }
