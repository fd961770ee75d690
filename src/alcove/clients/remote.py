"""`Remote`: a store behind a server, with the methods and records of one in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from alcove import checks
from alcove.backup import BackedUp, Progress
from alcove.client import Alcove
from alcove.clients.desk import RemoteApiKeys, RemoteDesk
from alcove.clients.wire import Wire, body_of, encoded, fields_of, instant, record, result_of, segments
from alcove.doctor import Examination
from alcove.errors import AlcoveError, InvalidRequest, NotFound
from alcove.http import answers
from alcove.namespace import Namespace
from alcove.operations import parse
from alcove.principal import Principal
from alcove.records import (
    KINDS,
    Delete,
    Deletion,
    Entry,
    Event,
    EventPage,
    Kind,
    Memory,
    Operation,
    Put,
    Receipt,
    Result,
    Shared,
    Touch,
    Version,
)
from alcove.service import Address, Memories, Moment
from alcove.transfer import Imports
from alcove.vault import Rotation

List: TypeAlias = list  # inside the class, `list` is the method

_AT = "/v1/memories"
_PAGE = 100


class Remote(Alcove):
    """A store at a URL. Thread-safe; close it, or use it with `with`.

    Who calls is what the server makes of the token or API key; a trusted API key names the user.
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
        headers = {"X-API-Key": api_key, "X-User-ID": user, "Authorization": token and f"Bearer {token}"}
        self._wire = Wire(url, {name: value for name, value in headers.items() if value is not None}, timeout)

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Remote:
        """The same server for this user, whom only a trusted API key may name; it says which roles."""
        if [*roles]:
            raise InvalidRequest("roles", "none: the server knows them from the API key")
        if not checks.text(user_id, "user_id"):
            raise InvalidRequest("user_id", "a non-empty string")
        handle = object.__new__(Remote)
        handle._wire = self._wire.as_user(user_id)
        return handle

    def as_principal(self, principal: Principal) -> Alcove:
        raise AlcoveError("who calls is decided by the server, from a token or an API key")

    @property
    def memories(self) -> Memories:
        raise AlcoveError("the road to these memories is in the server")

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
    ) -> Entry:
        put = Put(
            namespace=namespace,
            key=key,
            value=value,
            index=index,
            ttl_seconds=ttl_seconds,
            expected_revision=expected_revision,
            create_only=create_only,
        )
        body = encoded(**{**fields_of(put), "op": None})
        answer = self._wire.call("PUT", _AT, answers.EntryAnswer, body=body, idempotency_key=idempotency_key)
        return record(Entry, answer)

    def get(self, namespace: Address, key: str, *, as_of: Moment | None = None) -> Memory | None:
        checks.text(key, "key")
        params = {"ns": segments(namespace, "namespace"), "key": key, "as_of": instant(as_of, "as_of")}
        try:
            return record(Memory, self._wire.call("GET", _AT, answers.MemoryAnswer, params=params))
        except NotFound:
            return None

    def delete(
        self,
        namespace: Address,
        key: str,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Deletion:
        # By a batch of one, because DELETE does not say whether there was anything.
        delete = Delete(namespace=namespace, key=key, expected_revision=expected_revision)
        result = self._one(delete, idempotency_key)
        assert isinstance(result, Deletion)
        return result

    def touch(self, namespace: Address, key: str, *, ttl_seconds: int | None = None) -> Entry:
        result = self._one(Touch(namespace=namespace, key=key, ttl_seconds=ttl_seconds), None)
        assert isinstance(result, Entry)
        return result

    def _one(self, operation: Operation, idempotency_key: str | None) -> Result:
        try:
            return self.batch([operation], idempotency_key=idempotency_key)[0]
        except AlcoveError as error:
            error.details.pop("operation", None)
            raise

    def batch(
        self, operations: Sequence[Operation | Mapping[str, object]], *, idempotency_key: str | None = None
    ) -> List[Result]:
        asked = parse(operations)
        answer = self._wire.call(
            "POST",
            f"{_AT}/batch",
            answers.BatchAnswer,
            body=b'{"operations":[%s]}' % b",".join(body_of(*each) for each in enumerate(asked)),
            idempotency_key=idempotency_key,
        )
        return [result_of(operation, given) for operation, given in zip(asked, answer.results, strict=True)]

    def search(
        self,
        namespace_prefix: Address = (),
        *,
        filter: Mapping[str, object] | None = None,
        limit: int = 10,
        offset: int = 0,
        as_of: Moment | None = None,
    ) -> List[Memory]:
        body = encoded(
            namespace_prefix=segments(namespace_prefix, "namespace_prefix"),
            filter=filter,
            limit=limit,
            offset=offset,
            as_of=instant(as_of, "as_of"),
        )
        found = self._wire.call("POST", f"{_AT}/search", answers.SearchAnswer, body=body)
        return [record(Memory, each) for each in found.items]

    def list(
        self,
        namespace_prefix: Address = (),
        *,
        filter: Mapping[str, object] | None = None,
        limit: int = 100,
        offset: int = 0,
        as_of: Moment | None = None,
    ) -> List[Entry]:
        # By searches, page by page: the server has no list without values.
        limit = checks.whole(limit, "limit", 1, 1000)
        offset = checks.whole(offset, "offset", 0, 10**9)
        found: List[Entry] = []
        while len(found) < limit:
            most = min(_PAGE, limit - len(found))
            page = self.search(
                namespace_prefix, filter=filter, limit=most, offset=offset + len(found), as_of=as_of
            )
            found += [record(Entry, each) for each in page]
            if len(page) < most:
                break
        return found

    def namespaces(
        self,
        prefix: Address = (),
        *,
        suffix: Address = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> List[Namespace]:
        params = {
            "prefix": segments(prefix, "prefix"),
            "suffix": segments(suffix, "suffix"),
            "max_depth": max_depth,
            "limit": limit,
            "offset": offset,
        }
        found = self._wire.call("GET", f"{_AT}/namespaces", answers.NamespacesAnswer, params=params)
        return [Namespace(segments) for segments in found.namespaces]

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
        if kinds is not None and (isinstance(kinds, str) or not kinds):
            raise InvalidRequest("kinds", f"a list of some of {', '.join(KINDS)}")
        params = {
            "ns": segments(prefix, "prefix"),
            "kinds": kinds and [*kinds],
            "after": instant(after, "after"),
            "before": instant(before, "before"),
            "after_cursor": after_cursor,
            "limit": limit,
        }
        page = self._wire.call("GET", f"{_AT}/events", answers.EventsAnswer, params=params)
        return EventPage(
            events=[record(Event, each) for each in page.events],
            after_cursor=page.after_cursor,
            truncated_before=page.truncated_before or None,
        )

    def history(self, namespace: Address, key: str) -> List[Version]:
        checks.text(key, "key")
        params = {"ns": segments(namespace, "namespace"), "key": key}
        answer = self._wire.call("GET", f"{_AT}/history", answers.HistoryAnswer, params=params)
        return [record(Version, each) for each in answer.versions]

    def follow(
        self, prefix: Address = (), *, kinds: Sequence[Kind] | None = None, after_cursor: str | None = None
    ) -> Iterator[Event]:
        """Each event as it happens, from now on or from after a cursor; a lost connection is made again."""
        params = {"ns": segments(prefix, "prefix"), "kinds": kinds and [*kinds]}
        for sent in self._wire.sent_events(f"{_AT}/events/stream", params, after_cursor):
            yield record(Event, self._wire.decode(sent, answers.EventAnswer))

    def export_memories(self, prefix: Address = ()) -> Iterator[Memory]:
        params = {"ns": segments(prefix, "prefix")}
        for line in self._wire.lines(f"{_AT}/export", params):
            yield record(Memory, self._wire.decode(line, answers.MemoryAnswer))

    def import_memories(self, lines: Iterable[bytes]) -> Imports:
        whole = (line.rstrip(b"\n") + b"\n" for line in lines)
        return self._wire.call("POST", f"{_AT}/import", Imports, lines=whole)

    @property
    def admin(self) -> RemoteDesk:
        return RemoteDesk(self._wire)

    @property
    def api_keys(self) -> RemoteApiKeys:
        return RemoteApiKeys(self._wire)

    def wipe(self, user: str, *, shared: Shared = "anonymise", wait: bool = True) -> Receipt:
        return self.admin.wipe(user, shared=shared, wait=wait)

    def rotate_keys(self) -> Iterator[Rotation]:
        return self.admin.rotate_keys()

    def doctor(self) -> Iterator[Examination]:
        return self.admin.doctor()

    def backup(self, to: str | os.PathLike[str]) -> Iterator[Progress[BackedUp]]:
        return self.admin.backup(Path(to))

    def close(self) -> None:
        """Closes the connections, for every handle over them."""
        self._wire.close()

    def __repr__(self) -> str:
        return f"<Remote at {self._wire.url}>"
