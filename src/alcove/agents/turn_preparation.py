"""What a turn begins with: its new messages, its context, its budget; requests too large are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alcove.agents.chat_messages import (
    StoredMessage,
    group_tool_calls,
    is_complete,
    message_tokens,
    new_messages,
)
from alcove.agents.context_tiers import Context
from alcove.agents.replies import TurnRequest
from alcove.agents.specs.records import Agent
from alcove.agents.tools import Turn, tool_definitions
from alcove.agents.turn_budget import MIN_ANSWER_TOKENS, TurnBudget, json_tokens
from alcove.core.errors import InvalidRequest
from alcove.core.principal import Principal
from alcove.core.records import KeyBinding, Message
from alcove.core.settings import LLMSettings

if TYPE_CHECKING:
    from alcove.agents.service import Agents


@dataclass(frozen=True)
class PreparedTurn:
    """All that a turn needs before its model is asked."""

    turn: Turn
    """What tools work with."""
    key: KeyBinding
    """The user's data key: once a wipe has destroyed it, nothing of the turn is stored."""
    new: Sequence[Message]
    """The messages that the session does not have yet."""
    context: Context
    budget: TurnBudget


class TurnPreparer:
    """Prepares turns within the operator's limits."""

    def __init__(self, agents: Agents, settings: LLMSettings) -> None:
        self._agents, self._settings = agents, settings

    def prepare(self, principal: Principal, spec: Agent, request: TurnRequest) -> PreparedTurn:
        """Assembles the context of a turn; raises InvalidRequest if it is too large or says nothing new."""
        agents, settings = self._agents, self._settings
        turn = agents.turn(principal, spec, request.session_id, request.team, request.instances)
        _refuse_ambiguous_tools(turn, request.tools)
        key, sessions = agents.memories.writer.lasting_key_binding(principal.user_id), agents.sessions
        messages, earlier = [*request.messages], None
        if request.session_id is None:
            start = max((n for n, each in enumerate(messages) if each.role == "user"), default=0)
        elif request.is_resent:
            start = len(messages) - len(new_messages(messages, sessions.last_message(turn)))
        else:
            start = 0
        new = _without_torn_calls(messages[start:])
        if not new or new[-1].role == "assistant":
            raise InvalidRequest("messages", "something new of the user, or of a tool, after what was said")
        if request.session_id is None or not turn.rooms.agent.memory.conversation.enabled:
            earlier = messages[:start]  # nothing is stored, so the caller's messages are all there is
            self._refuse_long(earlier)
        if (request.budget or 0) > settings.context_tokens:
            expected = f"at most {settings.context_tokens}, which --context-tokens allows"
            raise InvalidRequest("budget_tokens", expected)
        sizes = self._option_tokens(request)
        room = (request.budget or settings.context_tokens) - sum(sizes.values())
        context = sessions.contexts.build(turn, new, room, history=earlier, instructions=request.instructions)
        tools = json_tokens(own_tools(turn), sessions.count) + sizes.pop("tools")
        budget = TurnBudget(settings, context.receipt.total_tokens + sum(sizes.values()), tools)
        self._refuse_too_large(request, budget)
        return PreparedTurn(turn, key, new, context, budget)

    def _option_tokens(self, request: TurnRequest) -> dict[str, int]:
        """Returns the tokens of a caller's tools and options by name; refuses one that fits in no context."""
        limit, sizes = self._settings.context_tokens, dict[str, int]()
        for name, option in {"tools": request.tools, **request.options}.items():
            sizes[name] = tokens = json_tokens(option, self._agents.sessions.count)
            if tokens > limit:
                raise InvalidRequest(name, f"at most {limit} tokens (--context-tokens), not {tokens}")
        return sizes

    def _refuse_long(self, messages: Sequence[Message]) -> None:
        """Refuses a conversation that exceeds a whole turn, as soon as so much of it is counted."""
        tokens = 0
        for message in messages:
            tokens += message_tokens(message, self._agents.sessions.count)
            if tokens > self._settings.turn_tokens:
                expected = f"at most {self._settings.turn_tokens} tokens in one turn (--turn-tokens)"
                raise InvalidRequest("messages", expected)

    def _refuse_too_large(self, request: TurnRequest, budget: TurnBudget) -> None:
        """Refuses a request that exceeds a whole turn, before anything of it is sent."""
        limit = f"in one turn (--turn-tokens {self._settings.turn_tokens})"
        if budget.answer_room(tools=False) < MIN_ANSWER_TOKENS:
            field = "messages" if request.is_resent else "message"
            raise InvalidRequest(field, f"fewer tokens than {budget.messages} {limit}")
        if request.tools and budget.answer_room(tools=True) < MIN_ANSWER_TOKENS:
            raise InvalidRequest("tools", f"fewer tokens than {budget.tools} {limit}")


def own_tools(turn: Turn) -> tuple[dict[str, Any], ...]:
    """The agent's tools, as a model is told of them."""
    return tool_definitions(turn.rooms.agent, turn.rooms.team is not None)


def _refuse_ambiguous_tools(turn: Turn, tools: Sequence[Mapping[str, Any]]) -> None:
    for index, each in enumerate(tools):
        if each["function"]["name"] in turn.tools:
            raise InvalidRequest(f"tools[{index}].function.name", "another name: the agent has such a tool")


def _without_torn_calls(messages: Sequence[Message]) -> list[Message]:
    """Leaves out calls without a result, and results without a call: providers refuse both."""
    stored = [StoredMessage(n, "", message) for n, message in enumerate(messages)]
    return [each.message for group in group_tool_calls(stored) if is_complete(group) for each in group]
