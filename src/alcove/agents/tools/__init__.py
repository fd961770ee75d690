"""The tools of an agent: those of the rooms that its spec enables."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from alcove.agents.rooms import pools
from alcove.agents.specs.records import Agent
from alcove.agents.tools.answers import Answer
from alcove.agents.tools.facts import fact_tools
from alcove.agents.tools.keyed_rooms import PRIVATE_TOOLS, TEAM_TOOLS, pool_tools
from alcove.agents.tools.long_term import long_term_tools
from alcove.agents.tools.scratch import scratch_tools
from alcove.agents.tools.tool import Tool, render_tool
from alcove.agents.tools.turn import Turn

__all__ = ["READ_ONLY_TOOLS", "Answer", "Tool", "Turn", "tool_definitions", "toolset"]


@functools.lru_cache(1024)
def toolset(agent: Agent, in_team: bool) -> dict[str, Tool]:
    """The tools of an agent by name, with those of a team's room if it works in one."""
    memory = agent.memory
    tools: list[Tool] = [
        *(PRIVATE_TOOLS if memory.private.enabled else ()),
        *(pool_tools(tuple(pools(agent))) if memory.pools else ()),
        *(TEAM_TOOLS if in_team else ()),
        *(scratch_tools(memory.scratch) if memory.scratch else ()),
        *(fact_tools(memory.facts.max_facts) if memory.facts.enabled else ()),
        *(long_term_tools(memory.long_term.scope) if memory.long_term.enabled else ()),
    ]
    if sum(bool(tool.when_to_use) for tool in tools) > 1:
        tools = [replace(t, description=f"{t.description} {t.when_to_use}".rstrip()) for t in tools]
    return {tool.name: tool for tool in tools}


@functools.lru_cache(1024)
def tool_definitions(agent: Agent, in_team: bool) -> tuple[dict[str, Any], ...]:
    """The definitions of an agent's tools in the form of OpenAI's chat API."""
    return tuple(render_tool(tool, "openai") for tool in toolset(agent, in_team).values())


_ALL_TOOLS = (
    *PRIVATE_TOOLS, *pool_tools(()), *TEAM_TOOLS, *scratch_tools(()), *fact_tools(0),
    *long_term_tools("agent"),
)  # fmt: skip
READ_ONLY_TOOLS = frozenset(tool.name for tool in _ALL_TOOLS if tool.is_read_only)
"""The names of the tools that only read: their calls need not wait for those that write."""
