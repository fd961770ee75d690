"""`Remote`: a store behind a server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NoReturn, Self

from alcove.client.server import Server
from alcove.client.store import AdminHandle, AgentsHandle, Store
from alcove.client.transports import HttpTransport
from alcove.core.errors import InvalidRequest
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.upkeep.transfer import File, Imports


def server_at(url: str, token: str | None, api_key: str | None, timeout: float, retries: int) -> Server:
    """A server, and the credentials for it."""
    credentials = {"X-API-Key": api_key, "Authorization": token and f"Bearer {token}"}
    return Server(url, credentials, timeout, retries)


def checked_roles(roles: Iterable[str]) -> None:
    """Refuses roles that a client names."""
    if [*roles]:
        raise InvalidRequest("roles", "none: the server knows them from the API key")


class Remote(Store):
    """A store at a URL, with the methods, records and errors of one in this process.

    Who calls is what the server makes of the token or API key; a trusted API key names the user, which
    `as_user` does, too. What was lost on its way is sent again where that is safe.
    """

    transport: HttpTransport

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

        `token`, `api_key`: the credentials; `user`: whom a trusted key acts for.
        `timeout`: seconds that an answer may take. `retries`: how often a request is sent again.
        """
        server = server_at(url, token, api_key, timeout, retries)
        import httpx  # noqa: PLC0415  an extra, which the server has found there

        self.transport = HttpTransport(
            server, httpx.Client(), DEFAULT_PRINCIPAL if user is None else Principal(user)
        )

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Self:
        """The same server for this user, whom only a trusted API key may name; it says which roles."""
        checked_roles(roles)
        return self.as_principal(Principal(user_id))

    @property
    def admin(self) -> AdminHandle:
        """Operating the store behind the server, which decides by the caller's role."""
        return AdminHandle(self.transport)

    def agents(self, specs: str | os.PathLike[str] | None = None) -> AgentsHandle:
        """The agents of the server, which has their specs."""
        if specs is not None:
            raise InvalidRequest("specs", "none: the server has its own")
        return AgentsHandle(self.transport)

    def import_memories(self, lines: File | Iterable[bytes], *, wait_for_index: bool = False) -> Imports:
        return self.transport.import_memories(lines, wait_for_index=wait_for_index)

    def sweep(self) -> NoReturn:
        """The server does it at its interval."""
        self.transport.only_here("sweep")
        raise AssertionError

    def close(self) -> None:
        self.transport.close()

    def __repr__(self) -> str:
        return f"<Remote at {self.transport.server.url}>"
