"""What the sources with an index in the database have in common: quantized vectors, pgvector and Qdrant.

They serve scopes with too many texts for memory. A sample of the scope is in memory: words are weighed and
vectors are centred by it, so that candidates are ranked as in a corpus of all texts. If the order of writing
matters, neighbours of the best candidates are candidates, too.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice

import numpy as np

from alcove.core.cache import Cache
from alcove.core.records import SearchMode
from alcove.engine.candidate_index import CandidateIndex, IndexEntry
from alcove.engine.index import SearchIndex
from alcove.engine.rows import IndexState, Scope, Text
from alcove.engine.vector_index import CandidateQuery, NearestTexts
from alcove.search.corpus import MAX_DISTANCE, Corpus, Item, documents
from alcove.search.late_interaction import TokenTable
from alcove.search.postings import inverse_frequency
from alcove.search.query import ParsedQuery
from alcove.search.ranking import DEFAULT, TURN_TERMS, rank
from alcove.search.relevance import MAX_RELATED
from alcove.search.sources.base import CandidateRequest, Candidates, decode_fields, to_item
from alcove.search.sources.memory import ScopeCache
from alcove.search.text_vectors import window_vectors
from alcove.search.vectors import Mask
from alcove.search.words import STOP_WORDS, term_counts

SAMPLE_TEXTS = 3000
"""Texts of a sample."""
MIN_CANDIDATES, MAX_CANDIDATES = 40, 2000
"""Bounds of the candidates that are found by vector, and of those that are found by terms."""
MAX_TERM_TEXTS = 1500
"""Texts, by the sample, that contain the terms by which candidates are looked up."""
KEYWORD_FACTOR = 2
"""Multiplies these bounds if words alone decide."""
MAX_CENTRES = 40
"""The best candidates, whose neighbours become candidates."""
LONG_TEXT_TERMS = 3 * TURN_TERMS
"""Average terms of texts that can be understood without their neighbours."""
TERMS_BYTES, MAX_TERMS_BYTES = 200, 2_500_000
"""The overhead of a cached candidate's terms, and the maximum size of all of them."""
MAX_TERM_NUMBERS = 20_000
"""Terms whose numbers are cached."""
MAX_COUNTS = 10_000
"""Scopes for which it is cached whether they are large."""
NEVER_REBUILT = 2**62

TakeTexts = Callable[[Iterable[Text]], None]
SampleSeqs = tuple[dict[int, int], int]
"""The versions of a sample, each with the run of consecutive texts it is in; and the texts of the scope."""


@dataclass(frozen=True)
class Sample:
    """Some texts of a scope, as of one state of the index."""

    corpus: Corpus
    """Has their words and the mean of their vectors, but neither vectors nor tokens."""
    text_count: int
    """How many texts the scope has."""
    state: IndexState
    terms: Cache[int, Sequence[int]]
    """The terms of recent candidates by version; they depend on the sample's labels."""

    @property
    def uses_neighbours(self) -> bool:
        return self.corpus.order_matters and self.corpus.postings.average_length < LONG_TEXT_TERMS

    def is_current(self, state: IndexState) -> bool:
        """Whether nothing was erased since, the embedder is the same, and less than a quarter was written."""
        written_count = state.seq - self.state.seq
        return self.state[3:] == state[3:] and written_count < max(self.text_count // 4, 1)


class ScopeSample:
    """The current sample of a scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._lock = threading.Lock()
        self._sample: Sample | None = None

    def get(self, state: IndexState, draw: Callable[[Scope], Sample]) -> Sample:
        """The sample, drawn again if it is not current; concurrent searches wait for the same one."""
        with self._lock:
            if self._sample is None or not self._sample.is_current(state):
                self._sample = draw(self._scope)
            return self._sample

    @property
    def bytes(self) -> int:
        sample = self._sample
        return sample.corpus.bytes + sample.terms.size_bytes if sample else 0


class IndexedSource(ABC):
    """Finds candidates with an index in the database, for scopes with more than `max_texts` texts."""

    def __init__(
        self, index: SearchIndex, candidates: CandidateIndex, cache: ScopeCache, max_texts: int
    ) -> None:
        self._index, self._candidates, self._cache, self._max_texts = index, candidates, cache, max_texts
        self._counts: Cache[tuple[bytes, bytes], tuple[IndexState, bool]] = Cache(max_entries=MAX_COUNTS)
        """When the texts of a scope were last counted, and whether there were too many for memory."""

    @abstractmethod
    def _sample_seqs(self, scope: Scope, size: int) -> SampleSeqs:
        """Chooses the versions of a new sample."""

    @abstractmethod
    def _search(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> NearestTexts:
        """The likeliest texts of a scope. Passes texts to `take` that it reads on the way."""

    def find(self, scope: Scope, request: CandidateRequest) -> Candidates | None:
        """One corpus of the candidates and the sample, whose rows are not in the mask.

        None if the scope is small, if the index lacks too many texts, or if too few candidates match a filter
        on fields that only decrypted values have.
        """
        if not request.embedder:
            return None
        state = self._index.state()
        if not self._is_large(scope, state):
            return None
        missing = self._candidates.missing(scope, request.embedder)
        if missing is None or request.limit > MAX_CANDIDATES:
            return None
        with self._cache.use(ScopeSample, scope) as scope_sample:
            sample = scope_sample.get(state, partial(self._draw, state, request.embedder))
            candidates = self._collect(scope, request, sample, missing)
        if not scope.filter.conditions:
            return candidates
        corpus, mask, _ = candidates
        seqs = corpus.columns.sequence[mask].tolist()
        rows = self._index.load_rows(scope, seqs, now=request.now)
        matching = [row.seq for row in rows if request.row_matches(row)]
        if len(matching) < min(len(seqs), request.limit):
            return None
        return candidates._replace(mask=mask & np.isin(corpus.columns.sequence, matching))

    def catch_up(self) -> int:
        return self._candidates.catch_up(index_entry)

    @property
    def problem(self) -> str | None:
        return self._index.problem

    def _is_large(self, scope: Scope, state: IndexState) -> bool:
        """Whether the scope has too many texts for memory; counts again after a quarter more was written."""
        key = (scope.low, scope.high)
        if counted := self._counts.get(key):
            before, is_large = counted
            if state[3:] == before[3:] and state.seq - before.seq <= self._max_texts // 4:
                return is_large
        is_large = self._candidates.count(scope, self._max_texts + 1) > self._max_texts
        self._counts.put(key, (state, is_large))
        return is_large

    def _draw(self, state: IndexState, embedder: str, scope: Scope) -> Sample:
        runs, indexed_count = self._sample_seqs(scope, SAMPLE_TEXTS)
        texts = self._candidates.texts(scope, embedder, [*runs], now=0)
        text_count = round(indexed_count * len(texts) / max(len(runs), 1))
        corpus = Corpus.of(to_item(text)._replace(run=runs[text.seq]) for text in texts)
        corpus = replace(
            corpus,
            built_count=NEVER_REBUILT,
            postings=corpus.postings.as_sample(text_count),
            vectors=corpus.vectors.without_vectors(),
            tokens=TokenTable.of([b""] * len(corpus)),
        )
        return Sample(corpus, text_count, state, Cache(max_bytes=MAX_TERMS_BYTES))

    def _collect(
        self, scope: Scope, request: CandidateRequest, sample: Sample, missing: Sequence[int]
    ) -> Candidates:
        """The candidates for a query, or the requested versions."""
        collected = _CollectedTexts(self._candidates, scope, request, sample)
        seqs = {*missing} if request.seqs is None else {*request.seqs}
        query, degraded = request.query, None
        if query:
            by_mode = _candidate_query(query, request.mode, request, sample)
            nearest = self._search(scope, by_mode, collected.take, now=request.now)
            seqs |= nearest.seqs
            degraded = nearest.degraded
            if degraded and request.mode == "semantic":  # finds by words, and still ranks by vectors
                by_words = _candidate_query(query, "keyword", request, sample)
                seqs |= self._search(scope, by_words, collected.take, now=request.now).seqs
        collected.read(seqs)
        corpus, mask = collected.with_sample({})
        if query and request.mode != "semantic" and sample.uses_neighbours:
            without_tokens = replace(query, tokens=None)
            hits = rank(corpus, without_tokens, limit=MAX_CENTRES, mask=mask, mode=request.mode)
            centres = [hit.id for hit in hits if isinstance(hit.id, int)]
            neighbours = self._candidates.neighbours(centres, MAX_DISTANCE)
            collected.read({*chain.from_iterable(neighbours.values())})
            corpus, mask = collected.with_sample(collected.find_runs(neighbours))
        return Candidates(corpus, mask, degraded)


class _CollectedTexts:
    """The candidates of one search, as they are read."""

    def __init__(
        self, candidates: CandidateIndex, scope: Scope, request: CandidateRequest, sample: Sample
    ) -> None:
        self._candidates, self._scope, self._request, self._sample = candidates, scope, request, sample
        self._items: dict[int, Item] = {}

    def take(self, texts: Iterable[Text]) -> None:
        """Adds texts."""
        for text in texts:
            if text.seq in self._items:
                continue
            item, terms = to_item(text), self._sample.terms.get(text.seq)
            if terms is None:
                (document,) = documents([item], self._sample.corpus.groups)
                terms = array("q", document)
                self._sample.terms.put(text.seq, terms, TERMS_BYTES + terms.itemsize * len(terms))
            self._items[text.seq] = item._replace(terms=terms)

    def read(self, seqs: Set[int]) -> None:
        """Reads and adds those versions that are not here yet."""
        if absent := seqs - self._items.keys():
            request = self._request
            self.take(self._candidates.texts(self._scope, request.embedder, [*absent], now=request.now))

    def with_sample(self, runs: Mapping[int, int]) -> tuple[Corpus, Mask]:
        """One corpus of the sample and these texts, and a mask of these. Texts in the same run are
        neighbours."""
        seqs = sorted(self._items)  # in order of writing, as in a corpus of all texts, for equal ranks
        items = [self._items[seq]._replace(run=runs.get(seq, -seq)) for seq in seqs]
        corpus = self._sample.corpus.changed(add=items) or Corpus.of(items)
        return corpus, np.isin(corpus.columns.sequence, seqs) & corpus.columns.live

    def find_runs(self, neighbours: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """The run of each text that has neighbours here; overlapping stretches become one run."""
        stretches = sorted(
            (str(self._items[seq].namespace), sorted([seq, *near])) for seq, near in neighbours.items()
        )
        runs: dict[int, int] = {}
        last_namespace, end = "", 0
        for namespace, stretch in stretches:
            overlaps = namespace == last_namespace and stretch[0] <= end
            run = runs[end] if overlaps else -stretch[0]
            runs.update(dict.fromkeys(stretch, run))
            last_namespace, end = namespace, max(stretch[-1], end if namespace == last_namespace else 0)
        return runs


def _candidate_query(
    query: ParsedQuery, mode: SearchMode, request: CandidateRequest, sample: Sample
) -> CandidateQuery:
    """A query as the candidate index understands it."""
    vector = query.vector.tolist() if query.vector is not None and mode != "keyword" else None
    factor = KEYWORD_FACTOR if vector is None else 1
    limit = min(max(4 * request.limit, MIN_CANDIDATES) * factor, MAX_CANDIDATES)
    if mode == "semantic":
        return CandidateQuery(limit, vector, (), {}, sample.text_count, request.embedder)
    postings, size = sample.corpus.postings, len(sample.corpus)
    weights, counts = dict[int, float](), dict[int, int]()
    for term, likeness in _weighted_terms(query):
        number, count = term_number(term), len(postings.find(term).rows)
        weight = likeness * inverse_frequency(count, size)  # of the sample: what it lacks may be frequent
        weights[number] = max(weights.get(number, 0.0), weight)
        counts.setdefault(number, count)
    # The rarest terms, as long as not too many texts contain them.
    texts_per_sample_text = max(sample.text_count, 1) / max(size, 1)
    terms, max_texts = list[int](), float(MAX_TERM_TEXTS * factor)
    for number in sorted(counts, key=counts.__getitem__):
        text_count = counts[number] * texts_per_sample_text
        if terms and max_texts < text_count:
            break
        terms.append(number)
        max_texts -= text_count
    return CandidateQuery(limit, vector, terms, weights, sample.text_count, request.embedder)


def _weighted_terms(query: ParsedQuery) -> Iterator[tuple[str, float]]:
    """A query's terms in every language, and those of related words, each with its weight."""
    forms = query.forms(STOP_WORDS)
    for term, related in query.terms.items():
        yield from ((form, 1.0) for form in forms[term])
        for related_term, likeness in islice(related, MAX_RELATED):
            yield related_term, DEFAULT.related_words * likeness


@lru_cache(MAX_TERM_NUMBERS)
def term_number(term: str) -> int:
    """The number of a term in the database, the same in every process."""
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest(), signed=True)


def index_entry(index_text: str, body: bytes) -> IndexEntry:
    """The terms and vectors by which the database finds a text."""
    terms = {term_number(term) for text in decode_fields(index_text).values() for term in term_counts(text)}
    return [*terms], [np.frombuffer(row, dtype=np.float32).tolist() for row in window_vectors(body)]
