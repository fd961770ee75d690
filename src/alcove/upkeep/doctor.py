"""The doctor: checks that the parts of a store agree, and shows none of the content."""

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

_RESTORE = "keep the file as it is, and restore the last backup that verifies next to it"
_REINDEX = "run `alcove reindex`: vectors are made from the texts, and those are all there"

_VECTORS = "nodes that run with `--vectors` copy, remove and repair vectors in the background"


class Examination(Struct, frozen=True):
    """One check: how many items it compared, its findings, and what to do about them."""

    name: str
    compared: int
    wrong: list[str]
    """Damage: data is lost, or may be."""
    noticed: list[str]
    """Nothing is broken, but an operator should look."""
    advice: str
    """What to do about the findings."""


class Doctor:
    """Examines a store that is open."""

    def __init__(self, engine: Engine, decoder: RowDecoder, ledger: ErasureLedger) -> None:
        self._engine, self._decoder, self._ledger = engine, decoder, ledger

    def examine(self, principal: Principal) -> Iterator[Examination]:
        """Compares the log with the current rows, decrypts every value, and checks ledger and files."""
        principal.require("auditor")
        return self._examine()

    def _examine(self) -> Iterator[Examination]:
        engine, index = self._engine, self._engine.index
        for name, compared, wrong in engine.check():
            yield Examination(name, compared, wrong, [], _RESTORE)
        yield from _check_values(engine, self._decoder)
        for name, compared, wrong in index.check():
            yield Examination(name, compared, wrong, [], _REINDEX)
        if missing := index.candidates_missing:
            advice = "install the extension `vector` on its server, 0.8 or later, and open the store anew"
            yield Examination("large subtrees are searched by the database", 0, [], [missing], advice)
        for name, compared, noticed in index.vector_index.check() if index.vector_index else ():
            yield Examination(name, compared, [], noticed, _VECTORS)
        yield _check_ledger(engine, self._ledger)
        yield _check_modes(self._ledger)
        yield _check_duplicates(engine, self._decoder)
        for name, compared, noticed in engine.notices():
            advice = "harmless, as after a write that was refused; a wipe of that user takes their key away"
            yield Examination(name, compared, [], noticed, advice)


def _check_values(engine: Engine, decoder: RowDecoder) -> Iterator[Examination]:
    """Decrypts every value once, and looks for secrets in it."""
    compared, unreadable = 0, []
    suspicious: dict[str, None] = {}
    for row in engine.every_version():
        if row.sealed is None:
            continue
        compared += 1
        try:
            text = _text(row, decoder)
        except AlcoveError as error:
            # A user who was wiped in the meantime has neither a key nor this version any more.
            exists = any(each.seq == row.seq for each in engine.history(row.ns, row.key))
            if exists or not isinstance(error, KeyDestroyed):
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
    """All texts of a version: its names, attributes, index text and value."""
    value = msgspec.json.encode(decoder.value(row)).decode()
    names = str(Namespace.decode(row.ns)), row.key.decode()
    return "\n".join((*names, row.attributes, row.index_text or "", value))


def _check_ledger(engine: Engine, ledger: ErasureLedger) -> Examination:
    wrong, lines = [], 0
    try:
        lines = len(ledger.read())
        if not lines and engine.erasure.generation():
            wrong.append(f"{ledger.path} is missing or empty, but users were wiped")
    except AlcoveError as error:
        wrong.append(error.message)
    advice = "restore the ledger from its copy: a restored backup needs it to repeat the wipes"
    return Examination("the ledger of wipes can be read", lines, wrong, [], advice)


def _check_modes(ledger: ErasureLedger) -> Examination:
    """The modes of the store's files, which are next to its ledger."""
    store = ledger.path.with_suffix("")
    files = (store.with_name(store.name + suffix) for suffix in ("", "-wal", "-shm", ".key", ".wipes"))
    modes = {file: file.stat().st_mode & 0o777 for file in files if file.exists()}
    noticed = [f"{file} has the mode {mode:o}" for file, mode in modes.items() if mode & 0o077]
    advice = "`chmod 600` them, unless others are meant to read everybody's memories"
    return Examination("only the owner can read the files", len(modes), [], noticed, advice)


def _check_duplicates(engine: Engine, decoder: RowDecoder) -> Examination:
    """Current memories of one namespace with the same value; scanned one namespace at a time."""
    compared, noticed = 0, []
    ns, by_digest = b"", dict[bytes, Row]()
    for row in _current_rows(engine):
        if row.ns != ns:
            ns, by_digest = row.ns, {}
        try:
            value = msgspec.json.encode(decoder.value(row), order="sorted")
        except AlcoveError:
            continue  # `_check_values` reports it
        compared += 1
        first = by_digest.setdefault(hashlib.sha256(value).digest(), row._replace(sealed=None))
        if first.seq != row.seq:
            noticed.append(f"{_place(row)}: the same as {_place(first)}")
    advice = "agents may store one fact under several keys; delete the copies"
    return Examination("no two memories of a namespace are the same", compared, [], noticed, advice)


def _current_rows(engine: Engine) -> Iterator[Row]:
    """All current rows, read in pages, so that no long transaction delays the log."""
    after = None
    while page := engine.scan_page(Scope(b"", b"\xff"), after=after, now=0, limit=1000):
        yield from page
        after = page[-1].ns, page[-1].key


def _place(row: Row) -> str:
    """The place of a memory, or its version if the place itself looks like a secret."""
    place = f"{Namespace.decode(row.ns)} {row.key.decode()!r}"
    return f"version {row.seq}" if kinds_of_secret(place) else place


@cache
def _secrets() -> dict[str, Any]:
    """The pattern of each kind of secret, and its hints, which are tried first because they cost less."""
    return tomllib.loads((files("alcove.upkeep") / "secrets.toml").read_text(encoding="utf-8"))


def kinds_of_secret(text: str) -> set[str]:
    """The kinds of secret that a text seems to contain; never the secret itself."""
    lowered = text.lower()
    return {
        kind
        for kind, secret in _secrets().items()
        if any(hint in lowered for hint in secret["hints"]) and re.search(secret["pattern"], text)
    }
