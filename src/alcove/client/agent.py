"""An agent's memory for one user: store messages, get the context of the next prompt, call memory tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from alcove.agents.context import DEFAULT_BUDGET, Context
from alcove.agents.sessions import AddedMessages
from alcove.agents.tools import Answer
from alcove.agents.tools.tool import Format
from alcove.core.errors import InvalidRequest
from alcove.core.records import Message

if TYPE_CHECKING:
    from alcove.client.asynchronous import AsyncAgentsHandle
    from alcove.client.store import AgentsHandle

Messages = Sequence[Message | Mapping[str, Any]]
"""Messages as chat APIs have them: `{"role": "user", "content": "…"}`."""
ToolArguments = Mapping[str, Any] | str | None
"""The arguments of a tool, as an object or as the JSON that a model generated."""
DEFAULT_SESSION = "default"
"""The session if a caller names none."""


@dataclass(frozen=True)
class AgentHandle:
    """An agent that works for one user in one conversation."""

    agents: AgentsHandle
    name: str
    session_id: str = DEFAULT_SESSION

    def in_session(self, session_id: str) -> AgentHandle:
        """The same agent in another conversation."""
        return replace(self, session_id=session_id)

    def remember(self, messages: Messages) -> AddedMessages:
        """Stores messages of the conversation, without calling a model."""
        return self.agents.add_turns(self.name, self.session_id, messages)

    def context(self, message: str, *, budget_tokens: int = DEFAULT_BUDGET) -> Context:
        """Returns what belongs in the prompt for a message: `messages` for a chat API, and the receipt."""
        return self.agents.context(self.name, self.session_id, message, budget_tokens=budget_tokens)

    def tools(self, format: Format = "openai") -> list[dict[str, Any]]:
        """The agent's memory tools, in the format of a provider."""
        return self.agents.tools(self.name, format)

    def call(self, tool: str, arguments: ToolArguments = None, **more_arguments: Any) -> Answer:
        """Runs one of the tools; `arguments` are an object or JSON, and may also be passed by keyword."""
        tool_arguments = parse_arguments(arguments, more_arguments)
        return self.agents.call_with(self.name, tool, tool_arguments, session_id=self.session_id)


@dataclass(frozen=True)
class AsyncAgentHandle:
    """An `AgentHandle` whose methods are awaited."""

    agents: AsyncAgentsHandle
    name: str
    session_id: str = DEFAULT_SESSION

    def in_session(self, session_id: str) -> AsyncAgentHandle:
        """The same agent in another conversation."""
        return replace(self, session_id=session_id)

    async def remember(self, messages: Messages) -> AddedMessages:
        """Stores messages of the conversation, without calling a model."""
        return await self.agents.add_turns(self.name, self.session_id, messages)

    async def context(self, message: str, *, budget_tokens: int = DEFAULT_BUDGET) -> Context:
        """Returns what belongs in the prompt for a message: `messages` for a chat API, and the receipt."""
        return await self.agents.context(self.name, self.session_id, message, budget_tokens=budget_tokens)

    async def tools(self, format: Format = "openai") -> list[dict[str, Any]]:
        """The agent's memory tools, in the format of a provider."""
        return await self.agents.tools(self.name, format)

    async def call(self, tool: str, arguments: ToolArguments = None, **more_arguments: Any) -> Answer:
        """Runs one of the tools; `arguments` are an object or JSON, and may also be passed by keyword."""
        tool_arguments = parse_arguments(arguments, more_arguments)
        return await self.agents.call_with(self.name, tool, tool_arguments, session_id=self.session_id)


def parse_arguments(arguments: ToolArguments, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a tool as one mapping, with those that were passed by keyword."""
    if not isinstance(arguments, Mapping):
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (TypeError, ValueError, RecursionError):
            raise InvalidRequest("arguments", "an object, or JSON of one") from None
    return {**arguments, **more}
