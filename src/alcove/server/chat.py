"""Chats with agents over HTTP: answers as server-sent events, and OpenAI's API of chat completions.

At `/v1/chat/completions` an agent's name is the model. The caller's own tools pass through, memory tools run
inside. A `user` in the request is ignored, because the token says who the caller is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from alcove.agents.chats import ChatEvent, Chats, TurnRequest
from alcove.agents.service import Agents
from alcove.agents.specs.records import Agent
from alcove.agents.transcripts import parse_messages
from alcove.api.agent_operations import ChatOperations
from alcove.api.messages import ErrorAnswer
from alcove.api.operations import EVENTS
from alcove.core import validation
from alcove.core.errors import STATUS, AlcoveError, InvalidRequest
from alcove.core.records import Message
from alcove.llm.model import TokenUse
from alcove.server.limits import ThreadPool
from alcove.server.routes import Endpoint, Page, Request, endpoint
from alcove.server.streams import Stream

SESSION_HEADER = b"x-session-id"
MAX_MESSAGES = 2000
"""Messages in one request."""
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_FIELDS = {"session_id": "X-Session-ID"}
"""Fields of errors that have another name in requests."""
_encode = msgspec.json.Encoder().encode


class CompletionRequest(Struct, kw_only=True):
    """A request for a chat completion, as OpenAI defines it; unknown fields are ignored."""

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
"""Fields that the model receives unchanged."""


class Completion(Struct, kw_only=True):
    """A chat completion, or one chunk of it."""

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
        """The same error in OpenAI's shape; its type follows from its status."""
        status = STATUS[error.code]
        kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        field = str(error.details["field"]) if "field" in error.details else None
        text, code = error.public_message, error.code
        return cls({"message": text, "type": kind, "code": code, "param": field, "request_id": request_id})


class ChatHandlers:
    """Handlers of chats that stream, and of OpenAI's API."""

    def __init__(self, agents: Agents, chats: Chats, threads: ThreadPool) -> None:
        """`threads` run the turns, one in each thread."""
        self._agents, self._chats, self._threads = agents, chats, threads

    def endpoints(self) -> list[Endpoint]:
        """OpenAI's endpoints, which are in no table of operations."""
        chat = partial(endpoint, tag="chat", error_record=OpenAIError)
        return [
            chat(
                "POST /v1/chat/completions",
                self.complete,
                "OpenAI's chat completions, with an agent as the model",
                request_record=CompletionRequest,
                answer_record=Completion,
                can_stream=True,
                unlimited_time=True,
                extra_errors=(404, 409, 502, 504),
            ),
            chat("GET /v1/models", self.models, "List the agents as models", answer_record=ModelList),
            chat("GET /v1/models/{model}", self.model, "Read an agent as a model", answer_record=ModelCard),
        ]

    async def chat(self, request: Request) -> Struct:
        """One turn as events: parts of the answer and tools, and at last the reply or an error."""
        arguments = ChatOperations.chat.arguments(request)
        events = partial(self._chats.chat_stream, request.principal, **arguments)
        return await self._stream(events, lambda event: b"data: %b\n\n" % _encode(event), request)

    async def _stream(
        self,
        events: Callable[[], Iterator[ChatEvent]],
        encode: Callable[[ChatEvent], bytes],
        request: Request,
    ) -> Stream:
        """Server-sent events; an error before the first of them is an answer with its own status."""
        iterator = self._threads.iterate(events)
        first = await anext(iterator)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                yield encode(first)
                async for event in iterator:
                    if piece := encode(event):
                        yield piece
            except AlcoveError as error:
                record = request.endpoint.operation.error_record
                name = b"event: error\n" if record is ErrorAnswer else b""
                yield b"%bdata: %b\n\n" % (name, _encode(record.of(error, request.id)))
            finally:
                await iterator.aclose()

        return Stream(pieces(), EVENTS.encode(), waits=False)

    async def complete(self, request: Request) -> Struct:
        """One turn of the agent that `model` names; errors name fields as OpenAI does."""
        try:
            return await self._complete(request)
        except InvalidRequest as error:
            if error.field == "budget_tokens":
                expected = f"fewer tokens; to allow these, set --context-tokens to {error.expected}"
                raise type(error)("messages", expected) from None
            raise type(error)(_FIELDS.get(error.field, error.field), error.expected) from None

    async def _complete(self, request: Request) -> Struct:
        completion: CompletionRequest = request.parameters
        session = request.headers.get(SESSION_HEADER)
        parse = partial(_parse_turn, completion, session)
        turn = await self._threads(parse) if request.large else parse()
        stamp = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": completion.model}
        echo = () if session is None else ((SESSION_HEADER, session),)
        if not turn.stream:
            reply = await self._threads(partial(self._chats.reply, request.principal, turn))
            message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
            if reply.tool_calls:
                message |= {"content": reply.text or None, "tool_calls": reply.tool_calls}
            choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
            answer = Completion(object="chat.completion", choices=[choice], usage=reply.usage, **stamp)  # type: ignore[arg-type]
            return Page(_encode(answer), headers=echo)
        chunks = _ChunkEncoder(stamp, with_usage=bool((completion.stream_options or {}).get("include_usage")))
        events = partial(self._chats.run, request.principal, turn)
        stream = await self._stream(events, chunks.encode, request)
        stream.headers = (*stream.headers, *echo)
        return stream

    async def models(self, request: Request) -> Struct:
        return ModelList(data=[*map(_card, self._agents.agents(request.principal))])

    async def model(self, request: Request) -> Struct:
        return _card(self._agents.agent(request.principal, request.path["model"]))


class _ChunkEncoder:
    """Encodes the events of a turn as OpenAI's chunks."""

    def __init__(self, stamp: Mapping[str, Any], *, with_usage: bool) -> None:
        """`stamp`: the fields that all chunks share. `with_usage`: the last chunk tells the tokens."""
        self._stamp, self._with_usage = stamp, with_usage
        self._role: dict[str, Any] = {"role": "assistant"}

    def encode(self, event: ChatEvent) -> bytes:
        """The chunks of an event; none for tools that ran here."""
        if event.text is not None:
            return self._chunk({"content": event.text})
        reply = event.reply
        if reply is None:
            return b""
        calls = [{"index": n, **call} for n, call in enumerate(reply.tool_calls)]
        chunks = self._chunk({"tool_calls": calls}) if calls else b""
        chunks += self._chunk({}, reply.finish)
        if self._with_usage:
            chunks += self._line([], reply.usage)
        return chunks + b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        delta, self._role = {**self._role, **delta}, {}
        return self._line([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}], None)

    def _line(self, choices: list[dict[str, Any]], usage: TokenUse | None) -> bytes:
        chunk = Completion(object="chat.completion.chunk", choices=choices, **self._stamp)
        if self._with_usage:
            chunk.usage = usage
        return b"data: %b\n\n" % _encode(chunk)


def _parse_turn(completion: CompletionRequest, session: bytes | None) -> TurnRequest:
    """The turn that a completion asks for; `session` is the header with the session's id."""
    try:
        session_id = None if session is None else session.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("X-Session-ID", "UTF-8") from None
    if completion.n not in (None, 1):
        raise InvalidRequest("n", "1: a conversation has one answer")
    for name in ("max_tokens", "max_completion_tokens"):
        if (limit := getattr(completion, name)) is not None:
            validation.check_integer(limit, name, 1, 10**9)
    tools = completion.tools or []
    for position, tool in enumerate(tools):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise InvalidRequest(
                f"tools[{position}]", "{type: function, function: {name, description, parameters}}"
            )
    if not 1 <= len(completion.messages) <= MAX_MESSAGES:
        raise InvalidRequest("messages", f"a list of 1 to {MAX_MESSAGES} messages")
    instructions, messages = list[str](), list[Message]()
    for position, each in enumerate(completion.messages):
        content = _parse_content(each.get("content"), position)
        if each.get("role") in ("system", "developer"):
            instructions += [content] if content else []
        else:
            messages.append(_parse_message(each, content, position))
    if not messages or messages[-1].role == "assistant":
        raise InvalidRequest("messages", "a last message of the user, or of a tool")
    options = {name: value for name in _OPTIONS if (value := getattr(completion, name)) is not None}
    return TurnRequest(
        agent=completion.model, messages=messages, session_id=session_id, is_resent=True,
        instructions=instructions, tools=tools, options=options, stream=bool(completion.stream),
    )  # fmt: skip


def _parse_message(message: Mapping[str, Any], content: str | None, position: int) -> Message:
    """A message with the fields that are stored; clients also send back other fields that answers had."""
    names = ("role", "tool_calls", "tool_call_id", "name")
    fields = {name: message[name] for name in names if message.get(name) is not None}
    try:
        return parse_messages([{"content": content, **fields}])[0]
    except InvalidRequest as error:
        field = error.field.replace("messages[0]", f"messages[{position}]")
        raise InvalidRequest(field, error.expected) from None


def _parse_content(content: Any, position: int) -> str | None:
    """The text of a content, which may come in parts."""
    if content is None or isinstance(content, str):
        return content
    field = f"messages[{position}].content"
    if not isinstance(content, list):
        raise InvalidRequest(field, "a text, or a list of parts")
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{field}[{number}]", "{type: text, text}: conversations are stored as text")
    return "\n".join(part["text"] for part in content)


def _card(agent: Agent) -> ModelCard:
    return ModelCard(id=agent.name, owned_by=agent.owner)
