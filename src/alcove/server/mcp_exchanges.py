"""One message of the Model Context Protocol and its answer, by the official SDK; this module loads it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from mcp import types
from mcp.server.connection import Connection
from mcp.server.lowlevel import NotificationOptions
from mcp.server.runner import ServerRunner
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, InboundLadderRejection, classify_inbound_request
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.transport_context import TransportContext
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS

from alcove.integrations.mcp import LISTEN, McpAgent, make_server, watch_changes
from alcove.server.authentication import Headers
from alcove.server.routes import Page

_VERSION = b"mcp-protocol-version"
_DEFAULT_VERSION = b"2025-03-26"
"""The protocol of a client that names none, according to the specification."""
_SESSION = b"mcp-session-id"
_MAX_ERROR_BYTES = 1000
_encode = msgspec.json.Encoder().encode
Notices = AsyncGenerator[list[types.ServerNotification], None]


@dataclass(frozen=True)
class _Exchange:
    """A request as the SDK's handlers see it: its answer is the only way back to the client."""

    request_id: str | int
    transport = TransportContext(kind="streamable-http", can_send_request=False)
    message_metadata = None
    can_send_request = False
    cancel_requested: Any = None

    async def send_raw_request(self, method: str, params: object, opts: object = None) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: object, opts: object = None) -> None:
        """Ignored."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Ignored."""


class Exchanges:
    """Answers requests; keeps nothing from one to the next."""

    def __init__(self) -> None:
        self._server = make_server()
        options = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        self._options = self._server.create_initialization_options(options)

    async def answer(
        self, id: str | int, method: str, params: dict[str, Any] | None, headers: Headers, agent: McpAgent
    ) -> Page | Notices:
        """The answer to a request, or the notifications that it subscribes to.

        Until 2025-11-25 a client begins with `initialize`; since 2026-07-28 each request carries what that
        said.
        """
        version = headers.get(_VERSION, _DEFAULT_VERSION).decode("latin-1")
        has_handshake = version in HANDSHAKE_PROTOCOL_VERSIONS
        try:
            if has_handshake:
                connection = Connection.from_envelope(version, None, None)
            else:
                connection = _connect(version, method, params, headers)
                if method == LISTEN:
                    subscription = types.SubscriptionsListenRequestParams.model_validate(params)
                    return watch_changes(agent, subscription.notifications, id)
            runner = ServerRunner(self._server, connection, agent, init_options=self._options)
            result = await runner.on_request(_Exchange(id), method, params)
        except Exception as failed:
            if (data := handler_exception_to_error_data(failed)) is None:
                raise
            error = data.model_dump(mode="json", exclude_none=True)
            error["message"] = error["message"][:_MAX_ERROR_BYTES]
            if len(_encode(error.get("data"))) > _MAX_ERROR_BYTES:  # the SDK repeats what it was sent
                del error["data"]
            status = 200 if has_handshake else ERROR_CODE_HTTP_STATUS.get(data.code, 200)
            return Page(_encode({"jsonrpc": "2.0", "id": id, "error": error}), status=status)
        # The server keeps no session; but without this id some clients open no stream for notifications.
        session = ((_SESSION, secrets.token_hex(16).encode()),) if method == "initialize" else ()
        return Page(_encode({"jsonrpc": "2.0", "id": id, "result": result}), headers=session)


def _connect(version: str, method: str, params: Mapping[str, Any] | None, headers: Headers) -> Connection:
    """A connection to the client that the request describes; raises if its headers contradict that."""
    text = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    route = classify_inbound_request({"method": method, "params": params}, headers=text)
    if isinstance(route, InboundLadderRejection):
        raise MCPError(route.code, route.message, route.data)
    return Connection.from_envelope(version, route.client_info, route.client_capabilities)
