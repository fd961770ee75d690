"""The session store: a fast copy of what a message's context begins with, in Valkey or Redis.

The engine is written first and is the truth. What is here is shown only where the engine, asked once for all
of it, has just the same versions: so nothing old is ever shown, whatever was lost, flushed or put here late.

A user's copies are the fields of one hash, whose name has the user's pseudonym in braces, so that a cluster
has all of them in one slot. Each is sealed with the user's data key, and says of which log position it is: an
older one does not replace a newer one. Who has put something looks at the engine again, and takes it away if
that no longer has it: so an erasure is not undone by who has read before it and puts after it.
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
SECONDS = 3600
"""How long a copy is kept after the last that was put for its user."""
MOST_ROWS, MOST_BYTES = 50, 64 * 1024
"""Of one copy."""
MOST_COPIES = 64
"""Of one user; with one more, all of them make way."""
MOST_OWED, MOST_PAID = 10_000, 20
"""Users whose copies are still to be taken away, because it was away; of how many, at one call."""

_PUT = f"""
if redis.call('HLEN', KEYS[1]) > {MOST_COPIES} then redis.call('DEL', KEYS[1]) end
for n = 1, #ARGV, 2 do
    local held = redis.call('HGET', KEYS[1], ARGV[n])
    if not held or string.sub(held, 1, 20) <= string.sub(ARGV[n + 1], 1, 20) then
        redis.call('HSET', KEYS[1], ARGV[n], ARGV[n + 1])
    end
end
return redis.call('EXPIRE', KEYS[1], {SECONDS})
"""
_DROP = """
for n = 1, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[n]) == ARGV[n + 1] then redis.call('HDEL', KEYS[1], ARGV[n]) end
end
return 1
"""
_TAKE = """
local time = redis.call('TIME')
local now, rate, most = time[1] + time[2] / 1000000, tonumber(ARGV[2]), tonumber(ARGV[3])
local left, since = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '(%S+) (%S+)')
left = math.min(most, (left or most) + math.max(0, now - (since or now)) * rate)
local taken = left >= 1 and 1 or 0
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.6f %.6f', left - taken, now))
redis.call('EXPIRE', KEYS[1], math.ceil(most / rate) + 1)
return taken
"""


class SessionLocation(NamedTuple):
    """Where the context of a session begins: its messages, its state, and the summary of all of them."""

    messages: Namespace
    state: tuple[Namespace, str]
    rolling: tuple[Namespace, str]


class MemoryReader(Protocol):
    """What a context is read with: `Memories`, or `CachedReader` where there is a session store."""

    def get(self, principal: Principal, namespace: NamespaceLike, key: Key) -> Memory | None: ...
    def count(self, principal: Principal, prefix: NamespaceLike = (), *, exact: bool = False) -> int: ...
    def scan(
        self, principal: Principal, prefix: NamespaceLike, *, exact: bool = False, after: str | None = None
    ) -> Iterator[Memory]: ...


SaidOf = tuple[int, int, int] | bytes | None
"""Of messages: how many, the sum of their positions, when the last came. Of a key: its version's id."""


class Copy(NamedTuple):
    """The rows of one place, and what the engine says of just these."""

    of: SaidOf
    rows: list[Row]


class _Session(NamedTuple):
    """A session's places, and the names of its copies."""

    user: str
    messages: bytes
    state: tuple[bytes, bytes]
    rolling: tuple[bytes, bytes]
    name: str
    fields: list[str]


_decode = msgspec.msgpack.Decoder(Copy).decode


class SessionCache:
    """Copies of the newest messages and of summaries, and buckets of requests, that all nodes share."""

    def __init__(self, valkey: Valkey, engine: Engine, vault: Vault, observer: Observer) -> None:
        self._valkey, self._engine, self._vault, self._observer = valkey, engine, vault, observer
        self._owed: set[str] = set()
        self.close = valkey.close

    def look(self, places: SessionLocation, version: int) -> list[Copy] | None:
        """What is at each of the places now; None where it is away, or rules were put since `version`."""
        self._pay()
        session, now = self._session(places), self._engine.clock()
        held = self._valkey("HMGET", session.name, *session.fields)
        if held is None:
            self._observer.session_store("away")
            return None
        found = self._fingerprint(session, now)
        if found.version != version:
            return None
        copies, missing = list[Copy](), dict[str, Copy]()
        for place, (field, entry, of) in enumerate(zip(session.fields, held, _said_of(found), strict=True)):
            copy = self._opened(session.name, field, entry) if of else Copy(None, [])
            if copy is None or copy.of != of:
                copy = missing[field] = Copy(of, self._read(session, place, now))
            copies.append(copy)
        self._observer.session_store("miss" if missing else "hit")
        if missing:
            self._put(session, found.position, missing)
        return copies

    def wrote(self, places: SessionLocation, rows: Sequence[Row]) -> None:
        """Puts what was just written at the places with what is here of them."""
        session = self._session(places)
        window, *others = session.fields
        new = {
            field: Copy(row.id, [_bare(row)])
            for field, place in zip(others, session[2:4], strict=True)
            for row in rows
            if (row.ns, row.key) == place
        }
        added = [row for row in rows if row.ns == session.messages]
        if added and all(row.kind == "add" for row in added):
            (held,) = self._valkey("HMGET", session.name, window) or [None]
            before = self._opened(session.name, window, held)
            if before and isinstance(before.of, tuple):
                count, total, _ = before.of
                count, total = count + len(added), total + sum(row.seq for row in added)
                new[window] = Copy((count, total, added[-1].created_at), _window([*added, *before.rows]))
        if new:
            self._put(session, max(row.seq for row in rows), new)

    def forget(self, user: str) -> None:
        """Takes all of a user away; where it is away, as soon as it is back."""
        self._owe(user)
        if not self._pay():
            log.warning("what the session store has of somebody stays there until it is back, or expires")

    def take_request(self, principal: Principal, per_second: float) -> bool | None:
        """Takes one request out of a principal's bucket, if there is one in it; None where it is away."""
        caller = self._vault.pseudonym(f"{principal.user_id}\0{principal.client_id}")
        name = f"{self._tag(principal.user_id)}:rate"
        taken = self._valkey("EVAL", _TAKE, 1, name, caller, per_second, max(1.0, per_second))
        if taken is None:
            self._observer.session_store("away")
        return None if taken is None else taken == 1

    def check(self) -> str | None:
        """That it is away, where it is: what must work works without it."""
        asked = self._valkey("EXISTS", "alcove")  # of a cluster, PING would ask every node
        return f"away, and done without: {self._valkey.problem}" if asked is None else None

    def _pay(self) -> bool:
        """Takes away some of what could not be taken away before; whether nothing is left of it."""
        for tag in [*self._owed][-MOST_PAID:]:
            if self._valkey("UNLINK", f"{tag}:recent", f"{tag}:rate") is None:
                break
            self._owed.discard(tag)
        return not self._owed

    def _owe(self, user: str) -> None:
        if len(self._owed) < MOST_OWED:
            self._owed.add(self._tag(user))

    def _put(self, session: _Session, position: int, copies: Mapping[str, Copy]) -> None:
        """Puts copies as of a position of the log, and takes back what the engine no longer has by then."""
        subject = user_subject(session.user)
        key = self._vault.find_key(subject)
        if key is None or any(row.data_key != key.id for copy in copies.values() for row in copy.rows):
            self._vault.forget(subject)  # they were wiped, and this is of before that, or the key is
            return
        head, entries = b"%020d%020d" % (position, key.id), dict[str, bytes]()
        for field, copy in copies.items():
            plain = msgspec.msgpack.encode(copy)
            if len(plain) <= 2 * MOST_BYTES:
                entries[field] = head + key.seal(plain, _bound_to(session.name, field, head))
        if self._valkey("EVAL", _PUT, 1, session.name, *_flat(entries)) is None:
            self._owe(session.user)  # it may have come all the same, or come yet
            return
        there = zip(session.fields, _said_of(self._fingerprint(session, self._engine.clock())), strict=True)
        gone = {field: entries[field] for field, of in there if field in entries and copies[field].of != of}
        if gone:
            self._valkey("EVAL", _DROP, 1, session.name, *_flat(gone))

    def _opened(self, name: str, field: str, entry: bytes | None) -> Copy | None:
        """What an entry holds; None where there is none, or it does not open: its key may be no more."""
        with suppress(KeyDestroyed, Unreadable, ValueError, msgspec.DecodeError):
            if entry is not None:
                head, sealed = entry[:40], entry[40:]
                return _decode(self._vault.open(int(head[20:]), sealed, _bound_to(name, field, head)))
        return None

    def _read(self, session: _Session, place: int, now: int) -> list[Row]:
        """What the engine has at a place."""
        if place:
            row = self._engine.get(*(session.state, session.rolling)[place - 1], now=now)
            return [_bare(row)] if row else []
        alone = Scope(session.messages, session.messages + b"\0")
        return _window(self._engine.scan_page(alone, after=None, now=now, limit=MOST_ROWS))

    def _fingerprint(self, session: _Session, now: int) -> Fingerprint:
        return self._engine.fingerprint(session.messages, *session.state, *session.rolling, now=now)

    def _session(self, places: SessionLocation) -> _Session:
        messages, *others = places
        state, rolling = ((ns.encode(), key.encode()) for ns, key in others)
        spelled = messages, *((*ns, key) for ns, key in others)
        fields = [self._vault.pseudonym(msgspec.json.encode(each).decode()) for each in spelled]
        assert messages.owner is not None
        name = f"{self._tag(messages.owner)}:recent"
        return _Session(messages.owner, messages.encode(), state, rolling, name, fields)

    def _tag(self, user: str) -> str:
        """What the names of all that is a user's begin with; braces keep it together in a cluster."""
        return f"alcove:{{{self._vault.pseudonym(user)}}}"


class CachedReader:
    """What a session's context begins with, as it was when it was looked up; all else is read as ever."""

    def __init__(
        self,
        reader: MemoryReader,
        access: Access,
        decoder: RowDecoder,
        places: SessionLocation,
        copies: Sequence[Copy],
    ) -> None:
        self._reader, self._access, self._decoder, self._places = reader, access, decoder, places
        self._window, *self._others = copies

    def get(self, principal: Principal, namespace: NamespaceLike, key: Key) -> Memory | None:
        """What is at a key, as `Memories.get` tells it."""
        for place, copy in zip(self._places[1:], self._others, strict=True):
            if place == (namespace, key):
                with self._access.counting_denials(principal):
                    self._access.loaded[1].policy.authorise(principal, "read", place[0], key)
                return next(self._decoder.existing(copy.rows, self._decoder.memory), None)
        return self._reader.get(principal, namespace, key)

    def count(self, principal: Principal, prefix: NamespaceLike = (), *, exact: bool = False) -> int:
        """How many memories there are, as `Memories.count` tells it."""
        if prefix == self._places.messages and exact:
            return self._window.of[0] if isinstance(self._window.of, tuple) else 0
        return self._reader.count(principal, prefix, exact=exact)

    def scan(
        self, principal: Principal, prefix: NamespaceLike, *, exact: bool = False, after: str | None = None
    ) -> Iterator[Memory]:
        """All memories, as `Memories.scan` tells them; those of which there is no copy from there."""
        if prefix == self._places.messages and exact and after is None:
            rows = self._window.rows
            yield from self._decoder.existing(rows, self._decoder.memory)
            if len(rows) == self.count(principal, prefix, exact=exact):
                return
            after = rows[-1].key.decode() if rows else None
        yield from self._reader.scan(principal, prefix, exact=exact, after=after)


def _said_of(found: Fingerprint) -> list[SaidOf]:
    """What the engine says of each place; None where nothing is there."""
    window = (found.live, found.total, found.newest_at) if found.live else None
    return [window, found.state, found.rolling]


def _window(rows: Sequence[Row]) -> list[Row]:
    """The first of some rows, in order of their keys, as far as a copy may go."""
    kept, size = list[Row](), 0
    for row in sorted(rows, key=lambda row: row.key)[:MOST_ROWS]:
        size += len(row.sealed or b"")
        if size > MOST_BYTES:
            break
        kept.append(_bare(row))
    return kept


def _bare(row: Row) -> Row:
    """A row without what a context does not show, so that no other erasure has to reach it."""
    return row._replace(user=None, client=None, agent=None, attributes="{}", index_text=None)


def _flat(entries: Mapping[str, bytes]) -> Iterator[str | bytes]:
    """Fields and entries in turn, as a script takes them."""
    return (each for pair in entries.items() for each in pair)


def _bound_to(name: str, field: str, head: bytes) -> bytes:
    """What a sealed copy is bound to: its user, its place, and the position it is of."""
    return f"{name} {field} ".encode() + head
