"""Programs run each in a process of its own, forked from one that has loaded what they need."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.service import environment


class Interpreter:
    """A process that runs programs, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def runs(self, program: str, folder: Path, variables: Mapping[str, str]) -> str:
        """What a program prints, in this folder and with these variables; it must end well."""
        assert self._process.stdin
        assert self._process.stdout
        asked = {"program": program, "folder": str(folder), "variables": {**variables}}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        said, complained = ((folder / name).read_text() for name in ("said", "complained"))
        assert code == 0, complained
        assert "Traceback" not in complained, complained
        return said


@contextmanager
def interpreter(*modules: str) -> Iterator[Interpreter]:
    """One that has these modules loaded."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment(), cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        yield Interpreter(process)
        process.stdin.close()  # type: ignore[union-attr]  # it ends with its input


def _run(asked: dict[str, Any]) -> None:
    """Is the process that runs a program, to its end."""
    os.chdir(asked["folder"])
    os.environ.update(asked["variables"])
    for number, name in ((1, "said"), (2, "complained")):
        file = os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, number)
    code = 0
    try:
        exec(compile(asked["program"], "<pasted>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take all that was loaded apart again would take as long as the program did


if __name__ == "__main__":
    for each in sys.argv[1:]:
        importlib.import_module(each)
    for line in sys.stdin:
        if pid := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        else:
            _run(json.loads(line))
