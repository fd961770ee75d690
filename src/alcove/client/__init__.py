"""Stores wherever they are: `connect` gives a file or a server the same face."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alcove.client.store import Store
    from alcove.core.settings import Settings
    from alcove.search.embedders import Embedder
    from alcove.search.rerankers import Reranker


def is_url(at: object) -> bool:
    """Whether it is the address of a server, and no file."""
    return isinstance(at, str) and at.lower().startswith(("http://", "https://"))


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
    """The store in a file or behind a URL, as this user.

    `at`: the path of a file, or a URL. `user`: who asks.
    `token`, `api_key`, `timeout`, `retries`: for a URL: credentials, seconds that an answer may take, and how
    often what was lost on its way is sent again.
    `settings`, `embedder`, `reranker`: for a file or a database; `vectors`: for a database.
    """
    if is_url(at):
        from alcove.client.remote import Remote  # noqa: PLC0415  httpx is an extra

        return Remote(str(at), token=token, api_key=api_key, user=user, timeout=timeout, retries=retries)
    from alcove.client.embedded import Alcove  # noqa: PLC0415  it brings the whole store along

    store = Alcove(at, settings=settings, embedder=embedder, reranker=reranker, vectors=vectors)
    return store if user is None else store.as_user(user)
