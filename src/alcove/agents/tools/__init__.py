"""The tools of an agent: one definition each, for every room its spec enables."""

from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.toolset import toolset

__all__ = ["Answer", "Tool", "Turn", "toolset"]
