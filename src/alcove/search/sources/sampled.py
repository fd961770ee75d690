"""Candidates from an index in the database, for scopes with too many texts for memory.

A sample of the scope stays in memory: by it words are weighed and vectors are centred, so that candidates
are ranked as in a corpus of all texts. Where the order of writing matters, neighbours of the best candidates
are candidates too.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice

import msgspec
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
from alcove.search.sources.base import CandidateRequest, Candidates, ScopeCandidates, item_of
from alcove.search.text_vectors import window_vectors
from alcove.search.vectors import Mask
from alcove.search.words import STOP_WORDS, term_counts

SAMPLE_TEXTS = 3000
"""Texts by which words are weighed."""
MIN_CANDIDATES, MAX_CANDIDATES = 40, 2000
"""Bounds of the candidates found by vector, and of those found by terms."""
MAX_TERM_TEXTS = 1500
"""Texts, by the sample, that contain the terms by which candidates are looked up."""
KEYWORD_FACTOR = 2
"""Multiplies these bounds where words alone decide."""
CENTRES = 40
"""The best candidates, whose neighbours become candidates."""
LONG_TEXT_TERMS = 3 * TURN_TERMS
"""Terms of a text that can be understood without its neighbours."""
TERM_BYTES, MAX_TERM_BYTES = 200, 2_500_000
"""What the terms of a candidate take besides their numbers, and all recent candidates together."""
TERM_NUMBERS = 20_000
"""Terms whose numbers are cached."""
NEVER_REBUILT = 2**62
TakeTexts = Callable[[Iterable[Text]], None]
_decode_fields = msgspec.json.Decoder(dict[str, str]).decode


@dataclass(frozen=True)
class Sample:
    """Some texts of a scope, as of one moment."""

    corpus: Corpus
    text_count: int
    """How many texts the scope has."""
    state: IndexState
    terms: Cache[int, Sequence[int]]
    """The terms of recent candidates, by version. They depend on the sample's labels."""

    @property
    def uses_neighbours(self) -> bool:
        """Whether the neighbours of a text count."""
        return self.corpus.order_matters and self.corpus.postings.average_length < LONG_TEXT_TERMS

    def is_current(self, state: IndexState) -> bool:
        """Whether nothing was erased since, no other embedder serves, and less than a quarter was written."""
        written = state.seq - self.state.seq
        return self.state[3:] == state[3:] and written < max(self.text_count // 4, 1)


class ScopeSample(ABC):
    """The sample of a scope in memory, and how the database finds candidates for it."""

    def __init__(self, scope: Scope, index: SearchIndex, candidates: CandidateIndex, max_texts: int) -> None:
        self.scope = scope
        self._index = index
        self._candidates = candidates
        self._max_texts = max_texts
        self._lock = threading.Lock()
        self._sample: Sample | None = None
        self._counted: tuple[IndexState, bool] | None = None
        """When the texts of the scope were last counted, and whether there are too many for memory."""

    @property
    def bytes(self) -> int:
        sample = self._sample
        return sample.corpus.bytes + sample.terms.size_bytes if sample else 0

    def clear(self) -> None:
        self._sample = None

    def find(self, request: CandidateRequest) -> Candidates | None:
        """Candidates, in one corpus with the sample, whose rows the mask leaves out.

        None if the scope is small, if the index lacks too many texts, or if too few candidates match a
        filter on fields that only opened values have.
        """
        if not request.embedder:
            return None
        state = self._index.state()
        if not self._is_large(state):
            self.clear()
            return None
        scope = replace(self.scope, filter=request.filter)
        missing = self._candidates.missing(scope, request.embedder)
        if missing is None or request.limit > MAX_CANDIDATES:
            return None
        with self._lock:  # concurrent searches wait for the same sample
            sample = self._sample
            if sample is None or not sample.is_current(state):
                self._sample = sample = self._draw(state, request.embedder)
        candidates = self._collect(scope, request, sample, missing)
        if not request.filter.conditions:
            return candidates
        corpus, mask, _ = candidates
        seqs = corpus.columns.sequence[mask].tolist()
        rows = self._index.load_rows(scope, seqs, now=request.now)
        matching = [row.seq for row in rows if request.row_matches(row)]
        if len(matching) < min(len(seqs), request.limit):
            return None
        return candidates._replace(mask=mask & np.isin(corpus.columns.sequence, matching))

    @abstractmethod
    def _draw_seqs(self) -> tuple[dict[int, int], int]:
        """The versions of a new sample, each with the run of neighbours it is in; and how many texts there
        are."""

    @abstractmethod
    def _search(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> NearestTexts:
        """The likeliest texts of a scope. Texts that are read on the way go to `take`."""

    def _is_large(self, state: IndexState) -> bool:
        """Whether the scope has too many texts for memory; counted anew after a quarter more was written."""
        if self._counted:
            before, is_large = self._counted
            if state[3:] == before[3:] and state.seq - before.seq <= self._max_texts // 4:
                return is_large
        is_large = self._candidates.count(self.scope, self._max_texts + 1) > self._max_texts
        self._counted = state, is_large
        return is_large

    def _draw(self, state: IndexState, embedder: str) -> Sample:
        """A new sample: its words and the middle of its vectors, but neither its vectors nor its tokens."""
        runs, indexed_count = self._draw_seqs()
        texts = self._candidates.texts(self.scope, embedder, [*runs], now=0)
        text_count = round(indexed_count * len(texts) / max(len(runs), 1))
        corpus = Corpus.of(item_of(text)._replace(run=runs[text.seq]) for text in texts)
        corpus = replace(
            corpus,
            built_count=NEVER_REBUILT,
            postings=corpus.postings.as_sample(text_count),
            vectors=corpus.vectors.without_vectors(),
            tokens=TokenTable.of([b""] * len(corpus)),
        )
        return Sample(corpus, text_count, state, Cache(max_bytes=MAX_TERM_BYTES))

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
            hits = rank(corpus, replace(query, tokens=None), limit=CENTRES, mask=mask, mode=request.mode)
            centres = [hit.id for hit in hits if isinstance(hit.id, int)]
            neighbours = self._candidates.neighbours(centres, MAX_DISTANCE)
            collected.read({*chain.from_iterable(neighbours.values())})
            corpus, mask = collected.with_sample(collected.runs(neighbours))
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
            if text.seq not in self._items:
                self._items[text.seq] = self._with_terms(item_of(text))

    def read(self, seqs: Set[int]) -> None:
        """Reads and adds those that are not here yet."""
        if absent := seqs - self._items.keys():
            request = self._request
            self.take(self._candidates.texts(self._scope, request.embedder, [*absent], now=request.now))

    def _with_terms(self, item: Item) -> Item:
        terms = self._sample.terms.get(item.sequence)
        if terms is None:
            (document,) = documents([item], self._sample.corpus.groups)
            terms = array("q", document)
            self._sample.terms.put(item.sequence, terms, TERM_BYTES + terms.itemsize * len(terms))
        return item._replace(terms=terms)

    def with_sample(self, runs: Mapping[int, int]) -> tuple[Corpus, Mask]:
        """One corpus of the sample and these texts, and a mask of these; texts in one run are neighbours."""
        seqs = sorted(self._items)  # in order of writing, as in a corpus of all texts, for equal ranks
        items = [self._items[seq]._replace(run=runs.get(seq, -seq)) for seq in seqs]
        corpus = self._sample.corpus.changed(add=items) or Corpus.of(items)
        return corpus, np.isin(corpus.columns.sequence, seqs) & corpus.columns.live

    def runs(self, neighbours: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """The run of each text that has neighbours here; overlapping stretches make one run."""
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


class SampledSource(ABC):
    """A source that reads candidates from the database's candidate index."""

    def __init__(self, index: SearchIndex, max_texts: int) -> None:
        """`max_texts`: how many texts of a scope fit in memory."""
        assert index.candidates
        self._index = index
        self._candidates = index.candidates
        self._max_texts = max_texts

    @abstractmethod
    def open(self, scope: Scope) -> ScopeCandidates:
        """The candidates of a scope."""

    def catch_up(self) -> int:
        return self._candidates.catch_up(index_entry)

    @property
    def problem(self) -> str | None:
        return self._index.problem


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
    # The rarest terms, until as many texts contain them as can be looked at.
    texts_per_sample_text = max(sample.text_count, 1) / max(size, 1)
    terms, room = list[int](), float(MAX_TERM_TEXTS * factor)
    for number in sorted(counts, key=counts.__getitem__):
        text_count = counts[number] * texts_per_sample_text
        if terms and room < text_count:
            break
        terms.append(number)
        room -= text_count
    return CandidateQuery(limit, vector, terms, weights, sample.text_count, request.embedder)


def _weighted_terms(query: ParsedQuery) -> Iterator[tuple[str, float]]:
    """A query's terms in every language, and those of related words, each with its weight."""
    forms = query.forms(STOP_WORDS)
    for word, related in query.terms.items():
        yield from ((form, 1.0) for form in forms[word])
        yield from (
            (term, DEFAULT.related_words * likeness) for term, likeness in islice(related, MAX_RELATED)
        )


@lru_cache(TERM_NUMBERS)
def term_number(term: str) -> int:
    """The number of a term in the database, the same in every process."""
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest(), signed=True)


def index_entry(index_text: str, body: bytes) -> IndexEntry:
    """The terms and vectors by which the database finds a text."""
    terms = {term_number(term) for text in _decode_fields(index_text).values() for term in term_counts(text)}
    return [*terms], [np.frombuffer(row, dtype=np.float32).tolist() for row in window_vectors(body)]
