"""Talking with agents, and teams at work on tasks: their workers in order or all at once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from alcove.agents.chat_messages import Text, user_message
from alcove.agents.context_tiers import Budget, escape_tags
from alcove.agents.replies import ChatEvent, Reply, ToolUse, TurnRequest
from alcove.agents.rooms import RUNS, Rooms
from alcove.agents.runner import Runner
from alcove.agents.specs.records import Agent
from alcove.agents.tools.answers import format_name, format_value
from alcove.core.decoding import convert
from alcove.core.errors import AlcoveError
from alcove.core.principal import Principal
from alcove.core.settings import LLMSettings
from alcove.core.threads import run_together
from alcove.llm.records import TokenUse

if TYPE_CHECKING:
    from alcove.agents.service import Agents

SHARING = frozenset(("share_finding", "share_to"))
"""Tools by which others see what a worker writes; those of scratch rooms do in these:"""
SHARED_ROOMS = frozenset(("global", *RUNS))
Mode = Literal["order", "parallel"]


class Contribution(Struct, frozen=True, kw_only=True):
    """What one worker did for a task."""

    agent: str
    text: str | None = None
    """Its answer; None where it failed."""
    error: str | None = None
    """Why it failed; None where it did not."""
    shared: list[ToolUse] = []
    """What it shared with others, by which tool."""
    tools: list[ToolUse] = []
    """All the tools that it called."""
    usage: TokenUse = TokenUse()


class TeamReply(Struct, frozen=True, kw_only=True):
    """What a team did for a task."""

    team: str
    session_id: str
    mode: Mode
    text: str | None
    """The answer of the last worker that did not fail."""
    contributions: list[Contribution]
    usage: TokenUse


class Chats:
    """Talks with agents, and has teams of them work on tasks."""

    def __init__(self, agents: Agents, runner: Runner, settings: LLMSettings) -> None:
        self._agents, self.runner, self._settings = agents, runner, settings

    def chat(
        self,
        principal: Principal,
        agent: str,
        session_id: str,
        message: Text,
        *,
        instances: Mapping[str, str] | None = None,
        budget_tokens: Budget | None = None,
        explain: bool = False,
    ) -> Reply:
        """Says something to an agent, and returns its answer; the turn is stored in the session.

        `session_id`: the conversation. `message`: what the user says. `instances`: ids of runs by their
        kind. `budget_tokens`: for what the model is sent. `explain`: whether to return that, too.
        """
        request = TurnRequest.of_message(
            agent, session_id, message, instances, budget_tokens, explain=explain
        )
        return self.runner.reply(principal, request)

    def chat_stream(
        self,
        principal: Principal,
        agent: str,
        session_id: str,
        message: Text,
        *,
        instances: Mapping[str, str] | None = None,
        budget_tokens: Budget | None = None,
        explain: bool = False,
    ) -> Iterator[ChatEvent]:
        """The same, with the answer piece by piece as it comes; the last event has the whole reply."""
        request = TurnRequest.of_message(
            agent, session_id, message, instances, budget_tokens, stream=True, explain=explain
        )
        yield from self.runner.run(principal, request)

    def run_team(
        self,
        principal: Principal,
        team: str,
        task: Text,
        *,
        session_id: str | None = None,
        mode: Mode | None = None,
    ) -> TeamReply:
        """Passes a task to the workers of a team; one that fails is reported, and the others go on.

        `team`: its name. `task`: what is to be done. `session_id`: the conversation that each worker has it
        in; a new one without. `mode`: `order`, in which a worker sees the answers before it, or `parallel`;
        without, what the team's spec says.
        """
        user_message(task, "task")
        spec, _ = self._agents.team(principal, team), self.runner.model  # refused before anybody works
        session, mode = f"run-{secrets.token_hex(8)}" if session_id is None else session_id, mode or spec.mode
        Rooms(Agent(name=spec.name), principal.user_id, session).session()

        def work(agent: str, earlier: Sequence[Contribution] = ()) -> Contribution:
            message = user_message(self._with_answers(task, earlier), "task")
            request = TurnRequest(agent=agent, messages=[message], session_id=session, team=spec.name)
            return self._contribution(principal, request)

        contributions: list[Contribution] = []
        if mode == "parallel":
            contributions = run_together([partial(work, agent) for agent in spec.workers])
        else:
            for agent in spec.workers:
                contributions.append(work(agent, contributions))
        texts = [each.text for each in contributions if each.text is not None]
        return TeamReply(
            team=spec.name,
            session_id=session,
            mode=mode,
            text=texts[-1] if texts else None,
            contributions=contributions,
            usage=sum((each.usage for each in contributions), TokenUse()),
        )

    def _contribution(self, principal: Principal, request: TurnRequest) -> Contribution:
        tools, reply, error, use = list[ToolUse](), None, None, TokenUse()
        try:
            for event in self.runner.run(principal, request):
                tools += [event.tool] if event.tool else []
                reply = event.reply
        except AlcoveError as failure:
            error, use = failure.public_message, convert(failure.details.get("usage", {}), TokenUse)
        return Contribution(
            agent=request.agent,
            text=reply.text if reply else None,
            error=error,
            shared=[*filter(_is_shared, tools)],
            tools=tools,
            usage=reply.usage if reply else use,
        )

    def _with_answers(self, task: str, earlier: Sequence[Contribution]) -> str:
        """A task with the answers to it so far, quoted as data; they take at most half of the context."""
        answers = [(each.agent, each.text) for each in earlier if each.text]
        if not answers:
            return task
        limit = self._settings.context_tokens // 2 // len(answers)
        lines = [
            f"- {escape_tags(f'{format_name(agent)}: {_quoted(text, limit)}')}" for agent, text in answers
        ]
        head = '<recalled from="those who worked on it before you">'
        return "\n".join([task, "", head, *lines, "</recalled>"])


def _quoted(text: str, tokens: int) -> str:
    """An answer in quotes, or as much of its beginning as about so many tokens hold."""
    return format_value(text, len(text.encode()[: 3 * tokens].decode(errors="ignore")))


def _is_shared(use: ToolUse) -> bool:
    """True if others can read what a tool wrote."""
    if use.outcome != "ok":  # its arguments may be anything
        return False
    room = use.arguments.get("namespace", "global")
    return use.tool in SHARING or (use.tool == "shared_memory_write" and room in SHARED_ROOMS)
