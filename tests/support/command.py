"""The `alcove` command in this process, on a file and on a URL alike."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from alcove import Alcove
from alcove.cli import main
from tests.support.concurrent_workers import QUIET
from tests.support.service import serving

EMPTY: dict[str, str | None] = dict.fromkeys(["ALCOVE_AT", "ALCOVE_TOKEN", "ALCOVE_API_KEY", "COLUMNS"])


class Command:
    """`alcove` with its store and options given, and a room that no other test writes to."""

    def __init__(
        self, at: str, path: Path | None = None, options: tuple[object, ...] = (), llm: str | None = None
    ) -> None:
        """`llm`: the address of the model that agents talk with."""
        self.at, self.options = at, options
        self._env = {"ALCOVE_LLM_URL": llm}
        self.path = path or Path(at)
        """The file, also where a server has it open."""
        self.room = f"user:noop:{uuid.uuid4().hex[:8]}"

    @property
    def remote(self) -> bool:
        return self.at.startswith("http")

    def run(self, *words: object, code: int = 0, stdin: str | None = None, **env: str) -> Result:
        """Runs it to its end, which must be this exit code and no stack."""
        done = CliRunner(env={**EMPTY, "ALCOVE_AT": self.at, **self._env, **env}).invoke(
            main, [str(word) for word in (*words, *self.options)], input=stdin, prog_name="alcove"
        )
        assert "Traceback" not in done.output
        assert done.exit_code == code, (done.exit_code, done.output, done.exception)
        return done

    def says(self, *words: object, code: int = 0, stdin: str | None = None, **env: str) -> str:
        """What it prints to its standard output."""
        return self.run(*words, code=code, stdin=stdin, **env).stdout

    def refuses(self, *words: object, code: int = 2, stdin: str | None = None) -> str:
        """What it says to its error stream, having printed nothing else."""
        done = self.run(*words, code=code, stdin=stdin)
        assert done.stdout == "", done.stdout
        return done.stderr

    def json(self, *words: object, code: int = 0, stdin: str | None = None) -> Any:
        """What it prints with `--json`: one document."""
        return json.loads(self.says(*words, "--json", code=code, stdin=stdin))

    def lines(self, *words: object, code: int = 0) -> list[Any]:
        """What it prints with `--json`: a document a line."""
        return [json.loads(line) for line in self.says(*words, "--json", code=code).splitlines()]


@contextmanager
def on_either(kind: str, folder: Path, specs: Path, llm: str | None = None) -> Iterator[Command]:
    """The command with agents, on a "file", or on the "url" of a service that has their specs and model."""
    if kind == "file":
        Alcove(folder / "memory.db", settings=QUIET).close()
        yield Command(str(folder / "memory.db"), options=("--agents", specs), llm=llm)
        return
    with serving(folder, "--agents", specs, *(["--llm-url", llm] if llm else [])) as service:
        yield Command(service.url, service.at)
