"""Finds the candidates of a search: each part of its scope in the first source that can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from alcove.core.errors import InvalidRequest
from alcove.core.filters import Filter
from alcove.core.namespace import Namespace
from alcove.engine.index import SearchIndex
from alcove.engine.rows import CorpusTooLarge, Scope
from alcove.search.sources import database_source
from alcove.search.sources.base import CandidateRequest, Candidates, CandidateSource, ScopeCandidates
from alcove.search.sources.cache import CorpusCache
from alcove.search.sources.memory import InMemorySource


class _Part:
    """What the sources have in memory for one scope."""

    def __init__(self, sources: Sequence[ScopeCandidates]) -> None:
        self._sources = sources

    @property
    def bytes(self) -> int:
        return sum(source.bytes for source in self._sources)

    def find(self, request: CandidateRequest) -> Candidates:
        """The candidates in the first source that can find them; the sources after it are cleared."""
        for number, source in enumerate(self._sources, 1):
            if (candidates := source.find(request)) is not None:
                for other in self._sources[number:]:
                    other.clear()
                return candidates
        raise CorpusTooLarge


class CandidateFinder:
    """Finds candidates with the database's index where a scope has more than `max_texts`, else in memory.

    Only callers who see exactly the same of a scope share what is in memory: memories that a caller may not
    see must not influence how words are weighed. What nobody owns is shared by all its readers; what one
    user owns inside is a part of its own.
    """

    def __init__(self, index: SearchIndex, *, max_bytes: int, max_texts: int) -> None:
        self._index = index
        sources: list[CandidateSource] = [InMemorySource(index, max_bytes // 2)]
        if source := database_source(index, max_texts):
            sources.insert(0, source)
        self._sources = sources
        self.cache: CorpusCache[_Part] = CorpusCache(max_bytes)

    def find(self, scope: Scope, request: CandidateRequest) -> list[Candidates]:
        """The candidates of each part of a scope. Empty parts are left out, unless all are empty."""
        candidates = []
        for part_scope in self._split(scope):
            part = self.cache.get_or_add(part_scope, partial(self._open, part_scope))
            try:
                candidates.append(part.find(request))
                if self.cache.update_size(part_scope, part) > self.cache.max_bytes:
                    raise CorpusTooLarge
            except CorpusTooLarge:
                self.cache.update_size(part_scope, part)  # an empty part that could not be read counts too
                megabytes = self.cache.max_bytes >> 20
                message = (
                    f"less to search at once: it takes more than the {megabytes} MB of `search_memory_mb`"
                )
                raise InvalidRequest("prefix", message) from None
        return [each for each in candidates if len(each.corpus)] or candidates[:1]

    def _open(self, scope: Scope) -> _Part:
        return _Part([source.open(scope) for source in self._sources])

    def _split(self, scope: Scope) -> list[Scope]:
        """A scope as parts that others can share."""
        whole = replace(scope, filter=Filter()) if scope.filter.conditions else scope
        if scope.owner is None or Namespace.decode(scope.low).owner is not None:
            return [whole]
        rooms = [room.subtree() for room in self._index.owned_rooms(scope)]
        unowned = replace(whole, owner=None, unowned=True)
        return [unowned, *(replace(whole, low=low, high=high) for low, high in rooms)]
