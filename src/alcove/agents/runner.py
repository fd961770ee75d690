"""An agent's turn: what it is sent, the tools its model calls, the answer, and what is kept of it.

The context decides what can be reached, not the model: tools are bound to the turn's rooms before the model
is asked, and a tool that the turn does not have is refused in one line. Only a turn that has come to its end
is kept, as a whole; one that failed, or that nobody waits for any more, leaves nothing of what was said.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from alcove.agents.chat_messages import (
    StoredMessage,
    Text,
    group_tool_calls,
    is_complete,
    message_tokens,
    new_messages,
)
from alcove.agents.context import Budget, Context
from alcove.agents.conversations import turns_room
from alcove.agents.replies import ChatEvent, Reply, ToolUse, TurnRequest
from alcove.agents.rooms import Rooms
from alcove.agents.specs.problems import quote_name
from alcove.agents.specs.records import Agent
from alcove.agents.stopwatch import Stopwatch
from alcove.agents.tools import Turn, offered
from alcove.agents.turn_budget import MIN_ANSWER_TOKENS, TurnBudget, json_tokens
from alcove.core.errors import (
    AlcoveError,
    InvalidRequest,
    NotFound,
    Unavailable,
    UpstreamFailed,
)
from alcove.core.messages import Message
from alcove.core.principal import Principal
from alcove.core.records import KeyBinding
from alcove.core.settings import LLMSettings
from alcove.core.waiting import Waiting, blocks, blocks_in_turn
from alcove.llm.model import (
    Answered,
    Asked,
    FailedAttempt,
    Model,
    TokenUse,
    parsed_arguments,
    seconds_left,
)

if TYPE_CHECKING:
    from alcove.agents.service import Agents

MOST_CALLS = 32
"""Calls of tools in one round; more are refused."""
_POLL_SECONDS = 0.01
_BETWEEN = "\n\n"
"""What stands between texts of two rounds."""


class Runner:
    """Runs turns of agents with a model."""

    def __init__(self, agents: Agents, model: Model | None, settings: LLMSettings) -> None:
        self._agents, self._model, self._settings = agents, model, settings
        self._memories = agents.memories

    @property
    def waiting(self) -> Waiting:
        """How it waits for the model and the store; an error where there is no model."""
        if self._model is None:
            raise Unavailable("no LLM is configured: say which one with --llm-url or ALCOVE_LLM_URL")
        return self._model.waiting

    @blocks
    async def chat(
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
        """Says something to an agent, and gives its answer; the turn is kept in the session.

        `session_id`: the conversation. `message`: what the user says. `instances`: ids of runs by their
        kind. `budget_tokens`: for what the model is sent. `explain`: whether to tell what that was.
        """
        asked = TurnRequest.said(agent, session_id, message, instances, budget_tokens, explain=explain)
        return await self.reply(principal, asked)

    @blocks_in_turn
    async def chat_stream(
        self,
        principal: Principal,
        agent: str,
        session_id: str,
        message: Text,
        *,
        instances: Mapping[str, str] | None = None,
        budget_tokens: Budget | None = None,
        explain: bool = False,
    ) -> AsyncGenerator[ChatEvent, None]:
        """The same, with the answer piece by piece as it comes; the last event has the whole reply."""
        asked = TurnRequest.said(agent, session_id, message, instances, budget_tokens, explain=explain)
        async with aclosing(self.turn(principal, replace(asked, stream=True))) as events:
            async for event in events:
                yield event

    async def reply(self, principal: Principal, asked: TurnRequest) -> Reply:
        """What a turn comes to."""
        async with aclosing(self.turn(principal, asked)) as events:
            async for event in events:
                if event.reply:
                    return event.reply
        raise AssertionError("a turn ends with its reply")

    async def turn(self, principal: Principal, asked: TurnRequest) -> AsyncGenerator[ChatEvent, None]:
        """One turn: pieces of the answer and tools as they come, then the reply."""
        spec, run = self._agents.agent(principal, asked.agent), self.waiting.run
        if not self._agents.talks:
            raise NotFound(f"{quote_name(asked.agent)} does not talk: it has no spec on this server")
        work = _Work(self._settings.turn_seconds)
        async with self._alone(principal, spec, asked.session_id, work):
            with work.stage("context"):
                turn, bound, new, context, budget = await run(partial(self._begun, principal, spec, asked))
            work.sent, work.budget = [*context.messages], budget
            try:
                async with aclosing(self._rounds(turn, asked, work, bound)) as events:
                    async for event in events:
                        yield event
                stored = asked.session_id is not None and not work.calls and _keeps(spec)
                if stored:
                    with work.stage("store"):
                        kept = [*new, Message(role="assistant", content=work.text)]
                        await run(partial(self._agents.sessions.store, turn, kept, bound))
            except AlcoveError as error:
                error.details |= {"usage": msgspec.to_builtins(work.use)} if work.use.total_tokens else {}
                raise
            finally:
                if work.use.total_tokens:
                    self._agents.calls.note_use(spec.name, principal.user_id, bound, work.use)
            yield ChatEvent(reply=_reply(asked, context, work, stored=stored))

    async def _rounds(
        self, turn: Turn, asked: TurnRequest, work: _Work, bound: KeyBinding
    ) -> AsyncGenerator[ChatEvent, None]:
        """Asks the model, and runs the tools it calls, until it answers or calls one of the caller's."""
        theirs = {each["function"]["name"] for each in asked.tools}
        while True:
            tools = self._tools(turn, asked, work)
            options = _options(asked.options, tools=bool(tools), first=not work.rounds)
            asking = Asked(
                messages=work.sent,
                tools=tools,
                options=options,
                stream=asked.stream,
                may_be_silent=bool(work.texts),
                end=work.end,
            )
            if not work.budget.limit(options, asking.meter, tools=bool(tools)):
                self._end_early(work)
                return
            async with aclosing(self._answer(asking, options, work)) as pieces:
                async for piece in pieces:
                    yield ChatEvent(text=piece)
            calls = work.answered.tool_calls
            if not calls:
                return
            mine = [call for call in calls if call["function"]["name"] not in theirs]
            with work.stage("tools"):
                uses, sent = await self.waiting.run(
                    partial(self._uses, turn.caller, asked, mine, bound, work)
                )
            work.tools += uses
            for use in uses:
                yield ChatEvent(tool=use)
            work.calls = [call for call in calls if call not in mine]
            if work.calls:
                return
            work.sent += sent

    def _end_early(self, work: _Work) -> None:
        """Ends a turn that may take no more tokens with what was said so far; an error if that is nothing."""
        work.answered = Answered(text="", finish="length")
        if not work.text.strip():
            most = self._settings.turn_tokens
            raise UpstreamFailed(f"the LLM gave no answer within {most} tokens, which --turn-tokens allows")

    def _begun(
        self, principal: Principal, spec: Agent, asked: TurnRequest
    ) -> tuple[Turn, KeyBinding, list[Message], Context, TurnBudget]:
        """What tools work with, what a wipe would end, what is new, what the model is sent and may take."""
        turn = self._agents.turn(principal, spec, asked.session_id, asked.team, asked.instances)
        _refuse_ambiguous(turn, asked.tools)
        bound, sessions = self._memories.lasting_key_binding(principal.user_id), self._agents.sessions
        told, before = [*asked.told], None
        if asked.session_id is None:
            start = max((n for n, each in enumerate(told) if each.role == "user"), default=0)
        else:
            start = len(told) - len(new_messages(told, sessions.last_message(turn))) if asked.resent else 0
        new = _whole(told[start:])
        if not new or new[-1].role == "assistant":
            raise InvalidRequest("messages", "something new of the user, or of a tool, after what was said")
        if asked.session_id is None or not turn.rooms.agent.memory.conversation.enabled:
            before = told[:start]  # what the caller tells is all there is
            self._refuse_long(before)
        context_tokens = self._settings.context_tokens
        if (asked.budget or 0) > context_tokens:
            raise InvalidRequest("budget_tokens", f"at most {context_tokens}, which --context-tokens allows")
        sizes = self._option_tokens(asked)
        most = (asked.budget or context_tokens) - sum(sizes.values())
        context = sessions.contexts.build(turn, new, most, history=before, instructions=asked.instructions)
        tools = json_tokens(_own_tools(turn), sessions.count) + sizes.pop("tools")
        budget = TurnBudget(self._settings, context.receipt.total_tokens + sum(sizes.values()), tools)
        self._refuse_too_large(asked, budget)
        return turn, bound, new, context, budget

    def _option_tokens(self, asked: TurnRequest) -> dict[str, int]:
        """Returns the tokens of a caller's tools and options by name; refuses one that fits in no context."""
        most, sizes = self._settings.context_tokens, dict[str, int]()
        for name, given in {"tools": asked.tools, **asked.options}.items():
            sizes[name] = tokens = json_tokens(given, self._agents.sessions.count)
            if tokens > most:
                raise InvalidRequest(name, f"at most {most} tokens (--context-tokens), not {tokens}")
        return sizes

    def _refuse_long(self, told: Sequence[Message]) -> None:
        """Refuses a conversation that is more than a whole turn may take, once so much of it is counted."""
        tokens = 0
        for message in told:
            tokens += message_tokens(message, self._agents.sessions.count)
            if tokens > self._settings.turn_tokens:
                most = f"at most {self._settings.turn_tokens} tokens in one turn (--turn-tokens)"
                raise InvalidRequest("messages", most)

    def _refuse_too_large(self, asked: TurnRequest, budget: TurnBudget) -> None:
        """Refuses a request that is more than a whole turn may take, before anything of it is sent."""
        most = f"in one turn (--turn-tokens {self._settings.turn_tokens})"
        if budget.answer_room(tools=False) < MIN_ANSWER_TOKENS:
            field = "messages" if asked.resent else "message"
            raise InvalidRequest(field, f"fewer tokens than {budget.messages} {most}")
        if asked.tools and budget.answer_room(tools=True) < MIN_ANSWER_TOKENS:
            raise InvalidRequest("tools", f"fewer tokens than {budget.tools} {most}")

    def _tools(self, turn: Turn, asked: TurnRequest, work: _Work) -> Sequence[Mapping[str, Any]]:
        """The tools that the model is told of: none once it has to answer."""
        if work.rounds >= self._settings.turn_rounds:
            return ()
        if work.budget.answer_room(tools=True) < MIN_ANSWER_TOKENS:
            return ()
        return (*_own_tools(turn), *asked.tools)

    async def _answer(self, asking: Asked, options: dict[str, Any], work: _Work) -> AsyncGenerator[str, None]:
        """The text of one answer as it comes; what it took is counted, however it ends.

        `options`: those of the request, whose limits are lowered before it is sent again.
        """
        assert self._model is not None
        answered, texts, meter = None, list[str](), asking.meter
        sent = work.budget.messages + (work.budget.tools if asking.tools else 0)
        try:
            with work.stage("llm"):
                async with aclosing(self._model.ask(asking)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Answered):
                            answered = piece
                            break
                        if isinstance(piece, FailedAttempt):
                            work.count(meter.cost(sent))
                            if piece.is_last or work.budget.limit(options, meter, tools=bool(asking.tools)):
                                continue  # it is asked again, or why it failed is raised
                            break
                        if texts and meter.is_full:  # the provider does not stop by itself
                            break
                        if work.texts and not texts:
                            work.texts.append(_BETWEEN)
                            yield _BETWEEN
                        texts.append(piece)
                        work.texts.append(piece)
                        yield piece
        finally:
            work.rounds += 1
            room = work.budget.answer_room(tools=bool(asking.tools))
            if meter.is_open:  # it is billed, even if it was cut off or nobody waits for it any more
                work.count(meter.cost(sent))
        if answered is None:
            self._end_early(work)
        else:
            self._take(answered, asking, work, room)

    def _take(self, answered: Answered, asking: Asked, work: _Work, room: int) -> None:
        """Takes an answer, without its calls of tools if it is longer than `room` or has to be a text."""
        is_too_long = asking.meter.cost(0).completion_tokens > room
        if is_too_long or (answered.tool_calls and not asking.tools):
            answered = Answered(text=answered.text, finish="length")
        work.answered = answered
        if answered.said or work.text.strip():
            return
        if is_too_long:
            self._end_early(work)
        if asking.meter.is_full:
            raise UpstreamFailed(
                "the LLM used all tokens of one answer and said nothing: raise --answer-tokens"
            )
        raise UpstreamFailed("the LLM gave no answer")

    def _uses(
        self,
        principal: Principal,
        asked: TurnRequest,
        calls: list[dict[str, Any]],
        bound: KeyBinding,
        work: _Work,
    ) -> tuple[list[ToolUse], list[Message]]:
        """What the tools that a model calls give, one after the other: what one writes the next one reads.

        Beside it, the messages that tell the model of them.
        """
        self._memories.refuse_wiped(principal.user_id, bound)
        uses = [self._use(principal, asked, n, call["function"]) for n, call in enumerate(calls)]
        called = Message(role="assistant", content=work.answered.text or None, tool_calls=calls)
        results = [
            Message(role="tool", content=use.text, tool_call_id=call["id"])
            for call, use in zip(calls, uses, strict=True)
        ]
        return uses, work.budget.add_results(called, results, self._agents.sessions.count)

    def _use(
        self, principal: Principal, asked: TurnRequest, number: int, function: Mapping[str, str]
    ) -> ToolUse:
        name, arguments, outcome = function["name"], dict[str, Any](), "ok"
        try:
            if number >= MOST_CALLS:
                raise InvalidRequest("tool_calls", f"at most {MOST_CALLS} at once")
            if (given := parsed_arguments(function["arguments"])) is None:
                raise InvalidRequest("arguments", "a JSON object")
            arguments = given
            text = self._agents.call(
                principal,
                asked.agent,
                name,
                arguments,
                session_id=asked.session_id,
                team=asked.team,
                instances=asked.instances,
            ).text
        except AlcoveError as error:
            outcome, text = error.code, error.tool_text
        return ToolUse(tool=name, arguments=arguments, outcome=outcome, text=text)

    @asynccontextmanager
    async def _alone(
        self, principal: Principal, agent: Agent, session: str | None, work: _Work
    ) -> AsyncIterator[None]:
        """Waits until no other turn of the session is under way, in whichever process."""
        if session is None:
            yield
            return
        room = turns_room(agent.name, principal.user_id, Rooms(agent, principal.user_id, session).session())
        with work.stage("queue"):
            while not self._memories.try_lock(room):
                seconds_left(work.end)
                await self.waiting.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            self._memories.unlock(room)


class _Work(Stopwatch):
    """What a turn has come to so far."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.sent: list[Message] = []
        """What the model is sent."""
        self.budget: TurnBudget
        self.answered = Answered(text="")
        """What it answered the last time."""
        self.texts: list[str] = []
        """All that it said, in however many rounds."""
        self.tools: list[ToolUse] = []
        self.calls: list[dict[str, Any]] = []
        """Of the caller's own tools."""
        self.rounds = 0
        self.use = TokenUse()
        self.end = time.monotonic() + seconds

    def count(self, use: TokenUse) -> None:
        """Counts what one more request took."""
        self.use += use
        self.budget.used = self.use.total_tokens

    @property
    def text(self) -> str:
        return "".join(self.texts)


def _reply(asked: TurnRequest, context: Context, work: _Work, *, stored: bool) -> Reply:
    return Reply(
        agent=asked.agent,
        session_id=asked.session_id,
        text=work.text,
        finish="tool_calls" if work.calls else work.answered.finish,
        tools=work.tools,
        tool_calls=work.calls,
        rounds=work.rounds,
        usage=work.use,
        stored=stored,
        receipt=context.receipt,
        timings_ms=work.timings_ms(),
        sent=work.sent if asked.explain else [],
    )


def _keeps(agent: Agent) -> bool:
    """Whether turns of an agent are kept."""
    memory = agent.memory
    return agent.auto_memory or memory.conversation.enabled or memory.session_memory.enabled


def _own_tools(turn: Turn) -> tuple[dict[str, Any], ...]:
    """The agent's tools, as a model is told of them."""
    return offered(turn.rooms.agent, turn.rooms.team is not None)


def _refuse_ambiguous(turn: Turn, tools: Sequence[Mapping[str, Any]]) -> None:
    for place, each in enumerate(tools):
        if each["function"]["name"] in turn.tools:
            raise InvalidRequest(f"tools[{place}].function.name", "another name: the agent has such a tool")


def _options(options: Mapping[str, Any], *, tools: bool, first: bool) -> dict[str, Any]:
    """Options as they are sent: of tools only beside some, and whoever had to call one has done so."""
    dropped = {"tool_choice": not first or not tools, "parallel_tool_calls": not tools}
    return {name: value for name, value in options.items() if not dropped.get(name)}


def _whole(messages: Sequence[Message]) -> list[Message]:
    """Messages without calls that have no result, and results that have no call: providers refuse both."""
    said = [StoredMessage(n, "", message) for n, message in enumerate(messages)]
    return [each.message for unit in group_tool_calls(said) if is_complete(unit) for each in unit]
