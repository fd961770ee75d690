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
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from alcove.agents.rooms import MOST_ID, RUNS
from alcove.core import validation
from alcove.core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal, check_user_id
from alcove.core.records import Put
from alcove.store.memories import Memories

ALCOVE = "alcove"
"""The agent in whose name the service writes its own records."""
OVERSEER = Principal(ALCOVE, claims={"roles": ["admin"]}, is_service=True)
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


@functools.lru_cache(4096)
def acting_for(user: str, room: Namespace) -> Principal:
    """The service acting for a user, with a grant for one room."""
    return Principal(user, agent=ALCOVE, grants=(Grant(room),))


class Runs:
    """Opens, changes and closes runs, and says who is in them."""

    def __init__(self, memories: Memories) -> None:
        self._memories = self.memories = memories

    def open_run(
        self, principal: Principal, kind: str, id: str | None = None, members: Iterable[str] = ()
    ) -> Run:
        """Opens a workflow, swarm or debate for these users; without an id it gets one.

        One that exists already is not found by anybody who is not in it.
        """
        owner, run = principal.user_id, _run(kind, secrets.token_hex(8) if id is None else id)
        _membership(run, owner, "id")  # so that an id too long is not blamed on the members
        wanted = _users(run, members)
        try:
            self._claim(run, owner)
        except Conflict:
            if self.role(run, owner):
                raise Conflict(f"you are in this {kind} already") from None
            raise NotFound(f"there is no {kind} {quote_name(run[2])} that could be opened") from None
        return self.change_run(principal, kind, run[2], wanted)

    def change_run(self, principal: Principal, kind: str, id: str, members: Iterable[str]) -> Run:
        """Makes these the members of a run; only its owner may, and stays one."""
        run = self._owned(kind, id, principal.user_id)
        wanted = _users(run, members) | {principal.user_id}
        present = {*self.find(run).members}
        for user in wanted - present:
            self._memories.writer.put_record(acting_for(user, run), _joined(run, user, "member"))
        self._remove(run, present - wanted)
        return self.find(run)

    def list_runs(
        self,
        principal: Principal,
        limit: Annotated[int, Meta(ge=1, le=MOST_RUNS)] = MOST_RUNS,
        offset: Annotated[int, Meta(ge=0)] = 0,
    ) -> list[Run]:
        """The runs that the caller owns or is in: at most `limit`, after the first `offset`."""
        user = principal.user_id
        validation.check_integer(offset, "offset", 0, 2**31)
        stop = offset + validation.check_integer(limit, "limit", 1, MOST_RUNS)
        found = (run for kind in sorted(RUNS) for run in self.runs_of(user, kind))
        runs = (self.find(run) for run in islice(found, offset, stop))
        return [run for run in runs if user in run.members]

    def close_run(self, principal: Principal, kind: str, id: str) -> None:
        """Ends a run and empties its room; only its owner may, or any member once the owner was wiped.

        Its players' own rooms for it go, too.
        """
        run = self._owned(kind, id, principal.user_id, left=True)
        members = self.find(run).members
        self.reset_run(run)
        self._remove(run, members)
        self._memories.writer.delete(acting_for(principal.user_id, run), run, _CLAIM)

    def enter(self, kind: str, id: str, user: str, *, opening: bool) -> bool:
        """Whether somebody may enter a run; with `opening`, one that does not exist becomes theirs."""
        run = _run(kind, id, f"instances.{kind}")  # what is wrong with it is named as calls name it
        _membership(run, user, f"instances.{kind}")
        for _ in range(_ATTEMPTS):
            if self.role(run, user):
                return True
            if not opening:
                return False
            with suppress(Conflict):  # it is open, or opened at this moment, perhaps by the same user
                self._claim(run, user)
                return True
            if user not in (members := self.find(run).members) and members:
                return False
        return False

    def _claim(self, run: Namespace, owner: str) -> None:
        """Makes somebody the owner of a run without members; of two who try, one gets `Conflict`."""
        who, room = acting_for(owner, run), run_room(run)
        found = self._memories.reader.get(
            who, run, _CLAIM
        )  # before the members: whoever comes between changes it
        if self.find(run).members:
            raise Conflict(f"this {run[1]} is open")
        claim = Put(namespace=run, key=_CLAIM, value={}, expected_revision=found.revision if found else 0)
        keeper = acting_for(ALCOVE, room)
        if self._memories.reader.count(keeper, room):  # what a run that ended may have left
            revision = self._memories.writer.put_record(who, claim).revision
            self._memories.eraser.clear(keeper, room)
            claim = structs.replace(claim, expected_revision=revision)
        self._memories.writer.batch(who, [claim, _joined(run, owner, "owner")])

    def reset_run(self, run: Namespace) -> None:
        """Empties a run's room, and the rooms that its players' agents have for it."""
        _, kind, id = run
        self._memories.eraser.clear(acting_for(ALCOVE, run_room(run)), run_room(run))
        if kind == "workflow":
            for room in self._memories.reader.namespaces(OVERSEER, ("agent-room",), suffix=(id,)):
                if len(room) == 5 and self.role(run, room[3]):
                    self._memories.eraser.clear(acting_for(room[3], room), room)

    def left_alone(self, user: str) -> Iterator[Namespace]:
        """The rooms of the runs in which nobody is but this user, and where those runs are claimed."""
        for run in self._memberships(user):
            if run[1] in RUNS and self.find(run).members == [user]:
                yield from (run_room(run), run)

    def runs_of(self, user: str, kind: str) -> list[Namespace]:
        """Where the runs of a kind are that somebody is in."""
        return [run for run in self._memberships(user, kind) if self.role(run, user)]

    def _memberships(self, user: str, *kind: str) -> list[Namespace]:
        """The runs in which somebody has a membership, or something that looks like one."""
        found = self._memories.reader.namespaces_of(OVERSEER, ("runs", *kind), user)
        return [Namespace(ns[:3]) for ns in found if len(ns) == 5]

    def role(self, run: Namespace, user: str) -> Role | None:
        """What somebody is in a run; None for whoever is not in it, or if there is none."""
        found = self._memories.reader.get(acting_for(user, run), _membership(run, user, "id"), _KEY)
        return found.value["role"] if found and found.written_by.agent == ALCOVE else None  # type: ignore[return-value]

    def _owned(self, kind: str, id: str, by: str, *, left: bool = False) -> Namespace:
        """A run of theirs; with `left`, a run without an owner belongs to each of its members."""
        run = _run(kind, id)
        role = self.role(run, by)
        if role is None:
            raise NotFound(f"there is no {kind} {quote_name(id)}")
        if role != "owner" and not (left and self.find(run).owner is None):
            raise PermissionDenied(f"only the owner of this {kind} may do that")
        return run

    def find(self, run: Namespace) -> Run:
        """A run with its members; one without any does not exist."""
        # Only memberships are read: what else lies below a run is its writers' own, and may be much.
        below = self._memories.reader.namespaces(OVERSEER, run, max_depth=5)
        users = [ns[4] for ns in below if len(ns) == 5 and ns[3] == "u"]
        roles = {user: role for user in users if (role := self.role(run, user))}
        owner = next((user for user, role in roles.items() if role == "owner"), None)
        return Run(kind=run[1], id=run[2], owner=owner, members=sorted(roles))

    def _remove(self, run: Namespace, users: Iterable[str]) -> None:
        for user in users:
            self._memories.writer.delete(acting_for(user, run), _membership(run, user, "id"), _KEY)


def _run(kind: str, id: str, field: str = "id") -> Namespace:
    """Where the records of a run are."""
    if kind not in RUNS:
        raise InvalidRequest("kind", f"one of {', '.join(RUNS)}")
    if type(id) is not str or id in ("", "u") or len(validation.encode_text(id, field)) > MOST_ID:
        raise InvalidRequest(field, f"1 to {MOST_ID} bytes of text, and not 'u'")
    return Namespace(("runs", kind, id))


def run_room(run: Namespace) -> Namespace:
    """The room that a run's members share."""
    return Namespace(run[1:])


def room_run(room: Namespace) -> Namespace:
    """The other way round: the run whose room this is."""
    return Namespace(("runs", *room))


def _membership(run: Namespace, user: str, field: str) -> Namespace:
    return Namespace.checked((*run, "u", user), field)


def _joined(run: Namespace, user: str, role: Role) -> Put:
    return Put(namespace=_membership(run, user, "id"), key=_KEY, value={"role": role})


def _users(run: Namespace, members: Iterable[str]) -> set[str]:
    """Whom the caller names as members, once each of them can be one."""
    if isinstance(members, str):  # its letters would be let in
        raise InvalidRequest("members", "a list of user ids")
    users = [*members]
    if len(users) > MOST_MEMBERS:
        raise InvalidRequest("members", f"at most {MOST_MEMBERS} user ids")
    for user in users:
        _membership(run, check_user_id(user, "members"), "members")
    return {*users}
