"""The effective configuration: the policy and settings a store was started with, and what was put since."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import msgspec

from alcove.core.errors import AlcoveError, InvalidRequest
from alcove.core.principal import Principal
from alcove.core.settings import AdjustableSettings, Settings
from alcove.engine.administration import Administration
from alcove.policy import Policy

R = TypeVar("R")
Denials = list[tuple[Principal, str]]
"""Who was turned away, and from which operation."""
_KINDS = ("policies", "settings")
ADJUSTABLE = tuple(each.name for each in fields(AdjustableSettings))


class ActiveConfig(NamedTuple):
    policy: Policy
    settings: Settings


class Configuration:
    """Asks the store for the version before each call, so that what one worker was told holds for all."""

    def __init__(
        self,
        rows: Administration,
        policy: Policy,
        settings: Settings,
        on_denied: Callable[[Principal, str], None],
    ) -> None:
        """`on_denied`: told whom the policy turned away, and from which operation."""
        policy.on_denied, self._on_denied = self._denied, on_denied
        self._rows = rows
        self._started_with = settings
        self.loaded = 0, ActiveConfig(policy, settings)
        """A version, and what held then; whoever goes by it compares the version after reading the store."""
        self.versions = dict.fromkeys(_KINDS, 0)
        """Of each kind of document, which is loaded; 0 where none was put."""
        self._loading = threading.Lock()
        self._undecided = threading.local()
        """Its `denials`: whom the policy turned away in what this thread is about to decide."""

    def current(self) -> ActiveConfig:
        """What holds now."""
        version = self._rows.version()
        if version != self.loaded[0]:
            with self._loading:
                policy = self.loaded[1].policy
                found = {kind: self._rows.document(kind) or (0, "{}") for kind in _KINDS}
                policy.use(msgspec.json.decode(found["policies"][1]))
                settings = self._adjusted(msgspec.json.decode(found["settings"][1]))
                self.loaded = version, ActiveConfig(policy, settings)
                self.versions = {kind: number for kind, (number, _) in found.items()}
        return self.loaded[1]

    def is_newest(self, version: int) -> bool:
        """Whether what was loaded with a version still holds; if not, what holds now is loaded."""
        self.current()
        return self.loaded[0] == version

    def decided(self, decide: Callable[[], R]) -> tuple[R | AlcoveError, Denials]:
        """What is decided by what was loaded, or why it is refused, without asking the store for anything.

        And whom the policy turned away: `tell` of them once it is known to be the newest.
        """
        self._undecided.denials = denials = Denials()
        try:
            return decide(), denials
        except AlcoveError as error:
            return error, denials
        finally:
            del self._undecided.denials

    def tell(self, denials: Denials) -> None:
        """Tells of who was turned away."""
        for principal, operation in denials:
            self._on_denied(principal, operation)

    def _denied(self, principal: Principal, operation: str) -> None:
        """Tells of who was turned away, unless by rules that others have replaced: it is decided again."""
        if hasattr(self._undecided, "denials"):
            self._undecided.denials.append((principal, operation))
        elif self.is_newest(self.loaded[0]):
            self._on_denied(principal, operation)

    def stored(self, kind: str) -> dict[str, Any]:
        """What was put last, as it was put."""
        document = self._rows.document(kind)
        return msgspec.json.decode(document[1]) if document else {}

    def changed(self, changes: Mapping[str, object]) -> dict[str, object]:
        """The settings to store after some changes; null takes one back, an error names a wrong one."""
        for name in changes:
            if name not in ADJUSTABLE:
                raise InvalidRequest(name, f"one of the settings {', '.join(ADJUSTABLE)}")
        merged = {**self.stored("settings"), **changes}
        wanted = {name: value for name, value in merged.items() if value is not None}
        self._adjusted(wanted)
        return wanted

    def before_and_after(self, stored: Mapping[str, object]) -> tuple[Settings, Settings]:
        """The settings that hold now, and those that will hold once these are stored."""
        return self.current().settings, self._adjusted(stored)

    def _adjusted(self, changes: Mapping[str, object]) -> Settings:
        return replace(self._started_with, **changes)  # type: ignore[arg-type]
