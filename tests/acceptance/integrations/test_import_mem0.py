"""Coming from mem0: what its own library wrote is remembered here, of the same users and the same days."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from alcove import Alcove
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET
from tests.support.other_projects import mem0_memory, written
from tests.support.service import serving
from tests.support.tokens import FLAGS, token

SPECS = "agents: [{name: scout, memory: {long_term: {}, conversation: {}}}]"


class Mem0(NamedTuple):
    """What mem0 has, for two users that no other test has."""

    ann: str
    bo: str
    export: Path
    history: Path
    ids: dict[str, str]


def on_a_file(path: Path) -> Command:
    """The command on a file of its own, where anybody can be acted as."""
    Alcove(path, settings=QUIET).close()
    return Command(str(path))


@pytest.fixture(scope="module")
def mem0(tmp_path_factory: pytest.TempPathFactory) -> Mem0:
    folder = tmp_path_factory.mktemp("mem0")
    ann, bo = f"änn:{uuid.uuid4().hex[:6]}", f"bo@{uuid.uuid4().hex[:6]}"
    ids = {}
    with mem0_memory(folder) as memory:

        def add(text: str, **whose: Any) -> None:
            ids[text] = memory.add(text, infer=False, **whose)["results"][0]["id"]

        add("Ann drinks grüner Tee ☕", user_id=ann, metadata={"city": "Köln", "cups": 3})
        add("Ann moves to Oslo", user_id=ann, expiration_date="2099-12-31")
        add("Ann was on leave", user_id=ann, expiration_date="2020-01-01")
        add("Bo keeps bees", user_id=bo, agent_id="scout", run_id="spring")
        add("The scout is terse", agent_id="scout")
        memory.update(ids["Ann moves to Oslo"], "Ann moves to Bergen")
        add("Bo keeps ants", user_id=bo)
        memory.delete(ids["Bo keeps ants"])
        said = [{"role": "user", "content": "Any honey?"}, {"role": "assistant", "content": "In June."}]
        memory.db.save_messages(said, f"agent_id=scout&run_id=spring&user_id={bo}")
        filters: list[dict[str, str]] = [{"user_id": ann}, {"user_id": bo}, {"agent_id": "scout"}]
        found = [memory.get_all(filters=each, top_k=1000, show_expired=True) for each in filters]
    return Mem0(ann, bo, written(folder / "mem0.json", found), folder / "history.db", ids)


@pytest.fixture(autouse=True)
def without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is brought does not depend on it, and words find it, too."""
    monkeypatch.setenv("ALCOVE_EMBEDDER", "none")


def of(command: Command, user: str, *room: str) -> dict[str, Any]:
    """What a user has in a room, by content."""
    with Alcove(command.path, settings=QUIET, embedder=None) as store:
        found = store.as_user(user).search(("user", user, "long-term", *room))
        return {str(each.value["content"]): each for each in found}


def test_memories_come_with_users_days_and_metadata(command: Command, mem0: Mem0) -> None:
    told = command.says("import", "--from", "mem0", mem0.export)
    assert told == (
        "3 memories imported, 0 unchanged\n"  # Bo's is in the answer for the agent, too, and comes once
        "not imported: 1 memory (already expired there)\n"
        "not imported: 1 memory (their owner is unknown: --user NAME imports them for that user)\n"
    )
    anns = of(command, mem0.ann, "all")
    tea, bergen = anns["Ann drinks grüner Tee ☕"], anns["Ann moves to Bergen"]
    source = {each["id"]: each for page in json.loads(mem0.export.read_text()) for each in page["results"]}
    assert tea.key == f"all-mem0-{mem0.ids['Ann drinks grüner Tee ☕']}"
    assert tea.value == {
        "content": "Ann drinks grüner Tee ☕", "type": "fact", "tags": [], "scope": "all",
        "metadata": {"city": "Köln", "cups": 3},
        "origin": {"from": "mem0", "id": tea.key[9:], "role": "user",
                   "updated_at": source[tea.key[9:]]["updated_at"]},
    }  # fmt: skip
    assert tea.created_at == datetime.fromisoformat(source[tea.key[9:]]["created_at"])
    assert (tea.index, tea.written_by.user) == ({"content": "Ann drinks grüner Tee ☕"}, mem0.ann)
    assert bergen.expires_at == datetime(2100, 1, 1, tzinfo=UTC)
    [bees] = of(command, mem0.bo, "agent", "scout").values()
    assert (bees.value["scope"], bees.value["origin"]["run_id"]) == ("agent", "spring")
    assert (bees.written_by.user, bees.written_by.agent) == (mem0.bo, "scout")
    again = command.json("import", "--from", "mem0", mem0.export)
    assert (again["imported"], again["unchanged"], again["failures"]) == (0, 3, 0)


def test_what_is_nobodys_goes_to_whom_the_option_names(command: Command, mem0: Mem0) -> None:
    zoe = uuid.uuid4().hex
    told = command.json("import", "--from", "mem0", mem0.export, "--user", zoe)
    assert [each["reason"] for each in told["not_mapped"]] == ["already expired there"]
    assert [*of(command, zoe, "agent", "scout")] == ["The scout is terse"]


def test_an_agent_recalls_and_forgets_it_right_away(path: Path, mem0: Mem0, tmp_path: Path) -> None:
    command = on_a_file(path)
    command.run("import", "--from", "mem0", mem0.export)
    command.run("import", "--from", "mem0", mem0.history)
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    scout = Command(command.at, options=("--agents", specs, "--as-user", mem0.bo))
    assert '"Bo keeps bees" (fact, by scout for' in scout.says("call", "scout", "memory_recall", "query=bees")
    assert "Any honey?" in scout.says("session", "show", "scout", "mem0-spring")
    id = f"agent-mem0-{mem0.ids['Bo keeps bees']}"
    assert scout.says("call", "scout", "memory_forget", f"memory_id={id}") == "Forgot it.\n"


def test_a_history_database_gives_what_each_memory_was_in_the_end(command: Command, mem0: Mem0) -> None:
    zoe = uuid.uuid4().hex
    nobodys = command.json("import", "--from", "mem0", mem0.history)
    assert nobodys["imported"] + nobodys["unchanged"] == 2  # the messages say whose they are
    told = command.json("import", "--from", "mem0", mem0.history, "--user", zoe)
    assert (told["imported"], told["unchanged"]) == (5, 2)
    assert {(each["kind"], each["count"]) for each in told["not_mapped"]} == {
        ("earlier version", 2), ("memory", 1),
    }  # fmt: skip
    found = of(command, zoe, "all")
    assert "Ann moves to Bergen" in found
    assert "Bo keeps ants" not in found
    assert command.json("import", "--from", "mem0", mem0.history, "--user", zoe)["imported"] == 0


@pytest.mark.parametrize("where", ["file", "url"])
def test_a_user_who_is_no_admin_brings_their_own_and_is_told_of_the_rest(
    path: Path, tmp_path: Path, mem0: Mem0, where: str
) -> None:
    if where == "file":
        told = on_a_file(path).json("import", "--from", "mem0", mem0.export, "--as-user", mem0.ann, code=1)
    else:
        with serving(tmp_path, *FLAGS) as service:
            ann = Command(service.url, service.at, options=("--token", token(mem0.ann)))
            told = ann.json("import", "--from", "mem0", mem0.export, code=1)
    assert (told["imported"], told["failures"]) == (2, 1)
    record = told["failed"][0]["record"]
    assert record == f"user:{mem0.bo}:long-term:agent:scout agent-mem0-{mem0.ids['Bo keeps bees']}"
    assert "not yours" in told["failed"][0]["error"]


PLATFORM = {
    "id": "p1", "memory": "Cy runs", "user_id": "cy", "app_id": "web", "hash": "x", "score": 0.3,
    "categories": ["Sport & Games", "health", "x" * 50], "metadata": None,
    "created_at": "2024-07-20T01:30:36-07:00",
}  # fmt: skip


def test_the_platforms_pages_and_categories_are_understood(command: Command, tmp_path: Path) -> None:
    cy = uuid.uuid4().hex
    page = {"count": 7, "next": "https://…", "results": [{**PLATFORM, "user_id": cy}], "relations": [{}, {}]}
    told = command.says("import", "--from", "mem0", written(tmp_path / "page.json", page))
    assert "not imported: 2 graph relations" in told
    assert "not imported: 6 memories (on other pages of the export)" in told
    [memory] = of(command, cy, "all").values()
    assert memory.value["tags"] == ["sport-&-games", "health"]
    assert memory.value["origin"] == {
        "from": "mem0", "id": "p1", "app_id": "web", "categories": PLATFORM["categories"],
    }  # fmt: skip
    assert memory.created_at == datetime(2024, 7, 20, 8, 30, 36, tzinfo=UTC)


def test_a_broken_record_is_named_and_holds_up_no_other(command: Command, tmp_path: Path) -> None:
    cy = uuid.uuid4().hex
    good = {**PLATFORM, "user_id": cy}
    records = [
        {**good, "memory": None}, {**good, "created_at": "yesterday"}, 7,
        {**good, "metadata": {"n": float("nan")}}, {**good, "user_id": 5}, {**good, "memory": "\ud800"},
        {**good, "memory": "x" * 2**21}, good,
    ]  # fmt: skip
    (file := tmp_path / "some.json").write_text(json.dumps(records))
    told = command.json("import", "--from", "mem0", file, code=1)
    assert (told["imported"], told["failures"]) == (1, 7)
    assert {each["record"]: each["error"] for each in told["failed"]} == {
        "[0]": "memory: expected a text that is not blank",
        "[1]": "created_at: expected a time such as 2026-01-31T12:00:00Z, not 'yesterday'",
        "[2]": "record: expected an object, not a number",
        "[3]": "value.metadata.n: expected a finite number",
        "[4]": "user_id: expected a text, not a number",
        "[5]": "value: expected text without lone surrogates",
        f"user:{cy}:long-term:all all-mem0-p1": "value: expected at most 1048576 bytes of JSON, not 2097371",
    }
