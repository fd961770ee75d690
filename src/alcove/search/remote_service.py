"""Asking a service of others for something as JSON, bounded in time and in bytes."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import IO
from urllib.parse import urlsplit

from alcove.core.errors import InvalidRequest


def address_and_model(url: str, field: str, expected: str) -> tuple[str, str, list[str]]:
    """The parts of `https://HOST/PATH#MODEL&OPTION`; where they are none, an error about `field`."""
    address, _, fragment = url.partition("#")
    model, *options = fragment.split("&")
    try:
        parts = urlsplit(address)
        usable = bool(model and parts.hostname and parts.scheme in {"http", "https"} and parts.port != 0)
    except ValueError:  # a port that is none, a bracket without its other
        usable = False
    if not usable:
        raise InvalidRequest(field, expected)
    return address, model, options


class RemoteService:
    """One address that JSON is posted to. Whatever goes wrong is raised as `error`, in words for an operator.

    `most` bounds the bytes of an answer, and `timeout` the seconds until it is whole. `meaning` has words for
    statuses that mean something particular.
    """

    def __init__(
        self,
        url: str,
        error: Callable[[str], Exception],
        *,
        key: str | None,
        timeout: float,
        most: int,
        meaning: Mapping[int, str],
    ) -> None:
        self._url, self._error, self._key = url, error, key
        self._timeout, self._most, self._meaning = timeout, most, meaning
        self._opener = urllib.request.build_opener(_NoRedirect)

    def post(self, body: Mapping[str, object]) -> bytes:
        """What the service answers."""
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
                told = self._meaning.get(error.code, f"answered {error.code}")
                raise self._error(f"{self._url} {told}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            slow = isinstance(reason, TimeoutError)
            told = f"did not answer in {self._timeout:g} s" if slow else f"cannot be reached: {reason}"
            raise self._error(f"{self._url} {told}") from None

    def _read(self, answer: IO[bytes], deadline: float) -> bytes:
        """All of it, unless it drips or does not end: the socket's timeout starts anew with each byte."""
        received = bytearray()
        while chunk := answer.read(64 * 1024):
            received += chunk
            if len(received) > self._most:
                raise ValueError("the answer is too large")
            if time.monotonic() > deadline:
                raise TimeoutError
        return bytes(received)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry texts and the key to a host nobody configured."""

    def redirect_request(self, *_: object) -> None:
        return None
