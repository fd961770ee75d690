"""Pydantic AI: an agent's memory tools as a toolset, for `Agent(toolsets=[…])`."""

from __future__ import annotations

from typing import Any

from alcove.client.agent import AgentHandle, AsyncAgentHandle
from alcove.core.errors import InvalidRequest, requires_extra
from alcove.integrations.adapter import CORRECTABLE_ERRORS, call_handle, check_handle

with requires_extra("alcove.integrations.pydantic_ai", extra="pydantic-ai"):
    from pydantic_ai import ModelRetry, RunContext, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_ai.toolsets.external import TOOL_SCHEMA_VALIDATOR


class AlcoveToolset(AbstractToolset[Any]):
    """The memory tools of one agent for one user; the store decides what each call may read and write."""

    def __init__(
        self, handle: AgentHandle | AsyncAgentHandle, *, id: str | None = None, max_retries: int = 3
    ) -> None:
        """`handle`: the agent, the user and the conversation: `store.agent("helper", session_id="monday")`.

        `id`: distinguishes this toolset from others of its agent; durable execution needs it.
        `max_retries`: how many calls of a tool with wrong arguments a model may make in a row. After that,
        Pydantic AI lets the run fail.
        """
        check_handle(handle)
        self._handle, self._id, self._max_retries = handle, id, max_retries

    @property
    def id(self) -> str | None:
        """Distinguishes this toolset from others of its agent."""
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The agent's memory tools, by name."""
        return {
            tool["name"]: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=tool["name"],
                    description=tool["description"],
                    parameters_json_schema=tool["inputSchema"],
                    strict=False,  # some arguments are optional
                ),
                max_retries=self._max_retries,
                args_validator=TOOL_SCHEMA_VALIDATOR,  # accepts anything: Alcove checks the arguments
            )
            for tool in await call_handle(self._handle.tools, "mcp")
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """Calls a tool and returns its text for the model; asks for a retry if the arguments are wrong."""
        if not isinstance(tool_args, dict):
            raise ModelRetry("arguments: expected a JSON object")
        try:
            return (await call_handle(self._handle.call, name, tool_args)).text
        except InvalidRequest as error:
            raise ModelRetry(error.public_message) from error
        except CORRECTABLE_ERRORS as error:  # "not found" is an answer, too
            return error.tool_text
