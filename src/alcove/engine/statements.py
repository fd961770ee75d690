"""Every statement that this package runs, by name, as it stands in the files under `sql/`."""

from __future__ import annotations

import re
from importlib.resources import files

from alcove.engine.rows.versions import Row

Value = int | float | str | bytes | None
Params = list[Value]
"""What a statement runs with."""
_SQL = files("alcove.engine") / "sql"
_NAME = re.compile(r"^-- name: (.+)$", re.MULTILINE)


def text_of(file: str) -> str:
    """The text of a file under `sql/`."""
    return (_SQL / file).read_text(encoding="utf-8")


def load(file: str, **parts: str) -> dict[str, str]:
    """The statements of a file by name, with `{parts}` filled in.

    They stand under `-- name:` lines, with comments for people.
    """
    _, *named = _NAME.split(text_of(file))
    statements = {}
    for name, body in zip(named[::2], named[1::2], strict=True):
        statement = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
        for part, replacement in parts.items():
            statement = statement.replace("{" + part + "}", replacement)
        statements[name] = statement
    return statements


_FILES = ("queries", "administration", "people", "erasure", "index", "searchable", "copying")


def dialect(*own: str, **parts: str) -> dict[str, str]:
    """All statements as a database is asked them; those that it spells otherwise stand in files of its own.

    `parts` are what each database says in words of its own inside of statements that all share.
    """
    parts["columns"] = ", ".join(Row._fields)
    spelled = {name: statement for file in own for name, statement in load(file, **parts).items()}
    parts["theirs"] = spelled.get("theirs") or load("people.sql")["theirs"]
    shared = (load(f"{file}.sql", **parts) for file in _FILES)
    return {name: statement for its in shared for name, statement in its.items()} | spelled


SQL = dialect(
    "digests.sql",
    reached="(SELECT seq FROM sqlite_sequence WHERE name = 'versions')",
    numbers="SELECT value FROM json_each(?)",
)
"""As SQLite is asked."""


def schema(folder: str) -> list[str]:
    """The version files of a schema, in order; the first makes version 1."""
    return [file.read_text(encoding="utf-8") for file in sorted((_SQL / folder).iterdir(), key=str)]
