"""Whatever stands in an export in place of something, it is told of, and never a stack."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from alcove.core.errors import InvalidRequest
from alcove.importers import Target, import_from
from alcove.importers.langgraph import nodes_at
from alcove.upkeep.transfer import Imports, Line
from tests.support.other_projects import FILES, written

MEM0 = {
    "id": "1", "memory": "tea", "user_id": "ann", "agent_id": "scout", "metadata": {"n": 1},
    "categories": ["a"], "created_at": "2024-07-20T01:30:36-07:00", "expiration_date": "2099-01-01",
}  # fmt: skip
JUNK: list[Any] = [
    None, 7, -1.5, True, "", " ", "x", "\ud800", [], [[]], ["x"], {}, {"a": 1}, "9999-12-31", [None],
    {"items": 3},
]  # fmt: skip
TARGET = Target(caller="noop", now=datetime(2026, 1, 1, tzinfo=UTC), user="zoe", agent="scout")


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a document with each of its keys."""
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in inside:
        yield node, key
        yield from places(child)


def taken(lines: Any) -> Imports:
    for line in lines:
        msgspec.json.decode(line, type=Line)
    return Imports()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("project", "name"),
    [("mem0", ""), *(("letta", f"letta{each}") for each in (".af", "-first.af", "-passages.json")),
     ("zep", "graphiti.json"), ("zep", "zep.json")],
)  # fmt: skip
def test_junk_in_any_place_is_told_of(project: str, name: str, seed: int, tmp_path: Path) -> None:
    document = json.loads((FILES / name).read_text()) if name else {"results": [MEM0, MEM0]}
    chance, refused = random.Random(f"{name} {seed}"), []
    for _ in range(40):
        odd = copy.deepcopy(document)
        for container, key in chance.sample([*places(odd)], 2):
            container[key] = chance.choice(JUNK)
        (file := tmp_path / "odd.json").write_text(json.dumps(odd))
        try:
            import_from(taken, project, str(file), TARGET)
        except InvalidRequest as error:
            refused.append(error.message)
    assert [each for each in refused if not each.startswith("odd.json: ")] == []


def test_a_record_cannot_say_where_it_comes_from(tmp_path: Path) -> None:
    """Its fields are kept beside that, and do not stand in for it."""
    lines: list[Line] = []

    def keep(given: Any) -> Imports:
        lines.extend(msgspec.json.decode(each, type=Line) for each in given)
        return Imports()

    import_from(
        keep, "mem0", str(written(tmp_path / "m.json", [{**MEM0, "from": "zep", "scope": "all"}])), TARGET
    )
    [line] = lines
    assert line.value is not None
    assert (line.key, line.value["scope"]) == ("agent-mem0-1", "agent")
    assert (line.value["origin"]["from"], line.value["origin"]["scope"]) == ("mem0", "all")


def test_brackets_without_an_end_are_read_once() -> None:
    """Looking for the end of each would never come to an end here."""
    assert nodes_at({"a": "tea"}, "a" + "[" * 1_000_000) == ["tea"]
