"""Agents at work: whose turn it is, which rooms that opens, and what each tool call did."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from alcove.agents import rooms as layout
from alcove.agents.admission import agent_for, direct_grants, may_use, team_for
from alcove.agents.calls import Calls, ToolCall
from alcove.agents.catalogue import Catalogue
from alcove.agents.loading import Watched
from alcove.agents.rooms import RUNS, Rooms
from alcove.agents.runs import Runs
from alcove.agents.specs import Agent, Team
from alcove.agents.tools import Answer, Turn, toolset
from alcove.agents.tools.base import rendered
from alcove.agents.tools.scratch import room as scratch_room
from alcove.errors import AlcoveError, NotFound, PermissionDenied
from alcove.namespace import Namespace
from alcove.principal import Principal
from alcove.service import Memories

SCRATCH_TOOLS = ("shared_memory_write", "shared_memory_read", "shared_memory_list", "shared_memory_delete")


class Where(Struct, frozen=True, kw_only=True):
    """In which session, team and runs a call is made."""

    session_id: str | None = None
    team: str | None = None
    instances: dict[str, str] = {}


class RoomSummary(Struct, frozen=True, kw_only=True):
    """A room of an agent that the caller may see, and how much is in it."""

    room: str
    namespace: Namespace
    memories: int


class RoomStats(Struct, frozen=True, kw_only=True):
    """How much a scratch room holds, and how it was used in the last thirty days."""

    room: str
    keys: int
    bytes: int
    reads: int
    writes: int
    conflicts: int


class Agents:
    """Agents, teams and their rooms, for whoever may use them."""

    def __init__(self, memories: Memories, watched: Watched | None, *, authentication: bool) -> None:
        self._memories = memories
        self._watched = watched
        self._authentication = authentication
        self.runs = Runs(memories)
        self.calls = Calls(memories)
        memories.admin.before_wipe.append(self.calls.forget)

    @property
    def catalogue(self) -> Catalogue:
        """The specs in force."""
        return self._watched.current() if self._watched else Catalogue()

    def check(self) -> None:
        """Raises while a changed spec file does not load and the last good version serves."""
        if self._watched:
            self._watched.current()
            if self._watched.troubles:
                raise AlcoveError("; ".join(map(str, self._watched.troubles)))

    def direct(self, principal: Principal) -> Principal:
        """A caller without an agent, who may read the pools and teams of the agents they may use."""
        grants = direct_grants(self.catalogue, principal) if self._watched else ()
        if not grants:
            return principal
        return Principal(principal.user_id, principal.client_id, principal.claims, None, grants)

    # Who there is

    def agents(self, principal: Principal) -> list[Agent]:
        return [agent for agent in self.catalogue.agents.values() if may_use(agent, principal)]

    def agent(self, principal: Principal, name: str) -> Agent:
        return agent_for(self.catalogue, name, principal)

    def teams(self, principal: Principal) -> list[Team]:
        return [team for team in self.catalogue.teams.values() if may_use(team, principal)]

    def rooms(self, principal: Principal, name: str) -> list[RoomSummary]:
        """The rooms of an agent that this caller may see, those below the private one included."""
        turn = self._turn(principal, self.agent(principal, name), Where())
        found: list[tuple[str, Namespace]] = []
        spec = turn.rooms.agent.memory
        if spec.private.enabled and not spec.private.session_isolated and turn.rooms.private:
            found.append(("private", turn.rooms.private))
        found += [("pool", room) for room in turn.rooms.pools.values()]
        found += [("facts", turn.rooms.facts)] if turn.rooms.facts else []
        found += [("long-term", room) for room in turn.rooms.long_term.values()]
        for kind in spec.scratch:
            if kind not in (*RUNS, "session"):
                found.append((kind, turn.rooms.scratch(kind)))
        summaries = [self._summary(kind, turn.within(room), room) for kind, room in found]
        if older := turn.rooms.fallback:
            authors = (older.written_by, None) if older.authorless else (older.written_by,)
            who = turn.within(older.namespace, written_by=authors)
            for room in self._memories.namespaces(who, older.namespace):
                if room != turn.rooms.private:
                    summaries.append(self._summary("private, older", who, room))
        return summaries

    def _summary(self, kind: str, who: Principal, room: Namespace) -> RoomSummary:
        return RoomSummary(room=kind, namespace=room, memories=self._memories.count(who, room))

    # Tools

    def tools(self, principal: Principal, name: str, format: str, team: str | None) -> list[dict[str, Any]]:
        """The tools of an agent as a provider wants to be told of them."""
        agent = self.agent(principal, name)
        room = layout.team_room(team_for(self.catalogue, team, agent, principal)) if team else None
        return [rendered(tool, format) for tool in toolset(agent, team=room is not None).values()]

    def call(
        self, principal: Principal, name: str, tool_name: str, arguments: Mapping[str, Any], where: Where
    ) -> Answer:
        """Runs a tool for the caller, and takes down that it was run."""
        started = time.perf_counter()
        agent = self.agent(principal, name)
        outcome, room = "ok", None
        try:
            turn = self._turn(principal, agent, where)
            tool = toolset(agent, team=turn.rooms.team is not None).get(tool_name)
            if tool is None:
                raise NotFound(f"{name} has no tool {tool_name!r}")
            if tool_name in SCRATCH_TOOLS:
                room = self._named(turn, arguments.get("namespace", "global"))
            return tool.called(turn, arguments)
        except AlcoveError as error:
            outcome = error.code
            raise
        finally:
            self.calls.note(
                ToolCall(
                    at=datetime.now(UTC),
                    agent=agent.name,
                    user=principal.user_id,
                    tool=tool_name[:100],
                    session=where.session_id,
                    room=room,
                    outcome=outcome,
                    ms=round((time.perf_counter() - started) * 1000, 3),
                )
            )

    @staticmethod
    def _named(turn: Turn, kind: object) -> str | None:
        try:
            return str(turn.rooms.scratch(str(kind)))
        except AlcoveError:
            return None

    def calls_of(self, principal: Principal, name: str) -> Iterator[ToolCall]:
        """The caller's calls of an agent; everybody's for an admin or auditor."""
        agent = self.agent(principal, name)
        everybody = principal.is_admin or principal.is_auditor
        return self.calls.of(agent.name, None if everybody else principal.user_id)

    # Scratch rooms

    def room_stats(self, principal: Principal, name: str, kind: str, where: Where) -> RoomStats:
        turn, room = self._scratch(principal, name, kind, where)
        held = [*self._memories.export(turn.within(room), room)]
        used = [call for call in self.calls.of(name, None) if call.room == str(room)]
        done = [call.tool for call in used if call.outcome == "ok"]
        return RoomStats(
            room=str(room),
            keys=len(held),
            bytes=sum(len(msgspec.json.encode(memory.value)) for memory in held),
            reads=sum(tool in SCRATCH_TOOLS[1:3] for tool in done),
            writes=len(done) - sum(tool in SCRATCH_TOOLS[1:3] for tool in done),
            conflicts=sum(call.outcome == "conflict" for call in used),
        )

    def reset_room(self, principal: Principal, name: str, kind: str, where: Where) -> None:
        """Empties one room, so that its versions start at 1; a run's only for its owner."""
        turn, room = self._scratch(principal, name, kind, where)
        if kind in RUNS:
            if self.runs.role(kind, room[1], principal.user_id) != "owner":
                raise PermissionDenied(f"only the owner of this {kind} may reset it")
            self.runs.reset(kind, room[1])
        elif kind == "global" and not principal.is_admin:
            raise PermissionDenied("only an admin may reset the global room")
        else:
            self._memories.clear(turn.within(room), room)

    def watching(
        self, principal: Principal, name: str, kind: str, where: Where
    ) -> tuple[Principal, Namespace]:
        """Who may read the events of a room, and where that is."""
        turn, room = self._scratch(principal, name, kind, where)
        return turn.within(room), room

    def _scratch(self, principal: Principal, name: str, kind: str, where: Where) -> tuple[Turn, Namespace]:
        turn = self._turn(principal, self.agent(principal, name), where)
        return turn, scratch_room(turn, kind)

    def _turn(self, principal: Principal, agent: Agent, where: Where) -> Turn:
        team = team_for(self.catalogue, where.team, agent, principal) if where.team else None
        resolved: Rooms = layout.resolve(
            agent,
            principal.user_id,
            session_id=where.session_id,
            team=team,
            instances=where.instances,
            authentication=self._authentication,
        )
        return Turn(self._memories, self.runs, resolved, principal)

    def close(self) -> None:
        self.calls.close()
