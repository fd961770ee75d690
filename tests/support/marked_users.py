"""Users whose every part is a word that stands nowhere else, to be looked for in bytes on a disk."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from alcove import Alcove, Principal

ROWS = 1500
POLICY = """package memories.attributes
attributes := {"namespace": input.namespace[0], "sub": input.namespace[1], "topic": input.value.topic}
"""


class Markers(NamedTuple):
    """Words that stand nowhere but where a test puts them, one for each part of a memory."""

    user: str
    key: str
    namespace: str
    text: str
    attribute: str
    client: str
    agent: str
    value: str

    @classmethod
    def new(cls) -> Markers:
        return cls(*(f"{name}{secrets.token_hex(8)}" for name in cls._fields))

    def found_in(self, raw: bytes) -> set[str]:
        """The names of those that stand in these bytes."""
        return {name for name, marker in self._asdict().items() if marker.encode() in raw}


PLAIN = {*Markers._fields} - {"value"}
"""The parts that are plaintext by contract."""


def fill(memory: Alcove, *everybody: Markers, rows: int = ROWS) -> None:
    """Thousands of rows of all of them, interleaved, with updates and deletes, so that pages split."""
    for start in range(0, rows, 100):
        for who in everybody:
            handle = memory.as_principal(Principal(who.user, client_id=who.client))
            handle.batch([{**_put(who, n), "op": "put"} for n in range(start, start + 100)])
            handle.batch([{**_put(who, n), "op": "put"} for n in range(start // 2, start // 2 + 50)])
            handle.batch([{**_place(who, n), "op": "delete"} for n in range(start + 7, start + 100, 9)])
            handle.put(**_put(who, start), idempotency_key=f"{who.key}-{start}")  # type: ignore[arg-type]


def _place(who: Markers, n: int) -> dict[str, object]:
    owned = ("user", who.user, f"{who.namespace}-{n % 7}")
    agents = ("agent", f"{who.agent}-{n % 3}", "u", who.user)
    return {"namespace": owned if n % 5 else agents, "key": f"{n * 7919 % 1000}-{who.key}-{n}"}


def _put(who: Markers, n: int) -> dict[str, object]:
    value = {"secret": f"{who.value} {n}", "topic": f"{who.attribute}-{n}"}
    return {**_place(who, n), "value": value, "index": {f"{who.text}-{n % 4}": f"{who.text} {n}"}}
