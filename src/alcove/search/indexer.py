"""The indexer: gives what was written its vectors, soon after the write and never instead of it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, repeat

import msgspec

from alcove.core import cancellation, heap
from alcove.core.background import Worker
from alcove.core.blocking import before_waiting
from alcove.core.clock import SECOND, Clock
from alcove.core.errors import AlcoveError, requires_extra
from alcove.engine.index import SearchIndex
from alcove.engine.rows.indexing import Embedded, TextToIndex
from alcove.engine.vector_index import MakeVectorIndex, PgVectorIndex
from alcove.search.embedders import (
    OTHER_DIMENSIONS,
    Embedder,
    EmbedderUnavailable,
    Matrix,
    load_numpy,
    unit,
)

log = logging.getLogger("alcove")

MOST_AT_ONCE = 512
"""PgVectorIndex given to an embedder in one call, however large a text is."""
PROBE = "Is anybody there?"
KeptVectors = dict[str, list[bytes]]
"""The vectors of a text as they are kept: for each field a row a window."""
KeptTokens = dict[str, bytes]
"""By field, what is kept of a short text's tokens."""
_fields = msgspec.json.Decoder(dict[str, str]).decode
_kept = msgspec.msgpack.Decoder(KeptVectors | tuple[KeptVectors, KeptTokens]).decode

MANY = 1000
"""Texts after which it is worth looking for memory that is free."""
LEASE_SECONDS = 15
"""How long a claim holds; a process that dies with it delays its texts by that much."""
RENEW_SECONDS = 5.0
"""After which a claim is renewed, while its texts are embedded."""
MOST_TRIES = 5
"""Failures of a text's own, while the embedder takes others, after which it is parked."""
STEP_BYTES = 8 * 1024
"""Text embedded in one step, about a quarter of a second: so long others wait for who has written much."""
REST_SECONDS = 0.05
"""Pause once nothing is due, or while others write, unless somebody waits for a text.

Writers then share the processor with fewer steps, and what they write meanwhile shares the next one."""
LONGEST_PAUSE = 60
LONGEST_SLEEP = 2.0
"""Seconds after which a call that waits for the index looks whether it was cancelled."""
STOP_SECONDS = 15


class Indexer(Worker):
    """Is woken by commits and looks by itself now and then; its thread starts when first needed."""

    def __init__(
        self, index: SearchIndex, embedder: Embedder, clock: Clock, *, interval: float, batch: int
    ) -> None:
        super().__init__("indexing", self._index_due, interval)
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._batch = batch
        self._hurried = threading.Event()
        self._told = ""
        self._outages = 0
        self._dimensions: int | None = None
        self._since_tidied = 0

    def stop(self, seconds: float | None = STOP_SECONDS) -> None:
        """Waits some seconds for the batch under way; what is not done is claimed again at the next start."""
        self._hurried.set()
        super().stop(seconds)

    def wait(self, seq: int, seconds: float) -> None:
        """Blocks until a version has its vectors, has failed to get them, or `seconds` have passed.

        The longer it has waited the longer it sleeps, so that many that wait for long cost next to nothing.
        """
        self._hurried.set()
        self.wake()
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < seconds and not self.stopping:
            waits, error = self._index.pending_status(seq)
            if not waits or error is not None or self._index.serving() not in (None, self._embedder.name):
                return
            before_waiting()
            cancellation.check()
            time.sleep(min(max(waited / 8, 0.002), seconds - waited, LONGEST_SLEEP))

    def look(self) -> None:
        """Wakes it where something is due: for who hears of commits, and not of what they brought."""
        due = self._index.next_due()
        if due is not None and due <= self._clock():
            self.wake()

    def _index_due(self) -> float:
        """Indexes a batch, and says how long to pause: until the next text is due, at most the interval.

        What is due and was not taken cannot be, so that it waits for the interval.
        """
        try:
            embedded = self.step()
            taken, due = embedded + self._taken_in(), self._index.next_due()
            self._tidy(embedded, done=due is None)
            if taken and (due is None or due > self._clock() or self._woken.is_set()):
                self._hurried.wait(REST_SECONDS)
                self._hurried.clear()
            if taken:
                return 0.0
        except AlcoveError as error:
            self._tell(error.message)  # once, however often it is tried
            return self._interval
        ahead = 0.0 if due is None else (due - self._clock()) / SECOND
        return min(max(ahead, 0.05), self._interval) if ahead > 0 else self._interval

    def _tidy(self, taken: int, *, done: bool) -> None:
        """Gives memory back once many texts are done: what they and their writing took is free by then."""
        self._since_tidied += taken
        if done and self._since_tidied >= MANY:
            self._since_tidied = 0
            heap.trim()

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
            with self._renewed([text.seq for text in texts], until):
                load_numpy()
                self._take(texts)
        return len(texts)

    @contextmanager
    def _renewed(self, seqs: Sequence[int], until: int) -> Iterator[None]:
        """Keeps texts claimed, however long it takes, by a thread that renews the claim."""
        done = threading.Event()

        def renew() -> None:
            held = until
            while not done.wait(RENEW_SECONDS):
                later = self._clock() + LEASE_SECONDS * SECOND
                with suppress(AlcoveError):  # until the database is back
                    self._index.renew(seqs, held, later)
                    held = later

        renewing = threading.Thread(target=renew, name="alcove-renewing", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            done.set()
            renewing.join()

    def _taken_in(self) -> int:
        """Has the database take in some texts that have vectors, if it finds texts by itself; how many."""
        if (candidates := self._index.candidates) is None:
            return 0
        if not candidates.behind():
            candidates.tidy()
            return 0
        from alcove.search.sources.sampled import made  # noqa: PLC0415  numpy, which a store can do without

        return candidates.take_in(made)

    def _take(self, texts: Sequence[TextToIndex], *, probed: bool = False) -> None:
        """Embeds and stores texts; if that fails but the embedder takes a probe, tries each by itself."""
        try:
            pieces = embedded(self._embedder, texts, self._expected(), size=STEP_BYTES)
            done = [*map(self._with_earlier, pieces)]
        except Exception as error:
            if probed:
                self._put_back(texts, error, tries=texts[0].tries)
            elif self._embedder_works():
                for text in texts:
                    self._take([text], probed=True)
            else:
                self._outages += 1
                self._put_back(texts, error, tries=self._outages, counted=False)
        else:
            self._outages = 0
            if not self._index.store(self._embedder.name, done):
                self._tell("the index is of another model by now")

    def _embedder_works(self) -> bool:
        with suppress(Exception):
            return bool(probe(self._embedder, self._expected()))
        return False

    def _with_earlier(self, piece: Embedded) -> Embedded:
        """A piece of a text; if it is the last one, with the vectors of the pieces before it."""
        text = piece.text
        if piece.next_place or not (text.field or text.window):
            return piece
        return piece._replace(body=joined([*self._index.pieces(text.seq), piece.body]))

    def _expected(self) -> int | None:
        """The dimensions that the index has, if it has any vectors yet."""
        if self._dimensions is None and (body := self._index.newest_vectors(self._embedder.name)):
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


def vector_index_for(spec: str | None, *, key: str | None = None) -> MakeVectorIndex | None:
    """What an operator named to find texts by meaning in a database: `pgvector`, or `qdrant://HOST:PORT`.

    None where they named nothing: then it stays as it is. Nothing is called before the store is open.
    """
    if spec is None:
        return None
    if spec == "pgvector":
        return lambda db, _: PgVectorIndex(db, chosen=True)
    with requires_extra("qdrant://", extra="qdrant"):
        from alcove.engine.qdrant.client import QdrantPoints  # noqa: PLC0415  for who has one
        from alcove.engine.qdrant.index import QdrantIndex  # noqa: PLC0415
    points = QdrantPoints(spec, key)
    return lambda db, locks: QdrantIndex(db, locks, points, windows)


def reindex(index: SearchIndex, embedder: Embedder, batch: int) -> Iterator[int]:
    """Embeds every text anew with another embedder, then serves its vectors; how many texts are done so far.

    The old ones serve until then. What was done is kept and counts, so that one that was broken off goes on
    from there. A text that the embedder does not take, while it takes others, is parked.
    """
    load_numpy()
    name, after = embedder.name, 0
    parked: dict[int, str] = {}
    kept = index.newest_vectors(name)
    dimensions = probe(embedder)
    if kept and dimensions_of(kept) not in (None, dimensions):
        index.drop(name)  # of a model that had the same name: they cannot be searched
    yield (done := index.status(name).indexed)
    while not index.switch(name, parked):
        while texts := index.texts_without_vectors(name, after=after, limit=batch):
            after = texts[-1].seq
            whole = _all_but_bad(embedder, texts, dimensions, parked)
            index.add_vectors(name, [(each.text.seq, each.body) for each in whole])
            done += len(texts)
            yield done
        after = 0  # some came meanwhile: from the front, without those that are parked


def _all_but_bad(
    embedder: Embedder, texts: Sequence[TextToIndex], dimensions: int, bad: dict[int, str]
) -> list[Embedded]:
    """The vectors of all texts that can have them."""
    texts = [text for text in texts if text.seq not in bad]
    try:
        return embedded(embedder, texts, dimensions)
    except Exception as error:
        probe(embedder, dimensions)  # raises if it is the embedder and no text
        if len(texts) == 1:
            bad[texts[0].seq] = error.message if isinstance(error, AlcoveError) else repr(error)
            return []
    half = len(texts) // 2
    parts = (_all_but_bad(embedder, part, dimensions, bad) for part in (texts[:half], texts[half:]))
    return [*chain.from_iterable(parts)]


def cut(
    embedder: Embedder, text: TextToIndex, size: int = sys.maxsize
) -> tuple[list[tuple[str, str]], int, tuple[int, int] | None]:
    """The next windows of a text, until they have so many bytes, each after its field's name.

    And how many they have, and the field and window that the rest begins with, if there is one.
    """
    windows: list[tuple[str, str]] = []
    taken = 0
    for number, (field, words) in enumerate(_fields(text.index_text).items()):
        if number < text.field or not words.strip():
            continue
        found = embedder.windows(words)
        share = len(words.encode()) // max(len(found), 1)  # windows overlap: together they are the field
        for n in range(text.window if number == text.field else 0, len(found)):
            if taken >= size:
                return windows, taken, (number, n)
            windows.append((field, found[n]))
            taken += share
    return windows, taken, None


def embedded(
    embedder: Embedder, texts: Sequence[TextToIndex], dimensions: int | None = None, size: int = sys.maxsize
) -> list[Embedded]:
    """The vectors of each text, or of its next piece of so many bytes, as they are kept."""
    pieces = [cut(embedder, text, size) for text in texts]
    windows = [window for named, _, _ in pieces for _, window in named]
    calls = (windows[n : n + MOST_AT_ONCE] for n in range(0, len(windows), MOST_AT_ONCE))
    rows = chain.from_iterable(_rows(embedder, some, dimensions) for some in calls)
    found = []
    for text, (named, taken, rest) in zip(texts, pieces, strict=True):
        fields: KeptVectors = {}
        tokens: KeptTokens = {}
        for field, _ in named:
            vector, kept = next(rows)
            fields.setdefault(field, []).append(vector.tobytes())
            if kept:
                tokens[field] = kept
        whole = {field: kept for field, kept in tokens.items() if len(fields[field]) == 1}
        found.append(Embedded(text, _body(fields, whole), taken, rest))
    return found


def _rows(embedder: Embedder, texts: Sequence[str], dimensions: int | None) -> Iterable[tuple[Matrix, bytes]]:
    """For each text its vector, and what the embedder keeps of its tokens."""
    if embed := getattr(embedder, "embed_with_tokens", None):
        rows, tokens = embed(texts)
    else:
        rows, tokens = embedder.embed(texts), repeat(b"")
    return zip(checked(rows, len(texts), dimensions), tokens, strict=False)


def _body(fields: KeptVectors, tokens: KeptTokens) -> bytes:
    """Vectors and tokens as they are kept."""
    return msgspec.msgpack.encode((fields, tokens) if tokens else fields)


def kept(body: bytes) -> tuple[KeptVectors, KeptTokens]:
    """Vectors as they were kept, and what was kept of the tokens."""
    found = _kept(body)
    return found if isinstance(found, tuple) else (found, {})


def windows(body: bytes) -> list[bytes]:
    """The vectors of a text's windows, of all its fields."""
    return [row for rows in kept(body)[0].values() for row in rows]


def joined(bodies: Iterable[bytes]) -> bytes:
    """Vectors of a text's pieces, as if they had been made at once."""
    fields: KeptVectors = {}
    tokens: KeptTokens = {}
    for body in bodies:
        vectors, its = kept(body)
        tokens |= its
        for name, rows in vectors.items():
            fields.setdefault(name, []).extend(rows)
    if len({len(row) for rows in fields.values() for row in rows}) > 1:
        raise EmbedderUnavailable("the embedder's dimensions changed within a text: run `alcove reindex`")
    return _body(fields, {name: its for name, its in tokens.items() if len(fields[name]) == 1})


def probe(embedder: Embedder, dimensions: int | None = None) -> int:
    """The dimensions that an embedder answers now; raises if it answers none, or others than expected."""
    return int(checked(embedder.embed([PROBE]), 1, dimensions).shape[1])


def checked(rows: Matrix, count: int, dimensions: int | None) -> Matrix:
    """An embedder's answer at length 1, if it has a row for each text and the dimensions expected of it."""
    import numpy as np  # noqa: PLC0415

    rows = np.asarray(rows, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise EmbedderUnavailable(f"the embedder answered {rows.shape}, not a row for each of {count} texts")
    if dimensions not in (None, rows.shape[1]):
        raise EmbedderUnavailable(OTHER_DIMENSIONS.format(rows.shape[1], dimensions))
    return unit(rows)


def dimensions_of(body: bytes) -> int | None:
    """How long each of some kept vectors is; None where the texts were empty."""
    return next((len(row) // 4 for rows in kept(body)[0].values() for row in rows), None)
