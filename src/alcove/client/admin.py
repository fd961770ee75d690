"""Operating a store, in this process or behind a server: `store.admin.Admin` as one principal has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from alcove.api.operation import Handle, Operation
from alcove.api.operations import AdminOperations
from alcove.core.errors import InvalidRequest
from alcove.core.principal import Principal
from alcove.core.records import HeldVersion
from alcove.store.admin import Admin
from alcove.store.api_keys import ApiKeys
from alcove.store.reports import ReviewPage
from alcove.upkeep.backup import BackedUp, Progress
from alcove.upkeep.doctor import Examination
from alcove.vault import Rotation

R = TypeVar("R")


class AdminHandle(AdminOperations, Handle):
    """Operating a store: what is held of whom, policies, settings, keys, figures, the audit log."""

    def memories_of(self, user: str, *, limit: int = 100, after_cursor: str | None = None) -> ReviewPage:
        """What is live in a user's rooms or was written by them into others', page by page; audited."""
        raise NotImplementedError

    def export(self, user: str) -> Iterator[HeldVersion]:
        """Every version that is held of a user, what they wrote into shared rooms included; audited."""
        raise NotImplementedError

    def rotate_keys(self) -> Iterator[Rotation]:
        """Wraps every data key with a new key-encryption key, step by step; resumable."""
        raise NotImplementedError

    def api_keys(self) -> ApiKeys:
        """The API keys of the store."""
        raise NotImplementedError

    def doctor(self) -> Iterator[Examination]:
        """Checks the whole store, one examination at a time."""
        raise NotImplementedError

    def backup(self, to: Path) -> Iterator[Progress[BackedUp]]:
        """Copies the store into one new file while others use it, step by step, and verifies the copy."""
        raise NotImplementedError

    def reindex(self) -> Iterator[int]:
        """Embeds every text with the embedder that is configured now; how many are done so far."""
        raise InvalidRequest("at", "the store's file: reindex is not done over a URL")

    def reload_policy(self) -> None:
        """Reads the policy folder again; a broken bundle raises and leaves the old one active."""
        raise InvalidRequest("at", "the store's file: reload_policy is not done over a URL")


class EmbeddedAdmin(AdminHandle):
    """Operating a store in this process, as one principal."""

    def __init__(self, admin: Admin, principal: Principal) -> None:
        self._admin = admin
        self._who = principal

    def perform(self, operation: Operation[..., R], arguments: dict[str, Any]) -> R:
        return getattr(self._admin, operation.does.__name__)(self._who, **arguments)  # type: ignore[no-any-return]

    def memories_of(self, user: str, *, limit: int = 100, after_cursor: str | None = None) -> ReviewPage:
        return self._admin.memories_of(self._who, user, limit=limit, after_cursor=after_cursor)

    def export(self, user: str) -> Iterator[HeldVersion]:
        return self._admin.export(self._who, user)

    def rotate_keys(self) -> Iterator[Rotation]:
        return self._admin.rotate_keys(self._who)

    def api_keys(self) -> ApiKeys:
        return self._admin.api_keys(self._who)

    def doctor(self) -> Iterator[Examination]:
        return self._admin.doctor(self._who)

    def backup(self, to: Path) -> Iterator[Progress[BackedUp]]:
        return self._admin.backup(self._who, to)

    def reindex(self) -> Iterator[int]:
        return self._admin.reindex(self._who)

    def reload_policy(self) -> None:
        self._admin.reload_policy(self._who)
