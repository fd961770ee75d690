"""A time fuzzer: what requests cost a server, measured against their size.

Each request is made in three sizes, the largest near its limit, out of texts that are hard on parsers:
digits, combining marks, one endless word, brackets, dates, characters that grow when they are normalised.
What is measured is the processor time of the server's threads, so that a busy machine changes little. A cost
that grows faster than the size, or that is too large for it, is reported with the text that shows it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tests.support.agent_service import Table
from tests.support.store_inspection import processor_seconds
from tests.support.waiting import LONG

STEP = 4
"""Each size is so many times the one before."""
FASTER = 2.2
"""A cost may grow by so much more than the size; where it goes with the square, that is 4."""
NOTICED = 0.06
"""Seconds below which growth is not looked at: other work of the server is of that order."""
SECONDS_A_MIB, ANYHOW = 1.2, 0.3
"""What a request may cost: so much for each MiB of it, and so much whatever its size."""
ROUNDS = 60 if LONG else 1
KIB, MIB = 1 << 10, 1 << 20
HEAD = 12 * KIB
"""Of a part of a head; of some texts, each byte is sent as three."""
USER, ADMIN = "mallory", "root"

ATOMS = [
    "a", "e", "y", "ya", "ab", "ing", "[", "]", "(", "*", "?", "**", "%", ":", "\n", "\0", "\x01", " ", "\\",
    '"', "_", "-", ".", "$", "é", "e\u0301", "\ufdfa", "東", "ไ", "\U0001f642", "0", "9", "12 of may ",
    "in may ", "last ", "a week ", "Ann: ", "u:", "recent ", "2020-01-", "{", "}", "</", "#", "|", ",",
    "\u0316", "\u0301", "\u200b", "\u200d", "\uff17", "²", "`", "я", "한", "=", ";", "&", "/", "~", "B",
]  # fmt: skip
ENDS = ["", "", "ing", "ed", "e", "ational", "ness", "ies", "!", "]", ")", "$", "\n"]
"""What comes after all the others, and shows to a matcher that it has to go back over them."""
WORST = [
    ("a", ""), ("7", ""), ("\u0301\u0316", ""), ("[", ""), ("aя東ไ한é9", ""), ("\u200b", ""),
    ("\U0001f642", ""), ("*?", "a"), ("\ufdfa", ""), ("12 of may ", ""), (" a", "!"), ("%", ""),
    ("1.", ""), ("a\u0345\u0327\u0301", ""), ("\u200c\u200d", ""), ("aB", ""), ("\uff17", ""), ("e", ""),
    ("a", "ing"), ("y", "ness"), ("ab", ""), ("e\u0301", ""), ("[a", "]"), ("\n", "x"), ("東", ""),
    ("\\", ""), ("1,000,", ""), ("aя東ไ한é9 ", ""), ("A_", ""), ('"', ""), ("{", ""), (" - at `$.", ""),
    ("2020-01-", ""), ("9 ", "days ago"), ("\uff9e\u0301", ""), ("1²", ""),
]  # fmt: skip
"""What is repeated, and how it ends: texts that are tried in every run. Others are put together by chance."""
SOME, FEW, ONE = 12, 5, 1
"""So many of the first are tried where the others would show nothing new."""

Shape = Callable[[int], str]
"""A text of about so many bytes."""


@dataclass(frozen=True)
class Request:
    """What is sent: a body of bytes as it is, and any other as JSON."""

    method: str
    path: str
    body: object = None
    headers: Mapping[str, str | bytes] | None = None
    params: Mapping[str, Any] | None = None
    by: str | None = USER
    """Who sends it: a user, an admin, nobody."""


Make = Callable[[Shape, int], list[Request]]
"""What is sent, with a text of some size in it; only the last request is measured."""
Entry = tuple[int, int, Make]
"""How large what varies may become, the status of a plain one, and what is sent."""


def shapes(chance: random.Random, worst: int) -> Iterator[tuple[str, Shape]]:
    """The worst ones known, or so many of them, and some that chance puts together."""
    found = [("".join(chance.choices(ATOMS, k=chance.choice([1, 2, 2, 3]))), chance.choice(ENDS))
             for _ in range(ROUNDS)]  # fmt: skip
    for text, end in WORST[:worst] + found:
        yield f"{text!a} and {end!a}", partial(repeated, text, end)


def repeated(text: str, end: str, size: int) -> str:
    return text * max(1, (size - len(end)) // len(text.encode())) + end


def plain(size: int) -> str:
    return ("tea and rain " * (size // 13 + 1))[:size]


class Fuzzer:
    """Sends requests and says what they cost."""

    def __init__(self, table: Table) -> None:
        self._service, self._pid = table.service, table.service.process.pid
        self._tokens = {USER: table.known(USER).token, ADMIN: table.known(ADMIN, roles=["admin"]).token}

    def check(self, what: str, entry: Entry, worst: int = len(WORST)) -> None:
        """Asserts that no text makes a request cost more than its size warrants; `worst`: how many to try."""
        largest, status, make = entry
        told = self.cost(make, plain, largest)[1]
        assert told == status, f"it is measured at what it is meant to do, not at a {told}"
        tried = shapes(random.Random(None if LONG else what), len(WORST) if LONG else worst)
        complaints = {name: self.complaint(make, shape, largest) for name, shape in tried}
        found = {name: complaint for name, complaint in complaints.items() if complaint}
        assert not found, found

    def cost(self, make: Make, shape: Shape, size: int) -> tuple[float, int]:
        """The processor time of the last of some requests, and its status."""
        *before, last = make(shape, size)
        for each in before:
            self._send(each)
        started = processor_seconds(self._pid)
        status = self._send(last)
        return processor_seconds(self._pid) - started, status

    def _send(self, request: Request) -> int:
        headers: dict[str, Any] = {**(request.headers or {})}
        more: dict[str, Any] = {"params": request.params}
        if request.body is not None:
            more["content"] = (
                request.body if isinstance(request.body, bytes) else msgspec.json.encode(request.body)
            )
            headers = {"content-type": "application/json", **headers}
        token = self._tokens[request.by] if request.by and "authorization" not in headers else None
        answer = self._service.call(request.method, request.path, token, headers=headers, **more)
        assert answer.status_code < 500, (answer.status_code, answer.text[:300])
        if answer.status_code >= 400:
            assert len(answer.content) < 4 * KIB, f"a refusal of {len(answer.content)} bytes"
        return answer.status_code

    def complaint(self, make: Make, shape: Shape, largest: int) -> str | None:
        """What is wrong with the cost of a request, if it is so again and again."""
        told = None
        sizes = [largest // STEP**2, largest // STEP, largest]
        for _ in range(3):
            measured = [self.cost(make, shape, size) for size in sizes[1:]]
            if all(cost < NOTICED for cost, _ in measured):
                return None
            told = judged(sizes, [self.cost(make, shape, sizes[0]), *measured])
            if told is None:
                break
        return told


def judged(sizes: list[int], measured: list[tuple[float, int]]) -> str | None:
    costs = " → ".join(
        f"{cost:.3f} s for {size >> 10} KiB ({status})"
        for size, (cost, status) in zip(sizes, measured, strict=True)
    )
    for size, (cost, _) in zip(sizes, measured, strict=True):
        if cost > ANYHOW + SECONDS_A_MIB * size / MIB:
            return f"too much: {costs}"
    for (less, status), (more, same) in itertools.pairwise(measured):
        if status == same and more > NOTICED and more > STEP * FASTER * max(less, NOTICED / STEP):
            return f"faster than its size: {costs}"
    return None
