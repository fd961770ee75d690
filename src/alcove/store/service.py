"""What the roads into a store have in common: the parts that the store is made of."""

from __future__ import annotations

from typing import NamedTuple

from alcove.core.clock import Clock
from alcove.engine.base import Engine
from alcove.search.embedders import Embedder
from alcove.search.indexer import Indexer
from alcove.store.audit import Audit
from alcove.store.configuration import Configuration
from alcove.store.decoding import Opener
from alcove.upkeep.wipe_ledger import Ledger
from alcove.vault import Vault


class Parts(NamedTuple):
    """What a store is made of; without an embedder nothing is indexed."""

    engine: Engine
    vault: Vault
    configuration: Configuration
    ledger: Ledger
    audit: Audit
    embedder: Embedder | None
    indexer: Indexer | None
    clock: Clock


class Service:
    """A road into a store."""

    def __init__(self, parts: Parts) -> None:
        (self._engine, self._vault, self._configuration, self._ledger, self._audit,
         self._embedder, self._indexer, self._clock) = parts  # fmt: skip
        self._opener = Opener(parts.vault)
