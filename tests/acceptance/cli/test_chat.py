"""Talking with agents on the command line: on a file and on a URL alike, in a pipe and at a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Command, on_either
from tests.support.llm_server import LLMServer, calls, endless, fails, llm_server, text
from tests.support.service import COMMAND, alcove, environment
from tests.support.waiting import until

SPECS = """
agents:
  - name: helper
    instructions: You help.
    memory:
      private: {}
      conversation: {window_size: 6}
      session_memory: true
  - name: other
    memory: {conversation: {}}
teams:
  - {name: pair, workers: [helper, other]}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMServer]:
    with llm_server(tmp_path_factory.mktemp("llm")) as server:
        yield server


@pytest.fixture
def llm(model: LLMServer) -> LLMServer:
    model.reset()
    return model


@pytest.fixture(params=["file", "url"])
def front(request: pytest.FixtureRequest, tmp_path: Path, llm: LLMServer) -> Iterator[Command]:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    with on_either(request.param, tmp_path, specs, llm.url) as command:
        yield command


def test_one_message_is_answered_and_kept(front: Command, llm: LLMServer) -> None:
    llm.play(calls(("remember", {"key": "tea", "content": "green"})), text("Green tea it is.", pieces=4))
    said = front.says("chat", "helper", "I like green tea", "--session", "monday")
    assert said == "  · remember(key=tea, content=green)\nGreen tea it is.\n"
    assert front.json("session", "show", "helper", "monday")["messages"] == 2
    llm.play(text("Still green."))
    reply = front.json("chat", "helper", "And now?", "--session", "monday")
    assert reply["text"] == "Still green."
    assert [each["content"] for each in reply["sent"]][-3:] == [
        "I like green tea",
        "Green tea it is.",
        "And now?",
    ]
    rows = front.lines("agent", "helper", "usage")
    assert [row["turns"] for row in rows] == [2]
    assert "prompt" in front.says("agent", "helper", "usage")


def test_a_conversation_in_a_pipe_shows_context_and_memory_and_forgets(
    front: Command, llm: LLMServer
) -> None:
    llm.play(calls(("remember", {"key": "tea", "content": "green"})), text("Noted."), text("Two lines."))
    lines = [
        "/context", "I like green tea", "/memory", "/forget 1", "/forget 1", "/forget nothing", "/what",
        "one \\", "two", "/context", "/help", "/forget session", "/forget summary", "/quit", "never said",
    ]  # fmt: skip
    done = front.run("chat", "helper", "--session", "s", stdin="\n".join(lines))
    said = done.stdout
    assert "nothing was sent yet" in said
    assert "   1  tea: green (" in said
    assert said.count("forgotten\n") == 2  # the note, and the session
    assert "it is not there any more" in done.stderr
    assert "there is no summary" in done.stderr
    assert "/forget takes a number" in said
    assert "there is no /what; /help lists the commands" in said
    assert "[user]\none \ntwo\n" in said
    assert "[assistant]\nNoted." in said
    assert "/memory       show what is stored about you here" in said
    assert len(llm.requests) == 3
    front.refuses("session", "show", "helper", "s", code=1)


def test_child_namespaces_are_shown_once_each(front: Command) -> None:
    for room in ("agent:helper:u:noop:s1", "agent:helper:s1:u:noop"):
        Command(front.at).says("put", room, "tea", '{"content": "green"}')
    said = front.run("chat", "helper", "--session", "s", stdin="/memory\n/quit").stdout
    assert said.count("tea: green (") == 2
    assert "private (agent:helper:u:noop), 0 memories" in said
    for room in ("agent:helper:u:noop:s1", "agent:helper:s1:u:noop"):
        assert f"private, older ({room}), 1 memory\n" in said
    listed = [(row["room"], row["memories"]) for row in front.lines("agent", "helper", "memory")]
    assert listed == [("private", 0), ("team", 0), ("private, older", 1), ("private, older", 1)]


def test_what_fails_is_told_and_the_conversation_goes_on(front: Command, llm: LLMServer) -> None:
    llm.play(fails(400), text("Here again."))
    done = front.run("chat", "helper", "--session", "s", stdin="first\nsecond\n")
    assert "the LLM refused the request (400)" in done.stderr
    assert done.stdout == "Here again.\n"
    assert front.json("session", "show", "helper", "s")["messages"] == 2
    llm.play(fails(400))
    assert "the LLM refused the request (400)" in front.refuses("chat", "helper", "hello", code=3)
    assert "there is no agent" in front.refuses("chat", "nobody", "hello", code=1)
    assert "there is no agent" in front.refuses("chat", "nobody", code=1)


def test_a_conversation_that_is_ended_is_in_the_summary_of_the_next(front: Command, llm: LLMServer) -> None:
    llm.play(text("Noted."))
    front.run("chat", "helper", "--session", "s", stdin="We fly to Oslo on 3 December 2026.\n/end\n")
    until(lambda: front.json("summary", "show", "helper")["conversations"] == 1)
    llm.play(text("On 3 December.", when="When do we fly"))
    front.run("chat", "helper", "When do we fly?", "--session", "t")
    sent = next(each for each in llm.requests if "When do we fly" in each.messages[-1]["content"])
    assert "We fly to Oslo on 3 December 2026." in sent.messages[1]["content"]


def test_a_team_is_run_and_a_failure_told(front: Command, llm: LLMServer) -> None:
    llm.play(
        calls(("share_finding", {"key": "door", "content": "polite"})),
        text("I asked the door."),
        text("It opened."),
    )
    said = front.says("team", "run", "pair", "Open the door", "--session", "s")
    assert said.startswith(
        "helper\n  · share_finding(key=door, content=polite)\nI asked the door.\n\nother\nIt opened.\n"
    )
    assert said.endswith("session s\n")
    llm.play(fails(400), text("Alone then."))
    found = front.json("team", "run", "pair", "Again", "--mode", "order", code=1)
    assert [bool(each["error"]) for each in found["contributions"]] == [True, False]
    assert "there is no team" in front.refuses("team", "run", "nobody", "x", code=1)


def test_a_file_wants_specs_and_an_llm_and_a_server_has_its_own(tmp_path: Path, llm: LLMServer) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    at = ["--at", tmp_path / "memory.db"]
    assert "--agents" in alcove("chat", "helper", "hello", *at).stderr
    done = alcove("chat", "helper", "hello", *at, "--agents", specs)
    assert done.returncode == 3
    assert "no LLM is configured" in done.stderr
    done = alcove("chat", "helper", "hello", *at, "--agents", specs, env={"ALCOVE_TURN_ROUNDS": "many"})
    assert "turn_rounds: expected a number" in done.stderr
    flags = ["--llm-url", llm.url, "--llm-model", "m", "--llm-key", "k", "--user", "alice", "--agents", specs]
    llm.play(text("Hello Alice."))
    assert alcove("chat", "helper", "hello", *at, *flags).stdout == "Hello Alice.\n"
    assert llm.requests[-1].headers["authorization"] == "Bearer k"
    shown = alcove("session", "list", "helper", *at, "--agents", specs, "--as-user", "alice", "--json").stdout
    assert '"messages":2' in shown
    refused = alcove("chat", "helper", "x", "--at", "http://127.0.0.1:9", "--llm-url", llm.url)
    assert "a server has its own LLM" in refused.stderr


def test_at_a_terminal_lines_come_back_answers_stop_and_hostile_text_steers_nothing(
    tmp_path: Path, llm: LLMServer
) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    words = [
        "chat",
        "helper",
        "--session",
        "s",
        "--agents",
        specs,
        "--at",
        tmp_path / "memory.db",
        "--llm-url",
        llm.url,
    ]
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm", INPUTRC="/dev/null")
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)], stdin=theirs, stdout=theirs, stderr=theirs, env=env,
        start_new_session=True, preexec_fn=_own_terminal,  # noqa: PLW1509
    )  # fmt: skip
    os.close(theirs)
    seen = ""

    def sees(what: str) -> None:
        nonlocal seen
        while what not in seen:
            seen += os.read(ours, 4096).decode(errors="replace")
        seen = seen.partition(what)[2]

    try:
        sees("> ")
        llm.play(text("Hello \x1b[31mthere\x07.", pieces=2))
        os.write(ours, b"first \\\nsecond\n")
        sees(r"Hello \x1b[31mthere\x07.")
        sees("> ")
        llm.play(endless("word "))
        os.write(ours, b"go on\n")
        sees("word word")
        os.write(ours, b"\x03")
        sees("stopped; nothing of it was stored")
        until(lambda: llm.requests[-1].gone)
        sees("> ")
        llm.play(text("Again."))
        os.write(ours, b"\x1b[A\n")  # the arrow brings the last line back
        sees("Again.")
        sees("> ")
        os.write(ours, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    said = [each.messages[-1]["content"] for each in llm.requests]
    assert said == ["first \nsecond", "go on", "go on"]
    again = alcove("session", "show", "helper", "s", "--at", tmp_path / "memory.db", "--agents", specs)
    assert re.findall(r"user: (.*)", again.stdout) == [r"first \nsecond", "go on"]


def _own_terminal() -> None:
    """Makes the terminal the process's own, so that Ctrl-C reaches it."""
    import fcntl  # noqa: PLC0415
    import termios  # noqa: PLC0415

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_the_demo_plays_both_stories_and_what_it_tells_is_read_back(tmp_path: Path) -> None:
    done = alcove("demo")
    assert done.returncode == 0
    said = done.stdout
    for name, kind in {
        "Eldrin": "wizard",
        "Luna": "ranger",
        "Thorgrim": "fighter",
        "Mira": "cleric",
        "Pip": "rogue",
    }.items():
        assert f"I am {name} the {kind}, with" in said
        assert f"+ agent-room:{name}:u:game-master:first-evening / character_sheet: {name} the {kind}" in said
    assert "I read it in the party's log: Thorgrim knocks" in said
    assert "I have no sheet yet." in said
    alice, bob_and_after = said.partition("Bob asks")[::2]
    assert "On 3 December, to Oslo." in alice
    assert bob_and_after.count("I know of no flight.\n") == 2
    assert "Panna cotta, without any hazelnuts." in bob_and_after
    assert "wiped alice" in bob_and_after
    assert [*tmp_path.iterdir()] == []
    one = alcove("demo", "adventure").stdout
    assert "Two weeks" not in one
