"""Subtrees too large to hold in memory: the database finds candidates, and the same ranking orders them.

Words are weighed, and vectors centred, by a sample of the subtree that is held. Where the order of writing
means something, the neighbours of the best candidates are candidates, too.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from alcove.core.records import SearchMode
from alcove.engine.candidate_index import CandidateIndex, Made, Take
from alcove.engine.rows.indexing import IndexState, Text
from alcove.engine.scope import Scope
from alcove.engine.vector_index import Asked, Nearest
from alcove.search.corpus.corpus import FARTHEST, Corpus, Mask
from alcove.search.corpus.late_interaction import TokenTable
from alcove.search.corpus.postings import rarity
from alcove.search.indexer import windows
from alcove.search.ranking.matching import RELATED
from alcove.search.ranking.ranker import DEFAULT, TURN, rank
from alcove.search.text.terms import Item, ParsedQuery, documents
from alcove.search.text.words import STOP_WORDS, term_counts

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE = 3000
"""Texts by which words are weighed."""
FEWEST, MOST = 40, 2000
"""Candidates that meaning, and that words, bring."""
MOST_KEYED = 1500
"""Texts, by the sample, that the words by which candidates are looked for are in, all together."""
BY_WORDS = 2
"""How many times as many those are where words alone decide."""
CENTRES = 40
"""The best candidates, whose neighbours are candidates too."""
LONG = 3 * TURN
"""Terms of a text that hardly needs its neighbours to be understood."""
MOST_NUMBERED, NUMBERED_BYTES = 5000, 500
"""CandidateIndex whose terms are kept for the next search, and about what those of one take."""
REMEMBERED = 20_000
"""Terms whose numbers are kept."""
_fields = msgspec.json.Decoder(dict[str, str]).decode


class Wanted(NamedTuple):
    """What a subtree is asked for: what answers a question best, or some versions."""

    question: ParsedQuery | None = None
    mode: SearchMode = "hybrid"
    most: int = 0
    """How many of the best."""
    seqs: Sequence[int] | None = None


class Part(NamedTuple):
    """Some of what is searched, and its rows that may be found; `degraded` says why some may be missing."""

    corpus: Corpus
    mask: Mask
    degraded: str | None = None


class LargeSubtree:
    """A part of the store of which only a sample is held, for all who see the same of it.

    The sample is taken anew when a quarter more was written, and when something was erased or another
    embedder serves: nobody who was erased stays in it.
    """

    def __init__(self, scope: Scope, candidates: CandidateIndex, embedder: str) -> None:
        self.scope = scope
        self._candidates = candidates
        self._embedder = embedder
        self._taken: tuple[Corpus, dict[int, array[int]]] = (Corpus.of(()), {})
        """The sample, and the terms of candidates of late, by version: they go with it."""
        self._texts = 0
        self._state: IndexState | None = None
        self._sampling = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._sample.bytes + NUMBERED_BYTES * len(self._taken[1])

    @property
    def _sample(self) -> Corpus:
        return self._taken[0]

    def visible(
        self, wanted: Wanted, state: IndexState, item: Callable[[Text], Item], asked: Scope, *, now: int
    ) -> Part | None:
        """Candidates of a scope, `asked`, that lies in this one, and their rows; others are of the sample.

        None where the database cannot find them yet, or not as many as are wanted.
        """
        missing = self._candidates.missing(asked, self._embedder)
        if missing is None or wanted.most > MOST:
            return None
        with self._sampling:  # who comes meanwhile waits, and has it then
            self._sampled(state, item)
        seqs = {*missing} if wanted.seqs is None else {*wanted.seqs}
        known: dict[int, Item] = {}
        degraded = None

        def take(texts: Iterable[Text]) -> None:
            new = {text.seq: item(text) for text in texts if text.seq not in known}
            known.update(new)
            self._numbered(new.values())

        def read(these: Set[int]) -> None:
            if rest := these - known.keys():
                take(self._candidates.texts(asked, self._embedder, [*rest], now=now))

        if question := wanted.question:
            how = self._asked(question, wanted.mode, wanted.most)
            found, degraded, _ = self._find(asked, how, take, now=now)
            if degraded and wanted.mode == "semantic":  # what words find is ranked by meaning all the same
                how = self._asked(question, "keyword", wanted.most)
                found |= self._find(asked, how, take, now=now).seqs
            seqs |= found
        read(seqs)
        corpus, mask = self._with(known.values(), {})
        if question and wanted.mode != "semantic" and self._in_order:
            cheap = replace(question, tokens=None)
            best = rank(corpus, cheap, limit=CENTRES, mask=mask, mode=wanted.mode)
            around = self._candidates.around([hit.id for hit in best if isinstance(hit.id, int)], FARTHEST)
            read({*chain.from_iterable(around.values())})
            corpus, mask = self._with(known.values(), _runs(around, known.values()))
        return Part(corpus, mask, degraded)

    @property
    def _in_order(self) -> bool:
        """Whether neighbours count, by the sample."""
        return self._sample.order_matters and self._sample.postings.average < LONG

    def _numbered(self, items: Collection[Item]) -> dict[int, array[int]]:
        """The terms of candidates as numbers, by version; they are kept for a while."""
        sample, numbers = self._taken
        known = {each.sequence: its for each in items if (its := numbers.get(each.sequence)) is not None}
        new = [each for each in items if each.sequence not in known]
        for each, found in zip(new, documents(new, sample.groups), strict=True):
            known[each.sequence] = array("q", found)
        if len(numbers) + len(new) > MOST_NUMBERED:
            numbers.clear()
        numbers.update(known)
        return known

    def _with(self, items: Collection[Item], runs: Mapping[int, int]) -> tuple[Corpus, Mask]:
        """The sample with candidates, of which some lie beside each other, and which rows those are."""
        numbers = self._numbered(items)
        apart = [
            each._replace(run=runs.get(each.sequence, -each.sequence), numbers=numbers[each.sequence])
            for each in sorted(items, key=attrgetter("sequence"))  # as the whole would be, for equals
        ]
        corpus = self._sample.changed(add=apart) or Corpus.of(items)
        mask = np.isin(corpus.columns.sequence, [each.sequence for each in items]) & corpus.columns.live
        return corpus, mask

    def _sampled(self, state: IndexState, item: Callable[[Text], Item]) -> None:
        """Takes the sample anew, if it is of another time."""
        known = self._state
        if known and known[3:] == state[3:] and state.seq - known.seq < max(self._texts // 4, 1):
            return
        runs, every = self._some()
        texts = self._candidates.texts(self.scope, self._embedder, [*runs], now=0)
        self._texts = round(every * len(texts) / max(len(runs), 1))
        found = Corpus.of(item(text)._replace(run=runs[text.seq]) for text in texts)
        # CandidateIndex are added to it without it ever being built anew.
        sample = replace(
            found,
            built=2**62,
            postings=found.postings.as_sample(self._texts),
            vectors=found.vectors.emptied(),
            tokens=TokenTable.of([b""] * len(found)),
        )
        self._taken = sample, {}
        self._state = state

    def _some(self) -> tuple[dict[int, int], int]:
        """A sample, each text with its run, and how many texts there are."""
        return self._candidates.sample(self.scope, SAMPLE)

    def _find(self, scope: Scope, asked: Asked, take: Take, *, now: int) -> Nearest:
        """The likeliest texts of a scope; `take` is given those that are read as they are found."""
        return self._candidates.find(scope, asked, take, now=now)

    def _asked(self, question: ParsedQuery, mode: SearchMode, most: int) -> Asked:
        """A question as the database is asked it."""
        vector = question.vector.tolist() if question.vector is not None and mode != "keyword" else None
        most = min(max(4 * most, FEWEST) * (2 if vector is None else 1), MOST)  # where words alone decide
        if mode == "semantic":
            return Asked(most, vector, (), {}, self._texts, self._embedder)
        postings, weights, counts = self._sample.postings, dict[int, float](), dict[int, int]()
        share = max(self._texts, 1) / max(len(self._sample), 1)
        for term, like in _terms(question):
            number, count = term_number(term), len(postings.held(term).rows)
            weight = like * rarity(count, len(self._sample))  # of the sample: what it lacks may be in many
            weights[number] = max(weights.get(number, 0.0), weight)
            counts.setdefault(number, count)
        # The rarest first, until they are in as many texts as can be looked at.
        keys, room = list[int](), float(MOST_KEYED * (BY_WORDS if vector is None else 1))
        for number in sorted(counts, key=counts.__getitem__):
            if keys and room < counts[number] * share:
                break
            keys.append(number)
            room -= counts[number] * share
        return Asked(most, vector, keys, weights, self._texts, self._embedder)


def _runs(around: Mapping[int, Sequence[int]], items: Iterable[Item]) -> dict[int, int]:
    """The run of each text that lies beside others: stretches around several are one where they meet."""
    places = {each.sequence: each.namespace for each in items}
    stretches = sorted((str(places[seq]), sorted([seq, *near])) for seq, near in around.items())
    found: dict[int, int] = {}
    last, end = "", 0
    for place, stretch in stretches:
        run = found[end] if place == last and stretch[0] <= end else -stretch[0]
        found.update(dict.fromkeys(stretch, run))
        last, end = place, max(stretch[-1], end if place == last else 0)
    return found


def _terms(question: ParsedQuery) -> Iterator[tuple[str, float]]:
    """A question's terms in every language, and those of words like its own, with what each counts."""
    forms = question.forms(STOP_WORDS)
    for word, related in question.words.items():
        yield from ((form, 1.0) for form in forms[word])
        yield from ((other, DEFAULT.related * like) for other, like in islice(related, RELATED))


@lru_cache(REMEMBERED)
def term_number(term: str) -> int:
    """The number that stands for a term in a database, the same in every process."""
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest(), signed=True)


def made(index_text: str, body: bytes) -> Made:
    """What a database finds a text by."""
    terms = {term_number(term) for text in _fields(index_text).values() for term in term_counts(text)}
    return [*terms], [np.frombuffer(row, dtype=np.float32).tolist() for row in windows(body)]
