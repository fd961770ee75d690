"""Disks that are full or read-only, and files that are not ours: a clear error, and nothing is lost.

This file is also the child program that runs with less room or fewer rights than the tests have:
`python -m tests.acceptance.faults.test_disk <role> <path>`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from alcove import Alcove, AlcoveError, Settings, StoreError, Unavailable
from tests.support.child_programs import limit_files, say, started, unlimit_files
from tests.support.store_inspection import assert_sound, timeline

pytestmark = pytest.mark.of_the_file("what its disk refuses")

QUIET = Settings(sweep_interval=0)
NOBODY = 65534
AL = ("user", "al")
KIB = 1024
OURS = {"memory.db" + suffix for suffix in ("", "-wal", "-shm", ".key", ".wipes")}


# A full disk


def fill(memory: Alcove) -> dict[str, int]:
    """Puts, updates and batches until the disk takes no more; what was acknowledged, by key."""
    kept: dict[str, int] = {}
    al = memory.as_user("al")
    for n in range(100_000):
        key = f"key-{n % 50}"
        try:
            if n % 3:
                al.put(AL, key, {"n": n, "text": "x" * 3000})
                kept[key] = n
            else:
                keys = [f"batch-{n % 7}-{i}" for i in range(3)]
                put = {"op": "put", "namespace": AL, "value": {"n": n, "text": "x" * 1000}}
                al.batch([{**put, "key": key} for key in keys])
                kept |= dict.fromkeys(keys, n)
        except Unavailable:
            return kept
    raise AssertionError("the disk never filled up")


def assert_kept(memory: Alcove, kept: dict[str, int]) -> None:
    for key, n in kept.items():
        found = memory.as_user("al").get(AL, key)
        assert found is not None
        assert found.value["n"] == n
    assert_sound(memory)


def survive(path: Path, empty: Callable[[], None], refill: Callable[[], None]) -> None:
    """The promise: refused clearly while it is full, all there meanwhile, working again afterwards."""
    with Alcove(path, settings=QUIET) as memory:
        al = memory.as_user("al")
        al.put(AL, "first", {"n": -1})
        refill()
        kept = {"first": -1, **fill(memory)}
        assert len(kept) > 1
        for _ in range(3):  # still full: refused again and again, and never half done
            with pytest.raises(Unavailable, match=r"memory\.db"):
                al.put(AL, "refused", {"text": "x" * 100 * KIB})
            assert al.get(AL, "refused") is None
            assert_kept(memory, kept)
        before = len(timeline(al))
        empty()
        assert al.put(AL, "afterwards", {"n": 0}).revision == 1
        assert len(timeline(al)) == before + 1
        kept |= {"afterwards": 0}
        assert_kept(memory, kept)
    with Alcove(path, settings=QUIET) as memory:
        assert_kept(memory, kept)
        assert memory.wipe("al").scrubbed


def not_refused(memory: Alcove) -> list[str]:
    """Calls that did not refuse in our words while nothing can be written.

    Every kind of write, and a read that must be recorded.
    """
    al = memory.as_user("al")
    writes: dict[str, Callable[[], object]] = {
        "put": lambda: al.put(AL, "key", {"n": 2}),
        "delete": lambda: al.delete(AL, "key"),
        "touch": lambda: al.touch(AL, "key", ttl_seconds=5),
        "batch": lambda: al.batch([{"op": "put", "namespace": AL, "key": "key", "value": {}}]),
        "put of a new user": lambda: memory.as_user("bob").put(("user", "bob"), "key", {}),
        "rotate_keys": lambda: list(memory.rotate_keys()),
        "wipe": lambda: memory.wipe("al"),
        "search of somebody else's memories": lambda: memory.search(AL),
    }
    wrong = []
    for name, write in writes.items():
        try:
            write()
            wrong.append(f"{name} was not refused")
        except Unavailable as error:
            if "memory.db" not in error.message:
                wrong.append(f"{name} names no file: {error.message}")
        except Exception as error:
            wrong.append(f"{name} raised {type(error).__name__}: {error}")
    return wrong


@contextmanager
def small_disk(size: int) -> Iterator[Path]:
    """A disk of its own in memory, where this machine lets us mount one."""
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this machine lets this user mount nothing")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        folder.rmdir()


def test_a_full_disk_refuses_clearly_and_works_again_when_there_is_room() -> None:
    with small_disk(4096 * KIB) as disk:
        ballast = disk / "ballast"
        survive(disk / "memory.db", ballast.unlink, lambda: _fill_up_to(ballast, 3000 * KIB))


def _fill_up_to(ballast: Path, size: int) -> None:
    ballast.write_bytes(b"x" * size)


def test_a_store_cannot_be_made_on_a_full_disk_but_later_it_can() -> None:
    """However much room is missing: for the file, its log, its index or its key."""
    wrong = []
    with small_disk(256 * KIB) as disk:
        path, ballast = disk / "memory.db", disk / "ballast"
        for free in range(0, 160 * KIB, 4 * KIB):
            _fill_up_to(ballast, 256 * KIB - free)
            try:
                Alcove(path, settings=QUIET).close()
            except (Unavailable, StoreError) as error:
                if path.name not in error.message:
                    wrong.append(f"{free} bytes free: {error.message}")
            except Exception as error:
                wrong.append(f"{free} bytes free: {error!r}")
            ballast.unlink()
            with Alcove(path, settings=QUIET) as memory:
                memory.as_user("al").put(AL, "key", {"n": 1})
                assert_sound(memory)
            wrong += [f"{free}: left {file.name}" for file in disk.iterdir() if file.name not in OURS]
            for file in disk.iterdir():
                file.unlink()
    assert wrong == []


@pytest.mark.parametrize("role", ["survive", "refuse"])
def test_a_limit_on_the_size_of_files_is_like_a_full_disk(tmp_path: Path, role: str) -> None:
    path = tmp_path / "memory.db"
    with started(tmp_path / "said", __name__, role, path) as child:
        child.finish()
    assert child.lines in (["done"], ["wrong: []", "done"])
    assert {file.name for file in tmp_path.iterdir()} <= {"said", *OURS}
    with Alcove(path, settings=QUIET) as memory:
        assert_sound(memory)


# Files and folders that may only be read


@contextmanager
def open_to_nobody() -> Iterator[Path]:
    """A folder that another user can reach, which those under `tmp_path` are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.parametrize("read_only", ["file", "folder", "both"])
def test_a_read_only_store_is_refused_by_name_and_is_not_changed(read_only: str) -> None:
    with open_to_nobody() as outer:
        folder = outer / "folder"
        folder.mkdir()
        path = folder / "memory.db"
        with Alcove(path, settings=QUIET) as memory:
            memory.as_user("al").put(AL, "key", {"n": 1})
        for file in folder.iterdir():
            file.chmod(0o644 if read_only != "folder" else 0o666)
        folder.chmod(0o777 if read_only == "file" else 0o755)
        if os.getuid() != 0:
            path.chmod(0o444 if read_only != "folder" else 0o644)
            folder.chmod(0o755 if read_only == "file" else 0o555)
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        try:
            with started(outer / "said", __name__, "open", path) as child:
                child.finish()
        finally:
            folder.chmod(0o755)
        (answer,) = child.lines
        assert answer.split()[0] in ("Unavailable", "StoreError")
        assert str(path) in answer
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_new_store_in_a_read_only_folder_is_refused_and_leaves_nothing() -> None:
    with open_to_nobody() as outer:
        folder = outer / "folder"
        folder.mkdir(mode=0o755 if os.getuid() == 0 else 0o555)
        with started(outer / "said", __name__, "open", folder / "memory.db") as child:
            child.finish()
        folder.chmod(0o755)
        (answer,) = child.lines
        assert answer.split()[0] in ("Unavailable", "StoreError")
        assert str(folder / "memory.db") in answer
        assert list(folder.iterdir()) == []


# The child


def main(role: str, path: str) -> None:
    match role:
        case "survive":
            survive(Path(path), unlimit_files, lambda: limit_files(400 * KIB))
            say("done")
        case "refuse":
            with Alcove(path, settings=QUIET) as memory:
                memory.as_user("al").put(AL, "key", {"n": 1})
                limit_files(1)
                wrong = not_refused(memory)
                unlimit_files()
                say("wrong:", wrong)
                found = memory.as_user("al").get(AL, "key")
                assert found is not None
                assert (found.revision, found.value) == (1, {"n": 1})
                memory.as_user("al").put(AL, "key", {"n": 2}, expected_revision=1)
            say("done")
        case "open":
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            try:
                Alcove(path, settings=QUIET).close()
                say("opened")
            except AlcoveError as error:
                say(type(error).__name__, error.message)


if __name__ == "__main__":
    main(*sys.argv[1:])
