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

from alcove.integrations.mcp import LISTEN, Connected, make_server
from alcove.integrations.mcp_changes import notices
from alcove.server.authentication import Headers
from alcove.server.routes import Page

_VERSION = b"mcp-protocol-version"
_UNSAID = b"2025-03-26"
"""The protocol of a client that does not say, as the specification has it."""
_SESSION = b"mcp-session-id"
_LONGEST_TOLD = 1000
_encode = msgspec.json.Encoder().encode
Notices = AsyncGenerator[list[types.ServerNotification], None]


@dataclass(frozen=True)
class _Exchange:
    """A request as the SDK's handlers see it: there is no way back to the client but its answer."""

    request_id: str | int
    transport = TransportContext(kind="streamable-http", can_send_request=False)
    message_metadata = None
    can_send_request = False
    cancel_requested: Any = None

    async def send_raw_request(self, method: str, params: object, opts: object = None) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: object, opts: object = None) -> None:
        """Passed over."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Passed over."""


class Exchanges:
    """Answers requests, each by itself: nothing is kept from one to the next."""

    def __init__(self) -> None:
        self._server = make_server()
        changed = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        self._options = self._server.create_initialization_options(changed)

    async def answer(
        self, id: str | int, method: str, params: dict[str, Any] | None, headers: Headers, at: Connected
    ) -> Page | Notices:
        """The answer to a request; or notifications, where it asks for those.

        Until 2025-11-25 a client says hello first, since 2026-07-28 each request says all that matters.
        """
        version = headers.get(_VERSION, _UNSAID).decode("latin-1")
        older = version in HANDSHAKE_PROTOCOL_VERSIONS
        try:
            if older:
                connection = Connection.from_envelope(version, None, None)
            else:
                connection = _introduced(version, method, params, headers)
                if method == LISTEN:
                    asked = types.SubscriptionsListenRequestParams.model_validate(params)
                    return notices(at, asked.notifications, id)
            runner = ServerRunner(self._server, connection, at, init_options=self._options)
            result = await runner.on_request(_Exchange(id), method, params)
        except Exception as failed:
            if (error := handler_exception_to_error_data(failed)) is None:
                raise
            told = _cut(error.model_dump(mode="json", exclude_none=True))
            status = 200 if older else ERROR_CODE_HTTP_STATUS.get(error.code, 200)
            return Page(_encode({"jsonrpc": "2.0", "id": id, "error": told}), status=status)
        # Nobody keeps anything under this id; but some clients open no stream for notifications without one.
        session = ((_SESSION, secrets.token_hex(16).encode()),) if method == "initialize" else ()
        return Page(_encode({"jsonrpc": "2.0", "id": id, "result": result}), headers=session)


def _cut(told: dict[str, Any]) -> dict[str, Any]:
    """An error without what is long of it: the SDK repeats what it was sent."""
    if len(_encode(told.get("data"))) > _LONGEST_TOLD:
        del told["data"]
    return {**told, "message": told["message"][:_LONGEST_TOLD]}


def _introduced(version: str, method: str, params: Mapping[str, Any] | None, headers: Headers) -> Connection:
    """Who the client is, as the request itself says; an error where that contradicts its headers."""
    said = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    route = classify_inbound_request({"method": method, "params": params}, headers=said)
    if isinstance(route, InboundLadderRejection):
        raise MCPError(route.code, route.message, route.data)
    return Connection.from_envelope(version, route.client_info, route.client_capabilities)
