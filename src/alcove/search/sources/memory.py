"""Subtrees searched lately: held in memory within a bound, and brought up to date before each search."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from alcove.core import heap
from alcove.core.cancellation import run_uncancelled
from alcove.core.clock import SECOND
from alcove.core.errors import InvalidRequest
from alcove.core.filters import Filter
from alcove.core.namespace import Namespace
from alcove.engine.index import SearchIndex
from alcove.engine.rows.indexing import IndexState, SubtreeTooLarge, Text
from alcove.engine.rows.versions import Row
from alcove.engine.scope import Scope
from alcove.search.corpus.corpus import Corpus, Mask
from alcove.search.indexer import kept
from alcove.search.sources.quantized import of_size
from alcove.search.sources.sampled import LargeSubtree, Part, Wanted
from alcove.search.text.terms import NO_TOKENS, NO_VECTORS, Item

MOST_FILTERS = 16
"""Filters whose rows are remembered for a subtree."""
SHARE = 4
"""One user's own subtrees may take one part in so many of what all subtrees may take."""
LARGE = 1024 * 1024
"""Bytes of a subtree from which on reading it leaves memory that is worth giving back."""
_fields = msgspec.json.Decoder(dict[str, str]).decode

RowPredicate = Callable[[Row], bool]
"""Whether a row meets conditions that only its opened value can decide."""


class FilterMatches(NamedTuple):
    """The versions up to a position that a filter lets pass: a version never changes, so they stay."""

    seqs: NDArray[np.int64]
    upto: int


EMPTY = Corpus.of(())
"""What a subtree holds before it is read."""
NOTHING = FilterMatches(np.zeros(0, dtype=np.int64), 0)


class Subtree:
    """A part of the store, shared by all callers to whom the policy shows the same of it.

    `scope` says what is in it, and it is filled by nothing else: whoever comes by brings it up to date in the
    same way. What a caller asked for beside that, the filter, is a mask over its rows.
    """

    def __init__(self, scope: Scope, index: SearchIndex) -> None:
        self.scope = scope
        self.large: LargeSubtree | None = None
        """The same, where it is too large to hold."""
        self.measured: IndexState | None = None
        """When it was last looked at how large it is."""
        self.place = repr(scope)
        self.counted = 0
        """The bytes that `Subtrees` last counted for it."""
        self._index = index
        self._lock = threading.Lock()
        self._state: IndexState | None = None
        self._corpus = EMPTY
        self._expiries = np.zeros((2, 0), dtype=np.int64)
        """The numbers of versions that expire, and when each does."""
        self._filters: OrderedDict[str, FilterMatches] = OrderedDict()
        """What fits filters; another one whenever everything is read from the start."""

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        with self._lock:
            fitting = sum(each.seqs.nbytes for each in self._filters.values())
            large = self.large.bytes if self.large else 0
            return self._corpus.bytes + 200 * self._expiries.shape[1] + fitting + large

    def let_go(self) -> None:
        """Holds nothing any more; it is read from the start when it is next asked for."""
        with self._lock:
            self._corpus, self._state, self._filters = EMPTY, None, OrderedDict()
            self._expiries = np.zeros((2, 0), dtype=np.int64)

    def visible(
        self, embedder: str, filter: Filter, row_matches: RowPredicate, *, now: int, most: int
    ) -> tuple[Corpus, Mask]:
        """What is there now, and which rows of it have not expired and pass a filter.

        Raises `SubtreeTooLarge` where it is more than `most` bytes.
        """
        # Spelled out: `true` and `1` are equal and not the same.
        key = repr(filter) if filter.conditions else ""
        with self._lock:
            if self._state is None or not self._caught_up(embedder, self._state):
                state, texts = run_uncancelled(lambda: self._index.live_texts(self.scope, embedder, most))
                expiries = {text.seq: text.expires_at for text in texts}
                self._take(Corpus.of(map(item, _let_go_of(texts))), state, expiries)
                self._filters = OrderedDict()
                if self._corpus.bytes > LARGE:
                    heap.trim()  # reading takes twice what is held
            assert self._state is not None
            corpus, upto, filters = self._corpus, self._state.seq, self._filters
            seqs, moments = self._expiries
            fitting = filters.get(key, NOTHING)
        rows, mask = corpus.columns.sequence, corpus.columns.live
        if len(seqs) and len(expired := seqs[moments <= now]):
            mask = mask & ~np.isin(rows, expired)
        if not filter.conditions:
            return corpus, mask
        if fitting.upto < upto:  # others may search while this looks at the values
            asked = replace(self.scope, filter=filter)
            fresh = self._index.load_rows(asked, self._index.matching_versions(asked, fitting.upto), now=0)
            more = np.array([row.seq for row in fresh if row_matches(row)], dtype=np.int64)
            fitting = FilterMatches(np.intersect1d(np.union1d(fitting.seqs, more), rows), upto)
            with self._lock:
                if upto >= filters.get(key, NOTHING).upto:  # else somebody knows more by now
                    filters[key] = fitting
                    filters.move_to_end(key)
                    if len(filters) > MOST_FILTERS:
                        filters.popitem(last=False)
        return corpus, mask & np.isin(rows, fitting.seqs)

    def _caught_up(self, embedder: str, before: IndexState) -> bool:
        """Takes in what changed since a state; False where it has to be read from the start."""
        if self._index.state() == before:
            return True
        change, corpus = self._index.changes(self.scope, embedder, before), self._corpus
        came = [*map(item, change.came)]
        alike = all(each.dimensions in (0, corpus.vectors.dimensions) for each in came)
        # Erasing takes names off what stays, so who sees by names may see more or less of what was there.
        by_name = (self.scope.written_by, self.scope.unowned_written_by) != (None, None)
        renamed = by_name and change.live is not None
        if renamed or change.state.serving != before.serving or not alike:
            return False
        gone = corpus.rows.keys() & change.superseded
        if change.live is not None:
            gone |= corpus.rows.keys() - set(change.live)
        if came or gone:
            after = corpus.changed(add=came, remove=gone)
            if after is None:
                return False
            corpus = after
        told = {text.seq: text.expires_at for text in change.came} | dict(change.expiries)
        self._take(corpus, change.state, told)
        return True

    def _take(self, corpus: Corpus, state: IndexState, expiries: Mapping[int, int | None]) -> None:
        """Holds a corpus from now on, and when versions expire of which that is news."""
        self._corpus, self._state = corpus, state
        if expiries:
            every = {**dict(zip(*self._expiries.tolist(), strict=True)), **expiries}
            kept = [(n, at) for n, at in every.items() if at is not None and n in corpus.rows]
            self._expiries = np.array(kept, dtype=np.int64).reshape(-1, 2).T


class Subtrees:
    """The subtrees in memory. One is shared by all who see exactly the same of it: what a caller may not see
    must not show in how words are weighed.

    What belongs to nobody is held once for all its readers, and what a reader owns inside of it beside it.
    """

    def __init__(self, index: SearchIndex, *, most_bytes: int, most_texts: int) -> None:
        """`most_texts`: how many a subtree may have that is held, where the database finds candidates."""
        self._index = index
        self._most_bytes = most_bytes
        self._most_texts = most_texts
        self._subtrees: OrderedDict[str, Subtree] = OrderedDict()
        self._bytes: Counter[str | None] = Counter()
        """What is held, by the user whose it is; None for what is nobody's."""
        self._mutex = threading.Lock()

    def of(
        self, scope: Scope, embedder: str, row_matches: RowPredicate, *, now: int, wanted: Wanted
    ) -> list[Part]:
        """The subtrees that make up a scope, as they are now, and the rows that the scope's filter lets pass.

        Those that are empty are left out, unless all are. Of one that is too large to hold, there is what
        is `wanted` of it.
        """
        found, most = [], self._most_bytes // 2
        for subtree in map(self._subtree, self._parts(scope)):
            try:
                part = self._of_large(subtree, scope.filter, embedder, row_matches, wanted, now=now)
                found.append(
                    part or Part(*subtree.visible(embedder, scope.filter, row_matches, now=now, most=most))
                )
                if self._weigh(subtree) > self._most_bytes:
                    raise SubtreeTooLarge
            except SubtreeTooLarge:
                self._weigh(subtree)  # also what is empty because it could not be read counts
                megabytes = self._most_bytes >> 20
                told = f"less to search at once: it takes more than the {megabytes} MB of `search_memory_mb`"
                raise InvalidRequest("prefix", told) from None
        return [part for part in found if len(part.corpus)] or found[:1]

    def _of_large(
        self,
        subtree: Subtree,
        filter: Filter,
        embedder: str,
        row_matches: RowPredicate,
        wanted: Wanted,
        *,
        now: int,
    ) -> Part | None:
        """What is wanted of a subtree that is too large to hold; None where it is to be held after all.

        That is where the database cannot find candidates, or where hardly any of them fit a filter on which
        only their values can decide.
        """
        candidates = self._index.candidates
        if candidates is None or not embedder:
            return None
        state, before = self._index.state(), subtree.measured
        if before is None or state[3:] != before[3:] or state.seq - before.seq > self._most_texts // 4:
            count = candidates.count(subtree.scope, self._most_texts + 1)
            large = subtree.large or of_size(subtree.scope, candidates, embedder)
            subtree.large = large if count > self._most_texts else None
            subtree.measured = state
        if subtree.large is None:
            return None
        asked = replace(subtree.scope, filter=filter)
        part = subtree.large.visible(wanted, state, item, asked, now=now)
        if part is None:
            return None
        corpus, mask, _ = part
        if filter.conditions:
            seqs = corpus.columns.sequence[mask].tolist()
            fitting = [row.seq for row in self._index.load_rows(asked, seqs, now=now) if row_matches(row)]
            if len(fitting) < min(len(seqs), wanted.most):
                return None
            part = part._replace(mask=mask & np.isin(corpus.columns.sequence, fitting))
        subtree.let_go()
        return part

    def _parts(self, scope: Scope) -> list[Scope]:
        """A scope as subtrees that others can share."""
        whole = replace(scope, filter=Filter()) if scope.filter.conditions else scope
        if scope.owner is None or Namespace.decode(scope.low).owner is not None:
            return [whole]
        rooms = [room.subtree() for room in self._index.owned_rooms(scope)]
        common = replace(whole, owner=None, unowned=True)
        return [common, *(replace(whole, low=low, high=high) for low, high in rooms)]

    def _subtree(self, scope: Scope) -> Subtree:
        place = repr(scope)  # spelled out: `true` and `1` are equal and not the same
        with self._mutex:
            subtree = self._subtrees.pop(place, None) or Subtree(scope, self._index)
            self._subtrees[place] = subtree  # after all that were searched before
        return subtree

    def _weigh(self, subtree: Subtree) -> int:
        """How large a subtree has become; lets go of some where all of them are too much.

        Those searched longest ago go first: of the same user if they have more than their share, then of all.
        """
        size, owner, share = subtree.bytes, subtree.scope.owner, self._most_bytes // SHARE
        with self._mutex:
            if self._subtrees.get(subtree.place) is not subtree:
                return size  # it was let go of meanwhile
            self._bytes[owner] += size - subtree.counted
            subtree.counted = size
            if owner is not None and self._bytes[owner] > share:
                for each in [*self._subtrees.values()]:
                    if each.scope.owner == owner and each is not subtree and self._bytes[owner] > share:
                        self._let_go(each)
            while self._bytes.total() > self._most_bytes:
                self._let_go(next(iter(self._subtrees.values())))
        return size

    def _let_go(self, subtree: Subtree) -> None:
        del self._subtrees[subtree.place]
        self._bytes[subtree.scope.owner] -= subtree.counted
        if not self._bytes[subtree.scope.owner]:
            del self._bytes[subtree.scope.owner]


def _let_go_of(texts: list[Text]) -> Iterator[Text]:
    """Each text, held no longer once it is taken: the vectors of a large subtree are large."""
    while texts:
        yield texts.pop()


def text_of(row: Row) -> Text:
    """A version's text without vectors, as it is searched."""
    return Text(row.seq, row.ns, row.written_at, row.expires_at, row.index_text or "{}", None)


def item(text: Text) -> Item:
    """A text as ranking takes it."""
    vectors, tokens = kept(text.vectors) if text.vectors else (NO_VECTORS, NO_TOKENS)
    return Item(
        id=text.seq,
        namespace=text.ns,
        sequence=text.seq,
        fields=_fields(text.index_text),
        vectors=vectors,
        at=text.created_at / SECOND,
        tokens=tokens,
    )
