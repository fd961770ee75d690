"""Alcove for Pydantic AI: an agent's memory tools as a toolset, for `Agent(toolsets=[…])`."""

from __future__ import annotations

from typing import Any

from alcove.client.agent import AgentHandle, AsyncAgentHandle
from alcove.core.errors import InvalidRequest, requires_extra
from alcove.integrations.calling import MENDABLE, call_handle, checked_handle

with requires_extra("alcove.integrations.pydantic_ai", extra="pydantic-ai"):
    from pydantic_ai import ModelRetry, RunContext, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_ai.toolsets.external import TOOL_SCHEMA_VALIDATOR as ANYTHING


class AlcoveToolset(AbstractToolset[Any]):
    """The memory tools of one agent for one user; what each call may reach is decided by the store."""

    def __init__(
        self, handle: AgentHandle | AsyncAgentHandle, *, id: str | None = None, max_retries: int = 3
    ) -> None:
        """`handle`: the agent, the user and the conversation: `store.agent("helper", session_id="monday")`.

        `id`: what tells this toolset from others of its agent, which durable execution needs.
        `max_retries`: how often in a row a model may call one tool in vain: with wrong arguments, or for what
        is not there. After that the run fails, as Pydantic AI has it.
        """
        checked_handle(handle)
        self._handle, self._id, self._max_retries = handle, id, max_retries

    @property
    def id(self) -> str | None:
        """What tells this toolset from others of its agent."""
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools of the rooms that the agent's spec has, by name."""
        return {each["name"]: self._tool(each) for each in await call_handle(self._handle.tools, "mcp")}

    def _tool(self, about: dict[str, Any]) -> ToolsetTool[Any]:
        return ToolsetTool(
            toolset=self,
            tool_def=ToolDefinition(
                name=about["name"],
                description=about["description"],
                parameters_json_schema=about["inputSchema"],
                strict=False,  # arguments may be left out
            ),
            max_retries=self._max_retries,
            args_validator=ANYTHING,  # a call says itself what is wrong with its arguments
        )

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """What a tool answers, in words for the model, which is asked again where it can do better."""
        if not isinstance(tool_args, dict):
            raise ModelRetry("arguments: expected a JSON object")
        try:
            return (await call_handle(self._handle.call, name, tool_args)).text
        except InvalidRequest as error:
            raise ModelRetry(error.public_message) from error
        except MENDABLE as error:  # that nothing is there is an answer, too
            return error.tool_text
