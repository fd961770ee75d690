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
from msgspec import Struct

from alcove.agents.messages import Message
from alcove.core import cancellation
from alcove.core.errors import AlcoveError, Unavailable, UpstreamFailed, UpstreamTimeout
from alcove.core.settings import LLMSettings
from alcove.core.waiting import Waiting

log = logging.getLogger("alcove.llm")

MOST_CHARACTERS = 1_000_000
"""Of one answer, its calls of tools included; a model that does not end is cut off there."""
MAX_TOKENS = 100_000_000
"""The most that one request can take, in or out: no model comes near it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_BUSY = frozenset((429, 503, 529))
_AGAIN = frozenset((408, 409, 425, 500, 502, 504)) | _BUSY


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


class Asked(Struct, frozen=True, kw_only=True):
    """What a model is sent."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """As OpenAI has them."""
    options: Mapping[str, Any] = {}
    """As OpenAI names them: temperature, stop, and so on."""
    stream: bool = False
    may_be_silent: bool = False
    """Whether an answer of nothing is one."""
    end: float
    """When it must have come to its end, as `time.monotonic` tells it."""

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


class EmptyAnswer(Struct, frozen=True):
    """An answer without text or tool calls: it is billed, then the model is asked again or the call fails."""

    use: TokenUse | None
    """None where the provider does not say."""


class Trouble(Exception):
    """A call that did not work: the status it was answered with, or none, and words for the log."""

    def __init__(
        self, why: str, *, status: int | None = None, timeout: bool = False, after: float = 0.0
    ) -> None:
        super().__init__(why)
        self.status, self.timeout, self.after = status, timeout, after
        """`after`: how many seconds the provider asks to be left alone."""
        self.again = timeout or status is None or status < 400 or status in _AGAIN


class Provider(Protocol):
    """One way to reach models."""

    def ask(self, asked: Asked, seconds: float) -> AsyncGenerator[str | Answered, None]:
        """Pieces of the text as they come, and the whole answer at last; silent for `seconds` at most."""

    async def close(self) -> None: ...


class Model:
    """A model with its bounds."""

    def __init__(self, provider: Provider, settings: LLMSettings, waiting: Waiting) -> None:
        self._provider, self._settings, self.waiting = provider, settings, waiting
        self._places: Any = waiting.places(settings.llm_at_once)
        self.name = settings.llm_model or str(getattr(provider, "name", "default"))
        self.seconds = settings.turn_seconds
        self.closing = False
        """Whether it is to be asked nothing more."""

    async def ask(self, asked: Asked) -> AsyncGenerator[str | Answered | EmptyAnswer, None]:
        """Pieces of the text as they come, and the whole answer at last.

        While nothing has come it is asked again, as often as the settings say; afterwards it fails. After an
        `EmptyAnswer`, a caller who can pay for no more stops here.
        """
        tries = 0
        while True:
            begun = False
            if self.closing:
                raise Unavailable("the model is being closed")
            try:
                async with self.waiting.inside(self._places, asked.left()):
                    silence = min(asked.left(), self._settings.llm_timeout)
                    async with aclosing(self._provider.ask(asked, silence)) as pieces:
                        async for piece in pieces:
                            cancellation.check()
                            asked.left()
                            if isinstance(piece, Answered) and not (piece.said or asked.may_be_silent):
                                yield EmptyAnswer(piece.use)
                                raise Trouble("it says nothing", status=200)
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
                if begun or not trouble.again or tries >= self._settings.llm_retries or late:
                    raise _told(trouble) from None
                await self.waiting.sleep(pause)
                tries += 1

    def _without_key(self, text: str) -> str:
        key = self._settings.llm_key
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

    def __init__(self) -> None:
        self.finish: str | None = None
        """Why it ended, as the provider says it; None while it has not."""
        self.use: TokenUse | None = None
        self._texts: list[str] = []
        self._calls: list[dict[str, str]] = []
        self._at: dict[int, dict[str, str]] = {}
        """The last call at each place."""
        self._length = 0

    def say(self, text: str) -> str:
        """Adds a piece of text, which is given back."""
        self._texts.append(text)
        self._grow(len(text))
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
        self._grow(len(arguments) + 100)

    def _grow(self, length: int) -> None:
        self._length += length
        if self._length > MOST_CHARACTERS:
            raise Trouble("its answer is too long", status=200)

    def done(self) -> Answered:
        """The whole answer, each call with an id of its own; Trouble where it has not come to its end."""
        if self.finish is None:
            raise Trouble("its answer ended before its end", status=200)
        calls, known = list[dict[str, Any]](), {""}
        for number, call in enumerate(self._calls, 1):
            id = call["id"] if call["id"] not in known else f"call_{number}_{random.getrandbits(32):08x}"
            known.add(id)
            function = {"name": call["name"], "arguments": call["arguments"] or "{}"}
            calls.append({"id": id, "type": "function", "function": function})
        finish = "tool_calls" if calls else self.finish
        return Answered(text="".join(self._texts), tool_calls=calls, finish=finish, use=self.use)


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
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Trouble(f"its answer is none: {error}", status=200) from None
