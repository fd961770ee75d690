"""Where what is brought goes, and the account of what is not brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Struct

from alcove.core import validation
from alcove.core.errors import InvalidRequest
from alcove.upkeep.transfer import Line

T = TypeVar("T")

NO_USER = "it is not said whose: --user NAME gives them to somebody"
NO_AGENT = "--agent NAME keeps them as conversations with that agent"
EXPIRED = "expired there already"
_MOST_TOLD = 1000


class Target(Struct, frozen=True, kw_only=True):
    """What the one who imports says of where things go."""

    caller: str
    """Who imports."""
    now: datetime
    """What has expired by then is not brought; the same moment however often a source is read."""
    user: str | None = None
    """Whose is what the source does not say whose it is."""
    agent: str | None = None
    """With which agent conversations were."""
    by_user: bool = False
    """Whether the first label of LangGraph's namespaces is a user, as for `AlcoveStore(by_user=True)`."""
    root: tuple[str, ...] | None = None
    """The namespace below which LangGraph's items go, as for `AlcoveStore(root=…)`; None for their own."""


class NotMapped(Struct, frozen=True):
    """A kind of thing that was not brought: how many, and why."""

    kind: str
    count: int
    reason: str


class Broken(Struct, frozen=True):
    """A record that is not what it should be, or that the store refused."""

    record: str
    error: str


class Account:
    """Counts what a source has and what is not brought, by kind and reason, and names what is broken."""

    def __init__(self) -> None:
        self._left: Counter[tuple[str, str]] = Counter()
        self.broken: list[Broken] = []
        self.failures = 0

    def leave(self, kind: str, reason: str, count: int = 1) -> None:
        """Notes that so many of a kind are not brought; `kind` is a noun in the singular."""
        if count > 0:
            self._left[kind, reason] += count

    def fail(self, record: str, error: str) -> None:
        """Notes that a record is not what it should be; at most a thousand are named, and all are counted."""
        self.failures += 1
        if len(self.broken) < _MOST_TOLD:
            self.broken.append(Broken(record, error))

    @contextmanager
    def noting(self, record: str) -> Iterator[None]:
        """Notes a record that turns out not to be what it should be; it holds up no other."""
        try:
            yield
        except InvalidRequest as error:
            self.fail(record, error.message)

    def not_mapped(self) -> list[NotMapped]:
        """Everything that was left, in the order in which it was met."""
        return [NotMapped(kind, count, reason) for (kind, reason), count in self._left.items()]

    def each(
        self, records: Iterable[tuple[str, T]], lines_of: Callable[[T], Iterable[Line]]
    ) -> Iterator[bytes]:
        """The lines of records that come with a name each; one that is broken holds up no other."""
        for name, record in records:
            with self.noting(name):
                yield from [encoded(line) for line in lines_of(record)]


def numbered(place: str, records: Iterable[T]) -> Iterator[tuple[str, T]]:
    """Records of a list, named by their place in it."""
    return ((f"{place}[{number}]", each) for number, each in enumerate(records))


def encoded(line: Line) -> bytes:
    """A line as JSON; an error names what of it JSON cannot carry."""
    validation.encode_json(line.value, "value")
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:
        raise InvalidRequest("record", "text without lone surrogates") from None
