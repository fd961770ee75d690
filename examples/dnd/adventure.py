"""Five players in one adventure, and none of them thinks they are somebody else.

    python examples/dnd/adventure.py

All five write `character_sheet`. The key is the same, the rooms are not: each reads their own back, at
version 1. The party's log is one room for all of them, the team's chronicle outlives the evening, and the
second evening begins with clean sheets.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from alcove import Alcove, NotFound
from alcove.client.store import AgentsHandle

SPECS = Path(__file__).parent / "agents.yaml"
SHEETS: dict[str, dict[str, Any]] = {
    "Eldrin": {"class": "wizard", "hp": 14, "carries": "a staff that hums when it rains"},
    "Luna": {"class": "ranger", "hp": 21, "carries": "a bow and eleven arrows"},
    "Thorgrim": {"class": "fighter", "hp": 34, "carries": "his grandmother's axe"},
    "Mira": {"class": "cleric", "hp": 19, "carries": "a lantern that never went out"},
    "Pip": {"class": "rogue", "hp": 16, "carries": "nine keys, none of them his"},
}
STORY = [
    ("Luna", "finds hoofprints that end at a cliff.", 0),
    ("Eldrin", "reads the runes: the cliff is a door, and it is in a bad mood.", 0),
    ("Pip", "tries nine keys. The tenth lock bites.", -4),
    ("Thorgrim", "knocks, with the axe.", -9),
    ("Mira", "says good evening to the door, and it opens.", 0),
]


def evening(agents: AgentsHandle, run: str) -> None:
    """One run of the workflow, from empty sheets to the end of the story."""
    at: dict[str, Any] = {"instances": {"workflow": run}}
    sheet = {"namespace": "agent", "key": "character_sheet", **at}
    print(f"\n== {run} ==")
    for name, drawn in SHEETS.items():
        try:
            agents.call(name, "shared_memory_read", **sheet)
            raise AssertionError(f"{name} has a sheet from another evening")
        except NotFound:
            written = agents.call(name, "shared_memory_write", value=drawn, **sheet).result
            assert written["version"] == 1
    for name, drawn in SHEETS.items():
        own = agents.call(name, "shared_memory_read", **sheet).result["value"]
        assert own == drawn, f"{name} believes to be {own}"
        print(f"{name} the {own['class']}, {own['hp']} hp, carries {own['carries']}.")
    print()
    for number, (name, deed, hurt) in enumerate(STORY, 1):
        line = {"namespace": "workflow", "key": f"turn-{number}", "value": f"{name} {deed}", **at}
        agents.call(name, "shared_memory_write", **line)
        if hurt:
            mine = agents.call(name, "shared_memory_read", **sheet).result
            hit = {**mine["value"], "hp": mine["value"]["hp"] + hurt}
            agents.call(name, "shared_memory_write", value=hit, expected_version=mine["version"], **sheet)
    log = agents.call("Thorgrim", "shared_memory_list", namespace="workflow", **at).result["items"]
    for entry in log:
        print(f"  {entry['value']}  [written by {entry['written_by']['agent']}]")
    print()
    for name in SHEETS:
        own = agents.call(name, "shared_memory_read", **sheet).result["value"]
        agents.call(name, "remember", key=run, content=f"I ended the evening with {own['hp']} hp.")
        print(f"{name} remembers: {agents.call(name, 'recall', key=run).result['content']}")
    agents.call("Luna", "share_finding", team="party", key=run, content="The door likes good manners.")


def adventure(at: Path) -> None:
    """Two evenings at the table of one player."""
    with Alcove(at) as memory:
        agents = memory.agents(SPECS).as_user("game-master")
        for run in ("first-evening", "second-evening"):
            evening(agents, run)
        known = agents.call("Pip", "list_shared", team="party").result["items"]
        print(f"\nThe party knows, after {len(known)} evenings: {known[0]['content']}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        adventure(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            adventure(Path(folder) / "memory.db")
