"""Alcove: memory for AI agents, private per agent and user, shared where a team says so."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from alcove.core.errors import (
    AlcoveError,
    Conflict,
    InvalidRequest,
    KeyUnavailable,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    PolicyError,
    StoreError,
    Unavailable,
    Unreadable,
)
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import (
    Author,
    Delete,
    Deletion,
    Entry,
    Event,
    EventPage,
    Get,
    Memory,
    Put,
    Receipt,
    Residue,
    SweepResult,
    Touch,
    Version,
)
from alcove.core.settings import Settings

if TYPE_CHECKING:
    from alcove.client import connect
    from alcove.client.asynchronous import AsyncAlcove
    from alcove.client.embedded import Alcove
    from alcove.client.store import Store
    from alcove.core.cursor import Page
    from alcove.upkeep.backup import BackedUp, Progress, Restored, restore
    from alcove.upkeep.doctor import Examination
    from alcove.vault import EnvironmentKey, KeyFile, KeyProvider, MemoryKey, Rotation

from alcove.core.version import __version__

__all__ = [
    "Alcove",
    "AlcoveError",
    "AsyncAlcove",
    "Author",
    "BackedUp",
    "Conflict",
    "Delete",
    "Deletion",
    "Entry",
    "EnvironmentKey",
    "Event",
    "EventPage",
    "Examination",
    "Get",
    "Grant",
    "InvalidRequest",
    "KeyFile",
    "KeyProvider",
    "KeyUnavailable",
    "Memory",
    "MemoryKey",
    "Namespace",
    "NotFound",
    "Page",
    "PayloadTooLarge",
    "PermissionDenied",
    "PolicyError",
    "Principal",
    "Progress",
    "Put",
    "Receipt",
    "Residue",
    "Restored",
    "Rotation",
    "Settings",
    "Store",
    "StoreError",
    "SweepResult",
    "Touch",
    "Unavailable",
    "Unreadable",
    "Version",
    "__version__",
    "connect",
    "restore",
]

_LOADED_WHEN_USED = {
    "alcove.client": ["connect"],
    "alcove.client.asynchronous": ["AsyncAlcove"],
    "alcove.client.embedded": ["Alcove"],
    "alcove.client.store": ["Store"],
    "alcove.core.cursor": ["Page"],
    "alcove.upkeep.backup": ["BackedUp", "Progress", "Restored", "restore"],
    "alcove.upkeep.doctor": ["Examination"],
    "alcove.vault": ["EnvironmentKey", "KeyFile", "KeyProvider", "MemoryKey", "Rotation"],
}
"""They bring a database, a policy engine and ciphers along, which `import alcove` does not wait for."""
_OLD_NAMES = {"Portion": "Page", "Swept": "SweepResult"}
"""Public names of earlier versions, and what they are called today; they are still accepted."""


if not TYPE_CHECKING:  # a type checker that saw it would let every misspelt name pass

    def __getattr__(name: str) -> object:
        """Loads a public name the first time somebody asks for it."""
        if name in _OLD_NAMES:
            name = _OLD_NAMES[name]
            return globals().get(name) or __getattr__(name)
        for module, names in _LOADED_WHEN_USED.items():
            if name in names:
                return globals().setdefault(name, getattr(import_module(module), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
