"""Search by meaning and words: each subtree in memory, brought up to date before every search."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np

from alcove.clock import SECOND, Clock
from alcove.engine.base import FOR_EVER, Index, IndexState, Row, Scope, Text, TextToIndex
from alcove.errors import AlcoveError
from alcove.filters import Filter
from alcove.search.corpus import Corpus
from alcove.search.embedders import OTHER_DIMENSIONS, Embedder, EmbedderUnavailable, Matrix, embed_query
from alcove.search.indexer import PROBE, checked, dimensions_of, embedded, opened
from alcove.search.items import Item, Mask
from alcove.search.kindred import Lexicon
from alcove.search.question import Question
from alcove.search.ranking import DEFAULT, Hit, Mode, Ranking, rank

MOST_ITEMS = 200_000
"""Items kept in memory over all subtrees; the subtree that was searched longest ago goes first."""
OVERHEAD = 50
"""Items that a subtree counts for beside its own, so that empty ones do not pile up."""
MOST_FILTERS = 16
"""Filters whose rows are remembered for a subtree."""
MOST_EMBEDDED = 1000
"""Texts of the past that one search embeds."""
FAILED = "the embedder failed: {}"
NO_EMBEDDER = "no embedder is configured, so this is ranked by words alone"
log = logging.getLogger("alcove")
_fields = msgspec.json.Decoder(dict[str, str]).decode

Fits = Callable[[Row], bool]
"""Whether a row meets conditions that only its opened value can decide."""


class Found(NamedTuple):
    """What a search found, best first, and why it is less than it could be, if it is."""

    hits: list[tuple[Row, Hit]]
    degraded: str | None


Place = str
"""A subtree as somebody sees it, spelled out: `true` and `1` are equal and not the same."""


@dataclass
class Fitting:
    """The versions that a filter lets pass, up to a position: a version never changes, so they stay."""

    seqs: set[int]
    upto: int
    corpus: Corpus | None = None
    mask: Mask | None = None


class Subtree:
    """One subtree as it was at a state, and which of it may be found."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lock = threading.Lock()
        self.state: IndexState | None = None
        self.corpus = Corpus.of((), dimensions=1)
        self.expiries: dict[int, int] = {}
        self.weight = 0
        self._filters: OrderedDict[str, Fitting] = OrderedDict()
        self._unlapsed: tuple[Mask, int] | None = None

    def take(self, corpus: Corpus, state: IndexState, expiries: dict[int, int]) -> None:
        """Goes over to a newer state."""
        self.corpus, self.state, self.expiries = corpus, state, expiries
        self._unlapsed = None

    def unlapsed(self, now: int) -> Mask | None:
        """The rows whose time has not come; None where that is all of them."""
        if not self.expiries:
            return None
        if self._unlapsed is None or self._unlapsed[1] <= now:
            mask = np.ones(len(self.corpus), dtype=bool)
            rows = self.corpus.rows
            mask[[rows[seq] for seq, at in self.expiries.items() if at <= now and seq in rows]] = False
            until = min((at for at in self.expiries.values() if at > now), default=FOR_EVER)
            self._unlapsed = mask, until
        return self._unlapsed[0]

    def forget_filters(self) -> None:
        self._filters.clear()

    def fitting(self, filter: str) -> Fitting:
        found = self._filters.setdefault(filter, Fitting(set(), 0))
        self._filters.move_to_end(filter)
        if len(self._filters) > MOST_FILTERS:
            self._filters.popitem(last=False)
        return found


class Recall:
    """Searches of every process see every write at once: the store is asked what changed before each."""

    def __init__(
        self, index: Index, embedder: Embedder | None, clock: Clock, ranking: Ranking = DEFAULT
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._ranking = ranking
        self._subtrees: OrderedDict[Place, Subtree] = OrderedDict()
        self._weight = 0
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
        subtree = self._subtree(scope)
        with subtree.lock:
            self._update(subtree, scope)
            corpus, mask = subtree.corpus, self._mask(subtree, scope, fits)
        self._weigh(subtree)
        question, degraded = _comparable(question, corpus, mode, degraded)
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
        subtree = self._subtree(scope)
        with subtree.lock:
            self._update(subtree, scope)
            now = subtree.corpus
        items = {seq: now.item(seq) or _item(_text(row)) for seq, row in texts.items()}
        if self._embedder and question.vector is not None:
            lost = [_text(texts[seq]) for seq, item in items.items() if not item.vectors]
            try:
                items.update(self._embedded(lost[:MOST_EMBEDDED], len(question.vector)))
                if len(lost) > MOST_EMBEDDED:
                    degraded = f"{len(lost) - MOST_EMBEDDED} texts of that time are ranked by words alone"
            except EmbedderUnavailable as error:
                degraded = f"{len(lost)} texts of that time are ranked by words alone: {error.message}"
        corpus = _corpus(items.values())
        question, degraded = _comparable(question, corpus, mode, degraded)
        hits = rank(corpus, question, limit=offset + limit, mode=mode, ranking=self._ranking, explain=explain)
        return Found([(texts[hit.id], hit) for hit in hits[offset:]], degraded)  # type: ignore[index]

    @property
    def _name(self) -> str:
        return self._embedder.name if self._embedder else ""

    def _embedded(self, texts: Sequence[Text], dimensions: int) -> dict[int, Item]:
        assert self._embedder is not None
        wanted = [TextToIndex(text.seq, text.ns, text.index_text, 0) for text in texts]
        try:
            bodies = dict(embedded(self._embedder, wanted, dimensions))
        except EmbedderUnavailable:
            raise
        except Exception as error:
            raise EmbedderUnavailable(FAILED.format(type(error).__name__)) from error
        return {text.seq: _item(text._replace(vectors=bodies[text.seq])) for text in texts}

    def _question(self, query: str, mode: Mode) -> tuple[Question, str | None]:
        """The question with its vector, or the reason why it has none; by meaning alone that is an error."""
        now = self._clock() / SECOND
        try:
            vector = self._vector(query)
        except EmbedderUnavailable as error:
            if mode == "semantic":
                raise
            # By words alone is what was asked for where there is no embedder; else the scores are missing.
            told = error.message if mode == "hybrid" or self._embedder else None
            return Question.of(query, None, now=now), told
        if self._lexicon is None and (make := getattr(self._embedder, "lexicon", None)):
            self._lexicon = make()
        return Question.of(query, vector, lexicon=self._lexicon, now=now), None

    def _vector(self, query: str) -> Matrix:
        embedder = self._embedder
        if embedder is None:
            raise EmbedderUnavailable(NO_EMBEDDER)
        serving = self._index.serving()
        if serving not in (None, embedder.name):
            raise EmbedderUnavailable(f"the index is of the model {serving}: run `alcove reindex`")
        try:
            return embed_query(embedder, query)
        except EmbedderUnavailable:
            raise
        except Exception as error:
            log.warning("the embedder failed", exc_info=error)
            raise EmbedderUnavailable(FAILED.format(type(error).__name__)) from error

    def _subtree(self, scope: Scope) -> Subtree:
        """Where a subtree is kept. It is shared by all who see the same of it, and by no one else: what
        they may not see must not show in how words are weighed.
        """
        owner = scope.owner if self._index.foreign(scope) else None
        place = repr(replace(scope, owner=owner, filter=Filter()))
        with self._mutex:
            subtree = self._subtrees.get(place) or self._subtrees.setdefault(place, Subtree(place))
            self._subtrees.move_to_end(place)
        return subtree

    def _weigh(self, subtree: Subtree) -> None:
        """Lets go of what was searched longest ago, where all of it is too much."""
        with self._mutex:
            if self._subtrees.get(subtree.place) is not subtree:
                return  # let go of meanwhile
            weight = len(subtree.corpus) + OVERHEAD
            self._weight += weight - subtree.weight
            subtree.weight = weight
            while self._weight > MOST_ITEMS and len(self._subtrees) > 1:
                _, oldest = self._subtrees.popitem(last=False)
                self._weight -= oldest.weight
                oldest.weight = 0

    def _update(self, subtree: Subtree, scope: Scope) -> None:
        """Brings a subtree to what is there now."""
        before = subtree.state
        if before is None:
            self._load(subtree, scope)
            return
        if self._index.state() == before:
            return
        change = self._index.changes(scope, self._name, before)
        corpus, expiries = subtree.corpus, subtree.expiries
        came = [_item(text) for text in change.came]
        gone = set() if change.live is None else corpus.rows.keys() - set(change.live)
        # A wipe takes names off what it leaves, so who sees by them may see more or less of what was there.
        renamed = scope.written_by is not None and change.state.wipes != before.wipes
        if renamed or change.state.serving != before.serving or not _alike(corpus, came):
            self._load(subtree, scope)
            return
        if came or gone:
            corpus = corpus.changed(add=came, remove=gone)
        if change.state.touches != before.touches:
            expiries = self._index.expiring(scope)
        elif came or gone:
            expiries = {seq: at for seq, at in expiries.items() if seq not in gone}
            expiries |= _expiries(change.came)
        subtree.take(corpus, change.state, expiries)

    def _load(self, subtree: Subtree, scope: Scope) -> None:
        state, texts = self._index.texts(scope, self._name)
        subtree.forget_filters()
        subtree.take(_corpus(map(_item, texts)), state, _expiries(texts))

    def _mask(self, subtree: Subtree, scope: Scope, fits: Fits) -> Mask | None:
        """The rows of a subtree that this reader asked for, now; None for all that are live."""
        unlapsed = subtree.unlapsed(self._clock())
        if not scope.filter.conditions:
            return unlapsed
        assert subtree.state is not None
        corpus, found = subtree.corpus, subtree.fitting(repr(scope.filter))
        if found.upto < subtree.state.seq:
            fresh = self._index.fitting(scope, found.upto)
            found.seqs.update(row.seq for row in self._index.found(fresh, 0) if fits(row))
            found.seqs.intersection_update(corpus.rows)
            found.upto = subtree.state.seq
        if found.corpus is not corpus:
            mask = np.zeros(len(corpus), dtype=bool)
            mask[[row for seq in found.seqs if (row := corpus.rows.get(seq)) is not None]] = True
            found.corpus, found.mask = corpus, mask
        assert found.mask is not None
        return found.mask if unlapsed is None else found.mask & unlapsed


def _text(row: Row) -> Text:
    return Text(row.seq, row.ns, row.created_at, row.expires_at, row.index_text or "{}", None)


def _item(text: Text) -> Item:
    return Item(
        id=text.seq,
        namespace=text.ns,
        sequence=text.seq,
        fields=_fields(text.index_text),
        vectors=opened(text.vectors) if text.vectors else {},
        at=text.created_at / SECOND,
    )


def _expiries(texts: Iterable[Text]) -> dict[int, int]:
    return {text.seq: text.expires_at for text in texts if text.expires_at is not None}


def _corpus(items: Iterable[Item]) -> Corpus:
    """Vectors of other dimensions than the newest are left out: one model was taken for another."""
    every = [*items]
    dimensions = next((found for item in reversed(every) if (found := _dimensions(item))), 1)
    fit = [item if _dimensions(item) in (0, dimensions) else replace(item, vectors={}) for item in every]
    return Corpus.of(fit, dimensions=dimensions)


def _alike(corpus: Corpus, items: Iterable[Item]) -> bool:
    return all(_dimensions(item) in (0, corpus.vectors.dimensions) for item in items)


def _dimensions(item: Item) -> int:
    return next((rows.shape[1] for rows in item.vectors.values()), 0)


def _comparable(
    question: Question, corpus: Corpus, mode: Mode, degraded: str | None
) -> tuple[Question, str | None]:
    """The question without its vector, where that cannot be compared with those of a corpus."""
    had = corpus.vectors.dimensions
    if question.vector is None or len(question.vector) == had:
        return question, degraded
    told = OTHER_DIMENSIONS.format(len(question.vector), had) if len(corpus.vectors.matrix) else None
    if told and mode == "semantic":
        raise EmbedderUnavailable(told)
    return replace(question, vector=None), degraded or told


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
        return [*embedded(embedder, texts, dimensions)]
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
