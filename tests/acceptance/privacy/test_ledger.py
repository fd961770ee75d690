"""The ledger of wipes: what a restored backup must forget again stands in it before it is forgotten.

This file is also the child program that runs out of room:
`python -m tests.acceptance.privacy.test_ledger <path> <room>`.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from alcove import Alcove, Settings, Unavailable
from alcove.store.erasure_ledger import ErasureLedger, LedgerEntry
from tests.support.child_programs import limit_files, say, started, unlimit_files

QUIET = Settings(sweep_interval=0)
AL = ("user", "al")
FIELDS = {"wiped_at", "position", "user", "shared", "receipt"}


def notes(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.with_name(path.name + ".wipes").read_text().splitlines()]


def test_a_wipe_is_noted_under_a_name_that_only_the_store_can_tell(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with Alcove(path, settings=QUIET) as memory:
        for user in ("al", "alice", "al"):
            memory.as_user(user).put(("user", user), "key", {"n": 1})
            memory.wipe(user)
    first, second, third = notes(path)
    assert first.keys() == FIELDS
    assert first["user"] == third["user"] != second["user"]
    assert path.with_name("memory.db.wipes").stat().st_mode & 0o077 == 0


def test_a_wipe_that_cannot_be_noted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.with_name("memory.db.wipes").mkdir()
    with Alcove(path, settings=QUIET) as memory:
        memory.as_user("al").put(AL, "key", {"n": 1})
        with pytest.raises(Unavailable, match=r"memory\.db\.wipes"):
            memory.wipe("al")
        assert memory.as_user("al").get(AL, "key") is not None


@pytest.mark.parametrize("room", [0, 10])
def test_a_wipe_that_the_ledger_has_no_room_for_is_refused(tmp_path: Path, room: int) -> None:
    """Half a note is no note, and does not spoil the next one."""
    path = tmp_path / "memory.db"
    with started(tmp_path / "said", __name__, path, room) as child:
        child.finish()
    assert child.lines == ["refused", "kept", "wiped"]
    assert {note.keys() == FIELDS for note in notes(path)} == {True}


def main(path: Path, room: int) -> None:
    with Alcove(path, settings=QUIET) as memory:
        memory.put(("user", "noop"), "key", {"n": 1})
        memory.wipe("noop")
        ledger = path.with_name(path.name + ".wipes")
        note = ledger.read_bytes()
        ledger.write_bytes(note * (2_000_000 // len(note)))
        memory.as_user("al").put(AL, "key", {"n": 1})
        limit_files(ledger.stat().st_size + room)
        try:
            memory.wipe("al")
            say("not refused; the last bytes noted are", ledger.read_bytes()[-20:])
        except Unavailable:
            say("refused")
        except OSError as error:
            say("refused in words that are not ours:", repr(error))
        unlimit_files()
        say("kept" if memory.as_user("al").get(AL, "key") else "gone")
        memory.wipe("al")
        say("wiped")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))


def test_a_new_ledger_is_found_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = list[Path]()
    monkeypatch.setattr("alcove.store.erasure_ledger.sync_folder", folders.append)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "memory.db.wipes").symlink_to(tmp_path / "elsewhere" / "wipes")
    ledger = ErasureLedger.of_store(tmp_path / "memory.db")
    for key in ("a", "b"):
        ledger.record(LedgerEntry(wiped_at=datetime.now(UTC), api_key=key))
    assert [note.api_key for note in ledger.read()] == ["a", "b"]
    assert folders == [tmp_path / "elsewhere"]
