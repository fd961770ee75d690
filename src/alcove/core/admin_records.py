"""What operating a store answers: what is held of a person, policies, keys, figures, the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from alcove.core.namespace import Namespace
from alcove.core.records import Memory, NamespaceSize


class PersonalData(Struct, frozen=True, kw_only=True):
    """What is held of a user; `shared` counts the versions they wrote into rooms of others.

    Those of them that a wipe left without a name are counted, too, until a wipe removes them.
    """

    user: str
    memories: int
    versions: int
    bytes: int
    shared: int
    api_keys: int
    key: bool
    """Whether there is a data key that opens what is theirs."""
    first_written: datetime | None
    last_written: datetime | None
    namespaces: list[NamespaceSize]
    shared_rooms: list[NamespaceSize]


class ReviewPage(Struct, frozen=True):
    """Memories of a user to look through, in the order they were written."""

    items: list[Memory]
    after_cursor: str


class Policies(Struct, frozen=True):
    """The texts in force; `stored` names those that were put over the folder's and the built-in ones."""

    authz: str
    attributes: str
    filter: str
    version: int
    stored: list[str]


class ParkedItem(Struct, frozen=True):
    """A memory whose text could not be embedded again and again."""

    namespace: Namespace
    key: str
    tries: int
    error: str


class IndexState(Struct, frozen=True, kw_only=True):
    """The state of search by meaning; `serving` is the model whose vectors are searched."""

    embedder: str | None
    serving: str | None
    indexed: int
    waiting: int
    oldest_waiting: datetime | None
    parked: int
    parked_items: list[ParkedItem]


class KeyInUse(Struct, frozen=True):
    id: str
    active: bool
    data_keys: int


class Keys(Struct, frozen=True):
    """Key-encryption keys by their ids, never by themselves."""

    active: str
    keys: list[KeyInUse]


class RootSize(Struct, frozen=True):
    root: str
    memories: int
    versions: int
    bytes: int


class AgentUse(Struct, frozen=True, kw_only=True):
    """How many turns an agent had with an LLM, and the tokens they took."""

    agent: str
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Stats(Struct, frozen=True):
    """How much there is, in all and under each root segment; bytes are those of sealed values."""

    memories: int
    versions: int
    bytes: int
    roots: list[RootSize]
    llm: list[AgentUse] = []
    """What agents took of an LLM in the last 90 days."""


class ApiKey(Struct, frozen=True):
    """What may be shown of an API key."""

    id: str
    client: str
    user: str | None
    roles: list[str]
    trusted: bool
    created_at: datetime


class AuditEntry(Struct, frozen=True):
    """Who did what; `subject` is a pseudonym of whom it was done to, the same for the same user.

    After a wipe of the `actor`, that is their pseudonym, too.
    """

    at: datetime
    actor: str | None
    action: str
    subject: str | None
    details: dict[str, Any]


class AuditPage(Struct, frozen=True):
    """Entries, newest first, and the cursor to go on from; none at the end."""

    entries: list[AuditEntry]
    after_cursor: str | None
