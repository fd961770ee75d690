"""Workers without a parent stop, and a parent that cannot start has none."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.acceptance.patience import until
from tests.acceptance.service import refused, serving
from tests.acceptance.workers import connected


def running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("busy", [False, True])
def test_workers_stop_when_their_parent_is_killed(tmp_path: Path, busy: bool) -> None:
    """With a stream open, too, although requests may take ten minutes."""
    with serving(tmp_path, "--workers", 2, "--request-seconds", 600) as service, connected(service) as client:
        until(lambda: len(service.children()) == 2)
        workers = service.children()
        if busy:
            with client.stream("GET", "/v1/memories/events/stream") as stream:
                pieces = stream.iter_raw()
                next(pieces)
                service.signal(signal.SIGKILL)
                assert list(pieces) == []
        else:
            service.signal(signal.SIGKILL)
        service.wait()
        until(lambda: not any(running(pid) for pid in workers))


@pytest.mark.parametrize("flags", [["--policy-dir", "/nonexistent"], ["--at", "/nonexistent/memory.db"]])
def test_a_service_of_workers_that_cannot_start_says_why_once(tmp_path: Path, flags: list[str]) -> None:
    said = refused(tmp_path, "--workers", 2, *flags)
    (line,) = [each for each in said.splitlines() if "/nonexistent" in each]
    assert line.startswith("alcove: ")
    assert len(said.splitlines()) <= 4, said


def test_a_broken_policy_file_is_told_of_once_with_its_line(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "authz.rego").write_text("package memories.authz\n\ndecision := {\n")
    said = refused(tmp_path, "--workers", 2, "--policy-dir", folder)
    assert said.count("authz.rego") == 1, said
    assert os.listdir(folder) == ["authz.rego"]
