"""What the roads into a store have in common: the parts of the store, and methods that wait in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from enum import Enum
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from alcove.core.clock import Clock
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.engine.commit import Submission
from alcove.engine.engine import Engine
from alcove.search.embedders import Embedder
from alcove.search.indexer import Indexer
from alcove.store.audit import Audit
from alcove.store.effective_configuration import Configuration
from alcove.store.field_values import FieldValues
from alcove.store.row_decoding import Opener
from alcove.store.session_store import SessionStore
from alcove.store.wipe_ledger import Ledger
from alcove.vault import Vault

P = ParamSpec("P")
R = TypeVar("R")


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
    fields: FieldValues
    sessions: SessionStore | None


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
    ) -> Steps[None]:
        """Records in the audit log what the caller reads only by a role.

        Every method that shows memories takes these steps before it returns: what cannot be recorded is not
        shown. `namespaces`: those of the memories in the answer, one for each.
        """
        if read := self._audit.unrecorded_read(principal, operation, scope, namespaces):
            yield Work.WAITS
            self._audit.record_read(*read)
            yield 0.0

    def _record_read_now(
        self, principal: Principal, operation: str, scope: Namespace, namespaces: Iterable[Namespace]
    ) -> None:
        """The same for a method that blocks."""
        if read := self._audit.unrecorded_read(principal, operation, scope, namespaces):
            self._audit.record_read(*read)


# A thread that calls a method which waits in between blocks; an event loop takes its steps one by one.


class Work(Enum):
    """What a step says of what follows it."""

    LARGE = "large"
    """So much that it is not to be done on an event loop."""
    WAITS = "waits"
    """Until the next step it may wait for the write lock: not for a thread that readers need."""


Steps = Generator[Submission | float | Work, None, R]
"""What is yielded is to be waited for: a commit, or so many seconds; or it is said that much work follows."""


def stepwise(method: Callable[P, Steps[R]]) -> Callable[P, R]:
    """A method that blocks until it is done; its `steps` leave the waiting to whoever takes them."""

    @wraps(method)
    def blocking(*args: P.args, **named: P.kwargs) -> R:
        steps = method(*args, **named)
        while True:
            try:
                step = next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            if isinstance(step, float):
                time.sleep(step)
            elif not isinstance(step, Work):
                step.wait()

    blocking.steps = method  # type: ignore[attr-defined]
    return blocking
