"""Where a store is: a file, a server at a URL, or a database."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

_DATABASES = ("postgresql://", "postgres://")


def is_database(at: object) -> bool:
    """Whether it is the address of a PostgreSQL database."""
    return isinstance(at, str) and at.lower().startswith(_DATABASES)


def without_password(address: str) -> str:
    """An address that can be shown; a place without one stays as it is."""
    return re.sub(r"(?<=//)[^@/]*@", "", address.partition("?")[0]) if is_database(address) else address


def placed(at: str | Path) -> tuple[Path | str, Path]:
    """Where a store is, and beside which path its key and its ledger lie: for a database, in a folder."""
    if isinstance(at, str) and is_database(at):
        return at, state_of(at, Path(os.environ.get("ALCOVE_STATE", ".")))
    return Path(at), Path(at)


def state_of(address: str, folder: Path) -> Path:
    """Beside which path of a folder the key and the ledger of a database lie."""
    parts = urlsplit(address)
    return folder / f"{parts.hostname or 'localhost'}-{parts.path.strip('/') or 'postgres'}"
