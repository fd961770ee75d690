"""HTTP connections to a provider that can be cut off while a call waits on them.

A thread that waits for a socket cannot be interrupted, but another thread can shut the socket down. So that
each call knows its socket, it has an HTTP client of its own with one connection; idle clients are reused.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from alcove.core import cancellation


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)
Hooks = dict[str, list[Callable[..., Any]]]
"""The event hooks of an httpx client."""
CONNECT_SECONDS = 5.0
"""The longest that a provider may take to accept a connection: nothing can cut that short."""
_CONNECTED = (".connect_tcp.complete", ".start_tls.complete")
"""Events of httpcore that tell a connection's socket: TLS takes over the first one, and makes another."""
_AFTER_SENDING = frozenset(("ReadTimeout", "ReadError", "RemoteProtocolError", "DecodingError"))
"""Errors of httpx, and of its successors, that come once the whole request was sent."""


class Connection(Generic[C]):
    """A client with one connection at most, and the socket of that connection."""

    def __init__(self, make_client: Callable[[Hooks], C]) -> None:
        self._socket: socket.socket | None = None
        self.is_cut = False
        self.client = make_client({"request": [self._trace]})

    def _trace(self, request: Any) -> None:
        request.extensions = {**request.extensions, "trace": self._remember_socket}

    def _remember_socket(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(_CONNECTED):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.is_cut:
                self.shut_down()

    def shut_down(self) -> None:
        """Shuts the socket down, so that a thread that waits for it gets an error at once."""
        self.is_cut = True
        if self._socket:
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of TLS would wait


class ConnectionPool(Generic[C]):
    """Lends connections to calls, one each."""

    def __init__(self, make_client: Callable[[Hooks], C]) -> None:
        """`make_client`: makes an HTTP client with these event hooks."""
        self._make_client = make_client
        self._lock = threading.Lock()
        self._idle: list[Connection[C]] = []
        self._busy: set[Connection[C]] = set()

    @contextmanager
    def client(self) -> Iterator[C]:
        """Lends a client for one call; a cancellation of the call cuts its connection off."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or Connection(self._make_client)
        with self._lock:
            self._busy.add(connection)
        try:
            with cancellation.on_cancel(connection.shut_down):
                yield connection.client
        finally:
            with self._lock:
                self._busy.discard(connection)
                if not connection.is_cut:
                    self._idle.append(connection)
            if connection.is_cut:
                connection.client.close()

    def close(self) -> None:
        """Cuts all calls off, and closes the idle connections."""
        with self._lock:
            busy, idle, self._idle = [*self._busy], self._idle, []
        for connection in busy:
            connection.shut_down()
        for connection in idle:
            connection.client.close()


def timeout_of(http: Any, seconds: float) -> Any:
    """The timeout of one call with an HTTP library: `httpx`, or its successor."""
    return http.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))


def was_sent(error: BaseException | None) -> bool:
    """True if the whole request was sent when an HTTP client raised this error, so that it may be billed."""
    return type(error).__name__ in _AFTER_SENDING


def seconds_after(header: str) -> float:
    """The seconds in a `Retry-After` header; 0 if it is not a plain number."""
    return float(header) if header.isdecimal() and len(header) < 6 else 0.0
