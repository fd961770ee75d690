"""An agent's turn: asks the model, runs the tools that it calls, and stores what was said.

The context decides what can be reached, not the model: tools are bound to the turn's rooms before the model
is asked, and a tool that the turn does not have is refused in one line. A turn is stored as a whole once it
has ended; one that failed, or whose caller has left, leaves nothing of what was said.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from alcove.agents.replies import ChatEvent, Reply, ToolUse, TurnRequest
from alcove.agents.rooms import Rooms
from alcove.agents.specs.records import Agent
from alcove.agents.transcripts import turns_room
from alcove.agents.turn_budget import MIN_ANSWER_TOKENS
from alcove.agents.turn_preparation import PreparedTurn, TurnPreparer, own_tools
from alcove.core import cancellation
from alcove.core.clock import Stopwatch
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, Unavailable, UpstreamFailed, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Message
from alcove.core.settings import LLMSettings
from alcove.llm.model import Model
from alcove.llm.records import (
    FailedAttempt,
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
_SEPARATOR = "\n\n"
"""Stands between the texts of two rounds."""


class Runner:
    """Runs turns of agents with a model, each in the thread that calls it."""

    def __init__(self, agents: Agents, model: Model | None, settings: LLMSettings) -> None:
        self._agents, self._model, self._settings = agents, model, settings
        self._preparer = TurnPreparer(agents, settings)

    @property
    def model(self) -> Model:
        """The model; raises Unavailable if there is none."""
        if self._model is None:
            raise Unavailable("no LLM is configured: set --llm-url or ALCOVE_LLM_URL")
        return self._model

    def reply(self, principal: Principal, request: TurnRequest) -> Reply:
        """Runs a turn to its end and returns its reply."""
        return next(event.reply for event in self.run(principal, request) if event.reply)

    def run(self, principal: Principal, request: TurnRequest) -> Iterator[ChatEvent]:
        """Runs a turn; gives pieces of the answer and tool calls as they come, then the reply.

        A cancelled turn stops while it waits for the model or for another turn of its session; tools and
        transactions that have begun are completed.
        """
        model = self.model
        spec = self._agents.agent(principal, request.agent)
        if not self._agents.talks:
            raise NotFound(f"{quote_name(request.agent)} does not talk: it has no spec on this server")
        watch, deadline = Stopwatch(), time.monotonic() + self._settings.turn_seconds
        with self._only_turn_of_session(principal, spec, request.session_id, watch, deadline):
            with watch.stage("context"):
                prepare = partial(self._preparer.prepare, principal, spec, request)
                prepared = cancellation.run_uncancelled(prepare)
            turn = _Turn(self._agents, model, self._settings, request, prepared, watch, deadline)
            try:
                yield from turn.run_rounds()
                is_stored = request.session_id is not None and not turn.caller_calls and _is_stored(spec)
                if is_stored:
                    turn.store()
            except AlcoveError as error:
                if turn.use.total_tokens:
                    error.details["usage"] = msgspec.to_builtins(turn.use)
                raise
            finally:
                if turn.use.total_tokens:
                    self._agents.calls.note_use(spec.name, principal.user_id, prepared.key, turn.use)
            yield ChatEvent(reply=turn.reply(is_stored=is_stored))

    @contextmanager
    def _only_turn_of_session(
        self, principal: Principal, agent: Agent, session: str | None, watch: Stopwatch, deadline: float
    ) -> Iterator[None]:
        """Waits until no other turn of the session is in progress, in any process."""
        if session is None:
            yield
            return
        memories, user = self._agents.memories, principal.user_id
        room: Namespace = turns_room(agent.name, user, Rooms(agent, user, session).session())
        with watch.stage("queue"):
            while not memories.try_lock(room):
                seconds_left(deadline)
                cancellation.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            memories.unlock(room)


class _Turn:
    """One turn in progress."""

    def __init__(
        self,
        agents: Agents,
        model: Model,
        settings: LLMSettings,
        request: TurnRequest,
        prepared: PreparedTurn,
        watch: Stopwatch,
        deadline: float,
    ) -> None:
        self._agents, self._model, self._settings = agents, model, settings
        self._request, self._prepared, self._budget = request, prepared, prepared.budget
        self._watch, self._deadline = watch, deadline
        self._caller = prepared.turn.caller
        self._sent = [*prepared.context.messages]
        """What the model is sent."""
        self._answer = ModelAnswer(text="")
        """Its last answer."""
        self._texts: list[str] = []
        """Its text, over all rounds."""
        self._tools: list[ToolUse] = []
        self._rounds = 0
        self.caller_calls: list[dict[str, Any]] = []
        """Calls of the caller's own tools, which end the turn."""
        self.use = TokenUse()

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def run_rounds(self) -> Iterator[ChatEvent]:
        """Asks the model, and runs the tools it calls, until it answers or calls a tool of the caller's."""
        callers = {each["function"]["name"] for each in self._request.tools}
        while True:
            tools = self._offered_tools()
            options = _options(self._request.options, has_tools=bool(tools), is_first=not self._rounds)
            request = ModelRequest(
                messages=self._sent,
                tools=tools,
                options=options,
                stream=self._request.stream,
                may_be_empty=bool(self._texts),
                user=self._caller.user_id,
                deadline=self._deadline,
            )
            if not self._budget.limit(options, request.meter, tools=bool(tools)):
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
            self._tools += uses
            for use in uses:
                yield ChatEvent(tool=use)
            if self.caller_calls:
                return
            self._sent += messages

    def store(self) -> None:
        """Stores the messages of the turn in its session, in one transaction."""
        with self._watch.stage("store"):
            messages = [*self._prepared.new, Message(role="assistant", content=self._text)]
            store = partial(self._agents.sessions.store, self._prepared.turn, messages, self._prepared.key)
            cancellation.run_uncancelled(store)

    def reply(self, *, is_stored: bool) -> Reply:
        """The reply of the turn as it is now."""
        return Reply(
            agent=self._request.agent,
            session_id=self._request.session_id,
            text=self._text,
            finish="tool_calls" if self.caller_calls else self._answer.finish,
            tools=self._tools,
            tool_calls=self.caller_calls,
            rounds=self._rounds,
            usage=self.use,
            stored=is_stored,
            receipt=self._prepared.context.receipt,
            timings_ms=self._watch.timings_ms(),
            sent=self._sent if self._request.explain else [],
        )

    # The model

    def _offered_tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the model is told of: none once it has to answer."""
        has_room = self._budget.answer_room(tools=True) >= MIN_ANSWER_TOKENS
        if self._rounds >= self._settings.turn_rounds or not has_room:
            return ()
        return (*own_tools(self._prepared.turn), *self._request.tools)

    def _ask(self, request: ModelRequest, options: dict[str, Any]) -> Iterator[str]:
        """Gives the text of one answer as it comes; its tokens are counted, however it ends.

        `options`: those of the request, whose limits are lowered before it is sent again.
        """
        answer, has_text, meter, has_tools = None, False, request.meter, bool(request.tools)
        prompt = self._budget.messages + (self._budget.tools if has_tools else 0)
        try:
            with self._watch.stage("llm"):
                for piece in self._model.ask(request):
                    if isinstance(piece, ModelAnswer):
                        answer = piece
                        break
                    if isinstance(piece, FailedAttempt):
                        self._count(meter.cost(prompt))
                        if piece.is_last or self._budget.limit(options, meter, tools=has_tools):
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
            room = self._budget.answer_room(tools=has_tools)
            if meter.is_open:  # it is billed, even if it was cut off or its caller has left
                self._count(meter.cost(prompt))
        if answer is None:
            self._end_early()
        else:
            self._accept(answer, request, room)

    def _accept(self, answer: ModelAnswer, request: ModelRequest, room: int) -> None:
        """Takes an answer, without its tool calls if it is longer than `room` or may call none."""
        is_too_long = request.meter.cost(0).completion_tokens > room
        if is_too_long or (answer.tool_calls and not request.tools):
            answer = ModelAnswer(text=answer.text, finish="length")
        self._answer = answer
        if not answer.is_empty or self._text.strip():
            return
        if is_too_long:
            self._end_early()
        if request.meter.is_full:
            raise UpstreamFailed(
                "the LLM used all tokens of one answer and said nothing: raise --answer-tokens"
            )
        raise UpstreamFailed("the LLM gave no answer")

    def _end_early(self) -> None:
        """Ends a turn that has no tokens left with its text so far; raises if there is none."""
        self._answer = ModelAnswer(text="", finish="length")
        if not self._text.strip():
            limit = self._settings.turn_tokens
            raise UpstreamFailed(f"the LLM gave no answer within {limit} tokens, which --turn-tokens allows")

    def _count(self, use: TokenUse) -> None:
        """Counts the tokens of one more request."""
        self.use += use
        self._budget.used = self.use.total_tokens

    # Its tools

    def _run_tools(self, calls: list[dict[str, Any]]) -> tuple[list[ToolUse], list[Message]]:
        """Runs the tools that the model calls, one after the other: each reads what the last one wrote.

        Returns also the messages that tell the model of them.
        """
        self._agents.memories.writer.refuse_wiped(self._caller.user_id, self._prepared.key)
        uses = [self._run_tool(n, call["function"]) for n, call in enumerate(calls)]
        called = Message(role="assistant", content=self._answer.text or None, tool_calls=calls)
        results = [
            Message(role="tool", content=use.text, tool_call_id=call["id"])
            for call, use in zip(calls, uses, strict=True)
        ]
        return uses, self._budget.add_results(called, results, self._agents.sessions.count)

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


def _is_stored(agent: Agent) -> bool:
    """True if turns of an agent are stored."""
    memory = agent.memory
    return agent.auto_memory or memory.conversation.enabled or memory.session_memory.enabled


def _options(options: Mapping[str, Any], *, has_tools: bool, is_first: bool) -> dict[str, Any]:
    """The options of one request: those of tools only with tools, and a forced choice only the first time."""
    dropped = {"tool_choice": not is_first or not has_tools, "parallel_tool_calls": not has_tools}
    return {name: value for name, value in options.items() if not dropped.get(name)}
