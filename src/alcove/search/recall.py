"""Search by meaning and words: each subtree in memory, brought up to date before every search."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from alcove.clock import SECOND, Clock
from alcove.engine.base import Index, IndexState, Row, Scope, Text, TextToIndex
from alcove.search.corpus import Corpus
from alcove.search.embedders import Embedder, EmbedderUnavailable, embed_query
from alcove.search.indexer import embedded, opened
from alcove.search.items import Item, Mask
from alcove.search.kindred import Lexicon
from alcove.search.question import Question
from alcove.search.ranking import DEFAULT, Hit, Mode, Ranking, rank

MOST_ITEMS = 200_000
"""Items kept in memory over all subtrees; the subtree that was searched longest ago goes first."""
MOST_EMBEDDED = 1000
"""Texts of the past that one search embeds."""
NO_EMBEDDER = "no embedder is configured, so this is ranked by words alone"
_fields = msgspec.json.Decoder(dict[str, str]).decode

Fits = Callable[[Row], bool]
"""Whether a row meets conditions that only its opened value can decide."""


class Found(NamedTuple):
    """What a search found, best first, and why it is less than it could be, if it is."""

    hits: list[tuple[Row, Hit]]
    degraded: str | None


@dataclass
class Subtree:
    """One subtree as it was at a state, and which of it each kind of reader may see."""

    corpus: Corpus
    state: IndexState
    masks: dict[str, tuple[Mask, int | None]] = field(default_factory=dict)
    """By the reader's conditions: the rows, and the moment at which one of them expires."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Recall:
    """Searches of every process see every write at once: the store is asked what changed before each."""

    def __init__(
        self, index: Index, embedder: Embedder | None, clock: Clock, ranking: Ranking = DEFAULT
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._ranking = ranking
        self._subtrees: OrderedDict[tuple[bytes, bytes], Subtree] = OrderedDict()
        self._mutex = threading.Lock()
        self._lexicon: Lexicon | None = None

    @property
    def embedder(self) -> Embedder | None:
        return self._embedder

    def search(
        self, scope: Scope, query: str, *, mode: Mode, limit: int, offset: int, explain: bool, fits: Fits
    ) -> Found:
        """The best of what is live in a scope."""
        question, degraded = self._question(query, mode)
        subtree = self._current(scope)
        with subtree.lock:
            corpus, mask = subtree.corpus, self._mask(subtree, scope, fits)
        hits = rank(
            corpus,
            question,
            limit=offset + limit,
            mask=mask,
            mode=mode,
            ranking=self._ranking,
            explain=explain,
        )[offset:]
        seqs = [hit.id for hit in hits if isinstance(hit.id, int)]
        rows = {row.seq: row for row in self._index.found(seqs, self._clock())}
        return Found([(rows[hit.id], hit) for hit in hits if hit.id in rows], degraded)

    def search_past(
        self,
        scope: Scope,
        rows: Iterable[Row],
        query: str,
        *,
        mode: Mode,
        limit: int,
        offset: int,
        explain: bool,
    ) -> Found:
        """The best of some versions that were current once; what has no vectors any more gets them here."""
        question, degraded = self._question(query, mode)
        texts = {row.seq: row for row in rows if row.index_text is not None}
        kept = {text.seq: text.vectors for text in self._index.texts(scope.low, scope.high, self._name)[1]}
        bodies = {seq: body for seq in texts if (body := kept.get(seq)) is not None}
        if self._embedder and question.vector is not None:
            lost = [seq for seq in texts if seq not in bodies]
            wanted = [TextToIndex(seq, b"", texts[seq].index_text or "{}", 0) for seq in lost[:MOST_EMBEDDED]]
            bodies.update(embedded(self._embedder, wanted))
            if len(lost) > MOST_EMBEDDED:
                degraded = f"{len(lost) - MOST_EMBEDDED} texts of that time are ranked by words alone"
        corpus = self._corpus(
            Text(seq, row.ns, row.created_at, row.index_text or "{}", bodies.get(seq))
            for seq, row in texts.items()
        )
        hits = rank(corpus, question, limit=offset + limit, mode=mode, ranking=self._ranking, explain=explain)
        return Found([(texts[hit.id], hit) for hit in hits[offset:]], degraded)  # type: ignore[index]

    @property
    def _name(self) -> str:
        return self._embedder.name if self._embedder else ""

    def _question(self, query: str, mode: Mode) -> tuple[Question, str | None]:
        """The question with its vector, or the reason why it has none; by meaning alone that is an error."""
        now = self._clock() / SECOND
        try:
            vector = embed_query(self._usable(), query)
        except EmbedderUnavailable as error:
            if mode == "semantic":
                raise
            return Question.of(query, None, now=now), error.message if mode == "hybrid" else None
        if self._lexicon is None and (make := getattr(self._embedder, "lexicon", None)):
            self._lexicon = make()
        return Question.of(query, vector, lexicon=self._lexicon, now=now), None

    def _usable(self) -> Embedder:
        if self._embedder is None:
            raise EmbedderUnavailable(NO_EMBEDDER)
        serving = self._index.serving()
        if serving not in (None, self._embedder.name):
            raise EmbedderUnavailable(f"the index is of the model {serving}: run `alcove reindex`")
        return self._embedder

    def _current(self, scope: Scope) -> Subtree:
        """The subtree as it is now."""
        place = (scope.low, scope.high)
        with self._mutex:
            subtree = self._subtrees.get(place)
            if subtree:
                self._subtrees.move_to_end(place)
        if subtree is None:
            state, texts = self._index.texts(*place, self._name)
            subtree = Subtree(self._corpus(texts), state)
        else:
            with subtree.lock:
                self._update(subtree, place)
        with self._mutex:
            self._subtrees[place] = subtree
            while len(self._subtrees) > 1 and sum(map(_size, self._subtrees.values())) > MOST_ITEMS:
                self._subtrees.popitem(last=False)
        return subtree

    def _update(self, subtree: Subtree, place: tuple[bytes, bytes]) -> None:
        if self._index.state() == subtree.state:
            return
        change = self._index.changes(*place, self._name, subtree.state)
        if change.came is None or change.state.serving != subtree.state.serving:
            state, texts = self._index.texts(*place, self._name)
            subtree.corpus, subtree.state, subtree.masks = self._corpus(texts), state, {}
            return
        gone = set() if change.live is None else subtree.corpus.rows.keys() - set(change.live)
        if change.came or gone:
            subtree.corpus = subtree.corpus.changed(add=map(self._item, change.came), remove=gone)
        if change.came or gone or change.live is not None or change.state.touches != subtree.state.touches:
            subtree.masks = {}
        subtree.state = change.state

    def _mask(self, subtree: Subtree, scope: Scope, fits: Fits) -> Mask:
        """The rows of a subtree that this reader may see and asked for, now."""
        conditions = repr((scope.policy, scope.owner, scope.written_by, scope.filter))
        now = self._clock()
        mask, until = subtree.masks.get(conditions, (None, None))
        if mask is None or (until is not None and until <= now):
            allowed = self._index.allowed(scope, now)
            if scope.filter.conditions:
                fitting = {
                    row.seq for row in self._index.found([seq for seq, _ in allowed], now) if fits(row)
                }
                allowed = [each for each in allowed if each[0] in fitting]
            until = min((expiry for _, expiry in allowed if expiry is not None), default=None)
            mask = np.zeros(len(subtree.corpus), dtype=bool)
            mask[[row for seq, _ in allowed if (row := subtree.corpus.rows.get(seq)) is not None]] = True
            subtree.masks[conditions] = mask, until
        return mask

    def _corpus(self, texts: Iterable[Text]) -> Corpus:
        dimensions = self._embedder.dimensions if self._embedder else 1
        return Corpus.of(map(self._item, texts), dimensions=dimensions)

    def _item(self, text: Text) -> Item:
        vectors = opened(text.vectors, self._embedder.dimensions) if text.vectors and self._embedder else {}
        return Item(
            id=text.seq,
            namespace=text.ns,
            sequence=text.seq,
            fields=_fields(text.index_text),
            vectors=vectors,
            at=text.created_at / SECOND,
        )


def _size(subtree: Subtree) -> int:
    return len(subtree.corpus)


def reindex(index: Index, embedder: Embedder, batch: int) -> Iterator[int]:
    """Embeds every text anew with another embedder, then serves its vectors; how many it has done so far.

    The old ones serve until then. What was done is kept, so that one that was broken off goes on.
    """
    done = 0
    while not index.switch(embedder.name):
        texts = index.unembedded(embedder.name, after=0, limit=batch)
        index.keep(embedder.name, [*embedded(embedder, texts)])
        done += len(texts)
        yield done
