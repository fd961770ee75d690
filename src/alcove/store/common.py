"""What the services of a store have in common: the parts of the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from alcove.core.clock import Clock
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.threads import before_waiting
from alcove.engine.engine import Engine
from alcove.search.embedders import Embedder
from alcove.search.indexer import Indexer
from alcove.store.active_config import Configuration
from alcove.store.audit import Audit
from alcove.store.erasure_ledger import ErasureLedger
from alcove.store.field_values import FieldValues
from alcove.store.row_decoding import Opener
from alcove.store.session_cache import SessionCache
from alcove.vault import Vault


class Parts(NamedTuple):
    """What a store is made of; without an embedder nothing is indexed."""

    engine: Engine
    vault: Vault
    configuration: Configuration
    ledger: ErasureLedger
    audit: Audit
    embedder: Embedder | None
    indexer: Indexer | None
    clock: Clock
    fields: FieldValues
    sessions: SessionCache | None


class Service:
    """A road into a store."""

    def __init__(self, parts: Parts) -> None:
        (self._engine, self._vault, self._configuration, self._ledger, self._audit,
         self._embedder, self._indexer, self._clock, self._fields, self._sessions) = parts  # fmt: skip
        self._opener = Opener(parts.vault)

    def _erased(self, owner: str | None) -> None:
        """Has what remembers rows forget them: some were erased that were this user's, or nobody's."""
        self._fields.clear()
        if self._sessions and owner is not None:
            self._sessions.forget(owner)

    def _record_read(
        self, principal: Principal, operation: str, scope: Namespace, namespaces: Iterable[Namespace]
    ) -> None:
        """Records in the audit log what the caller reads only by a role.

        Every method that shows memories does this before it returns: what cannot be recorded is not shown.
        `namespaces`: those of the memories in the answer, one for each.
        """
        if read := self._audit.unrecorded_read(principal, operation, scope, namespaces):
            before_waiting()
            self._audit.record_read(*read)
