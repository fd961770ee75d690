"""Turns of agents: prepares one, asks the model, runs the tools that it calls, and stores the messages.

The context decides what a turn can reach, not the model: tools are bound to the turn's rooms before the model
is asked, and a tool that the turn does not have is refused in one line. A turn is stored as a whole once it
has ended; one that failed, or whose caller has left, stores no message.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from alcove.agents.context import Budget, ContextReceipt
from alcove.agents.rooms import Rooms
from alcove.agents.specs.records import Agent
from alcove.agents.tokens import MIN_ANSWER_TOKENS, TurnBudget, json_tokens, message_tokens
from alcove.agents.tools import tool_definitions
from alcove.agents.transcripts import (
    StoredMessage,
    Text,
    group_tool_calls,
    is_complete,
    new_messages,
    turns_room,
    user_message,
)
from alcove.core import cancellation, validation
from alcove.core.clock import Stopwatch
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, Unavailable, UpstreamFailed, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Message
from alcove.core.settings import LLMSettings
from alcove.llm.model import (
    AnswerMeter,
    FailedAttempt,
    Model,
    ModelAnswer,
    ModelRequest,
    TokenUse,
    parse_arguments,
    seconds_left,
)

if TYPE_CHECKING:
    from alcove.agents.service import Agents

MAX_TOOL_CALLS = 32
"""Tool calls in one round; more are refused."""
_POLL_SECONDS = 0.01
MAX_WAITING_TURNS = 8
"""Turns that may wait for the one in progress, in each session and process."""
_SEPARATOR = "\n\n"
"""Stands between the texts of two rounds."""


class ToolUse(Struct, frozen=True, kw_only=True):
    """A tool that was called in a turn, and the text that the model got."""

    tool: str
    arguments: dict[str, Any]
    outcome: str
    """`ok`, or the code of the error."""
    text: str


class Reply(Struct, frozen=True, kw_only=True):
    """The result of a turn."""

    agent: str
    session_id: str | None
    text: str
    finish: str
    """Why it ended: stop, length, content_filter, or tool_calls where the caller has to run tools."""
    tools: list[ToolUse]
    tool_calls: list[dict[str, Any]]
    """Calls of the caller's own tools, in OpenAI's format."""
    rounds: int
    """How often the model was asked."""
    usage: TokenUse
    stored: bool
    """Whether it was stored in the session."""
    receipt: ContextReceipt
    timings_ms: dict[str, float]
    sent: list[Message]
    """The model's last request, if the caller asked to see it."""


class ChatEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened in a turn: a piece of the answer, a tool that was called, or its end."""

    text: str | None = None
    tool: ToolUse | None = None
    reply: Reply | None = None


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """What a turn is about, and where it takes place."""

    agent: str
    messages: Sequence[Message]
    """The new messages, or the whole of a conversation that is not stored."""
    session_id: str | None
    """None for a conversation that is not stored."""
    is_resent: bool = False
    """True if `messages` may begin with messages that the session has already."""
    team: str | None = None
    instances: Mapping[str, str] = field(default_factory=dict)
    instructions: Sequence[str] = ()
    """The caller's own."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The caller's own, which are not run here."""
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: int | None = None
    stream: bool = False
    explain: bool = False


class Chats:
    """Runs turns of agents with a model, each in the thread that calls it."""

    def __init__(self, agents: Agents, model: Model | None, settings: LLMSettings) -> None:
        self.agents, self._model, self.settings = agents, model, settings
        self._waiting: Counter[Namespace] = Counter()
        """Turns that wait for their session, by its room."""
        self._mutex = threading.Lock()

    @property
    def model(self) -> Model:
        """The model; raises Unavailable if there is none."""
        if self._model is None:
            raise Unavailable("no LLM is configured: set --llm-url or ALCOVE_LLM_URL")
        return self._model

    def chat(
        self,
        principal: Principal,
        agent: str,
        session_id: str,
        message: Text,
        *,
        instances: Mapping[str, str] | None = None,
        budget_tokens: Budget | None = None,
        explain: bool = False,
    ) -> Reply:
        """Says something to an agent, and returns its answer; the turn is stored in the session.

        `session_id`: the conversation. `message`: what the user says. `instances`: ids of runs by their
        kind. `budget_tokens`: for what the model is sent. `explain`: whether to return that, too.
        """
        return self.reply(
            principal, _request(agent, session_id, message, instances, budget_tokens, explain=explain)
        )

    def chat_stream(
        self,
        principal: Principal,
        agent: str,
        session_id: str,
        message: Text,
        *,
        instances: Mapping[str, str] | None = None,
        budget_tokens: Budget | None = None,
        explain: bool = False,
    ) -> Iterator[ChatEvent]:
        """The same, with the answer piece by piece as it comes; the last event has the whole reply."""
        request = _request(agent, session_id, message, instances, budget_tokens, stream=True, explain=explain)
        yield from self.run(principal, request)

    def reply(self, principal: Principal, request: TurnRequest) -> Reply:
        """Runs a turn to its end and returns its reply."""
        return next(event.reply for event in self.run(principal, request) if event.reply)

    def run(self, principal: Principal, request: TurnRequest) -> Iterator[ChatEvent]:
        """Runs a turn; gives pieces of the answer and tool calls as they come, then the reply.

        A cancelled turn stops while it waits for the model or for another turn of its session; tools and
        transactions that have begun are completed.
        """
        model, agents = self.model, self.agents
        spec = agents.agent(principal, request.agent)
        if not agents.talks:
            raise NotFound(f"{quote_name(request.agent)} does not talk: it has no spec on this server")
        watch, deadline = Stopwatch(), time.monotonic() + self.settings.turn_seconds
        with self._only_turn_of_session(principal, spec, request.session_id, watch, deadline):
            with watch.stage("context"):
                make_turn = partial(
                    _Turn, agents, model, self.settings, principal, spec, request, watch, deadline
                )
                turn = cancellation.run_uncancelled(make_turn)
            try:
                yield from turn.run_rounds()
                conversation = spec.memory.conversation
                stores = spec.auto_memory or conversation.enabled or spec.memory.session_memory.enabled
                is_stored = request.session_id is not None and not turn.caller_calls and stores
                if is_stored:
                    with watch.stage("store"):
                        cancellation.run_uncancelled(turn.store)
            except AlcoveError as error:
                if turn.budget.use.total_tokens:
                    error.details["usage"] = msgspec.to_builtins(turn.budget.use)
                raise
            finally:
                if turn.budget.use.total_tokens:
                    agents.calls.note_use(spec.name, principal.user_id, turn.key, turn.budget.use)
            yield ChatEvent(reply=turn.to_reply(is_stored=is_stored))

    @contextmanager
    def _only_turn_of_session(
        self, principal: Principal, agent: Agent, session: str | None, watch: Stopwatch, deadline: float
    ) -> Iterator[None]:
        """Waits until no other turn of the session is in progress, in any process."""
        if session is None:
            yield
            return
        memories, user = self.agents.memories, principal.user_id
        room = turns_room(agent.name, user, Rooms(agent, user, session).session())
        with watch.stage("queue"), self._place_in_queue(room):
            while not memories.try_lock(room):
                seconds_left(deadline)
                cancellation.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            memories.unlock(room)

    @contextmanager
    def _place_in_queue(self, room: Namespace) -> Iterator[None]:
        """Counts the turns that wait in a session: each has a thread, which other sessions need."""
        with self._mutex:
            if self._waiting[room] == MAX_WAITING_TURNS:
                raise Unavailable("too many messages wait in this session; send the next one after an answer")
            self._waiting[room] += 1
        try:
            yield
        finally:
            with self._mutex:
                self._waiting[room] -= 1
                if not self._waiting[room]:
                    del self._waiting[room]


def _request(
    agent: str,
    session_id: str,
    message: str,
    instances: Mapping[str, str] | None,
    budget: int | None,
    *,
    explain: bool,
    stream: bool = False,
) -> TurnRequest:
    """A turn with one message of a user, in a session."""
    if budget is not None:
        validation.check_integer(budget, "budget_tokens", 1, 10_000_000)
    return TurnRequest(
        agent=agent,
        messages=[user_message(message)],
        session_id=session_id,
        instances=instances or {},
        budget=budget,
        stream=stream,
        explain=explain,
    )


class _Turn:
    """One turn in progress."""

    def __init__(
        self,
        agents: Agents,
        model: Model,
        settings: LLMSettings,
        principal: Principal,
        spec: Agent,
        request: TurnRequest,
        watch: Stopwatch,
        deadline: float,
    ) -> None:
        """Builds the context of the turn; raises InvalidRequest if it is too large or says nothing new."""
        self._agents, self._model, self._settings, self._caller = agents, model, settings, principal
        self._request, self._watch, self._deadline = request, watch, deadline
        self._turn = turn = agents.turn(principal, spec, request.session_id, request.team, request.instances)
        for index, tool in enumerate(request.tools):
            if tool["function"]["name"] in turn.tools:
                field = f"tools[{index}].function.name"
                raise InvalidRequest(field, "another name: the agent has such a tool")
        self.key = agents.memories.writer.lasting_key_binding(principal.user_id)
        """The user's data key: once a wipe has destroyed it, nothing of the turn is stored."""
        self._tools = tool_definitions(turn.rooms.agent, turn.rooms.team is not None)
        history = self._split_messages()
        self._prepare(history)
        self._sent = [*self._context.messages]
        """The messages of the model's next request."""
        self._answer = ModelAnswer(text="")
        """The model's last answer."""
        self._texts: list[str] = []
        """Its text, over all rounds."""
        self._tool_uses: list[ToolUse] = []
        self._rounds = 0
        self.caller_calls: list[dict[str, Any]] = []
        """Calls of the caller's own tools, which end the turn."""

    def _split_messages(self) -> Sequence[Message] | None:
        """Sets the messages that the session does not have yet, and returns those before if none are stored.

        Calls without a result and results without a call are left out: providers refuse both.
        """
        request, settings, sessions = self._request, self._settings, self._agents.sessions
        messages, start = [*request.messages], 0
        if request.session_id is None:
            start = max((n for n, each in enumerate(messages) if each.role == "user"), default=0)
        elif request.is_resent:
            start = len(messages) - len(new_messages(messages, sessions.last_message(self._turn)))
        numbered = [StoredMessage(n, "", message) for n, message in enumerate(messages[start:])]
        groups = filter(is_complete, group_tool_calls(numbered))
        self._new = [each.message for group in groups for each in group]
        if not self._new or self._new[-1].role == "assistant":
            raise InvalidRequest("messages", "something new of the user, or of a tool, after what was said")
        if request.session_id is not None and self._turn.rooms.agent.memory.conversation.enabled:
            return None
        tokens = 0
        for message in messages[:start]:  # refuses a conversation without counting all of it
            tokens += message_tokens(message, sessions.count)
            if tokens > settings.turn_tokens:
                raise InvalidRequest(
                    "messages", f"at most {settings.turn_tokens} tokens in one turn (--turn-tokens)"
                )
        return messages[:start]

    def _prepare(self, history: Sequence[Message] | None) -> None:
        """Builds the context and sets the budget; refuses a request that exceeds either."""
        request, settings, sessions = self._request, self._settings, self._agents.sessions
        limit, sizes = settings.context_tokens, dict[str, int]()
        if (request.budget or 0) > limit:
            raise InvalidRequest("budget_tokens", f"at most {limit}, which --context-tokens allows")
        for name, option in {"tools": request.tools, **request.options}.items():
            sizes[name] = tokens = json_tokens(option, sessions.count)
            if tokens > limit:
                raise InvalidRequest(name, f"at most {limit} tokens (--context-tokens), not {tokens}")
        self._context = sessions.contexts.build(
            self._turn,
            self._new,
            (request.budget or limit) - sum(sizes.values()),
            history=history,
            instructions=request.instructions,
        )
        tools = json_tokens(self._tools, sessions.count) + sizes.pop("tools")
        messages = self._context.receipt.total_tokens + sum(sizes.values())
        self.budget = TurnBudget(settings, messages, tools)
        in_turn = f"in one turn (--turn-tokens {settings.turn_tokens})"
        if self.budget.answer_room(tools=False) < MIN_ANSWER_TOKENS:
            field = "messages" if request.is_resent else "message"
            raise InvalidRequest(field, f"fewer tokens than {messages} {in_turn}")
        if request.tools and self.budget.answer_room(tools=True) < MIN_ANSWER_TOKENS:
            raise InvalidRequest("tools", f"fewer tokens than {tools} {in_turn}")

    def run_rounds(self) -> Iterator[ChatEvent]:
        """Asks the model, and runs the tools it calls, until it answers or calls a tool of the caller's."""
        callers = {each["function"]["name"] for each in self._request.tools}
        while True:
            tools: Sequence[Mapping[str, Any]] = ()
            has_room = self.budget.answer_room(tools=True) >= MIN_ANSWER_TOKENS
            if self._rounds < self._settings.turn_rounds and has_room:  # otherwise it has to answer
                tools = (*self._tools, *self._request.tools)
            # Options of tools go only with tools, and a forced choice only in the first round.
            dropped = {"tool_choice": self._rounds or not tools, "parallel_tool_calls": not tools}
            options = {name: value for name, value in self._request.options.items() if not dropped.get(name)}
            request = ModelRequest(
                messages=self._sent,
                tools=tools,
                options=options,
                stream=self._request.stream,
                may_be_empty=bool(self._texts),
                user=self._caller.user_id,
                deadline=self._deadline,
            )
            if not self.budget.limit(options, request.meter, tools=bool(tools)):
                self._end_early()
                return
            for piece in self._ask(request, options):
                yield ChatEvent(text=piece)
            calls = self._answer.tool_calls
            if not calls:
                return
            self.caller_calls = [call for call in calls if call["function"]["name"] in callers]
            own_calls = [call for call in calls if call not in self.caller_calls]
            with self._watch.stage("tools"):
                uses, messages = cancellation.run_uncancelled(partial(self._run_tools, own_calls))
            self._tool_uses += uses
            for use in uses:
                yield ChatEvent(tool=use)
            if self.caller_calls:
                return
            self._sent += messages

    def store(self) -> None:
        """Stores the messages of the turn in its session, in one transaction."""
        messages = [*self._new, Message(role="assistant", content="".join(self._texts))]
        self._agents.sessions.store(self._turn, messages, self.key)

    def to_reply(self, *, is_stored: bool) -> Reply:
        """The reply of the turn as it is now."""
        return Reply(
            agent=self._request.agent,
            session_id=self._request.session_id,
            text="".join(self._texts),
            finish="tool_calls" if self.caller_calls else self._answer.finish,
            tools=self._tool_uses,
            tool_calls=self.caller_calls,
            rounds=self._rounds,
            usage=self.budget.use,
            stored=is_stored,
            receipt=self._context.receipt,
            timings_ms=self._watch.timings_ms(),
            sent=self._sent if self._request.explain else [],
        )

    def _ask(self, request: ModelRequest, options: dict[str, Any]) -> Iterator[str]:
        """Gives the text of one answer as it comes; its tokens are counted, however it ends.

        `options`: those of the request, whose limits are lowered before it is sent again.
        """
        answer, has_text, meter, has_tools = None, False, request.meter, bool(request.tools)
        budget = self.budget
        prompt = budget.messages + (budget.tools if has_tools else 0)
        try:
            with self._watch.stage("llm"):
                for piece in self._model.ask(request):
                    if isinstance(piece, ModelAnswer):
                        answer = piece
                        break
                    if isinstance(piece, FailedAttempt):
                        budget.use += meter.cost(prompt)
                        if piece.is_last or budget.limit(options, meter, tools=has_tools):
                            continue  # it is asked again, or raises why it failed
                        break
                    if has_text and meter.is_full:  # the provider does not stop by itself
                        break
                    if self._texts and not has_text:
                        self._texts.append(_SEPARATOR)
                        yield _SEPARATOR
                    has_text = True
                    self._texts.append(piece)
                    yield piece
        finally:
            self._rounds += 1
            room = budget.answer_room(tools=has_tools)
            if meter.is_open:  # it is billed, even if it was cut off or its caller has left
                budget.use += meter.cost(prompt)
        if answer is None:
            self._end_early()
        else:
            self._accept(answer, meter, room, has_tools=has_tools)

    def _accept(self, answer: ModelAnswer, meter: AnswerMeter, room: int, *, has_tools: bool) -> None:
        """Takes an answer, without its tool calls if it is longer than `room` or may call none."""
        is_too_long = meter.cost(0).completion_tokens > room
        if is_too_long or (answer.tool_calls and not has_tools):
            answer = ModelAnswer(text=answer.text, finish="length")
        self._answer = answer
        if answer.is_empty and not "".join(self._texts).strip():
            if is_too_long:
                self._end_early()
            if meter.is_full:
                raise UpstreamFailed(
                    "the LLM used all tokens of one answer and said nothing: raise --answer-tokens"
                )
            raise UpstreamFailed("the LLM gave no answer")

    def _end_early(self) -> None:
        """Ends a turn that has no tokens left with its text so far; raises if there is none."""
        self._answer = ModelAnswer(text="", finish="length")
        if not "".join(self._texts).strip():
            limit = self._settings.turn_tokens
            raise UpstreamFailed(f"the LLM gave no answer within {limit} tokens, which --turn-tokens allows")

    def _run_tools(self, calls: list[dict[str, Any]]) -> tuple[list[ToolUse], list[Message]]:
        """Runs the tools that the model calls, one after the other: each reads what the last one wrote.

        Returns also the messages with the calls and their results.
        """
        self._agents.memories.writer.refuse_wiped(self._caller.user_id, self.key)
        uses = [self._run_tool(n, call["function"]) for n, call in enumerate(calls)]
        call_message = Message(role="assistant", content=self._answer.text or None, tool_calls=calls)
        results = [
            Message(role="tool", content=use.text, tool_call_id=call["id"])
            for call, use in zip(calls, uses, strict=True)
        ]
        return uses, self.budget.add_results(call_message, results, self._agents.sessions.count)

    def _run_tool(self, index: int, function: Mapping[str, str]) -> ToolUse:
        request, name, arguments, outcome = self._request, function["name"], dict[str, Any](), "ok"
        try:
            if index >= MAX_TOOL_CALLS:
                raise InvalidRequest("tool_calls", f"at most {MAX_TOOL_CALLS} at once")
            if (parsed := parse_arguments(function["arguments"])) is None:
                raise InvalidRequest("arguments", "a JSON object")
            arguments = parsed
            text = self._agents.call(
                self._caller,
                request.agent,
                name,
                arguments,
                session_id=request.session_id,
                team=request.team,
                instances=request.instances,
            ).text
        except AlcoveError as error:
            outcome, text = error.code, error.tool_text
        return ToolUse(tool=name, arguments=arguments, outcome=outcome, text=text)
