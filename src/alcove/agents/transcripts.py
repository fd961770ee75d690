"""The transcript of a session: its messages, its state, and the summary of those that left its window.

A message is a memory of its user (`turns:<agent>:u:<user>:<session>`), and so is the state of a session
(`summary:<agent>:u:<user>:<session>`), so policy, sealing, retention, export and erasure apply to both.
Keys count down, so that the newest message sorts first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct, structs

from alcove.agents.rooms import Rooms, decode_value, read_record, retry_conflicts
from alcove.agents.specs.records import AgentMemory, Conversation
from alcove.agents.summariser import Point, Prose, extend_summary
from alcove.agents.tokens import message_tokens
from alcove.core import validation
from alcove.core.decoding import convert
from alcove.core.errors import Conflict, InvalidRequest, KeyDestroyed
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import BatchOperation, DeferredPut, Delete, KeyBinding, Memory, Message, Touch
from alcove.store.memories import Memories
from alcove.store.session_cache import MemoryReader, SessionLocation

MAX_MESSAGES = 200
"""Messages that one call may add."""
_ROLES = ("user", "assistant", "tool")
Text = Annotated[str, Meta(min_length=1)]


class StoredMessage(NamedTuple):
    """A message of a session: its number, counted from 1, and the id of its memory."""

    number: int
    id: str
    message: Message


def user_message(text: str, field: str = "message") -> Message:
    """Makes a user's message; an error names the field that the text came in."""
    if not validation.encode_text(text, field).strip():
        raise InvalidRequest(field, "a text that is not blank")
    return Message(role="user", content=text)


def parse_messages(messages: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    """Checks messages before they are stored; an error names the first invalid one."""
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
    if not is_list or not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidRequest("messages", f"a list of 1 to {MAX_MESSAGES} messages")
    return [parse_message(message, f"messages[{n}]") for n, message in enumerate(messages)]


def parse_message(data: Message | Mapping[str, Any], argument: str) -> Message:
    """Checks a message before it is stored; an error names the argument and its invalid field."""
    try:
        message = convert(msgspec.to_builtins(data), Message)
        problem = find_problem(message)
    except msgspec.ValidationError as error:
        invalid = validation.to_invalid_request(error, Message, "role")
        problem = invalid.field, invalid.expected
    except (TypeError, UnicodeEncodeError):
        problem = "content", "JSON data"
    if problem:
        raise InvalidRequest(f"{argument}.{problem[0]}", problem[1])
    return message


def find_problem(message: Message) -> tuple[str, str] | None:
    """Why a message cannot be stored: the invalid field, and what was expected there; None if it can."""
    calls = message.tool_calls
    if message.role not in _ROLES:
        return "role", f"one of {', '.join(_ROLES)}; instructions belong into the spec"
    if message.content is None and not calls:
        return "content", "a text, unless there are tool calls"
    if calls and message.role != "assistant":
        return "tool_calls", "none, unless the role is assistant"
    if not all(map(_is_tool_call, calls)) or len({call["id"] for call in calls}) < len(calls):
        return "tool_calls", "{id, type: function, function: {name, arguments}}, each with a unique id"
    if (message.tool_call_id is None) is (message.role == "tool"):
        return "tool_call_id", "the id of the call that it answers if the role is tool, otherwise nothing"
    return None


def _is_tool_call(call: Mapping[str, Any]) -> bool:
    match call:
        case {"type": "function", "id": str(), "function": {"name": str(), "arguments": str()}}:
            return True
    return False


def group_tool_calls(messages: Sequence[StoredMessage]) -> list[list[StoredMessage]]:
    """Groups messages, in their order, so that tool calls and their results stay together."""
    groups: list[list[StoredMessage]] = []
    open_calls: set[str] = set()
    for each in messages:
        if each.message.role == "tool" and each.message.tool_call_id in open_calls:
            groups[-1].append(each)
            open_calls.discard(each.message.tool_call_id)
        else:
            groups.append([each])
            open_calls = {call["id"] for call in each.message.tool_calls}
    return groups


def is_complete(group: Sequence[StoredMessage]) -> bool:
    """Whether each call has its result and each result its call, which chat APIs require."""
    first, *results = (each.message for each in group)
    return first.role != "tool" and len(results) == len(first.tool_calls)


def window_start(
    groups: Sequence[Sequence[StoredMessage]], spec: Conversation, count: Callable[[str], int]
) -> int:
    """The index of the first group that the window of a conversation holds."""
    messages = tokens = 0
    for start in range(len(groups), 0, -1):
        group = groups[start - 1]
        messages += len(group)
        tokens += sum(message_tokens(each.message, count) for each in group)
        if messages > spec.window_size or (spec.max_tokens and tokens > spec.max_tokens):
            return start
    return 0


def new_messages(messages: Sequence[Message], last: Message | None) -> list[Message]:
    """The new messages of a conversation that a caller sends whole: those after `last`, which is stored.

    If the caller's conversation does not contain it, those after its last answer. If nothing is stored, all.
    """
    if last is None:
        return [*messages]
    positions = [n for n, each in enumerate(messages) if _identity(each) == _identity(last)] or [
        n for n, each in enumerate(messages) if each.role == "assistant" and not each.tool_calls
    ]
    return [*messages[positions[-1] + 1 :]] if positions else [*messages]


def _identity(message: Message) -> tuple[object, ...]:
    calls = [call["id"] for call in message.tool_calls]
    return message.role, message.content or "", message.tool_call_id, calls


RUNNING_TOKENS = 400
"""The most tokens of the summary of a session's older messages."""
_LAST_KEY = 10**12
_is_number = re.compile("[0-9]{12}").fullmatch
_MAX_KEYS = 20
"""Keys among which the newest message is looked for: users may have written others to the room."""
STATE, ROLLING = "state", "rolling"
"""The keys of a session's state, and of the summary of all ended sessions."""


class SessionState(
    Struct, frozen=True, omit_defaults=True, rename={"points": "running", "prose_covered": "written"}
):
    """The stored state of a session, without its messages; numbers are those of messages, 0 for none."""

    ended: int = 0
    """The last message when the session was ended."""
    merged: int = 0
    """The last message that is in the rolling summary."""
    covered: int = 0
    """The last message that is in `points`."""
    points: list[Point] = []
    """The summary of the messages that fell out of the window."""
    prose_covered: int = 0
    """The last message that is in `prose`."""
    prose: Prose | None = None
    """The same summary in a model's words, up to its last update."""
    trouble: str = ""
    """Why the model's last attempt failed; empty if it did not."""


class RollingSummary(Struct, frozen=True, kw_only=True):
    """The summary of a user's ended conversations with an agent."""

    points: list[Point] = []
    conversations: int = 0
    """How often a conversation with new messages was merged."""
    updated_at: datetime | None = None
    prose: Prose | None = None
    """The same summary in a model's words, up to its last update."""
    trouble: str = ""
    """Why the model's last attempt failed; empty if it did not."""


def recalls_turns(memory: AgentMemory) -> bool:
    """Whether the agent finds earlier messages by their content."""
    return memory.conversation.enabled and memory.conversation.recall > 0


def turns_room(agent: str, user: str, *session: str) -> Namespace:
    """The room of a session's messages, or the namespace above the rooms of all sessions."""
    return Namespace.checked(("turns", agent, "u", user, *session), "session_id")


def summary_room(agent: str, user: str, *session: str) -> Namespace:
    """The room of a session's state, or of the rolling summary."""
    return Namespace.checked(("summary", agent, "u", user, *session), "session_id")


def conversation_principal(caller: Principal, agent: str) -> Principal:
    """The agent acting for a caller, with grants for their conversations only."""
    rooms = turns_room(agent, caller.user_id), summary_room(agent, caller.user_id)
    return Principal(caller.user_id, caller.client_id, caller.claims, agent, tuple(map(Grant, rooms)))


class Transcript:
    """The messages and the state of one session, read and written for one caller."""

    def __init__(
        self,
        memories: Memories,
        rooms: Rooms,
        caller: Principal,
        count: Callable[[str], int],
        *,
        cached: bool = False,
    ) -> None:
        """`rooms`: of the session. `count`: counts the tokens of a text.

        `cached`: whether to read copies in the session cache, if there is one.
        """
        self._memories, self._count = memories, count
        self.agent, self.session = rooms.agent, rooms.session()
        name, user = rooms.agent.name, rooms.user
        self.principal = conversation_principal(caller, name)
        self.actor = f"{name}:u:{user}" if rooms.authentication else name
        self.turns = turns_room(name, user, self.session)
        self._state = summary_room(name, user, self.session), STATE
        self._rolling = summary_room(name, user), ROLLING
        self.location = SessionLocation(self.turns, self._state, self._rolling)
        self._reader: MemoryReader = (
            memories.reader.for_session(self.principal, self.location) if cached else memories.reader
        )

    def newest_first(self, before: int | None = None, *, originals: bool = False) -> Iterator[StoredMessage]:
        """All messages, the newest first; other values that users wrote to the room are skipped.

        `before`: only messages before this number. `originals`: with the frameworks' own records of them.
        """
        after = None if before is None else _key(before)
        memories = self._reader.scan(self.principal, self.turns, exact=True, after=after)
        return filter(None, (to_stored_message(each, originals=originals) for each in memories))

    def last_number(self) -> int:
        """The number of the last message; 0 if there is none."""
        entries = self._memories.searcher.list(self.principal, self.turns, limit=_MAX_KEYS, exact=True)
        return next((_LAST_KEY - int(entry.key) for entry in entries if _is_number(entry.key)), 0)

    def count(self) -> int:
        """How many messages there are."""
        return self._reader.count(self.principal, self.turns, exact=True)

    def state(self) -> tuple[SessionState, int]:
        """The session's state and its revision."""
        return read_record(self._reader, self.principal, *self._state, SessionState)

    def rolling_summary(self) -> tuple[RollingSummary, int]:
        """The summary of all the user's ended sessions with the agent, and its revision."""
        return read_record(self._reader, self.principal, *self._rolling, RollingSummary)

    def put_operation(
        self, record: SessionState | RollingSummary, revision: int, bound: KeyBinding
    ) -> DeferredPut:
        """The operation that replaces the state, or the rolling summary, if it has this revision.

        `bound`: the user's key as `key_binding` returned it before the record was read, so that no wipe lies
        in between.
        """
        location = self._state if isinstance(record, SessionState) else self._rolling
        return DeferredPut(*location, msgspec.to_builtins(record), expected_revision=revision, bound=bound)

    def add(
        self, messages: Sequence[Message], also: Sequence[BatchOperation], since: KeyBinding | None = None
    ) -> None:
        """Appends messages, with other operations in the same transaction.

        Concurrent calls wait for each other. Messages that fall out of the window are summarised in the same
        transaction, each once. `since`: the user's key when a turn that took long began; if the user was
        wiped since then, nothing is stored.
        """
        spec, user = self.agent.memory.conversation, self.principal.user_id

        def write() -> None:
            if since:
                self._memories.writer.refuse_wiped(user, since)
            bound, (state, revision) = self._memories.writer.key_binding(user), self.state()
            newest, now = self.last_number(), self._memories.now()
            # Retention may have deleted the last messages.
            last = max(newest, state.ended, state.merged, state.covered)
            new = [
                StoredMessage(last + n, "", structs.replace(each, at=each.at or now))
                for n, each in enumerate(messages, 1)
            ]
            operations: list[BatchOperation] = [
                structs.replace(self._put(each.number, each.message), create_only=True, bound=since)
                for each in new
            ]
            if spec.enabled and spec.summarize:
                changed = self._summarise(state, new)
                operations += [] if changed is state else [self.put_operation(changed, revision, bound)]
            if newest:
                operations.append(Touch(self.turns, _key(newest)))  # fails if it was deleted since
            self._memories.writer.batch_in_session(self.principal, [*operations, *also], self.location)

        retry_conflicts(write)

    def _put(self, number: int, message: Message) -> DeferredPut:
        """Stores a message, with its text for searches if the agent recalls messages."""
        value, index = msgspec.to_builtins(message), None
        validation.encode_json(value, "messages")
        if recalls_turns(self.agent.memory) and message.role != "tool" and message.content:
            max_bytes = self._memories.settings.max_index_bytes
            index = {"text": message.content.encode()[:max_bytes].decode(errors="ignore")}
        return DeferredPut(self.turns, _key(number), value, index, bound=None)

    def _summarise(self, state: SessionState, new: Sequence[StoredMessage]) -> SessionState:
        """Adds the messages that `new` ones push out of the window to the summary; the same state if none."""
        messages = [*reversed(new)]
        messages += takewhile(lambda each: each.number > state.covered, self.newest_first())
        groups = group_tool_calls(messages[::-1])
        start = window_start(groups, self.agent.memory.conversation, self._count)
        if not start:
            return state
        older = [each.message for group in groups[:start] for each in group]
        points = extend_summary(state.points, older, most_tokens=RUNNING_TOKENS, count=self._count)
        return structs.replace(state, covered=groups[start - 1][-1].number, points=points)

    def replace_last(self, last: Message, message: Message | None) -> None:
        """Replaces the last message, or deletes it; Conflict if the last message is no longer `last`."""
        bound, (state, revision) = self._memories.writer.key_binding(self.principal.user_id), self.state()
        newest = next(self.newest_first(originals=True), None)
        memory = newest and self._memories.reader.get(self.principal, self.turns, _key(newest.number))
        if newest is None or memory is None or memory.id != newest.id or newest.message != last:
            raise Conflict("the last message of this conversation has changed: read it again")
        following = max(newest.number, state.ended, state.merged, state.covered) + 1
        change: BatchOperation = Delete(self.turns, memory.key, expected_revision=memory.revision)
        if message is not None:
            put = self._put(newest.number, structs.replace(message, at=message.at or last.at))
            change = structs.replace(put, expected_revision=memory.revision)
        # Both fail if someone added a message since: it would have this key, and the state may have changed.
        none_added = Delete(self.turns, _key(following), expected_revision=0)
        same_state = self.put_operation(state, revision, bound)
        try:
            self._memories.writer.batch(self.principal, [change, none_added, same_state])
        except KeyDestroyed:
            raise Conflict("the user was wiped in the meantime") from None

    def end(self, also: Sequence[BatchOperation]) -> None:
        """Notes that the conversation is over, with other operations in the same transaction."""

        def write() -> None:
            bound, (state, revision) = self._memories.writer.key_binding(self.principal.user_id), self.state()
            changed = structs.replace(state, ended=self.last_number())
            self._memories.writer.batch(self.principal, [self.put_operation(changed, revision, bound), *also])

        retry_conflicts(write)

    def clear(self) -> int:
        """Erases the session with all versions, and returns how many messages it had."""
        count = self.count()
        self._memories.eraser.clear(self.principal, self.turns)
        self._memories.eraser.clear(self.principal, self._state[0])
        return count


def to_stored_message(memory: Memory, *, originals: bool = False) -> StoredMessage | None:
    """The message in a memory; None if it is something else, as users may write to their rooms."""
    message = decode_value(memory, Message) if _is_number(memory.key) else None
    if message is None or find_problem(message):
        return None
    time, original = message.at or memory.created_at, message.original if originals else []
    message = structs.replace(message, at=time, original=original)
    return StoredMessage(_LAST_KEY - int(memory.key), memory.id, message)


def _key(number: int) -> str:
    return f"{_LAST_KEY - number:012d}"
