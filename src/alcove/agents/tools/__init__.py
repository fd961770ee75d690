"""The tools of an agent: just those of the rooms its spec enables, one definition each."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from alcove.agents.rooms import pools
from alcove.agents.specs.records import Agent
from alcove.agents.tools.base import Answer, Tool, Turn, rendered
from alcove.agents.tools.private_pool_team import PRIVATE_TOOLS, TEAM_TOOLS, pool_tools
from alcove.agents.tools.scratch import scratch_tools
from alcove.agents.tools.user_memory import fact_tools, long_term_tools

__all__ = ["READING", "Answer", "Tool", "Turn", "offered", "toolset"]


@functools.lru_cache(1024)
def toolset(agent: Agent, team: bool) -> dict[str, Tool]:
    """The tools by name; those of a team only inside one."""
    memory = agent.memory
    tools: list[Tool] = [
        *(PRIVATE_TOOLS if memory.private.enabled else ()),
        *(pool_tools(tuple(pools(agent))) if memory.pools else ()),
        *(TEAM_TOOLS if team else ()),
        *(scratch_tools(memory.scratch) if memory.scratch else ()),
        *(fact_tools(memory.facts.max_facts) if memory.facts.enabled else ()),
        *(long_term_tools(memory.long_term.scope) if memory.long_term.enabled else ()),
    ]
    if sum(bool(tool.choose) for tool in tools) > 1:
        tools = [replace(tool, description=f"{tool.description} {tool.choose}".rstrip()) for tool in tools]
    return {tool.name: tool for tool in tools}


@functools.lru_cache(1024)
def offered(agent: Agent, team: bool) -> tuple[dict[str, Any], ...]:
    """The same as a model is told of them, in OpenAI's words."""
    return tuple(rendered(tool, "openai") for tool in toolset(agent, team).values())


_ALL = (
    *PRIVATE_TOOLS, *pool_tools(()), *TEAM_TOOLS, *scratch_tools(()), *fact_tools(0),
    *long_term_tools("agent"),
)  # fmt: skip
READING = frozenset(tool.name for tool in _ALL if tool.reads)
"""The names of the tools that only read: their calls need not wait for those that write."""
