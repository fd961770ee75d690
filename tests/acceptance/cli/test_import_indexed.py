"""What the command line imported can be found by meaning when it returns, or it says how to see to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from alcove import Alcove
from tests.support.command import Command
from tests.support.embeddings import Embeddings, embeddings
from tests.support.service import serving


@pytest.fixture
def model() -> Iterator[Embeddings]:
    with embeddings() as running:
        yield running


@pytest.fixture(params=["file", "url"])
def command(request: pytest.FixtureRequest, path: Path, model: Embeddings) -> Iterator[Command]:
    with ExitStack() as stack:
        if request.param == "url":
            service = stack.enter_context(serving(path.parent, "--embedder", f"{model.url}#m"))
            yield Command(service.url, service.at)
        else:
            Alcove(path, embedder=None).close()
            yield Command(str(path))


def lines(tmp_path: Path, count: int) -> Path:
    given = [
        {"namespace": ["user", "alice"], "key": f"k{n}", "value": {}, "index": {"text": f"tea {n}"}}
        for n in range(count)
    ]
    (file := tmp_path / "lines").write_text("\n".join(map(json.dumps, given)))
    return file


def waiting(command: Command) -> int:
    with Alcove(command.path, embedder=None) as store:
        return int(store.admin.index().waiting)


def test_what_was_imported_is_indexed_when_the_command_returns(
    command: Command, model: Embeddings, tmp_path: Path
) -> None:
    count = 450  # more than share a transaction, and than are embedded at a time
    as_whom = [] if command.remote else ["--as-user", "alice"]
    done = command.run("import", lines(tmp_path, count), *as_whom, ALCOVE_EMBEDDER=f"{model.url}#m")
    assert done.stdout == f"{count} memories imported, 0 unchanged\n"
    assert done.stderr == ""
    assert (waiting(command), model.embedded) == (0, count)


@pytest.mark.parametrize("wait", [["--no-wait"], []])
def test_what_could_not_be_indexed_is_told_and_how_to_wait_for_it(
    command: Command, model: Embeddings, tmp_path: Path, wait: list[str]
) -> None:
    model.stop()
    file, url = lines(tmp_path, 3), f"{model.url}#m"
    done = command.run("import", file, *wait, ALCOVE_EMBEDDER=url)
    assert done.stdout == "3 memories imported, 0 unchanged\n"
    assert "wait to be indexed" in done.stderr
    assert "alcove index --wait" in done.stderr
    assert ("3 of them" in done.stderr) is (not wait)
    assert waiting(command) == 3
    model.start()
    assert "3 indexed, 0 waiting" in command.says("index", "--wait", ALCOVE_EMBEDDER=url)
    assert waiting(command) == 0
