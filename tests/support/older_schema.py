"""Stores as older versions left them."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw

from alcove.engine.sqlite import database as sqlite


def aged(new: Path, old: Path, version: int) -> None:
    """Copies a store into a file of an older schema, as far as that one had a place for it."""
    shutil.copy(f"{new}.key", f"{old}.key")
    db = apsw.Connection(str(old))
    for script in sqlite.migrations()[:version]:
        db.execute(script)
    db.execute(f"PRAGMA application_id = {sqlite.APPLICATION_ID}; PRAGMA user_version = {version}")
    listed = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    tables = [name for (name,) in listed if name not in ("marks", "sqlite_sequence")]
    db.execute("ATTACH ? AS new", (str(new),))
    for table in tables:
        columns = ", ".join(row[1] for row in db.execute(f"PRAGMA main.table_info({table})"))
        db.execute(
            f"DELETE FROM main.{table};INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}"
        )
    db.close()
