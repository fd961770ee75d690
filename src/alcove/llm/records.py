"""What a model is sent and what it answers, and the interface of the providers that reach one."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from alcove.core.errors import UpstreamTimeout
from alcove.core.records import Message

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
    """How many tokens a model was sent and gave."""

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
    """What the provider says it took; None while it has said nothing."""
    is_open: bool = False
    """True from the moment a request is sent until its tokens are reported."""

    @property
    def is_full(self) -> bool:
        return 0 < self.max_bytes < self.received_bytes

    def begin(self) -> None:
        """Starts to measure the answer to a request that is sent now."""
        self.received_bytes, self.use, self.is_open = 0, None, True

    def cost(self, prompt_tokens: int) -> TokenUse:
        """Returns the tokens of the request and its answer; an estimate if the provider does not say."""
        return self.use or TokenUse.of(prompt_tokens, self.received_bytes // BYTES_PER_TOKEN)


class ModelRequest(Struct, frozen=True, kw_only=True):
    """What a model is sent."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """In OpenAI's format."""
    options: Mapping[str, Any] = {}
    """By OpenAI's names: temperature, stop, and so on. Limits may be lowered after a `FailedAttempt`."""
    stream: bool = False
    may_be_empty: bool = False
    """Whether an answer without text and tool calls is accepted."""
    user: str | None = None
    """Who shares the calls that a process may make at once."""
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
    left = deadline - time.monotonic()
    if left <= 0:
        raise UpstreamTimeout("the turn took longer than it may")
    return left


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
    """A request that brought no usable answer and may be billed; `ModelRequest.meter` has what it took."""

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
