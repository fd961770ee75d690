"""Python values of any type and size as signed memories, which a user cannot forge.

The first memory of a value is its header: the kind of the bytes, the number of memories with the rest of them
(`parts`), a digest of all bytes, and a signature of these fields and of the header's address. A user may
write any memory in their own namespaces, but does not know the app's key: a header that they wrote or moved
is refused before any part is read.
"""

from __future__ import annotations

import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

from alcove.client.store import Store
from alcove.core.errors import InvalidRequest, NotFound, Unreadable, requires_extra
from alcove.core.namespace import Namespace
from alcove.core.records import Delete, Get, Memory, Put
from alcove.core.settings import read_variable
from alcove.integrations.adapter import read_all

with requires_extra("alcove.integrations.langgraph_threads", extra="langgraph"):
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

Room = tuple[str, ...]
AllowedType = type | tuple[str, str]
"""A class, or its module and name."""
_PART_CHARACTERS = 700_000
"""The characters of base64 in one memory."""
MAX_PARTS = 4096
"""The limit on memories of one value, besides its header: two gigabytes, the most that msgpack can encode."""
_KEY_VARIABLE = "ALCOVE_CHECKPOINT_KEY"
_MIN_KEY_BYTES = 32
_KEY_COMMAND = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
_KINDS = ("null", "bytes", "bytearray", "msgpack")
"""The kinds that LangGraph writes today. `json` and `pickle`, which it once wrote, can execute code."""
_MAX_NAMED_TYPES = 5


class SignedValues:
    """Encodes values as memories, and decodes those that were signed with one of its keys."""

    def __init__(self, store: Store, serde: SerializerProtocol, keys: Sequence[bytes]) -> None:
        """`keys`: the first one signs, each of them verifies."""
        self._store, self._serde, self._keys = store, serde, keys

    def puts(self, room: Room, key: str, value: object) -> list[Put]:
        """The writes that store a value at a key; the last of them is the header."""
        kind, data = self._serde.dumps_typed(value)
        text = b64encode(data).decode()
        size = _PART_CHARACTERS
        first, *rest = [text[start : start + size] for start in range(0, len(text), size)] or [""]
        if len(rest) > MAX_PARTS:
            raise InvalidRequest("checkpoint", f"at most {MAX_PARTS * size * 3 // 4:,} bytes in one value")
        parts = [Put(*_part_address(room, key, n), {"data": part}) for n, part in enumerate(rest)]
        header = {"type": kind, "data": first, "parts": len(rest), "digest": sha256(data).hexdigest()}
        return [*parts, self.put_header(room, key, header)]

    def put_header(self, room: Room, key: str, header: dict[str, Any], revision: int | None = None) -> Put:
        """The write of a header, signed for this address; `revision`: the one that it replaces."""
        signature = _signature(self._keys[0], room, key, header)
        return Put(room, key, {**header, "signature": signature}, expected_revision=revision)

    def is_signed(self, header: Memory) -> bool:
        """Whether a header was signed for the address that it is at."""
        signature = header.value.get("signature")
        if not isinstance(signature, str) or not signature.isascii():
            return False
        expected = (_signature(key, header.namespace, header.key, header.value) for key in self._keys)
        return any(hmac.compare_digest(signature, each) for each in expected)

    def check_signed(self, header: Memory) -> None:
        """Raises Unreadable if a header is not signed."""
        if not self.is_signed(header):
            raise Unreadable(
                f"{_address(header)} is not signed with the key of this saver: another program may have "
                "written it. If your app wrote it before checkpoints were signed, or with another key, call "
                "sign_threads(); otherwise delete the thread"
            )

    def load(self, headers: Sequence[Memory]) -> list[Any]:
        """The values with these headers; raises NotFound if a part was deleted.

        Raises Unreadable if a header is not signed, before it reads any part.
        """
        for header in headers:
            self.check_signed(header)
        contents = zip(headers, self.read_bytes(headers), strict=True)
        return [self._decode(header, data) for header, data in contents]

    def _decode(self, header: Memory, data: bytes) -> Any:
        if sha256(data).hexdigest() != header.value["digest"]:
            raise Unreadable(f"{_address(header)}: a part of it was changed after it was written")
        try:
            return self._serde.loads_typed((str(header.value["type"]), data))
        except Unreadable as error:
            raise Unreadable(f"{_address(header)}: {error.message}") from None

    def read_bytes(self, headers: Sequence[Memory]) -> list[bytes]:
        """The bytes of the values with these headers, without a check of signatures."""
        gets = [Get(*address) for header in headers for address in _part_addresses(header)]
        stored = iter(read_all(self._store, gets))
        contents = []
        for header in headers:
            parts = [next(stored) for _ in _part_addresses(header)]
            if None in parts:
                raise NotFound(f"a part of {header.key} was deleted")
            texts = [part.value.get("data") for part in (header, *parts) if part]
            try:
                data = b64decode("".join(text for text in texts if isinstance(text, str)), validate=True)
            except ValueError:
                raise Unreadable(f"{_address(header)}: its data is not base64") from None
            contents.append(data)
        return contents


def deletes(headers: Sequence[Memory]) -> list[Delete]:
    """The operations that delete values with all their parts."""
    return [
        Delete(*address)
        for header in headers
        for address in ((header.namespace, header.key), *_part_addresses(header))
    ]


def _signature(key: bytes, namespace: Sequence[str], name: str, header: dict[str, Any]) -> str:
    """The address is signed, too, so that a header is of no use elsewhere."""
    fields = [[*namespace], name, *(header.get(field) for field in ("type", "parts", "digest"))]
    return hmac.new(key, json.dumps(fields, separators=(",", ":")).encode(), "sha256").hexdigest()


def _address(memory: Memory) -> str:
    return f"{Namespace(memory.namespace)} {memory.key!r}"


def _part_addresses(header: Memory) -> Iterator[tuple[Room, str]]:
    """The addresses of a value's parts; a part itself has none."""
    count = header.value.get("parts", 0)
    if type(count) is not int or not 0 <= count <= MAX_PARTS:
        raise Unreadable(f"{_address(header)}: parts: expected a number from 0 to {MAX_PARTS}")
    return (_part_address((*header.namespace,), header.key, n) for n in range(count))


def _part_address(room: Room, key: str, number: int) -> tuple[Room, str]:
    return (*room, "parts"), f"{key}#{number}"


# Keys


def check_key(signing_key: str | bytes | None) -> bytes | None:
    """The key that an app passes, or that the environment has; None without one."""
    key = signing_key if signing_key is not None else read_variable(_KEY_VARIABLE)
    if key is None:
        return None
    if not isinstance(key, str | bytes):
        raise InvalidRequest("signing_key", "a string or bytes")
    key = key.encode() if isinstance(key, str) else key
    if len(key) < _MIN_KEY_BYTES:
        raise InvalidRequest("signing_key", _explain_key(f"of at least {_MIN_KEY_BYTES} bytes"))
    return key


def signing_keys(store: Store, app_key: bytes | None, purpose: str) -> list[bytes]:
    """The app's key, and the one that a store in this process derives for `purpose`; at least one."""
    derived_key = store.transport.derive_key(purpose)
    keys = [key for key in (app_key, derived_key) if key is not None]
    if not keys:
        raise InvalidRequest("signing_key", _explain_key("for a store at a URL"))
    return keys


def _explain_key(requirement: str) -> str:
    return (
        f"a secret {requirement}, so that only this app can write what it resumes. Make one with "
        f"{_KEY_COMMAND}, store it with the app's other secrets, and pass it or set {_KEY_VARIABLE}"
    )


# Types

_blocked_types: ContextVar[list[str] | None] = ContextVar("blocked_types", default=None)


def _record_blocked(event: SerdeEvent) -> None:
    blocked = _blocked_types.get()
    if blocked is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        blocked.append(f"{event['module']}.{event['name']}")


register_serde_event_listener(_record_blocked)


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serializer in its strict mode; raises if the data has a type that is not allowed.

    Pickle and LangChain's JSON are never decoded. LangGraph handles an allowed class that can no longer be
    built from the stored fields, because it was deleted or has a new required field: it returns the fields as
    a dict, or a Pydantic model without validation.
    """

    def __init__(self, allowed_types: Sequence[AllowedType] = ()) -> None:
        is_list = isinstance(allowed_types, list | tuple)
        if not is_list or not all(map(_is_type, allowed_types)):
            raise InvalidRequest("allowed_types", 'a list of classes, or of ("module", "name")')
        super().__init__(allowed_msgpack_modules=[*allowed_types] or None)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value; raises Unreadable if the data has a type that is not allowed, or is not msgpack."""
        if data[0] not in _KINDS:
            raise Unreadable(f"data of the kind {data[0][:40]!r} is not decoded, only {', '.join(_KINDS)}")
        blocked: list[str] = []
        token = _blocked_types.set(blocked)
        try:
            value = super().loads_typed(data)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"this is not msgpack: {str(error)[:200]}") from None
        finally:
            _blocked_types.reset(token)
        if blocked:
            names = ", ".join([*dict.fromkeys(name[:200] for name in blocked)][:_MAX_NAMED_TYPES])
            raise Unreadable(
                f"it holds {names}, which is not among the allowed types: if it is a class of your app, pass "
                "it to AlcoveSaver in allowed_types"
            )
        return value


def _is_type(candidate: object) -> bool:
    if isinstance(candidate, tuple):
        return len(candidate) == 2 and all(isinstance(part, str) for part in candidate)
    return isinstance(candidate, type)
