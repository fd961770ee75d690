"""Everything that reads or writes memories, put together.

Nothing else touches the engine's memories, and every part asks `access` first, so that no caller can bypass
the policy.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from alcove.core.clock import DAY, to_datetime
from alcove.core.errors import AlcoveError
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import SweepResult
from alcove.core.settings import Settings
from alcove.engine.engine import Engine
from alcove.engine.rows import MAX_INT64
from alcove.policy import Policy
from alcove.search.indexer import Indexer
from alcove.store.access import Access
from alcove.store.audit import AuditLog
from alcove.store.erasure_ledger import ErasureLedger
from alcove.store.field_value_cache import FieldValueCache
from alcove.store.overview import Overview
from alcove.store.reader import Reader
from alcove.store.row_decoder import RowDecoder
from alcove.store.searcher import Searcher
from alcove.store.session_cache import SessionCache
from alcove.store.timeline import Timeline
from alcove.store.wipe import Eraser
from alcove.store.writer import Writer
from alcove.vault import Vault

if TYPE_CHECKING:
    from alcove.search.hybrid_search import HybridSearch

log = logging.getLogger("alcove")
_SWEEP_BATCH = 500


class Memories:
    """The memories of every principal. Each call names the principal that makes it."""

    def __init__(
        self,
        engine: Engine,
        vault: Vault,
        policy: Policy,
        settings: Settings,
        ledger: ErasureLedger,
        *,
        indexer: Indexer | None = None,
        session_cache: SessionCache | None = None,
        make_search: Callable[[], HybridSearch],
        scrub_soon: Callable[[], None],
        index_wait_seconds: float,
    ) -> None:
        self._engine, self._vault, self._indexer, self._sessions = engine, vault, indexer, session_cache
        self._field_values = FieldValueCache()
        self.audit = AuditLog(engine.admin, vault, engine.clock)
        self.access = Access(engine, policy, settings, self.audit)
        self.decoder = decoder = RowDecoder(vault)
        self.writer = Writer(
            engine,
            self.access,
            vault,
            decoder,
            self.audit,
            indexer,
            session_cache,
            index_wait_seconds=index_wait_seconds,
        )
        self.reader = Reader(engine, self.access, decoder, session_cache)
        self.searcher = Searcher(
            engine,
            self.access,
            decoder,
            self._field_values,
            indexer,
            make_search,
            index_wait_seconds=index_wait_seconds,
        )
        self.timeline = Timeline(engine, self.access, decoder)
        self.overview = Overview(engine, self.access, decoder)
        self.eraser = Eraser(
            engine, self.access, vault, ledger, self.audit, self._field_values, session_cache, scrub_soon
        )
        self.derive_key = vault.derive_key
        self.pseudonym = vault.pseudonym

    @property
    def settings(self) -> Settings:
        """The active settings."""
        return self.access.current().settings

    def now(self) -> datetime:
        """The time by the clock of the store."""
        return to_datetime(self._engine.clock())

    def try_lock(self, namespace: Namespace) -> bool:
        """Acquires the lock of a namespace, unless any thread of any process holds it."""
        return self._engine.locks.try_acquire(namespace.encode("namespace"))

    def unlock(self, namespace: Namespace) -> None:
        """Releases the lock of a namespace."""
        self._engine.locks.release(namespace.encode("namespace"))

    def record_private_rooms(self, templates: Collection[str]) -> None:
        """Stores templates of agents' private rooms, so that a wipe finds what users wrote there."""
        if new := {*templates}.difference(self._engine.admin.private_rooms()):
            self._engine.admin.add_private_rooms(sorted(new))

    def sweep(self) -> SweepResult:
        """Records expiries, removes what retention no longer keeps, and finishes scrubs."""
        now, engine, batch = self._engine.clock(), self._engine, _SWEEP_BATCH
        settings = self.settings
        expired = _repeat(lambda: engine.expire(now=now, limit=batch))
        aged = 0
        for root, days in settings.retention_max_age.items():
            oldest, (low, high) = max(-MAX_INT64, now - int(days * DAY)), Namespace((root,)).subtree()
            # Each step looks through the whole root again, so it may take more at a time.
            aged += _repeat(partial(engine.expire_older, low, high, than=oldest, limit=10 * batch))
        retained_from = max(0, now - int(settings.retention_days * DAY))
        purged = _repeat(lambda: engine.purge(before=retained_from, limit=batch))
        self._field_values.clear_after(engine.erasure.count())
        engine.purge_stored_answers(before=now - DAY)
        self.audit.purge(now=now, days=settings.audit_days)
        self.audit.flush()
        self.eraser.scrub()
        if expired or aged or purged:
            log.info("sweep: %d expired, %d past their age, %d old versions removed", expired, aged, purged)
        return SweepResult(expired=expired, aged=aged, purged=purged)

    def readiness(self) -> dict[str, Callable[[], object]]:
        """The checks of what every call needs, by name; each raises if something does not work."""
        checks: dict[str, Callable[[], object]] = {
            "engine": self._check_engine,
            "keys": self._vault.check,
            "policy": self._check_policy,
        }
        return checks | ({"session_store": self._sessions.check} if self._sessions else {})

    def _check_engine(self) -> str | None:
        self._engine.horizon()
        return self._engine.index.problem

    def _check_policy(self) -> None:
        self.access.current().policy.check()

    def take_request(self, principal: Principal, per_second: float) -> bool | None:
        """Takes a request from the limit that all nodes share; None if nothing is shared now."""
        return self._sessions.take_request(principal, per_second) if self._sessions else None

    def close(self) -> None:
        """Closes the store. Acknowledged writes are on the disk without this call, too."""
        if self._indexer:
            self._indexer.stop()
        with contextlib.suppress(AlcoveError):
            self.audit.close()
        if self._sessions:
            self._sessions.close()
        self._engine.close()


def _repeat(step: Callable[[], int]) -> int:
    """Repeats a bounded step until it does nothing, so that writers get their turn; returns the total."""
    total = 0
    while count := step():
        total += count
    return total
