"""The session cache: a fast copy of the beginning of a session's context, in Valkey or Redis.

The engine is written first and is authoritative. A copy is used only if the engine, in one query about all of
them, has exactly the same versions. So no stale copy is ever used, whatever was lost, flushed or put late.

A user's copies are the fields of one hash, whose name has the user's pseudonym in braces, so that a cluster
keeps all of them in one slot. Each copy is sealed with the user's data key, and names a log position: an
older one does not replace a newer one. After each put, the engine is queried again, and the copy is removed
if the engine no longer has its rows: so a process that read before an erasure cannot undo it by a later put.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from alcove.core.errors import KeyDestroyed, Unreadable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Key, Memory, NamespaceLike
from alcove.engine.commit import Observer
from alcove.engine.engine import Engine
from alcove.engine.rows import Fingerprint, Row, Scope
from alcove.engine.valkey import Valkey
from alcove.store.access import Access
from alcove.store.row_decoder import RowDecoder
from alcove.vault import Vault, user_subject

log = logging.getLogger("alcove")
LIFETIME_SECONDS = 3600
"""How long a user's copies stay after the last put."""
MAX_ROWS, MAX_BYTES = 50, 64 * 1024
"""Bounds of one copy."""
MAX_COPIES = 64
"""Copies of one user; one more removes all others."""
MAX_PENDING, PENDING_BATCH = 10_000, 20
"""Users whose copies could not be removed while the session store was down, and how many one call removes."""

_PUT = f"""
if redis.call('HLEN', KEYS[1]) > {MAX_COPIES} then redis.call('DEL', KEYS[1]) end
for n = 1, #ARGV, 2 do
    local stored = redis.call('HGET', KEYS[1], ARGV[n])
    if not stored or string.sub(stored, 1, 20) <= string.sub(ARGV[n + 1], 1, 20) then
        redis.call('HSET', KEYS[1], ARGV[n], ARGV[n + 1])
    end
end
return redis.call('EXPIRE', KEYS[1], {LIFETIME_SECONDS})
"""
_DROP = """
for n = 1, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[n]) == ARGV[n + 1] then redis.call('HDEL', KEYS[1], ARGV[n]) end
end
return 1
"""
_TAKE = """
local time = redis.call('TIME')
local now, rate, size = time[1] + time[2] / 1000000, tonumber(ARGV[2]), tonumber(ARGV[3])
local left, since = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '(%S+) (%S+)')
left = math.min(size, (left or size) + math.max(0, now - (since or now)) * rate)
local taken = left >= 1 and 1 or 0
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.6f %.6f', left - taken, now))
redis.call('EXPIRE', KEYS[1], math.ceil(size / rate) + 1)
return taken
"""


class SessionLocation(NamedTuple):
    """Where the context of a session begins: its messages, its state, and the rolling summary."""

    messages: Namespace
    state: tuple[Namespace, str]
    rolling: tuple[Namespace, str]


class MemoryReader(Protocol):
    """What contexts are read with: `Reader`, or `CachedReader` if there is a session cache."""

    def get(self, principal: Principal, namespace: NamespaceLike, key: Key) -> Memory | None: ...
    def count(self, principal: Principal, prefix: NamespaceLike = (), *, exact: bool = False) -> int: ...
    def scan(
        self, principal: Principal, prefix: NamespaceLike, *, exact: bool = False, after: str | None = None
    ) -> Iterator[Memory]: ...


RowsVersion = tuple[int, int, int] | bytes | None
"""Of messages: their count, the sum of their sequence numbers, and the time of the newest. Of a key: the id
of its version. None if there are no rows."""


class Copy(NamedTuple):
    """The rows of one location, and their version."""

    version: RowsVersion
    rows: list[Row]


class _Session(NamedTuple):
    """A session's locations as the engine encodes them, and the names of its copies."""

    user: str
    messages: bytes
    state: tuple[bytes, bytes]
    rolling: tuple[bytes, bytes]
    name: str
    fields: list[str]


_decode = msgspec.msgpack.Decoder(Copy).decode


class SessionCache:
    """Copies of newest messages and summaries, and the request limits that all nodes share."""

    def __init__(self, valkey: Valkey, engine: Engine, vault: Vault, observer: Observer) -> None:
        self._valkey, self._engine, self._vault, self._observer = valkey, engine, vault, observer
        self._pending: set[str] = set()
        """Hash tags of users whose copies must be removed once the session store is back."""
        self.close = valkey.close

    def read(self, location: SessionLocation, version: int) -> list[Copy] | None:
        """The current rows of each location; None if the session store is down or the rules are newer than
        `version`."""
        self._remove_pending()
        session, now = self._session(location), self._engine.clock()
        entries = self._valkey("HMGET", session.name, *session.fields)
        if entries is None:
            self._observer.session_store("away")
            return None
        fingerprint = self._fingerprint(session, now)
        if fingerprint.version != version:
            return None
        copies, missing = list[Copy](), dict[str, Copy]()
        versions = _versions(fingerprint)
        for n, (field, entry, current) in enumerate(zip(session.fields, entries, versions, strict=True)):
            copy = self._decrypt(session.name, field, entry) if current else Copy(None, [])
            if copy is None or copy.version != current:
                copy = missing[field] = Copy(current, self._read_rows(session, n, now))
            copies.append(copy)
        self._observer.session_store("miss" if missing else "hit")
        if missing:
            self._put(session, fingerprint.position, missing)
        return copies

    def update(self, location: SessionLocation, rows: Sequence[Row]) -> None:
        """Adds rows that were just written to the copies of their locations."""
        session = self._session(location)
        messages, *others = session.fields
        new = {
            field: Copy(row.id, [_strip(row)])
            for field, key in zip(others, (session.state, session.rolling), strict=True)
            for row in rows
            if (row.ns, row.key) == key
        }
        added = [row for row in rows if row.ns == session.messages]
        if added and all(row.kind == "add" for row in added):
            (entry,) = self._valkey("HMGET", session.name, messages) or [None]
            before = self._decrypt(session.name, messages, entry)
            if before and isinstance(before.version, tuple):
                count, total, _ = before.version
                version = count + len(added), total + sum(row.seq for row in added), added[-1].created_at
                new[messages] = Copy(version, _first_rows([*added, *before.rows]))
        if new:
            self._put(session, max(row.seq for row in rows), new)

    def forget(self, user: str) -> None:
        """Removes everything of a user; if the session store is down, as soon as it is back."""
        self._remove_later(user)
        if not self._remove_pending():
            log.warning("the session store is down: a user's copies stay there until it is back, or expire")

    def take_request(self, principal: Principal, per_second: float) -> bool | None:
        """Takes a request from a principal's limit, if any is left; None if the session store is down."""
        caller = self._vault.pseudonym(f"{principal.user_id}\0{principal.client_id}")
        name = f"{self._tag(principal.user_id)}:rate"
        taken = self._valkey("EVAL", _TAKE, 1, name, caller, per_second, max(1.0, per_second))
        if taken is None:
            self._observer.session_store("away")
        return None if taken is None else taken == 1

    def check(self) -> str | None:
        """A warning if the session store is down; everything that must work works without it."""
        answer = self._valkey("EXISTS", "alcove")  # in a cluster, PING would go to every node
        return f"away, and not needed: {self._valkey.problem}" if answer is None else None

    def _remove_pending(self) -> bool:
        """Removes copies that could not be removed before; returns whether none are left."""
        for tag in [*self._pending][-PENDING_BATCH:]:
            if self._valkey("UNLINK", f"{tag}:recent", f"{tag}:rate") is None:
                break
            self._pending.discard(tag)
        return not self._pending

    def _remove_later(self, user: str) -> None:
        if len(self._pending) < MAX_PENDING:
            self._pending.add(self._tag(user))

    def _put(self, session: _Session, position: int, copies: Mapping[str, Copy]) -> None:
        """Puts copies as of a log position, then removes those that the engine has changed since."""
        subject = user_subject(session.user)
        key = self._vault.find_key(subject)
        if key is None or any(row.data_key != key.id for copy in copies.values() for row in copy.rows):
            self._vault.forget(subject)  # the user was wiped; either the rows or the key are older
            return
        head, entries = b"%020d%020d" % (position, key.id), dict[str, bytes]()
        for field, copy in copies.items():
            plain = msgspec.msgpack.encode(copy)
            if len(plain) <= 2 * MAX_BYTES:
                entries[field] = head + key.seal(plain, _bound_to(session.name, field, head))
        if (
            self._valkey(
                "EVAL", _PUT, 1, session.name, *(part for entry in entries.items() for part in entry)
            )
            is None
        ):
            self._remove_later(session.user)  # it may still have arrived, or arrive later
            return
        versions = _versions(self._fingerprint(session, self._engine.clock()))
        stale = [
            (field, entries[field])
            for field, version in zip(session.fields, versions, strict=True)
            if field in entries and copies[field].version != version
        ]
        if stale:
            self._valkey("EVAL", _DROP, 1, session.name, *(part for entry in stale for part in entry))

    def _decrypt(self, name: str, field: str, entry: bytes | None) -> Copy | None:
        """The copy in an entry; None if there is none or it does not open, as after a wipe."""
        with suppress(KeyDestroyed, Unreadable, ValueError, msgspec.DecodeError):
            if entry is not None:
                head, sealed = entry[:40], entry[40:]
                return _decode(self._vault.open(int(head[20:]), sealed, _bound_to(name, field, head)))
        return None

    def _read_rows(self, session: _Session, n: int, now: int) -> list[Row]:
        """The rows of the n-th location in the engine."""
        if n:
            row = self._engine.get(*(session.state, session.rolling)[n - 1], now=now)
            return [_strip(row)] if row else []
        scope = Scope(session.messages, session.messages + b"\0")
        return _first_rows(self._engine.scan_page(scope, after=None, now=now, limit=MAX_ROWS))

    def _fingerprint(self, session: _Session, now: int) -> Fingerprint:
        return self._engine.fingerprint(session.messages, *session.state, *session.rolling, now=now)

    def _session(self, location: SessionLocation) -> _Session:
        messages, *others = location
        state, rolling = ((ns.encode(), key.encode()) for ns, key in others)
        paths = messages, *((*ns, key) for ns, key in others)
        fields = [self._vault.pseudonym(msgspec.json.encode(path).decode()) for path in paths]
        assert messages.owner is not None
        name = f"{self._tag(messages.owner)}:recent"
        return _Session(messages.owner, messages.encode(), state, rolling, name, fields)

    def _tag(self, user: str) -> str:
        """The beginning of all names of a user's data; the braces keep it together in a cluster."""
        return f"alcove:{{{self._vault.pseudonym(user)}}}"


class CachedReader:
    """Reads the beginning of a session's context from its copies, and everything else from the engine."""

    def __init__(
        self,
        reader: MemoryReader,
        access: Access,
        decoder: RowDecoder,
        location: SessionLocation,
        copies: Sequence[Copy],
    ) -> None:
        self._reader, self._access, self._decoder, self._location = reader, access, decoder, location
        self._messages, *self._others = copies

    def get(self, principal: Principal, namespace: NamespaceLike, key: Key) -> Memory | None:
        """The memory at a key, as `Reader.get` returns it."""
        for cached_key, copy in zip(self._location[1:], self._others, strict=True):
            if cached_key == (namespace, key):
                with self._access.counting_denials(principal):
                    self._access.loaded[1].policy.authorise(principal, "read", cached_key[0], key)
                return next(self._decoder.existing(copy.rows, self._decoder.memory), None)
        return self._reader.get(principal, namespace, key)

    def count(self, principal: Principal, prefix: NamespaceLike = (), *, exact: bool = False) -> int:
        """The count of memories, as `Reader.count` returns it."""
        if prefix == self._location.messages and exact:
            return self._messages.version[0] if isinstance(self._messages.version, tuple) else 0
        return self._reader.count(principal, prefix, exact=exact)

    def scan(
        self, principal: Principal, prefix: NamespaceLike, *, exact: bool = False, after: str | None = None
    ) -> Iterator[Memory]:
        """All memories, as `Reader.scan` returns them: first those of the copy, then those beyond it."""
        if prefix == self._location.messages and exact and after is None:
            rows = self._messages.rows
            yield from self._decoder.existing(rows, self._decoder.memory)
            if len(rows) == self.count(principal, prefix, exact=exact):
                return
            after = rows[-1].key.decode() if rows else None
        yield from self._reader.scan(principal, prefix, exact=exact, after=after)


def _versions(fingerprint: Fingerprint) -> list[RowsVersion]:
    """The version of the rows of each location."""
    live = fingerprint.live
    messages = (live, fingerprint.total, fingerprint.newest_at) if live else None
    return [messages, fingerprint.state, fingerprint.rolling]


def _first_rows(rows: Sequence[Row]) -> list[Row]:
    """The first rows in the order of their keys, within the bounds of a copy."""
    first, size = list[Row](), 0
    for row in sorted(rows, key=lambda row: row.key)[:MAX_ROWS]:
        size += len(row.sealed or b"")
        if size > MAX_BYTES:
            break
        first.append(_strip(row))
    return first


def _strip(row: Row) -> Row:
    """A row without the fields that a context does not show, so that other erasures need not reach it."""
    return row._replace(user=None, client=None, agent=None, attributes="{}", index_text=None)


def _bound_to(name: str, field: str, head: bytes) -> bytes:
    """The associated data of a sealed copy: its user, its location, and its log position."""
    return f"{name} {field} ".encode() + head
