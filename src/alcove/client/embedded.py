"""`Alcove`: a store in this process, for one principal."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from alcove.api.operation import Operation, services_by_class
from alcove.client import is_url
from alcove.client.open_store import OpenStore, Specs
from alcove.client.store import Store, Transport
from alcove.core.addresses import is_database, locate_store
from alcove.core.clock import Clock, system_clock
from alcove.core.errors import InvalidRequest, StoreError, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.settings import Settings, read_variable
from alcove.engine.commit import Observer
from alcove.engine.vector_index import MakeVectorIndex
from alcove.llm import LLM
from alcove.policy import Policy
from alcove.search.embedders import Embedder, embedder_for
from alcove.search.rerankers import Reranker, reranker_for
from alcove.search.sources import vector_index_for
from alcove.store.memories import Memories
from alcove.vault import KeyProvider, default_keys


class LocalTransport(Transport):
    """Operations that services in this process perform."""

    def __init__(self, services: Mapping[str, Any], principal: Principal) -> None:
        """`services`: the services, by the names of their classes."""
        self.services = services
        self.principal = principal

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        store: OpenStore | None = self.services.get("OpenStore")
        if store and store.process_id != os.getpid():
            raise Unavailable("this store was opened before the process was forked; open it again")
        assert operation.function is not None
        return partial(operation.function, self.services[operation.service], self.principal)

    def user(self, user_id: str, roles: Iterable[str]) -> Principal:
        if isinstance(roles, str):
            raise InvalidRequest("roles", "a list of strings")
        return Principal(user_id, claims={"sub": user_id, "roles": [*roles]})

    def agents(self, specs: Specs | None, llm: LLM | None) -> Self:
        if specs is None:
            raise InvalidRequest("specs", "the path of a file or folder of agent specs, or a mapping")
        return self.agent(specs, llm)

    def agent(self, specs: Specs | None, llm: LLM | None) -> Self:
        other = copy.copy(self)
        agents = self.open_store.agents(specs, llm)
        of_agents = services_by_class(*agents.services)
        other.services = {**self.services, **of_agents}
        return other

    def derive_key(self, purpose: str) -> bytes:
        return self.open_store.memories.derive_key(purpose)

    @property
    def open_store(self) -> OpenStore:
        return self.services["OpenStore"]  # type: ignore[no-any-return]

    def close(self) -> Any:
        self.open_store.close()


class Alcove(Store):
    """A store in one file, or in PostgreSQL, for one principal. Thread-safe; close it, or use it with `with`.

    A new handle acts as the user `noop` with the role `admin`, as the service does without authentication;
    `as_user` returns a handle for another user over the same store.
    """

    transport: LocalTransport

    def __init__(
        self,
        at: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        keys: KeyProvider | None = None,
        policy_dir: str | os.PathLike[str] | None = None,
        clock: Clock = system_clock,
        observer: Observer | None = None,
        embedder: str | Embedder | None = "minilm",
        reranker: str | Reranker | None = None,
        vectors: str | MakeVectorIndex | None = None,
        index_wait_seconds: float = 30.0,
    ) -> None:
        location, path = _locate(at)
        if vectors and isinstance(location, Path):
            raise InvalidRequest("vectors", "no address: a store in a file has its vectors in the same file")
        if isinstance(vectors, str):
            vectors = vector_index_for(vectors, key=read_variable("ALCOVE_QDRANT_KEY"))
        store = OpenStore(
            location,
            path,
            settings or Settings(),
            Policy(None if policy_dir is None else Path(policy_dir)),
            keys or default_keys(path),
            clock=clock,
            observer=observer or Observer(),
            embedder=embedder_for(embedder) if isinstance(embedder, str) else embedder,
            reranker=reranker_for(reranker) if isinstance(reranker, str) else reranker,
            vector_index=vectors,
            index_wait_seconds=index_wait_seconds,
        )
        self.transport = LocalTransport(store.services, DEFAULT_PRINCIPAL)

    @property
    def open_store(self) -> OpenStore:
        """The services of this store, for a caller that has principals of its own."""
        return self.transport.open_store

    @property
    def memories(self) -> Memories:
        """The memories of every principal, for a caller that has principals of its own."""
        return self.open_store.memories

    def __repr__(self) -> str:
        return f"<Alcove as {self.principal.user_id!r}>"


def _locate(at: str | os.PathLike[str]) -> tuple[Path | str, Path]:
    """A file or the address of a database, and the path from which those of its key and ledger derive."""
    if isinstance(at, str) and is_database(at):
        return locate_store(at)
    if not isinstance(at, str | os.PathLike) or not os.fspath(at) or os.fspath(at) == ":memory:":
        raise InvalidRequest(
            "at", "the path of a file; for a short-lived store, of one in a temporary folder"
        )
    path = Path(at)
    if is_url(at):
        raise InvalidRequest("at", "the path of a file; alcove.connect opens a URL")
    if isinstance(at, str) and re.fullmatch(r"[\w.-]+:\d{2,5}(/.*)?", at) and not path.exists():
        raise InvalidRequest("at", f"the path of a file, or a URL: did you mean http://{at}?")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give the path of a file")
    return path, path
