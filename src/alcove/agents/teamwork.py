"""A team at work on a task: its workers in order or all at once, each in its own rooms and the team's."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, Literal

from msgspec import Struct

from alcove.agents.context import as_data
from alcove.agents.prompts import Text, said
from alcove.agents.replies import Reply, ToolUse, TurnRequest
from alcove.agents.runner import Runner
from alcove.agents.tools.base import READ, name, quoted
from alcove.core.errors import AlcoveError
from alcove.core.principal import Principal
from alcove.core.waiting import blocks
from alcove.llm.model import TokenUse

SHARING = frozenset(("share_finding", "share_to", "shared_memory_write"))
"""Tools by which others see what a worker writes."""
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
        said(task, "task")
        spec = self._agents.team(principal, team)
        session, how = session_id or f"run-{secrets.token_hex(8)}", mode or spec.mode

        def work(agent: str, before: Sequence[Contribution] = ()) -> Coroutine[Any, Any, Contribution]:
            message = said(_passed_on(task, before), "task")
            asked = TurnRequest(agent=agent, told=[message], session_id=session, team=spec.name)
            return self._contribution(principal, asked)

        if how == "parallel":
            done = await self.waiting.together([work(agent) for agent in spec.workers])
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
        try:
            reply: Reply = await self.reply(principal, asked)
        except AlcoveError as error:
            return Contribution(agent=asked.agent, error=error.message)
        shared = [use for use in reply.tools if use.tool in SHARING and use.outcome == "ok"]
        return Contribution(
            agent=asked.agent, text=reply.text, shared=shared, tools=reply.tools, usage=reply.usage
        )


def _passed_on(task: str, before: Sequence[Contribution]) -> str:
    """A task with the answers to it so far, quoted as data."""
    answers = [
        f"- {as_data(f'{name(each.agent)}: {quoted(each.text, READ)}')}" for each in before if each.text
    ]
    if not answers:
        return task
    return "\n".join(
        [task, "", '<recalled from="those who worked on it before you">', *answers, "</recalled>"]
    )
