"""A model with its limits, its requests and answers, and the interface of providers.

A provider makes one call and raises `ProviderError` if it fails. `Model` asks again while nothing of an
answer was passed on, limits the calls in progress, and raises errors that contain neither the key nor
anything else that the provider said; the log has those.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from alcove.core import cancellation
from alcove.core.cancellation import Cancelled
from alcove.core.errors import AlcoveError, Unavailable, UpstreamFailed, UpstreamTimeout
from alcove.core.fair_shares import FairSemaphore
from alcove.core.records import Message
from alcove.core.settings import LLMSettings

MAX_CHARACTERS = 1_000_000
"""Of one answer with its tool calls; a model that does not end is cut off there."""
MAX_TOKENS = 100_000_000
"""The most that one request can take, in or out: no model comes near it."""
ANSWER_LIMITS = ("max_tokens", "max_completion_tokens")
"""The options that limit the length of an answer."""
BYTES_PER_TOKEN = 4
"""A rough average over all languages, for answers whose tokens no provider counts."""
BUSY_STATUSES = frozenset((429, 503, 529))
_RETRY_STATUSES = frozenset((408, 409, 425, 500, 502, 504)) | BUSY_STATUSES


class TokenUse(Struct, frozen=True, kw_only=True):
    """The tokens of requests to a model and of its answers."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def of(cls, prompt: int, completion: int) -> TokenUse:
        """Counts tokens in and out, from none to `MAX_TOKENS`: providers may report anything."""
        prompt, completion = (min(max(count, 0), MAX_TOKENS) for count in (prompt, completion))
        return cls(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)

    def __add__(self, other: TokenUse) -> TokenUse:
        prompt = self.prompt_tokens + other.prompt_tokens
        completion = self.completion_tokens + other.completion_tokens
        return TokenUse(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


class AnswerMeter(Struct, kw_only=True):
    """Measures one answer while it comes, so that its tokens are counted however it ends."""

    max_bytes: int = 0
    """A streamed answer is cut off beyond this size; 0 for no limit."""
    received_bytes: int = 0
    """Text and tool calls."""
    use: TokenUse | None = None
    """The tokens that the provider reports; None until it does."""
    is_open: bool = False
    """True from the moment a request is sent until its tokens are reported."""

    @property
    def is_full(self) -> bool:
        return 0 < self.max_bytes < self.received_bytes

    def cost(self, prompt_tokens: int) -> TokenUse:
        """Returns the tokens of the request and its answer; an estimate if the provider does not say."""
        return self.use or TokenUse.of(prompt_tokens, self.received_bytes // BYTES_PER_TOKEN)


class ModelRequest(Struct, frozen=True, kw_only=True):
    """A request to a model."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """In OpenAI's format."""
    options: Mapping[str, Any] = {}
    """By OpenAI's names: temperature, stop, and so on. Limits may be lowered after a `FailedAttempt`."""
    stream: bool = False
    may_be_empty: bool = False
    """Whether an answer without text and tool calls is accepted."""
    user: str | None = None
    """The user, for fair shares of the calls that a process may make at once."""
    deadline: float
    """When the answer must be complete, in the time of `time.monotonic`."""
    meter: AnswerMeter = field(default_factory=AnswerMeter)
    """Measures the answer; providers update it."""

    def seconds_left(self) -> float:
        """Returns the seconds until the deadline; raises UpstreamTimeout after it.

        Providers call it for every piece.
        """
        return seconds_left(self.deadline)


def seconds_left(deadline: float) -> float:
    """Returns the seconds until a turn's deadline, in the time of `time.monotonic`; raises after it."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise UpstreamTimeout("the turn took longer than it may")
    return seconds


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """A model's complete answer: a text, tool calls, or both."""

    text: str
    tool_calls: list[dict[str, Any]] = []
    """In OpenAI's format: `{"id", "type": "function", "function": {"name", "arguments"}}`."""
    finish: str = "stop"
    """Why it ended, by OpenAI's names: stop, length, tool_calls, content_filter."""
    use: TokenUse | None = None
    """None if the provider does not say."""

    @property
    def is_empty(self) -> bool:
        """True without tool calls and without text other than blanks."""
        return not (self.tool_calls or self.text.strip())


class FailedAttempt(Struct, frozen=True):
    """A request without a usable answer that may be billed; `ModelRequest.meter` has its tokens."""

    is_last: bool
    """True if the call fails now; otherwise the model is asked again."""


class ProviderError(Exception):
    """A failed call to a provider: the HTTP status, or None without an answer, and a text for the log."""

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        timeout: bool = False,
        retry_after: float = 0.0,
        retry: bool = True,
        may_be_billed: bool | None = None,
    ) -> None:
        """`retry_after`: seconds that the provider asks to wait. `retry`: whether to try again may help.

        `may_be_billed`: whether the model may have worked; by default, if it answered or timed out.
        """
        super().__init__(reason)
        self.status, self.timeout, self.retry_after = status, timeout, retry_after
        has_answer = status is not None and status < 400
        self.can_retry = retry and (timeout or status is None or has_answer or status in _RETRY_STATUSES)
        self.may_be_billed = (timeout or has_answer) if may_be_billed is None else may_be_billed


class Provider(Protocol):
    """One way to reach models; called from several threads at once."""

    def ask(self, request: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        """Gives the text piece by piece, then the complete answer; raises ProviderError.

        `seconds`: the longest silence. A cancelled call (`core/cancellation.py`) ends at once.
        """

    def close(self) -> None:
        """Ends all calls, and closes their connections."""


class AnswerBuilder:
    """Puts an answer together from pieces of text and of tool calls, several calls at once."""

    def __init__(self, meter: AnswerMeter) -> None:
        self._meter = meter
        self.finish: str | None = None
        """Why the answer ended, as the provider says; None until it does."""
        self._texts: list[str] = []
        self._calls: list[dict[str, str]] = []
        self._latest: dict[int, dict[str, str]] = {}
        """The last call at each index."""
        self._length = 0

    def add_text(self, text: str) -> str:
        """Adds a piece of text, and returns it."""
        self._texts.append(text)
        self._grow(text)
        return text

    def add_call(
        self, index: int, *, id: str | None = None, name: str | None = None, arguments: str = ""
    ) -> None:
        """Adds to the tool call at an index: its name if it has none yet, and more of its arguments.

        A name with another id begins another call: some servers send no index.
        """
        call = self._latest.get(index)
        if call is None or (name and id and call["id"] not in ("", id)):
            call = self._latest[index] = {"id": "", "name": "", "arguments": ""}
            self._calls.append(call)
        call["id"], call["name"] = call["id"] or id or "", call["name"] or name or ""
        call["arguments"] += arguments
        self._grow(arguments, 100)

    def _grow(self, text: str, overhead: int = 0) -> None:
        self._meter.received_bytes += len(text.encode(errors="replace"))
        self._length += len(text) + overhead
        if self._length > MAX_CHARACTERS:
            raise ProviderError("its answer is too long", status=200, retry=False)

    def build(self) -> ModelAnswer:
        """Returns the complete answer, each call with an id of its own; raises ProviderError if it broke off.

        Of an answer that was cut off because it exceeds its limit, returns the text.
        """
        text, use = "".join(self._texts), self._meter.use
        if self.finish is None and self._meter.is_full:
            return ModelAnswer(text=text, finish="length", use=use)
        if self.finish is None:
            raise ProviderError("its answer ended before its end", status=200)
        calls, known = list[dict[str, Any]](), {""}
        for number, call in enumerate(self._calls, 1):
            id = call["id"] if call["id"] not in known else f"call_{number}_{random.getrandbits(32):08x}"
            known.add(id)
            function = {"name": call["name"], "arguments": call["arguments"] or "{}"}
            calls.append({"id": id, "type": "function", "function": function})
        finish = "tool_calls" if calls else self.finish
        return ModelAnswer(text=text, tool_calls=calls, finish=finish, use=use)


def parse_arguments(text: str) -> dict[str, Any] | None:
    """Parses the arguments of a tool call; None if the model gave anything but an object."""
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


log = logging.getLogger("alcove.llm")

_FIRST_PAUSE, _MAX_PAUSE = 0.5, 8.0


class Model:
    """A model with its limits; threads share it."""

    def __init__(
        self,
        provider: Provider,
        settings: LLMSettings,
        *,
        sleep: Callable[[float], None] = cancellation.sleep,
    ) -> None:
        self._provider, self._sleep, self.settings = provider, sleep, settings
        self._calls = FairSemaphore(settings.llm_at_once)
        self.name = settings.llm_model or str(getattr(provider, "name", "default"))
        self._is_closing = False

    def ask(self, request: ModelRequest) -> Iterator[str | ModelAnswer | FailedAttempt]:
        """Gives the text piece by piece, then the complete answer.

        Until the first piece, a failed call is made again, as often as the settings say. A caller that can
        pay for no more stops at a `FailedAttempt`.
        """
        attempts = 0
        while True:
            has_begun = False
            if self._is_closing:
                raise Unavailable("the model is being closed")
            try:
                with self._calls.place(request.user, request.seconds_left()):
                    for piece in self._attempt(request):
                        has_begun = True
                        yield piece
                return
            except (AlcoveError, Cancelled):
                raise
            except Exception as failure:
                cancellation.check()  # the provider failed because it was cut off
                error = failure
                if not isinstance(error, ProviderError):
                    is_timeout = isinstance(failure, TimeoutError)
                    error = ProviderError(repr(failure), status=200, timeout=is_timeout)
                reason = str(error)
                if self.settings.llm_key:
                    reason = reason.replace(self.settings.llm_key, "…")
                log.warning("the LLM failed: %s", reason[:500])
                pause = max(error.retry_after, min(_FIRST_PAUSE * 2**attempts, _MAX_PAUSE))
                is_late = time.monotonic() + pause >= request.deadline
                is_last = has_begun or is_late or not error.can_retry or attempts >= self.settings.llm_retries
                request.meter.is_open = False
                if error.may_be_billed or has_begun:
                    yield FailedAttempt(is_last)
                if is_last:
                    raise _public_error(error) from None
                self._sleep(pause)
                attempts += 1

    def _attempt(self, request: ModelRequest) -> Iterator[str | ModelAnswer]:
        """One call of the provider, measured; raises ProviderError if the answer is empty."""
        meter, text_bytes = request.meter, 0
        silence = min(request.seconds_left(), self.settings.llm_timeout)
        meter.received_bytes, meter.use, meter.is_open = 0, None, True
        for piece in self._provider.ask(request, silence):
            cancellation.check()
            request.seconds_left()
            if isinstance(piece, ModelAnswer):
                call_bytes = len(msgspec.json.encode(piece.tool_calls)) if piece.tool_calls else 0
                meter.received_bytes = max(meter.received_bytes, text_bytes + call_bytes)
                meter.use = piece.use or meter.use
                if piece.is_empty and not (request.may_be_empty or meter.is_full):
                    raise ProviderError(f"its answer is empty (it ended for: {piece.finish})", status=200)
            else:
                text_bytes += len(piece.encode(errors="replace"))
                meter.received_bytes = max(meter.received_bytes, text_bytes)
            yield piece

    def close(self) -> None:
        """Ends all calls; later ones raise Unavailable."""
        self._is_closing = True
        self._provider.close()


def _public_error(error: ProviderError) -> AlcoveError:
    """Makes the error for callers, who may not see what the operator's provider says."""
    if error.timeout:
        return UpstreamTimeout("the LLM did not answer in time")
    if error.status is None:
        return Unavailable("the LLM cannot be reached")
    if error.status in BUSY_STATUSES:
        return Unavailable(f"the LLM is busy ({error.status}); try again in a moment")
    if 400 <= error.status < 500:
        return UpstreamFailed(f"the LLM refused the request ({error.status}); the log says why")
    if error.status >= 500:
        return UpstreamFailed(f"the LLM failed ({error.status})")
    return UpstreamFailed("the LLM gave no usable answer")
