"""The agents API: who there is, their tools and what they did, their rooms, and runs."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from alcove.agents.calls import ToolCall
from alcove.agents.rooms import RUNS
from alcove.agents.runs import MOST_RUNS, Run
from alcove.agents.service import Agents, RoomStats, RoomSummary, Where
from alcove.agents.specs import Agent, Team
from alcove.agents.tools import READING
from alcove.core.errors import InvalidRequest
from alcove.server.resource import Call, Resource

if TYPE_CHECKING:
    from alcove.server.streams import StreamsApi
    from alcove.server.thread_pool import ThreadPool

_AGENT = "/v1/agents/{agent}"
_FOUND = (400, 401, 403, 404)
_CHANGED = (400, 401, 403, 404, 409, 413, 415)
MOST_CALLS = 1000


class AgentsAnswer(Struct):
    agents: list[Agent]


class TeamsAnswer(Struct):
    teams: list[Team]


class RoomsAnswer(Struct):
    rooms: list[RoomSummary]


class ToolsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["openai", "anthropic", "mcp"] = "openai"
    team: str | None = None


class ToolsAnswer(Struct):
    tools: list[dict[str, Any]]


class ToolBody(Struct, forbid_unknown_fields=True, kw_only=True):
    arguments: dict[str, Any] = {}
    session_id: str | None = None
    team: str | None = None
    instances: dict[str, str] = {}


class ToolAnswer(Struct):
    result: Any
    text: str


class CallsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=MOST_CALLS)] = 100


class CallsAnswer(Struct):
    calls: list[ToolCall]


class RoomQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    instance: str | None = None


class RunsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=MOST_RUNS)] = MOST_RUNS
    offset: Annotated[int, Meta(ge=0)] = 0


class RunsAnswer(Struct):
    runs: list[Run]


class RunBody(Struct, forbid_unknown_fields=True, kw_only=True):
    kind: Literal["workflow", "swarm", "debate"]
    id: str | None = None
    members: list[str] = []


class MembersBody(Struct, forbid_unknown_fields=True, kw_only=True):
    members: list[str]


class AgentsApi:
    """The resources under `/v1/agents`, `/v1/teams` and `/v1/runs`."""

    def __init__(self, agents: Agents, reads: ThreadPool, changes: ThreadPool, streams: StreamsApi) -> None:
        self._agents = agents
        self._reads = reads
        self._changes = changes
        self._streams = streams

    def resources(self) -> list[Resource]:
        room, run = f"{_AGENT}/rooms/{{kind}}", "/v1/runs/{kind}/{id}"
        return [
            Resource(method="GET", path="/v1/agents", handler=self.list_agents, answer=AgentsAnswer,
                     summary="The agents the caller may use"),
            Resource(method="GET", path=_AGENT, handler=self.show_agent, answer=Agent, errors=_FOUND,
                     summary="One agent's spec"),
            Resource(method="GET", path=f"{_AGENT}/memory", handler=self.rooms, answer=RoomsAnswer,
                     errors=_FOUND, summary="An agent's rooms that the caller may see, with counts"),
            Resource(method="GET", path=f"{_AGENT}/tools", handler=self.tools, query=ToolsQuery,
                     answer=ToolsAnswer, errors=_FOUND, summary="An agent's tools, as a provider takes them"),
            Resource(method="POST", path=f"{_AGENT}/tools/{{tool}}", handler=self.call_tool, body=ToolBody,
                     answer=ToolAnswer, errors=_CHANGED, summary="Call a tool"),
            Resource(method="GET", path=f"{_AGENT}/calls", handler=self.calls, query=CallsQuery,
                     answer=CallsAnswer, errors=_FOUND, summary="The newest tool calls, without content"),
            Resource(method="GET", path=room, handler=self.room_stats, query=RoomQuery, answer=RoomStats,
                     errors=_FOUND, summary="How much a scratch room holds and how it was used"),
            Resource(method="DELETE", path=room, handler=self.reset_room, query=RoomQuery, errors=_FOUND,
                     summary="Empty a scratch room; its versions start at 1 again"),
            Resource(method="GET", path=f"{room}/events", handler=self.watch_room, query=RoomQuery,
                     errors=_FOUND, streams="text/event-stream", summary="Watch a scratch room"),
            Resource(method="GET", path="/v1/teams", handler=self.list_teams, answer=TeamsAnswer,
                     summary="The teams the caller may use"),
            Resource(method="GET", path="/v1/runs", handler=self.list_runs, query=RunsQuery,
                     answer=RunsAnswer, summary="The runs that the caller owns or is in"),
            Resource(method="POST", path="/v1/runs", handler=self.open_run, body=RunBody, answer=Run,
                     errors=_CHANGED, summary="Open a workflow, swarm or debate for several users"),
            Resource(method="PATCH", path=run, handler=self.change_run, body=MembersBody, answer=Run,
                     errors=_CHANGED, summary="Change who is in a run; only its owner may"),
            Resource(method="DELETE", path=run, handler=self.close_run, errors=_FOUND,
                     summary="Close a run and take its rooms away; its owner, or members left without one"),
        ]  # fmt: skip

    async def list_agents(self, call: Call) -> Any:
        return AgentsAnswer(await self._do(self._agents.agents, call))

    async def show_agent(self, call: Call) -> Any:
        return await self._do(self._agents.agent, call, call.path["agent"])

    async def list_teams(self, call: Call) -> Any:
        return TeamsAnswer(await self._do(self._agents.teams, call))

    async def rooms(self, call: Call) -> Any:
        return RoomsAnswer(await self._do(self._agents.rooms, call, call.path["agent"]))

    async def tools(self, call: Call) -> Any:
        query = call.query
        found = await self._do(self._agents.tools, call, call.path["agent"], query.format, query.team)
        return ToolsAnswer(found)

    async def call_tool(self, call: Call) -> Any:
        body = call.body
        where = Where(session_id=body.session_id, team=body.team, instances=body.instances)
        agent, tool = call.path["agent"], call.path["tool"]

        def done() -> Struct:
            answer = self._agents.call(call.principal, agent, tool, body.arguments, where)
            from alcove.server.application import encoded  # noqa: PLC0415  a client reads our records, too

            return encoded(ToolAnswer(answer.result, answer.text))

        return await (self._reads if tool in READING else self._changes)(done)

    async def calls(self, call: Call) -> Any:
        found = await self._do(self._agents.calls_of, call, call.path["agent"])
        return CallsAnswer(await self._changes(lambda: [*islice(found, call.query.limit)]))

    async def room_stats(self, call: Call) -> Any:
        return await self._within(self._agents.room_stats, call)

    async def reset_room(self, call: Call) -> None:
        await self._within(self._agents.reset_room, call)

    async def watch_room(self, call: Call) -> Any:
        _, room = await self._within(self._agents.watching, call)
        where = self._room(call)
        return await self._streams.follow(
            call, lambda: self._agents.watching(call.principal, *where)[0], room, None
        )

    async def _within(self, method: Any, call: Call) -> Any:
        """Does something in a scratch room; what is wrong is named as the path and the query name it."""
        try:
            return await self._do(method, call, *self._room(call))
        except InvalidRequest as error:
            field = "kind" if error.field == "namespace" else "instance"
            raise InvalidRequest(field, error.expected) from None

    @staticmethod
    def _room(call: Call) -> tuple[str, str, Where]:
        kind, instance = call.path["kind"], call.query.instance
        if kind == "global" and instance is not None:
            raise InvalidRequest("instance", "none: there is one global room")
        run = "workflow" if kind == "agent" else kind
        instances: dict[str, str] = {run: instance} if run in RUNS and instance is not None else {}
        where = Where(session_id=instance if kind == "session" else None, instances=instances)
        return call.path["agent"], kind, where

    async def list_runs(self, call: Call) -> Any:
        return RunsAnswer(await self._do(self._agents.list_runs, call, call.query.limit, call.query.offset))

    async def open_run(self, call: Call) -> Any:
        body = call.body
        return await self._do(self._agents.open_run, call, body.kind, body.id, body.members)

    async def change_run(self, call: Call) -> Any:
        kind, id = call.path["kind"], call.path["id"]
        return await self._do(self._agents.change_run, call, kind, id, call.body.members)

    async def close_run(self, call: Call) -> None:
        await self._do(self._agents.close_run, call, call.path["kind"], call.path["id"])

    async def _do(self, method: Any, call: Call, *args: Any) -> Any:
        return await self._changes(partial(method, call.principal, *args))
