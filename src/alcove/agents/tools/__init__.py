"""The tools of an agent: those of the rooms that its spec enables.

To add a tool, write a function whose parameters after the turn are its arguments, name it in the list of its
room (`fact_tools`, `long_term_tools`, …), and describe it in `tools.toml`.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from alcove.agents.rooms import Turn
from alcove.agents.specs.records import Agent
from alcove.agents.specs.templates import pools
from alcove.agents.tools.answers import Answer
from alcove.agents.tools.keyed_rooms import PRIVATE_TOOLS, TEAM_TOOLS, pool_tools, scratch_tools
from alcove.agents.tools.long_term import fact_tools, long_term_tools
from alcove.agents.tools.tool import READ_ONLY_TOOLS, Tool, render_tool

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
