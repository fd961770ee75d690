"""Alcove: memory for AI agents, private per agent and user, shared where a team says so."""

from alcove.backup import BackedUp, Progress, Restored, restore
from alcove.client import Alcove
from alcove.clients import connect
from alcove.doctor import Examination
from alcove.errors import (
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
from alcove.namespace import Namespace
from alcove.portions import Portion
from alcove.principal import Grant, Principal
from alcove.records import (
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
from alcove.settings import Settings
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
