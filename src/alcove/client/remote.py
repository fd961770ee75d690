"""`Remote`: a store behind a server. The handle is the one of a file; only the road is another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar, cast

import msgspec
from msgspec import UnsetType

from alcove.agents.handle import AgentsHandle
from alcove.client.admin import AdminHandle
from alcove.client.agents import RemoteAgents
from alcove.client.embedded import Alcove
from alcove.client.remote_admin import RemoteAdmin, not_here
from alcove.client.transport import Wire, body_of, encoded, fields_of, instant, record, result_of, segments
from alcove.core import cursor
from alcove.core.cursor import Portion
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound
from alcove.core.namespace import Namespace
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.records import (
    KINDS,
    Delete,
    Entry,
    Event,
    EventPage,
    FoundMemories,
    Kind,
    Memory,
    Operation,
    Put,
    Result,
    Touch,
    Version,
)
from alcove.server import answers
from alcove.store import validation
from alcove.store.memories import Memories
from alcove.store.reading import Address, Moment
from alcove.upkeep.transfer import File, Imports, pieces_of

List: TypeAlias = list  # inside the class, `list` is the method

T = TypeVar("T")
_AT = "/v1/memories"
_PAGE = 100


class Remote(Alcove):
    """A store at a URL, with the methods, records and errors of one in this process.

    Who calls is what the server makes of the token or API key; a trusted API key names the user, which
    `as_user` does, too. Thread-safe; close it, or use it with `with`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        api_key: str | None = None,
        user: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        headers = {"X-API-Key": api_key, "Authorization": token and f"Bearer {token}"}
        self._wire = Wire(url, {name: value for name, value in headers.items() if value is not None}, timeout)
        self._memories = cast(Memories, RemoteMemories(self._wire))
        self._sweeper, self._agents = None, {}
        self.principal = DEFAULT_PRINCIPAL if user is None else Principal(user)

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Alcove:
        """The same server for this user, whom only a trusted API key may name; it says which roles."""
        if [*roles]:
            raise InvalidRequest("roles", "none: the server knows them from the API key")
        return self.as_principal(Principal(user_id))

    @property
    def admin(self) -> AdminHandle:
        """Operating the store behind the server, which decides by the caller's role."""
        return RemoteAdmin(self._wire, self.principal)

    def agents(self, specs: str | os.PathLike[str] | None = None) -> AgentsHandle:
        """The agents of the server, which has their specs."""
        if specs is not None:
            raise InvalidRequest("specs", "none: the server has its own")
        return AgentsHandle(RemoteAgents(self._wire), self.principal)

    def import_memories(self, lines: File | Iterable[bytes], *, wait_for_index: bool = False) -> Imports:
        asked, text = {"wait_for_index": "true"} if wait_for_index else {}, pieces_of(lines)
        return self._wire.call(self.principal, "POST", f"{_AT}/import", Imports, params=asked, lines=text)

    def follow(
        self, prefix: Address = (), *, kinds: Sequence[Kind] | None = None, after_cursor: str | None = None
    ) -> Iterator[Event]:
        """Each event as it happens, from now on or from after a cursor; a lost connection is made again."""
        params = {"ns": segments(prefix, "prefix"), "kinds": kinds and [*kinds]}
        at = f"{_AT}/events/stream"
        for sent in self._wire.sent_events(self.principal, at, params, after_cursor):
            yield record(Event, self._wire.decode(sent, answers.EventAnswer))

    def __repr__(self) -> str:
        return f"<Remote at {self._wire.url}>"


class RemoteMemories:
    """The road that lies in the server, as `service.Memories` is one here: each call says who asks."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.close = wire.close

    __getattr__ = not_here

    def put(
        self, who: Principal, put: Put, *, idempotency_key: str | None, wait_for_index: bool = False
    ) -> Entry:
        body = encoded(**{**fields_of(put), "op": None}, wait_for_index=wait_for_index or None)
        answer = self._wire.call(
            who, "PUT", _AT, answers.EntryAnswer, body=body, idempotency_key=idempotency_key
        )
        return record(Entry, answer)

    def get(self, who: Principal, namespace: Address, key: str, *, as_of: Moment | None) -> Memory | None:
        params = {**_place(namespace, key), "as_of": instant(as_of, "as_of")}
        try:
            return record(Memory, self._wire.call(who, "GET", _AT, answers.MemoryAnswer, params=params))
        except NotFound:
            return None

    def delete(self, who: Principal, delete: Delete, *, idempotency_key: str | None) -> Result:
        # By a batch of one, because DELETE does not say whether there was anything.
        return self._one(who, delete, idempotency_key)

    def touch(self, who: Principal, touch: Touch) -> Result:
        return self._one(who, touch, None)

    def _one(self, who: Principal, operation: Operation, idempotency_key: str | None) -> Result:
        try:
            return self.batch(who, [operation], idempotency_key=idempotency_key)[0]
        except AlcoveError as error:
            error.details.pop("operation", None)
            raise

    def batch(
        self,
        who: Principal,
        operations: Sequence[Operation],
        *,
        idempotency_key: str | None,
        after_cursor: str | None = None,
    ) -> Portion[Result]:
        done = 0 if after_cursor is None else cursor.decode(after_cursor)
        asked = msgspec.Raw(b"[%s]" % b",".join(body_of(*each) for each in enumerate(operations)))
        more = {} if after_cursor is None else {"after_cursor": after_cursor}
        body = msgspec.json.encode({"operations": asked, **more})
        answer = self._wire.call(
            who, "POST", f"{_AT}/batch", answers.BatchAnswer, body=body, idempotency_key=idempotency_key
        )
        return _portion(map(result_of, operations[done:], answer.results), answer.after_cursor)

    def search(
        self, who: Principal, prefix: Address, *, as_of: Moment | None, **asked: object
    ) -> FoundMemories:
        body = encoded(
            namespace_prefix=segments(prefix, "namespace_prefix"), as_of=instant(as_of, "as_of"), **asked
        )
        answer = self._wire.call(who, "POST", f"{_AT}/search", answers.SearchAnswer, body=body)
        found = FoundMemories(record(Memory, each) for each in answer.items)
        found.degraded, found.next_offset = answer.degraded or None, answer.next_offset or None
        return found

    def list(
        self,
        who: Principal,
        prefix: Address,
        *,
        as_of: Moment | None,
        limit: int,
        offset: int,
        **asked: object,
    ) -> List[Entry]:
        # By searches, page by page: the server has no list without values.
        limit, offset = (
            validation.whole(limit, "limit", 1, 1000),
            validation.whole(offset, "offset", 0, 10**9),
        )
        found: List[Entry] = []
        while len(found) < limit:
            most, start = min(_PAGE, limit - len(found)), offset + len(found)
            page = self.search(who, prefix, as_of=as_of, limit=most, offset=start, **asked)
            found += [record(Entry, each) for each in page]
            if len(page) < most and page.next_offset is None:
                break
        return found

    def namespaces(
        self, who: Principal, prefix: Address, *, suffix: Address, **bounds: object
    ) -> List[Namespace]:
        ends = {"prefix": segments(prefix, "prefix"), "suffix": segments(suffix, "suffix")}
        at = f"{_AT}/namespaces"
        found = self._wire.call(who, "GET", at, answers.NamespacesAnswer, params={**ends, **bounds})
        return [Namespace(each) for each in found.namespaces]

    def events(
        self,
        who: Principal,
        prefix: Address,
        *,
        kinds: Sequence[Kind] | None,
        after: Moment | None,
        before: Moment | None,
        **asked: object,
    ) -> EventPage:
        if kinds is not None and (isinstance(kinds, str) or not kinds):
            raise InvalidRequest("kinds", f"a list of some of {', '.join(KINDS)}")
        times = {"after": instant(after, "after"), "before": instant(before, "before")}
        params = {"ns": segments(prefix, "prefix"), "kinds": kinds and [*kinds], **times, **asked}
        page = self._wire.call(who, "GET", f"{_AT}/events", answers.EventsAnswer, params=params)
        return EventPage(
            events=[record(Event, each) for each in page.events],
            after_cursor=page.after_cursor,
            truncated_before=page.truncated_before or None,
            more=bool(page.more),
        )

    def history(
        self, who: Principal, namespace: Address, key: str, *, after_cursor: str | None = None
    ) -> Portion[Version]:
        at, params = f"{_AT}/history", {**_place(namespace, key), "after_cursor": after_cursor}
        answer = self._wire.call(who, "GET", at, answers.HistoryAnswer, params=params)
        return _portion((record(Version, each) for each in answer.versions), answer.after_cursor)

    def export(self, who: Principal, prefix: Address) -> Iterator[Memory]:
        for line in self._wire.lines(who, f"{_AT}/export", {"ns": segments(prefix, "prefix")}):
            yield record(Memory, self._wire.decode(line, answers.MemoryAnswer))


def _portion(found: Iterable[T], after_cursor: str | UnsetType) -> Portion[T]:
    some = Portion(found)
    some.after_cursor = after_cursor or None
    return some


def _place(namespace: Address, key: str) -> dict[str, object]:
    validation.text(key, "key")
    return {"ns": segments(namespace, "namespace"), "key": key}
