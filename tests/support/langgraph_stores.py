"""LangGraph's stores in tests: where ours are opened, the awaited half of one, and its own for comparison."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    Item,
    ListNamespacesOp,
    NamespacePath,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
)
from langgraph.store.memory import InMemoryStore

from alcove import Alcove, connect
from alcove.client.store import Store
from alcove.core.clock import Clock, system_clock
from alcove.integrations.langgraph import AlcoveStore
from alcove.search.embedders import Matrix
from tests.support.concurrent_workers import QUIET
from tests.support.embeddings import Embeddings, embeddings
from tests.support.hashed_embedder import Bag
from tests.support.service import Service, serving


class WholeBag(Bag):
    """A bag that takes a text of any length whole, as LangGraph's own store does; it can be slow."""

    slow = False

    def windows(self, text: str) -> list[str]:
        return [text]

    def embed(self, texts: Sequence[str]) -> Matrix:
        if self.slow:
            time.sleep(0.5)
        return super().embed(texts)


class Deployment:
    """A file, or a server, in which stores are opened for users that no other test has."""

    def __init__(self, path: Path, url: str | None, trusted: Store, set_slow: Callable[[bool], None]) -> None:
        """`trusted`: a handle that may name any user and is an admin's."""
        self.path, self.url, self.trusted = path, url, trusted
        self._set_slow = set_slow
        self._handles = ExitStack()

    @property
    def remote(self) -> bool:
        return self.url is not None

    def new_user(self, name: str = "user") -> str:
        return f"{name}-{uuid.uuid4().hex[:8]}"

    def handle(self, user: str) -> Store:
        """A plain handle as this user; at a URL with a key of their own."""
        return self._opened(user=user) if self.url else self.trusted.as_user(user)

    def gateway(self) -> Store:
        """A handle that may name any user and has no role."""
        return self._opened(trusted=True) if self.url else self.trusted

    def _opened(self, **key: Any) -> Store:
        made = self.trusted.api_keys.create(client="test", **key)
        return self._handles.enter_context(connect(self.url or "", api_key=made))

    def close(self) -> None:
        """Closes the handles that were opened at a URL."""
        self._handles.close()

    @contextmanager
    def slow_embedder(self) -> Iterator[None]:
        self._set_slow(True)
        try:
            yield
        finally:
            self._set_slow(False)


@contextmanager
def in_a_file(path: Path, clock: Clock = system_clock) -> Iterator[Deployment]:
    bag = WholeBag()

    def set_slow(slow: bool) -> None:
        bag.slow = slow

    with Alcove(path, embedder=bag, settings=QUIET, clock=clock) as store:
        yield Deployment(path, None, store, set_slow)


@contextmanager
def serving_with_keys(folder: Path) -> Iterator[tuple[Service, Embeddings]]:
    """A service whose users have API keys, and which embeds as `Bag` does."""
    with embeddings() as embedder:
        flags = ("--auth", "apikey", "--embedder", f"{embedder.url}#bag", "--sweep-interval", 0)
        with serving(folder, *flags) as service:
            yield service, embedder


@contextmanager
def at_a_url(service: Service, embedder: Embeddings) -> Iterator[Deployment]:
    with Alcove(service.at, settings=QUIET, embedder=None) as direct:
        key = direct.api_keys.create(client="tests", roles=["admin"], trusted=True)
    with connect(service.url, api_key=key, user="operator") as trusted:

        def set_slow(slow: bool) -> None:
            embedder.behaviour = "slow" if slow else "well"

        with closing(Deployment(service.at, service.url, trusted, set_slow)) as deployment:
            yield deployment


class Awaited(BaseStore):
    """The methods of a store that are awaited, as if they were not, so that a test is written once."""

    supports_ttl = True

    def __init__(self, store: AlcoveStore, runner: asyncio.Runner) -> None:
        self._store, self._runner = store, runner

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self._runner.run(self._store.abatch(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await self._store.abatch(ops)

    def get(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        return self._runner.run(self._store.aget(namespace, key, refresh_ttl=refresh_ttl))

    def search(self, namespace_prefix: tuple[str, ...], /, **how: Any) -> list[SearchItem]:
        return self._runner.run(self._store.asearch(namespace_prefix, **how))

    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        self._runner.run(self._store.aput(namespace, key, value, index, ttl=ttl))

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        self._runner.run(self._store.adelete(namespace, key))

    def list_namespaces(
        self, *, prefix: NamespacePath | None = None, suffix: NamespacePath | None = None, **how: Any
    ) -> list[tuple[str, ...]]:
        return self._runner.run(self._store.alist_namespaces(prefix=prefix, suffix=suffix, **how))


class Reference(InMemoryStore):
    """LangGraph's own store in memory, without what it does against its own documentation."""

    def __init__(self, fields: list[str]) -> None:
        def embed(texts: Sequence[str]) -> list[list[float]]:
            return [[*map(float, row)] for row in WholeBag().embed(texts)]

        super().__init__(index={"dims": 48, "embed": embed, "fields": fields})

    def _handle_list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        # It lists namespaces that were only read, and those that hold nothing any more.
        for empty in [namespace for namespace, items in self._data.items() if not items]:
            del self._data[empty]
        return super()._handle_list_namespaces(op)

    def _extract_texts(
        self, put_ops: dict[tuple[tuple[str, ...], str], PutOp]
    ) -> dict[str, list[tuple[tuple[str, ...], str, str]]]:
        # It goes on finding an item by what it held before, at paths it has lost or if `index` is False now.
        for namespace, key in put_ops:
            self._vectors[namespace].pop(key, None)
        return super()._extract_texts(put_ops)

    def _insertinmem_store(
        self,
        to_embed: dict[str, list[tuple[tuple[str, ...], str, str]]],
        embeddings: list[list[float]],
    ) -> None:
        # It raises where a text is twice in a batch: it embeds it once, and counts the places it is in.
        of_places = zip(to_embed.values(), embeddings, strict=True)
        super()._insertinmem_store(to_embed, [vector for places, vector in of_places for _ in places])


# What the tests of the store share

Open = Callable[..., BaseStore]
"""Opens a store, for a new user or over a handle."""
OWN = "user:{user_id}:langgraph"
"""The root that apps use whose labels are no namespaces of Alcove's."""
HOME = ("alice", "memories")
DEEP = tuple(f"level-{n}" for n in range(16))
ODD = ("a:b", "50%", "%3A", "東京", "🍵 tea", "*", "\x01")


def keys(found: list[SearchItem]) -> list[str]:
    return [each.key for each in found]


def room(user: str, *labels: str) -> tuple[str, ...]:
    """Where a namespace of LangGraph's is, in a store with the root `OWN`."""
    return ("user", user, "langgraph", *labels)
