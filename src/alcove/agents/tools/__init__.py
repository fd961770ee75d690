"""The tools of an agent: just those of the rooms its spec enables, one definition each."""

from __future__ import annotations

import functools
from dataclasses import replace

import msgspec

from alcove.agents.rooms import pools
from alcove.agents.specs import Agent, Facts, LongTerm, Memory, Private
from alcove.agents.tools.answers import Answer
from alcove.agents.tools.base import Tool, Turn
from alcove.agents.tools.keyed import PRIVATE_TOOLS, TEAM_TOOLS, pool_tools
from alcove.agents.tools.scratch import scratch_tools
from alcove.agents.tools.user_memory import LONG_TERM_TOOLS, fact_tools

__all__ = ["READING", "Answer", "Tool", "Turn", "toolset"]


def toolset(agent: Agent, *, team: bool) -> dict[str, Tool]:
    """The tools by name; those of a team only inside one."""
    return _toolset(agent, team)


@functools.lru_cache(1024)
def _toolset(agent: Agent, team: bool) -> dict[str, Tool]:
    memory = agent.memory
    tools: list[Tool] = []
    if memory.private.enabled:
        tools += PRIVATE_TOOLS
    if memory.pools:
        tools += pool_tools(tuple(pools(agent)))
    if team:
        tools += TEAM_TOOLS
    if memory.scratch:
        tools += scratch_tools(memory.scratch)
    if memory.facts.enabled:
        tools += fact_tools(memory.facts.max_facts)
    if memory.long_term.enabled:
        tools += LONG_TERM_TOOLS
    if sum(bool(tool.choose) for tool in tools) > 1:
        tools = [replace(tool, description=f"{tool.description} {tool.choose}".rstrip()) for tool in tools]
    return {tool.name: tool for tool in tools}


# Looked into here, once: two threads that are the first to convert to a record crash msgspec 0.22.
_ALL = Memory(private=Private(), pools=("p",), scratch=("global",), facts=Facts(), long_term=LongTerm())
_every = _toolset(Agent(name="a", memory=_ALL), True).values()
for _tool in _every:
    msgspec.json.Decoder(_tool.arguments)
READING = frozenset(tool.name for tool in _every if tool.reads)
"""The names of the tools that only read: their calls need not wait for those that write."""
