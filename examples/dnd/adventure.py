"""Five players in one adventure, and none of them gets another's character.

    python examples/dnd/adventure.py

All five write `character_sheet`. The key is the same, the rooms are not: each player reads their own sheet
back, at version 1. The party's log is one room for all of them. The team's room lasts beyond the evening,
and the second evening begins with empty sheets.
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
    """Plays one run of the workflow, from empty sheets to the end of the story."""
    instances: dict[str, Any] = {"instances": {"workflow": run}}
    sheet = {"namespace": "agent", "key": "character_sheet", **instances}
    print(f"\n== {run} ==")
    for name, expected in SHEETS.items():
        try:
            agents.call(name, "shared_memory_read", **sheet)
            raise AssertionError(f"{name} has a sheet from another evening")
        except NotFound:
            result = agents.call(name, "shared_memory_write", value=expected, **sheet).result
            assert result["version"] == 1
    for name, expected in SHEETS.items():
        own = agents.call(name, "shared_memory_read", **sheet).result["value"]
        assert own == expected, f"{name} has the sheet {own}"
        print(f"{name} the {own['class']}, {own['hp']} hp, carries {own['carries']}.")
    print()
    for number, (name, deed, hurt) in enumerate(STORY, 1):
        line = {"namespace": "workflow", "key": f"turn-{number}", "value": f"{name} {deed}", **instances}
        agents.call(name, "shared_memory_write", **line)
        if hurt:
            current = agents.call(name, "shared_memory_read", **sheet).result
            hit = {**current["value"], "hp": current["value"]["hp"] + hurt}
            agents.call(name, "shared_memory_write", value=hit, expected_version=current["version"], **sheet)
    log = agents.call("Thorgrim", "shared_memory_list", namespace="workflow", **instances).result["items"]
    for entry in log:
        print(f"  {entry['value']}  [written by {entry['written_by']['agent']}]")
    print()
    for name in SHEETS:
        own = agents.call(name, "shared_memory_read", **sheet).result["value"]
        agents.call(name, "remember", key=run, content=f"I ended the evening with {own['hp']} hp.")
        print(f"{name} remembers: {agents.call(name, 'recall', key=run).result['content']}")
    agents.call("Luna", "share_finding", team="party", key=run, content="The door likes good manners.")


def adventure(path: Path) -> None:
    """Plays two evenings for one user, the game master."""
    with Alcove(path) as memory:
        agents = memory.agents(SPECS).as_user("game-master")
        for run in ("first-evening", "second-evening"):
            evening(agents, run)
        findings = agents.call("Pip", "list_shared", team="party").result["items"]
        print(f"\nThe party knows, after {len(findings)} evenings: {findings[0]['content']}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        adventure(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            adventure(Path(folder) / "memory.db")
