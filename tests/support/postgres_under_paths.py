"""With `ALCOVE_TEST_ENGINE=postgres`, a PostgreSQL database under every path that a test opens a store at.

So the acceptance tests run on it unchanged. The file at the path holds the database's address; key and
ledger lie beside it as they do beside a file. Where a file of SQLite lies already (one that was restored, or
is of an older version), that is what is opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from alcove.engine import engine
from alcove.engine.database import Database
from alcove.engine.locks import Locks
from tests.support import postgres

POSTGRES = os.environ.get("ALCOVE_TEST_ENGINE") == "postgres"
_SERVER, _TEMPLATE = "TESTS_POSTGRES_SERVER", "TESTS_POSTGRES_TEMPLATE"
"""Tell the processes of the tests where to make databases, and which are copied for that."""
_FOLDER = Path(__file__).parent / "in_every_process"


def prepare() -> None:
    """Has this process, and each that it will start, open databases under paths."""
    os.environ.update({_SERVER: postgres.server(), _TEMPLATE: postgres.template()})
    found = (str(_FOLDER), str(_FOLDER.parents[2]), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in found if each)
    install()


def install() -> None:
    """Does so in this process, if one that started it has prepared for it."""
    if _SERVER not in os.environ:
        return
    usual = engine._open

    def opened(
        location: Path | str, busy_timeout: float, on_create: Callable[[], None]
    ) -> tuple[Database, Locks]:
        if (
            isinstance(location, Path)
            and location.parent.is_dir()
            and not location.exists()
            and not location.is_symlink()
        ):
            on_create()
            _make(location)
        return usual(address(location) or location, busy_timeout, on_create)

    engine._open = opened


def address(at: Path | str) -> str | None:
    """That of the database under a path; None where there is a file."""
    if isinstance(at, Path):
        with suppress(OSError, UnicodeDecodeError):
            if (held := at.read_text()).startswith("postgresql://"):
                return held
    return None


def _make(at: Path) -> None:
    made = at.with_name(f"{at.name}-{os.getpid()}")
    made.touch(mode=0o600)
    made.write_text(postgres.new_database(os.environ[_SERVER], template=os.environ[_TEMPLATE]))
    with suppress(FileExistsError):  # another process was quicker
        os.link(made, at)
    made.unlink()
