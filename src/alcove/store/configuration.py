"""What is in force: the policy and the settings the store was started with, and what was put since."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import msgspec

from alcove.core.errors import InvalidRequest
from alcove.core.settings import AdjustableSettings, Settings
from alcove.engine.base import Administration
from alcove.policy import Policy

ADJUSTABLE = tuple(each.name for each in fields(AdjustableSettings))


class InForce(NamedTuple):
    policy: Policy
    settings: Settings


class Standing:
    """Asks the store for the version before each call, so that what one worker was told holds for all."""

    def __init__(self, rows: Administration, policy: Policy, settings: Settings) -> None:
        self._rows = rows
        self._started_with = settings
        self._in_force = InForce(policy, settings)
        self._version = 0
        self._loading = threading.Lock()

    def current(self) -> InForce:
        version = self._rows.version()
        if version != self._version:
            with self._loading:
                self._load(version)
        return self._in_force

    def _load(self, version: int) -> None:
        policy = self._in_force.policy
        policy.use(self.stored("policies"))
        self._in_force = InForce(policy, self._adjusted(self.stored("settings")))
        self._version = version

    def stored(self, kind: str) -> dict[str, Any]:
        """What was put last, as it was put."""
        document = self._rows.document(kind)
        return msgspec.json.decode(document.body) if document else {}

    def changed(self, changes: Mapping[str, object]) -> dict[str, object]:
        """The settings to store after some changes; null takes one back, an error names a wrong one."""
        for name in changes:
            if name not in ADJUSTABLE:
                raise InvalidRequest(name, f"one of the settings {', '.join(ADJUSTABLE)}")
        merged = {**self.stored("settings"), **changes}
        wanted = {name: value for name, value in merged.items() if value is not None}
        self._adjusted(wanted)
        return wanted

    def _adjusted(self, changes: Mapping[str, object]) -> Settings:
        return replace(self._started_with, **changes)  # type: ignore[arg-type]
