"""Runs: the members of a workflow, a swarm or a debate, who may enter its room.

A membership is a memory of its member (`runs:<kind>:<id>:u:<user>`), so that a wipe takes it away. It counts
only if the service wrote it, because users may write to their own rooms, too. A run exists while it has a
member; the room of a run that ended is emptied before another user opens it again.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from alcove.agents.rooms import MAX_ID_BYTES, RUNS
from alcove.core import validation
from alcove.core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal, check_user_id
from alcove.core.records import Put
from alcove.store.memories import Memories

ALCOVE = "alcove"
"""The agent that the service is as the author of its own records."""
OVERSEER = Principal(ALCOVE, claims={"roles": ["admin"]}, is_service=True)
"""The service as a reader of all users' records."""
Role = Literal["owner", "member"]
MAX_MEMBERS = 1000
MAX_RUNS = 100
"""Runs in one answer, each with its members."""
_KEY = "membership"
_CLAIM = "run"
_ATTEMPTS = 20


class Run(Struct, frozen=True, kw_only=True):
    """A run and its members."""

    kind: str
    id: str
    owner: str | None
    """None once the owner was wiped."""
    members: list[str]


@functools.lru_cache(4096)
def acting_for(user: str, room: Namespace) -> Principal:
    """The service acting for a user, with a grant for one room."""
    return Principal(user, agent=ALCOVE, grants=(Grant(room),))


class Runs:
    """Opens, changes and closes runs, and finds their members."""

    def __init__(self, memories: Memories) -> None:
        self._memories = self.memories = memories

    def open_run(
        self, principal: Principal, kind: str, id: str | None = None, members: Iterable[str] = ()
    ) -> Run:
        """Opens a workflow, swarm or debate for these users; without an id it gets one.

        NotFound if another user's run has this id already.
        """
        owner, run = principal.user_id, _run(kind, secrets.token_hex(8) if id is None else id)
        _membership(run, owner, "id")  # so that an id too long is not blamed on the members
        users = _users(run, members)
        try:
            self._claim(run, owner)
        except Conflict:
            if self.role(run, owner):
                raise Conflict(f"you are in this {kind} already") from None
            raise NotFound(f"there is no {kind} {quote_name(run[2])} that could be opened") from None
        return self.change_run(principal, kind, run[2], users)

    def change_run(self, principal: Principal, kind: str, id: str, members: Iterable[str]) -> Run:
        """Sets the members of a run; only its owner may, and stays one."""
        run = self._own_run(kind, id, principal.user_id)
        users = _users(run, members) | {principal.user_id}
        before = {*self.find(run).members}
        for user in users - before:
            self._memories.writer.put_record(acting_for(user, run), _put_member(run, user, "member"))
        self._remove(run, before - users)
        return self.find(run)

    def list_runs(
        self,
        principal: Principal,
        limit: Annotated[int, Meta(ge=1, le=MAX_RUNS)] = MAX_RUNS,
        offset: Annotated[int, Meta(ge=0)] = 0,
    ) -> list[Run]:
        """The runs that have the caller as owner or member: at most `limit`, after the first `offset`."""
        user = principal.user_id
        validation.check_integer(offset, "offset", 0, 2**31)
        stop = offset + validation.check_integer(limit, "limit", 1, MAX_RUNS)
        namespaces = (run for kind in sorted(RUNS) for run in self.runs_of(user, kind))
        runs = map(self.find, islice(namespaces, offset, stop))
        return [run for run in runs if user in run.members]

    def close_run(self, principal: Principal, kind: str, id: str) -> None:
        """Ends a run and empties its room; only its owner may, or any member once the owner was wiped.

        The members' own rooms for the run are emptied, too.
        """
        run = self._own_run(kind, id, principal.user_id, or_ownerless=True)
        members = self.find(run).members
        self.reset_run(run)
        self._remove(run, members)
        self._memories.writer.delete(acting_for(principal.user_id, run), run, _CLAIM)

    def enter(self, kind: str, id: str, user: str, *, opening: bool) -> bool:
        """Whether a user may enter a run; with `opening`, a run that does not exist becomes theirs."""
        run = _run(kind, id, f"instances.{kind}")
        _membership(run, user, f"instances.{kind}")
        for _ in range(_ATTEMPTS):
            if self.role(run, user):
                return True
            if not opening:
                return False
            with suppress(Conflict):  # it is open, or is being opened, perhaps by the same user
                self._claim(run, user)
                return True
            if user not in (members := self.find(run).members) and members:
                return False
        return False

    def _claim(self, run: Namespace, owner: str) -> None:
        """Makes a user the owner of a run without members; of two who try, one gets `Conflict`."""
        principal, room = acting_for(owner, run), run_room(run)
        # Read before the members, so that the batch fails if another user claims the run in between.
        before = self._memories.reader.get(principal, run, _CLAIM)
        if self.find(run).members:
            raise Conflict(f"this {run[1]} is open")
        claim = Put(namespace=run, key=_CLAIM, value={}, expected_revision=before.revision if before else 0)
        service = acting_for(ALCOVE, room)
        if self._memories.reader.count(service, room):  # memories of a run that ended
            revision = self._memories.writer.put_record(principal, claim).revision
            self._memories.eraser.clear(service, room)
            claim = structs.replace(claim, expected_revision=revision)
        self._memories.writer.batch(principal, [claim, _put_member(run, owner, "owner")])

    def reset_run(self, run: Namespace) -> None:
        """Empties a run's room, and the rooms that its members' agents have for it."""
        _, kind, id = run
        self._memories.eraser.clear(acting_for(ALCOVE, run_room(run)), run_room(run))
        if kind == "workflow":
            for room in self._memories.reader.namespaces(OVERSEER, ("agent-room",), suffix=(id,)):
                if len(room) == 5 and self.role(run, room[3]):
                    self._memories.eraser.clear(acting_for(room[3], room), room)

    def left_alone(self, user: str) -> Iterator[Namespace]:
        """The rooms of the runs whose only member is this user, and the namespaces of their claims."""
        for run in self._memberships(user):
            if run[1] in RUNS and self.find(run).members == [user]:
                yield from (run_room(run), run)

    def runs_of(self, user: str, kind: str) -> list[Namespace]:
        """The namespaces of the runs of a kind that have this user as a member."""
        return [run for run in self._memberships(user, kind) if self.role(run, user)]

    def _memberships(self, user: str, *kind: str) -> list[Namespace]:
        """The runs below which a user has a namespace; only `role` tells whether it is a membership."""
        namespaces = self._memories.reader.namespaces_of(OVERSEER, ("runs", *kind), user)
        return [Namespace(ns[:3]) for ns in namespaces if len(ns) == 5]

    def role(self, run: Namespace, user: str) -> Role | None:
        """The role of a user in a run; None if they are not in it, or there is none."""
        memory = self._memories.reader.get(acting_for(user, run), _membership(run, user, "id"), _KEY)
        return memory.value["role"] if memory and memory.written_by.agent == ALCOVE else None  # type: ignore[return-value]

    def _own_run(self, kind: str, id: str, user: str, *, or_ownerless: bool = False) -> Namespace:
        """A run that the user owns, or with `or_ownerless` one that they are in and that has no owner."""
        run = _run(kind, id)
        role = self.role(run, user)
        if role is None:
            raise NotFound(f"there is no {kind} {quote_name(id)}")
        if role != "owner" and not (or_ownerless and self.find(run).owner is None):
            raise PermissionDenied(f"only the owner of this {kind} may do that")
        return run

    def find(self, run: Namespace) -> Run:
        """A run with its members; one without any does not exist."""
        # Only memberships are read: users may have written anything else below a run.
        below = self._memories.reader.namespaces(OVERSEER, run, max_depth=5)
        users = [ns[4] for ns in below if len(ns) == 5 and ns[3] == "u"]
        roles = {user: role for user in users if (role := self.role(run, user))}
        owner = next((user for user, role in roles.items() if role == "owner"), None)
        return Run(kind=run[1], id=run[2], owner=owner, members=sorted(roles))

    def _remove(self, run: Namespace, users: Iterable[str]) -> None:
        for user in users:
            self._memories.writer.delete(acting_for(user, run), _membership(run, user, "id"), _KEY)


def _run(kind: str, id: str, field: str = "id") -> Namespace:
    """The namespace of a run's records."""
    if kind not in RUNS:
        raise InvalidRequest("kind", f"one of {', '.join(RUNS)}")
    if type(id) is not str or id in ("", "u") or len(validation.encode_text(id, field)) > MAX_ID_BYTES:
        raise InvalidRequest(field, f"1 to {MAX_ID_BYTES} bytes of text, and not 'u'")
    return Namespace(("runs", kind, id))


def run_room(run: Namespace) -> Namespace:
    """The room that a run's members share."""
    return Namespace(run[1:])


def room_run(room: Namespace) -> Namespace:
    """The run that a room belongs to."""
    return Namespace(("runs", *room))


def _membership(run: Namespace, user: str, field: str) -> Namespace:
    return Namespace.checked((*run, "u", user), field)


def _put_member(run: Namespace, user: str, role: Role) -> Put:
    return Put(namespace=_membership(run, user, "id"), key=_KEY, value={"role": role})


def _users(run: Namespace, members: Iterable[str]) -> set[str]:
    """The user ids that the caller names as members, checked."""
    if isinstance(members, str):  # each letter would become a member
        raise InvalidRequest("members", "a list of user ids")
    users = [*members]
    if len(users) > MAX_MEMBERS:
        raise InvalidRequest("members", f"at most {MAX_MEMBERS} user ids")
    for user in users:
        _membership(run, check_user_id(user, "members"), "members")
    return {*users}
