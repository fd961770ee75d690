"""Where a store is: a file, a server at a URL, or a database."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

_SCHEMA = re.compile(r"search_path=\\?(?:\"(?P<quoted>[^\"]*)\"|(?P<plain>[^,\s\"]+))")
"""The first schema of the search path in an address; it contains the tables."""
_DATABASES = ("postgresql://", "postgres://")


def is_database(location: object) -> bool:
    """True if this is the address of a PostgreSQL database."""
    return isinstance(location, str) and location.lower().startswith(_DATABASES)


def without_password(address: str) -> str:
    """Returns an address that is safe to show; the path of a file stays as it is."""
    return re.sub(r"(?<=//)[^/]*@", "", address.partition("?")[0]) if "://" in address else address


def locate_store(location: str | Path) -> tuple[Path | str, Path]:
    """Returns where a store is, and the path next to which its key and its ledger are stored.

    For a database that path is in the folder `ALCOVE_STATE`.
    """
    if isinstance(location, str) and is_database(location):
        return location, state_path(location, Path(os.environ.get("ALCOVE_STATE", ".")))
    return Path(location), Path(location)


def state_path(address: str, folder: Path) -> Path:
    """Returns the path SERVER-DATABASE[+SCHEMA], next to which a database's key and ledger are stored."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    name = query.get("dbname") or unquote(parts.path.strip("/")) or "postgres"
    schema = _SCHEMA.search(query.get("options", ""))  # one database may contain several stores
    own = quote(schema["quoted"] or schema["plain"], safe="") if schema else "public"
    server = quote(server_name(address).replace(":", "-"), safe=",")
    return folder / f"{server}-{quote(name, safe='')}{'' if own == 'public' else f'+{own}'}"


def server_name(address: str) -> str:
    """Returns the hosts of a database, each with its port unless it is 5432, or the folder of its socket."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    hosts = query.get("host") or parts.netloc.rpartition("@")[2].lower()
    if port := query.get("port"):
        hosts = f"{hosts.partition(':')[0]}:{port}"
    return re.sub(r":5432(?=,|$)", "", hosts) or "localhost"
