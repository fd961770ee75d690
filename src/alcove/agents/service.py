"""Agents and teams, their rooms and tools, for the callers who may use them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from alcove.agents.call_log import Calls, ToolCall, UserUse
from alcove.agents.chats import Chats
from alcove.agents.knowledge import Knowledge
from alcove.agents.rooms import (
    CHILD,
    ONE_NAMESPACE,
    RUNS,
    RecallBudget,
    Room,
    Rooms,
    child_rooms_template,
    direct_grants,
    may_be_private,
)
from alcove.agents.runs import OVERSEER, Runs, room_run, run_room
from alcove.agents.sessions import Sessions
from alcove.agents.specs.records import Agent, Catalogue, Team, may_use
from alcove.agents.specs.templates import team_room
from alcove.agents.teamwork import Teamwork
from alcove.agents.tokens import token_counter
from alcove.agents.tools import READ_ONLY_TOOLS, Answer, Turn, toolset
from alcove.agents.tools.keyed_rooms import enter
from alcove.agents.tools.tool import render_tool
from alcove.core import validation
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, PermissionDenied, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.records import Event
from alcove.core.settings import LLMSettings
from alcove.llm import make_provider
from alcove.llm.model import Model, Provider
from alcove.store.memories import Memories

if TYPE_CHECKING:
    from alcove.agents.specs.loading import WatchedSpecs  # loads YAML

UNKNOWN = "unknown"
"""The tool in the log if the agent has none of the name that the model gave."""
_MAX_CACHED = 2048
MAX_CALLS = 1000
"""Tool calls in one answer."""


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


class Agents(Runs):
    """Agents, teams, their rooms and runs, for the callers who may use them."""

    def __init__(
        self,
        memories: Memories,
        specs: WatchedSpecs | None,
        *,
        authentication: bool,
        tokenizer: str = "o200k",
        follows: bool = True,
        llm: LLMSettings = LLMSettings(),  # noqa: B008  frozen
        provider: Provider | None = None,
    ) -> None:
        """`specs`: None for an agent of every name. `tokenizer`: the family of models.

        `follows`: whether to sync knowledge sources when their files change. `llm`: the model that agents
        talk with, if any. `provider`: replaces the one that `llm` names.
        """
        super().__init__(memories)
        self._specs, self._authentication = specs, authentication
        self.talks = specs is not None or not authentication
        """Whether agents talk: a model costs its operator, so authenticated users need a spec."""
        self._catalogue = Catalogue(has_every_agent=specs is None)
        self._turns: dict[tuple[object, ...], Turn] = {}
        self._direct: dict[tuple[int, int], tuple[Principal, Principal, Catalogue]] = {}
        self.calls = Calls(memories)
        self._older: set[str] = set()
        self._recalls, count = RecallBudget(), token_counter(tokenizer)
        self.knowledge = Knowledge(memories, lambda: self.catalogue, count, follows=follows)
        provider = provider or make_provider(llm)
        self._model = Model(provider, llm) if provider else None
        self._summary_model = Model(provider, llm) if provider else None
        """The same model with its own limit of calls at once, so that summaries do not delay turns."""
        self.sessions = Sessions(self, self.knowledge, count, self._summary_model)
        self.chats = Chats(self, self._model, llm)
        self.services = (self, self.sessions, self.knowledge, self.chats, Teamwork(self.chats))
        """The objects whose methods are operations."""
        self._keep_older(self.catalogue.agents.values())

    @property
    def catalogue(self) -> Catalogue:
        """The active specs; drops what was cached for earlier ones."""
        if self._specs and (current := self._specs.current()) is not self._catalogue:
            self._catalogue, self._turns, self._direct = current, {}, {}
            self.knowledge.follow_files()
        return self._catalogue

    def _keep_older(self, agents: Iterable[Agent]) -> None:
        """Records for the store where these agents show users older rooms, so that a wipe reaches them."""
        if new := {text for agent in agents if (text := child_rooms_template(agent))} - self._older:
            self._memories.record_private_rooms(new)
            self._older |= new

    def check(self) -> str | None:
        """Why the newest spec files do not load, and warnings; None without problems."""
        catalogue, problems = self.catalogue, self._specs.problems if self._specs else ()
        reason = "; ".join(map(str, problems))
        broken = [f"the last valid specs stay active, because of {reason}"] if reason else []
        return "; ".join([*broken, *catalogue.warnings]) or None

    def direct(self, principal: Principal) -> Principal:
        """A caller without an agent, with grants to read the pools and teams of the agents they may use."""
        if not self._specs:
            return principal
        catalogue, cache = self.catalogue, self._direct
        if entry := cache.get((id(principal), id(catalogue))):
            return entry[0]
        grants = direct_grants(catalogue, principal)
        granted = Principal(principal.user_id, principal.client_id, principal.claims, None, grants)
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        cache[id(principal), id(catalogue)] = granted, principal, catalogue  # keeps the ids from being reused
        return granted

    # Specs

    def agents(self, principal: Principal) -> list[Agent]:
        """The agents that the caller may use."""
        return [agent for agent in self.catalogue.agents.values() if may_use(agent, principal)]

    def agent(self, principal: Principal, agent: str) -> Agent:
        """The spec of the agent of this name; NotFound if there is none that the caller may use."""
        return self.catalogue.agent_for(principal, agent)

    def teams(self, principal: Principal) -> list[Team]:
        """The teams that the caller may use, each with the namespace of its room instead of the template."""
        usable = (team for team in self.catalogue.teams.values() if may_use(team, principal))
        rooms = ((team, team_room(team)) for team in usable)
        return [structs.replace(t, shared_memory_namespace=room and str(room)) for t, room in rooms]

    def team(self, principal: Principal, team: str) -> Team:
        """The spec of the team of this name; NotFound if there is none that the caller may use."""
        spec = self.catalogue.teams.get(team)
        if spec is None or not may_use(spec, principal):
            raise NotFound(f"there is no team {quote_name(team)}")
        return spec

    def rooms(self, principal: Principal, agent: str) -> list[RoomSummary]:
        """The rooms of an agent that this caller may see, and the child namespaces that hold theirs."""
        turn = self.turn(principal, self.agent(principal, agent))
        summaries = []
        for kind, room in self._visible(turn):
            with suppress(PermissionDenied):  # by the operator's policy
                count = self._memories.reader.count(
                    turn.principal_for(room), room, exact=kind in ONE_NAMESPACE
                )
                summaries.append(RoomSummary(room=kind, namespace=room, memories=count))
        children = turn.child_rooms
        counts = Counter(each.namespace for each in children.entries_by_age()) if children else {}
        for room, count in sorted(counts.items()):
            summaries.append(RoomSummary(room=CHILD, namespace=room, memories=count))
        return summaries

    def _visible(self, turn: Turn) -> Iterator[tuple[str, Namespace]]:
        """The rooms that this turn's user may see, each with its kind."""
        rooms, agent, user = turn.rooms, turn.rooms.agent, turn.caller.user_id
        own = partial(self._memories.reader.namespaces_of, OVERSEER, owner=user)
        if agent.memory.private.session_isolated:
            yield from (("private", room) for room in own(()) if may_be_private(room, agent))
        elif rooms.private:
            yield "private", rooms.private
        yield from (("pool", room) for room in rooms.pools.values())
        for team in self.catalogue.teams.values():
            is_member = agent.name in team.workers and may_use(team, turn.caller)
            if is_member and (shared := team_room(team)):
                yield "team", shared
        if rooms.facts:
            yield "facts", rooms.facts
        yield from (("long-term", room) for room in rooms.long_term.values())
        for kind in agent.memory.scratch:
            if kind in RUNS:
                yield from ((kind, run_room(run)) for run in self.runs_of(user, kind))
            elif kind == "session":
                yield from ((kind, room) for room in own(("session",)) if len(room) == 4)
            else:
                yield kind, rooms.scratch(kind)

    # Tools

    def tools(
        self, principal: Principal, agent: str, format: str = "openai", team: str | None = None
    ) -> list[dict[str, Any]]:
        """The tools of an agent in the form that a provider takes.

        `agent`: its name. `format`: `openai`, `responses`, `anthropic` or `mcp`.
        `team`: the team in which the agent works, whose room then has tools, too.
        """
        turn = self.turn(principal, self.agent(principal, agent), team=team or None)
        return [render_tool(tool, format) for tool in turn.tools.values()]

    def call(
        self,
        principal: Principal,
        agent: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        session_id: str | None = None,
        team: str | None = None,
        instances: Mapping[str, str] | None = None,
    ) -> Answer:
        """Runs a tool and logs the call; returns a structured result, and its text for a model.

        `agent`, `tool`: their names. `arguments`: of the tool, as a model gives them.
        `session_id`, `team`, `instances`: where the call is made; the last are ids of runs by their kind.
        """
        spec = self.agent(principal, agent)
        if not isinstance(arguments, Mapping):
            raise InvalidRequest("arguments", "an object")
        started, bound = time.perf_counter(), self._memories.writer.key_binding(principal.user_id)
        outcome, room, definition, turn = "ok", None, None, None
        try:
            turn = self.turn(principal, spec, session_id, team, instances or {})
            definition = turn.tools.get(tool)
            if definition is None:
                raise NotFound(f"{spec.name} has no tool {quote_name(tool)}")
            if "namespace" in definition.choices:
                with suppress(AlcoveError):
                    room = str(turn.rooms.scratch(str(arguments.get("namespace", "global"))))
            answer = definition.call(turn, arguments)
            result = msgspec.to_builtins(answer.result)  # plain JSON values, as over REST
            return answer._replace(result=result)
        except AlcoveError as error:
            outcome = error.code
            raise
        finally:
            call = ToolCall(
                at=datetime.now(UTC),
                agent=spec.name,
                user=principal.user_id,
                tool=definition.name if definition else UNKNOWN,
                session=session_id if turn else None,  # otherwise it may be no id at all
                room=room,
                outcome=outcome,
                ms=round((time.perf_counter() - started) * 1000, 3),
            )
            self.calls.note(call, bound)

    def calls_of(
        self, principal: Principal, agent: str, limit: Annotated[int, Meta(ge=1, le=MAX_CALLS)] = MAX_CALLS
    ) -> list[ToolCall]:
        """The newest tool calls of an agent, at most `limit`; everybody's for an admin or auditor."""
        user = None if principal.is_admin or principal.is_auditor else principal.user_id
        calls = self.calls.of(self.agent(principal, agent).name, user)
        return [*islice(calls, validation.check_integer(limit, "limit", 1, MAX_CALLS))]

    def usage(self, principal: Principal, agent: str) -> list[UserUse]:
        """The tokens that an agent took, by user and day; everybody's for an admin or auditor."""
        self.calls.flush()
        user = None if principal.is_admin or principal.is_auditor else principal.user_id
        return [*self.calls.usage.of(self.agent(principal, agent).name, user)]

    # Scratch rooms

    def room_stats(
        self, principal: Principal, agent: str, kind: str, instance: str | None = None
    ) -> RoomStats:
        """How much an agent's scratch room of a kind holds, and how it was used.

        `instance`: the id of a session or of a run, for kinds that have a room for each.
        """
        room = self.scratch_room(principal, agent, kind, instance)
        memories = self._memories.reader.scan(room.principal, room.namespace, exact=True)
        sizes = [len(msgspec.json.encode(memory.value)) for memory in memories]
        calls = [*self._calls_in(kind, room.namespace, principal.user_id)]
        is_read = [call.tool in READ_ONLY_TOOLS for call in calls if call.outcome == "ok"]
        return RoomStats(
            room=str(room.namespace),
            keys=len(sizes),
            bytes=sum(sizes),
            reads=sum(is_read),
            writes=len(is_read) - sum(is_read),
            conflicts=sum(call.outcome == "conflict" for call in calls),
        )

    def _calls_in(self, kind: str, room: Namespace, user: str) -> Iterator[ToolCall]:
        """The calls in a room, by any agent, from every user who may enter it."""
        users: list[str | None] = [user]
        if kind == "global":
            users = [None]
        elif kind in RUNS:
            users = [*self.find(room_run(room)).members]
        name = str(room)
        for agent in self.catalogue.agents.values():
            for each in users if kind in agent.memory.scratch else ():
                yield from (call for call in self.calls.of(agent.name, each) if call.room == name)

    def reset_room(self, principal: Principal, agent: str, kind: str, instance: str | None = None) -> None:
        """Empties a scratch room, so that its versions start at 1; only a run's owner may empty the run's."""
        room = self.scratch_room(principal, agent, kind, instance)
        if kind in RUNS:
            if self.role(run := room_run(room.namespace), principal.user_id) != "owner":
                raise PermissionDenied(f"only the owner of this {kind} may reset it")
            self.reset_run(run)
        elif kind == "global" and not principal.is_admin:
            raise PermissionDenied("only an admin may reset the global room")
        else:
            self._memories.eraser.clear(room.principal, room.namespace)

    def watch_room(
        self,
        principal: Principal,
        agent: str,
        kind: str,
        instance: str | None = None,
        *,
        after_cursor: str | None = None,
    ) -> Iterator[Event]:
        """Each event of a scratch room as it happens, while the caller may enter it.

        `instance`: the id of a session or of a run. `after_cursor`: where to start, by default now.
        """
        room = self.scratch_room(principal, agent, kind, instance)
        events = self._memories.timeline.follow(room.principal, room.namespace, after_cursor=after_cursor)
        return (event for event in events if self.scratch_room(principal, agent, kind, instance))

    def scratch_room(self, principal: Principal, agent: str, kind: str, instance: str | None) -> Room:
        """A scratch room of an agent that the caller may enter; `instance`: the id of a session or run."""
        if kind == "global" and instance is not None:
            raise InvalidRequest("instance", "none: there is one global room")
        run = "workflow" if kind == "agent" else kind
        instances: dict[str, str] = {run: instance} if run in RUNS and instance is not None else {}
        session = instance if kind == "session" else None
        try:
            turn = self.turn(principal, self.agent(principal, agent), session, instances=instances)
            return turn.room(enter(turn, kind))
        except InvalidRequest as error:
            field = "kind" if error.field == "namespace" else "instance"
            raise InvalidRequest(field, error.expected) from None

    def turn(
        self,
        principal: Principal,
        agent: Agent,
        session_id: str | None = None,
        team: str | None = None,
        instances: Mapping[str, str] = MappingProxyType({}),
    ) -> Turn:
        """The rooms and tools of an agent for a caller, in this session, team and set of runs."""
        cache = self._turns
        key = (id(principal), id(agent), session_id, team, *sorted(instances.items()))
        if turn := cache.get(key):
            return turn
        team_spec = None if team is None else self.catalogue.team_for(principal, team, agent)
        authentication = self._authentication or principal.user_id != DEFAULT_PRINCIPAL.user_id
        rooms = Rooms(agent, principal.user_id, session_id, team_spec, {**instances}, authentication)
        self._keep_older([agent])
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        tools = toolset(agent, rooms.team is not None)
        turn = cache[key] = Turn(self._memories, self, rooms, principal, tools, self._recalls)
        return turn

    def stop_models(self) -> None:
        """Ends turns and summaries that wait for a model."""
        for model in (self._summary_model, self._model):
            if model:
                model.close()

    def close(self) -> None:
        self.stop_models()
        for part in (self.sessions, self.knowledge, self.calls):
            part.close()
