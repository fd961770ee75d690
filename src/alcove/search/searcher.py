"""Search by meaning and words: each subtree in memory, brought up to date before every search."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np

from alcove.core.clock import SECOND, Clock
from alcove.core.cursor import take_page
from alcove.core.errors import InvalidRequest
from alcove.core.filters import Filter
from alcove.core.records import RankingSignal, SearchMode
from alcove.engine.index import SearchIndex
from alcove.engine.rows.indexing import Text, TextToIndex
from alcove.engine.rows.versions import Row
from alcove.engine.scope import Scope
from alcove.search.corpus.corpus import AnyCorpus, Corpus, JoinedCorpus, Mask
from alcove.search.corpus.late_interaction import opened
from alcove.search.embedders import (
    OTHER_DIMENSIONS,
    Embedder,
    EmbedderUnavailable,
    Matrix,
    embed_query_with_tokens,
)
from alcove.search.indexer import KeptVectors, cut, embedded, kept
from alcove.search.ranking.calibration import Calibration, Relevance, most_relevant
from alcove.search.ranking.ranker import Hit, rank
from alcove.search.rerankers import FIRST, Reranker, RerankerUnavailable, scored
from alcove.search.sources.memory import RowPredicate, Subtrees, item, text_of
from alcove.search.sources.sampled import Wanted
from alcove.search.text.terms import Item, Lexicon, ParsedQuery

MOST_PAST = 20_000
"""Texts that one search of the past ranks."""
MOST_BYTES_OF_SOME = 64 << 20
"""Bytes of texts and vectors that a search among chosen versions reads."""
MOST_ATTEMPTS = 3
"""Searches until one is answered in full, where what was found is gone before it is read."""
MOST_WINDOWS, MOST_CHARACTERS = 16, 16_000
"""What one search embeds of the past: some tenths of a second."""
NO_EMBEDDER = "no embedder is configured, so this is ranked by words alone"
_UNEMBEDDED = {"hybrid": "ranked by words alone", "keyword": "without a score", "semantic": "not ranked"}
"""What becomes of memories without vectors, by mode."""
log = logging.getLogger("alcove")


class SearchResult(NamedTuple):
    """What a search found, best first; `degraded` says why it may be less than it could be."""

    hits: list[tuple[Row, Hit]]
    degraded: str | None
    next_offset: int | None
    """Where to go on, if not all of them fit in one answer."""
    complete: bool
    """Whether everything that was ranked best was still there when it was read, as far as it fits."""
    ranked: int
    """How many were ranked, those before the offset too; all there are, if fewer than were asked for."""
    texts: int
    """How many texts there are in all that was looked through, whatever the filter."""
    unembedded: Sequence[int] = ()
    """The versions without vectors of which `degraded` tells, among the hits or not."""


class SearchOptions(TypedDict):
    """How a search is to be answered."""

    mode: SearchMode
    limit: int
    offset: int
    """How many of the best hits to leave out."""
    explain: bool
    """Whether each hit says what each signal added to its rank."""
    calibrated: NotRequired[bool]
    """Whether what most likely answers the question comes first, with how likely that is."""
    min_relevance: NotRequired[float]
    """How relevant what is found must be, from 0 to 1."""
    unranked: NotRequired[bool]
    """Whether what has no vectors comes last where it goes by vectors alone, and is not left out."""


class Searcher:
    """Searches a store. It asks the store what changed before each search, so it sees every process's writes.

    `most_bytes` bounds the memory of the subtrees that it holds, and `most_texts` how many texts one of them
    has: of a larger one, the database finds candidates, if it can. `reranker` has the last word on the order
    of the first hits.
    """

    def __init__(
        self,
        index: SearchIndex,
        embedder: Embedder | None,
        clock: Clock,
        *,
        most_bytes: int,
        most_texts: int = 20_000,
        reranker: Reranker | None = None,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._reranker = reranker
        self._subtrees = Subtrees(index, most_bytes=most_bytes, most_texts=most_texts)
        self._lexicon: Lexicon | None = None

    def search(
        self, scope: Scope, question: ParsedQuery, *, row_matches: RowPredicate, **how: Unpack[SearchOptions]
    ) -> SearchResult:
        """The best of what is live in a scope.

        `row_matches` decides about rows whose fields only the opened value has.
        """
        wanted = Wanted(question, how["mode"], how["offset"] + how["limit"])
        for _ in range(MOST_ATTEMPTS):
            parts = self._subtrees.of(scope, self._name, row_matches, now=self._clock(), wanted=wanted)
            corpus: AnyCorpus
            corpus, mask, _ = parts[0]
            if len(parts) > 1:
                corpus = JoinedCorpus([part.corpus for part in parts])
                mask = np.concatenate([part.mask for part in parts])
            told = next((part.degraded for part in parts if part.degraded), None)
            asked = replace(question, degraded=told) if told and not question.degraded else question
            result = self._answer(scope, corpus, mask, asked, how)
            if result.complete:
                break
        return result

    def search_versions(
        self, scope: Scope, seqs: Sequence[int], question: ParsedQuery, **how: Unpack[SearchOptions]
    ) -> SearchResult:
        """The best of some versions; where their texts and vectors are too large, of the first of them."""
        now = self._clock()
        texts, is_all = self._index.texts_of(scope, self._name, seqs, now=now, most=MOST_BYTES_OF_SOME)
        if not is_all:
            told = f"only {len(texts)} of {len(seqs)} memories are searched: together they are too large"
            question = replace(question, degraded="; ".join(filter(None, (told, question.degraded))))
        corpus = Corpus.of(map(item, texts))
        return self._answer(scope, corpus, corpus.columns.live, question, how)

    def search_past(
        self,
        scope: Scope,
        rows: Iterable[Row],
        question: ParsedQuery,
        *,
        at: int,
        **how: Unpack[SearchOptions],
    ) -> SearchResult:
        """The best of some versions, `rows`, that were current at a moment, `at`.

        A few of them that have no vectors get them here.
        """
        with_text = (row for row in rows if row.index_text is not None)
        texts = {row.seq: text_of(row) for row in islice(with_text, MOST_PAST + 1)}
        if len(texts) > MOST_PAST:
            raise InvalidRequest("prefix", f"at most {MOST_PAST} texts of that time below it")
        everything = replace(scope, filter=Filter())
        now, these = self._clock(), Wanted(seqs=[*texts])
        live = self._subtrees.of(everything, self._name, lambda _: True, now=now, wanted=these)
        items = {seq: item(text) for seq, text in texts.items()}
        for corpus, *_ in live:
            for seq in items.keys() & corpus.rows.keys():
                if len(known := corpus.vectors.at(corpus.rows[seq])):
                    items[seq] = items[seq]._replace(vectors={"": known})
        unembedded = list[int]()
        if self._embedder and question.vector is not None:
            lost = [each for each in items.values() if not each.vectors]
            told = None
            try:
                wanted = [texts[each.sequence] for each in _likeliest(lost, question)]
                found = _embedded(self._embedder, wanted, len(question.vector))
                items |= {seq: items[seq]._replace(vectors=vectors) for seq, vectors in found.items()}
                if len(found) < len(lost):
                    told = f"{len(lost) - len(found)} texts of that time are ranked by words alone"
            except EmbedderUnavailable as error:
                told = f"{len(lost)} texts of that time are ranked by words alone: {error.message}"
            question = replace(question, degraded=told)
            unembedded = [seq for seq, each in items.items() if told and not each.vectors]
        corpus = Corpus.of(items.values())
        result = self._answer(scope, corpus, corpus.columns.live, question, how, at)
        return result._replace(unembedded=unembedded)

    def _answer(
        self,
        scope: Scope,
        corpus: AnyCorpus,
        mask: Mask,
        question: ParsedQuery,
        how: SearchOptions,
        at: int | None = None,
    ) -> SearchResult:
        """The best rows of a corpus, each looked up in the caller's own scope, whatever it was ranked in."""
        mode, offset, had = how["mode"], how["offset"], corpus.vectors.dimensions
        unembedded = list[int]()
        if question.vector is not None:
            told = None
            if at is None and not question.degraded:
                unembedded = corpus.columns.sequence[mask & ~corpus.vectors.present()].tolist()
                told = self._behind(unembedded, mode)
                unembedded = unembedded if told else []
            if len(question.vector) != had:  # they cannot be compared
                if len(corpus.vectors):
                    told = OTHER_DIMENSIONS.format(len(question.vector), had)
                    if mode == "semantic":
                        raise EmbedderUnavailable(told)
                question = replace(question, vector=None)
            if told and not question.degraded:
                question = replace(question, degraded=told)
        limit, explain = offset + how["limit"], how["explain"]
        if how.get("calibrated") and self._embedder:
            best = most_relevant(corpus, question, Calibration.of(self._embedder), limit=limit, mask=mask)
        else:
            unranked = how.get("unranked", False)
            again = self._reranker is not None and mode == "hybrid" and offset < FIRST
            most = max(limit, FIRST) if again else limit
            relevance = Relevance(corpus, question, self._calibration(question)).of
            best = rank(
                corpus,
                question,
                limit=most,
                mask=mask,
                mode=mode,
                explain=explain,
                unranked=unranked,
                relevance=relevance,
                least=how.get("min_relevance", 0.0),
            )
            if again and len(best) > 1:
                best, told = self._reranked(scope, question, best, at, explain=explain)
                question = replace(question, degraded=question.degraded or told)
            best = best[:limit]
        hits = {hit.id: hit for hit in best[offset:]}
        seqs = [id for id in hits if isinstance(id, int)]
        found, more = take_page(self._index.load_rows(scope, seqs, now=self._clock(), at=at), len(seqs))
        next_offset = offset + seqs.index(found[-1].seq) + 1 if more else None
        rows, complete = [(row, hits[row.seq]) for row in found], more or len(found) == len(hits)
        texts = int(np.count_nonzero(corpus.columns.live))
        return SearchResult(rows, question.degraded, next_offset, complete, len(best), texts, unembedded)

    def _reranked(
        self, scope: Scope, question: ParsedQuery, best: list[Hit], at: int | None, *, explain: bool
    ) -> tuple[list[Hit], str | None]:
        """The hits with the first in the reranker's order, or all in their own and why.

        It is sent the texts that the caller's own scope shows, and no others.
        """
        assert self._reranker
        first = {hit.id: hit for hit in best[:FIRST]}
        shown = self._index.load_rows(
            scope, [id for id in first if isinstance(id, int)], now=self._clock(), at=at
        )
        texts = {row.seq: "\n".join(row.index_texts.values()) for row in shown}
        try:
            scores = dict(zip(texts, scored(self._reranker, question.text, [*texts.values()]), strict=True))
        except RerankerUnavailable as error:
            log.warning("the reranker failed: %s", error.message)
            return best, f"this is in the search's own order: {error.message}"
        # What is gone by now comes last of them, where it is looked up once more, and missed.
        order = sorted(first, key=lambda id: -scores.get(id, -math.inf))  # type: ignore[call-overload]
        hits = [first[id] for id in order]
        if explain:
            hits = [
                hit._replace(signals={**hit.signals, "reranker": RankingSignal(n, scores.get(hit.id, 0.0))})  # type: ignore[call-overload]
                for n, hit in enumerate(hits, 1)
            ]
        return [*hits, *best[FIRST:]], None

    def without_vectors(self, scope: Scope, *, row_matches: RowPredicate) -> list[int]:
        """The versions of a scope with a text and no vectors: they wait for some, or cannot have any."""
        parts = self._subtrees.of(scope, self._name, row_matches, now=self._clock(), wanted=Wanted())
        bare = (corpus.columns.sequence[mask & ~corpus.vectors.present()] for corpus, mask, _ in parts)
        return [int(seq) for seqs in bare for seq in seqs]

    def _calibration(self, question: ParsedQuery) -> Calibration | None:
        """What a cosine of this embedder means; None where there is none to be read."""
        if self._embedder is None or question.vector is None:
            return None
        try:
            with _failures_told():
                return Calibration.of(self._embedder)
        except EmbedderUnavailable:  # it could embed the question, so it is tried again with the next
            return None

    def _behind(self, unembedded: Sequence[int], mode: SearchMode) -> str | None:
        """What is said of memories that have no vectors yet, or cannot get any; None where there are none."""
        if not unembedded:
            return None
        waiting, parked = self._index.count_pending(unembedded)  # those with blank texts are neither
        told, then = [], _UNEMBEDDED[mode]
        if waiting:
            who = "1 memory waits for its" if waiting == 1 else f"{waiting} memories wait for their"
            told.append(f"{who} vectors and {'is' if waiting == 1 else 'are'} {then}")
        if parked:
            who = "1 memory" if parked == 1 else f"{parked} memories"
            told.append(f"{who} could not be embedded and {'is' if parked == 1 else 'are'} {then}")
        return "; ".join(told) or None

    @property
    def _name(self) -> str:
        return self._embedder.name if self._embedder else ""

    def parse_query(self, query: str, mode: SearchMode) -> ParsedQuery:
        """The question with its vector, or why it has none; by meaning alone that is an error."""
        now = self._clock() / SECOND
        try:
            vector, tokens = self._embedded(query)
        except EmbedderUnavailable as error:
            if mode == "semantic" and self._embedder is None:
                raise EmbedderUnavailable("no embedder is configured: ask in the mode keyword") from None
            if mode == "semantic":
                raise
            # By words alone is what was asked for where there is no embedder; else the scores are missing.
            told = error.message if mode == "hybrid" or self._embedder else None
            return replace(ParsedQuery.of(query, now=now), degraded=told)
        if self._lexicon is None and (make := getattr(self._embedder, "lexicon", None)):
            self._lexicon = make()
        return ParsedQuery.of(query, vector, tokens=opened(tokens), lexicon=self._lexicon, now=now)

    def _embedded(self, query: str) -> tuple[Matrix, bytes]:
        if self._embedder is None:
            raise EmbedderUnavailable(NO_EMBEDDER)
        serving = self._index.serving()
        if serving not in (None, self._embedder.name):
            raise EmbedderUnavailable(f"the index is of the model {serving}: run `alcove reindex`")
        with _failures_told():
            return embed_query_with_tokens(self._embedder, query)


@contextmanager
def _failures_told() -> Iterator[None]:
    """Whatever an embedder raises becomes `EmbedderUnavailable`, and is logged."""
    try:
        yield
    except EmbedderUnavailable:
        raise
    except Exception as error:
        log.warning("the embedder failed", exc_info=error)
        raise EmbedderUnavailable(f"the embedder failed: {type(error).__name__}") from error


def _likeliest(items: list[Item], question: ParsedQuery) -> list[Item]:
    """Items of which not all can be embedded in one search, the best by words first."""
    if len(items) <= MOST_WINDOWS:
        return items
    words = replace(question, vector=None)
    hits = rank(Corpus.of(items), words, limit=MOST_WINDOWS, mode="keyword")
    order = {hit.id: n for n, hit in enumerate(hits)}
    return sorted(items, key=lambda item: order.get(item.id, MOST_WINDOWS))


def _embedded(embedder: Embedder, texts: Sequence[Text], dimensions: int) -> dict[int, KeptVectors]:
    """The vectors of as many of the texts, from the first on, as one search may embed."""
    windows, size, chosen = MOST_WINDOWS, MOST_CHARACTERS, []
    with _failures_told():
        for text in texts:
            if len(text.index_text) <= size:
                size -= len(text.index_text)
                whole = TextToIndex(text.seq, text.index_text)
                count = len(cut(embedder, whole)[0])
                if count <= windows:
                    windows -= count
                    chosen.append(whole)
        return {each.text.seq: kept(each.body)[0] for each in embedded(embedder, chosen, dimensions)}
