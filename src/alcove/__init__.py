"""Alcove: memory for AI agents, private per agent and user, shared where a team says so."""

from alcove.client import connect
from alcove.client.embedded import Alcove
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
    Swept,
    Touch,
    Version,
)
from alcove.core.settings import Settings
from alcove.store.portions import Portion
from alcove.upkeep.backup import BackedUp, Progress, Restored, restore
from alcove.upkeep.doctor import Examination
from alcove.vault import EnvironmentKey, KeyFile, KeyProvider, MemoryKey, Rotation

__all__ = [
    "Alcove",
    "AlcoveError",
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
    "PayloadTooLarge",
    "PermissionDenied",
    "PolicyError",
    "Portion",
    "Principal",
    "Progress",
    "Put",
    "Receipt",
    "Restored",
    "Rotation",
    "Settings",
    "StoreError",
    "Swept",
    "Touch",
    "Unavailable",
    "Unreadable",
    "Version",
    "connect",
    "restore",
]
