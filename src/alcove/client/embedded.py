"""`Alcove`: a store in this process, as one principal sees it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from alcove.agents.handle import AgentsHandle
from alcove.agents.rooms import older_room
from alcove.agents.runs import Runs
from alcove.agents.service import Agents
from alcove.client.admin import AdminHandle, EmbeddedAdmin
from alcove.core.clock import Clock, system_clock
from alcove.core.cursor import Portion
from alcove.core.errors import InvalidRequest, StoreError
from alcove.core.namespace import Namespace
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.records import (
    Delete,
    Deletion,
    Entry,
    EventPage,
    FoundMemories,
    Kind,
    Memory,
    Mode,
    Operation,
    Put,
    Receipt,
    Result,
    Shared,
    Swept,
    Touch,
    Version,
)
from alcove.core.settings import Settings
from alcove.engine.base import Observer
from alcove.engine.sqlite import SqliteEngine
from alcove.policy import Policy
from alcove.search.embedders import Embedder, embedder_for
from alcove.search.indexer import Indexer
from alcove.store.admin import Admin
from alcove.store.api_keys import ApiKeys
from alcove.store.audit import Audit
from alcove.store.batches import parse
from alcove.store.configuration import Standing
from alcove.store.memories import Memories
from alcove.store.reading import Address, Moment
from alcove.upkeep.backup import BackedUp, Progress
from alcove.upkeep.doctor import Examination
from alcove.upkeep.sweeper import Sweeper
from alcove.upkeep.transfer import File, Importer, Imports
from alcove.upkeep.wipe_ledger import Ledger
from alcove.vault import KeyProvider, Rotation, Vault, default_keys

if TYPE_CHECKING:
    from alcove.search.searcher import Searcher

List: TypeAlias = list  # inside the class, `list` is the method


class Alcove:
    """Memory in one file, opened for one principal. Thread-safe; close it, or use it with `with`.

    A new handle acts as the user `noop` with the role `admin`, as the service does without
    authentication; `as_user` gives one that acts as somebody else, over the same store.
    """

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
    ) -> None:
        path = _checked_path(at)
        model = embedder_for(embedder) if isinstance(embedder, str) else embedder
        self._settings = settings or Settings()
        policy = Policy(None if policy_dir is None else Path(policy_dir))
        provider = keys or default_keys(path)
        engine = SqliteEngine(
            path,
            clock=clock,
            busy_timeout=self._settings.busy_timeout,
            on_create=provider.create,
            observer=observer,
        )
        try:
            vault = Vault(engine, provider)
        except BaseException:
            engine.close()
            raise
        self._memories = _road(engine, vault, policy, path, self._settings, clock, model)
        interval = self._settings.sweep_interval
        self._sweeper = Sweeper(self._memories, interval) if interval else None
        if self._sweeper:
            self._memories.admin.wake = self._sweeper.wake
        admin = self._memories.admin
        admin.rooms_left_alone = Runs(self._memories).left_alone
        admin.older_rooms = lambda user: [older_room(each, user) for each in engine.admin.private_rooms()]
        self._agents: dict[Path, Agents] = {}
        self._clock = clock
        self.principal = DEFAULT_PRINCIPAL

    @property
    def memories(self) -> Memories:
        """The one road, for an edge that has principals of its own."""
        return self._memories

    @property
    def api_keys(self) -> ApiKeys:
        """The API keys of this store; admins only."""
        return self.admin.api_keys()

    @property
    def admin(self) -> AdminHandle:
        """Operating this store: what is held of whom, policies, settings, keys, figures, the audit log."""
        return EmbeddedAdmin(self._memories.admin, self.principal)

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Alcove:
        """The same store, as this user sees it."""
        if isinstance(roles, str):
            raise InvalidRequest("roles", "a list of strings")
        return self.as_principal(Principal(user_id, claims={"sub": user_id, "roles": [*roles]}))

    def as_principal(self, principal: Principal) -> Alcove:
        """The same store, as this principal sees it."""
        handle = object.__new__(type(self))
        handle.__dict__ = {**self.__dict__, "principal": principal}
        return handle

    def agents(self, specs: str | os.PathLike[str] | None = None) -> AgentsHandle:
        """The agents and teams of a spec file or folder, at work on this store for this principal."""
        from alcove.agents.loading import Watched  # noqa: PLC0415  loads YAML, which few calls need

        if specs is None:
            raise InvalidRequest("specs", "the path of a file or folder of agent specs")
        path = Path(specs).absolute()
        if path not in self._agents:
            watched = Watched(path, max_depth=self._settings.max_depth)
            self._agents[path] = Agents(self._memories, watched, authentication=False)
        return AgentsHandle(self._agents[path], self.principal)

    def put(
        self,
        namespace: Address,
        key: str,
        value: Mapping[str, object],
        *,
        index: Mapping[str, str] | None = None,
        ttl_seconds: int | None = None,
        expected_revision: int | None = None,
        create_only: bool = False,
        idempotency_key: str | None = None,
        wait_for_index: bool = False,
    ) -> Entry:
        """Stores a JSON object at a key, replacing what was there; the answer does not echo the value.

        With `wait_for_index` it comes when the memory can be found by meaning, too.
        """
        put = Put(
            namespace=namespace,
            key=key,
            value=value,
            index=index,
            ttl_seconds=ttl_seconds,
            expected_revision=expected_revision,
            create_only=create_only,
        )
        return self._memories.put(
            self.principal, put, idempotency_key=idempotency_key, wait_for_index=wait_for_index
        )

    def get(self, namespace: Address, key: str, *, as_of: Moment | None = None) -> Memory | None:
        """The memory at a key, or None; what was there at a past moment with `as_of`."""
        return self._memories.get(self.principal, namespace, key, as_of=as_of)

    def delete(
        self,
        namespace: Address,
        key: str,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Deletion:
        """Deletes what is at a key; nothing there is not an error."""
        delete = Delete(namespace=namespace, key=key, expected_revision=expected_revision)
        return self._memories.delete(self.principal, delete, idempotency_key=idempotency_key)

    def touch(self, namespace: Address, key: str, *, ttl_seconds: int | None = None) -> Entry:
        """Changes when a memory expires (never, without `ttl_seconds`); no version, no event."""
        return self._memories.touch(
            self.principal, Touch(namespace=namespace, key=key, ttl_seconds=ttl_seconds)
        )

    def batch(
        self,
        operations: Sequence[Operation | Mapping[str, object]],
        *,
        idempotency_key: str | None = None,
        after_cursor: str | None = None,
    ) -> Portion[Result]:
        """Puts, gets, deletes and touches in one transaction: all of them or none.

        Gets of more than 4 MiB in all end early: the same call with `after_cursor` goes on.
        """
        return self._memories.batch(
            self.principal, parse(operations), idempotency_key=idempotency_key, after_cursor=after_cursor
        )

    def search(
        self,
        namespace_prefix: Address = (),
        *,
        query: str | None = None,
        mode: Mode = "hybrid",
        filter: Mapping[str, object] | None = None,
        limit: int = 10,
        offset: int = 0,
        as_of: Moment | None = None,
        explain: bool = False,
    ) -> FoundMemories:
        """Memories below a prefix that fit a filter: the best for a query, or by namespace and key."""
        return self._memories.search(
            self.principal,
            namespace_prefix,
            query=query,
            mode=mode,
            filter=filter,
            limit=limit,
            offset=offset,
            as_of=as_of,
            explain=explain,
        )

    def list(
        self,
        namespace_prefix: Address = (),
        *,
        filter: Mapping[str, object] | None = None,
        limit: int = 100,
        offset: int = 0,
        as_of: Moment | None = None,
    ) -> List[Entry]:
        """The same without opening the values."""
        return self._memories.list(
            self.principal, namespace_prefix, filter=filter, limit=limit, offset=offset, as_of=as_of
        )

    def namespaces(
        self,
        prefix: Address = (),
        *,
        suffix: Address = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> List[Namespace]:
        """The distinct namespaces that hold something, cut to a depth, sorted."""
        return self._memories.namespaces(
            self.principal, prefix, suffix=suffix, max_depth=max_depth, limit=limit, offset=offset
        )

    def events(
        self,
        prefix: Address = (),
        *,
        kinds: Sequence[Kind] | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        after_cursor: str | None = None,
        limit: int = 50,
    ) -> EventPage:
        """A page of what happened below a prefix, oldest first, and the cursor to go on from."""
        return self._memories.events(
            self.principal,
            prefix,
            kinds=kinds,
            after=after,
            before=before,
            after_cursor=after_cursor,
            limit=limit,
        )

    def export_memories(self, prefix: Address = ()) -> Iterator[Memory]:
        """Every memory below a prefix that may be seen, page by page."""
        return self._memories.export(self.principal, prefix)

    def import_memories(self, lines: File | Iterable[bytes], *, wait_for_index: bool = False) -> Imports:
        """Writes those of the lines of an export, or of an open file, that differ from what is there.

        With `wait_for_index` it returns when they can be found by meaning, too.
        """
        importer = Importer(self._memories, lambda: self.principal, self._clock)
        for bundle in importer.lines.all_of(lines):
            importer.take(bundle)
            for pause in importer.index_pauses() if wait_for_index else ():
                time.sleep(pause)
        return importer.report

    def history(self, namespace: Address, key: str, *, after_cursor: str | None = None) -> Portion[Version]:
        """Every retained version of one key, newest first; at most 4 MiB, and more with `after_cursor`."""
        return self._memories.history(self.principal, namespace, key, after_cursor=after_cursor)

    def wipe(
        self, user: str, *, shared: Shared = "anonymise", wait: bool = True, dry_run: bool = False
    ) -> Receipt:
        """Erases everything that belongs to a user and destroys their key; a dry run says what would go."""
        return self.admin.wipe(user, shared=shared, wait=wait, dry_run=dry_run)

    def sweep(self) -> Swept:
        """Does now what the background sweep does at its interval."""
        return self._memories.sweep()

    def rotate_keys(self) -> Iterator[Rotation]:
        """Wraps every data key with a new key-encryption key, step by step; resumable."""
        return self.admin.rotate_keys()

    def doctor(self) -> Iterator[Examination]:
        """Checks the whole store, one examination at a time."""
        return self.admin.doctor()

    def backup(self, to: str | os.PathLike[str]) -> Iterator[Progress[BackedUp]]:
        """Copies the store into one new file while others use it, step by step, and verifies the copy."""
        return self.admin.backup(Path(to))

    def reload_policy(self) -> None:
        """Reads the policy folder again; a broken bundle raises and leaves the old one active."""
        self.admin.reload_policy()

    def close(self) -> None:
        """Stops the sweep and closes the file, for every handle over this store."""
        if self._sweeper:
            self._sweeper.stop()
        for agents in self._agents.values():
            agents.close()
        self._memories.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Alcove as {self.principal.user_id!r}>"


def _road(
    engine: SqliteEngine,
    vault: Vault,
    policy: Policy,
    path: Path,
    settings: Settings,
    clock: Clock,
    embedder: Embedder | None,
) -> Memories:
    """The one road into a store, with everything that stands beside it."""
    audit = Audit(engine.admin, vault, clock)
    policy.on_denied = audit.denied
    standing = Standing(engine.admin, policy, settings)
    ledger = Ledger.beside(path)
    indexer = None
    if embedder and settings.indexing_interval:
        indexer = Indexer(
            engine.index,
            embedder,
            clock,
            interval=settings.indexing_interval,
            batch=settings.indexing_batch,
        )
        if settings.sweep_interval:  # what other processes left is found by polling; the model stays lazy
            indexer.wake()
    admin = Admin(
        engine=engine,
        vault=vault,
        standing=standing,
        ledger=ledger,
        audit=audit,
        embedder=embedder,
        indexer=indexer,
        clock=clock,
    )

    def recall() -> Searcher:
        from alcove.search.searcher import Searcher  # noqa: PLC0415  numpy, for who searches

        return Searcher(engine.index, embedder, clock, most_bytes=settings.search_memory_mb << 20)

    return Memories(
        engine=engine,
        vault=vault,
        standing=standing,
        audit=audit,
        admin=admin,
        recall=recall,
        indexer=indexer,
        clock=clock,
    )


def _checked_path(at: str | os.PathLike[str]) -> Path:
    if not isinstance(at, str | os.PathLike) or not os.fspath(at) or os.fspath(at) == ":memory:":
        raise InvalidRequest("at", "the path of a file (in a temporary folder, if it is not to last)")
    path = Path(at)
    if isinstance(at, str) and at.startswith(("http://", "https://")):
        raise InvalidRequest("at", "the path of a file; alcove.connect opens a URL")
    if isinstance(at, str) and re.fullmatch(r"[\w.-]+:\d{2,5}(/.*)?", at) and not path.exists():
        raise InvalidRequest("at", f"the path of a file, or a URL: did you mean http://{at}?")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give the path of a file")
    return path
