"""Runs: who may enter the room of a workflow, a swarm or a debate.

A membership is a memory of its member (`runs:<kind>:<id>:u:<user>`), so that a wipe takes it away. It counts
only if the service wrote it: what lies in a room of their own, a user may write, too. A run exists while it
has a member; its room without one is nobody's, and is emptied before anybody enters it anew.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Literal

from msgspec import Struct, structs

from alcove.agents.rooms import MOST_ID, RUNS, short
from alcove.core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal, checked_user
from alcove.core.records import Delete, Memory, Operation, Put
from alcove.store import validation
from alcove.store.memories import Memories

ALCOVE = "alcove"
"""The agent in whose name the service writes its own records."""
OVERSEER = Principal(ALCOVE, claims={"roles": ["admin"]})
"""The service as it reads the records of all users."""
Role = Literal["owner", "member"]
MOST_MEMBERS = 1000
MOST_RUNS = 100
"""Runs in one answer, each with its members."""
_KEY = "membership"
_CLAIM = "run"
_ATTEMPTS = 20


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
        found = self._memories.get(_member(kind, id, user), _membership(kind, id, user), _KEY)
        return None if found is None else _role(found)

    def enter(self, kind: str, id: str, user: str, *, opening: bool) -> bool:
        """Whether somebody may enter; with `opening`, a run that does not exist becomes theirs."""
        _membership(kind, id, user, f"instances.{kind}")  # what is wrong with it is named as calls name it
        for _ in range(_ATTEMPTS):
            if self.role(kind, id, user):
                return True
            if not opening:
                return False
            with suppress(Conflict):  # it is open, or opened at this moment, perhaps by the same user
                self._claim(kind, id, user)
                return True
            if user not in (members := self._find(kind, id).members) and members:
                return False
        return False

    def open(self, kind: str, id: str | None, owner: str, members: Iterable[str]) -> Run:
        """Makes a run; one that exists already is not found by anybody who is not in it."""
        id = secrets.token_hex(8) if id is None else id
        _membership(kind, id, owner)  # so that an id too long is not blamed on the members
        wanted = _users(kind, id, members)
        try:
            self._claim(kind, id, owner)
        except Conflict:
            if self.role(kind, id, owner):
                raise Conflict(f"you are in this {kind} already") from None
            raise NotFound(f"there is no {kind} {short(id)} that could be opened") from None
        return self.change(kind, id, owner, wanted)

    def _claim(self, kind: str, id: str, owner: str) -> None:
        """Makes somebody the owner of a run without members; of two who try, one gets `Conflict`."""
        who, place, room = _member(kind, id, owner), _run(kind, id), _room(kind, id)
        found = self._memories.get(who, place, _CLAIM)  # before the members: whoever comes between changes it
        if self._find(kind, id).members:
            raise Conflict(f"this {kind} is open")
        claim = Put(namespace=place, key=_CLAIM, value={}, expected_revision=found.revision if found else 0)
        keeper = _emptier(kind, id)
        if self._memories.count(keeper, room):  # what a run that ended may have left
            revision = self._memories.put_record(who, claim).revision
            self._memories.clear(keeper, room)
            claim = structs.replace(claim, expected_revision=revision)
        self._memories.batch(who, [claim, _joined(kind, id, owner, "owner")])

    def change(self, kind: str, id: str, by: str, members: Iterable[str]) -> Run:
        """Makes these the members; only the owner may, and stays one."""
        self._owned(kind, id, by)
        wanted = _users(kind, id, members) | {by}
        present = {*self._find(kind, id).members}
        for user in wanted - present:
            self._do(kind, id, user, _joined(kind, id, user, "member"))
        for user in present - wanted:
            self._remove(kind, id, user)
        return self._find(kind, id)

    def close(self, kind: str, id: str, by: str) -> None:
        """Ends a run and takes its room away, with its players' own rooms for it.

        Only its owner may, or any member once the owner was wiped.
        """
        self._owned(kind, id, by, left=True)
        run = self._find(kind, id)
        self.reset(kind, id)
        for user in run.members:
            self._remove(kind, id, user)
        self._do(kind, id, by, Delete(namespace=_run(kind, id), key=_CLAIM))

    def reset(self, kind: str, id: str) -> None:
        """Empties a run's room, and the rooms that its players' agents have for it."""
        self._memories.clear(_emptier(kind, id), _room(kind, id))
        if kind == "workflow":
            for room in self._memories.namespaces(OVERSEER, ("agent-room",), suffix=(id,)):
                if len(room) == 5 and self.role(kind, id, room[3]):
                    self._memories.clear(Principal(room[3], agent=ALCOVE, grants=(Grant(room),)), room)

    def left_alone(self, user: str) -> Iterator[Namespace]:
        """The rooms of the runs in which nobody is but this user, and where those runs are claimed."""
        for ns in self._memories.namespaces_of(OVERSEER, ("runs",), user, suffix=("u", user)):
            if len(ns) == 5 and ns[1] in RUNS and self._find(ns[1], ns[2]).members == [user]:
                yield from (_room(ns[1], ns[2]), _run(ns[1], ns[2]))

    def with_member(self, user: str, *, limit: int, offset: int) -> list[Run]:
        """The runs that somebody owns or is in, by kind and id."""
        validation.whole(offset, "offset", 0, 2**31)
        stop = offset + validation.whole(limit, "limit", 1, MOST_RUNS)
        found = ((kind, id) for kind in sorted(RUNS) for id in self.of(kind, user))
        runs = (self._find(*each) for each in islice(found, offset, stop))
        return [run for run in runs if user in run.members]

    def of(self, kind: str, user: str) -> list[str]:
        """The ids of the runs that somebody is in."""
        places = self._memories.namespaces_of(OVERSEER, ("runs", _kind(kind)), user, suffix=("u", user))
        return [ns[2] for ns in places if len(ns) == 5 and self.role(kind, ns[2], user)]

    def members(self, kind: str, id: str) -> list[str]:
        """Who is in a run."""
        return self._find(kind, id).members

    def _owned(self, kind: str, id: str, by: str, *, left: bool = False) -> None:
        """Raises unless it is theirs; with `left`, a run without an owner belongs to each of its members."""
        role = self.role(_kind(kind), id, by)
        if role is None:
            raise NotFound(f"there is no {kind} {short(id)}")
        if role != "owner" and not (left and self._find(kind, id).owner is None):
            raise PermissionDenied(f"only the owner of this {kind} may do that")

    def _find(self, kind: str, id: str) -> Run:
        # Only memberships are read: what else lies below a run is its writers' own, and may be much.
        below = self._memories.namespaces(OVERSEER, _run(kind, id), max_depth=5)
        users = [ns[4] for ns in below if len(ns) == 5 and ns[3] == "u"]
        roles = {user: role for user in users if (role := self.role(kind, id, user))}
        owner = next((user for user, role in roles.items() if role == "owner"), None)
        return Run(kind=kind, id=id, owner=owner, members=sorted(roles))

    def _remove(self, kind: str, id: str, user: str) -> None:
        self._do(kind, id, user, Delete(namespace=_membership(kind, id, user), key=_KEY))

    def _do(self, kind: str, id: str, user: str, operation: Operation) -> None:
        self._memories.batch(_member(kind, id, user), [operation])


def _run(kind: str, id: str) -> Namespace:
    return Namespace(("runs", _kind(kind), _id(id, "id")))


def _membership(kind: str, id: str, user: str, field: str = "id") -> Namespace:
    return Namespace.checked(("runs", _kind(kind), _id(id, field), "u", user), field)


def _joined(kind: str, id: str, user: str, role: Role) -> Put:
    return Put(namespace=_membership(kind, id, user), key=_KEY, value={"role": role})


def _role(membership: Memory) -> Role | None:
    """What a membership says, if it is one of ours."""
    ours = membership.key == _KEY and membership.written_by.agent == ALCOVE
    return membership.value["role"] if ours else None  # type: ignore[return-value]


def _room(kind: str, id: str) -> Namespace:
    return Namespace((kind, id))


@functools.lru_cache(4096)
def _member(kind: str, id: str, user: str) -> Principal:
    """The service acting for a member, with a grant for the run's memberships."""
    return Principal(user, agent=ALCOVE, grants=(Grant(_run(kind, id)),))


def _emptier(kind: str, id: str) -> Principal:
    """The service with a grant for a run's room, to empty it."""
    return Principal(ALCOVE, agent=ALCOVE, grants=(Grant(_room(kind, id)),))


def _kind(kind: str) -> str:
    if kind not in RUNS:
        raise InvalidRequest("kind", f"one of {', '.join(RUNS)}")
    return kind


def _id(id: str, field: str) -> str:
    if type(id) is not str or id in ("", "u") or len(validation.text(id, field)) > MOST_ID:
        raise InvalidRequest(field, f"1 to {MOST_ID} bytes of text, and not 'u'")
    return id


def _users(kind: str, id: str, members: Iterable[str]) -> set[str]:
    """Whom the caller names as members, once each of them can be one."""
    users = [*members]
    if len(users) > MOST_MEMBERS:
        raise InvalidRequest("members", f"at most {MOST_MEMBERS} user ids")
    for user in users:
        _membership(kind, id, checked_user(user, "members"), "members")
    return {*users}
