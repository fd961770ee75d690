"""A team at work on a task: its workers in order or all at once, each in its own rooms and the team's."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Literal

from msgspec import Struct

from alcove.agents.chat_messages import Text, user_message
from alcove.agents.context_tiers import escape_tags
from alcove.agents.replies import ToolUse, TurnRequest
from alcove.agents.rooms import RUNS, Rooms
from alcove.agents.runner import Runner
from alcove.agents.specs.records import Agent
from alcove.agents.tools.base import name, quoted
from alcove.core.decoding import convert
from alcove.core.errors import AlcoveError
from alcove.core.principal import Principal
from alcove.core.waiting import blocks
from alcove.llm.model import TokenUse

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


class Chats(Runner):
    """Runs agents, and teams of them."""

    @blocks
    async def run_team(
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
        spec, together = self._agents.team(principal, team), self.waiting.together
        session, how = f"run-{secrets.token_hex(8)}" if session_id is None else session_id, mode or spec.mode
        Rooms(Agent(name=spec.name), principal.user_id, session).session()  # refused before anybody works

        def work(agent: str, before: Sequence[Contribution] = ()) -> Coroutine[Any, Any, Contribution]:
            message = user_message(self._passed_on(task, before), "task")
            asked = TurnRequest(agent=agent, told=[message], session_id=session, team=spec.name)
            return self._contribution(principal, asked)

        if how == "parallel":
            done = await together([work(agent) for agent in spec.workers])
        else:
            done = []
            for agent in spec.workers:
                done.append(await work(agent, done))
        texts = [each.text for each in done if each.text is not None]
        return TeamReply(
            team=spec.name,
            session_id=session,
            mode=how,
            text=texts[-1] if texts else None,
            contributions=done,
            usage=sum((each.usage for each in done), TokenUse()),
        )

    async def _contribution(self, principal: Principal, asked: TurnRequest) -> Contribution:
        tools, reply, error, use = list[ToolUse](), None, None, TokenUse()
        try:
            async with aclosing(self.turn(principal, asked)) as events:
                async for event in events:
                    tools += [event.tool] if event.tool else []
                    reply = event.reply
        except AlcoveError as failure:
            error, use = failure.public_message, convert(failure.details.get("usage", {}), TokenUse)
        return Contribution(
            agent=asked.agent,
            text=reply.text if reply else None,
            error=error,
            shared=[*filter(_shares, tools)],
            tools=tools,
            usage=reply.usage if reply else use,
        )

    def _passed_on(self, task: str, before: Sequence[Contribution]) -> str:
        """A task with the answers to it so far, quoted as data; they take at most half of the context."""
        answers = [(each.agent, each.text) for each in before if each.text]
        if not answers:
            return task
        most = self._settings.context_tokens // 2 // len(answers)
        lines = [f"- {escape_tags(f'{name(agent)}: {_quoted(text, most)}')}" for agent, text in answers]
        head = '<recalled from="those who worked on it before you">'
        return "\n".join([task, "", head, *lines, "</recalled>"])


def _quoted(text: str, tokens: int) -> str:
    """An answer in quotes, or as much of its beginning as about so many tokens hold."""
    return quoted(text, len(text.encode()[: 3 * tokens].decode(errors="ignore")))


def _shares(use: ToolUse) -> bool:
    """Whether others can read what a tool wrote."""
    if use.outcome != "ok":  # its arguments may be anything
        return False
    room = use.arguments.get("namespace", "global")
    return use.tool in SHARING or (use.tool == "shared_memory_write" and room in SHARED_ROOMS)
