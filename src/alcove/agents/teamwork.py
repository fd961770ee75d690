"""Teams at work on tasks: their workers in order or all at once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Literal

from msgspec import Struct

from alcove.agents.chats import Chats, ToolUse, TurnRequest
from alcove.agents.rooms import RUNS, Rooms
from alcove.agents.specs.records import Agent
from alcove.agents.tools.answers import escape_tags, format_name, format_value
from alcove.agents.transcripts import Text, user_message
from alcove.core.decoding import convert
from alcove.core.errors import AlcoveError
from alcove.core.principal import Principal
from alcove.core.threads import run_together
from alcove.llm.model import TokenUse

SHARING = frozenset(("share_finding", "share_to"))
"""Tools whose entries others can read, besides those of scratch rooms."""
SHARED_ROOMS = frozenset(("global", *RUNS))
"""Scratch rooms whose entries others can read."""
Mode = Literal["order", "parallel"]


class Contribution(Struct, frozen=True, kw_only=True):
    """The part of one worker in a task."""

    agent: str
    text: str | None = None
    """Its answer; None if it failed."""
    error: str | None = None
    """Why it failed; None if it did not."""
    shared: list[ToolUse] = []
    """The calls that wrote something for others."""
    tools: list[ToolUse] = []
    """All tool calls."""
    usage: TokenUse = TokenUse()


class TeamReply(Struct, frozen=True, kw_only=True):
    """The result of a team's task."""

    team: str
    session_id: str
    mode: Mode
    text: str | None
    """The answer of the last worker that did not fail."""
    contributions: list[Contribution]
    usage: TokenUse


class Teamwork:
    """Has teams of agents work on tasks."""

    def __init__(self, chats: Chats) -> None:
        self._chats = chats

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

        `team`: its name. `task`: the work. `session_id`: the conversation of each worker, by default a new
        one. `mode`: `order`, in which a worker sees the answers before it, or `parallel`; by default, the
        mode of the team's spec.
        """
        user_message(task, "task")
        spec, _ = self._chats.agents.team(principal, team), self._chats.model  # refused before anybody works
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
            for event in self._chats.run(principal, request):
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
        limit = self._chats.settings.context_tokens // 2 // len(answers)
        lines = [
            f"- {escape_tags(f'{format_name(agent)}: {_quoted(text, limit)}')}" for agent, text in answers
        ]
        head = '<recalled from="those who worked on it before you">'
        return "\n".join([task, "", head, *lines, "</recalled>"])


def _quoted(text: str, tokens: int) -> str:
    """An answer in quotes, cut to about this number of tokens."""
    return format_value(text, len(text.encode()[: 3 * tokens].decode(errors="ignore")))


def _is_shared(use: ToolUse) -> bool:
    """True if others can read what a tool wrote."""
    if use.outcome != "ok":  # its arguments may be anything
        return False
    room = use.arguments.get("namespace", "global")
    return use.tool in SHARING or (use.tool == "shared_memory_write" and room in SHARED_ROOMS)
