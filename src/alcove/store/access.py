"""Access: the active rules, what a principal may do by them, and the record of privileged reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

import msgspec

from alcove.core.errors import AlcoveError, InvalidRequest, PermissionDenied
from alcove.core.filters import Filter, filter_to_json
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Caller, NamespaceLike
from alcove.core.settings import AdjustableSettings, Settings
from alcove.core.threads import before_long_work, before_waiting
from alcove.engine.engine import Engine
from alcove.engine.rows import Scope
from alcove.policy import Policy
from alcove.store.audit import AuditLog

_KINDS = ("policies", "settings")
ADJUSTABLE = tuple(each.name for each in fields(AdjustableSettings))
"""The settings that can be changed while the store is open."""
View = Callable[[], Scope]
"""The scope of an answer that stays open; raises PermissionDenied once its caller may see something else."""


class ActiveConfig(NamedTuple):
    """The rules that decisions follow."""

    policy: Policy
    settings: Settings


class Access:
    """Decides what a principal may do. Every process follows the newest rules that the store has."""

    def __init__(self, engine: Engine, policy: Policy, settings: Settings, audit: AuditLog) -> None:
        self._engine = engine
        self._audit = audit
        self._initial_settings = settings
        self.loaded = 0, ActiveConfig(policy, settings)
        """The rules that this process has, and their version. A decision by them holds only if the store has
        no newer version; `current` asks the store first."""
        self.versions = dict.fromkeys(_KINDS, 0)
        """The loaded version of each kind of document; 0 if none is stored."""
        self._loading = threading.Lock()

    # The active rules

    def current(self) -> ActiveConfig:
        """Returns the newest rules of the store."""
        version = self._engine.admin.version()
        if version != self.loaded[0]:
            with self._loading:
                policy = self.loaded[1].policy
                documents = {kind: self._engine.admin.document(kind) or (0, "{}") for kind in _KINDS}
                policy.use(msgspec.json.decode(documents["policies"][1]))
                settings = self._adjust(msgspec.json.decode(documents["settings"][1]))
                self.loaded = version, ActiveConfig(policy, settings)
                self.versions = {kind: number for kind, (number, _) in documents.items()}
        return self.loaded[1]

    def stored_document(self, kind: str) -> dict[str, Any]:
        """Returns the policies or settings that were stored last."""
        document = self._engine.admin.document(kind)
        return msgspec.json.decode(document[1]) if document else {}

    def change_settings(self, changes: Mapping[str, object]) -> tuple[dict[str, object], Settings]:
        """Returns the document to store, and all settings by it; None resets a setting."""
        for name in changes:
            if name not in ADJUSTABLE:
                raise InvalidRequest(name, f"one of the settings {', '.join(ADJUSTABLE)}")
        merged = {**self.stored_document("settings"), **changes}
        document = {name: value for name, value in merged.items() if value is not None}
        return document, self._adjust(document)

    def _adjust(self, changes: Mapping[str, object]) -> Settings:
        return replace(self._initial_settings, **changes)  # type: ignore[arg-type]

    # Decisions

    def whoami(self, principal: Principal) -> Caller:
        """Who you are here: the user whose rooms are yours, and your roles."""
        return Caller(user=principal.user_id, client=principal.client_id, roles=principal.roles)

    def authorise(
        self, principal: Principal, operation: Literal["read", "delete"], namespace: Namespace, key: str
    ) -> None:
        """Raises PermissionDenied unless the policy allows the operation."""
        policy = self.current().policy
        with self.counting_denials(principal):
            policy.authorise(principal, operation, namespace, key)

    def scope(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        filter: Mapping[str, object] | None = None,
        *,
        exact: bool = False,
    ) -> Scope:
        """Returns the part of a subtree that a principal may see and that a filter describes.

        `exact`: only the namespace itself, without those below it.
        """
        below, conditions = Namespace.checked(prefix, "prefix"), Filter.parse(filter)
        policy = self.current().policy
        with self.counting_denials(principal):
            narrowed = policy.narrow(principal, below, filter_to_json(filter))
        low, high = narrowed.prefix.alone() if exact else narrowed.prefix.subtree()
        return Scope(low, high, policy=narrowed.conditions, owner=narrowed.owner, filter=conditions,
                     written_by=narrowed.written_by,
                     unowned_written_by=narrowed.unowned_written_by)  # fmt: skip

    def view(
        self, get_principal: Callable[[], Principal], prefix: NamespaceLike, *, exact: bool = False
    ) -> View:
        """Returns a scope for an answer that stays open; it is checked anew each time it is used."""
        initial = self.scope(get_principal(), prefix, exact=exact)

        def view() -> Scope:
            if self.scope(get_principal(), prefix, exact=exact) != initial:
                raise PermissionDenied("what this caller may see has changed since this was opened")
            return initial

        return view

    def refuse(self, principal: Principal, error: AlcoveError, version: int) -> None:
        """Raises an error of a decision, unless the store has newer rules than those of `version`."""
        if self._engine.is_remote:
            before_long_work()
        self.current()
        if self.loaded[0] == version:
            with self.counting_denials(principal):
                raise error

    @contextmanager
    def counting_denials(self, principal: Principal) -> Iterator[None]:
        """Counts in the audit log each denial by the policy within the block."""
        try:
            yield
        except PermissionDenied as error:
            if error.operation:
                self._audit.count_denial(principal, error.operation)
            raise

    # The record of privileged reads

    def record_read(
        self, principal: Principal, operation: str, scope: Namespace, namespaces: Iterable[Namespace]
    ) -> None:
        """Records in the audit log which memories the caller may read only by a role.

        Every method that shows memories calls this before it returns: a read that cannot be recorded is
        refused. `namespaces`: that of each memory in the answer.
        """
        if read := self._audit.unrecorded_read(principal, operation, scope, namespaces):
            before_waiting()
            self._audit.record_read(*read)
