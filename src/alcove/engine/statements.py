"""Every statement that this package runs, by name, as it stands in the files under `sql/`."""

from __future__ import annotations

import re
from importlib.resources import files

from alcove.engine.rows import Row

_SQL = files("alcove.engine") / "sql"
_NAME = re.compile(r"^-- name: (.+)$", re.MULTILINE)


def load(file: str, **parts: str) -> dict[str, str]:
    """The statements of a file by name, with `{parts}` filled in.

    They stand under `-- name:` lines, with comments for people.
    """
    _, *named = _NAME.split((_SQL / file).read_text(encoding="utf-8"))
    statements = {}
    for name, body in zip(named[::2], named[1::2], strict=True):
        statement = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
        for part, replacement in parts.items():
            statement = statement.replace("{" + part + "}", replacement)
        statements[name] = statement
    return statements


_PARTS = {"columns": ", ".join(Row._fields), "theirs": load("people.sql")["theirs"]}
SQL = {
    name: statement
    for file in ("queries", "administration", "people", "erasure", "index", "copying")
    for name, statement in load(f"{file}.sql", **_PARTS).items()
}
"""By name; those in other files are of one database only, or checks."""


def schema(folder: str) -> list[str]:
    """The version files of a schema, in order; the first makes version 1."""
    return [file.read_text(encoding="utf-8") for file in sorted((_SQL / folder).iterdir(), key=str)]
