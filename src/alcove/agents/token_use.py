"""What agents' models were sent and gave, in tokens: counted by agent, user and day.

A user's counts are memories of theirs (`usage:<agent>:u:<user>`, the day as the key), so that a wipe takes
them away. What all users took of an agent in a day is one memory of nobody's (`usage:<agent>`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct, structs

from alcove.agents.conversations import decoded, undisturbed
from alcove.agents.runs import ALCOVE, OVERSEER, acting_for
from alcove.core.errors import KeyDestroyed
from alcove.core.namespace import Namespace
from alcove.core.records import Bound, Deferred, Memory
from alcove.store.admin_records import AgentUse
from alcove.store.memories import Memories

ROOT = "usage"
KEPT_SECONDS = 90 * 86_400


class UserUse(AgentUse, frozen=True, kw_only=True):
    """What an agent took for one user on one day."""

    user: str
    day: str


class Count(Struct, frozen=True, kw_only=True):
    """Turns and their tokens."""

    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Count) -> Count:
        names = self.__struct_fields__
        return Count(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Usage:
    """The counts of tokens."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    def add(self, agent: str, user: str, count: Count, bound: Bound) -> None:
        """Counts turns of a user; nothing is kept of one who was wiped since `Memories.bound` gave this."""
        self._add(ALCOVE, Namespace((ROOT, agent)), count, None)
        self._add(user, Namespace((ROOT, agent, "u", user)), count, bound)

    def _add(self, user: str, room: Namespace, count: Count, bound: Bound | None) -> None:
        who, day = acting_for(user, room), f"{self._memories.now():%Y-%m-%d}"

        def counted() -> None:
            found = self._memories.get(who, room, day)
            value = msgspec.to_builtins((_count(found) or Count()) + count)
            revision = found.revision if found else 0
            put = Deferred(
                room, day, value, ttl_seconds=KEPT_SECONDS, expected_revision=revision, bound=bound
            )
            with suppress(KeyDestroyed):
                self._memories.put_record(who, put)

        undisturbed(counted)

    def of(self, agent: str, user: str | None) -> Iterator[UserUse]:
        """The counts of an agent by user and day, for one user or for all of them."""
        room = (ROOT, agent) if user is None else (ROOT, agent, "u", user)
        for memory in self._memories.export(OVERSEER, Namespace.checked(room, "agent")):
            count = _count(memory)
            if count and len(memory.namespace) == 4:
                whose, day = memory.namespace[3], memory.key
                yield UserUse(agent=agent, user=whose, day=day, **structs.asdict(count))

    def totals(self) -> list[AgentUse]:
        """What each agent took of all its users, as far as it is kept."""
        found: dict[str, Count] = defaultdict(Count)
        for room in self._memories.namespaces(OVERSEER, (ROOT,), max_depth=2):
            for memory in self._memories.everything(OVERSEER, room, exact=True):
                found[room[1]] += _count(memory) or Count()
        return [AgentUse(agent=agent, **structs.asdict(count)) for agent, count in found.items()]


def _count(memory: Memory | None) -> Count | None:
    """What a memory counts; None of what others wrote there: the room is the user's."""
    ours = memory is not None and memory.written_by.agent == ALCOVE
    return decoded(memory, Count) if memory and ours else None
