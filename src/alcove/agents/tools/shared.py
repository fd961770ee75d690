"""Pools and the team's room: what agents share with others; every entry says who wrote it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.keyed import (
    ByKey,
    Content,
    Keep,
    Key,
    Limit,
    Look,
    NewKey,
    Offset,
    Query,
    Show,
    keep,
    look,
    read,
    show,
)
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace

Pool = Annotated[str, Meta(description="Which pool.")]


class ShareTo(Struct):
    pool: Pool
    key: NewKey
    content: Content


class ReadPool(Struct):
    pool: Pool
    key: Key


class SearchPool(Struct):
    pool: Pool
    query: Query
    limit: Limit = 5


class ListPool(Struct):
    pool: Pool
    limit: Limit = 20
    offset: Offset = 0


def _pool(turn: Turn, name: str) -> Namespace:
    if name not in turn.rooms.pools:
        raise InvalidRequest("pool", f"one of {', '.join(turn.rooms.pools)}")
    return turn.rooms.pools[name]


def _team(turn: Turn) -> Namespace:
    assert turn.rooms.team is not None
    return turn.rooms.team


def share_to(turn: Turn, given: ShareTo) -> Answer:
    return keep(turn, _pool(turn, given.pool), given.key, given.content, f"in the pool {given.pool}")


def read_from_pool(turn: Turn, given: ReadPool) -> Answer:
    return read(turn, _pool(turn, given.pool), given.key, f"in the pool {given.pool}", "list_pool")


def search_pool(turn: Turn, given: SearchPool) -> Answer:
    return look(turn, _pool(turn, given.pool), given.query, given.limit, "read_from_pool")


def list_pool(turn: Turn, given: ListPool) -> Answer:
    return show(turn, _pool(turn, given.pool), given.limit, given.offset, "read_from_pool")


def share_finding(turn: Turn, given: Keep) -> Answer:
    return keep(turn, _team(turn), given.key, given.content, "for the team")


def read_shared(turn: Turn, given: ByKey) -> Answer:
    return read(turn, _team(turn), given.key, "in the team's room", "list_shared")


def search_shared(turn: Turn, given: Look) -> Answer:
    return look(turn, _team(turn), given.query, given.limit, "read_shared")


def list_shared(turn: Turn, given: Show) -> Answer:
    return show(turn, _team(turn), given.limit, given.offset, "read_shared")


def pool_tools(names: tuple[str, ...]) -> tuple[Tool, ...]:
    """The tools of an agent with these pools."""
    only = {"pool": names}
    return (
        Tool("share_to", "Write to a pool, which other users read: never anything private.", ShareTo,
             share_to, only),
        Tool("read_from_pool", "Read an entry of a pool.", ReadPool, read_from_pool, only),
        Tool("search_pool", "Search a pool by meaning.", SearchPool, search_pool, only),
        Tool("list_pool", "List the entries of a pool.", ListPool, list_pool, only),
    )  # fmt: skip


TEAM_TOOLS = (
    Tool("share_finding", "Write to the team's room, which other users read: never anything private.", Keep,
         share_finding),
    Tool("read_shared", "Read an entry of the team's room.", ByKey, read_shared),
    Tool("search_shared", "Search the team's room by meaning.", Look, search_shared),
    Tool("list_shared", "List the team's room.", Show, list_shared),
)  # fmt: skip
