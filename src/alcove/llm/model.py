"""A model with its limits: retries, calls at once, deadlines, and errors that callers may see.

A provider makes one call and raises `ProviderError` if it fails. `Model` asks again while nothing of an
answer was passed on, limits the calls in progress, and raises errors that contain neither the key nor
anything else that the provider said; the log has those.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import msgspec

from alcove.core import cancellation
from alcove.core.cancellation import Cancelled
from alcove.core.errors import AlcoveError, Unavailable, UpstreamFailed, UpstreamTimeout
from alcove.core.fair_shares import FairSemaphore
from alcove.core.settings import LLMSettings
from alcove.llm.records import (
    BUSY_STATUSES,
    FailedAttempt,
    ModelAnswer,
    ModelRequest,
    Provider,
    ProviderError,
)

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
                error = failure if isinstance(failure, ProviderError) else _unexpected(failure)
                log.warning("the LLM failed: %s", self._without_key(str(error)))
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
        meter.begin()
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

    def _without_key(self, text: str) -> str:
        key = self.settings.llm_key
        return (text.replace(key, "…") if key else text)[:500]

    def close(self) -> None:
        """Ends all calls; later ones raise Unavailable."""
        self._is_closing = True
        self._provider.close()


def _unexpected(error: Exception) -> ProviderError:
    """Wraps an error that a provider should have raised as ProviderError."""
    return ProviderError(repr(error), status=200, timeout=isinstance(error, TimeoutError))


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
