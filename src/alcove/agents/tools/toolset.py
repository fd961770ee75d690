"""Which tools an agent has: just those of the rooms its spec enables."""

from __future__ import annotations

import functools

from alcove.agents.rooms import pools
from alcove.agents.specs import Agent
from alcove.agents.tools import facts, long_term, private
from alcove.agents.tools.base import Tool
from alcove.agents.tools.scratch import scratch_tools
from alcove.agents.tools.shared import TEAM_TOOLS, pool_tools


def toolset(agent: Agent, *, team: bool) -> dict[str, Tool]:
    """The tools by name; those of a team only inside one."""
    return _toolset(agent, team)


@functools.lru_cache(1024)
def _toolset(agent: Agent, team: bool) -> dict[str, Tool]:
    memory = agent.memory
    tools: list[Tool] = []
    if memory.private.enabled:
        tools += private.TOOLS
    if memory.pools:
        tools += pool_tools(tuple(pools(agent)))
    if team:
        tools += TEAM_TOOLS
    if memory.scratch:
        tools += scratch_tools(memory.scratch)
    if memory.facts.enabled:
        tools += facts.TOOLS
    if memory.long_term.enabled:
        tools += long_term.TOOLS
    return {tool.name: tool for tool in tools}
