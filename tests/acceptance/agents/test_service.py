"""What the service does around agents: wipes that reach every room, specs that follow their file, streams."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.agent_service import SPECS, Player, Table
from tests.support.service import assert_error, serving
from tests.support.store_inspection import raw_bytes
from tests.support.tokens import FLAGS, token
from tests.support.waiting import PATIENCE, until
from tests.support.worker_connections import one_client_each


@contextmanager
def laid(folder: Path, specs: str = SPECS) -> Iterator[Table]:
    """A table of one's own."""
    (file := folder / "agents.yaml").write_text(specs)
    with serving(folder, *FLAGS, "--agents", file) as service:
        yield Table(service, file)


def wiped(table: Table, player: Player) -> dict[str, Any]:
    answer = table.admin.ask("POST", f"/v1/admin/users/{player.name}/wipe", json={"wait": True})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_wipe_reaches_every_room_to_the_last_byte(tmp_path: Path) -> None:
    with laid(tmp_path) as table:
        alice, bob = table.known("zaphira"), table.known("bob")
        run, shared = "run-of-zaphira", "run-of-both"
        bob.ask("POST", "/v1/runs", json={"kind": "workflow", "id": shared, "members": [alice.name]})
        for player in (alice, bob):
            word = "quokkas" if player is alice else "wombats"
            where = {"session_id": f"session-{word}", "instances": {"workflow": run}}
            player.call("bot", "remember", where=where, key=f"k-{word}", content=f"likes {word}")
            player.call("bot", "learn_fact", key=f"k-{word}", content=f"saw {word}")
            player.call("bot", "memory_remember", content=f"fond of {word}", tags=[word], scope="all")
            player.call("bot", "memory_remember", content=f"feeds {word}", tags=[word])
            for kind in ("session", "agent") if player is bob else ("session", "agent", "workflow"):
                at = {**where, "instances": {"workflow": f"run-{word}"}} if kind == "agent" else where
                player.call(
                    "bot", "shared_memory_write", where=at, namespace=kind, key=f"k-{word}", value=word
                )
            player.refused(404, "bot", "recall", where=where, key="nothing")
            player.call("bot", "shared_memory_write", where={"instances": {"workflow": shared}},
                        namespace="workflow", key=player.name[:3], value="for both")  # fmt: skip
        assert alice.put("runs", "u", alice.name, key="odd").status_code == 200
        assert alice.put("runs", "planet", "mars", "u", alice.name, key="membership").status_code == 200
        receipt = wiped(table, alice)
        assert receipt["scrubbed"]
        assert receipt["key_destroyed"]
        left = table.admin.see("/v1/memories/namespaces")["namespaces"]
        assert not [room for room in left if alice.name in room or run in room], left
        until(lambda: b"zaphira" not in raw_bytes(table.service.at))
        until(lambda: b"quokkas" not in raw_bytes(table.service.at))
        assert bob.call("bot", "recall", key="k-wombats")
        assert bob.keys("bot", "shared_memory_list", where={"instances": {"workflow": shared}},
                        namespace="workflow") == ["bob", "zap"]  # fmt: skip
        assert alice.keys("bot", "list_memories") == []
        assert bob.call("bot", "shared_memory_write", where={"instances": {"workflow": run}},
                        namespace="workflow", key="k", value=1)["version"] == 1  # fmt: skip


def test_a_run_outlives_its_owner_only_while_there_are_members(table: Table) -> None:
    alice, bob, run = table.player("alice"), table.player("bob"), table.new_id()
    where: dict[str, Any] = {"where": {"instances": {"swarm": run}}, "namespace": "swarm"}
    alice.ask("POST", "/v1/runs", json={"kind": "swarm", "id": run, "members": [bob.name]})
    alice.call("bot", "shared_memory_write", key="k", value="left", **where)
    wiped(table, alice)
    read = bob.call("bot", "shared_memory_read", key="k", **where)
    assert (read["value"], read["written_by"]["user"]) == ("left", None)
    alice.refused(404, "bot", "shared_memory_read", key="k", **where)
    alice.refused(404, "bot", "shared_memory_write", key="k", value=1, **where)
    wiped(table, bob)
    assert ["swarm", run] not in table.admin.see("/v1/memories/namespaces", prefix=["swarm"])["namespaces"]
    carol = table.player("carol")
    carol.refused(404, "bot", "shared_memory_list", **where)
    assert carol.call("bot", "shared_memory_write", key="k", value=1, **where)["version"] == 1


def test_teams_are_shown_with_the_namespace_of_their_room(table: Table) -> None:
    rooms = {
        team["name"]: team["shared_memory_namespace"]
        for team in table.player(groups=["staff"]).see("/v1/teams")["teams"]
    }
    assert rooms == {"crew": "team:crew", "closed": "team:closed", "silent": None}


def test_a_spec_folder_with_nothing_in_it_says_so_at_the_start_and_when_asked(tmp_path: Path) -> None:
    (specs := tmp_path / "specs").mkdir()
    with serving(tmp_path, "--workers", 2, "--agents", specs) as service:
        said = service.call("GET", "/readyz").json()["checks"]["agents"]
        assert "no .yaml or .yml file" in said
        told = [line for line in service.lines if "no .yaml or .yml file" in line["event"]]
        (line,) = [line for line in told if line["event"].startswith("agent specs:")]
        assert line["level"] == "warning"


def test_a_membership_that_somebody_writes_for_themselves_opens_nothing(table: Table) -> None:
    alice, mallory, run = table.player("alice"), table.player("mallory"), table.new_id()
    where: dict[str, Any] = {"where": {"instances": {"debate": run}}, "namespace": "debate"}
    alice.call("bot", "shared_memory_write", key="k", value=1, **where)
    forged = {"role": "owner"}
    room = ("runs", "debate", run, "u", mallory.name)
    assert mallory.put(*room, key="membership", value=forged).status_code == 200
    for tool, more in (("read", {"key": "k"}), ("write", {"key": "k", "value": 2}), ("list", {})):
        mallory.refused(404, "bot", f"shared_memory_{tool}", **more, **where)
    for method, path in (("DELETE", f"/v1/runs/debate/{run}"),
                         ("DELETE", f"/v1/agents/bot/rooms/debate?instance={run}"),
                         ("GET", f"/v1/agents/bot/rooms/debate/events?instance={run}")):  # fmt: skip
        assert_error(mallory.ask(method, path), 404, "not_found")
    changed = alice.ask("PATCH", f"/v1/runs/debate/{run}", json={"members": []}).json()
    assert changed["members"] == [alice.name]
    line = json.dumps({"namespace": room, "key": "membership", "value": forged,
                       "written_by": {"user": mallory.name, "agent": "alcove"}})  # fmt: skip
    mallory.ask("POST", "/v1/memories/import", content=line.encode() + b"\n",
                headers={"content-type": "application/x-ndjson"})  # fmt: skip
    mallory.refused(404, "bot", "shared_memory_read", key="k", **where)


def test_specs_follow_their_file_and_a_broken_one_leaves_the_last_good(tmp_path: Path) -> None:
    with laid(tmp_path) as table:
        alice = table.player("alice")
        assert table.service.call("GET", "/readyz").json()["checks"]["agents"] == "ok"
        alice.call("plain", "remember", key="k", content="c")
        replaced(table.specs, SPECS.replace("max_facts: 3", "max_facts: 7"))
        until(lambda: alice.see("/v1/agents/bot")["memory"]["facts"]["max_facts"] == 7)
        replaced(table.specs, "agents: [{name: bot, memory: {privat: {}}}, {name: u}]")
        until(lambda: ready(table) != "ok")
        said = ready(table)
        assert "agents[0]" in said
        assert "agents[1]" in said
        assert "agents.yaml" in said
        assert table.service.call("GET", "/readyz").status_code == 200
        assert [line for line in table.service.lines if "last valid ones stay" in str(line)]
        assert alice.see("/v1/agents/bot")["memory"]["facts"]["max_facts"] == 7
        assert alice.call("plain", "recall", key="k")["content"] == "c"
        replaced(table.specs, "agents: [{name: plain, shared_with: [bob], memory: {private: {}}}]")
        until(lambda: ready(table) == "ok")
        alice.refused(404, "plain", "recall", key="k")
        alice.refused(404, "bot", "list_memories")
        assert table.known("bob").keys("plain", "list_memories") == []
        replaced(table.specs, "agents: [{name: plain, memory: {facts: {}, knowledge: {sources: [nowhere]}}}]")
        until(lambda: "nowhere" in ready(table))
        alice.refused(404, "plain", "recall", key="k")
        assert alice.call("plain", "learn_fact", content="c")


def ready(table: Table) -> str:
    admin = token("root", roles=["admin"])
    return str(table.service.call("GET", "/readyz", admin).json()["checks"]["agents"])


def replaced(file: Path, text: str) -> None:
    (new := file.with_suffix(".new")).write_text(text)
    os.replace(new, file)


def test_workers_agree_on_who_is_in_a_run(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    running = serving(tmp_path, *FLAGS, "--agents", specs, "--workers", 2)
    with running as service, one_client_each(service) as clients:
        where, path = {"instances": {"workflow": "w"}}, "/v1/agents/bot/tools/shared_memory_"
        players = [Player(service, name) for name in ("alice", "bob")]

        def ask(player: Player, worker: int, tool: str, **given: Any) -> int:
            body = {"arguments": {"namespace": "workflow", "key": player.name, **given}, **where}
            headers = {"authorization": f"Bearer {player.token}"}
            return clients[worker].post(path + tool, json=body, headers=headers).status_code

        with ThreadPoolExecutor(8) as pool:
            asked = [(players[n % 2], n // 2 % 2) for n in range(16)]
            statuses = [*pool.map(lambda each: ask(each[0], each[1], "write", value=1), asked)]
        of = [{statuses[n] for n in range(16) if n % 2 == who} for who in (0, 1)]
        assert of in ([{200}, {404}], [{404}, {200}])
        owner, other = players if of[0] == {200} else reversed(players)
        for members, status in (([other.name], 200), ([], 404)):
            owner.ask("PATCH", "/v1/runs/workflow/w", json={"members": members})
            assert [ask(other, worker, "write", value=2) for worker in (0, 1)] == [status, status]


def test_a_room_is_watched_by_its_members_until_they_are_let_go(table: Table) -> None:
    alice, bob, run = table.player("alice"), table.player("bob"), table.new_id()
    alice.ask("POST", "/v1/runs", json={"kind": "workflow", "id": run, "members": [bob.name]})
    path = f"/v1/agents/bot/rooms/workflow/events?instance={run}"
    seen: list[dict[str, Any]] = []
    started, ended = threading.Event(), threading.Event()

    def watch() -> None:
        headers = {"authorization": f"Bearer {bob.token}"}
        client = httpx.Client(base_url=table.service.url, timeout=PATIENCE, trust_env=False)
        with suppress(httpx.TransportError), client, client.stream("GET", path, headers=headers) as stream:
            for line in stream.iter_lines():
                started.set()
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]))
        ended.set()

    thread = threading.Thread(target=watch)
    thread.start()
    assert started.wait(PATIENCE)
    where: dict[str, Any] = {"instances": {"workflow": run}}
    alice.call("bot", "remember", where=where, key="private", content="c")
    for number in range(3):
        alice.call("bot", "shared_memory_write", where=where, namespace="workflow", key="k", value=number)
    until(lambda: len(seen) >= 3)
    alice.ask("PATCH", f"/v1/runs/workflow/{run}", json={"members": []})
    alice.call("bot", "shared_memory_write", where=where, namespace="workflow", key="k", value="after")
    assert ended.wait(PATIENCE)
    thread.join()
    assert [(event["kind"], event["namespace"], event["value"]["value"]) for event in seen] == [
        ("add" if number == 0 else "update", ["workflow", run], number) for number in range(3)
    ]
    assert_error(bob.ask("GET", path), 404, "not_found")
    assert_error(table.player().ask("GET", path), 404, "not_found")
    assert_error(alice.ask("GET", "/v1/agents/plain/rooms/workflow/events"), 400, "invalid_request")
