"""Embeds what was written, in the background, soon after each write."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING

from alcove.core import cancellation, heap
from alcove.core.background import Worker
from alcove.core.clock import SECOND, Clock
from alcove.core.errors import AlcoveError
from alcove.core.threads import before_waiting
from alcove.engine.index import SearchIndex
from alcove.engine.rows import EmbeddedPiece, TextToIndex
from alcove.search.embedders import Embedder, load_numpy
from alcove.search.sources import candidate_sources
from alcove.search.text_vectors import dimensions_of, embed_texts, merge_pieces, probe_dimensions

if TYPE_CHECKING:
    from alcove.search.sources.base import CandidateSource

log = logging.getLogger("alcove")

TRIM_AFTER_TEXTS = 1000
"""Indexed texts after which free memory is given back to the system."""
LEASE_SECONDS = 15
"""How long a claim lasts; if its process dies, other processes wait that long for its texts."""
RENEW_SECONDS = 5.0
"""How often a claim is renewed while its texts are embedded."""
MAX_TRIES = 5
"""Failures of a text, while the embedder takes others, after which it is parked."""
STEP_BYTES = 8 * 1024
"""Text embedded in one step, about a quarter of a second: users with few texts wait that long for one with
many."""
REST_SECONDS = 0.05
"""Pause when nothing is due, or while others write, unless a call waits for a text.

Writers then get more of the processor, and their texts share the next step."""
MAX_PAUSE_SECONDS = 60
MAX_SLEEP_SECONDS = 2.0
"""How often a call that waits for the index checks whether it was cancelled."""
STOP_SECONDS = 15


class Indexer(Worker):
    """Embeds texts when a commit wakes it and at an interval; its thread starts when first needed."""

    def __init__(
        self, index: SearchIndex, embedder: Embedder, clock: Clock, *, interval: float, batch: int
    ) -> None:
        super().__init__("indexing", self._index_due, interval)
        self._index, self._embedder, self._clock, self._batch = index, embedder, clock, batch
        self._sources: list[CandidateSource] = []
        self._hurried = threading.Event()
        self._last_warning = ""
        self._outages = 0
        self._dimensions: int | None = None
        self._texts_since_trim = 0

    def stop(self, seconds: float | None = STOP_SECONDS) -> None:
        """Waits some seconds for the current batch; what it leaves is claimed again after the next start."""
        self._hurried.set()
        super().stop(seconds)

    def wait(self, seq: int, seconds: float) -> None:
        """Blocks until a version has its vectors, has failed to get them, or `seconds` have passed.

        Sleeps longer the longer it has waited, so that many long waits cost almost nothing.
        """
        self._hurried.set()
        self.wake()
        start = time.monotonic()
        while (elapsed := time.monotonic() - start) < seconds and not self.stopping:
            is_pending, error = self._index.pending_status(seq)
            is_serving = self._index.serving_embedder() in (None, self._embedder.name)
            if not is_pending or error is not None or not is_serving:
                return
            before_waiting()
            cancellation.check()
            time.sleep(min(max(elapsed / 8, 0.002), seconds - elapsed, MAX_SLEEP_SECONDS))

    def wake_if_due(self) -> None:
        """Wakes the thread if a text is due; for callers that see commits, but not their content."""
        due = self._index.next_due()
        if due is not None and due <= self._clock():
            self.wake()

    def _index_due(self) -> float:
        """Indexes a batch; returns the seconds to pause: until the next text is due, at most the interval.

        A due text that could not be claimed waits for the interval.
        """
        try:
            embedded_count = self.step()
            count, due = embedded_count + self._update_candidates(), self._index.next_due()
            self._trim_memory(embedded_count, is_idle=due is None)
            if count and (due is None or due > self._clock() or self._wake.is_set()):
                self._hurried.wait(REST_SECONDS)
                self._hurried.clear()
            if count:
                return 0.0
        except AlcoveError as error:
            self._warn(error.message)
            return self._interval
        ahead = 0.0 if due is None else (due - self._clock()) / SECOND
        return min(max(ahead, 0.05), self._interval) if ahead > 0 else self._interval

    def _trim_memory(self, count: int, *, is_idle: bool) -> None:
        """Gives memory back to the system after many texts: what embedding and writing them took is free."""
        self._texts_since_trim += count
        if is_idle and self._texts_since_trim >= TRIM_AFTER_TEXTS:
            self._texts_since_trim = 0
            heap.trim()

    def step(self) -> int:
        """Embeds one batch; returns how many texts it took."""
        now = self._clock()
        if (due := self._index.next_due()) is None or due > now:
            return 0
        name = self._embedder.name
        if self._index.serving_embedder(default=name) != name:
            self._warn(f"the index is of another model than {name}: run `alcove reindex`")
            return 0
        until = now + LEASE_SECONDS * SECOND
        texts = self._index.claim(now=now, until=until, limit=self._batch, max_bytes=STEP_BYTES)
        if texts:
            with self._renewing_claim([text.seq for text in texts], until):
                load_numpy()
                self._embed(texts)
        return len(texts)

    @contextmanager
    def _renewing_claim(self, seqs: Sequence[int], until: int) -> Iterator[None]:
        """Renews the claim of texts, in a thread, until the block ends."""
        finished = threading.Event()

        def renew() -> None:
            claimed_until = until
            while not finished.wait(RENEW_SECONDS):
                later = self._clock() + LEASE_SECONDS * SECOND
                with suppress(AlcoveError):  # while the database is away
                    self._index.renew(seqs, claimed_until, later)
                    claimed_until = later

        thread = threading.Thread(target=renew, name="alcove-renewing", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()

    def _update_candidates(self) -> int:
        """Adds some embedded texts to the database's candidate index, if it has one; returns how many."""
        if (candidates := self._index.candidates) is None:
            return 0
        if not candidates.has_backlog():
            candidates.optimize()
            return 0
        if not self._sources:
            from alcove.search.sources.memory import ScopeCache  # noqa: PLC0415  it loads numpy

            self._sources = candidate_sources(self._index, ScopeCache(0), max_texts=0)
        return sum(source.catch_up() for source in self._sources)

    def _embed(self, texts: Sequence[TextToIndex], *, has_probed: bool = False) -> None:
        """Embeds and stores texts; if that fails while the embedder takes a probe, each text by itself."""
        try:
            pieces = embed_texts(self._embedder, texts, self._expected_dimensions(), max_bytes=STEP_BYTES)
            pieces = [*map(self._complete, pieces)]
        except Exception as error:
            if has_probed:
                self._postpone(texts, error, tries=texts[0].tries)
            elif self._embedder_works():
                for text in texts:
                    self._embed([text], has_probed=True)
            else:
                self._outages += 1
                self._postpone(texts, error, tries=self._outages, counts_as_try=False)
        else:
            self._outages = 0
            if not self._index.store_vectors(self._embedder.name, pieces):
                self._warn("the index is of another model by now")

    def _embedder_works(self) -> bool:
        with suppress(Exception):
            return bool(probe_dimensions(self._embedder, self._expected_dimensions()))
        return False

    def _complete(self, piece: EmbeddedPiece) -> EmbeddedPiece:
        """A piece; the last one of a text gets the vectors of all pieces."""
        text = piece.text
        if piece.next_place or not (text.field or text.window):
            return piece
        return piece._replace(body=merge_pieces([*self._index.partial_vectors(text.seq), piece.body]))

    def _expected_dimensions(self) -> int | None:
        """The dimensions of the index, if it has vectors."""
        if self._dimensions is None and (body := self._index.newest_vectors(self._embedder.name)):
            self._dimensions = dimensions_of(body)
        return self._dimensions

    def _postpone(
        self, texts: Sequence[TextToIndex], error: Exception, *, tries: int, counts_as_try: bool = True
    ) -> None:
        """Tries texts again later; parks a text that failed too often while the embedder worked."""
        is_parked = counts_as_try and tries >= MAX_TRIES
        pause = min(2 ** min(tries, 6), MAX_PAUSE_SECONDS) * SECOND
        reason = error.message if isinstance(error, AlcoveError) else f"{type(error).__name__}: {error}"
        outcome = "parked" if is_parked else "trying again"
        self._warn(f"{len(texts)} texts are not indexed: {reason}; {outcome}")
        due = None if is_parked else self._clock() + pause
        self._index.postpone([text.seq for text in texts], due, reason, counts_as_try=counts_as_try)

    def _warn(self, message: str) -> None:
        """Logs a warning once, however often its cause repeats."""
        if message != self._last_warning:
            log.warning("indexing: %s", message)
            self._last_warning = message


def reindex(index: SearchIndex, embedder: Embedder, batch: int) -> Iterator[int]:
    """Embeds every text with another embedder, then serves its vectors; yields how many texts are done.

    The old vectors serve until then. An interrupted run continues where it stopped. A text that the embedder
    refuses, while it takes others, is parked.
    """
    load_numpy()
    name, after = embedder.name, 0
    parked: dict[int, str] = {}
    stored = index.newest_vectors(name)
    dimensions = probe_dimensions(embedder)
    if stored and dimensions_of(stored) not in (None, dimensions):
        index.drop(name)  # vectors of another model with the same name
    yield (count := index.status(name).indexed)
    while not index.switch(name, parked):
        while texts := index.texts_without_vectors(name, after=after, limit=batch):
            after = texts[-1].seq
            pieces = _embed_all_but_refused(embedder, texts, dimensions, parked)
            index.add_vectors(name, [(piece.text.seq, piece.body) for piece in pieces])
            count += len(texts)
            yield count
        after = 0  # some were written since: again from the front, without those that are parked


def _embed_all_but_refused(
    embedder: Embedder, texts: Sequence[TextToIndex], dimensions: int, refused: dict[int, str]
) -> list[EmbeddedPiece]:
    """The vectors of texts; adds those that the embedder refuses, found by halving, to `refused`."""
    texts = [text for text in texts if text.seq not in refused]
    try:
        return embed_texts(embedder, texts, dimensions)
    except Exception as error:
        probe_dimensions(embedder, dimensions)  # raises if the embedder fails, and not a text
        if len(texts) == 1:
            refused[texts[0].seq] = error.message if isinstance(error, AlcoveError) else repr(error)
            return []
    half = len(texts) // 2
    parts = (
        _embed_all_but_refused(embedder, part, dimensions, refused) for part in (texts[:half], texts[half:])
    )
    return [*chain.from_iterable(parts)]
