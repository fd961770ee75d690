"""Subtrees too large to hold in memory: the database finds candidates, and the same ranking orders them.

Words are weighed, and vectors centred, by a sample of the subtree that is held. Neighbours in the order of
writing do not count here: most of them are not among the candidates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from alcove.core.records import Mode
from alcove.engine.candidates import Asked, Candidates, Made
from alcove.engine.rows import IndexState, Scope, Text
from alcove.search.corpus import Corpus, Mask
from alcove.search.embedders import Matrix
from alcove.search.indexer import kept
from alcove.search.matching import RELATED
from alcove.search.ranking import DEFAULT
from alcove.search.terms import Item, Question
from alcove.search.words import STOP_WORDS, term_counts

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE = 2000
"""Texts by which words are weighed."""
FEWEST, MOST = 200, 2000
"""Candidates that meaning, and that words, bring."""
MOST_KEYED = 5000
"""Texts, by the sample, that the words by which candidates are looked for are in, all together."""
REMEMBERED = 20_000
"""Terms whose numbers are kept."""
_fields = msgspec.json.Decoder(dict[str, str]).decode


class Wanted(NamedTuple):
    """What a subtree is asked for: what answers a question best, or some versions."""

    question: Question | None = None
    mode: Mode = "hybrid"
    most: int = 0
    """How many of the best."""
    seqs: Sequence[int] | None = None


class LargeSubtree:
    """A part of the store of which only a sample is held, for all who see the same of it.

    The sample is taken anew when a quarter more was written, and when something was erased or another
    embedder serves: nobody who was erased stays in it.
    """

    def __init__(self, scope: Scope, candidates: Candidates, embedder: str) -> None:
        self.scope = scope
        self._candidates = candidates
        self._embedder = embedder
        self._sample = Corpus.of(())
        self._texts = 0
        self._state: IndexState | None = None

    @property
    def bytes(self) -> int:
        return self._sample.bytes

    def visible(
        self, wanted: Wanted, state: IndexState, item: Callable[[Text], Item], asked: Scope, *, now: int
    ) -> tuple[Corpus, Mask] | None:
        """Candidates of a scope, `asked`, that lies in this one, and their rows; others are of the sample.

        None where the database cannot find them yet, or not as many as are wanted.
        """
        missing = self._candidates.missing(asked, self._embedder)
        if missing is None or wanted.most > MOST:
            return None
        self._sampled(state, item)
        seqs = {*missing} if wanted.seqs is None else {*wanted.seqs}
        if wanted.question:
            seqs |= self._candidates.find(asked, self._asked(wanted.question, wanted), now=now)
        found = [*map(item, self._candidates.texts(asked, self._embedder, [*seqs], now=now))]
        corpus = self._sample.changed(add=found) or Corpus.of(found)
        mask = np.isin(corpus.columns.sequence, [each.sequence for each in found]) & corpus.columns.live
        return replace(corpus, order_matters=False), mask

    def _sampled(self, state: IndexState, item: Callable[[Text], Item]) -> None:
        """Takes the sample anew, if it is of another time."""
        known = self._state
        if known and known[3:] == state[3:] and state.seq - known.seq < max(self._texts // 4, 1):
            return
        texts, self._texts = self._candidates.sample(self.scope, self._embedder, SAMPLE)
        # Candidates are added to it without it ever being built anew.
        self._sample = replace(Corpus.of(map(item, texts)), built=2**62)
        self._state = state

    def _asked(self, question: Question, wanted: Wanted) -> Asked:
        """A question as the database is asked it."""
        vector = None if wanted.mode == "keyword" or question.vector is None else spelled(question.vector)
        most = min(max(2 * wanted.most, FEWEST), MOST)
        if wanted.mode == "semantic":
            return Asked(most, vector, (), {})
        postings, weights, counts = self._sample.postings, dict[int, float](), dict[int, int]()
        share = max(self._texts, 1) / max(len(self._sample), 1)
        for term, like in _terms(question):
            number, count = term_number(term), len(postings.held(term)[0])
            weight = like * postings.rarity(min(count, postings.documents))
            weights[number] = max(weights.get(number, 0.0), weight)
            counts.setdefault(number, count)
        # The rarest first, until they are in as many texts as can be looked at.
        keys, room = list[int](), float(MOST_KEYED)
        for number in sorted(counts, key=counts.__getitem__):
            if keys and room < counts[number] * share:
                break
            keys.append(number)
            room -= counts[number] * share
        return Asked(most, vector, keys, weights)


def _terms(question: Question) -> Iterator[tuple[str, float]]:
    """A question's terms in every language, and those of words like its own, with what each counts."""
    forms = question.forms(STOP_WORDS)
    for word, related in question.words.items():
        yield from ((form, 1.0) for form in forms[word])
        yield from ((other, DEFAULT.related * like) for other, like in islice(related, RELATED))


@lru_cache(REMEMBERED)
def term_number(term: str) -> int:
    """The number that stands for a term in a database, the same in every process."""
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest(), signed=True)


def spelled(vector: Matrix) -> str:
    """A vector as pgvector reads it, as precisely as half precision is."""
    return f"[{','.join(map('{:.5g}'.format, vector.tolist()))}]"


def made(index_text: str, body: bytes) -> Made:
    """What a database finds a text by."""
    terms = {term_number(term) for text in _fields(index_text).values() for term in term_counts(text)}
    rows = (row for its in kept(body)[0].values() for row in its)
    return [*terms], [spelled(np.frombuffer(row, dtype=np.float32)) for row in rows]
