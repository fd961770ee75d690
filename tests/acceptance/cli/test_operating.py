"""What an operator and a privacy officer do at a terminal; each test on a file and on a URL."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import uuid
from pathlib import Path

import pytest

from alcove import Alcove, connect
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET
from tests.support.service import COMMAND, environment, serving
from tests.support.store_inspection import query, raw_bytes
from tests.support.waiting import PATIENCE

DENIED = {
    "operation": "read", "namespace": ["user", "bob"], "key": "k",
    "context": {"user_id": "alice", "client_id": "", "jwt_claims": {}, "agent": None, "grants": []},
}  # fmt: skip


@pytest.fixture
def user(command: Command) -> str:
    """Somebody with one memory of two versions in the store."""
    name = f"ann/{uuid.uuid4().hex[:6]}.é"
    with _as_user(command, name) as store:
        store.put(("user", name, "notes"), "k", {"n": "the first thing"})
        store.put(("user", name, "notes"), "k", {"n": "the second thing"})
    return name


def _as_user(command: Command, name: str) -> Alcove:
    """Somebody else, on the file, which for a URL the server has open."""
    return Alcove(command.path, settings=QUIET).as_user(name)


def test_held_tells_what_there_is_and_is_1_for_nobody(command: Command, user: str) -> None:
    first, *rest = command.says("held", user).splitlines()
    assert first.startswith(f"{user}: 1 memory, 2 versions, ")
    assert rest[-1].split()[:3] == [f"user:{user}:notes", "1", "2"]
    assert command.json("held", user)["versions"] == 2
    assert "0 memories" in command.says("held", "nobody at all", code=1)


def test_wipe_asks_first_and_prints_the_receipt(command: Command, user: str) -> None:
    assert "--yes" in command.refuses("wipe", user)
    assert command.json("held", user)["memories"] == 1
    receipt = command.json("wipe", user, "--yes")
    assert (receipt["user"], receipt["removed"]["versions"], receipt["scrubbed"]) == (user, 2, True)
    assert b"the second thing" not in raw_bytes(command.path)
    command.run("held", user, code=1)
    assert "has data" in command.refuses("wipe", user, "--yes", code=1)
    command.refuses("wipe", user, "--yes", "--shared", "burn")
    command.refuses("wipe", "", "--yes")


def test_wipe_says_what_would_go_and_what_stays(command: Command, user: str, tmp_path: Path) -> None:
    pool = f"org:{user.partition('.')[0]}"
    line = {"namespace": pool.split(":"), "key": "k", "value": {"n": 1}, "written_by": {"user": user}}
    command.run("import", "-", stdin=json.dumps(line))
    for said in (command.says("held", user), command.says("wipe", user, "--dry-run")):
        assert [row for row in said.splitlines() if pool in row]
    assert command.json("held", user)["versions"] == 2
    text = command.says("wipe", user, "--yes")
    assert [row for row in text.splitlines() if pool in row and "--shared remove" in row]
    assert "is forgotten" not in text
    assert command.says("wipe", user, "--yes", "--shared", "remove").startswith(f"{user} is forgotten.\n")


def test_a_receipt_is_kept_and_verified(command: Command, user: str, tmp_path: Path) -> None:
    kept = tmp_path / "receipt.json"
    kept.write_text("{}")
    assert "already there" in command.refuses("wipe", user, "--yes", "--receipt", kept)
    assert command.json("held", user)["versions"] == 2
    assert command.says("receipt", "verify", kept, code=1).startswith("The ledger has no such wipe")
    kept.unlink()
    command.refuses("wipe", user, "--dry-run", "--receipt", kept)
    assert command.json("wipe", user, "--yes", "--receipt", kept) == json.loads(kept.read_bytes())
    assert user in command.says("receipt", "verify", kept)
    kept.write_text("nonsense")
    command.refuses("receipt", "verify", kept)


def test_wipe_at_a_terminal_does_nothing_without_a_yes(command: Command, user: str) -> None:
    for answer, code in ((b"n\n", 2), (b"\n", 2), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, "wipe", user, "--at", command.at], stdin=theirs, stderr=theirs,
            stdout=subprocess.PIPE, env=environment(),
        )  # fmt: skip
        os.close(theirs)
        os.write(ours, answer)
        said = process.communicate(timeout=PATIENCE)[0].decode()
        os.close(ours)
        assert process.returncode == code
        assert ("is forgotten" in said) is (code == 0)
        assert command.json("held", user, code=0 if code else 1)["memories"] == (1 if code else 0)


def test_what_takes_long_shows_a_bar_at_a_terminal_only(command: Command, tmp_path: Path) -> None:
    command.run("put", command.room, "k", "n=1")
    file = tmp_path / "out.jsonl"
    for words in (["export", command.room, "-o", str(file)], ["import", str(file)], ["rotate-keys"]):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [*COMMAND, *words, "--at", command.at], stderr=theirs, stdout=subprocess.PIPE, env=environment(),
            timeout=PATIENCE, check=True,
        )  # fmt: skip
        os.close(theirs)
        shown = os.read(ours, 100_000)
        assert b"ing  [" in shown
        assert b"[####################################]" in shown  # it fills, however little there was
        os.close(ours)
        assert b"[" not in done.stdout
        if words[0] == "export":
            file.unlink()
        assert command.run(*words).stderr == ""


def test_doctor_tells_what_it_checked(command: Command) -> None:
    command.run("put", command.room, "k", "n=1")
    text = command.says("doctor")
    assert "every value opens under its key" in text
    assert text.splitlines()[-1].startswith("All is well.")
    assert all(each["wrong"] == [] for each in command.lines("doctor"))


def test_doctor_shows_what_it_noticed_with_advice_and_is_0_unless_strict(command: Command) -> None:
    for key in ("one", "two"):
        command.run("put", command.room, key, "text=the same")
    text = command.says("doctor")
    assert "LOOK " in text
    noticed = [place for each in command.lines("doctor") for place in each["noticed"]]
    assert f"{command.room} 'two': the same as {command.room} 'one'" in noticed
    assert "→ agents may store one fact under several keys" in text
    assert text.splitlines()[-1].startswith("All is well. ")
    assert command.says("doctor", "--strict", code=1) == text


@pytest.mark.parametrize("served", [False, True])
def test_doctor_is_1_where_something_is_wrong(tmp_path: Path, path: Path, *, served: bool) -> None:
    with Alcove(path, settings=QUIET) as store:
        store.put("user:noop", "k", {"n": 1})
    query(path, "UPDATE versions SET sealed = zeroblob(40)")
    if served:
        with serving(tmp_path) as service:
            told = Command(service.url).run("doctor", code=1)
    else:
        told = Command(str(path)).run("doctor", code=1)
    assert "WRONG         1  every value opens" in told.stdout
    assert "1 check found something wrong" in told.stdout


def test_rotate_keys_wraps_every_key_anew(command: Command, user: str) -> None:
    before = command.json("rotate-keys")
    assert before["rewrapped"] >= 1
    text = command.says("rotate-keys")
    assert " now wrapped by " in text
    assert before["active"] not in text
    with _as_user(command, user) as store:
        assert store.search()[0].value == {"n": "the second thing"}


def test_policy_show_prints_the_texts(command: Command) -> None:
    text = command.says("policy", "show", "authz")
    assert "package memories.authz" in text
    assert "package memories.filter" not in text
    assert all(f"package memories.{each}" in command.says("policy", "show") for each in ("authz", "filter"))
    assert command.json("policy", "show")["authz"] == text
    command.refuses("policy", "show", "everything")


def test_policy_test_shows_the_decision_and_is_1_for_a_denial(command: Command, tmp_path: Path) -> None:
    said = command.says("policy", "test", json.dumps(DENIED), code=1)
    assert said.splitlines()[0].startswith('decision            {"allow":false')
    own = {**DENIED, "namespace": ["user", "alice"]}
    assert command.json("policy", "test", "-", stdin=json.dumps(own))["decision"] == {"allow": True}
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "authz.rego").write_text('package memories.authz\ndecision := {"allow": true}\n')
    assert command.json("policy", "test", json.dumps(DENIED), "--dir", folder)["decision"] == {"allow": True}
    command.says("policy", "test", json.dumps(DENIED), code=1)
    (folder / "authz.rego").write_text("package memories.authz\ndecision := ")
    assert "authz" in command.refuses("policy", "test", json.dumps(DENIED), "--dir", folder)
    command.refuses("policy", "test", "nonsense")
    command.refuses("policy", "test", "{}", "--dir", tmp_path / "absent")


def test_api_keys_are_made_listed_and_revoked(command: Command) -> None:
    client = f"app-{uuid.uuid4().hex[:6]}"
    key = command.says("apikey", "create", "--client", client, "--user", "alice", "--role", "admin").strip()
    id = key.split("_")[1]
    (row,) = [line for line in command.says("apikey", "list").splitlines() if client in line]
    assert row.split()[:5] == [id, client, "alice", "admin", "no"]
    (known,) = [each for each in command.lines("apikey", "list") if each["client"] == client]
    assert "digest" not in known
    assert command.says("apikey", "revoke", id) == f"revoked {id}\n"
    command.refuses("apikey", "revoke", id, code=1)
    command.refuses("apikey", "create", "--client", client)


def test_export_and_import_give_back_what_was_there(command: Command, tmp_path: Path) -> None:
    for n in range(3):
        command.run("put", command.room, f"k{n}", f"n={n}", "text=é", "--index", "text=x", "--ttl", 900)
    file = tmp_path / "out.jsonl"
    assert command.says("export", command.room, "-o", file) == f"3 memories in {file}\n"
    assert command.says("export", command.room).splitlines() == file.read_text().splitlines()
    assert command.json("import", file) == {"imported": 0, "unchanged": 3, "failed": [], "failures": 0}
    before = command.json("get", command.room, "k1")
    command.run("delete", command.room, "k1")
    assert command.says("import", file) == "1 memory imported, 2 unchanged\n"
    after = command.json("get", command.room, "k1")
    assert (after["value"], after["index"]) == (before["value"], before["index"])
    assert after["expires_at"] == before["expires_at"]


def test_import_names_broken_lines_takes_the_others_and_is_1(command: Command, tmp_path: Path) -> None:
    good = {"namespace": command.room.split(":"), "key": "a", "value": {"n": 1}}
    lines = [good, {**good, "key": "b"}, {**good, "value": "no object"}]
    file = tmp_path / "in.jsonl"
    file.write_text(
        "\n".join([json.dumps(lines[0]), "{broken", "", json.dumps(lines[2]), json.dumps(lines[1])])
    )
    told = command.says("import", file, code=1).splitlines()
    assert told[0] == "2 memories imported, 0 unchanged"
    assert [line.split(":")[0] for line in told[1:]] == ["line 2", "line 4"]
    assert command.json("import", "-", stdin=json.dumps(good))["unchanged"] == 1
    command.refuses("import", tmp_path / "absent.jsonl")


def test_export_writes_over_nothing_and_leaves_no_half_file(command: Command, tmp_path: Path) -> None:
    command.run("put", command.room, "k", "n=1")
    assert "cannot be written" in command.refuses("export", "-o", tmp_path / "absent" / "out")
    (tmp_path / "kept").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    for there in ("kept", "pipe"):
        assert "already there" in command.refuses("export", "-o", tmp_path / there)
    assert "user" in command.refuses("export", "--of-user", "", "-o", tmp_path / "new")
    assert (tmp_path / "kept").read_text() == "old"
    assert (tmp_path / "pipe").is_fifo()
    assert not [*tmp_path.glob("*.partial")]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", ["export", "list", "doctor"])
def test_a_full_disk_under_the_output_is_told(command: Command, words: str) -> None:
    command.run("put", command.room, "k", "n=1")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, words, "--at", command.at], stdout=full, stderr=subprocess.PIPE, env=environment(),
            text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_export_of_a_user_is_everything_of_theirs(command: Command, user: str) -> None:
    lines = [json.loads(line) for line in command.says("export", "--of-user", user).splitlines()]
    assert [line["value"] for line in lines] == [{"n": "the first thing"}, {"n": "the second thing"}]


def test_a_reader_that_has_had_enough_is_no_error(command: Command) -> None:
    with connect(command.at) as store:
        namespace = command.room.split(":")
        for start in range(0, 3000, 1000):
            store.batch(
                [
                    {"op": "put", "namespace": namespace, "key": f"{n}", "value": {"pad": "x" * 50}}
                    for n in range(start, start + 1000)
                ]
            )
    words = " ".join(f"'{word}'" for word in [*COMMAND, "export", command.room, "--at", command.at]).replace(
        "'from alcove.cli import main; main(prog_name='alcove')'", '"from alcove.cli import main; main()"'
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{words} | head -1"], env=environment(), capture_output=True,
        text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_completion_and_version_and_help(tmp_path: Path) -> None:
    command = Command(str(tmp_path / "none.db"))
    for shell in ("bash", "zsh", "fish"):
        assert "_ALCOVE_COMPLETE" in command.says("completion", shell)
    command.refuses("completion", "dos")
    done = command.run("ev", _ALCOVE_COMPLETE="bash_complete", COMP_WORDS="alcove ev", COMP_CWORD="1")
    assert "plain,events" in done.stdout
    assert command.says("version").startswith("alcove ")
    assert set(command.json("version")) == {"alcove", "python"}
    text = command.says("--help")
    for name in ("put", "diff", "wipe", "backup", "restore", "rotate-keys", "policy", "completion"):
        assert f"  {name} " in text


def test_a_backup_is_restored_and_still_has_forgotten_who_was_wiped(
    command: Command, user: str, tmp_path: Path
) -> None:
    command.run("put", command.room, "kept", "n=1")
    saved = tmp_path / "saved.db"
    assert command.says("backup", saved).endswith(" bytes, verified\n")
    command.run("wipe", user, "--yes")
    at = tmp_path / "restored.db"
    for companion in (".key", ".wipes"):
        Path(f"{at}{companion}").write_bytes(Path(f"{command.path}{companion}").read_bytes())
    elsewhere = Command(str(at))
    assert "1 user" in elsewhere.says("restore", saved)
    assert elsewhere.json("get", command.room, "kept")["value"] == {"n": 1}
    elsewhere.run("held", user, code=1)
    assert user.encode() not in raw_bytes(at)
    assert "already there" in elsewhere.refuses("restore", saved)
    assert "already there" in command.refuses("backup", saved)
    assert command.json("backup", tmp_path / "again.db")["unreadable"] == 0


def test_restore_refuses_what_is_no_backup_and_a_server(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to have a header of one" * 10)
    command = Command(str(tmp_path / "memory.db"))
    command.refuses("restore", tmp_path / "notes.txt")
    command.refuses("restore", tmp_path / "absent.db")
    assert "stop it" in Command("http://127.0.0.1:1").refuses("restore", tmp_path / "notes.txt")
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
