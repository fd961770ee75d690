"""Paths below /memories: which may be, which are taken, and how files and folders are shown to a model."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from alcove.core.errors import Conflict, InvalidRequest, PayloadTooLarge
from alcove.core.records import MAX_KEY_BYTES
from alcove.core.unicode import normalize

ROOT = "/memories"
MOST_SHOWN = 50_000
"""Characters of a file in one answer."""


def checked_path(path: str) -> str:
    """A path as it is kept; refused is what is not below /memories, or could be taken for another path."""
    if len(path) > MAX_KEY_BYTES:
        raise PayloadTooLarge("path", f"at most {MAX_KEY_BYTES} bytes")
    kept = normalize("NFC", path.removesuffix("/"))
    meant = normalize("NFKC", unquote(unquote(unquote(kept))))
    names = meant.split("/")[1:]
    plain = kept.isprintable() and meant.isprintable() and not {"\\", "\ufffd"} & {*meant}
    named = all(name.strip(".") and name == name.strip() for name in names)
    if not (plain and named and kept.count("/") == len(names) and f"{kept}/".startswith(f"{ROOT}/")):
        raise InvalidRequest("path", f"{ROOT}, or a plain path below it without . and .., not {path[:200]!r}")
    return kept


def below_root(path: str) -> str:
    """A path that can be deleted or moved."""
    if path == ROOT:
        raise InvalidRequest("path", f"a path below {ROOT}, which itself stays")
    return path


def within(path: str, keys: dict[str, int]) -> dict[str, int]:
    """Of all files the one at a path, or those below it."""
    return {key: rev for key, rev in keys.items() if f"{key}/".startswith(f"{path}/")}


def refuse_taken(path: str, keys: dict[str, int]) -> None:
    """Refuses a path for a new file where something is, or one below a file."""
    if path == ROOT or within(path, keys):
        raise exists(path)
    if files := [key for key in keys if path.startswith(f"{key}/")]:
        raise InvalidRequest("path", f"a path in a directory: {files[0]} is a file")


def exists(path: str) -> Conflict:
    """The refusal of a path where something is."""
    return Conflict(f"{path} already exists")


def line_of(text: str, part: str) -> int:
    """The number of the line in which a part of a text begins."""
    return text[: text.index(part)].count("\n") + 1


def numbered(text: str, span: tuple[int, int] | None) -> str:
    """Lines with their numbers, as many as one answer may have."""
    lines = text.split("\n")
    first, last = span or (1, -1)
    last = len(lines) if last == -1 else last
    if not 1 <= first <= last or first > len(lines):
        raise InvalidRequest("view_range", f"two lines within [1, {len(lines)}], or -1 for the last one")
    shown = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(lines[first - 1 : last], first))
    if len(shown) <= MOST_SHOWN:
        return shown
    shown = shown[:MOST_SHOWN]
    return f"{shown}\n[cut in line {first + shown.count(chr(10))} of {len(lines)}: view_range shows the rest]"


def listed(path: str, sizes: dict[str, int]) -> Iterator[str]:
    """What is in a folder and in its folders, each with its size."""
    totals: dict[str, int] = {}
    for key, size in sizes.items():
        names = key[len(path) + 1 :].split("/")
        for depth in () if any(name.startswith(".") for name in names) else (1, 2)[: len(names)]:
            name = "/".join([*names[:depth], *([""] if len(names) > depth else [])])
            totals[name] = totals.get(name, 0) + size
    return (f"{size_of(totals[name])}\t{path}/{name}" for name in sorted(totals))


def size_of(count: int) -> str:
    """A number of bytes, in short."""
    return f"{count}B" if count < 1024 else f"{count / 1024:.1f}K"
