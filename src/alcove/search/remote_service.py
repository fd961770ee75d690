"""Posts JSON to an external service, bounded in time and in bytes."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import IO
from urllib.parse import urlsplit

from alcove.core.errors import InvalidRequest


def address_and_model(url: str, field: str, expected: str) -> tuple[str, str, list[str]]:
    """Parses `https://HOST/PATH#MODEL&OPTION`; raises InvalidRequest about `field` for anything else."""
    address, _, fragment = url.partition("#")
    model, *options = fragment.split("&")
    try:
        parts = urlsplit(address)
        is_valid = bool(model and parts.hostname and parts.scheme in {"http", "https"} and parts.port != 0)
    except ValueError:  # an invalid port, an unmatched bracket
        is_valid = False
    if not is_valid:
        raise InvalidRequest(field, expected)
    return address, model, options


class RemoteService:
    """An address that JSON is posted to. Every failure is raised as `error`, with a message for operators.

    `max_bytes` bounds an answer, and `timeout` the seconds until all of it is there. `status_messages`: error
    messages for particular HTTP statuses.
    """

    def __init__(
        self,
        url: str,
        error: Callable[[str], Exception],
        *,
        key: str | None,
        timeout: float,
        max_bytes: int,
        status_messages: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._url, self._error, self._key = url, error, key
        self._timeout, self._max_bytes, self._status_messages = timeout, max_bytes, status_messages
        self._opener = urllib.request.build_opener(_NoRedirect)

    def post(self, body: Mapping[str, object]) -> bytes:
        """Posts a body and returns the answer."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = json.dumps(body).encode()
        request = urllib.request.Request(self._url, data=data, headers=headers)  # noqa: S310 - http(s) only
        deadline = time.monotonic() + self._timeout
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return self._read(answer, deadline)
        except urllib.error.HTTPError as error:
            with error:
                message = self._status_messages.get(error.code, f"answered {error.code}")
                raise self._error(f"{self._url} {message}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            is_slow = isinstance(reason, TimeoutError)
            message = f"did not answer in {self._timeout:g} s" if is_slow else f"cannot be reached: {reason}"
            raise self._error(f"{self._url} {message}") from None

    def _read(self, answer: IO[bytes], deadline: float) -> bytes:
        """Reads an answer within the bounds: the timeout of the socket starts again with each byte."""
        received = bytearray()
        while chunk := answer.read(64 * 1024):
            received += chunk
            if len(received) > self._max_bytes:
                raise ValueError("the answer is too large")
            if time.monotonic() > deadline:
                raise TimeoutError
        return bytes(received)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would send texts and the key to a host that nobody configured."""

    def redirect_request(self, *_: object) -> None:
        return None
