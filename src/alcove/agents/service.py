"""Agents at work: whose turn it is, which rooms that opens, and what each tool call did."""

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
from alcove.agents.knowledge import Knowledge
from alcove.agents.rooms import (
    CHILD,
    ONE_NAMESPACE,
    RUNS,
    Rooms,
    direct_grants,
    may_be_private,
    older,
    team_room,
)
from alcove.agents.runner import Runner
from alcove.agents.runs import OVERSEER, Runs, room_run, run_room
from alcove.agents.sessions import Sessions
from alcove.agents.specs.catalogue import Catalogue, may_use
from alcove.agents.specs.records import Agent, Team
from alcove.agents.teamwork import Chats
from alcove.agents.tokens import token_counter
from alcove.agents.tools import READ_ONLY_TOOLS, Answer, Turn, toolset
from alcove.agents.tools.scratch import enter
from alcove.agents.tools.tool import render_tool
from alcove.agents.tools.turn import RecallBudget, Room
from alcove.core import validation
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, PermissionDenied, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.records import Event
from alcove.core.settings import LLMSettings
from alcove.llm import make_provider
from alcove.llm.model import Model
from alcove.llm.records import Provider
from alcove.store.memories import Memories

if TYPE_CHECKING:
    from alcove.agents.specs.loading import InlineSpecs, WatchedSpecs  # loads YAML

UNKNOWN = "unknown"
"""The tool of a call that named none the agent has: what a model made up is not taken down."""
_KEPT = 2048
MOST_CALLS = 1000
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
    """Agents, teams, their rooms and runs, for whoever may use them."""

    def __init__(
        self,
        memories: Memories,
        watched: WatchedSpecs | InlineSpecs | None,
        *,
        authentication: bool,
        tokenizer: str = "o200k",
        follows: bool = True,
        llm: LLMSettings = LLMSettings(),  # noqa: B008  frozen
        provider: Provider | None = None,
    ) -> None:
        """`tokenizer`: the family of models whose tokens are counted. `follows`: whether files are.

        `llm`: the model that agents talk with, if any. `provider`: the way to it, where it is another one.
        """
        super().__init__(memories)
        self._watched = watched
        self._authentication = authentication
        self.talks = watched is not None or not authentication
        """Whether agents talk; without specs they do not for everybody, since a model costs its operator."""
        self._catalogue = Catalogue(has_every_agent=watched is None)
        self._turns: dict[tuple[object, ...], Turn] = {}
        self._direct: dict[tuple[int, int], tuple[Principal, Principal, Catalogue]] = {}
        self.calls = Calls(memories)
        self._older: set[str] = set()
        self._recalls, count = RecallBudget(), token_counter(tokenizer)
        self.knowledge = Knowledge(memories, lambda: self.catalogue, count, follows=follows)
        provider = provider or make_provider(llm)
        self._model = Model(provider, llm) if provider else None
        self._summary_model = Model(provider, llm) if provider else None
        """The same model with calls of its own: summaries take none from turns."""
        self.sessions = Sessions(self, self.knowledge, count, self._summary_model)
        self.chats = Chats(self, Runner(self, self._model, llm), llm)
        self._keep_older(self.catalogue.agents.values())

    @property
    def catalogue(self) -> Catalogue:
        """The specs in force; what was worked out from others is dropped."""
        if self._watched and (current := self._watched.current()) is not self._catalogue:
            self._catalogue, self._turns, self._direct = current, {}, {}
            self.knowledge.follow_files()
        return self._catalogue

    def _keep_older(self, agents: Iterable[Agent]) -> None:
        """Tells the store where these agents show users older rooms, so that a wipe reaches them."""
        if new := {text for agent in agents if (text := older(agent))} - self._older:
            self._memories.record_private_rooms(new)
            self._older |= new

    def check(self) -> str | None:
        """Why the newest spec files do not load, and warnings; None if there is nothing to tell."""
        catalogue, problems = self.catalogue, self._watched.problems if self._watched else ()
        why = "; ".join(map(str, problems))
        broken = [f"the last valid specs stay active, because of {why}"] if why else []
        return "; ".join([*broken, *catalogue.warnings]) or None

    def direct(self, principal: Principal) -> Principal:
        """A caller without an agent, who may read the pools and teams of the agents they may use."""
        if not self._watched:
            return principal
        catalogue, known = self.catalogue, self._direct
        if found := known.get((id(principal), id(catalogue))):
            return found[0]
        grants = direct_grants(catalogue, principal)
        granted = Principal(principal.user_id, principal.client_id, principal.claims, None, grants)
        if len(known) >= _KEPT:
            known.clear()
        known[id(principal), id(catalogue)] = granted, principal, catalogue  # their ids are theirs while kept
        return granted

    # Who there is

    def agents(self, principal: Principal) -> list[Agent]:
        """The agents that the caller may use."""
        return [agent for agent in self.catalogue.agents.values() if may_use(agent, principal)]

    def agent(self, principal: Principal, agent: str) -> Agent:
        """The spec of the agent of this name; NotFound if there is none that the caller may use."""
        return self.catalogue.agent_for(principal, agent)

    def teams(self, principal: Principal) -> list[Team]:
        """The teams that the caller may use, with the namespace of its room instead of the template."""
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
            with suppress(PermissionDenied):  # by a policy of the operator's own
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
        for team in self.catalogue.teams_of(agent.name):
            if may_use(team, turn.caller) and (shared := team_room(team)):
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
        """The tools of an agent as a provider wants to be told of them.

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
        """Runs a tool, and takes down that it was run: a structured result, and the words for a model.

        `agent`, `tool`: their names. `arguments`: of the tool, as a model gives them.
        `session_id`, `team`, `instances`: where the call is made; the last are ids of runs by their kind.
        """
        spec = self.agent(principal, agent)
        if not isinstance(arguments, Mapping):
            raise InvalidRequest("arguments", "an object")
        started, bound = time.perf_counter(), self._memories.writer.key_binding(principal.user_id)
        outcome, room, known, turn = "ok", None, None, None
        try:
            turn = self.turn(principal, spec, session_id, team, instances or {})
            known = turn.tools.get(tool)
            if known is None:
                raise NotFound(f"{spec.name} has no tool {quote_name(tool)}")
            if "namespace" in known.choices:
                with suppress(AlcoveError):
                    room = str(turn.rooms.scratch(str(arguments.get("namespace", "global"))))
            answer = known.call(turn, arguments)
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
                tool=known.name if known else UNKNOWN,
                session=session_id if turn else None,  # otherwise it may be no id at all
                room=room,
                outcome=outcome,
                ms=round((time.perf_counter() - started) * 1000, 3),
            )
            self.calls.note(call, bound)

    def calls_of(
        self, principal: Principal, agent: str, limit: Annotated[int, Meta(ge=1, le=MOST_CALLS)] = MOST_CALLS
    ) -> list[ToolCall]:
        """The newest tool calls of an agent, at most `limit`; everybody's for an admin or auditor."""
        everybody = principal.is_admin or principal.is_auditor
        found = self.calls.of(self.agent(principal, agent).name, None if everybody else principal.user_id)
        return [*islice(found, validation.check_integer(limit, "limit", 1, MOST_CALLS))]

    def usage(self, principal: Principal, agent: str) -> list[UserUse]:
        """The tokens that an agent took, by user and day; everybody's for an admin or auditor."""
        self.calls.flush()
        everybody = principal.is_admin or principal.is_auditor
        name = self.agent(principal, agent).name
        return [*self.calls.usage.of(name, None if everybody else principal.user_id)]

    # Scratch rooms

    def room_stats(
        self, principal: Principal, agent: str, kind: str, instance: str | None = None
    ) -> RoomStats:
        """How much an agent's scratch room of a kind holds, and how it was used.

        `instance`: which one it is, where there are several: the id of a session or of a run.
        """
        room = self.scratch_room(principal, agent, kind, instance)
        every = self._memories.reader.scan(room.principal, room.namespace, exact=True)
        sizes = [len(msgspec.json.encode(memory.value)) for memory in every]
        used = [*self._uses(kind, room.namespace, principal.user_id)]
        done = [call.tool in READ_ONLY_TOOLS for call in used if call.outcome == "ok"]
        return RoomStats(
            room=str(room.namespace),
            keys=len(sizes),
            bytes=sum(sizes),
            reads=sum(done),
            writes=len(done) - sum(done),
            conflicts=sum(call.outcome == "conflict" for call in used),
        )

    def _uses(self, kind: str, room: Namespace, user: str) -> Iterator[ToolCall]:
        """The calls that came to a room, by whichever agent, from everybody who may enter it."""
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
        """Empties one scratch room, so that its versions start at 1; a run's only for its owner."""
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
        """Each event of a scratch room as it happens, until the caller is let out of it.

        `instance`: which one it is, where there are several. `after_cursor`: from where on, if not from now.
        """
        room = self.scratch_room(principal, agent, kind, instance)
        events = self._memories.timeline.follow(room.principal, room.namespace, after_cursor=after_cursor)
        return (event for event in events if self.scratch_room(principal, agent, kind, instance))

    def scratch_room(self, principal: Principal, agent: str, kind: str, instance: str | None) -> Room:
        """A scratch room of an agent that the caller may enter; `instance` says which, of several."""
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
        """What tools work with in this session, team and set of runs."""
        known = self._turns
        key = (id(principal), id(agent), session_id, team, *sorted(instances.items()))
        if turn := known.get(key):
            return turn
        team_spec = None if team is None else self.catalogue.team_for(principal, team, agent)
        authentication = self._authentication or principal.user_id != DEFAULT_PRINCIPAL.user_id
        rooms = Rooms(agent, principal.user_id, session_id, team_spec, {**instances}, authentication)
        self._keep_older([agent])
        if len(known) >= _KEPT:
            known.clear()
        tools = toolset(agent, rooms.team is not None)
        turn = known[key] = Turn(self._memories, self, rooms, principal, tools, self._recalls)
        return turn

    def close(self) -> None:
        for model in (self._summary_model, self._model):
            if model:
                model.close()  # nobody waits for a summary any more
        for part in (self.sessions, self.knowledge, self.calls):
            part.close()
