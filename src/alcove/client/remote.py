"""`Remote`: a store behind a server."""

from __future__ import annotations

from alcove.client.http import Server
from alcove.client.http_transport import BlockingTransport
from alcove.client.store import Store
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal


class Remote(Store):
    """A store at a URL, with the methods, records and errors of one in this process.

    The server learns who calls from the token or API key; a trusted API key names the user, and so does
    `as_user`. A request that was lost on its way is sent again where that is safe.
    """

    transport: BlockingTransport

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        api_key: str | None = None,
        user: str | None = None,
        timeout: float = 60.0,
        retries: int = 2,
    ) -> None:
        """Opens it.

        `token`, `api_key`: the credentials; `user`: the user that a trusted key acts for.
        `timeout`: seconds that an answer may take. `retries`: how often a request is sent again.
        """
        server = Server(url, token, api_key, timeout, retries)
        self.transport = BlockingTransport(server, server.httpx.Client(**server.options), principal_of(user))

    def __repr__(self) -> str:
        return f"<Remote at {self.transport.server.url}>"


def principal_of(user: str | None) -> Principal:
    """The principal of a new handle at a server: it names a user only if the caller does."""
    return DEFAULT_PRINCIPAL if user is None else Principal(user)
