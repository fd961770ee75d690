"""Talking with agents over HTTP: answers as events, and the same in the words of OpenAI's chat completions.

At `/v1/chat/completions` an agent's name is the model. The caller's own tools pass through, those of memory
run inside; what the caller has to say of themselves does not count, because the token says who they are.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from alcove.agents.chat_messages import parse_messages
from alcove.agents.replies import ChatEvent, Reply, TurnRequest
from alcove.agents.service import Agents
from alcove.agents.specs.records import Agent
from alcove.agents.teamwork import Chats
from alcove.api.agent_operations import ChatOperations
from alcove.api.messages import ErrorAnswer
from alcove.api.operation import Operation
from alcove.api.operations import EVENTS
from alcove.core import validation
from alcove.core.errors import STATUS, AlcoveError, InvalidRequest
from alcove.core.records import Message
from alcove.llm.records import TokenUse
from alcove.server.limits import ThreadPool
from alcove.server.routes import Endpoint, Page, Request
from alcove.server.streams import Stream

SESSION = b"x-session-id"
MOST_MESSAGES = 2000
"""Of a conversation that a caller tells."""
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_FIELDS = {"session_id": "X-Session-ID"}
_encode = msgspec.json.Encoder().encode


class CompletionRequest(Struct, kw_only=True):
    """A chat completion as OpenAI has it; fields that are not known here are passed over."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    n: int | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None


_OPTIONS = CompletionRequest.__struct_fields__[CompletionRequest.__struct_fields__.index("n") + 1 :]
"""Fields that are passed on as they are."""


class Completion(Struct, kw_only=True):
    """A chat completion, or a piece of one."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: TokenUse | UnsetType | None = UNSET


class ModelCard(Struct, kw_only=True):
    """An agent, as OpenAI's clients list models."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str


class ModelList(Struct, kw_only=True):
    """The agents that the caller may use."""

    object: str = "list"
    data: list[ModelCard]


class OpenAIError(Struct):
    """An error in the shape that OpenAI's clients read."""

    error: dict[str, str | None]

    @classmethod
    def of(cls, error: AlcoveError, request_id: str) -> OpenAIError:
        """The same error; its kind follows from its status."""
        status = STATUS[error.code]
        kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        field = str(error.details["field"]) if "field" in error.details else None
        return cls(
            {
                "message": error.public_message,
                "type": kind,
                "code": error.code,
                "param": field,
                "request_id": request_id,
            }
        )


class ChatEdge:
    """Handlers of what streams, or speaks in other words than ours."""

    def __init__(self, agents: Agents, chats: Chats, threads: ThreadPool) -> None:
        """`threads`: run turns, one each."""
        self._agents, self._chats, self._threads = agents, chats, threads

    def endpoints(self) -> list[Endpoint]:
        """What stands in no table, because it is OpenAI's."""
        operation = partial(Operation[..., Any], None, tag="chat", error_record=OpenAIError)
        return [
            Endpoint(
                operation("POST /v1/chat/completions",
                          "OpenAI's chat completions, with an agent as the model", name="complete",
                          request_record=CompletionRequest, answer_record=Completion,
                          can_stream=True, unlimited_time=True, extra_errors=(404, 409, 502, 504)),
                self.complete,
            ),
            Endpoint(
                operation("GET /v1/models", "The agents that the caller may use, as models", name="models",
                          answer_record=ModelList),
                self.models,
            ),
            Endpoint(
                operation("GET /v1/models/{model}", "One agent, as a model", name="model",
                          answer_record=ModelCard),
                self.model,
            ),
        ]  # fmt: skip

    # Ours

    async def chat(self, request: Request) -> Struct:
        """A turn as events: each a piece of the answer or a tool, the last one the reply or an error."""
        arguments = ChatOperations.chat.arguments(request)
        events = partial(self._chats.chat_stream, request.principal, **arguments)
        return await self._stream(events, _event, request)

    async def _stream(
        self,
        events: Callable[[], Iterator[ChatEvent]],
        encode: Callable[[ChatEvent], bytes],
        request: Request,
    ) -> Stream:
        """Events as server-sent ones; what fails before the first of them is an answer with a status."""
        coming = await self._threads.iterate(events)
        first = await anext(coming)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                yield encode(first)
                async for event in coming:
                    if piece := encode(event):
                        yield piece
            except AlcoveError as error:
                record = request.endpoint.operation.error_record
                name = b"event: error\n" if record is ErrorAnswer else b""
                yield b"%bdata: %b\n\n" % (name, _encode(record.of(error, request.id)))
            finally:
                await coming.aclose()

        return Stream(pieces(), EVENTS.encode(), waits=False)

    # OpenAI's

    async def complete(self, request: Request) -> Struct:
        """One turn of the agent that is named as the model; errors name fields as OpenAI does."""
        try:
            return await self._complete(request)
        except InvalidRequest as error:
            if error.field == "budget_tokens":
                expected = f"fewer tokens: --context-tokens would have to be {error.expected}"
                raise type(error)("messages", expected) from None
            raise type(error)(_FIELDS.get(error.field, error.field), error.expected) from None

    async def _complete(self, request: Request) -> Struct:
        asked: CompletionRequest = request.parameters
        read = partial(_turn, asked, _session(request))
        turn = await self._threads(read) if request.large else read()
        stamp = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": asked.model}
        echo = ((SESSION, request.headers[SESSION]),) if turn.session_id is not None else ()
        if not turn.stream:
            reply = await self._threads(partial(self._chats.runner.reply, request.principal, turn))
            choice = {"index": 0, "message": _message(reply), "finish_reason": reply.finish, "logprobs": None}
            done = Completion(object="chat.completion", choices=[choice], usage=reply.usage, **stamp)  # type: ignore[arg-type]
            return Page(_encode(done), headers=echo)
        chunks = _Chunks(stamp, usage=bool((asked.stream_options or {}).get("include_usage")))
        events = partial(self._chats.runner.run, request.principal, turn)
        answer = await self._stream(events, chunks.of, request)
        answer.headers = (*answer.headers, *echo)
        return answer

    async def models(self, request: Request) -> Struct:
        return ModelList(data=[*map(_card, self._agents.agents(request.principal))])

    async def model(self, request: Request) -> Struct:
        return _card(self._agents.agent(request.principal, request.path["model"]))


def _event(event: ChatEvent) -> bytes:
    return b"data: %b\n\n" % _encode(event)


class _Chunks:
    """The events of a turn as OpenAI's chunks."""

    def __init__(self, stamp: Mapping[str, Any], *, usage: bool) -> None:
        """`usage`: whether the last chunk is to tell what the turn took."""
        self._stamp, self._usage = stamp, usage
        self._role: dict[str, Any] = {"role": "assistant"}

    def of(self, event: ChatEvent) -> bytes:
        """What is sent of an event; nothing of tools that ran here."""
        if event.text is not None:
            return self._chunk({"content": event.text})
        reply = event.reply
        if reply is None:
            return b""
        calls = [{"index": n, **call} for n, call in enumerate(reply.tool_calls)]
        sent = self._chunk({"tool_calls": calls}) if calls else b""
        sent += self._chunk({}, reply.finish)
        if self._usage:
            sent += self._line([], reply.usage)
        return sent + b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        delta, self._role = {**self._role, **delta}, {}
        return self._line([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}], None)

    def _line(self, choices: list[dict[str, Any]], usage: TokenUse | None) -> bytes:
        told = usage if self._usage else UNSET
        chunk = Completion(object="chat.completion.chunk", choices=choices, usage=told, **self._stamp)
        return b"data: %b\n\n" % _encode(chunk)


def _session(request: Request) -> str | None:
    given = request.headers.get(SESSION)
    try:
        return None if given is None else given.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("X-Session-ID", "UTF-8") from None


def _turn(asked: CompletionRequest, session: str | None) -> TurnRequest:
    """The turn that a completion asks for."""
    if asked.n not in (None, 1):
        raise InvalidRequest("n", "1: a conversation has one answer")
    for name in ("max_tokens", "max_completion_tokens"):
        if (limit := getattr(asked, name)) is not None:
            validation.check_integer(limit, name, 1, 10**9)
    tools = asked.tools or []
    for place, tool in enumerate(tools):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise InvalidRequest(
                f"tools[{place}]", "{type: function, function: {name, description, parameters}}"
            )
    if not 1 <= len(asked.messages) <= MOST_MESSAGES:
        raise InvalidRequest("messages", f"a list of 1 to {MOST_MESSAGES} messages")
    instructions, told = list[str](), list[Message]()
    for place, each in enumerate(asked.messages):
        content = _text(each.get("content"), place)
        if each.get("role") in ("system", "developer"):
            instructions += [content] if content else []
        else:
            told.append(_checked(each, content, place))
    if not told or told[-1].role == "assistant":
        raise InvalidRequest("messages", "a last message of the user, or of a tool")
    options = {name: value for name in _OPTIONS if (value := getattr(asked, name)) is not None}
    return TurnRequest(
        agent=asked.model, messages=told, session_id=session, is_resent=True, instructions=instructions,
        tools=tools, options=options, stream=bool(asked.stream),
    )  # fmt: skip


def _checked(given: Mapping[str, Any], content: str | None, place: int) -> Message:
    """A message with what is kept of it; clients send back other things, too, that answers had."""
    names = ("role", "tool_calls", "tool_call_id", "name")
    known = {name: given[name] for name in names if given.get(name) is not None}
    try:
        return parse_messages([{"content": content, **known}])[0]
    except InvalidRequest as error:
        raise InvalidRequest(
            error.field.replace("messages[0]", f"messages[{place}]"), error.expected
        ) from None


def _text(content: Any, place: int) -> str | None:
    """The text of a content, which may come in parts."""
    if content is None or isinstance(content, str):
        return content
    field = f"messages[{place}].content"
    if not isinstance(content, list):
        raise InvalidRequest(field, "a text, or a list of parts")
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{field}[{number}]", "{type: text, text}: conversations are kept as text")
    return "\n".join(part["text"] for part in content)


def _message(reply: Reply) -> dict[str, Any]:
    calls = {"tool_calls": reply.tool_calls} if reply.tool_calls else {}
    return {"role": "assistant", "content": reply.text or (None if calls else ""), "refusal": None, **calls}


def _card(agent: Agent) -> ModelCard:
    return ModelCard(id=agent.name, owned_by=agent.owner)
