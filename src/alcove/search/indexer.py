"""The indexer: gives what was written its vectors, soon after the write and never instead of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence

from alcove.core.clock import SECOND, Clock
from alcove.core.errors import AlcoveError
from alcove.engine.base import Index
from alcove.engine.rows import Embedded, TextToIndex
from alcove.search.embedders import Embedder
from alcove.search.pieces import PROBE, checked, cut, dimensions_of, embedded, joined, vectors_of

log = logging.getLogger("alcove")

LEASE_SECONDS = 120
"""How long a claim holds; a process that dies with it delays its texts by that much."""
MOST_TRIES = 5
"""Failures of a text's own, while the embedder takes others, after which it is parked."""
STEP_BYTES = 8 * 1024
"""Text embedded in one step, about a quarter of a second: so long others wait for who has written much."""
LONGEST_PAUSE = 60
STOP_SECONDS = 15


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
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopping = False
        self._told = ""
        self._outages = 0
        self._dimensions: int | None = None

    def wake(self) -> None:
        """There is something to index."""
        with self._starting:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="alcove-index", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Waits some seconds for the batch under way; what is not done is claimed again at the next start."""
        with self._starting:
            self._stopping = True
        self._wake.set()
        if self._thread:
            self._thread.join(STOP_SECONDS)

    def pauses(self, seq: int, seconds: float) -> Iterator[float]:
        """Ends when a version has its vectors, failed to get them, or has waited for so long.

        Until then it yields how long to pause before looking again: a thread sleeps, an event loop awaits.
        The longer it has waited the longer it pauses, so that many who wait for long cost next to nothing.
        """
        self.wake()
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < seconds and not self._stopping:
            waits, error = self._index.waits(seq)
            if not waits or error is not None or self._index.serving() not in (None, self._embedder.name):
                return
            yield min(max(waited / 8, 0.002), seconds - waited)

    def step(self) -> int:
        """Indexes one batch; how many texts it took."""
        now = self._clock()
        if (due := self._index.next_due()) is None or due > now:
            return 0
        name = self._embedder.name
        if self._index.serving(first=name) != name:
            self._tell(f"the index is of another model than {name}: run `alcove reindex`")
            return 0
        until = now + LEASE_SECONDS * SECOND
        texts = self._index.claim(now=now, until=until, limit=self._batch, size=STEP_BYTES)
        if texts:
            self._take(texts)
        return len(texts)

    def _take(self, texts: Sequence[TextToIndex]) -> None:
        """Embeds and stores texts; if that fails but the embedder takes a probe, tries each by itself."""
        try:
            pieces = self._embedded(texts)
        except Exception as error:
            try:
                checked(self._embedder.embed([PROBE]), 1, self._expected())
            except Exception:
                self._outages += 1
                self._put_back(texts, error, tries=self._outages, counted=False)
            else:
                for text in texts:
                    self._take_alone(text)
        else:
            self._keep(pieces)

    def _take_alone(self, text: TextToIndex) -> None:
        try:
            pieces = self._embedded([text])
        except Exception as error:
            self._put_back([text], error, tries=text.tries)
        else:
            self._keep(pieces)

    def _embedded(self, texts: Sequence[TextToIndex]) -> list[Embedded]:
        pieces = [cut(self._embedder, text, STEP_BYTES) for text in texts]
        return [*map(self._with_earlier, vectors_of(self._embedder, pieces, self._expected()))]

    def _keep(self, pieces: Sequence[Embedded]) -> None:
        self._outages = 0
        if not self._index.store(self._embedder.name, pieces):
            self._tell("the index is of another model by now")

    def _with_earlier(self, piece: Embedded) -> Embedded:
        """A piece of a text; if it is the last one, with the vectors of the pieces before it."""
        text = piece.text
        if piece.rest or not (text.field or text.window):
            return piece
        return piece._replace(body=joined([*self._index.pieces(text.seq), piece.body]))

    def _expected(self) -> int | None:
        """The dimensions that the index has, if it has any vectors yet."""
        if self._dimensions is None and (body := self._index.some_vectors(self._embedder.name)):
            self._dimensions = dimensions_of(body)
        return self._dimensions

    def _put_back(
        self, texts: Sequence[TextToIndex], error: Exception, *, tries: int, counted: bool = True
    ) -> None:
        park = counted and tries >= MOST_TRIES
        due = None if park else self._clock() + min(2 ** min(tries, 6), LONGEST_PAUSE) * SECOND
        words = error.message if isinstance(error, AlcoveError) else f"{type(error).__name__}: {error}"
        self._tell(f"{len(texts)} texts are not indexed: {words}; {'parked' if park else 'trying again'}")
        self._index.postpone([text.seq for text in texts], due, words, counted=counted)

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
        """Until the next text is due, at most the interval; what is due and was not taken cannot be."""
        try:
            due = self._index.next_due()
        except AlcoveError:
            due = None
        ahead = 0.0 if due is None else (due - self._clock()) / SECOND
        return min(max(ahead, 0.05), self._interval) if ahead > 0 else self._interval


def reindex(index: Index, embedder: Embedder, batch: int) -> Iterator[int]:
    """Embeds every text anew with another embedder, then serves its vectors; how many it has done so far.

    The old ones serve until then. What was done is kept, so that one that was broken off goes on. A text
    that the embedder does not take, while it takes others, is parked.
    """
    name, done, after = embedder.name, 0, 0
    parked: dict[int, str] = {}
    kept = index.some_vectors(name)
    dimensions = checked(embedder.embed([PROBE]), 1, None).shape[1]
    if kept and dimensions_of(kept) not in (None, dimensions):
        index.drop(name)  # of a model that had the same name: they cannot be searched
    while not index.switch(name, parked):
        while texts := index.unembedded(name, after=after, limit=batch):
            after = texts[-1].seq
            index.keep(name, _all_but_bad(embedder, texts, dimensions, parked))
            done += len(texts)
            yield done
        after = 0  # some came meanwhile: from the front, without those that are parked


def _all_but_bad(
    embedder: Embedder, texts: Sequence[TextToIndex], dimensions: int, bad: dict[int, str]
) -> list[tuple[int, bytes]]:
    """The vectors of all texts that can have them."""
    texts = [text for text in texts if text.seq not in bad]
    try:
        return embedded(embedder, texts, dimensions)
    except Exception as error:
        checked(embedder.embed([PROBE]), 1, dimensions)  # raises if it is the embedder and no text
        if len(texts) == 1:
            bad[texts[0].seq] = error.message if isinstance(error, AlcoveError) else repr(error)
            return []
    half = len(texts) // 2
    return [
        *_all_but_bad(embedder, texts[:half], dimensions, bad),
        *_all_but_bad(embedder, texts[half:], dimensions, bad),
    ]
