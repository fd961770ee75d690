"""LangGraph: its store, kept in Alcove.

    store = AlcoveStore("http://127.0.0.1:8080", token=token)
    store.put(("user", "alice", "notes"), "python_tip", {"text": "Use list comprehensions."})

A namespace is used as it is given, and the policy decides who may use it. `root` puts every namespace below
one. With `by_user` the first label is the user who owns an item: their key encrypts it, and it is erased with
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, takewhile
from typing import Any, TypeVar

from alcove.client import is_url
from alcove.client.store import Store
from alcove.core.errors import InvalidRequest, PermissionDenied, requires_extra
from alcove.core.namespace import TREE, Namespace
from alcove.core.records import BatchOperation, Delete, Memory, Put, SearchMode, Touch
from alcove.core.settings import Settings
from alcove.core.validation import extract_texts
from alcove.integrations.langgraph_embeddings import LangChainEmbedder
from alcove.integrations.opened import MOST_OPERATIONS, At, Opened, search_all, write_all

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
        get_text_at_path,
        validate_op_namespace,
    )

Kind = TypeVar("Kind", bound=Item)
Labels = tuple[str, ...]
CALLER = "{user_id}"
"""A segment of `root` that stands for the user whose credentials the store is opened with."""
_MOST_TEXTS, _MOST_BYTES = Settings().max_index_fields, Settings().max_index_bytes


class AlcoveStore(Opened, BaseStore):
    """A `BaseStore` on a file or a URL; threads and event loops share one."""

    supports_ttl = True

    def __init__(
        self,
        at: At,
        *,
        root: str | Sequence[str] | None = None,
        index: Sequence[str] | Mapping[str, Any] | bool | None = None,
        ttl: TTLConfig | None = None,
        mode: SearchMode = "semantic",
        by_user: bool = False,
        **opening: Any,
    ) -> None:
        """Opens a store, or takes one that is open.

        `at`: the path of a file, a URL, or a store; `opening`: what `alcove.connect` takes beside it.
        `root`: a namespace below which everything is put, such as `("user", "alice", "langgraph")` or
        `"user:alice:langgraph"`; `{user_id}` in it stands for the caller. Without it, a namespace is used as
        it is given. `user:{user_id}:langgraph` is where earlier versions put everything.
        `index`: which texts of a value a query finds. By default all of them; a list of paths such as
        `["text"]` chooses some, False switches indexing off. LangGraph's `{"fields": […]}` is taken too, for
        a file also with `embed` and `dims`. Indexed text is stored in plain text, the value is encrypted.
        `ttl`: LangGraph's `default_ttl` and `refresh_on_read`, in minutes.
        `mode`: how a query ranks: by meaning, in the order of scores; by `keyword`; or by both (`hybrid`).
        `by_user`: True if the first label of each namespace is the user who owns it.
        """
        if by_user and root is not None:
            raise InvalidRequest("root", "none with by_user, which puts each user's items below their own")
        paths: list[str] | None = None
        if isinstance(index, Mapping):
            paths = _checked_paths(index.get("fields") or ["$"], "index.fields")
        elif index is not None and not isinstance(index, bool):
            paths = _checked_paths(index, "index")
        if isinstance(index, Mapping) and "embed" in index:
            if isinstance(at, Store) or is_url(at):
                raise InvalidRequest("index.embed", "none here: this store has an embedder of its own")
            opening["embedder"] = LangChainEmbedder(index)
        self._template: Labels = tuple(Namespace.checked(() if root is None else root, "root"))
        super().__init__(at, opening)
        self._is_indexed = index is not False
        self._paths = paths
        """None for every text of a value."""
        self.ttl_config, self._mode, self._by_user = ttl, mode, by_user
        self._root: Labels | None = None if by_user or CALLER in self._template else self._template
        """Where everything is; None until the caller is known, and with `by_user`."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Does some operations; what is read is as it was before what is written."""
        return self._do([*ops])

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same for event loops."""
        return await self._threads.run(partial(self._do, [*ops]))

    def get(self, namespace: Labels, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """The item at a key, straight from the store where nothing else is to be done for it."""
        labels = tuple(namespace)
        if self._root is None or not _taken(labels):
            return super().get(namespace, key, refresh_ttl=refresh_ttl)
        try:
            memory = self._store.get(self._root + labels, str(key))
        except PermissionDenied:
            return super().get(namespace, key, refresh_ttl=refresh_ttl)  # which says what to do
        if memory is None:
            return None
        if memory.ttl_seconds:
            return super().get(namespace, key, refresh_ttl=refresh_ttl)
        return self._item(memory)

    def _do(self, ops: Sequence[Op]) -> list[Result]:
        if not self._by_user and self._root is None:
            caller = self._caller()
            self._root = tuple(caller if each == CALLER else each for each in self._template)
        results: list[Result] = []
        writes: dict[tuple[Labels, str], PutOp] = {}
        for op in ops:
            match op:
                case GetOp():
                    results.append(self._get(self._as_owner(op.namespace), op))
                case SearchOp():
                    results.append(self._search(self._as_owner(op.namespace_prefix), op))
                case ListNamespacesOp():
                    results.append(self._namespaces(op))
                case PutOp():
                    writes[tuple(op.namespace), op.key] = op  # the last of a key counts
                    results.append(None)
                case _:
                    raise InvalidRequest("ops", f"operations of LangGraph's, not {type(op).__name__}")
        users: dict[str | None, list[BatchOperation]] = {}
        for op in writes.values():
            users.setdefault(self._owner(op.namespace), []).append(self._write(op))
        for user, operations in users.items():
            try:
                write_all(self._store if user is None else self._store.as_user(user), operations)
            except PermissionDenied as error:
                raise self._explain(error, _refused(operations, error)) from None
        return results

    def _get(self, store: Store, op: GetOp) -> Item | None:
        room = self._room(op.namespace)
        try:
            memory: Memory | None = store.get(room, op.key)
        except PermissionDenied as error:
            raise self._explain(error, room) from None
        if memory is None:
            return None
        if op.refresh_ttl:
            self._refresh(store, [memory])
        return self._item(memory)

    def _search(self, store: Store, op: SearchOp) -> list[SearchItem]:
        room = self._room(op.namespace_prefix)
        pages = search_all(
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
            found = [*pages]
        except PermissionDenied as error:
            raise self._explain(error, room) from None
        if op.refresh_ttl:
            self._refresh(store, found)
        return [self._item(each, SearchItem, score=each.similarity) for each in found]

    def _refresh(self, store: Store, found: Sequence[Memory]) -> None:
        """Lets those that expire live on for as long as they were to when they were written."""
        expiring: dict[Labels, list[BatchOperation]] = {}
        for each in found:
            if each.ttl_seconds:
                touches = expiring.setdefault(each.namespace, [])
                touches.append(Touch(each.namespace, each.key, refresh=True))
        try:
            write_all(store, [*chain(*expiring.values())])
        except PermissionDenied:  # some may be read and not written: the others are refreshed all the same
            for touches in expiring.values():
                with suppress(PermissionDenied):
                    write_all(store, touches)

    def _namespaces(self, op: ListNamespacesOp) -> list[Labels]:
        conditions = op.match_conditions or ()
        prefixes = (each.path for each in conditions if each.match_type == "prefix")
        known: Labels = tuple(takewhile(lambda label: label != "*", next(prefixes, ())))
        owner, room = self._as_owner(known), self._room(known)
        below = [each for each in owner.namespaces(room) if each[: len(room)] == room]
        every = (self._labels(each) for each in below)
        kept = {ns[: op.max_depth] for ns in every if ns and all(_matches(each, ns) for each in conditions)}
        return sorted(kept)[op.offset : op.offset + op.limit]

    def _write(self, op: PutOp) -> BatchOperation:
        room = self._room(op.namespace)
        if op.value is None:
            return Delete(room, op.key)
        if op.ttl is not None and not math.isfinite(op.ttl):
            raise InvalidRequest("ttl", "a number of minutes")
        ttl = None if op.ttl is None else max(1, math.ceil(op.ttl * 60))
        return Put(room, op.key, op.value, self._texts(op) or None, ttl)

    def _texts(self, op: PutOp) -> dict[str, str]:
        """The texts by which an item is found, each by its path; of very many, the last ones together."""
        if not self._is_indexed or op.index is False or not isinstance(op.value, Mapping):
            return {}
        paths = self._paths if op.index is None else _checked_paths(op.index, "index")
        try:
            named = _all_texts(op.value) if paths is None else _texts_at(op.value, paths)
        except RecursionError:
            raise InvalidRequest("value", "at most 100 levels of nesting") from None
        if rest := named[_MOST_TEXTS - 1 :][1:]:
            name, text = named[_MOST_TEXTS - 1]
            named[_MOST_TEXTS - 1 :] = [(name, "\n".join([text, *(each for _, each in rest)]))]
        return {name: _cut(text) for name, text in named}

    # Where things are

    def _owner(self, labels: Labels) -> str | None:
        """The user whose room it is, where the first label says that."""
        if self._by_user and not labels:
            raise InvalidRequest("namespace", "a user as its first label, where each has a room")
        return labels[0] if self._by_user else None

    def _as_owner(self, labels: Labels) -> Store:
        """The store as the user whose room it is."""
        user = self._owner(labels)
        return self._store if user is None else self._store.as_user(user)

    def _room(self, labels: Labels) -> Labels:
        if self._by_user:
            return ("user", labels[0], TREE, *labels[1:])
        return (*(self._root or ()), *labels)

    def _labels(self, room: Labels) -> Labels:
        return (room[1], *room[3:]) if self._by_user else room[len(self._root or ()) :]

    def _explain(self, error: PermissionDenied, room: Labels) -> PermissionDenied:
        """The policy's refusal of a namespace, with what to do about it."""
        if self._by_user:
            return error
        caller = self._caller()
        advice = f"use one of yours, such as {('user', caller, 'notes')}"
        if not self._template:
            advice += f", or pass root={str(Namespace(('user', caller, TREE)))!r} to put everything below one"
        reason = f"{tuple(room)} is not a namespace that {caller!r} may use ({error.reason}): {advice}"
        return PermissionDenied(reason)

    def _item(self, memory: Memory, kind: type[Kind] = Item, **more: Any) -> Kind:  # type: ignore[assignment]
        return kind(
            value=memory.value,
            key=memory.key,
            namespace=self._labels(memory.namespace),
            created_at=memory.added_at,
            updated_at=memory.created_at,
            **more,
        )


def _refused(operations: Sequence[BatchOperation], error: PermissionDenied) -> Labels:
    """The namespace of the write that the policy refused, or of the first where it does not say which."""
    number = error.details.get("operation")
    if not isinstance(number, int) or len(operations) > MOST_OPERATIONS:
        number = 0
    return tuple(operations[number].namespace)


def _all_texts(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every text of a value as one, a line each, below the name that LangGraph has for the whole of it."""
    try:
        texts = extract_texts(value).values()
    except TypeError:  # names that are no strings: the store refuses the value, and says which
        return []
    return [("$", "\n".join(texts))] if texts else []


def _checked_paths(index: object, field: str) -> list[str]:
    """Paths of texts to index; raises InvalidRequest, which names the field, for anything else."""
    if isinstance(index, Iterable) and not isinstance(index, str | bytes | Mapping):
        items = [*index]
        if len(paths := [path for path in items if isinstance(path, str)]) == len(items):
            return paths
    raise InvalidRequest(field, "a list of paths, or False")


def _texts_at(value: Mapping[str, Any], paths: Sequence[str]) -> list[tuple[str, str]]:
    """The texts at LangGraph's paths; each of several at one path has a number after it."""
    found = {path: get_text_at_path(value, path) for path in paths}
    return [
        (f"{path}.{n}" if len(texts) > 1 else path, text)
        for path, texts in found.items()
        for n, text in enumerate(texts)
    ]


def _cut(text: str) -> str:
    """As much of a text as an index field may have; the value itself may say that it is no text at all."""
    return text.encode(errors="ignore")[:_MOST_BYTES].decode(errors="ignore")


@lru_cache(10_000)
def _taken(labels: Labels) -> bool:
    """Whether LangGraph takes these labels; where it does not, it says why."""
    try:
        validate_op_namespace(GetOp(labels, ""))
    except InvalidNamespaceError:
        return False
    return True


def _matches(condition: MatchCondition, labels: Labels) -> bool:
    """Whether labels begin, or end, with those of a condition, in which a star stands for any."""
    wanted = condition.path
    part = labels[: len(wanted)] if condition.match_type == "prefix" else labels[len(labels) - len(wanted) :]
    return len(part) == len(wanted) <= len(labels) and all(
        star in ("*", label) for star, label in zip(wanted, part, strict=True)
    )
