"""The adventure in examples/dnd, as it is told and with five players who all play at once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from alcove import Alcove, Conflict, NotFound
from alcove.client.store import AgentsHandle
from tests.support.concurrent_workers import QUIET
from tests.support.service import environment
from tests.support.store_inspection import assert_sound
from tests.support.waiting import PATIENCE

EXAMPLE = Path(__file__).parents[3] / "examples" / "dnd"
PLAYERS = ("Eldrin", "Luna", "Thorgrim", "Mira", "Pip")
OPERATIONS = 200
RUN = {"workflow": "the run"}


def test_the_adventure_is_told_to_its_end() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE / "adventure.py"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    for evening in done.stdout.split("== second-evening =="):
        for player in PLAYERS:
            assert f"{player} the " in evening
            assert f"[written by {player}]" in evening
            assert f"{player} remembers: I ended the evening" in evening
    assert "after 2 evenings" in done.stdout


def test_five_who_play_at_once_are_five(path: Path) -> None:
    """Each does 200 operations on the one key that all of them use, and on a log that all of them share."""
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        agents = memory.agents(EXAMPLE / "agents.yaml").as_user("game-master")
        gate = threading.Barrier(len(PLAYERS))

        def play(player: str) -> int:
            gate.wait()
            return _played(agents, player)

        with ThreadPoolExecutor(len(PLAYERS)) as pool:
            noted = dict(zip(PLAYERS, pool.map(play, PLAYERS), strict=True))
        log = agents.call("Pip", "shared_memory_list", namespace="workflow", instances=RUN).result["items"]
        for player in PLAYERS:
            lines = [each for each in log if each["written_by"]["agent"] == player and each["key"] != "gold"]
            assert len(lines) == noted[player]
            assert all(each["key"].startswith(player) for each in lines)
        gold = next(each for each in log if each["key"] == "gold")
        assert gold["value"] == gold["version"], "an update was lost"
        assert len([*agents.calls_of("Luna")]) >= OPERATIONS
        assert_sound(memory)


def _played(agents: AgentsHandle, player: str) -> int:
    """One player's operations against what they must give; how many lines they wrote to the log."""
    chance = random.Random(player)
    sheet: dict[str, Any] = {"namespace": "agent", "key": "character_sheet", "instances": RUN}
    value: dict[str, Any] | None = None
    version = lines = 0
    for number in range(OPERATIONS):
        match chance.choice(("write", "write", "read", "read", "delete", "log", "gold")):
            case "write":
                new, expected = {"player": player, "turn": number}, version if value else 0
                written = agents.call(
                    player, "shared_memory_write", value=new, expected_version=expected, **sheet
                )
                version, value = written.result["version"], new
            case "read" if value is None:
                _absent(agents, player, sheet)
            case "read":
                found = agents.call(player, "shared_memory_read", **sheet).result
                assert (found["value"], found["version"]) == (value, version)
            case "delete" if value is not None and chance.random() < 0.2:
                agents.call(player, "shared_memory_delete", **sheet)
                value = None
                _absent(agents, player, sheet)
            case "log":
                key = f"{player} {number}"
                agents.call(player, "shared_memory_write", namespace="workflow", key=key, value=number,
                            instances=RUN, expected_version=0)  # fmt: skip
                lines += 1
            case _:
                _one_more_gold(agents, player)
    return lines


def _absent(agents: AgentsHandle, player: str, sheet: dict[str, Any]) -> None:
    try:
        found = agents.call(player, "shared_memory_read", **sheet)
    except NotFound:
        return
    raise AssertionError(f"{player} has {found}")


def _one_more_gold(agents: AgentsHandle, player: str) -> None:
    """A counter that all of them raise, each time from the version they saw."""
    gold: dict[str, Any] = {"namespace": "workflow", "key": "gold", "instances": RUN}
    while True:
        try:
            seen = agents.call(player, "shared_memory_read", **gold).result
        except NotFound:
            seen = {"value": 0, "version": 0}
        try:
            agents.call(
                player,
                "shared_memory_write",
                value=seen["value"] + 1,
                expected_version=seen["version"],
                **gold,
            )
            return
        except Conflict:
            continue
