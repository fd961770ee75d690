"""Models behind an OpenAI-compatible address: OpenAI's own, gateways, and servers on this machine.

It speaks the protocol itself, over the HTTP client that Alcove has anyway: servers that only claim to be
compatible differ in small things, and a strict record of each piece is what tells an answer from garbage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from alcove.core.decoding import decoder
from alcove.core.errors import requires_extra
from alcove.core.settings import LLMSettings
from alcove.llm.connections import ConnectionPool, seconds_after, timeout_of, was_sent
from alcove.llm.model import (
    ANSWER_LIMITS,
    AnswerBuilder,
    AnswerMeter,
    ModelAnswer,
    ModelRequest,
    ProviderError,
    TokenUse,
)

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
DEFAULT_URL = "https://api.openai.com/v1"
MAX_BYTES = 8 * 1024 * 1024
"""Of an answer that is not streamed, and of one line of one that is."""


class _Function(Struct, frozen=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function = _Function()


class _Part(Struct, frozen=True):
    content: str | None = None
    tool_calls: list[_Call] | None = None
    refusal: str | None = None


class _Choice(Struct, frozen=True):
    delta: _Part | None = None
    message: _Part | None = None
    finish_reason: str | None = None


class _Use(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Piece(Struct, frozen=True):
    """A chunk of a stream, or a whole completion: they differ in the name of one field."""

    choices: list[_Choice] = []
    usage: _Use | None = None
    error: Any = None


class OpenAI:
    """A provider of models by OpenAI's chat completions."""

    def __init__(self, settings: LLMSettings) -> None:
        with requires_extra("an LLM at a URL", extra="llm"):
            import httpx  # noqa: PLC0415
        self._httpx = httpx
        self._url = f"{(settings.llm_url or DEFAULT_URL).rstrip('/')}/chat/completions"
        verify = httpx.create_ssl_context()  # once for all clients: reading certificates takes 50 ms
        self._connections = ConnectionPool[httpx.Client](
            lambda hooks: httpx.Client(verify=verify, event_hooks=hooks)
        )
        self._model = settings.llm_model or "default"
        self._max_tokens = settings.max_answer_tokens
        self._limit_names = dict(zip(ANSWER_LIMITS, ANSWER_LIMITS, strict=True))
        """The server's name of each limit of an answer, learned from its refusals."""
        self._headers = {"Content-Type": "application/json"}
        if settings.llm_key:
            self._headers["Authorization"] = f"Bearer {settings.llm_key}"

    def ask(self, request: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        """Gives the text piece by piece, then the complete answer.

        If the server refuses the name of the answer's limit, asks once more with the other name: Mistral
        knows `max_tokens` only, OpenAI's reasoning models `max_completion_tokens` only.
        """
        try:
            yield from self._ask(request, seconds)
            return
        except ProviderError as error:
            name = next((name for name in self._body(request) if name in ANSWER_LIMITS), "")
            if error.status not in (400, 422) or name not in str(error):
                raise
            other = ANSWER_LIMITS[1 - ANSWER_LIMITS.index(name)]
        self._limit_names = dict.fromkeys(ANSWER_LIMITS, other)
        try:
            yield from self._ask(request, seconds)
        except ProviderError as error:
            if error.status in (400, 422):  # it was not the name
                self._limit_names = dict(zip(ANSWER_LIMITS, ANSWER_LIMITS, strict=True))
            raise

    def _ask(self, request: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        httpx, content = self._httpx, msgspec.json.encode(self._body(request))
        timeout = timeout_of(httpx, seconds)
        try:
            with (
                self._connections.client() as client,
                client.stream(
                    "POST", self._url, content=content, headers=self._headers, timeout=timeout
                ) as response,
            ):
                yield from _answer(_pieces(response, request), request.meter)
        except httpx.TimeoutException as error:
            raise ProviderError(repr(error), timeout=True, may_be_billed=was_sent(error)) from None
        except httpx.HTTPError as error:
            status = None if isinstance(error, httpx.ConnectError) else 502  # of an answer that broke off
            reason = f"{type(error).__name__}: {error}"
            raise ProviderError(reason, status=status, may_be_billed=was_sent(error)) from None
        except httpx.InvalidURL as error:
            raise ProviderError(f"{type(error).__name__}: {error}", status=400) from None

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        limits = {
            self._limit_names[name]: request.options[name]
            for name in ANSWER_LIMITS
            if name in request.options
        }
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [  # some servers require a content even next to tool calls
                {"role": each.role, "content": None, **msgspec.to_builtins(each)} for each in request.messages
            ],
            **{name: value for name, value in request.options.items() if name not in ANSWER_LIMITS},
            **(limits or {self._limit_names["max_completion_tokens"]: self._max_tokens}),
        }
        if request.tools:
            body["tools"] = [*request.tools]
        if request.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in body.items() if value is not None}

    def close(self) -> None:
        self._connections.close()


def _pieces(response: httpx.Response, request: ModelRequest) -> Iterator[_Piece]:
    """The pieces of an answer; a whole answer is one, whether a stream was requested or not."""
    status = response.status_code
    if status < 400 and response.headers.get("content-type", "").startswith("text/event-stream"):
        for line in _lines(response, request):
            name, _, text = line.partition(b":")
            if name == b"data" and text.strip() == b"[DONE]":
                return
            if name == b"data":
                yield decode(text, _Piece)
        return
    body, meter = b"", request.meter
    for chunk in response.iter_bytes():
        request.seconds_left()
        body += chunk
        if status < 400:  # until it is parsed, all of it counts as an answer
            meter.received_bytes = min(len(body), meter.max_bytes or len(body))
        if len(body) > MAX_BYTES:
            break
    if status >= 400:
        wait = seconds_after(response.headers.get("retry-after", ""))
        reason = f"{status}: {body.decode(errors='replace')}"
        raise ProviderError(reason, status=status, retry_after=wait)
    if len(body) > MAX_BYTES:
        raise ProviderError("its answer is too long", status=200, retry=False)
    piece = decode(body, _Piece)
    meter.received_bytes = 0
    yield piece


def _lines(response: httpx.Response, request: ModelRequest) -> Iterator[bytes]:
    partial = b""
    for chunk in response.iter_bytes():
        request.seconds_left()
        *lines, partial = (partial + chunk).split(b"\n")
        yield from lines
        if len(partial) > MAX_BYTES:
            raise ProviderError("a line of its answer is too long", status=200, retry=False)


def _answer(pieces: Iterator[_Piece], meter: AnswerMeter) -> Iterator[str | ModelAnswer]:
    """Gives the text of the pieces as they come, then the complete answer."""
    answer = AnswerBuilder(meter)
    for piece in pieces:
        if piece.error is not None:
            raise ProviderError(f"error in its answer: {piece.error}", status=500, may_be_billed=True)
        if piece.usage:
            meter.use = TokenUse.of(piece.usage.prompt_tokens, piece.usage.completion_tokens)
        for choice in piece.choices[:1]:
            answer.finish = choice.finish_reason or answer.finish
            part = choice.delta or choice.message or _Part()
            for position, call in enumerate(part.tool_calls or ()):
                index, function = position if call.index is None else call.index, call.function
                arguments = function.arguments or ""
                if isinstance(arguments, dict):  # instead of JSON, as some servers send them
                    arguments = msgspec.json.encode(arguments).decode()
                answer.add_call(index, id=call.id, name=function.name, arguments=arguments)
            if text := part.content or part.refusal:
                yield answer.add_text(text)
        if meter.is_full:
            break
    yield answer.build()


def decode(raw: bytes, kind: type[T]) -> T:
    """Decodes a body, or a part of one; raises ProviderError if it is anything else."""
    try:
        return decoder(kind).decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderError(f"its answer cannot be read: {error}", status=200) from None
