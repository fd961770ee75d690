"""Losing a store and bringing it back, for the tests of restore."""

from __future__ import annotations

from pathlib import Path

import pytest

from alcove import (
    Alcove,
    AlcoveError,
    Grant,
    Principal,
    Restored,
    Settings,
    restore,
)
from alcove.core.namespace import Namespace

QUIET = Settings(sweep_interval=0)
ROOM = Namespace(("team", "common"))
AL, BOB = ("user", "al"), ("user", "bob")


def lose(memory: Alcove, path: Path) -> None:
    """The store is gone; its key and its ledger were kept elsewhere."""
    memory.close()
    path.unlink()


def bring_back(backup: Path, at: Path, **options: object) -> Restored:
    *_, last = restore(backup, at, **options)  # type: ignore[arg-type]
    assert last.result is not None
    return last.result


def in_room(memory: Alcove, user: str) -> Alcove:
    return memory.as_principal(Principal(user, client_id=f"client-of-{user}", grants=(Grant(ROOM),)))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def assert_refused(backup: Path, at: Path, error: type[AlcoveError], words: str, **options: object) -> None:
    """Refused in these words, and not a byte is changed, added or left behind."""
    before = contents(at.parent)
    with pytest.raises(error, match=words):
        bring_back(backup, at, **options)
    assert contents(at.parent) == before
