"""Searches a store by vectors and words: finds candidates, ranks them, and reads the best ones as the caller
may see them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from alcove.core.clock import SECOND, Clock
from alcove.core.cursor import take_page
from alcove.core.errors import InvalidRequest
from alcove.core.filters import Filter
from alcove.core.namespace import Namespace
from alcove.core.records import RankingSignal, SearchMode
from alcove.engine.index import SearchIndex
from alcove.engine.rows import CorpusTooLarge, Row, Scope, Text, TextToIndex
from alcove.search import SearchOptions
from alcove.search.corpus import AnyCorpus, Corpus, Item, JoinedCorpus
from alcove.search.embedders import OTHER_DIMENSIONS, Embedder, EmbedderUnavailable, embed_query_with_tokens
from alcove.search.late_interaction import token_matrix
from alcove.search.query import Lexicon, ParsedQuery
from alcove.search.ranking import Hit, most_relevant, rank
from alcove.search.relevance import Calibration, Relevance
from alcove.search.rerankers import RERANKED_HITS, Reranker, RerankerUnavailable, rerank_scores
from alcove.search.sources import candidate_sources
from alcove.search.sources.base import CandidateRequest, Candidates, RowPredicate, to_item
from alcove.search.sources.memory import ScopeCache
from alcove.search.text_vectors import WindowVectors, decode_vectors, embed_texts, next_windows
from alcove.search.vectors import Mask

MAX_PAST_TEXTS = 20_000
"""Texts that a search of the past ranks."""
MAX_CHOSEN_BYTES = 64 << 20
"""Bytes of texts and vectors that a search among chosen versions reads."""
MAX_ATTEMPTS = 3
"""Searches until one is complete, if hits disappear before they are read."""
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
    """Whether every hit was still there when it was read."""
    ranked_count: int
    """How many memories were ranked, with those before the offset; if fewer than the limit, there are no
    more."""
    text_count: int
    """How many texts the searched scope has, whatever the filter."""
    unembedded: Sequence[int] = ()
    """The versions without vectors that `degraded` is about."""


class HybridSearch:
    """Searches a store. Each search reads what changed before, so it sees the writes of every process."""

    def __init__(
        self,
        index: SearchIndex,
        embedder: Embedder | None,
        clock: Clock,
        *,
        max_bytes: int,
        max_texts: int,
        reranker: Reranker | None = None,
    ) -> None:
        """`max_bytes` bounds the memory of corpora. In scopes with more than `max_texts` texts the database
        finds candidates, if it can. `reranker` decides on the order of the first hits."""
        self._index, self._embedder, self._clock, self._reranker = index, embedder, clock, reranker
        self.cache = ScopeCache(max_bytes)
        self._sources = candidate_sources(index, self.cache, max_texts)
        self._lexicon: Lexicon | None = None

    def search(
        self, scope: Scope, query: ParsedQuery, options: SearchOptions, *, row_matches: RowPredicate
    ) -> SearchResult:
        """The best of the live memories of a scope.

        `row_matches` decides about filters on fields that are only in decrypted values.
        """
        limit = options.offset + options.limit
        for _ in range(MAX_ATTEMPTS):
            request = self._request(row_matches)._replace(query=query, mode=options.mode, limit=limit)
            corpus, mask, degraded = self._find(scope, request)
            degraded = query.degraded or degraded
            result = self._answer(scope, corpus, mask, replace(query, degraded=degraded), options)
            if result.is_complete:
                break
        return result

    def search_versions(
        self, scope: Scope, seqs: Sequence[int], query: ParsedQuery, options: SearchOptions
    ) -> SearchResult:
        """The best of some versions, or of the first of them if their texts and vectors are too large."""
        texts, is_all = self._index.texts_of(
            scope,
            self._embedder.name if self._embedder else "",
            seqs,
            now=self._clock(),
            max_bytes=MAX_CHOSEN_BYTES,
        )
        if not is_all:
            limited = f"only {len(texts)} of {len(seqs)} memories are searched: together they are too large"
            query = replace(query, degraded="; ".join(filter(None, (limited, query.degraded))))
        corpus = Corpus.of(map(to_item, texts))
        return self._answer(scope, corpus, corpus.columns.live, query, options)

    def search_past(
        self, scope: Scope, rows: Iterable[Row], query: ParsedQuery, options: SearchOptions, *, moment: int
    ) -> SearchResult:
        """The best of `rows`, which were current at a moment; embeds a few of those without vectors."""
        with_text = (row for row in rows if row.index_text is not None)
        texts = {
            row.seq: Text(row.seq, row.ns, row.written_at, row.expires_at, row.index_text or "{}", None)
            for row in islice(with_text, MAX_PAST_TEXTS + 1)
        }
        if len(texts) > MAX_PAST_TEXTS:
            raise InvalidRequest("prefix", f"at most {MAX_PAST_TEXTS} texts of that time below it")
        items = {seq: to_item(text) for seq, text in texts.items()}
        request = self._request(lambda _: True)._replace(seqs=[*texts])
        live_corpus, live, _ = self._find(replace(scope, filter=Filter()), request)
        live = live & np.isin(live_corpus.columns.sequence, [*items]) & live_corpus.vectors.has_vectors
        for row in np.flatnonzero(live).tolist():
            seq = int(live_corpus.columns.sequence[row])
            items[seq] = items[seq]._replace(vectors={"": live_corpus.vectors.of_row(row)})
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
        corpus = Corpus.of(items.values())
        result = self._answer(scope, corpus, corpus.columns.live, query, options, moment)
        unembedded = [seq for seq, item in items.items() if degraded and not item.vectors]
        return result._replace(unembedded=unembedded)

    def without_vectors(self, scope: Scope, *, row_matches: RowPredicate) -> list[int]:
        """The versions of a scope that have a text and no vectors, because they wait or cannot have any."""
        corpus, mask, _ = self._find(scope, self._request(row_matches))
        return _unembedded(corpus, mask)

    def parse_query(self, text: str, mode: SearchMode) -> ParsedQuery:
        """A query with its vector, or the reason why it has none; in semantic mode that is an error."""
        now = self._clock() / SECOND
        try:
            if self._embedder is None:
                raise EmbedderUnavailable(NO_EMBEDDER)
            serving = self._index.serving_embedder()
            if serving not in (None, self._embedder.name):
                raise EmbedderUnavailable(f"the index is of the model {serving}: run `alcove reindex`")
            with _embedder_failures():
                vector, tokens = embed_query_with_tokens(self._embedder, text)
        except EmbedderUnavailable as error:
            if mode == "semantic" and self._embedder is None:
                raise EmbedderUnavailable("no embedder is configured: use the mode keyword") from None
            if mode == "semantic":
                raise
            # Keyword search without an embedder is complete; with one, the scores are missing.
            degraded = error.message if mode == "hybrid" or self._embedder else None
            return replace(ParsedQuery.of(text, now=now), degraded=degraded)
        if self._lexicon is None and (make := getattr(self._embedder, "lexicon", None)):
            self._lexicon = make()
        return ParsedQuery.of(text, vector, tokens=token_matrix(tokens), lexicon=self._lexicon, now=now)

    def _request(self, row_matches: RowPredicate) -> CandidateRequest:
        return CandidateRequest(row_matches, self._embedder.name if self._embedder else "", self._clock())

    def _find(self, scope: Scope, request: CandidateRequest) -> tuple[AnyCorpus, Mask, str | None]:
        """The candidates of a scope, from the first source that finds them: see `Candidates`.

        The rooms in it that the caller owns are searched one by one, and the rest as all its readers see it:
        what others own must not influence how words are weighed, and the rest is in memory only once.
        """
        scopes = [scope]
        if scope.owner is not None and Namespace.decode(scope.low).owner is None:
            subtrees = [room.subtree() for room in self._index.owned_rooms(scope)]
            scopes = [replace(scope, owner=None, unowned=True)]
            scopes += (replace(scope, low=low, high=high) for low, high in subtrees)
        parts: list[Candidates] = []
        try:
            for part in scopes:
                answers = (source.find(part, request) for source in self._sources)
                parts.append(next(candidates for candidates in answers if candidates))
        except CorpusTooLarge:
            limit = f"the {self.cache.max_bytes >> 20} MB of `search_memory_mb`"
            message = f"less to search at once: it takes more than {limit}"
            raise InvalidRequest("prefix", message) from None
        parts = [part for part in parts if len(part.corpus)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        corpus = JoinedCorpus([part.corpus for part in parts])
        mask = np.concatenate([part.mask for part in parts])
        return corpus, mask, next((part.degraded for part in parts if part.degraded), None)

    def _answer(
        self,
        scope: Scope,
        corpus: AnyCorpus,
        mask: Mask,
        query: ParsedQuery,
        options: SearchOptions,
        moment: int | None = None,
    ) -> SearchResult:
        """The best candidates, each read in the caller's own scope, whatever it was ranked in."""
        mode, offset, limit = options.mode, options.offset, options.offset + options.limit
        unembedded, needs_vectors = list[int](), query.vector is not None and not query.degraded
        if query.vector is not None and len(query.vector) != corpus.vectors.dimensions:
            degraded = None
            if len(corpus.vectors):
                degraded = OTHER_DIMENSIONS.format(len(query.vector), corpus.vectors.dimensions)
                if mode == "semantic":
                    raise EmbedderUnavailable(degraded)
            query = replace(query, vector=None, degraded=query.degraded or degraded)
        bare = _unembedded(corpus, mask) if needs_vectors and moment is None else []
        if bare and (degraded := self._describe_unembedded(bare, mode)):
            query, unembedded = replace(query, degraded=query.degraded or degraded), bare
        if options.calibrated and self._embedder:
            best = most_relevant(corpus, query, Calibration.of(self._embedder), limit=limit, mask=mask)
        else:
            calibration = None
            if self._embedder and query.vector is not None:
                # It embedded the query, so if it fails now, the next search tries again.
                with suppress(EmbedderUnavailable), _embedder_failures():
                    calibration = Calibration.of(self._embedder)
            reranks = self._reranker is not None and mode == "hybrid" and offset < RERANKED_HITS
            best = rank(
                corpus,
                query,
                limit=max(limit, RERANKED_HITS) if reranks else limit,
                mask=mask,
                mode=mode,
                explain=options.explain,
                unranked=options.unranked,
                relevance=Relevance(query, corpus.postings, calibration),
                min_relevance=options.min_relevance,
            )
            if reranks and len(best) > 1:
                best, degraded = self._rerank(scope, query, best, moment, explain=options.explain)
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

        The reranker gets only texts that the caller's own scope shows.
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
        order = sorted(seqs, key=lambda seq: -score_of.get(seq, -math.inf))
        hits = [first[seq] for seq in order]
        if explain:
            hits = [
                first[seq]._replace(
                    signals={**first[seq].signals, "reranker": RankingSignal(n, score_of.get(seq, 0.0))}
                )
                for n, seq in enumerate(order, 1)
            ]
        return [*hits, *best[RERANKED_HITS:]], None

    def _describe_unembedded(self, seqs: Sequence[int], mode: SearchMode) -> str | None:
        """A message about memories that have no vectors yet, or cannot get any."""
        pending, parked = self._index.count_pending(seqs)  # blank texts are neither
        messages, outcome = [], _UNEMBEDDED[mode]
        if pending:
            subject = "1 memory waits for its" if pending == 1 else f"{pending} memories wait for their"
            messages.append(f"{subject} vectors and {'is' if pending == 1 else 'are'} {outcome}")
        if parked:
            subject = "1 memory" if parked == 1 else f"{parked} memories"
            messages.append(f"{subject} could not be embedded and {'is' if parked == 1 else 'are'} {outcome}")
        return "; ".join(messages) or None


def _unembedded(corpus: AnyCorpus, mask: Mask) -> list[int]:
    """The versions among the rows of a mask that have no vectors."""
    seqs: list[int] = corpus.columns.sequence[mask & ~corpus.vectors.has_vectors].tolist()
    return seqs


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


def _likeliest(items: list[Item], query: ParsedQuery) -> list[Item]:
    """Items, the best by words first if there are too many to embed all."""
    if len(items) <= MAX_PAST_WINDOWS:
        return items
    by_words = replace(query, vector=None)
    hits = rank(Corpus.of(items), by_words, limit=MAX_PAST_WINDOWS, mode="keyword")
    order = {hit.id: n for n, hit in enumerate(hits)}
    return sorted(items, key=lambda item: order.get(item.id, MAX_PAST_WINDOWS))


def _embed_some(embedder: Embedder, texts: Sequence[Text], dimensions: int) -> dict[int, WindowVectors]:
    """The vectors of the first texts by version, as many as one search may embed."""
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
