"""Stores wherever they are: `connect` opens a file, a database or a server, with the same methods."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alcove.client.store import Store
    from alcove.core.settings import Settings
    from alcove.search.embedders import Embedder
    from alcove.search.rerankers import Reranker


def is_url(location: object) -> bool:
    """Whether this is the address of a server."""
    return isinstance(location, str) and location.lower().startswith(("http://", "https://"))


def connect(
    at: str | os.PathLike[str],
    *,
    user: str | None = None,
    token: str | None = None,
    api_key: str | None = None,
    timeout: float = 60.0,
    retries: int = 2,
    settings: Settings | None = None,
    embedder: str | Embedder | None = "minilm",
    reranker: str | Reranker | None = None,
    vectors: str | None = None,
) -> Store:
    """Opens the store in a file or behind a URL, as this user.

    `at`: the path of a file, or a URL. `user`: the user whose memories you read and write.
    `token`, `api_key`, `timeout`, `retries`: for a URL: your credentials, the seconds that an answer may
    take, and how often a lost request is sent again.
    `settings`, `embedder`, `reranker`: for a file or a database; `vectors`: for a database.
    """
    if is_url(at):
        from alcove.client.remote import Remote  # noqa: PLC0415  httpx is an extra

        return Remote(str(at), token=token, api_key=api_key, user=user, timeout=timeout, retries=retries)
    from alcove.client.embedded import Alcove  # noqa: PLC0415  loads the whole store

    store = Alcove(at, settings=settings, embedder=embedder, reranker=reranker, vectors=vectors)
    return store if user is None else store.as_user(user)
