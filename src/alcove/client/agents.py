"""Agents behind a server: `agents.service.Agents`, over REST."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from alcove.agents.calls import ToolCall
from alcove.agents.runs import MOST_RUNS, Run
from alcove.agents.service import RoomSummary, Where
from alcove.agents.specs import Agent, Team
from alcove.agents.tools import Answer
from alcove.client.remote_admin import not_here
from alcove.client.transport import Wire, encoded
from alcove.core.principal import Principal
from alcove.server import agents as answers

_AT = "/v1/agents"


class RemoteAgents:
    """The agents of a server, which has their specs."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    __getattr__ = not_here

    def agents(self, who: Principal) -> list[Agent]:
        return self._wire.call(who, "GET", _AT, answers.AgentsAnswer).agents

    def agent(self, who: Principal, name: str) -> Agent:
        return self._wire.call(who, "GET", _of(name), Agent)

    def teams(self, who: Principal) -> list[Team]:
        return self._wire.call(who, "GET", "/v1/teams", answers.TeamsAnswer).teams

    def rooms(self, who: Principal, name: str) -> list[RoomSummary]:
        return self._wire.call(who, "GET", f"{_of(name)}/memory", answers.RoomsAnswer).rooms

    def tools(self, who: Principal, name: str, format: str, team: str | None) -> list[dict[str, Any]]:
        asked = {"format": format, "team": team}
        return self._wire.call(who, "GET", f"{_of(name)}/tools", answers.ToolsAnswer, params=asked).tools

    def calls_of(self, who: Principal, name: str) -> list[ToolCall]:
        asked = {"limit": answers.MOST_CALLS}
        return self._wire.call(who, "GET", f"{_of(name)}/calls", answers.CallsAnswer, params=asked).calls

    def call(
        self, who: Principal, name: str, tool: str, arguments: Mapping[str, Any], where: Where
    ) -> Answer:
        body = encoded(
            arguments=arguments, session_id=where.session_id, team=where.team, instances=where.instances
        )
        at = f"{_of(name)}/tools/{_segment(tool)}"
        answer = self._wire.call(who, "POST", at, answers.ToolAnswer, body=body)
        return Answer(answer.result, answer.text)

    def open_run(self, who: Principal, kind: str, id: str | None = None, members: Iterable[str] = ()) -> Run:
        body = encoded(kind=kind, id=id, members=[*members])
        return self._wire.call(who, "POST", "/v1/runs", Run, body=body)

    def list_runs(self, who: Principal, limit: int = MOST_RUNS, offset: int = 0) -> list[Run]:
        asked = {"limit": limit, "offset": offset}
        return self._wire.call(who, "GET", "/v1/runs", answers.RunsAnswer, params=asked).runs

    def change_run(self, who: Principal, kind: str, id: str, members: Iterable[str]) -> Run:
        return self._wire.call(who, "PATCH", _run(kind, id), Run, body=encoded(members=[*members]))

    def close_run(self, who: Principal, kind: str, id: str) -> None:
        self._wire.call(who, "DELETE", _run(kind, id), type(None))


def _run(kind: str, id: str) -> str:
    return f"/v1/runs/{_segment(kind)}/{_segment(id)}"


def _of(name: str) -> str:
    return f"{_AT}/{_segment(name)}"


def _segment(text: str) -> str:
    """A part of a path; any character may be in it, also the dots that a path is tidied of."""
    return quote(text, safe="").replace(".", "%2E")
