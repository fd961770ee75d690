"""Search by vectors and words: finds candidates, ranks them, and reads the best as the caller may see
them."""

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
from alcove.engine.rows import Row, Scope, Text, TextToIndex
from alcove.search.corpus import AnyCorpus, Corpus, Item, JoinedCorpus
from alcove.search.embedders import (
    OTHER_DIMENSIONS,
    Embedder,
    EmbedderUnavailable,
    Matrix,
    embed_query_with_tokens,
)
from alcove.search.late_interaction import token_matrix
from alcove.search.query import Lexicon, ParsedQuery
from alcove.search.ranking import Hit, most_relevant, rank
from alcove.search.relevance import Calibration, Relevance
from alcove.search.rerankers import RERANKED_HITS, Reranker, RerankerUnavailable, rerank_scores
from alcove.search.sources.base import CandidateRequest, RowPredicate, item_of
from alcove.search.sources.finder import CandidateFinder
from alcove.search.text_vectors import WindowVectors, decode_vectors, embed_texts, next_windows
from alcove.search.vectors import Mask

MAX_PAST_TEXTS = 20_000
"""Texts that a search of the past ranks."""
MAX_CHOSEN_BYTES = 64 << 20
"""Bytes of texts and vectors that a search among chosen versions reads."""
MAX_ATTEMPTS = 3
"""Searches until one is complete, where hits are gone before they are read."""
MAX_PAST_WINDOWS, MAX_PAST_CHARACTERS = 16, 16_000
"""What a search of the past embeds: some tenths of a second."""
NO_EMBEDDER = "no embedder is configured, so this is ranked by words alone"
_UNEMBEDDED = {"hybrid": "ranked by words alone", "keyword": "without a score", "semantic": "not ranked"}
"""What happens to memories without vectors, by mode."""
log = logging.getLogger("alcove")


class SearchResult(NamedTuple):
    """The hits of a search, best first; `degraded` says why it may contain less than it could."""

    hits: list[tuple[Row, Hit]]
    degraded: str | None
    next_offset: int | None
    """Where to continue, if not all hits fit in one answer."""
    is_complete: bool
    """Whether every hit that fits was still there when it was read."""
    ranked_count: int
    """How many memories were ranked, with those before the offset; if fewer than the limit, there are no
    more."""
    text_count: int
    """How many texts the searched scope has, whatever the filter."""
    unembedded: Sequence[int] = ()
    """The versions without vectors that `degraded` is about."""


class SearchOptions(TypedDict):
    """How a search answers."""

    mode: SearchMode
    limit: int
    offset: int
    """How many of the best hits to skip."""
    explain: bool
    """Whether each hit says what each signal added to its rank."""
    calibrated: NotRequired[bool]
    """Whether hits are ordered by how likely they answer the query."""
    min_relevance: NotRequired[float]
    """The least relevance of a hit, from 0 to 1."""
    unranked: NotRequired[bool]
    """Whether memories without vectors come last in semantic mode, instead of not at all."""


class HybridSearch:
    """Searches a store. Each search reads what changed before, so it sees the writes of every process.

    `max_bytes` bounds the memory of corpora. In scopes with more than `max_texts` texts the database finds
    candidates, if it can. `reranker` decides on the order of the first hits.
    """

    def __init__(
        self,
        index: SearchIndex,
        embedder: Embedder | None,
        clock: Clock,
        *,
        max_bytes: int,
        max_texts: int = 20_000,
        reranker: Reranker | None = None,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._reranker = reranker
        self._finder = CandidateFinder(index, max_bytes=max_bytes, max_texts=max_texts)
        self._lexicon: Lexicon | None = None

    def search(
        self,
        scope: Scope,
        query: ParsedQuery,
        *,
        row_matches: RowPredicate,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The best of the live memories of a scope.

        `row_matches` decides about filters on fields that only opened values have.
        """
        for _ in range(MAX_ATTEMPTS):
            limit = options["offset"] + options["limit"]
            request = self._request(scope.filter, row_matches)._replace(
                query=query, mode=options["mode"], limit=limit
            )
            parts = self._finder.find(scope, request)
            corpus: AnyCorpus
            corpus, mask, _ = parts[0]
            if len(parts) > 1:
                corpus = JoinedCorpus([part.corpus for part in parts])
                mask = np.concatenate([part.mask for part in parts])
            degraded = query.degraded or next((part.degraded for part in parts if part.degraded), None)
            result = self._answer(scope, corpus, mask, replace(query, degraded=degraded), options)
            if result.is_complete:
                break
        return result

    def search_versions(
        self, scope: Scope, seqs: Sequence[int], query: ParsedQuery, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """The best of some versions, or of the first of them if their texts and vectors are too large."""
        texts, is_all = self._index.texts_of(
            scope, self._embedder_name, seqs, now=self._clock(), max_bytes=MAX_CHOSEN_BYTES
        )
        if not is_all:
            limited = f"only {len(texts)} of {len(seqs)} memories are searched: together they are too large"
            query = replace(query, degraded="; ".join(filter(None, (limited, query.degraded))))
        corpus = Corpus.of(map(item_of, texts))
        return self._answer(scope, corpus, corpus.columns.live, query, options)

    def search_past(
        self,
        scope: Scope,
        rows: Iterable[Row],
        query: ParsedQuery,
        *,
        moment: int,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The best of `rows`, which were current at a moment; embeds a few of those without vectors."""
        with_text = (row for row in rows if row.index_text is not None)
        texts = {row.seq: _text_of(row) for row in islice(with_text, MAX_PAST_TEXTS + 1)}
        if len(texts) > MAX_PAST_TEXTS:
            raise InvalidRequest("prefix", f"at most {MAX_PAST_TEXTS} texts of that time below it")
        items = {seq: item_of(text) for seq, text in texts.items()}
        request = self._request(Filter(), lambda _: True)._replace(seqs=[*texts])
        for corpus, *_ in self._finder.find(replace(scope, filter=Filter()), request):
            for seq in items.keys() & corpus.rows.keys():
                if len(vectors := corpus.vectors.of_row(corpus.rows[seq])):
                    items[seq] = items[seq]._replace(vectors={"": vectors})
        degraded = None
        if self._embedder and query.vector is not None:
            bare = [item for item in items.values() if not item.vectors]
            try:
                likeliest = [texts[item.sequence] for item in _likeliest(bare, query)]
                vectors_of = _embed_some(self._embedder, likeliest, len(query.vector))
                items |= {seq: items[seq]._replace(vectors=fields) for seq, fields in vectors_of.items()}
                if missing_count := len(bare) - len(vectors_of):
                    degraded = f"{missing_count} texts of that time are ranked by words alone"
            except EmbedderUnavailable as error:
                degraded = f"{len(bare)} texts of that time are ranked by words alone: {error.message}"
            query = replace(query, degraded=degraded)
        past = Corpus.of(items.values())
        result = self._answer(scope, past, past.columns.live, query, options, moment)
        unembedded = [seq for seq, item in items.items() if degraded and not item.vectors]
        return result._replace(unembedded=unembedded)

    def without_vectors(self, scope: Scope, *, row_matches: RowPredicate) -> list[int]:
        """The versions of a scope that have a text and no vectors, because they wait or cannot have any."""
        parts = self._finder.find(scope, self._request(scope.filter, row_matches))
        bare = (corpus.columns.sequence[mask & ~corpus.vectors.has_vectors()] for corpus, mask, _ in parts)
        return [int(seq) for seqs in bare for seq in seqs]

    def parse_query(self, text: str, mode: SearchMode) -> ParsedQuery:
        """A query with its vector, or the reason why it has none; in semantic mode that is an error."""
        now = self._clock() / SECOND
        try:
            vector, tokens = self._embed_query(text)
        except EmbedderUnavailable as error:
            if mode == "semantic" and self._embedder is None:
                raise EmbedderUnavailable("no embedder is configured: ask in the mode keyword") from None
            if mode == "semantic":
                raise
            # Keyword search without an embedder is complete; with one, the scores are missing.
            degraded = error.message if mode == "hybrid" or self._embedder else None
            return replace(ParsedQuery.of(text, now=now), degraded=degraded)
        if self._lexicon is None and (make := getattr(self._embedder, "lexicon", None)):
            self._lexicon = make()
        return ParsedQuery.of(text, vector, tokens=token_matrix(tokens), lexicon=self._lexicon, now=now)

    def _request(self, filter: Filter, row_matches: RowPredicate) -> CandidateRequest:
        return CandidateRequest(filter, row_matches, self._embedder_name, self._clock())

    def _answer(
        self,
        scope: Scope,
        corpus: AnyCorpus,
        mask: Mask,
        query: ParsedQuery,
        options: SearchOptions,
        moment: int | None = None,
    ) -> SearchResult:
        """The best rows of a corpus, each read in the caller's own scope, whatever it was ranked in."""
        mode, offset = options["mode"], options["offset"]
        unembedded, needs_vectors = list[int](), query.vector is not None and not query.degraded
        query = _comparable(query, corpus, mode)
        if needs_vectors and moment is None:
            bare = corpus.columns.sequence[mask & ~corpus.vectors.has_vectors()].tolist()
            if degraded := self._describe_unembedded(bare, mode):
                query, unembedded = replace(query, degraded=query.degraded or degraded), bare
        limit = offset + options["limit"]
        if options.get("calibrated") and self._embedder:
            best = most_relevant(corpus, query, Calibration.of(self._embedder), limit=limit, mask=mask)
        else:
            reranks = self._reranker is not None and mode == "hybrid" and offset < RERANKED_HITS
            best = rank(
                corpus,
                query,
                limit=max(limit, RERANKED_HITS) if reranks else limit,
                mask=mask,
                mode=mode,
                explain=options["explain"],
                unranked=options.get("unranked", False),
                relevance=Relevance(query, corpus.postings, self._calibration(query)),
                min_relevance=options.get("min_relevance", 0.0),
            )
            if reranks and len(best) > 1:
                best, degraded = self._rerank(scope, query, best, moment, explain=options["explain"])
                query = replace(query, degraded=query.degraded or degraded)
            best = best[:limit]
        hits = {hit.id: hit for hit in best[offset:]}
        seqs = [id for id in hits if isinstance(id, int)]
        rows, has_more = take_page(
            self._index.load_rows(scope, seqs, now=self._clock(), moment=moment), len(seqs)
        )
        return SearchResult(
            [(row, hits[row.seq]) for row in rows],
            query.degraded,
            offset + seqs.index(rows[-1].seq) + 1 if has_more else None,
            is_complete=has_more or len(rows) == len(hits),
            ranked_count=len(best),
            text_count=int(np.count_nonzero(corpus.columns.live)),
            unembedded=unembedded,
        )

    def _rerank(
        self, scope: Scope, query: ParsedQuery, best: list[Hit], moment: int | None, *, explain: bool
    ) -> tuple[list[Hit], str | None]:
        """The hits with the first ones in the reranker's order, or unchanged and why.

        It is sent only texts that the caller's own scope shows.
        """
        assert self._reranker
        first = {hit.id: hit for hit in best[:RERANKED_HITS]}
        seqs = [id for id in first if isinstance(id, int)]
        rows = self._index.load_rows(scope, seqs, now=self._clock(), moment=moment)
        texts = {row.seq: "\n".join(row.index_texts.values()) for row in rows}
        try:
            scores = rerank_scores(self._reranker, query.text, [*texts.values()])
        except RerankerUnavailable as error:
            log.warning("the reranker failed: %s", error.message)
            return best, f"this is in the search's own order: {error.message}"
        score_of = dict(zip(texts, scores, strict=True))
        # A hit that is gone by now comes last; it is missed when it is read once more.
        order = sorted(first, key=lambda id: -score_of.get(id, -math.inf))  # type: ignore[call-overload]
        hits = [first[id] for id in order]
        if explain:
            hits = [
                hit._replace(signals={**hit.signals, "reranker": RankingSignal(n, score_of.get(hit.id, 0.0))})  # type: ignore[call-overload]
                for n, hit in enumerate(hits, 1)
            ]
        return [*hits, *best[RERANKED_HITS:]], None

    def _calibration(self, query: ParsedQuery) -> Calibration | None:
        """What cosines of this embedder mean; None if there are none."""
        if self._embedder is None or query.vector is None:
            return None
        try:
            with _embedder_failures():
                return Calibration.of(self._embedder)
        except EmbedderUnavailable:  # it embedded the query, so the next search tries again
            return None

    def _describe_unembedded(self, seqs: Sequence[int], mode: SearchMode) -> str | None:
        """A message about memories that have no vectors yet, or cannot get any; None without such
        memories."""
        if not seqs:
            return None
        pending, parked = self._index.count_pending(seqs)  # blank texts are neither
        messages, outcome = [], _UNEMBEDDED[mode]
        if pending:
            subject = "1 memory waits for its" if pending == 1 else f"{pending} memories wait for their"
            messages.append(f"{subject} vectors and {'is' if pending == 1 else 'are'} {outcome}")
        if parked:
            subject = "1 memory" if parked == 1 else f"{parked} memories"
            messages.append(f"{subject} could not be embedded and {'is' if parked == 1 else 'are'} {outcome}")
        return "; ".join(messages) or None

    @property
    def _embedder_name(self) -> str:
        return self._embedder.name if self._embedder else ""

    def _embed_query(self, text: str) -> tuple[Matrix, bytes]:
        if self._embedder is None:
            raise EmbedderUnavailable(NO_EMBEDDER)
        serving = self._index.serving()
        if serving not in (None, self._embedder.name):
            raise EmbedderUnavailable(f"the index is of the model {serving}: run `alcove reindex`")
        with _embedder_failures():
            return embed_query_with_tokens(self._embedder, text)


def _comparable(query: ParsedQuery, corpus: AnyCorpus, mode: SearchMode) -> ParsedQuery:
    """The query, without its vector if the corpus has vectors of other dimensions."""
    dimensions = corpus.vectors.dimensions
    if query.vector is None or len(query.vector) == dimensions:
        return query
    message = None
    if len(corpus.vectors):
        message = OTHER_DIMENSIONS.format(len(query.vector), dimensions)
        if mode == "semantic":
            raise EmbedderUnavailable(message)
    return replace(query, vector=None, degraded=query.degraded or message)


@contextmanager
def _embedder_failures() -> Iterator[None]:
    """Turns whatever an embedder raises into `EmbedderUnavailable`, and logs it."""
    try:
        yield
    except EmbedderUnavailable:
        raise
    except Exception as error:
        log.warning("the embedder failed", exc_info=error)
        raise EmbedderUnavailable(f"the embedder failed: {type(error).__name__}") from error


def _text_of(row: Row) -> Text:
    """A version's text, without vectors."""
    return Text(row.seq, row.ns, row.written_at, row.expires_at, row.index_text or "{}", None)


def _likeliest(items: list[Item], query: ParsedQuery) -> list[Item]:
    """Items, the best by words first, if there are too many to embed all."""
    if len(items) <= MAX_PAST_WINDOWS:
        return items
    by_words = replace(query, vector=None)
    hits = rank(Corpus.of(items), by_words, limit=MAX_PAST_WINDOWS, mode="keyword")
    order = {hit.id: n for n, hit in enumerate(hits)}
    return sorted(items, key=lambda item: order.get(item.id, MAX_PAST_WINDOWS))


def _embed_some(embedder: Embedder, texts: Sequence[Text], dimensions: int) -> dict[int, WindowVectors]:
    """The vectors of the first texts, as many as one search may embed, by version."""
    windows, characters, chosen_texts = MAX_PAST_WINDOWS, MAX_PAST_CHARACTERS, []
    with _embedder_failures():
        for text in texts:
            if len(text.index_text) <= characters:
                characters -= len(text.index_text)
                to_embed = TextToIndex(text.seq, text.index_text)
                count = len(next_windows(embedder, to_embed)[0])
                if count <= windows:
                    windows -= count
                    chosen_texts.append(to_embed)
        pieces = embed_texts(embedder, chosen_texts, dimensions)
        return {piece.text.seq: decode_vectors(piece.body)[0] for piece in pieces}
