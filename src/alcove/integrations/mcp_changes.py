"""Telling clients of the Model Context Protocol that an agent's tools, prompt and memories have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from alcove.core.errors import AlcoveError, NotFound

if TYPE_CHECKING:
    from mcp import types

    from alcove.integrations.mcp import Connected


async def notices(
    at: Connected, wanted: types.SubscriptionFilter | None = None, request_id: str | int | None = None
) -> AsyncGenerator[list[types.ServerNotification], None]:
    """Notifications, each time that specs were looked at; none where nothing has changed for this client.

    A pool that comes or goes changes what may be seen, and an agent takes its prompt along, so that all lists
    have changed where tools have. `wanted`, `request_id`: of a client that asked for some of them, which is
    told first that it will get them; without, it gets all.
    """
    from mcp import types  # noqa: PLC0415  loaded by who serves
    from mcp.shared import subscriptions as sdk  # noqa: PLC0415

    meta: dict[str, Any] = {} if request_id is None else {sdk.SUBSCRIPTION_ID_META_KEY: request_id}
    every = (sdk.ToolsListChanged(), sdk.ResourcesListChanged(), sdk.PromptsListChanged())
    specs, seen = at.specs(), await _tools(at, None)
    told: list[types.ServerNotification] = []
    if wanted is not None:
        wanted = wanted.model_copy(update={"resource_subscriptions": None})
        heard = types.SubscriptionsAcknowledgedNotificationParams(notifications=wanted, _meta=meta)
        told = [types.SubscriptionsAcknowledgedNotification(params=heard)]
    while True:
        yield told
        await asyncio.sleep(at.look_seconds)
        before, told = seen, []
        if (now := at.specs()) is not specs:
            specs, seen = now, await _tools(at, before)
        if seen != before:
            matching = (e for e in every if wanted is None or sdk.event_matches(wanted, frozenset(), e))
            told = [sdk.event_to_notification(each, meta) for each in matching]


async def _tools(at: Connected, before: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The agent's tools, None where there is no such agent; what was `before` where nobody can tell now."""
    try:
        return await at.memory.tools(at.agent, "mcp", at.team)
    except AlcoveError as error:
        return None if isinstance(error, NotFound) else before
