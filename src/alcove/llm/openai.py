"""Models behind an OpenAI-compatible address: OpenAI's own, gateways, and servers on this machine.

It speaks the protocol itself, over the HTTP client that Alcove has anyway: servers that only claim to be
compatible differ in small things, and a strict record of each piece is what tells an answer from garbage.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from alcove.core.errors import requires_extra
from alcove.core.messages import Message
from alcove.core.settings import LLMSettings
from alcove.core.waiting import Awaiting, Waiting
from alcove.llm.model import (
    ANSWER_LIMITS,
    Answered,
    Answering,
    Asked,
    Trouble,
    decoded,
    seconds_after,
    used,
    was_sent,
)

DEFAULT_URL = "https://api.openai.com/v1"
MOST_BYTES = 8 * 1024 * 1024
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

    def __init__(self, settings: LLMSettings, waiting: Waiting) -> None:
        with requires_extra("an LLM at a URL", extra="llm"):
            import httpx  # noqa: PLC0415
        self._httpx, self._waiting = httpx, waiting
        kind = httpx.AsyncClient if isinstance(waiting, Awaiting) else httpx.Client
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=settings.llm_at_once)
        self._client: Any = kind(limits=limits)
        self._url = f"{(settings.llm_url or DEFAULT_URL).rstrip('/')}/chat/completions"
        self._model = settings.llm_model or "default"
        self._max_tokens = settings.max_answer_tokens
        self._limit_names = dict(zip(ANSWER_LIMITS, ANSWER_LIMITS, strict=True))
        """What the server calls each limit of an answer, as far as its refusals tell."""
        self._headers = {"Content-Type": "application/json"}
        if settings.llm_key:
            self._headers["Authorization"] = f"Bearer {settings.llm_key}"

    async def ask(self, asked: Asked, seconds: float) -> AsyncGenerator[str | Answered, None]:
        """Pieces of the text as they come, and the whole answer at last.

        A server that refuses the name of the limit is asked once more with the other name: Mistral knows
        `max_tokens` only, OpenAI's reasoning models `max_completion_tokens` only.
        """
        try:
            async with aclosing(self._ask(asked, seconds)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        except Trouble as trouble:
            name = next((name for name in self._body(asked) if name in ANSWER_LIMITS), "")
            if trouble.status not in (400, 422) or name not in str(trouble):
                raise
            other = ANSWER_LIMITS[1 - ANSWER_LIMITS.index(name)]
        self._limit_names = dict.fromkeys(ANSWER_LIMITS, other)
        try:
            async with aclosing(self._ask(asked, seconds)) as pieces:
                async for piece in pieces:
                    yield piece
        except Trouble as trouble:
            if trouble.status in (400, 422):  # it was not the name
                self._limit_names = dict(zip(ANSWER_LIMITS, ANSWER_LIMITS, strict=True))
            raise

    async def _ask(self, asked: Asked, seconds: float) -> AsyncGenerator[str | Answered, None]:
        httpx, content = self._httpx, msgspec.json.encode(self._body(asked))
        try:
            request = self._client.stream(
                "POST", self._url, content=content, headers=self._headers, timeout=seconds
            )
            async with (
                self._waiting.sent(request) as response,
                aclosing(self._pieces(response, asked)) as pieces,
            ):
                async for piece in _folded(pieces, asked):
                    yield piece
        except httpx.TimeoutException as error:
            raise Trouble(repr(error), timeout=True, may_be_billed=was_sent(error)) from None
        except httpx.HTTPError as error:
            reached = None if isinstance(error, httpx.ConnectError) else 502  # of an answer that broke off
            why = f"{type(error).__name__}: {error}"
            raise Trouble(why, status=reached, may_be_billed=was_sent(error)) from None
        except httpx.InvalidURL as error:
            raise Trouble(f"{type(error).__name__}: {error}", status=400) from None

    def _body(self, asked: Asked) -> dict[str, Any]:
        limits = {
            self._limit_names[name]: asked.options[name] for name in ANSWER_LIMITS if name in asked.options
        }
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [*map(_sent, asked.messages)],
            **{name: value for name, value in asked.options.items() if name not in ANSWER_LIMITS},
            **(limits or {self._limit_names["max_completion_tokens"]: self._max_tokens}),
        }
        if asked.tools:
            body["tools"] = [*asked.tools]
        if asked.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in body.items() if value is not None}

    async def _pieces(self, response: Any, asked: Asked) -> AsyncGenerator[_Piece, None]:
        """The pieces of an answer, whether it came as a stream or, asked for or not, as a whole."""
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        status, meter = response.status_code, asked.meter
        if status >= 400 or not streamed:
            body = b""
            async for part in self._parts(response, asked):
                body += part
                if status < 400:  # until it is read, all of it counts as an answer
                    meter.received_bytes = min(len(body), meter.max_bytes or len(body))
                if len(body) > MOST_BYTES:
                    break
            if status >= 400:
                after = seconds_after(response.headers.get("retry-after", ""))
                raise Trouble(f"{status}: {body.decode(errors='replace')}", status=status, after=after)
            if len(body) > MOST_BYTES:
                raise Trouble("its answer is too long", status=200, again=False)
            piece = decoded(body, _Piece)
            meter.received_bytes = 0
            yield piece
            return
        async for line in self._lines(response, asked):
            name, _, text = line.partition(b":")
            if name == b"data" and text.strip() == b"[DONE]":
                return
            if name == b"data":
                yield decoded(text, _Piece)

    async def _parts(self, response: Any, asked: Asked) -> AsyncIterator[bytes]:
        """The body as it comes, as long as there is time."""
        async for part in self._waiting.bytes_of(response):
            asked.left()
            yield part

    async def _lines(self, response: Any, asked: Asked) -> AsyncIterator[bytes]:
        begun = b""
        async for part in self._parts(response, asked):
            *ended, begun = (begun + part).split(b"\n")
            for line in ended:
                yield line
            if len(begun) > MOST_BYTES:
                raise Trouble("a line of its answer is too long", status=200, again=False)

    async def close(self) -> None:
        await self._waiting.close(self._client)


async def _folded(pieces: AsyncIterator[_Piece], asked: Asked) -> AsyncGenerator[str | Answered, None]:
    """The text of pieces as it comes, and in the end all that they came to."""
    answer = Answering(asked.meter)
    async for piece in pieces:
        if piece.error is not None:
            raise Trouble(f"error in its answer: {piece.error}", status=500, may_be_billed=True)
        if piece.usage:
            asked.meter.use = used(piece.usage.prompt_tokens, piece.usage.completion_tokens)
        for choice in piece.choices[:1]:
            answer.finish = choice.finish_reason or answer.finish
            part = choice.delta or choice.message or _Part()
            for place, call in enumerate(part.tool_calls or ()):
                at, function = place if call.index is None else call.index, call.function
                answer.call(at, id=call.id, name=function.name, arguments=_text(function.arguments))
            if said := part.content or part.refusal:
                yield answer.say(said)
        if asked.meter.is_full:
            break
    yield answer.done()


def _text(arguments: str | dict[str, Any] | None) -> str:
    """Arguments as text, which some servers give as an object."""
    if isinstance(arguments, dict):
        return msgspec.json.encode(arguments).decode()
    return arguments or ""


def _sent(message: Message) -> dict[str, Any]:
    """A message as it goes over the wire; some servers want a content beside calls, too."""
    return {"role": message.role, "content": None, **msgspec.to_builtins(message)}
