"""A model that is asked: what it takes and answers, whoever provides it; retries, bounds, and errors of ours.

A provider does one call and raises `Trouble` where that did not work. `Model` does the rest: it asks again
while nothing of an answer was passed on, lets only so many calls be under way, and says what went wrong in
words that hold neither the key nor anything else that the provider said; those are in the log.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from alcove.core import cancellation
from alcove.core.decoding import decoder
from alcove.core.errors import AlcoveError, Unavailable, UpstreamFailed, UpstreamTimeout
from alcove.core.messages import Message
from alcove.core.settings import LLMSettings
from alcove.core.waiting import Waiting

log = logging.getLogger("alcove.llm")

MOST_CHARACTERS = 1_000_000
"""Of one answer, its calls of tools included; a model that does not end is cut off there."""
MAX_TOKENS = 100_000_000
"""The most that one request can take, in or out: no model comes near it."""
ANSWER_LIMITS = ("max_tokens", "max_completion_tokens")
"""The options that say how long an answer may be."""
BYTES_PER_TOKEN = 4
"""About, in any language, for what no provider counts."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_BUSY = frozenset((429, 503, 529))
_AGAIN = frozenset((408, 409, 425, 500, 502, 504)) | _BUSY
_AFTER_SENDING = frozenset(("ReadTimeout", "ReadError", "RemoteProtocolError", "DecodingError"))
"""Errors of httpx, and of what replaces it, that come once the whole request was sent."""


class TokenUse(Struct, frozen=True, kw_only=True):
    """How many tokens a model was sent and gave."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: TokenUse) -> TokenUse:
        prompt = self.prompt_tokens + other.prompt_tokens
        completion = self.completion_tokens + other.completion_tokens
        return TokenUse(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def used(prompt: int, completion: int) -> TokenUse:
    """Counts tokens in and out, between none and what any model can take: providers may say anything."""
    prompt, completion = (min(max(count, 0), MAX_TOKENS) for count in (prompt, completion))
    return TokenUse(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


class AnswerMeter(Struct, kw_only=True):
    """How much of an answer has come, for whoever has to count it however it ends."""

    max_bytes: int = 0
    """An answer that is streamed is cut off once more than this came; 0 for no such limit."""
    received_bytes: int = 0
    """Text and calls of tools."""
    use: TokenUse | None = None
    """What the provider says it took; None while it has said nothing."""
    is_open: bool = False
    """Whether a request was sent whose tokens nobody was told of yet."""

    @property
    def is_full(self) -> bool:
        return 0 < self.max_bytes < self.received_bytes

    def begin(self) -> None:
        """Starts to measure the answer to a request that is sent now."""
        self.received_bytes, self.use, self.is_open = 0, None, True

    def cost(self, prompt_tokens: int) -> TokenUse:
        """Returns the tokens of the request and its answer; an estimate where the provider does not say."""
        return self.use or used(prompt_tokens, self.received_bytes // BYTES_PER_TOKEN)


class Asked(Struct, frozen=True, kw_only=True):
    """What a model is sent."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """As OpenAI has them."""
    options: Mapping[str, Any] = {}
    """As OpenAI names them: temperature, stop, and so on. Limits may be lowered after a `FailedAttempt`."""
    stream: bool = False
    may_be_silent: bool = False
    """Whether an answer of nothing is one."""
    end: float
    """When it must have come to its end, as `time.monotonic` tells it."""
    meter: AnswerMeter = field(default_factory=AnswerMeter)
    """What came of the answer so far. Providers count in it."""

    def left(self) -> float:
        """How many seconds there are until then; an error if it is past. Providers ask with every piece."""
        return seconds_left(self.end)


def seconds_left(end: float) -> float:
    """How many seconds a turn still has that ends at a moment of `time.monotonic`."""
    left = end - time.monotonic()
    if left <= 0:
        raise UpstreamTimeout("the turn took longer than it may")
    return left


class Answered(Struct, frozen=True, kw_only=True):
    """What a model answered in the end: a text, calls of tools, or both."""

    text: str
    tool_calls: list[dict[str, Any]] = []
    """As OpenAI has them: `{"id", "type": "function", "function": {"name", "arguments"}}`."""
    finish: str = "stop"
    """Why it ended, as OpenAI says it: stop, length, tool_calls, content_filter."""
    use: TokenUse | None = None
    """None where the provider does not say."""

    @property
    def said(self) -> bool:
        """Whether it says anything."""
        return bool(self.tool_calls or self.text.strip())


class FailedAttempt(Struct, frozen=True):
    """A request that brought no usable answer and may be billed; `Asked.meter` has what it took."""

    is_last: bool
    """Whether the call fails now; else the model is asked again."""


class Trouble(Exception):
    """A call that did not work: the status it was answered with, or none, and words for the log."""

    def __init__(
        self,
        why: str,
        *,
        status: int | None = None,
        timeout: bool = False,
        after: float = 0.0,
        again: bool = True,
        may_be_billed: bool | None = None,
    ) -> None:
        """`after`: how many seconds the provider asks to be left alone. `again`: whether that may help.

        `may_be_billed`: whether the model may have worked on it; unless given, if it answered or timed out.
        """
        super().__init__(why)
        self.status, self.timeout, self.after = status, timeout, after
        answered = status is not None and status < 400
        self.again = again and (timeout or status is None or answered or status in _AGAIN)
        self.may_be_billed = (timeout or answered) if may_be_billed is None else may_be_billed


class Provider(Protocol):
    """One way to reach models."""

    def ask(self, asked: Asked, seconds: float) -> AsyncGenerator[str | Answered, None]:
        """Pieces of the text as they come, and the whole answer at last; silent for `seconds` at most."""

    async def close(self) -> None: ...


class Model:
    """A model with its bounds."""

    def __init__(self, provider: Provider, settings: LLMSettings, waiting: Waiting) -> None:
        self._provider, self.settings, self.waiting = provider, settings, waiting
        self._places: Any = waiting.places(settings.llm_at_once)
        self.name = settings.llm_model or str(getattr(provider, "name", "default"))
        self.seconds = settings.turn_seconds
        self.closing = False
        """Whether it is to be asked nothing more."""

    async def ask(self, asked: Asked) -> AsyncGenerator[str | Answered | FailedAttempt, None]:
        """Pieces of the text as they come, and the whole answer at last.

        While nothing has come it is asked again, as often as the settings say; afterwards it fails. After a
        `FailedAttempt`, a caller who can pay for no more stops here.
        """
        tries, meter = 0, asked.meter
        while True:
            begun, text_bytes = False, 0
            if self.closing:
                raise Unavailable("the model is being closed")
            try:
                async with self.waiting.inside(self._places, asked.left()):
                    silence = min(asked.left(), self.settings.llm_timeout)
                    meter.begin()
                    async with aclosing(self._provider.ask(asked, silence)) as pieces:
                        async for piece in pieces:
                            cancellation.check()
                            asked.left()
                            if isinstance(piece, Answered):
                                calls_bytes = (
                                    len(msgspec.json.encode(piece.tool_calls)) if piece.tool_calls else 0
                                )
                                meter.received_bytes = max(meter.received_bytes, text_bytes + calls_bytes)
                                meter.use = piece.use or meter.use
                                if not (piece.said or asked.may_be_silent or meter.is_full):
                                    raise Trouble(
                                        f"it says nothing (it ended for: {piece.finish})", status=200
                                    )
                            else:
                                text_bytes += len(piece.encode(errors="replace"))
                                meter.received_bytes = max(meter.received_bytes, text_bytes)
                            begun = True
                            yield piece
                    return
            except (AlcoveError, cancellation.Cancelled):
                raise
            except Exception as error:
                trouble = error if isinstance(error, Trouble) else _unexpected(error)
                log.warning("the LLM failed: %s", self._without_key(str(trouble)))
                pause = max(trouble.after, min(_FIRST_PAUSE * 2**tries, _LONGEST_PAUSE))
                late = time.monotonic() + pause >= asked.end
                is_last = begun or not trouble.again or tries >= self.settings.llm_retries or late
                meter.is_open = False
                if trouble.may_be_billed or begun:
                    yield FailedAttempt(is_last)
                if is_last:
                    raise _told(trouble) from None
                await self.waiting.sleep(pause)
                tries += 1

    def _without_key(self, text: str) -> str:
        key = self.settings.llm_key
        return (text.replace(key, "…") if key else text)[:500]

    async def close(self) -> None:
        self.closing = True
        await self._provider.close()


def _unexpected(error: Exception) -> Trouble:
    """What a provider should have told as its trouble."""
    return Trouble(repr(error), status=200, timeout=isinstance(error, TimeoutError))


def _told(trouble: Trouble) -> AlcoveError:
    """What a caller is told, who may not be meant to know what the operator's provider says."""
    if trouble.timeout:
        return UpstreamTimeout("the LLM did not answer in time")
    if trouble.status is None:
        return Unavailable("the LLM cannot be reached")
    if trouble.status in _BUSY:
        return Unavailable(f"the LLM is busy ({trouble.status}); try again in a moment")
    if 400 <= trouble.status < 500:
        return UpstreamFailed(f"the LLM refused the request ({trouble.status}); the log says why")
    if trouble.status >= 500:
        return UpstreamFailed(f"the LLM failed ({trouble.status})")
    return UpstreamFailed("the LLM gave no usable answer")


class Answering:
    """An answer in the making: its text and its calls of tools come bit by bit, several calls at once."""

    def __init__(self, meter: AnswerMeter) -> None:
        self._meter = meter
        self.finish: str | None = None
        """Why it ended, as the provider says it; None while it has not."""
        self._texts: list[str] = []
        self._calls: list[dict[str, str]] = []
        self._at: dict[int, dict[str, str]] = {}
        """The last call at each place."""
        self._length = 0

    def say(self, text: str) -> str:
        """Adds a piece of text, which is given back."""
        self._texts.append(text)
        self._grow(text)
        return text

    def call(
        self, place: int, *, id: str | None = None, name: str | None = None, arguments: str = ""
    ) -> None:
        """Adds a part to the call at a place: the first name that comes, and more of its arguments.

        A name with another id than it has begins another call: some servers know no places.
        """
        call = self._at.get(place)
        if call is None or (name and id and call["id"] not in ("", id)):
            call = self._at[place] = {"id": "", "name": "", "arguments": ""}
            self._calls.append(call)
        call["id"], call["name"] = call["id"] or id or "", call["name"] or name or ""
        call["arguments"] += arguments
        self._grow(arguments, 100)

    def _grow(self, text: str, overhead: int = 0) -> None:
        self._meter.received_bytes += len(text.encode(errors="replace"))
        self._length += len(text) + overhead
        if self._length > MOST_CHARACTERS:
            raise Trouble("its answer is too long", status=200, again=False)

    def done(self) -> Answered:
        """The whole answer, each call with an id of its own; Trouble where it has not come to its end.

        Of one that was cut off because too much came, the text.
        """
        if self.finish is None and self._meter.is_full:
            return Answered(text="".join(self._texts), finish="length", use=self._meter.use)
        if self.finish is None:
            raise Trouble("its answer ended before its end", status=200)
        calls, known = list[dict[str, Any]](), {""}
        for number, call in enumerate(self._calls, 1):
            id = call["id"] if call["id"] not in known else f"call_{number}_{random.getrandbits(32):08x}"
            known.add(id)
            function = {"name": call["name"], "arguments": call["arguments"] or "{}"}
            calls.append({"id": id, "type": "function", "function": function})
        finish = "tool_calls" if calls else self.finish
        return Answered(text="".join(self._texts), tool_calls=calls, finish=finish, use=self._meter.use)


def was_sent(error: BaseException | None) -> bool:
    """Whether a request had gone out when a client of HTTP raised this, so that it may be billed."""
    return type(error).__name__ in _AFTER_SENDING


def seconds_after(header: str) -> float:
    """What a `Retry-After` says; nothing where it is no plain number."""
    return float(header) if header.isdecimal() and len(header) < 6 else 0.0


def parsed_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call as an object; None where a model gave something else."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def decoded(raw: bytes | str, kind: type[Any]) -> Any:
    """A body, or a part of one, as a record; Trouble where it is something else."""
    try:
        return decoder(kind).decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Trouble(f"its answer is none: {error}", status=200) from None
