"""Every SQL statement by name, from the files under `sql/`.

Most are shared by both databases. Statements that differ have the same name in `sqlite.sql` and in
`postgres.sql`; `{parts}` stand for the differences inside a shared statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

from alcove.engine.rows import Row

Value = int | float | str | bytes | None
Params = list[Value]
"""The parameters of a statement."""
_SQL = files("alcove.engine") / "sql"
_HEADING = re.compile(r"^-- (name|part): (.+)$", re.MULTILINE)
_SHARED = ("queries", "administration", "people", "erasure", "index", "searchable", "copying")
_INDEXES = (
    "live", "history", "ended", "expiring", "authored", "anonymised", "owned", "to_index_by_due",
)  # fmt: skip
SQLITE_HINTS = {
    "in_order": "CROSS",
    "not_indexed": "NOT INDEXED",
    **{f"by_{name}": f"INDEXED BY {name}" for name in _INDEXES},
}
"""Hints that tell SQLite the order of joins and the index; PostgreSQL decides by its statistics."""
NO_HINTS = dict.fromkeys(SQLITE_HINTS, "")


def read_text(file: str) -> str:
    """Returns the text of a file under `sql/`."""
    return (_SQL / file).read_text(encoding="utf-8")


def load(file: str) -> dict[str, str]:
    """Returns the statements of a file by the names that stand above them, without comments."""
    return {name: text for kind, name, text in _sections(file) if kind == "name"}


def load_all(*own_files: str, hints: dict[str, str]) -> dict[str, str]:
    """Returns all statements of a database: the shared ones and those of its own files, parts filled in."""
    own = [section for file in own_files for section in _sections(f"{file}.sql")]
    parts = {name: text for kind, name, text in own if kind == "part"}
    parts |= hints | {"columns": ", ".join(f'"{column}"' for column in Row._fields)}
    statements = {name: text for file in _SHARED for name, text in load(f"{file}.sql").items()}
    statements |= {name: text for kind, name, text in own if kind == "name"}
    for part, replacement in parts.items():
        placeholder = f"{{{part}}}"
        for name, text in statements.items():
            if placeholder in text:
                statements[name] = text.replace(placeholder, replacement)
    return statements


def schema(folder: str) -> list[str]:
    """Returns the version files of a schema, in order; the first makes version 1."""
    return [file.read_text(encoding="utf-8") for file in sorted((_SQL / folder).iterdir(), key=str)]


def _sections(file: str) -> Iterator[tuple[str, str, str]]:
    _, *fields = _HEADING.split(read_text(file))
    for kind, name, body in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        yield kind, name, "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
