"""Anthropic's memory tool on a store, through the official client's tool runner and by itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.lib.tools import ToolError
from anthropic.types.beta import BetaMemoryTool20250818ViewCommand

from alcove import Alcove, PermissionDenied
from alcove.integrations import memory_files
from alcove.integrations.anthropic_memory import AlcoveMemoryTool, AsyncAlcoveMemoryTool
from tests.support.file_and_url import Place
from tests.support.llm_server import LLMServer, calls, text
from tests.support.store_inspection import raw_bytes

NOTE = "/memories/notes/tea.md"
ASKED: Any = {
    "model": "claude-any", "max_tokens": 100, "messages": [{"role": "user", "content": "I drink green tea."}],
}  # fmt: skip


@pytest.fixture
def tool(place: Place) -> Iterator[AlcoveMemoryTool]:
    with place.open() as store:
        yield AlcoveMemoryTool(store, "helper")


def refused(tool: AlcoveMemoryTool, **command: Any) -> str:
    """What the tool says to a command that it does not do."""
    with pytest.raises(ToolError) as error:
        tool.call(command)
    said = str(error.value)
    assert len(said) < 1000
    return said


def made(tool: AlcoveMemoryTool, path: str, content: str = "") -> str:
    return tool.call({"command": "create", "path": path, "file_text": content})


def seen(tool: AlcoveMemoryTool, path: str = "/memories", **more: Any) -> str:
    return tool.call({"command": "view", "path": path, **more})


def script(llm: LLMServer) -> None:
    """A model that uses every command, and one of them wrongly."""
    llm.reset()
    for command in (
        {"command": "view", "path": "/memories"},
        {"command": "create", "path": NOTE, "file_text": "Alice drinks tea.\nBlack.\n"},
        {"command": "str_replace", "path": NOTE, "old_str": "Black.", "new_str": "Green."},
        {"command": "insert", "path": NOTE, "insert_line": 2, "insert_text": "Two cups.\n"},
        {"command": "rename", "old_path": NOTE, "new_path": "/memories/tea.md"},
        {"command": "delete", "path": "/memories/coffee.md"},
        {"command": "view", "path": "/memories/tea.md"},
    ):
        llm.play(calls(("memory", command)))
    llm.play(text("I know."))


def told(llm: LLMServer) -> list[tuple[str, bool]]:
    """What the model was answered to each command, and whether as an error."""
    messages = [each for asked in llm.requests for each in asked.messages]  # it may send only what is new
    blocks = [block for each in messages if isinstance(each["content"], list) for block in each["content"]]
    results = {block["tool_use_id"]: block for block in blocks if block["type"] == "tool_result"}
    return [(_text(block["content"]), block.get("is_error", False)) for block in results.values()]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def check(llm: LLMServer) -> None:
    answers = told(llm)
    assert [error for _, error in answers] == [False] * 5 + [True, False]
    assert answers[0][0].endswith("\n0B\t/memories")
    assert "     2\tGreen." in answers[2][0]
    assert answers[5][0] == "The path /memories/coffee.md does not exist"
    assert answers[6][0].splitlines()[1:] == [
        "     1\tAlice drinks tea.",
        "     2\tGreen.",
        "     3\tTwo cups.",
        "     4\t",
    ]
    assert llm.requests[0].body["tools"] == [{"type": "memory_20250818", "name": "memory"}]


def test_the_official_client_runs_it(place: Place, llm: LLMServer) -> None:
    script(llm)
    with (
        place.open() as store,
        anthropic.Anthropic(base_url=llm.root, api_key="none", max_retries=0) as client,
    ):
        tool = AlcoveMemoryTool(store, "helper")
        answer = client.beta.messages.tool_runner(tools=[tool], **ASKED).until_done()
        assert answer.content[0].type == "text"
        room = ("agent", "helper", "u", place.name("alice"), "memories")
        (kept,) = store.search(room)
        assert (kept.key, kept.index) == ("/memories/tea.md", {})
        assert kept.value == {"content": "Alice drinks tea.\nGreen.\nTwo cups.\n"}
    check(llm)


def test_the_official_client_runs_it_awaited(place: Place, llm: LLMServer) -> None:
    script(llm)

    async def main() -> None:
        async with (
            place.awaited() as store,
            anthropic.AsyncAnthropic(base_url=llm.root, api_key="none", max_retries=0) as client,
        ):
            tool = AsyncAlcoveMemoryTool(store, "helper")
            await client.beta.messages.tool_runner(tools=[tool], **ASKED).until_done()
            assert (await tool.call({"command": "view", "path": "/memories"})).endswith("\t/memories/tea.md")
            assert await tool.clear_all_memory() == "All memory cleared"
            command = BetaMemoryTool20250818ViewCommand(command="view", path="/memories")
            assert str(await tool.view(command)).endswith("\n0B\t/memories")

    asyncio.run(main())
    check(llm)


def test_users_and_agents_have_files_of_their_own(place: Place) -> None:
    with place.open("alice") as alice, place.open("bob") as bob:
        made(AlcoveMemoryTool(alice, "helper"), NOTE, "of alice")
        made(AlcoveMemoryTool(bob, "helper"), NOTE, "of bob")
        made(AlcoveMemoryTool(bob, "other"), NOTE, "of bob with another")
        assert seen(AlcoveMemoryTool(alice, "helper"), NOTE).endswith("of alice")
        assert seen(AlcoveMemoryTool(bob, "helper"), NOTE).endswith("of bob")
        AlcoveMemoryTool(bob, "helper").clear_all_memory()
        assert seen(AlcoveMemoryTool(alice, "helper"), NOTE).endswith("of alice")
        assert seen(AlcoveMemoryTool(bob, "other"), NOTE).endswith("another")
        with pytest.raises(PermissionDenied):
            bob.get(("agent", "helper", "u", place.name("alice"), "memories"), NOTE)


def test_a_folder_is_listed_two_levels_deep_with_sizes(tool: AlcoveMemoryTool) -> None:
    for path, content in (
        ("/memories/a.md", "é" * 10),
        ("/memories/d/b.md", "x" * 3000),
        ("/memories/d/e/c.md", "x"),
        ("/memories/d/e/f/c.md", "x"),
        ("/memories/.hidden", "x"),
        ("/memories/d/.hidden/c.md", "x"),
    ):
        made(tool, path, content)
    assert seen(tool, "/memories/").splitlines()[2:] == [
        "20B\t/memories/a.md", "2.9K\t/memories/d/", "2.9K\t/memories/d/b.md", "2B\t/memories/d/e/",
    ]  # fmt: skip
    assert seen(tool, "/memories/d/e").splitlines()[2:] == [
        "1B\t/memories/d/e/c.md", "1B\t/memories/d/e/f/", "1B\t/memories/d/e/f/c.md",
    ]  # fmt: skip
    assert "does not exist" in refused(tool, command="view", path="/memories/d/x")


def test_a_folder_is_moved_and_deleted_as_a_whole(tool: AlcoveMemoryTool) -> None:
    for path in ("/memories/d/a", "/memories/d/e/b", "/memories/dd", "/memories/x"):
        made(tool, path, path)
    tool.call({"command": "rename", "old_path": "/memories/d", "new_path": "/memories/z/y"})
    assert seen(tool, "/memories/z/y/e/b").endswith("\t/memories/d/e/b")
    assert seen(tool, "/memories/dd").endswith("/memories/dd")
    assert "does not exist" in refused(tool, command="view", path="/memories/d")
    move = {"command": "rename", "old_path": "/memories/z"}
    assert "already exists" in refused(tool, **move, new_path="/memories/x")
    assert "already exists" in refused(tool, **move, new_path="/memories/z")
    assert "outside of" in refused(tool, **move, new_path="/memories/z/y/w")
    assert "is a file" in refused(tool, **move, new_path="/memories/x/w")
    assert "does not exist" in refused(tool, command="rename", old_path="/memories/q", new_path="/memories/r")
    tool.call({"command": "delete", "path": "/memories/z"})
    assert seen(tool).splitlines()[2:] == ["12B\t/memories/dd", "11B\t/memories/x"]
    for command in ({"command": "delete", "path": "/memories"}, {**move, "new_path": "/memories"},
                    {"command": "rename", "old_path": "/memories", "new_path": "/memories/n"}):  # fmt: skip
        assert "below /memories" in refused(tool, **command)


def test_a_file_is_made_once_and_not_where_a_folder_is_or_below_a_file(tool: AlcoveMemoryTool) -> None:
    made(tool, NOTE, "one")
    assert refused(tool, command="create", path=NOTE, file_text="two") == f"{NOTE} already exists"
    assert "already exists" in refused(tool, command="create", path="/memories/notes", file_text="")
    assert "is a file" in refused(tool, command="create", path=f"{NOTE}/x", file_text="")
    assert seen(tool, NOTE).endswith("\tone")


def test_edits_say_why_they_are_not_done(tool: AlcoveMemoryTool) -> None:
    made(tool, NOTE, "one\ntwo\ntwo\n")
    edit = {"command": "str_replace", "path": NOTE}
    assert "did not appear verbatim" in refused(tool, **edit, old_str="three", new_str="")
    assert "did not appear verbatim" in refused(tool, **edit, old_str="", new_str="x")
    assert "2 times" in (said := refused(tool, **edit, old_str="two", new_str=""))
    assert "line 2" in said
    assert "no file" in refused(tool, command="str_replace", path="/memories/notes", old_str="x", new_str="y")
    for line in (-1, 4, 10**30):
        said = refused(tool, command="insert", path=NOTE, insert_line=line, insert_text="x")
        assert "[0, 3]" in said or "no command" in said
    for lines in ([0, 1], [5, 6], [3, 2], [1, -2]):
        assert "view_range" in refused(tool, command="view", path=NOTE, view_range=lines)
    assert seen(tool, NOTE, view_range=[2, 99]).splitlines()[1:] == ["     2\ttwo", "     3\ttwo", "     4\t"]
    assert seen(tool, NOTE, view_range=[3, -1]).splitlines()[1:] == ["     3\ttwo", "     4\t"]
    tool.call({"command": "str_replace", "path": NOTE, "old_str": "one\n"})
    tool.call({"command": "insert", "path": NOTE, "insert_line": 0, "insert_text": "zero"})
    assert seen(tool, NOTE).splitlines()[1:] == ["     1\tzero", "     2\ttwo", "     3\ttwo", "     4\t"]


@pytest.mark.parametrize(
    "given",
    [
        "", "/", "memories/a", "/etc/passwd", "/memoriesx", "/memories/..", "/memories/../memories/a",
        "/memories/a/../../b", "/memories/./a", "/memories//a", "//memories/a", "/memories/a//",
        "/memories/%2e%2e/a", "/memories/%2E%2e%2fa", "/memories/a%2Fb", "/memories/%252e%252e/a",
        "/memories/%25252e%25252e/a", "/memories/%5c..%5ca", "/memories/%00", "/memories/%c0%ae%c0%ae/a",
        "/memories\\a", "/memories/..\\a", "C:\\memories\\a", "/memories/a\0b", "/memories/a\nb",
        "/memories/\u2024\u2024/a", "/memories/\uff0e\uff0e/a", "/memories/a\uff0fb", "/memories/\u2025/a",
        "/memories/\u202ea", "/memories/a\u200b", "/memories/\ud800", "/memories/ ", "/memories/ a",
        "/memories/\x7f", "/memories/...",
        "/memories/\u2028", "/memories/" + "x" * 1024, "/MEMORIES/a", "file:///memories/a", "~/memories/a",
    ],
)  # fmt: skip
def test_a_path_that_could_lead_elsewhere_is_refused_everywhere(given: str, memory: Alcove) -> None:
    tool = AlcoveMemoryTool(memory.as_user("alice"), "helper")
    made(tool, "/memories/x", "safe")
    for command in (
        {"command": "view", "path": given}, {"command": "create", "path": given, "file_text": ""},
        {"command": "str_replace", "path": given, "old_str": "safe", "new_str": ""},
        {"command": "insert", "path": given, "insert_line": 0, "insert_text": ""},
        {"command": "delete", "path": given},
        {"command": "rename", "old_path": given, "new_path": "/memories/y"},
        {"command": "rename", "old_path": "/memories/x", "new_path": given},
    ):  # fmt: skip
        assert "path" in refused(tool, **command)
    assert seen(tool).splitlines()[2:] == ["4B\t/memories/x"]


@pytest.mark.parametrize(
    "command",
    [
        None, [], "view", 7, {}, {"command": "fly"}, {"command": None}, {"command": ["view"]},
        {"command": "view"}, {"command": "view", "path": 7}, {"command": "view", "path": None},
        {"command": "view", "path": "/memories", "view_range": [1]},
        {"command": "view", "path": "/memories", "view_range": ["a", "b"]},
        {"command": "create", "path": "/memories/a"},
        {"command": "create", "path": "/memories/a", "file_text": {}},
        {"command": "create", "path": "/memories/a", "file_text": "\ud800"},
        {"command": "insert", "path": "/memories/a", "insert_line": "1", "insert_text": ""},
        {"command": "rename", "path": "/memories/a"},
    ],
)  # fmt: skip
def test_what_is_no_command_is_an_error_for_the_model(command: Any, memory: Alcove) -> None:
    tool = AlcoveMemoryTool(memory.as_user("alice"), "helper")
    with pytest.raises(ToolError):
        tool.call(command)
    assert seen(tool).endswith("\n0B\t/memories")


def test_names_that_look_the_same_are_the_same_file(memory: Alcove) -> None:
    tool = AlcoveMemoryTool(memory.as_user("alice"), "helper")
    made(tool, "/memories/caf\u00e9.md", "one")
    assert "already exists" in refused(
        tool, command="create", path="/memories/cafe\u0301.md", file_text="two"
    )
    made(tool, "/memories/100%.md", "fine")
    made(tool, "/memories/日本 v1.2.md", "fine")


def test_files_answers_and_lists_are_bounded(memory: Alcove, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = AlcoveMemoryTool(memory.as_user("alice"), "helper")
    most = memory_files.MAX_CHARACTERS
    assert "64000 characters" in refused(tool, command="create", path=NOTE, file_text="x" * (most + 1))
    made(tool, NOTE, "\n" * (most - 2) + "ab")
    assert len(whole := seen(tool, NOTE)) < memory_files.MAX_SHOWN + 200
    assert "view_range shows the rest" in whole
    assert seen(tool, NOTE, view_range=[most - 1, -1]).endswith("\tab")
    edit = {"command": "str_replace", "path": NOTE, "old_str": "ab", "new_str": "abc"}
    assert "64000 characters" in refused(tool, **edit)
    assert "64000 characters" in refused(tool, command="insert", path=NOTE, insert_line=0, insert_text="x")
    monkeypatch.setattr(memory_files, "MAX_FILES", 12)
    monkeypatch.setattr(memory_files, "MAX_LISTED", 5)
    for n in range(11):
        made(tool, f"/memories/{n:02}")
    assert "at most 12 files" in refused(tool, command="create", path="/memories/more", file_text="")
    listed = seen(tool).splitlines()
    assert len(listed) == 2 + 5 + 1
    assert listed[-1] == "[and 8 more: view one of the directories]"


def test_a_whole_room_of_files_is_moved_in_one_batch(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    tool, room = AlcoveMemoryTool(alice, "helper"), ("agent", "helper", "u", "alice", "memories")
    alice.batch([
        {"op": "put", "namespace": room, "key": f"/memories/d/{n}", "value": {"content": f"{n}"}}
        for n in range(memory_files.MAX_FILES)
    ])  # fmt: skip
    tool.call({"command": "rename", "old_path": "/memories/d", "new_path": "/memories/e"})
    assert seen(tool, "/memories/e/499").endswith("\t499")
    tool.call({"command": "delete", "path": "/memories/e"})
    assert seen(tool).endswith("\n0B\t/memories")


def test_of_two_editors_at_once_neither_loses_a_change(place: Place) -> None:
    with place.open() as one, place.open() as other:
        tools = [AlcoveMemoryTool(store, "helper") for store in (one, other)]
        made(tools[0], NOTE, "".join(f"[{n}]" for n in range(24)))

        def edit(n: int) -> str:
            return tools[n % 2].call(
                {"command": "str_replace", "path": NOTE, "old_str": f"[{n}]", "new_str": f"<{n}>"}
            )

        with ThreadPoolExecutor(6) as threads:
            assert len([*threads.map(edit, range(24))]) == 24
        assert seen(tools[0], NOTE).endswith("".join(f"<{n}>" for n in range(24)))

        def move(n: int) -> bool:
            try:
                tools[n % 2].call(
                    {"command": "rename", "old_path": "/memories/notes", "new_path": f"/memories/{n}"}
                )
                return True
            except ToolError:
                return False

        with ThreadPoolExecutor(6) as threads:
            moved = [*threads.map(move, range(6))]
        assert moved.count(True) == 1
        assert seen(tools[1], f"/memories/{moved.index(True)}/tea.md").endswith("<23>")


def test_what_a_program_wrote_there_is_not_overwritten(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    tool, room = AlcoveMemoryTool(alice, "helper"), ("agent", "helper", "u", "alice", "memories")
    alice.put(room, "/memories/odd", {"n": 1})
    assert "/memories/odd" in seen(tool)
    assert "another program wrote" in refused(tool, command="view", path="/memories/odd")
    assert "another program wrote" in refused(
        tool, command="insert", path="/memories/odd", insert_line=0, insert_text="x"
    )


def test_a_wipe_of_the_user_takes_the_files_and_their_bytes_are_sealed(memory: Alcove, path: Path) -> None:
    tool = AlcoveMemoryTool(memory.as_user("alice"), "helper")
    made(tool, NOTE, "Quetzalcoatl")
    assert b"Quetzalcoatl" not in raw_bytes(path)
    memory.wipe("alice")
    assert seen(tool).endswith("\n0B\t/memories")


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['anthropic'] = None; import alcove.integrations.anthropic_memory"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install '.[anthropic]'" in done.stderr
