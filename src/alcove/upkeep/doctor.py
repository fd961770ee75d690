"""The doctor: compares what a store says with what it holds, and shows none of the content."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

from alcove.core.errors import AlcoveError, KeyDestroyed
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.engine.engine import Engine
from alcove.engine.rows import Row, Scope
from alcove.store.erasure_ledger import ErasureLedger
from alcove.store.row_decoder import RowDecoder

_RESTORE = "keep the file as it is, and restore the last backup that verifies beside it"
_REINDEX = "run `alcove reindex`: vectors are made from the texts, and those are all there"

_VECTORS = "nodes that are told of it by `--vectors` hand over, remove and repair while they run"


class Examination(Struct, frozen=True):
    """One thing the doctor checked, over how many, what was found, and what to do about it."""

    name: str
    compared: int
    wrong: list[str]
    """Damage: something is lost, or may be."""
    noticed: list[str]
    """Nothing is broken, but somebody should look."""
    advice: str
    """What to do where something was found."""


class Doctor:
    """Examines a store that is open."""

    def __init__(self, engine: Engine, decoder: RowDecoder, ledger: ErasureLedger) -> None:
        self._engine, self._decoder, self._ledger = engine, decoder, ledger

    def examine(self, principal: Principal) -> Iterator[Examination]:
        """Compares the log with what it says is current, and decrypts every value."""
        principal.require("auditor")
        return examine(self._engine, self._decoder, self._ledger)


def examine(engine: Engine, decoder: RowDecoder, ledger: ErasureLedger) -> Iterator[Examination]:
    """Makes every check: the engine's own, each value under its key, the ledger, notices."""
    for name, compared, wrong in engine.check():
        yield Examination(name, compared, wrong, [], _RESTORE)
    yield from _values(engine, decoder)
    for name, compared, wrong in engine.index.check():
        yield Examination(name, compared, wrong, [], _REINDEX)
    if missing := engine.index.candidates_missing:
        advice = "install the extension `vector` on its server, 0.8 or later, and open the store anew"
        yield Examination("large subtrees are searched by the database", 0, [], [missing], advice)
    for name, compared, noticed in engine.index.vector_index.check() if engine.index.vector_index else ():
        yield Examination(name, compared, [], noticed, _VECTORS)
    yield _ledger(engine, ledger)
    yield _readers(ledger)
    yield _duplicates(engine, decoder)
    for name, compared, noticed in engine.notices():
        advice = "harmless, as after a write that was refused; a wipe of that user takes their key away"
        yield Examination(name, compared, [], noticed, advice)


def _values(engine: Engine, decoder: RowDecoder) -> Iterator[Examination]:
    """Opens every value once, and looks at each for what should not have been remembered."""
    compared, unreadable = 0, []
    suspicious: dict[str, None] = {}
    for row in engine.every_version():
        if row.sealed is None:
            continue
        compared += 1
        try:
            text = _text(row, decoder)
        except AlcoveError as error:
            # Whoever was wiped while we looked has no key any more, and no version either.
            kept = (each.seq == row.seq for each in engine.history(row.ns, row.key))
            if not isinstance(error, KeyDestroyed) or any(kept):
                unreadable.append(f"{row.seq}: {error.message}")
            continue
        for kind in sorted(kinds_of_secret(text)):
            suspicious[f"{_place(row)}: {kind}"] = None
    yield Examination("every value opens under its key, at its place", compared, unreadable, [], _RESTORE)
    advice = (
        "have the secret changed where it is used, then remove the memory: deleting alone leaves its history"
    )
    yield Examination("no memory looks like a secret", compared, [], [*suspicious], advice)


def _text(row: Row, decoder: RowDecoder) -> str:
    """All that a version says: its names, what lies in plain text, and its value."""
    value = msgspec.json.encode(decoder.value(row)).decode()
    names = str(Namespace.decode(row.ns)), row.key.decode()
    return "\n".join((*names, row.attributes, row.index_text or "", value))


def _ledger(engine: Engine, ledger: ErasureLedger) -> Examination:
    wrong, lines = [], 0
    try:
        lines = len(ledger.read())
        if not lines and engine.erasure.generation():
            wrong.append(f"{ledger.path} is missing or empty, but somebody was wiped")
    except AlcoveError as error:
        wrong.append(error.message)
    advice = "bring the ledger back from its copy: a restored backup needs it to forget whom it must"
    return Examination("the ledger of wipes can be read", lines, wrong, [], advice)


def _readers(ledger: ErasureLedger) -> Examination:
    """The files of the store, which lie beside its ledger, and who can read them."""
    store = ledger.path.with_suffix("")
    beside = (store.with_name(store.name + suffix) for suffix in ("", "-wal", "-shm", ".key", ".wipes"))
    modes = {file: file.stat().st_mode & 0o777 for file in beside if file.exists()}
    noticed = [f"{file} has the mode {mode:o}" for file, mode in modes.items() if mode & 0o077]
    advice = "`chmod 600` them, unless others are meant to read everybody's memories"
    return Examination("only the owner can read the files", len(modes), [], noticed, advice)


def _duplicates(engine: Engine, decoder: RowDecoder) -> Examination:
    """Live memories of one namespace with the same value; scanned in order, one namespace at a time."""
    compared, noticed = 0, []
    ns, seen = b"", dict[bytes, Row]()
    for row in _live(engine):
        if row.ns != ns:
            ns, seen = row.ns, {}
        try:
            value = msgspec.json.encode(decoder.value(row), order="sorted")
        except AlcoveError:
            continue  # the other examination speaks of it
        compared += 1
        first = seen.setdefault(hashlib.sha256(value).digest(), row._replace(sealed=None))
        if first.seq != row.seq:
            noticed.append(f"{_place(row)}: the same as {_place(first)}")
    advice = "agents may be remembering one thing under several keys; delete what is not needed"
    return Examination("no two memories of a namespace are the same", compared, [], noticed, advice)


def _live(engine: Engine) -> Iterator[Row]:
    """In pages, so that a long look does not hold the log back."""
    after = None
    while page := engine.scan_page(Scope(b"", b"\xff"), after=after, now=0, limit=1000):
        yield from page
        after = page[-1].ns, page[-1].key


def _place(row: Row) -> str:
    """Where a memory lies, unless the name is itself what must not be shown."""
    place = f"{Namespace.decode(row.ns)} {row.key.decode()!r}"
    return f"version {row.seq}" if kinds_of_secret(place) else place


@cache
def _secrets() -> dict[str, Any]:
    """How each kind is known; its hints are looked for first: they cost a fraction of the pattern."""
    return tomllib.loads((files("alcove.upkeep") / "secrets.toml").read_text(encoding="utf-8"))


def kinds_of_secret(text: str) -> set[str]:
    """The kinds of secret that a text seems to hold; never the secret itself."""
    lowered = text.lower()
    return {
        kind
        for kind, secret in _secrets().items()
        if any(hint in lowered for hint in secret["hints"]) and re.search(secret["pattern"], text)
    }
