"""Putting, getting, finding and following memories at a terminal; each test on a file and on a URL."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from alcove.cli.memories import changes
from alcove.cli.output import align_columns, format_cell
from alcove.client import connect
from tests.support.command import Command
from tests.support.service import COMMAND, Service, alcove, environment, serving
from tests.support.waiting import PATIENCE, until


def test_put_takes_json_pairs_and_stdin(command: Command) -> None:
    room = command.room
    assert command.says("put", room, "tea", '{"cups": 2}') == f"tea in {room}: revision 1\n"
    assert command.says("put", room, "tea", "cups=3", "text=mint tea", "hot=true", 'id="7"', "eq=a=b")
    assert command.json("get", room, "tea")["value"] == {
        "cups": 3, "text": "mint tea", "hot": True, "id": "7", "eq": "a=b",
    }  # fmt: skip
    written = command.json(
        "put", room, "tea", "-", "--ttl", 60, "--index", "n=1=1", stdin='{"from": "stdin"}'
    )
    assert (written["revision"], written["key"]) == (3, "tea")
    memory = command.json("get", room, "tea")
    assert memory["value"] == {"from": "stdin"}
    assert memory["index"] == {"n": "1=1"}
    assert memory["expires_at"] > memory["created_at"]


@pytest.mark.parametrize(
    ("words", "index"),
    [(["--index-all"], {"text": "mint tea", "made.by": "Ann"}), (["--index", "made"], {"made.by": "Ann"}),
     (["--index", "text", "--index", "made.by"], {"text": "mint tea", "made.by": "Ann"})],
)  # fmt: skip
def test_put_indexes_texts_of_the_value(command: Command, words: list[str], index: dict[str, str]) -> None:
    command.run("put", command.room, "tea", "text=mint tea", 'made={"by": "Ann"}', "cups=3", *words)
    assert command.json("get", command.room, "tea")["index"] == index
    assert "tea" in command.says("search", command.room, "something to drink")
    assert "(levelling 0.00, trust " in command.says(
        "search", command.room, "something to drink", "--explain"
    )


def test_a_search_says_what_to_do_about_memories_that_no_query_finds(command: Command) -> None:
    command.run("put", command.room, "tea", "text=mint tea")
    said = command.run("search", command.room, "tea").output
    assert "no query finds 1 memory here without index text: `list --unindexed` lists them" in said
    for way in ("list", "search"):
        assert "tea" in command.says(way, command.room, "--unindexed")
    assert "no text there" in command.run("put", command.room, "tea", "cups=3", "--index-all").output
    command.run("put", command.room, "tea", "text=mint tea", "--index-all")
    assert "no query" not in command.run("search", command.room, "tea").output
    assert "tea" not in command.says("list", command.room, "--unindexed")


@pytest.mark.parametrize("words", [["--index-all", "--index", "text"], ["--index", "text", "--index", "a=b"]])
def test_put_is_told_in_one_way_what_to_index(command: Command, words: list[str]) -> None:
    assert "--index-all" in command.refuses("put", command.room, "tea", "text=mint tea", *words)


@pytest.mark.parametrize(
    "words", [["nope"], ["[1]"], ["{"], ["{}", "x"], ["=1"], ["n=NaN"], ["-"], ["x=1", "--ttl", "x"],
              ["x=1", "--ttl", "-1"], ["x=1", "--create-only", "--expected-revision", "1"], []],
)  # fmt: skip
def test_put_refuses_what_is_no_object(command: Command, words: list[str]) -> None:
    command.refuses("put", command.room, "k", *words, stdin="[]")
    command.refuses("get", command.room, "k", code=1)


def test_put_refuses_a_revision_that_is_not_there(command: Command) -> None:
    assert "revision" in command.refuses("put", command.room, "k", "a=1", "--expected-revision", 3)
    command.run("put", command.room, "k", "a=1", "--create-only")
    command.refuses("put", command.room, "k", "a=1", "--create-only")


def test_get_shows_the_memory_and_when_and_by_whom(command: Command) -> None:
    command.run("put", command.room, "tea", "text=grün", "--index", "text=green", "--ttl", 60)
    lines = command.says("get", command.room, "tea").splitlines()
    assert lines[0] == f"tea in {command.room}"
    assert lines[1].startswith("revision 1, 20")
    assert lines[1].endswith("Z, by noop")
    assert lines[2].startswith("expires 20")
    assert lines[3:] == ["found by text: green", "{", '  "text": "grün"', "}"]


def test_get_as_of_shows_what_was(command: Command) -> None:
    command.run("put", command.room, "k", "n=1")
    then = command.json("get", command.room, "k")["created_at"]
    command.run("put", command.room, "k", "n=2")
    assert command.json("get", command.room, "k", "--as-of", then)["value"] == {"n": 1}
    assert "as_of" in command.refuses("get", command.room, "k", "--as-of", "yesterday")


def test_absent_is_1_and_denied_is_2(command: Command) -> None:
    assert (
        command.refuses("get", command.room, "k", code=1)
        == f"alcove: there is no memory k in {command.room}\n"
    )
    assert "access denied" in command.refuses("get", "user:bob", "k", code=2)
    assert "%3A" in command.refuses("get", "user:100%", "k", code=2)
    command.refuses("get", command.room, code=2)


def test_delete_says_what_it_did(command: Command) -> None:
    command.run("put", command.room, "k", "n=1")
    command.refuses("delete", command.room, "k", "--expected-revision", 9)
    assert command.says("delete", command.room, "k").endswith("deleted, revision 2\n")
    assert command.says("delete", command.room, "k").endswith("nothing was there\n")
    assert command.json("delete", command.room, "k")["deleted"] is False


def test_search_and_list_are_tables_in_order(command: Command) -> None:
    for n in range(3):
        command.run("put", command.room, f"k{n}", f"n={n}", "kind=x")
    header, *rows = command.says("search", command.room, "--filter", '{"n": {"gte": 1}}').splitlines()
    assert header.split() == ["namespace", "key", "rev", "written", "value"]
    assert [row.split()[1] for row in rows] == ["k1", "k2"]
    assert rows[0].endswith('{"n":1,"kind":"x"}')
    header, *rows = command.says("list", command.room, "--limit", 2, "--offset", 1).splitlines()
    assert header.split() == ["namespace", "key", "rev", "written", "expires"]
    assert [row.split()[1] for row in rows] == ["k1", "k2"]
    pairs = ["--filter", "kind=x", "--filter", "n=2"]
    assert [found["key"] for found in command.lines("search", command.room, *pairs)] == ["k2"]
    done = command.run("search", command.room, "--filter", "n=7")
    assert done.stderr == f"nothing found below {command.room}\n"
    assert command.lines("search", command.room, "--filter", "n=7") == []
    assert "filter.n" in command.refuses("search", "--filter", '{"n": {"near": 1}}')


def test_search_leaves_out_what_is_less_relevant(command: Command) -> None:
    for key, drink in (("tea", "green tea in the morning"), ("car", "a red car")):
        command.run("put", command.room, key, f"text={drink}", "--index-all")
    search = ("search", command.room, "green tea in the morning")
    for option in ("--min-relevance", "--min-score"):
        assert [found["key"] for found in command.lines(*search, option, "0.5")] == ["tea"]
    refused = command.refuses(*search, "--min-relevance", "0.5", "--min-score", "0.4")
    assert "older name of min_relevance" in refused


def test_a_limit_may_be_more_than_a_page(command: Command) -> None:
    namespace = tuple(command.room.split(":"))
    with connect(command.at) as store:
        store.batch(
            [{"op": "put", "namespace": namespace, "key": f"{n:03}", "value": {}} for n in range(230)]
        )
    assert len(command.lines("search", command.room, "--limit", 1000)) == 230
    assert len(command.lines("search", command.room, "--limit", 215, "--offset", 10)) == 215
    assert len(command.lines("list", command.room)) == 100
    assert len(command.lines("events", command.room, "--limit", 220)) == 220
    done = command.run("events", command.room, "--limit", 220)
    cursor = done.stderr.split()[-1]
    assert len(command.lines("events", command.room, "--after-cursor", cursor)) == 10


def test_namespaces_are_one_a_line(command: Command) -> None:
    command.run("put", f"{command.room}:a", "k", "n=1")
    command.run("put", f"{command.room}:with%3Acolon", "k", "n=1")
    assert command.says("namespaces", command.room).split() == [
        f"{command.room}:a",
        f"{command.room}:with%3Acolon",
    ]
    assert command.lines("namespaces", command.room, "--suffix", "a") == [f"{command.room}:a".split(":")]
    assert command.says("namespaces", command.room, "--max-depth", 3).split() == [command.room]
    assert "nothing found below user:nobody" in command.run("namespaces", "user:nobody").stderr


def test_events_show_what_happened(command: Command) -> None:
    command.run("put", command.room, "k", "n=1")
    command.run("delete", command.room, "k")
    header, added, deleted = command.says("events", command.room).splitlines()
    assert header.split() == ["when", "kind", "namespace", "key", "rev", "by", "value"]
    assert added.split()[2:] == ["add", command.room, "k", "1", "noop", '{"n":1}']
    assert deleted.split()[2:] == ["delete", command.room, "k", "2", "noop"]
    (event,) = command.lines("events", command.room, "--kind", "delete")
    assert event["revision"] == 2
    assert command.lines("events", command.room, "--after-cursor", event["cursor"]) == []
    assert len(command.lines("events", command.room, "--before", event["occurred_at"])) == 1
    command.refuses("events", "--kind", "explosion")
    assert "after_cursor" in command.refuses("events", "--after-cursor", "x")


def test_follow_prints_each_event_once_until_interrupted(command: Command, tmp_path: Path) -> None:
    command.run("put", command.room, "before", "n=0")
    said = tmp_path / "followed"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, "events", command.room, "--follow", "--at", command.at],
            stdout=output, stderr=subprocess.STDOUT, env=environment(),
        )  # fmt: skip
        try:
            until(lambda: command.run("put", command.room, "probe", "n=0") and b"probe" in said.read_bytes())
            for n in range(5):
                command.run("put", command.room, f"key{n}", f"n={n}")
            until(lambda: b"key4" in said.read_bytes())
            process.send_signal(2)
            assert process.wait(PATIENCE) == 0, said.read_text()
        finally:
            process.kill()
            process.wait()
    text = said.read_text()
    assert "before" not in text
    assert "Traceback" not in text
    assert [word for word in text.split() if word.startswith("key")] == [f"key{n}" for n in range(5)]


def test_history_and_diff_show_what_changed(command: Command) -> None:
    room = command.room
    command.run("put", room, "tea", '{"cups": 2, "with": {"milk": true}, "tags": ["a", "b"]}')
    command.run("put", room, "tea", '{"cups": 3, "with": {}, "tags": ["a", "c", "d"], "new": null}')
    command.run("delete", room, "tea")
    rows = command.says("history", room, "tea").splitlines()
    assert rows[0].split() == ["rev", "kind", "when", "by", "value"]
    assert [row.split()[:2] for row in rows[1:]] == [["3", "delete"], ["2", "update"], ["1", "add"]]
    title, *changes = command.says("diff", room, "tea", 1, 2).splitlines()
    assert title.startswith(f"tea in {room}: revision 1 (20")
    assert changes == [
        "- cups: 2", "+ cups: 3", "- with.milk: true", '- tags[1]: "b"', '+ tags[1]: "c"', '+ tags[2]: "d"',
        "+ new: null",
    ]  # fmt: skip
    assert "delete)" in command.says("diff", room, "tea").splitlines()[0]
    then = command.lines("history", room, "tea")[1]["created_at"]
    told = command.json("diff", room, "tea", 1, then)
    assert (told["from"], told["to"], told["changes"][0]) == (1, 2, {"path": "cups", "before": 2, "after": 3})
    assert command.json("diff", room, "tea", 2, 2)["changes"] == []
    command.refuses("diff", room, "tea", 1, 9, code=1)
    command.refuses("diff", room, "tea", "2000-01-01T00:00:00Z", code=1)
    command.refuses("diff", room, "tea", "soon")
    command.refuses("diff", room, "never", code=1)
    command.refuses("history", room, "never", code=1)


def test_a_file_is_made_by_put_and_by_nothing_else(tmp_path: Path) -> None:
    command = Command(str(tmp_path / "new.db"))
    assert "there is no store" in command.refuses("get", "user:noop", "k")
    command.refuses("list")
    assert list(tmp_path.iterdir()) == []
    assert "A new store" in command.run("put", "user:noop", "k", "n=1").stderr
    assert command.json("get", "user:noop", "k")["revision"] == 1


def test_as_user_acts_as_somebody_on_a_file(tmp_path: Path) -> None:
    command = Command(str(tmp_path / "memory.db"))
    assert "--as-user" in command.run("put", "user:alice", "k", "n=1", code=2).stderr
    command.run("put", "user:alice", "k", "n=1", "--as-user", "alice")
    assert command.lines("search", "--as-user", "bob") == []
    assert len(command.lines("search")) == 1
    assert "--token is for a server" in command.refuses("list", "--token", "x")


def test_nobody_there_is_3() -> None:
    assert "cannot be reached" in Command("http://127.0.0.1:1").refuses("list", code=3)


def test_serve_does_not_serve_a_url(service: Service) -> None:
    done = alcove("serve", "--at", service.url)
    assert done.returncode == 2
    assert "give a file" in done.stderr


def test_what_is_stored_cannot_steer_the_terminal(command: Command) -> None:
    command.run("put", command.room, "k\x1b[2J", '{"text": "\\u001b]0;x\\u0007 \\u009b2J"}')
    for words in (["list", command.room], ["search", command.room], ["get", command.room, "k\x1b[2J"]):
        assert not set(command.says(*words)) & set("\x1b\x07\x9b")


def test_tables_fit_a_terminal_and_keep_what_matters() -> None:
    rows: list[list[object]] = [["name", "n", "text"], ["日本", 7, "x" * 50], ["12", 1000, "é"]]
    assert [*align_columns(rows, 30)] == [
        "name      n  text",
        "日本      7  " + "x" * 16 + "…",
        "12    1,000  é",
    ]
    assert [*align_columns(rows, None)][1].endswith("x" * 50)
    assert max(len(line) for line in align_columns([["a" * 90, "b" * 90]], 40)) <= 40
    assert format_cell(datetime(2026, 1, 2, 3, 4, 5, 678, UTC)) == "2026-01-02 03:04:05Z"
    narrow: list[list[object]] = [
        ["id", "when", "n", "text"],
        ["a" * 36, datetime(2026, 1, 2, tzinfo=UTC), 10**9, "t" * 40],
    ]
    assert [*align_columns(narrow, 60)][1] == f"{'a' * 36}  2026-01-02 00:00:00Z  1,000,000,000  ttttt…"


def test_a_huge_cell_costs_no_more_than_it_shows() -> None:
    for letter in "xé日":
        assert len([*align_columns([["text"], [letter * 2_000_000]], 80)][1]) <= 80


def test_a_diff_tells_types_apart() -> None:
    assert [*changes({"a": 1, "b": True, "c": None}, {"a": 1.0, "b": 1, "c": None})] == [
        ("a", 1, 1.0),
        ("b", True, 1),
    ]


def test_a_token_or_a_key_says_who_calls(tmp_path: Path) -> None:
    secret = "a secret that is long enough for HS256"
    with serving(tmp_path, "--auth", "jwt", "--jwt-secret", secret) as service:
        command = Command(service.url, service.at)
        assert "bearer token" in command.refuses("list", code=2)
        token = command.says("token", "--user", "alice", "--jwt-secret", secret).strip()
        command.run("put", "user:alice", "k", "n=1", "--token", token)
        assert command.says("namespaces", ALCOVE_TOKEN=token) == "user:alice\n"
        assert "access denied" in command.refuses("get", "user:bob", "k", "--token", token)
        assert "admin" in command.refuses("doctor", "--token", token)
        assert "not a valid token" in command.refuses("list", "--token", token[:-3])
    with serving(tmp_path, "--auth", "apikey") as service:
        command = Command(service.url, service.at)
        made = alcove("apikey", "create", "--at", service.at, "--client", "app", "--trusted").stdout.strip()
        assert "X-User-ID" in command.refuses("list", "--api-key", made)
        found = command.says("list", "--as-user", "alice", "--json", ALCOVE_API_KEY=made)
        assert '"namespace":["user","alice"]' in found
