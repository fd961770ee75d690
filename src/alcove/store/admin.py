"""Administration of a store: policies, settings, the index, keys, figures, the audit log; for operators."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from alcove.core import records, validation
from alcove.core.clock import to_datetime
from alcove.core.errors import InvalidRequest, NotFound, Unavailable
from alcove.core.principal import Principal, check_user_id
from alcove.core.records import AgentUse, ApiKey, AuditPage, KeyInUse, Keys, Policies, Stats
from alcove.core.settings import Settings
from alcove.engine.engine import Engine
from alcove.policy import Policy
from alcove.search.embedders import Embedder
from alcove.search.indexer import Indexer, reindex
from alcove.store.access import ADJUSTABLE, Access
from alcove.store.audit import SETTINGS_PUT, AuditLog
from alcove.store.erasure_ledger import ErasureLedger, LedgerEntry
from alcove.vault import Rotation, Vault

_REINDEX_BATCH = 50
"""Texts between two progress reports; a kill loses at most these."""
_KEY_PREFIX = "alcove"
"""Every API key begins with it."""


class Admin:
    """The administration of a store. Auditors may read, admins may do everything."""

    def __init__(
        self,
        engine: Engine,
        vault: Vault,
        access: Access,
        ledger: ErasureLedger,
        audit: AuditLog,
        embedder: Embedder | None,
        indexer: Indexer | None,
        token_use: Callable[[], list[AgentUse]],
    ) -> None:
        """`token_use`: returns the tokens that agents took from an LLM."""
        self._engine, self._rows, self._vault, self._access = engine, engine.admin, vault, access
        self._ledger, self._audit = ledger, audit
        self._embedder, self._indexer = embedder, indexer
        self._token_use = token_use

    # Policies and settings

    def policies(self, principal: Principal) -> Policies:
        """The active policies, and the names of those that were stored with `put_policies`."""
        principal.require("auditor")
        document, stored = self._rows.document("policies"), self._access.stored_document("policies")
        return Policies(*self._policy.bundle, document[0] if document else 0, sorted(stored))

    def put_policies(self, principal: Principal, texts: Mapping[str, str | None]) -> Policies:
        """Replaces the stored policies in every process; others come from the folder or are built in."""
        principal.require("admin")
        stored = {name: text for name, text in texts.items() if text is not None}
        self._policy.compile_rules(stored)
        self._rows.add_document("policies", principal.user_id, msgspec.json.encode(stored).decode())
        self._audit.record(principal, "policies.put", stored=sorted(stored))
        return self.policies(principal)

    def test_policies(
        self, principal: Principal, question: Mapping[str, object], texts: Mapping[str, str | None]
    ) -> dict[str, object]:
        """What each rule would decide about an input, if `texts` replaced the active policies."""
        principal.require("admin")
        new = {name: text for name, text in texts.items() if text is not None}
        rules = self._policy.compile_rules({**self._access.stored_document("policies"), **new})
        return rules.evaluate_all(question)

    def reload_policy(self, principal: Principal) -> None:
        """Reads the policy folder again; a broken bundle leaves the old one active."""
        principal.require("admin")
        self._policy.reload()

    def settings(self, principal: Principal) -> dict[str, object]:
        """The active settings that `put_settings` can change."""
        principal.require("auditor")
        return _adjustable(self._access.current().settings)

    def put_settings(self, principal: Principal, changes: Mapping[str, object]) -> dict[str, object]:
        """Changes settings in every process; None resets a setting."""
        principal.require("admin")
        document, after = self._access.change_settings(changes)
        details: dict[str, Any] = {"changed": sorted(changes)}
        if (before := self._access.current().settings).audit_days != after.audit_days:
            details["audit_days"] = {"from": before.audit_days, "to": after.audit_days}
        entry = self._audit.entry(principal, SETTINGS_PUT, **details)
        self._rows.add_document(
            "settings", principal.user_id, msgspec.json.encode(document).decode(), [entry]
        )
        return self.settings(principal)

    @property
    def _policy(self) -> Policy:
        return self._access.current().policy

    # The index

    def index(self, principal: Principal) -> records.IndexState:
        """The progress of the index: how many texts have vectors, wait for them, or failed too often."""
        principal.require("auditor")
        serving = self._engine.index.serving_embedder()
        status = self._engine.index.status(serving or "")
        return records.IndexState(
            embedder=self._embedder.name if self._embedder else None,
            serving=serving,
            indexed=status.indexed,
            waiting=status.pending,
            oldest_waiting=None if status.oldest_at is None else to_datetime(status.oldest_at),
            parked=status.parked,
            parked_items=self._engine.index.parked_items(),
        )

    def trigger_index(self, principal: Principal) -> records.IndexState:
        """Indexes all waiting and parked texts at once."""
        principal.require("admin")
        if self._indexer is None:
            raise Unavailable("no embedder is configured, so nothing is indexed")
        self._engine.index.retry_all()
        self._audit.record(principal, "index.trigger")
        self._indexer.wake()
        return self.index(principal)

    def reindex(self, principal: Principal) -> Iterator[int]:
        """Embeds every text with the configured embedder, then switches searches to its vectors."""
        principal.require("admin")
        if self._embedder is None:
            raise Unavailable("no embedder is configured, so there is nothing to index with")
        self._audit.record(principal, "index.reindex", embedder=self._embedder.name)
        return reindex(self._engine.index, self._embedder, _REINDEX_BATCH)

    # Keys

    def keys(self, principal: Principal) -> Keys:
        """The key-encryption keys in use, and how many data keys each has wrapped."""
        principal.require("auditor")
        active = self._vault.active_id()
        used = dict(self._rows.keys_by_wrapper())
        return Keys(active, [KeyInUse(id, id == active, used.get(id, 0)) for id in {active: 0, **used}])

    def rotate_keys(self, principal: Principal) -> Iterator[Rotation]:
        """Wraps every data key with a new key-encryption key, step by step; resumable."""
        principal.require("admin")
        return self._rotate(principal)

    def _rotate(self, principal: Principal) -> Iterator[Rotation]:
        rewrapped_count = 0
        for step in self._vault.rotate():
            rewrapped_count = step.rewrapped
            yield step
        active = self._vault.active_id()
        self._audit.record(principal, "keys.rotate", active=active)
        if not rewrapped_count:
            yield Rotation(active, 0)

    def list_api_keys(self, principal: Principal) -> list[ApiKey]:
        """The API keys that have not been revoked, without their secrets."""
        principal.require("auditor")
        return self._rows.api_keys()

    def find_api_key(self, key: str) -> ApiKey | None:
        """Authenticates an API key; returns None if it is wrong or was revoked."""
        prefix, _, rest = key.partition("_")
        id, _, secret = rest.partition("_")
        record = self._rows.api_key(id) if prefix == _KEY_PREFIX and secret else None
        return record[0] if record and hmac.compare_digest(record[1], _digest(secret)) else None

    def create_api_key(
        self,
        principal: Principal,
        *,
        client: Annotated[str, Meta(min_length=1)],
        user: str | None = None,
        roles: Sequence[Annotated[str, Meta(pattern=r"^\S+$")]] = (),
        trusted: bool = False,
    ) -> str:
        """Creates an API key and returns it; it cannot be shown again.

        `client`: the program that will use it. `user`: the user it acts for. `roles`: such as `admin`.
        `trusted`: whether the program may name the user of each request itself.
        """
        principal.require("admin")
        if not trusted and not user:
            raise InvalidRequest("user", "whom the key acts for, unless it is trusted to name them itself")
        if user is not None:
            check_user_id(user, "user")
        if isinstance(roles, str):
            raise InvalidRequest("roles", "a list of strings")
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        key = ApiKey(id, client, user, [*roles], trusted, to_datetime(self._engine.clock()))
        self._rows.add_api_key(key, _digest(secret))
        self._audit.record(principal, "apikey.create", key=id)
        return f"{_KEY_PREFIX}_{id}_{secret}"

    def revoke_api_key(self, principal: Principal, id: str) -> None:
        """Revokes an API key, in every process and in restored backups."""
        principal.require("admin")
        if self._rows.api_key(id) is None:
            raise NotFound(f"there is no API key {id}")
        self._ledger.record(LedgerEntry(wiped_at=datetime.now(UTC), api_key=id))
        self._rows.remove_api_key(id)
        self._audit.record(principal, "apikey.revoke", key=id)

    # Figures

    def stats(self, principal: Principal) -> Stats:
        """Counts memories, versions and bytes, in total and for each root segment."""
        principal.require("auditor")
        roots = self._rows.stats()
        figures = {
            name: sum(getattr(root, name) for root in roots) for name in ("memories", "versions", "bytes")
        }
        return Stats(**figures, roots=roots, llm=self._token_use())

    def audit(
        self,
        principal: Principal,
        *,
        user: str | None = None,
        action: str | None = None,
        after_cursor: str | None = None,
        limit: Annotated[int, Meta(ge=1, le=1000)] = 100,
    ) -> AuditPage:
        """Entries of the audit log, newest first; with `user`, those by or about this user."""
        principal.require("auditor")
        limit = validation.check_integer(limit, "limit", 1, 1000)
        return self._audit.page(user=user, action=action, after_cursor=after_cursor, limit=limit)


def _adjustable(settings: Settings) -> dict[str, object]:
    """The settings that can be changed while the store is open, as JSON values."""
    values = {name: getattr(settings, name) for name in ADJUSTABLE}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _digest(secret: str) -> bytes:
    """A plain hash is enough: the secret has 256 random bits, and no dictionary holds it."""
    return hashlib.sha256(secret.encode()).digest()
