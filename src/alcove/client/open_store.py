"""A store that is open in this process: its services, its background sweep, and agents at work on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alcove.agents.call_log import Usage
from alcove.agents.runs import Runs
from alcove.agents.service import Agents
from alcove.api.operation import Operation, Streaming, services_by_class
from alcove.core import validation
from alcove.core.addresses import without_password
from alcove.core.background import Worker
from alcove.core.clock import Clock
from alcove.core.errors import StoreError
from alcove.core.principal import Principal
from alcove.core.records import SweepResult
from alcove.core.settings import Settings
from alcove.engine.commit import Observer
from alcove.engine.engine import Engine
from alcove.engine.valkey import Valkey
from alcove.engine.vector_index import MakeVectorIndex
from alcove.llm import LLM, resolve_llm
from alcove.policy import Policy
from alcove.search.embedders import Embedder, load_numpy
from alcove.search.indexer import Indexer
from alcove.store.admin import Admin
from alcove.store.erasure_ledger import ErasureLedger
from alcove.store.memories import Memories
from alcove.store.personal_data import PersonalDataReader
from alcove.store.session_cache import SessionCache
from alcove.store.wipe import Wiper
from alcove.upkeep.backup import BackupWriter
from alcove.upkeep.doctor import Doctor
from alcove.upkeep.transfer import File, Importer, Imports
from alcove.vault import KeyProvider, Vault

if TYPE_CHECKING:
    from alcove.search.hybrid_search import HybridSearch
    from alcove.search.rerankers import Reranker


Specs = str | os.PathLike[str] | Mapping[str, Any]
"""Agents and teams: the path of a spec file, or of a folder of them, or the content of one."""


class OpenStore:
    """A store for every principal: its services, and its threads until it is closed."""

    def __init__(
        self,
        location: Path | str,
        path: Path,
        settings: Settings,
        policy: Policy,
        keys: KeyProvider,
        *,
        clock: Clock,
        observer: Observer,
        embedder: Embedder | None,
        reranker: Reranker | None,
        vector_index: MakeVectorIndex | None,
        index_wait_seconds: float,
    ) -> None:
        """`location`: a file or the address of a database. `path`: the ledger's path is derived from it."""
        engine = Engine(
            location,
            clock=clock,
            busy_timeout=settings.busy_timeout,
            on_create=keys.create,
            observer=observer,
            vector_index=vector_index,
        )
        try:
            vault = Vault(engine.data_keys, keys)
            if engine.admin.is_incomplete_copy():
                address = without_password(str(location))
                raise StoreError(f"{address} is an incomplete copy: run `alcove migrate` again")
            valkey = Valkey(settings.session_store) if settings.session_store else None
        except BaseException:
            engine.close()
            raise

        def make_search() -> HybridSearch:
            load_numpy()
            from alcove.search.hybrid_search import HybridSearch  # noqa: PLC0415  loads numpy

            return HybridSearch(
                engine.index,
                embedder,
                engine.clock,
                max_bytes=settings.search_memory_mb << 20,
                max_texts=settings.search_memory_texts,
                reranker=reranker,
            )

        self.process_id = os.getpid()
        """The process that opened it; in a fork, locks that other threads held would stay locked."""
        self._settings = settings
        self._sweeper = Worker("sweep", self._sweep_due, settings.sweep_interval)
        indexer = _start_indexer(engine, embedder, settings)
        ledger = ErasureLedger.of_store(path)
        self.memories = memories = Memories(
            engine,
            vault,
            policy,
            settings,
            ledger,
            indexer=indexer,
            session_cache=SessionCache(valkey, engine, vault, observer) if valkey else None,
            make_search=make_search,
            scrub_soon=self._sweeper.wake if settings.sweep_interval else lambda: None,
            index_wait_seconds=index_wait_seconds,
        )
        audit = memories.audit
        token_use = Usage(memories).totals
        self.admin = Admin(engine, vault, memories.access, ledger, audit, embedder, indexer, token_use)
        self.services = services_by_class(
            self,
            memories.access,
            memories.writer,
            memories.reader,
            memories.searcher,
            memories.timeline,
            memories.overview,
            self.admin,
            PersonalDataReader(engine, vault, memories.decoder, audit),
            Wiper(engine, vault, ledger, audit, memories.eraser, Runs(memories).left_alone),
            Doctor(engine, memories.decoder, ledger),
            BackupWriter(engine, vault, audit),
        )
        """The services that perform operations, by the names of their classes."""
        self._agents: dict[tuple[Path | bytes | None, LLM | None], Agents] = {}
        self._opening = threading.Lock()
        if settings.sweep_interval:
            self._sweeper.start()

    def agents(self, specs: Specs | None, llm: LLM | None) -> Agents:
        """The agents and teams of some specs, at work on this store; without specs, agents of any name."""
        from alcove.agents.specs.loading import WatchedSpecs  # noqa: PLC0415  loads YAML, which few need

        place: Path | bytes | None = None
        if isinstance(specs, Mapping):
            place = validation.encode_json(dict(specs), "specs")
        elif specs is not None:
            place = Path(specs).absolute()
        with self._opening:  # a second instance would never be closed, and its records of calls would be lost
            if (place, llm) not in self._agents:
                depth = self._settings.max_depth
                settings, provider = resolve_llm(llm)
                self._agents[place, llm] = Agents(
                    self.memories,
                    None if place is None else WatchedSpecs(place, max_depth=depth),
                    authentication=False,
                    follows=self._settings.sweep_interval > 0,
                    llm=settings,
                    provider=provider,
                )
            return self._agents[place, llm]

    def import_memories(
        self, principal: Principal, lines: File | Iterable[bytes], *, wait_for_index: bool = False
    ) -> Imports:
        """Writes the lines of an export, or of an open file, that differ from what is stored.

        With `wait_for_index` it returns once a search by meaning finds them, too.
        """
        importer = Importer(self.memories, lambda: principal)
        for bundle in importer.lines.all_of(lines):
            importer.take(bundle)
            if wait_for_index:
                importer.wait_for_index()
        return importer.report

    def sweep(self, principal: Principal) -> SweepResult:
        """Runs the background sweep now; not possible over a URL."""
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


def _start_indexer(engine: Engine, embedder: Embedder | None, settings: Settings) -> Indexer | None:
    """Starts indexing in the background, unless this process does not index."""
    if not embedder or not settings.indexing_interval:
        return None
    interval, batch = settings.indexing_interval, settings.indexing_batch
    indexer = Indexer(engine.index, embedder, engine.clock, interval=interval, batch=batch)
    if engine.index.vector_index:
        engine.index.vector_index.start(interval)
    if (
        settings.sweep_interval
    ):  # embeds texts that other processes left; loads the model only if there are any
        indexer.wake()
        engine.on_commit(indexer.wake_if_due)
    return indexer


LOCAL_ROUTE = "NONE /"
"""The route of operations that only a store in this process has."""


class StoreOperations:
    """Operations on a store as a whole, besides `MemoryOperations`."""

    TAG = "store"

    import_memories = Operation(OpenStore.import_memories, "POST /v1/memories/import", "Import lines")
    sweep = Operation(OpenStore.sweep, LOCAL_ROUTE, "Sweep now")


class FileOperations:
    """Operations on a store's file, besides `AdminOperations`."""

    TAG = "admin"

    backup = Streaming(BackupWriter.write, "GET /v1/admin/backup", "Copy the store into one new file")
    reindex = Streaming(Admin.reindex, LOCAL_ROUTE, "Embed every text anew")
    reload_policy = Operation(Admin.reload_policy, LOCAL_ROUTE, "Read the policy folder again")
