"""A store that is open in this process: its sweep, its agents, and what is done with its file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alcove.agents.call_log import Usage
from alcove.agents.rooms import KNOWLEDGE, older_room
from alcove.agents.runs import Runs
from alcove.agents.service import Agents
from alcove.api.operation import Operation, Streaming
from alcove.core import validation
from alcove.core.background import Worker
from alcove.core.principal import Principal
from alcove.core.records import SweepResult
from alcove.core.settings import Settings
from alcove.llm import LLM, resolve_llm
from alcove.search.embedders import load_numpy
from alcove.store.admin import Admin
from alcove.store.common import Parts
from alcove.store.memories import Memories
from alcove.upkeep.transfer import File, Importer, Imports

if TYPE_CHECKING:
    from alcove.search.hybrid_search import HybridSearch
    from alcove.search.rerankers import Reranker


Specs = str | os.PathLike[str] | Mapping[str, Any]
"""Agents and teams: a file of specs or a folder of them, or what such a file would say."""


class OpenStore:
    """A store for every principal, and what of it has threads or is kept until it is closed."""

    def __init__(self, parts: Parts, settings: Settings, reranker: Reranker | None = None) -> None:
        """Makes the one road into the store."""
        engine, clock = parts.engine, parts.clock

        def make_searcher() -> HybridSearch:
            load_numpy()
            from alcove.search.hybrid_search import HybridSearch  # noqa: PLC0415  numpy, for who searches

            return HybridSearch(
                engine.index,
                parts.embedder,
                clock,
                max_bytes=settings.search_memory_mb << 20,
                max_texts=settings.search_memory_texts,
                reranker=reranker,
            )

        admin = Admin(parts)
        self.memories = Memories(parts, admin, make_searcher)
        admin.rooms_left_alone = Runs(self.memories).left_alone
        admin.token_use = Usage(self.memories).totals
        templates = engine.admin.private_rooms
        admin.older_rooms = lambda user: [KNOWLEDGE, *(older_room(each, user) for each in templates())]
        self._settings = settings
        self._agents: dict[tuple[Path | bytes | None, LLM | None], Agents] = {}
        self._opening = threading.Lock()
        self._sweeper = Worker("sweep", self._sweep_due, settings.sweep_interval)
        if settings.sweep_interval:
            self._sweeper.start()
            admin.wake = self._sweeper.wake

    def agents(self, specs: Specs | None, llm: LLM | None) -> Agents:
        """The agents and teams of some specs, at work on this store; without specs, agents of any name."""
        from alcove.agents.specs.loading import InlineSpecs, WatchedSpecs  # noqa: PLC0415  loads YAML, which few need

        place: Path | bytes | None = None
        if isinstance(specs, Mapping):
            place = validation.encode_json(dict(specs), "specs")
        elif specs is not None:
            place = Path(specs).absolute()
        with self._opening:  # of two, one would be left to itself, with the calls it was to record
            if (place, llm) not in self._agents:
                depth = self._settings.max_depth
                watched: InlineSpecs | WatchedSpecs | None = None
                if isinstance(place, bytes):
                    watched = InlineSpecs(place, max_depth=depth)
                elif place is not None:
                    watched = WatchedSpecs(place, max_depth=depth)
                settings, provider = resolve_llm(llm)
                self._agents[place, llm] = Agents(
                    self.memories,
                    watched,
                    authentication=False,
                    follows=self._settings.sweep_interval > 0,
                    llm=settings,
                    provider=provider,
                )
            return self._agents[place, llm]

    def import_memories(
        self, principal: Principal, lines: File | Iterable[bytes], *, wait_for_index: bool = False
    ) -> Imports:
        """Writes those of the lines of an export, or of an open file, that differ from what is there.

        With `wait_for_index` it returns when they can be found by meaning, too.
        """
        importer = Importer(self.memories, lambda: principal)
        for bundle in importer.lines.all_of(lines):
            importer.take(bundle)
            if wait_for_index:
                importer.wait_for_index()
        return importer.report

    def sweep(self, principal: Principal) -> SweepResult:
        """Does now what the background sweep does at its interval; not over a URL."""
        return self.memories.sweep()

    def _sweep_due(self) -> float:
        self.memories.sweep()
        return self._settings.sweep_interval

    def close(self) -> None:
        """Stops the sweep and closes the file."""
        self._sweeper.stop()
        for agents in self._agents.values():
            agents.close()
        self.memories.close()


ONLY_HERE = "NONE /"
"""The route of what only a store in this process does."""


class StoreOperations:
    """What is done with a store as a whole, beside the operations on its memories."""

    TAG = "store"

    import_memories = Operation(OpenStore.import_memories, "POST /v1/memories/import", "Import lines")
    sweep = Operation(OpenStore.sweep, ONLY_HERE, "Sweep now")


class FileOperations:
    """What operators do with the store's file, beside `AdminOperations`."""

    TAG = "admin"

    backup = Streaming(Admin.backup, "GET /v1/admin/backup", "Copy the store into one new file")
    reindex = Streaming(Admin.reindex, ONLY_HERE, "Embed every text anew")
    reload_policy = Operation(Admin.reload_policy, ONLY_HERE, "Read the policy folder again")
