"""Runs: who may enter the room of a workflow, a swarm or a debate.

A membership is a memory of its member (`runs:<kind>:<id>:u:<user>`), so that a wipe takes it away. A run
exists while it has a member; its room without one is nobody's, and is emptied before anybody enters it anew.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from alcove.agents.rooms import RUNS
from alcove.errors import InvalidRequest, NotFound, PermissionDenied
from alcove.namespace import Namespace
from alcove.principal import Grant, Principal
from alcove.records import Delete, Operation, Put
from alcove.service import Memories

ALCOVE = "alcove"
"""The agent in whose name the service keeps its own books."""
OVERSEER = Principal(ALCOVE, claims={"roles": ["admin"]})
Role = Literal["owner", "member"]
_KEY = "membership"


class Run(Struct, frozen=True, kw_only=True):
    """A run and who takes part in it."""

    kind: str
    id: str
    owner: str | None
    """None once the owner was wiped."""
    members: list[str]


class Runs:
    """Opens, changes and closes runs, and says who is in them."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    def role(self, kind: str, id: str, user: str) -> Role | None:
        """What somebody is in a run; None for whoever is not in it, or if there is none."""
        found = self._memories.get(_clerk(kind, id, user), _membership(kind, id, user), _KEY)
        return None if found is None else found.value["role"]  # type: ignore[return-value]

    def enter(self, kind: str, id: str, user: str, *, opening: bool) -> bool:
        """Whether somebody may enter; with `opening`, a run that does not exist becomes theirs."""
        if self.role(kind, id, user):
            return True
        if not opening or self._find(kind, id).members:
            return False
        self.open(kind, id, user, [])
        return True

    def open(self, kind: str, id: str | None, owner: str, members: Iterable[str]) -> Run:
        """Makes a run; one that exists already is not found by anybody who is not in it."""
        id = secrets.token_hex(8) if id is None else id
        if self._find(kind, id).members:
            raise NotFound(f"there is no {kind} {id!r} that could be opened")
        self._memories.clear(_keeper(kind, id), _room(kind, id))  # what a run that ended may have left
        self._add(kind, id, owner, "owner")
        return self.change(kind, id, owner, [owner, *members])

    def change(self, kind: str, id: str, by: str, members: Iterable[str]) -> Run:
        """Makes these the members; only the owner may, and stays one."""
        self._owned(kind, id, by)
        wanted = {_user(member) for member in members} | {by}
        present = {*self._find(kind, id).members}
        for user in wanted - present:
            self._add(kind, id, user, "member")
        for user in present - wanted:
            self._remove(kind, id, user)
        return self._find(kind, id)

    def close(self, kind: str, id: str, by: str) -> None:
        """Ends a run and takes its room away, with its players' own rooms for it."""
        self._owned(kind, id, by)
        run = self._find(kind, id)
        self.reset(kind, id)
        for user in run.members:
            self._remove(kind, id, user)

    def reset(self, kind: str, id: str) -> None:
        """Empties a run's room, and the rooms that its players' agents have for it."""
        self._memories.clear(_keeper(kind, id), _room(kind, id))
        if kind == "workflow":
            for room in self._memories.namespaces(OVERSEER, ("agent-room",), suffix=(id,)):
                if len(room) == 5 and self.role(kind, id, room[3]):
                    self._memories.clear(Principal(room[3], agent=ALCOVE, grants=(Grant(room),)), room)

    def forget(self, user: str) -> None:
        """Before a wipe: empties the runs in which nobody is but this user; their memberships go with it."""
        for ns in self._memories.namespaces(OVERSEER, ("runs",), suffix=("u", user)):
            if self._find(ns[1], ns[2]).members == [user]:
                self.reset(ns[1], ns[2])

    def _owned(self, kind: str, id: str, by: str) -> None:
        role = self.role(_kind(kind), id, by)
        if role is None:
            raise NotFound(f"there is no {kind} {id!r}")
        if role != "owner":
            raise PermissionDenied(f"only the owner of this {kind} may do that")

    def _find(self, kind: str, id: str) -> Run:
        found = self._memories.export(OVERSEER, ("runs", _kind(kind), _id(id)))
        roles = {memory.namespace[-1]: memory.value["role"] for memory in found}
        owner = next((user for user, role in roles.items() if role == "owner"), None)
        return Run(kind=kind, id=id, owner=owner, members=sorted(roles))

    def _add(self, kind: str, id: str, user: str, role: Role) -> None:
        put = Put(namespace=_membership(kind, id, user), key=_KEY, value={"role": role})
        self._do(kind, id, user, put)

    def _remove(self, kind: str, id: str, user: str) -> None:
        self._do(kind, id, user, Delete(namespace=_membership(kind, id, user), key=_KEY))

    def _do(self, kind: str, id: str, user: str, operation: Operation) -> None:
        self._memories.batch(_clerk(kind, id, user), [operation])


def _membership(kind: str, id: str, user: str) -> Namespace:
    return Namespace(("runs", _kind(kind), _id(id), "u", _user(user)))


def _room(kind: str, id: str) -> Namespace:
    return Namespace((kind, id))


def _clerk(kind: str, id: str, user: str) -> Principal:
    """Who keeps one membership: the service, in the member's name."""
    return Principal(user, agent=ALCOVE, grants=(Grant(_membership(kind, id, user)),))


def _keeper(kind: str, id: str) -> Principal:
    """Who empties a run's room."""
    return Principal(ALCOVE, agent=ALCOVE, grants=(Grant(_room(kind, id)),))


def _kind(kind: str) -> str:
    if kind not in RUNS:
        raise InvalidRequest("kind", f"one of {', '.join(RUNS)}")
    return kind


def _id(id: str) -> str:
    if type(id) is not str or not id or id == "u":
        raise InvalidRequest("id", "a non-empty string other than 'u'")
    return id


def _user(user: str) -> str:
    if type(user) is not str or not user:
        raise InvalidRequest("members", "a list of non-empty user ids")
    return user
