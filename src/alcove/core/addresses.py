"""Where a store is: a file, a server at a URL, or a database."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

_SCHEMA = re.compile(r"search_path=\\?(?:\"(?P<quoted>[^\"]*)\"|(?P<plain>[^,\s\"]+))")
"""The first schema among the options of an address, in which the tables are."""
_DATABASES = ("postgresql://", "postgres://")


def is_database(at: object) -> bool:
    """Whether it is the address of a PostgreSQL database."""
    return isinstance(at, str) and at.lower().startswith(_DATABASES)


def without_password(address: str) -> str:
    """An address that can be shown; the path of a file stays as it is."""
    return re.sub(r"(?<=//)[^/]*@", "", address.partition("?")[0]) if "://" in address else address


def locate_store(at: str | Path) -> tuple[Path | str, Path]:
    """Where a store is, and beside which path its key and its ledger lie: for a database, in a folder."""
    if isinstance(at, str) and is_database(at):
        return at, state_path(at, Path(os.environ.get("ALCOVE_STATE", ".")))
    return Path(at), Path(at)


def state_path(address: str, folder: Path) -> Path:
    """Beside which path of a folder the key and the ledger of a database lie: SERVER-DATABASE[+SCHEMA]."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    name = query.get("dbname") or unquote(parts.path.strip("/")) or "postgres"
    schema = _SCHEMA.search(query.get("options", ""))  # several stores in one database
    own = quote(schema["quoted"] or schema["plain"], safe="") if schema else "public"
    server = quote(server_name(address).replace(":", "-"), safe=",")
    return folder / f"{server}-{quote(name, safe='')}{'' if own == 'public' else f'+{own}'}"


def server_name(address: str) -> str:
    """The host of a database, with its port where that is not the usual one; there may be several of them.

    Or the folder of its socket.
    """
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    hosts = query.get("host") or parts.netloc.rpartition("@")[2].lower()
    if port := query.get("port"):
        hosts = f"{hosts.partition(':')[0]}:{port}"
    return re.sub(r":5432(?=,|$)", "", hosts) or "localhost"
