"""Reads SQL files: statements stand under `-- name:` lines, with comments for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import apsw

_NAME = re.compile(r"^-- name: (.+)$", re.MULTILINE)


def load(file: str, **parts: str) -> dict[str, str]:
    """The statements of a file under `engine/sql` by name, with `{parts}` filled in."""
    text = (files("alcove.engine") / "sql" / file).read_text(encoding="utf-8")
    _, *named = _NAME.split(text)
    statements = {}
    for name, body in zip(named[::2], named[1::2], strict=True):
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        statement = "\n".join(lines).strip()
        for part, replacement in parts.items():
            statement = statement.replace("{" + part + "}", replacement)
        statements[name] = statement
    return statements


def findings(db: apsw.Connection, file: str) -> Iterator[tuple[str, int, list[str]]]:
    """Runs a file of checks, each two statements: how many were compared, and which of them are wrong."""
    for name, script in load(file).items():
        count, finding = script.split(";")
        ((compared,),) = db.execute(count)
        yield name, compared, [str(row[0]) for row in db.execute(finding)]


def migrations() -> list[str]:
    """The schema's version files, in order; the first makes version 1."""
    folder = files("alcove.engine") / "sql" / "schema"
    return [file.read_text(encoding="utf-8") for file in sorted(folder.iterdir(), key=lambda f: f.name)]
