"""Alcove: memory for AI agents, private per agent and user, shared where a team says so."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from alcove.core import __version__
from alcove.core.errors import (
    AlcoveError,
    Conflict,
    InvalidRequest,
    KeyDestroyed,
    KeyUnavailable,
    MethodNotAllowed,
    MissingExtra,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    PolicyError,
    PolicyFailed,
    RateLimited,
    StoreError,
    Unauthenticated,
    Unavailable,
    Unreadable,
    UnsupportedMediaType,
    UpstreamFailed,
    UpstreamTimeout,
)
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import (
    ApiKey,
    AuditPage,
    Author,
    Caller,
    Delete,
    Deletion,
    Entry,
    Event,
    EventPage,
    ExportedVersion,
    Get,
    IndexState,
    Keys,
    Memory,
    Message,
    PersonalData,
    Policies,
    Put,
    Receipt,
    Residue,
    ReviewPage,
    SearchResults,
    Stats,
    SweepResult,
    Touch,
    Version,
)
from alcove.core.settings import LLMSettings, Settings

if TYPE_CHECKING:
    from alcove.agents.call_log import ToolCall, UserUse
    from alcove.agents.chats import ChatEvent, Reply
    from alcove.agents.context import Context
    from alcove.agents.knowledge import Document, DocumentText, KnowledgeHit, SourceStatus
    from alcove.agents.runs import Run
    from alcove.agents.service import RoomStats, RoomSummary
    from alcove.agents.sessions import AddedMessages, RemovedSessions, Session, SessionLog, UserSummary
    from alcove.agents.specs.records import Agent, Team
    from alcove.agents.teamwork import TeamReply
    from alcove.agents.tools.answers import Answer
    from alcove.client import connect
    from alcove.client.agent import AgentHandle, AsyncAgentHandle
    from alcove.client.asynchronous import AsyncAdminHandle, AsyncAgentsHandle, AsyncAlcove
    from alcove.client.embedded import Alcove
    from alcove.client.remote import Remote
    from alcove.client.store import AdminHandle, AgentsHandle, ApiKeysHandle, MemoriesHandle, Store
    from alcove.core.cursor import Page
    from alcove.search.embedders import Embedder
    from alcove.search.rerankers import Reranker
    from alcove.store.overview import Activity, Branch, Map
    from alcove.upkeep.backup import BackedUp, Progress, Restored, restore
    from alcove.upkeep.doctor import Examination
    from alcove.upkeep.transfer import Imports
    from alcove.vault import EnvironmentKey, KeyFile, KeyProvider, MemoryKey, Rotation

__all__ = [
    "Activity", "AddedMessages", "AdminHandle", "Agent", "AgentHandle", "AgentsHandle", "Alcove",
    "AlcoveError", "Answer", "ApiKey", "ApiKeysHandle", "AsyncAdminHandle", "AsyncAgentHandle",
    "AsyncAgentsHandle", "AsyncAlcove", "AuditPage", "Author", "BackedUp", "Branch", "Caller",
    "ChatEvent", "Conflict", "Context", "Delete", "Deletion", "Document", "DocumentText", "Embedder",
    "Entry", "EnvironmentKey", "Event", "EventPage", "Examination", "ExportedVersion", "Get", "Grant",
    "Imports", "IndexState", "InvalidRequest", "KeyDestroyed", "KeyFile", "KeyProvider",
    "KeyUnavailable", "Keys", "KnowledgeHit", "LLMSettings", "Map", "MemoriesHandle", "Memory",
    "MemoryKey", "Message", "MethodNotAllowed", "MissingExtra", "Namespace", "NotFound", "Page",
    "PayloadTooLarge", "PermissionDenied", "PersonalData", "Policies", "PolicyError", "PolicyFailed",
    "Principal", "Progress", "Put", "RateLimited", "Receipt", "Remote", "RemovedSessions", "Reply",
    "Reranker", "Residue", "Restored", "ReviewPage", "RoomStats", "RoomSummary", "Rotation", "Run",
    "SearchResults", "Session", "SessionLog", "Settings", "SourceStatus", "Stats", "Store",
    "StoreError", "SweepResult", "Team", "TeamReply", "ToolCall", "Touch", "Unauthenticated",
    "Unavailable", "Unreadable", "UnsupportedMediaType", "UpstreamFailed", "UpstreamTimeout",
    "UserSummary", "UserUse", "Version", "__version__", "connect", "restore",
]  # fmt: skip

_LAZY_NAMES = {
    "alcove.agents.call_log": "ToolCall UserUse",
    "alcove.agents.context": "Context",
    "alcove.agents.knowledge": "Document DocumentText KnowledgeHit SourceStatus",
    "alcove.agents.chats": "ChatEvent Reply",
    "alcove.agents.runs": "Run",
    "alcove.agents.service": "RoomStats RoomSummary",
    "alcove.agents.sessions": "AddedMessages RemovedSessions Session SessionLog UserSummary",
    "alcove.agents.specs.records": "Agent Team",
    "alcove.agents.teamwork": "TeamReply",
    "alcove.agents.tools.answers": "Answer",
    "alcove.client": "connect",
    "alcove.client.agent": "AgentHandle AsyncAgentHandle",
    "alcove.client.asynchronous": "AsyncAdminHandle AsyncAgentsHandle AsyncAlcove",
    "alcove.client.embedded": "Alcove",
    "alcove.client.remote": "Remote",
    "alcove.client.store": "AdminHandle AgentsHandle ApiKeysHandle MemoriesHandle Store",
    "alcove.core.cursor": "Page",
    "alcove.search.embedders": "Embedder",
    "alcove.search.rerankers": "Reranker",
    "alcove.store.overview": "Activity Branch Map",
    "alcove.upkeep.backup": "BackedUp Progress Restored restore",
    "alcove.upkeep.doctor": "Examination",
    "alcove.upkeep.transfer": "Imports",
    "alcove.vault": "EnvironmentKey KeyFile KeyProvider MemoryKey Rotation",
}
"""Names that load on first use, because they import databases, ciphers, a policy engine and HTTP."""
_OLD_NAMES = {"Portion": "Page", "Swept": "SweepResult"}
"""Names of earlier versions that are still accepted, and what they are called now."""


if not TYPE_CHECKING:  # a type checker that saw it would accept every misspelt name

    def __getattr__(name: str) -> object:
        """Loads a public name when it is first used."""
        if name in _OLD_NAMES:
            name = _OLD_NAMES[name]
            return globals().get(name) or __getattr__(name)
        for module, names in _LAZY_NAMES.items():
            if name in names.split():
                return globals().setdefault(name, getattr(import_module(module), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
