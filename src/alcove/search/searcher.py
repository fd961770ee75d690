"""Search by meaning and words: each subtree in memory, brought up to date before every search."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from alcove.core.clock import SECOND, Clock
from alcove.core.cursor import portion
from alcove.core.errors import InvalidRequest
from alcove.core.records import Mode
from alcove.engine.base import Index
from alcove.engine.rows import Row, Scope, Text, TextToIndex
from alcove.search.corpus import Corpus
from alcove.search.embedders import OTHER_DIMENSIONS, Embedder, EmbedderUnavailable, Matrix, embed_query
from alcove.search.items import Item, Mask
from alcove.search.joined import JoinedCorpus
from alcove.search.pieces import vectors_of, whole
from alcove.search.ranking import Hit, rank
from alcove.search.related_words import Lexicon
from alcove.search.subtrees import Fits, Subtrees, corpus_of, item, text_of
from alcove.search.terms import Question

MOST_PAST = 20_000
"""Texts that one search of the past ranks."""
MOST_ATTEMPTS = 3
"""Searches until one is answered in full, where what was found is gone before it is read."""
MOST_WINDOWS, MOST_CHARACTERS = 16, 16_000
"""What one search embeds of the past: some tenths of a second."""
FAILED = "the embedder failed: {}"
NO_EMBEDDER = "no embedder is configured, so this is ranked by words alone"
log = logging.getLogger("alcove")


class SearchResult(NamedTuple):
    """What a search found, best first; `degraded` says why it may be less than it could be."""

    hits: list[tuple[Row, Hit]]
    degraded: str | None
    next_offset: int | None = None
    """Where to go on, if not all of them fit in one answer."""


class Searcher:
    """Searches a store. It asks the store what changed before each search, so it sees every process's writes.

    `most_bytes` bounds the memory of the subtrees that it holds.
    """

    def __init__(self, index: Index, embedder: Embedder | None, clock: Clock, *, most_bytes: int) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._subtrees = Subtrees(index, most_bytes=most_bytes)
        self._lexicon: Lexicon | None = None

    @property
    def embedder(self) -> Embedder | None:
        return self._embedder

    def search(
        self, scope: Scope, query: str, *, mode: Mode, limit: int, offset: int, explain: bool, fits: Fits
    ) -> SearchResult:
        """The best of what is live in a scope."""
        question, degraded = self._question(query, mode)
        for attempt in range(MOST_ATTEMPTS):
            corpus, mask = self._visible(scope, fits)
            comparable, told = _comparable(question, corpus, mode, degraded)
            best = rank(corpus, comparable, limit=offset + limit, mask=mask, mode=mode, explain=explain)
            hits = best[offset:]
            found, next_offset = self._read(scope, hits, None, offset)
            if len(found) == len(hits) or next_offset is not None or attempt == MOST_ATTEMPTS - 1:
                break
        return SearchResult(found, told, next_offset)

    def _read(
        self, scope: Scope, hits: Sequence[Hit], at: int | None, offset: int
    ) -> tuple[list[tuple[Row, Hit]], int | None]:
        """The rows of hits, each looked up in the caller's own scope, whatever it was ranked in.

        As many as fit in one answer, and where to go on if that is not all.
        """
        place = {hit.id: n for n, hit in enumerate(hits)}
        seqs = [hit.id for hit in hits if isinstance(hit.id, int)]
        found, more = portion(self._index.found(scope, seqs, now=self._clock(), at=at), len(hits))
        next_offset = offset + place[found[-1].seq] + 1 if more else None
        return [(row, hits[place[row.seq]]) for row in found], next_offset

    def _visible(self, scope: Scope, fits: Fits) -> tuple[Corpus | JoinedCorpus, Mask | None]:
        """What a scope shows now, and which rows of it the filter lets pass; None for all of them."""
        parts = self._subtrees.of(scope, self._name, now=self._clock())
        masks = [snapshot.unexpired for _, snapshot in parts]
        if scope.filter.conditions:
            for n, (subtree, snapshot) in enumerate(parts):
                fitting = subtree.fitting(snapshot, scope.filter, self._index, fits)
                masks[n] = fitting if (unexpired := masks[n]) is None else fitting & unexpired
        corpora = [snapshot.corpus for _, snapshot in parts]
        if len(parts) == 1:
            return corpora[0], masks[0]
        if all(mask is None for mask in masks):
            return JoinedCorpus(corpora), None
        return JoinedCorpus(corpora), np.concatenate([
            np.ones(len(corpus), dtype=bool) if mask is None else mask
            for corpus, mask in zip(corpora, masks, strict=True)
        ])  # fmt: skip

    def search_past(
        self,
        scope: Scope,
        rows: Iterable[Row],
        query: str,
        *,
        at: int,
        mode: Mode,
        limit: int,
        offset: int,
        explain: bool,
    ) -> SearchResult:
        """The best of some versions that were current at a moment; a few without vectors get them here."""
        question, degraded = self._question(query, mode)
        texts = {row.seq: text_of(row) for row in islice(_with_text(rows), MOST_PAST + 1)}
        if len(texts) > MOST_PAST:
            raise InvalidRequest("namespace_prefix", f"at most {MOST_PAST} texts of that time below it")
        live = [snapshot.corpus for _, snapshot in self._subtrees.of(scope, self._name, now=self._clock())]
        kept = {seq: next(filter(None, (corpus.item(seq) for corpus in live)), None) for seq in texts}
        items = {seq: kept[seq] or item(text) for seq, text in texts.items()}
        if self._embedder and question.vector is not None:
            lost = [texts[seq] for seq, item in items.items() if not item.vectors]
            try:
                found = self._embedded(self._likeliest(lost, question), len(question.vector))
                items.update(found)
                if len(found) < len(lost):
                    degraded = f"{len(lost) - len(found)} texts of that time are ranked by words alone"
            except EmbedderUnavailable as error:
                degraded = f"{len(lost)} texts of that time are ranked by words alone: {error.message}"
        corpus = corpus_of(items.values())
        question, degraded = _comparable(question, corpus, mode, degraded)
        hits = rank(corpus, question, limit=offset + limit, mode=mode, explain=explain)
        best, next_offset = self._read(scope, hits[offset:], at, offset)
        return SearchResult(best, degraded, next_offset)

    @property
    def _name(self) -> str:
        return self._embedder.name if self._embedder else ""

    def _likeliest(self, texts: list[Text], question: Question) -> list[Text]:
        """Texts of which not all can be embedded in one search, the best by words first."""
        if len(texts) <= MOST_WINDOWS:
            return texts
        words, corpus = replace(question, vector=None), corpus_of(map(item, texts))
        hits = rank(corpus, words, limit=MOST_WINDOWS, mode="keyword")
        order = {hit.id: n for n, hit in enumerate(hits)}
        return sorted(texts, key=lambda text: order.get(text.seq, MOST_WINDOWS))

    def _embedded(self, texts: Sequence[Text], dimensions: int) -> dict[int, Item]:
        """As many of the texts, from the first on, as one search may embed."""
        assert self._embedder is not None
        wanted = [TextToIndex(text.seq, text.ns, text.index_text, 0) for text in texts]
        try:
            pieces = [*whole(self._embedder, wanted, windows=MOST_WINDOWS, size=MOST_CHARACTERS)]
            found = vectors_of(self._embedder, pieces, dimensions)
        except EmbedderUnavailable:
            raise
        except Exception as error:
            raise EmbedderUnavailable(FAILED.format(type(error).__name__)) from error
        vectors = {each.text.seq: each.body for each in found}
        return {
            seq: item(text._replace(vectors=vectors[seq])) for text in texts if (seq := text.seq) in vectors
        }

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


def _with_text(rows: Iterable[Row]) -> Iterator[Row]:
    return (row for row in rows if row.index_text is not None)


def _comparable(
    question: Question, corpus: Corpus | JoinedCorpus, mode: Mode, degraded: str | None
) -> tuple[Question, str | None]:
    """The question without its vector, where that cannot be compared with those of a corpus."""
    had = corpus.vectors.dimensions
    if question.vector is None or len(question.vector) == had:
        return question, degraded
    told = OTHER_DIMENSIONS.format(len(question.vector), had) if len(corpus.vectors.matrix) else None
    if told and mode == "semantic":
        raise EmbedderUnavailable(told)
    return replace(question, vector=None), degraded or told
