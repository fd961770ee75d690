"""Conversations: what was said in a session, message by message, and what fell out of its window in summary.

A message is a memory of its user (`turns:<agent>:u:<user>:<session>`), and so is what is known of the session
(`summary:<agent>:u:<user>:<session>`), so that policy, sealing, retention, export and erasure hold for both.
Keys count down, so that the newest message comes first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, structs

from alcove.agents.rooms import Rooms
from alcove.agents.specs.records import AgentMemory, Conversation
from alcove.agents.summariser import Point, Prose, extend_summary
from alcove.core import validation
from alcove.core.decoding import convert
from alcove.core.errors import Conflict, InvalidRequest, KeyDestroyed, NotFound
from alcove.core.messages import Message
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import BatchOperation, DeferredPut, Delete, KeyBinding, Memory, Put, Touch
from alcove.store.memories import Memories
from alcove.store.session_cache import MemoryReader, SessionLocation

T = TypeVar("T")
MAX_MESSAGES = 200
"""Messages that can be added at once."""
RUNNING_TOKENS = 400
"""What the summary of the messages that fell out of a window may have."""
MESSAGE_TOKENS = 4
"""What a chat API adds to each message, about."""
_ROLES = ("user", "assistant", "tool")
_LAST = 10**12
_LOOKED_AT = 20
"""Keys among which the newest message is looked for: users may have written others."""
_ATTEMPTS = 100
STATE, ROLLING = "state", "rolling"
"""The keys of what is known of a session, and of the summary of all that have ended."""


class StoredMessage(NamedTuple):
    """A message that is kept: its number in its session, counted from 1, the memory's id, and the message."""

    number: int
    id: str
    message: Message


class SessionState(Struct, frozen=True, omit_defaults=True, rename={"points": "running"}):
    """What is known of a session beside its messages; numbers are those of its messages, 0 for none."""

    ended: int = 0
    """The last one when it was ended."""
    merged: int = 0
    """The last one that is in the summary of the user's conversations."""
    covered: int = 0
    """The last one that is in `points`."""
    points: list[Point] = []
    """The summary of what fell out of the window."""
    written: int = 0
    """The last one that is in `prose`."""
    prose: Prose | None = None
    """The same in a model's words, as far as it got."""
    trouble: str = ""
    """Why a model made no summary the last time; empty where it did."""


def recalls_turns(memory: AgentMemory) -> bool:
    """Whether earlier messages are found by what they say."""
    return memory.conversation.enabled and memory.conversation.recall > 0


def turns_room(agent: str, user: str, *session: str) -> Namespace:
    """Where the messages of a session are, or those of all sessions are below."""
    return Namespace.checked(("turns", agent, "u", user, *session), "session_id")


def summary_room(agent: str, user: str, *session: str) -> Namespace:
    """Where the summary of a user's conversations is, or the state of a session."""
    return Namespace.checked(("summary", agent, "u", user, *session), "session_id")


def conversation_principal(caller: Principal, agent: str) -> Principal:
    """The agent acting for a caller, with grants for their conversations and for nothing else."""
    rooms = turns_room(agent, caller.user_id), summary_room(agent, caller.user_id)
    return Principal(caller.user_id, caller.client_id, caller.claims, agent, tuple(map(Grant, rooms)))


class Transcript:
    """The messages of one session, and its state."""

    def __init__(
        self, memories: Memories, rooms: Rooms, caller: Principal, count: Callable[[str], int]
    ) -> None:
        """`rooms`: whose session it is. `caller`: for whom to read and write. `count`: a text's tokens."""
        self.reads: MemoryReader = memories
        self._memories, self._count = memories, count
        self.who = conversation_principal(caller, rooms.agent.name)
        self.agent, self.session = rooms.agent, rooms.session()
        self.actor = f"{rooms.agent.name}:u:{rooms.user}" if rooms.authentication else rooms.agent.name
        self.turns = turns_room(rooms.agent.name, rooms.user, self.session)
        self._summary = summary_room(rooms.agent.name, rooms.user, self.session)
        across = summary_room(rooms.agent.name, rooms.user)
        self.places = SessionLocation(self.turns, (self._summary, STATE), (across, ROLLING))

    def newest_first(self, before: int | None = None, *, originals: bool = False) -> Iterator[StoredMessage]:
        """Every message, the last one first; what is no message, as a user may write here, is passed over.

        `before`: only those before this number. `originals`: with what frameworks had in their place.
        """
        after = None if before is None else _key(before)
        kept = self.reads.scan(self.who, self.turns, exact=True, after=after)
        return filter(None, (to_stored_message(each, originals=originals) for each in kept))

    def last(self) -> int:
        """The number of the last message; 0 where there is none."""
        newest = self._memories.list(self.who, self.turns, limit=_LOOKED_AT, exact=True)
        return next((_LAST - int(entry.key) for entry in newest if _is_number(entry.key)), 0)

    def unmerged(self) -> int:
        """How many messages are not in the summary of the user's conversations, at most."""
        return self.last() - self.state()[0].merged

    def state(self) -> tuple[SessionState, int]:
        """What is known of it, and the revision of that."""
        return read_record(self.reads, self.who, self._summary, STATE, SessionState)

    def put_state(self, state: SessionState, revision: int, bound: KeyBinding) -> DeferredPut:
        """The operation that changes what is known of it, unless somebody else has since that revision.

        `bound`: what `Memories.key_binding` gave before anything was read, so that no wipe lies in between.
        """
        value = msgspec.to_builtins(state)
        return DeferredPut(self._summary, STATE, value, expected_revision=revision, bound=bound)

    def add(
        self,
        messages: Sequence[Message],
        beside: Callable[[], Sequence[BatchOperation]],
        since: KeyBinding | None = None,
    ) -> None:
        """Keeps messages after those that are there, with what else is to be written.

        Of two who add at once, one waits for the other. What falls out of the window is summarised in the
        same transaction, each message once. `since`: what `key_binding` gave when these were begun, if it
        was some time ago; if the user was wiped in between, nothing is kept.
        """
        spec = self.agent.memory.conversation

        def added() -> None:
            if since:
                self._memories.refuse_wiped(self.who.user_id, since)
            bound, (state, revision) = self._memories.key_binding(self.who.user_id), self.state()
            newest, now = self.last(), self._memories.now()
            last = max(newest, self._beyond(state))  # retention may have taken the last
            dated = [structs.replace(each, at=each.at or now) for each in messages]
            new = [StoredMessage(last + n, "", each) for n, each in enumerate(dated, 1)]
            operations: list[BatchOperation] = [self._kept(said, since) for said in new]
            if spec.enabled and spec.summarize:
                changed = self._summarised(state, new)
                operations += [] if changed is state else [self.put_state(changed, revision, bound)]
            if newest:
                operations.append(Touch(self.turns, _key(newest)))  # it is still there, or all begins anew
            self._memories.batch_in_session(self.who, [*operations, *beside()], self.places)

        retry_conflicts(added)

    def _kept(self, said: StoredMessage, since: KeyBinding | None) -> DeferredPut:
        value, index = _value(said.message), self._index(said.message)
        return DeferredPut(self.turns, _key(said.number), value, index, create_only=True, bound=since)

    def _index(self, message: Message) -> dict[str, str] | None:
        """The text by which a message is found, if messages are to be."""
        if not recalls_turns(self.agent.memory) or message.role == "tool" or not message.content:
            return None
        most = self._memories.settings.max_index_bytes
        return {"text": message.content.encode()[:most].decode(errors="ignore")}

    def replace_last(self, last: Message, message: Message | None) -> None:
        """Puts a message, or nothing, in the place of the last one; Conflict where that is not `last` now."""
        bound, (state, revision) = self._memories.key_binding(self.who.user_id), self.state()
        newest = next(self.newest_first(originals=True), None)
        held = newest and self._memories.get(self.who, self.turns, _key(newest.number))
        if newest is None or held is None or held.id != newest.id or newest.message != last:
            raise Conflict("the last message of this conversation is another one by now")
        place, following = (self.turns, _key(newest.number)), max(newest.number, self._beyond(state)) + 1
        changed: BatchOperation = Delete(*place, expected_revision=held.revision)
        if message is not None:
            dated = structs.replace(message, at=message.at or last.at)
            changed = Put(*place, _value(dated), self._index(dated), expected_revision=held.revision)
        unadded = Delete(self.turns, _key(following), expected_revision=0)  # nobody has added one since,
        unmoved = self.put_state(state, revision, bound)  # nor changed where the next one goes
        try:
            self._memories.batch(self.who, [changed, unadded, unmoved])
        except KeyDestroyed:
            raise Conflict("the user was wiped meanwhile") from None

    def _beyond(self, state: SessionState) -> int:
        """The last number that was given to a message, as far as the state knows: it may be there no more."""
        return max(state.ended, state.merged, state.covered)

    def end(self, beside: Callable[[], Sequence[BatchOperation]]) -> None:
        """Notes that nothing more is to be said, with what else is to be written."""

        def ended() -> None:
            bound, (state, revision) = self._memories.key_binding(self.who.user_id), self.state()
            changed = structs.replace(state, ended=self.last())
            self._memories.batch(self.who, [self.put_state(changed, revision, bound), *beside()])

        retry_conflicts(ended)

    def _summarised(self, state: SessionState, new: Sequence[StoredMessage]) -> SessionState:
        """With the summary of what these messages push out of the window; the same where that is nothing."""
        left = [*reversed(new)]
        for said in self.newest_first():
            if said.number <= state.covered:
                break
            left.append(said)
        _, fallen = split_window(group_tool_calls(left[::-1]), self.agent.memory.conversation, self._count)
        if not fallen:
            return state
        messages = [said.message for said in fallen]
        points = extend_summary(state.points, messages, most_tokens=RUNNING_TOKENS, count=self._count)
        return structs.replace(state, covered=fallen[-1].number, points=points)

    def count(self) -> int:
        """How many messages there are."""
        return self.reads.count(self.who, self.turns, exact=True)

    def clear(self) -> int:
        """Takes the session away and leaves no trace of it; how many messages it had."""
        count = self.count()
        self._memories.clear(self.who, self.turns)
        self._memories.clear(self.who, self._summary)
        return count


def retry_conflicts(write: Callable[[], None]) -> None:
    """Writes what was worked out from what is there, again and again until nobody comes in between."""
    for attempt in range(_ATTEMPTS):
        try:
            return write()
        except (Conflict, NotFound, KeyDestroyed):
            time.sleep(random.random() * min(attempt, 10) * 0.002)  # noqa: S311
    raise Conflict("too many change this conversation at once; try later")


def new_messages(said: Sequence[Message], last: Message | None) -> list[Message]:
    """Those of a conversation, as a caller tells it, that come after the `last` message that is kept of it.

    A caller who does not tell that one has told something else than what was said: then it is what they said
    since the last answer, and if nothing is kept at all, everything.
    """
    if last is None:
        return [*said]
    places = [n for n, each in enumerate(said) if _same(each, last)]
    if not places:
        places = [n for n, each in enumerate(said) if each.role == "assistant" and not each.tool_calls]
    return [*said[places[-1] + 1 :]] if places else [*said]


def _same(one: Message, other: Message) -> bool:
    told = [
        (each.role, each.content or "", each.tool_call_id, [call["id"] for call in each.tool_calls])
        for each in (one, other)
    ]
    return told[0] == told[1]


def parse_messages(given: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    """Messages that can be kept, at most `MOST_MESSAGES`, as records; an error names one that cannot."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not 1 <= len(given) <= MAX_MESSAGES:
        raise InvalidRequest("messages", f"a list of 1 to {MAX_MESSAGES} messages")
    return [parse_message(each, f"messages[{place}]") for place, each in enumerate(given)]


def parse_message(given: Message | Mapping[str, Any], argument: str) -> Message:
    """A message that can be kept, as a record; an error names the field of the argument that is wrong."""
    try:
        message = convert(msgspec.to_builtins(given), Message)
        field, expected = _wrong(message) or ("", "")
    except msgspec.ValidationError as error:
        refused = validation.to_invalid_request(error, Message, "role")
        field, expected = refused.field, refused.expected
    except (TypeError, UnicodeEncodeError):
        field, expected = "content", "JSON data"
    if field:
        raise InvalidRequest(f"{argument}.{field}", expected)
    return message


def _wrong(message: Message) -> tuple[str, str] | None:
    """The field of a message for which it cannot be kept, and what was expected there."""
    calls = message.tool_calls
    if message.role not in _ROLES:
        return "role", f"one of {', '.join(_ROLES)}: instructions are the spec's"
    if message.content is None and not calls:
        return "content", "a text, unless there are tool calls"
    if calls and message.role != "assistant":
        return "tool_calls", "none but of the assistant"
    if not all(map(_is_call, calls)) or len({call["id"] for call in calls}) < len(calls):
        return "tool_calls", "{id, type: function, function: {name, arguments}}, each with an id of its own"
    if (message.tool_call_id is None) is (message.role == "tool"):
        return "tool_call_id", "the call that a message of the role tool answers"
    return None


def _is_call(call: Mapping[str, Any]) -> bool:
    """Whether chat APIs take it as the call of a tool."""
    function = call.get("function")
    if call.get("type") != "function" or not isinstance(function, dict):
        return False
    return all(
        isinstance(text, str) for text in (call.get("id"), function.get("name"), function.get("arguments"))
    )


def group_tool_calls(messages: Sequence[StoredMessage]) -> list[list[StoredMessage]]:
    """Messages in their order, each with those it must not be parted from: a call and its results."""
    found: list[list[StoredMessage]] = []
    waiting: set[str] = set()
    for said in messages:
        if said.message.role == "tool" and said.message.tool_call_id in waiting:
            found[-1].append(said)
            waiting.discard(said.message.tool_call_id)
        else:
            found.append([said])
            waiting = {call["id"] for call in said.message.tool_calls}
    return found


def is_complete(unit: Sequence[StoredMessage]) -> bool:
    """Whether every call has its result and every result its call, as chat APIs want it."""
    first, *rest = (said.message for said in unit)
    return first.role != "tool" and len(rest) == len(first.tool_calls)


def split_window(
    units: Sequence[list[StoredMessage]], spec: Conversation, count: Callable[[str], int]
) -> tuple[list[list[StoredMessage]], list[StoredMessage]]:
    """The last units that a window holds, and the messages that are older."""
    kept, messages, tokens = len(units), 0, 0
    for unit in reversed(units):
        messages, tokens = (
            messages + len(unit),
            tokens + sum(message_tokens(said.message, count) for said in unit),
        )
        if messages > spec.window_size or (spec.max_tokens and tokens > spec.max_tokens):
            break
        kept -= 1
    return [*units[kept:]], [said for unit in units[:kept] for said in unit]


def message_tokens(message: Message, count: Callable[[str], int]) -> int:
    """How many tokens a message takes."""
    calls = msgspec.json.encode(message.tool_calls).decode() if message.tool_calls else None
    texts = filter(None, (message.content, calls, message.name, message.tool_call_id))
    return MESSAGE_TOKENS + sum(map(count, texts))


def decode_value(memory: Memory, kind: type[T]) -> T | None:
    """A memory's value as a record; None for what a user, whose room it is, wrote there otherwise."""
    try:
        return convert(memory.value, kind)
    except (msgspec.ValidationError, OverflowError):
        return None


def read_record(
    reads: MemoryReader, who: Principal, room: Namespace, key: str, kind: type[T]
) -> tuple[T, int]:
    """What is kept at a key, as a record that is empty where it is none; and its revision, 0 for nothing."""
    found = reads.get(who, room, key)
    return (found and decode_value(found, kind)) or kind(), found.revision if found else 0


def to_stored_message(memory: Memory, *, originals: bool = False) -> StoredMessage | None:
    """The message that a memory is; None for what is none, as a user may write to their room."""
    message = decode_value(memory, Message) if _is_number(memory.key) else None
    if message is None or _wrong(message):
        return None
    at, original = message.at or memory.created_at, message.original if originals else []
    return StoredMessage(
        _LAST - int(memory.key), memory.id, structs.replace(message, at=at, original=original)
    )


def _is_number(key: str) -> bool:
    return len(key) == 12 and key.isascii() and key.isdigit()


def _key(number: int) -> str:
    return f"{_LAST - number:012d}"


def _value(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(message)
    validation.encode_json(value, "messages")
    return value
