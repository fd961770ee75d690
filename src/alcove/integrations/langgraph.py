"""LangGraph: a store of long-term memories, in Alcove.

    store = AlcoveStore("http://127.0.0.1:8080", token=token)
    store.put(("user", "alice", "notes"), "python_tip", {"text": "Use list comprehensions."})

A namespace is used as it is, and the policy decides who may use it. `root` puts every namespace below another
one. With `by_user` the first label is the user who owns an item: their key encrypts it, and it is erased with
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, TypeVar

from alcove.client import is_url
from alcove.client.store import Store
from alcove.core.errors import InvalidRequest, PermissionDenied, requires_extra
from alcove.core.namespace import TREE, Namespace
from alcove.core.records import BatchOperation, Delete, Memory, Put, SearchMode, Touch
from alcove.core.settings import Settings
from alcove.core.validation import extract_texts
from alcove.integrations.adapter import MAX_BATCH, StoreAdapter, StoreLocation, search_all, write_all
from alcove.search.embedders import Matrix, unit

with requires_extra("alcove.integrations.langgraph", extra="langgraph"):
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        InvalidNamespaceError,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        ensure_embeddings,
        get_text_at_path,
        validate_op_namespace,
    )

ItemType = TypeVar("ItemType", bound=Item)
Labels = tuple[str, ...]
CALLER = "{user_id}"
"""A segment of `root` that stands for the user whose credentials open the store."""
_MAX_TEXTS, _MAX_BYTES = Settings().max_index_fields, Settings().max_index_bytes


class AlcoveStore(StoreAdapter, BaseStore):
    """A `BaseStore` on a file or a URL; threads and event loops may share it."""

    supports_ttl = True

    def __init__(
        self,
        at: StoreLocation,
        *,
        root: str | Sequence[str] | None = None,
        index: Sequence[str] | Mapping[str, Any] | bool | None = None,
        ttl: TTLConfig | None = None,
        mode: SearchMode = "semantic",
        by_user: bool = False,
        **options: Any,
    ) -> None:
        """Opens a store, or uses an open one.

        `at`: the path of a file, a URL, or a store; `options`: the other arguments of `alcove.connect`.
        `root`: a namespace below which everything is stored, such as `("user", "alice", "langgraph")` or
        `"user:alice:langgraph"`; `{user_id}` in it stands for the caller. Without it, namespaces are used as
        they are. Earlier versions stored everything at `user:{user_id}:langgraph`.
        `index`: the texts of a value that a query finds: by default all of them; a list of paths such as
        `["text"]` selects some, False switches indexing off. Also LangGraph's `{"fields": […]}`, for a file
        also with `embed` and `dims`. Indexed text is stored in plain text, the value is encrypted.
        `ttl`: LangGraph's `default_ttl` and `refresh_on_read`, in minutes.
        `mode`: how a query ranks: by meaning (`semantic`), by words (`keyword`) or by both (`hybrid`).
        `by_user`: whether the first label of each namespace is the user who owns it.
        """
        if by_user and root is not None:
            raise InvalidRequest("root", "none with by_user, which puts each user's items below their own")
        self._is_indexed = index is not False
        self._paths: list[str] | None = None
        """The paths of the texts to index; None for all texts."""
        if isinstance(index, Mapping):
            self._paths = _check_paths(index.get("fields") or ["$"], "index.fields")
            if "embed" in index:
                if isinstance(at, Store) or is_url(at):
                    raise InvalidRequest("index.embed", "none here: this store has an embedder of its own")
                options["embedder"] = LangChainEmbedder(index)
        elif index is not None and not isinstance(index, bool):
            self._paths = _check_paths(index, "index")
        self._template: Labels = tuple(Namespace.checked(() if root is None else root, "root"))
        super().__init__(at, options)
        self.ttl_config, self._mode, self._by_user = ttl, mode, by_user
        self._root: Labels | None = None if by_user or CALLER in self._template else self._template
        """The prefix of every namespace; None with `by_user`, and until the caller is known."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Performs operations; reads do not see the writes of the same batch."""
        return self._perform([*ops])

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for event loops."""
        return await self._threads.run(partial(self._perform, [*ops]))

    def get(self, namespace: Labels, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """The item at a key; asks the store directly unless it must refresh a lifetime."""
        labels = tuple(namespace)
        if self._root is not None and _is_valid(labels):
            with suppress(PermissionDenied):  # the other path explains it
                memory = self._store.get(self._root + labels, str(key))
                if memory is None:
                    return None
                if not memory.ttl_seconds:
                    return self._item(memory)
        return super().get(namespace, key, refresh_ttl=refresh_ttl)

    def _perform(self, ops: Sequence[Op]) -> list[Result]:
        if not self._by_user and self._root is None:
            caller = self._caller()
            self._root = tuple(caller if label == CALLER else label for label in self._template)
        results: list[Result] = []
        writes: dict[tuple[Labels, str], PutOp] = {}
        for op in ops:
            match op:
                case GetOp():
                    results.append(self._get(op))
                case SearchOp():
                    results.append(self._search(op))
                case ListNamespacesOp():
                    results.append(self._namespaces(op))
                case PutOp():
                    writes[tuple(op.namespace), op.key] = op  # the last write of a key wins
                    results.append(None)
                case _:
                    raise InvalidRequest("ops", f"operations of LangGraph, not {type(op).__name__}")
        users: dict[str | None, list[BatchOperation]] = {}
        for write in writes.values():
            users.setdefault(self._owner(write.namespace), []).append(self._write(write))
        for user, operations in users.items():
            try:
                write_all(self._store if user is None else self._store.as_user(user), operations)
            except PermissionDenied as error:
                number = error.details.get("operation")
                if not isinstance(number, int) or len(operations) > MAX_BATCH:
                    number = 0
                raise self._explain(error, operations[number].namespace) from None
        return results

    def _get(self, op: GetOp) -> Item | None:
        store, room = self._store_of(op.namespace), self._room(op.namespace)
        try:
            memory: Memory | None = store.get(room, op.key)
        except PermissionDenied as error:
            raise self._explain(error, room) from None
        if memory is None:
            return None
        if op.refresh_ttl:
            _refresh(store, [memory])
        return self._item(memory)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        store, room = self._store_of(op.namespace_prefix), self._room(op.namespace_prefix)
        hits = search_all(
            store,
            room,
            query=op.query if op.query and op.query.strip() else None,
            mode=self._mode,
            filter={"$value": op.filter} if op.filter else None,
            limit=op.limit,
            offset=op.offset,
            similarity=True,
            unranked=True,
            wait_for_index=True,
        )
        try:
            memories = [*hits]
        except PermissionDenied as error:
            raise self._explain(error, room) from None
        if op.refresh_ttl:
            _refresh(store, memories)
        return [self._item(memory, SearchItem, score=memory.similarity) for memory in memories]

    def _namespaces(self, op: ListNamespacesOp) -> list[Labels]:
        conditions = op.match_conditions or ()
        prefixes = (condition.path for condition in conditions if condition.match_type == "prefix")
        prefix: Labels = tuple(takewhile(lambda label: label != "*", next(prefixes, ())))
        store, room = self._store_of(prefix), self._room(prefix)
        namespaces = (self._labels(each) for each in store.namespaces(room) if each[: len(room)] == room)
        matches = {
            labels[: op.max_depth]
            for labels in namespaces
            if labels and all(_matches(condition, labels) for condition in conditions)
        }
        return sorted(matches)[op.offset : op.offset + op.limit]

    def _write(self, op: PutOp) -> BatchOperation:
        room = self._room(op.namespace)
        if op.value is None:
            return Delete(room, op.key)
        if op.ttl is not None and not math.isfinite(op.ttl):
            raise InvalidRequest("ttl", "a number of minutes")
        ttl = None if op.ttl is None else max(1, math.ceil(op.ttl * 60))
        return Put(room, op.key, op.value, self._index_texts(op) or None, ttl)

    def _index_texts(self, op: PutOp) -> dict[str, str]:
        """The texts to index, by path; the last field has all texts beyond the limit."""
        if not self._is_indexed or op.index is False or not isinstance(op.value, Mapping):
            return {}
        paths = self._paths if op.index is None else _check_paths(op.index, "index")
        try:
            texts = _all_texts(op.value) if paths is None else _texts_at(op.value, paths)
        except RecursionError:
            raise InvalidRequest("value", "at most 100 levels of nesting") from None
        if len(texts) > _MAX_TEXTS:
            path, _ = texts[_MAX_TEXTS - 1]
            texts[_MAX_TEXTS - 1 :] = [(path, "\n".join(text for _, text in texts[_MAX_TEXTS - 1 :]))]
        # Drops half a character and surrogates: the store refuses such a value with a better message.
        return {
            path: text.encode(errors="ignore")[:_MAX_BYTES].decode(errors="ignore") for path, text in texts
        }

    # Addresses

    def _owner(self, labels: Labels) -> str | None:
        """The user who owns a namespace; None without `by_user`."""
        if self._by_user and not labels:
            raise InvalidRequest("namespace", "a user as its first label: with by_user, each has a room")
        return labels[0] if self._by_user else None

    def _store_of(self, labels: Labels) -> Store:
        """The store for the owner of a namespace."""
        user = self._owner(labels)
        return self._store if user is None else self._store.as_user(user)

    def _room(self, labels: Labels) -> Labels:
        if self._by_user:
            return ("user", labels[0], TREE, *labels[1:])
        return (*(self._root or ()), *labels)

    def _labels(self, room: Labels) -> Labels:
        return (room[1], *room[3:]) if self._by_user else room[len(self._root or ()) :]

    def _explain(self, error: PermissionDenied, room: Sequence[str]) -> PermissionDenied:
        """The policy's refusal of a namespace, with advice."""
        if self._by_user:
            return error
        caller = self._caller()
        advice = f"use one of yours, such as {('user', caller, 'notes')}"
        if not self._template:
            advice += f", or pass root={str(Namespace(('user', caller, TREE)))!r} to put everything below one"
        reason = f"{tuple(room)} is not a namespace that {caller!r} may use ({error.reason}): {advice}"
        return PermissionDenied(reason)

    def _item(self, memory: Memory, kind: type[ItemType] = Item, **fields: Any) -> ItemType:  # type: ignore[assignment]
        return kind(
            value=memory.value,
            key=memory.key,
            namespace=self._labels(memory.namespace),
            created_at=memory.added_at,
            updated_at=memory.created_at,
            **fields,
        )


def _refresh(store: Store, memories: Sequence[Memory]) -> None:
    """Restarts the lifetimes of memories that expire."""
    rooms: dict[Labels, list[BatchOperation]] = {}
    for memory in memories:
        if memory.ttl_seconds:
            touch = Touch(memory.namespace, memory.key, refresh=True)
            rooms.setdefault(memory.namespace, []).append(touch)
    try:
        write_all(store, [touch for touches in rooms.values() for touch in touches])
    except PermissionDenied:  # some rooms may be read-only: refreshes the others
        for touches in rooms.values():
            with suppress(PermissionDenied):
                write_all(store, touches)


def _all_texts(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All texts of a value as one, a line each, under LangGraph's path for the whole value."""
    try:
        texts = extract_texts(value).values()
    except TypeError:  # a name is not a string: the store refuses the value with a better message
        return []
    return [("$", "\n".join(texts))] if texts else []


def _check_paths(index: object, field: str) -> list[str]:
    """The paths of texts to index; raises InvalidRequest, which names the field, for anything else."""
    if isinstance(index, Iterable) and not isinstance(index, str | bytes | Mapping):
        paths = [*index]
        if all(isinstance(path, str) for path in paths):
            return paths
    raise InvalidRequest(field, "a list of paths, or False")


def _texts_at(value: Mapping[str, Any], paths: Sequence[str]) -> list[tuple[str, str]]:
    """The texts at LangGraph's paths; if a path has several, their numbers are appended to it."""
    texts_by_path = {path: get_text_at_path(value, path) for path in paths}
    return [
        (f"{path}.{n}" if len(texts) > 1 else path, text)
        for path, texts in texts_by_path.items()
        for n, text in enumerate(texts)
    ]


@lru_cache(10_000)
def _is_valid(labels: Labels) -> bool:
    """Whether LangGraph accepts these labels; if it does not, its own `get` raises an error."""
    try:
        validate_op_namespace(GetOp(labels, ""))
    except InvalidNamespaceError:
        return False
    return True


def _matches(condition: MatchCondition, labels: Labels) -> bool:
    """Whether labels begin, or end, with those of a condition, in which a star matches any label."""
    pattern = condition.path
    if len(pattern) > len(labels):
        return False
    start = 0 if condition.match_type == "prefix" else len(labels) - len(pattern)
    return all(star in ("*", label) for star, label in zip(pattern, labels[start:], strict=False))


class LangChainEmbedder:
    """Embeds texts with LangChain's embeddings, or with a function from texts to vectors."""

    def __init__(self, index: Mapping[str, Any]) -> None:
        """`index`: LangGraph's `embed` and `dims`."""
        self._embeddings, self.dimensions = ensure_embeddings(index["embed"]), int(index.get("dims") or 0)
        self.name = f"langgraph:{_model_name(index['embed'])}:{self.dimensions}"

    def windows(self, text: str) -> list[str]:
        """The text as a whole, as LangGraph's stores embed it."""
        return [text]

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row of length 1 for each text."""
        return _to_matrix(self._embeddings.embed_documents([*texts]))

    def embed_query(self, text: str) -> Matrix:
        """The one row of a query."""
        return _to_matrix([self._embeddings.embed_query(text)])


def _model_name(embed: Any) -> str:
    """A name that differs between models: the class or function, and the model that it names."""
    if isinstance(embed, str):
        return embed
    kind = embed if hasattr(embed, "__qualname__") else type(embed)
    models = (getattr(embed, name, None) for name in ("model", "model_name", "model_id", "deployment"))
    names = [model for model in models if isinstance(model, str)]
    return ".".join([kind.__module__, kind.__qualname__, *names[:1]])


def _to_matrix(vectors: Sequence[Sequence[float]]) -> Matrix:
    import numpy as np  # noqa: PLC0415  with the first vector

    return unit(np.asarray(vectors, dtype=np.float32))
