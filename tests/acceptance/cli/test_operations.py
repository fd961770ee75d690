"""Every operation of the service has a command, on a file and on a URL alike."""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from pathlib import Path

import click
import httpx
import pytest

from alcove import Alcove
from alcove.cli import main
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET

COMMANDS = {
    "GET /v1/me": "whoami",
    "PUT /v1/memories": "put",
    "GET /v1/memories": "get",
    "DELETE /v1/memories": "delete",
    "POST /v1/memories/touch": "touch",
    "POST /v1/memories/list": "list",
    "POST /v1/memories/search": "search",
    "POST /v1/memories/batch": "batch",
    "GET /v1/memories/namespaces": "namespaces",
    "GET /v1/memories/tree": "tree",
    "GET /v1/memories/newest": "newest",
    "GET /v1/memories/activity": "activity",
    "GET /v1/memories/map": "map",
    "GET /v1/memories/events": "events",
    "GET /v1/memories/history": "history",
    "GET /v1/memories/events/stream": "events --follow",
    "GET /v1/memories/export": "export",
    "POST /v1/memories/import": "import",
    "GET /v1/admin/users/{user}": "held",
    "GET /v1/admin/users/{user}/memories": "review",
    "DELETE /v1/admin/users/{user}/memories/{id}": "remove",
    "GET /v1/admin/users/{user}/export": "export --of-user",
    "POST /v1/admin/users/{user}/wipe": "wipe",
    "POST /v1/admin/receipts/verify": "receipt verify",
    "GET /v1/admin/policies": "policy show",
    "PUT /v1/admin/policies": "policy put",
    "POST /v1/admin/policies/test": "policy test",
    "GET /v1/admin/settings": "settings",
    "PUT /v1/admin/settings": "settings",
    "GET /v1/admin/index": "index",
    "POST /v1/admin/index/trigger": "index --retry",
    "GET /v1/admin/keys": "keys",
    "POST /v1/admin/keys/rotate": "rotate-keys",
    "GET /v1/admin/stats": "stats",
    "GET /v1/admin/audit": "audit",
    "GET /v1/admin/doctor": "doctor",
    "GET /v1/admin/backup": "backup",
    "GET /v1/admin/apikeys": "apikey list",
    "POST /v1/admin/apikeys": "apikey create",
    "DELETE /v1/admin/apikeys/{id}": "apikey revoke",
    "GET /v1/agents": "agents",
    "GET /v1/teams": "agents --teams",
    "GET /v1/agents/{agent}": "agent",
    "GET /v1/agents/{agent}/memory": "agent",
    "GET /v1/agents/{agent}/tools": "agent",
    "POST /v1/agents/{agent}/context": "context",
    "POST /v1/agents/{agent}/sessions/{session}/turns": "session add",
    "PUT /v1/agents/{agent}/sessions/{session}/turns/last": "session remove-last",
    "GET /v1/agents/{agent}/sessions": "session list",
    "GET /v1/agents/{agent}/sessions/{session}": "session show",
    "POST /v1/agents/{agent}/sessions/{session}/end": "session end",
    "DELETE /v1/agents/{agent}/sessions/{session}": "session delete",
    "DELETE /v1/agents/{agent}/sessions": "session keep",
    "GET /v1/agents/{agent}/summary": "summary show",
    "DELETE /v1/agents/{agent}/summary": "summary forget",
    "GET /v1/knowledge": "knowledge status",
    "POST /v1/knowledge/{source}/sync": "knowledge sync",
    "GET /v1/knowledge/{source}/documents": "knowledge documents",
    "GET /v1/knowledge/{source}/documents/{name}": "knowledge show",
    "PUT /v1/knowledge/{source}/documents/{name}": "knowledge put",
    "DELETE /v1/knowledge/{source}/documents/{name}": "knowledge remove",
    "POST /v1/knowledge/{source}/search": "knowledge search",
    "POST /v1/agents/{agent}/tools/{tool}": "call",
    "GET /v1/agents/{agent}/calls": "agent",
    "GET /v1/agents/{agent}/rooms/{kind}": "room stats",
    "GET /v1/agents/{agent}/rooms/{kind}/events": "room watch",
    "DELETE /v1/agents/{agent}/rooms/{kind}": "room reset",
    "GET /v1/agents/{agent}/usage": "agent",
    "POST /v1/agents/{agent}/chat": "chat",
    "POST /v1/teams/{team}/run": "team run",
    "GET /v1/runs": "runs",
    "POST /v1/runs": "run open",
    "PATCH /v1/runs/{kind}/{id}": "run change",
    "DELETE /v1/runs/{kind}/{id}": "run close",
}
"""The command that does what each operation does, with the option that makes it do so."""
FOR_MACHINES = {
    "GET /healthz", "GET /readyz", "GET /metrics", "POST /v1/chat/completions", "GET /v1/models",
    "GET /v1/models/{model}",
}  # fmt: skip


def test_every_operation_of_the_service_has_a_command(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert served - FOR_MACHINES == set(COMMANDS)


@pytest.mark.parametrize("words", sorted({*COMMANDS.values(), "reindex", "restore"}))
def test_the_command_is_there_and_explains_itself(words: str) -> None:
    command: click.Command = main
    for word in words.split():
        if word.startswith("--"):
            assert word in [option for parameter in command.params for option in parameter.opts]
        else:
            assert isinstance(command, click.Group)
            command = command.commands[word]
    assert command.help
    assert "alcove " in command.help or not command.params[0].required
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_touch_changes_when_a_memory_expires(command: Command) -> None:
    command.run("put", command.room, "tea", "cups=2", "--ttl", "1h")
    before = command.json("get", command.room, "tea")
    text = command.says("touch", command.room, "tea", "--ttl", "7d")
    assert text.startswith(f"tea in {command.room}: revision 1, until ")
    after = command.json("get", command.room, "tea")
    assert after["expires_at"] > before["expires_at"]
    assert command.says("touch", command.room, "tea").endswith("revision 1, never expires\n")
    assert command.json("get", command.room, "tea")["expires_at"] is None
    assert "does not exist" in command.refuses("touch", command.room, "coffee", code=1)


@pytest.mark.parametrize("wrong", ["soon", "-1", "1.5", "0.4s", "1w", "1h30m", "", "9" * 400, "NaN", "1e3"])
def test_a_duration_is_whole_seconds_or_has_a_letter(command: Command, wrong: str) -> None:
    assert "expected whole seconds" in command.refuses("put", command.room, "k", "n=1", "--ttl", wrong)


def test_durations_have_the_length_they_say(command: Command) -> None:
    for typed, seconds in (("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("7d", 604_800)):
        written = command.json("put", command.room, "k", "n=1", "--ttl", typed)
        created, expires = (datetime.fromisoformat(written[name]) for name in ("created_at", "expires_at"))
        assert round((expires - created).total_seconds()) == seconds, typed


def test_a_batch_is_all_or_nothing(command: Command, tmp_path: Path) -> None:
    room = command.room
    file = tmp_path / "operations.jsonl"
    operations: list[dict[str, object]] = [
        {"op": "put", "namespace": room, "key": "a", "value": {"n": 1}},
        {"op": "get", "namespace": room, "key": "absent"},
        {"op": "get", "namespace": room, "key": "a"},
        {"op": "touch", "namespace": room, "key": "a", "ttl_seconds": 60},
        {"op": "delete", "namespace": room, "key": "a"},
    ]
    file.write_text("\n\n".join(map(json.dumps, operations)))
    header, *rows = command.says("batch", file).splitlines()
    assert header.split() == ["op", "namespace", "key", "rev", "value"]
    assert [row.split()[:1] + row.split()[2:] for row in rows] == [
        ["put", "a", "1"], ["get", "absent", "none"], ["get", "a", "1", '{"n":1}'], ["touch", "a", "1"],
        ["delete", "a", "2"],
    ]  # fmt: skip
    results = command.json("batch", "-", stdin=file.read_text())["results"]
    assert [each and each["revision"] for each in results] == [3, None, 3, 3, 4]
    wrong = [{**operations[0], "key": "b"}, {**operations[0], "op": "fly"}]
    assert "op" in command.refuses("batch", "-", stdin="\n".join(map(json.dumps, wrong)))
    command.refuses("get", room, "b", code=1)
    assert "line 2" in command.refuses("batch", "-", stdin=f"{json.dumps(operations[0])}\n[]\n")
    assert command.run("batch", "-", stdin="").stderr == "no operations\n"


def test_stats_and_keys_are_tables_with_what_is_in_them(command: Command) -> None:
    command.run("put", command.room, "k", "n=1")
    header, *rows = command.says("stats").splitlines()
    assert header.split() == ["root", "memories", "versions", "bytes"]
    assert [row.split()[0] for row in rows][-2:] == ["user", "in"]
    found = command.json("stats")
    assert found["memories"] == sum(root["memories"] for root in found["roots"])
    known = command.json("keys")
    assert [row.split()[:2] for row in command.says("keys").splitlines()[1:]] == [[known["active"], "yes"]]


def test_settings_are_shown_changed_and_taken_back(command: Command) -> None:
    before = command.json("settings")
    assert f"max_batch          {before['max_batch']:,}\n" in command.says("settings")
    try:
        changed = command.json("settings", "retention_days=12h", "max_batch=999")
        assert changed == {**before, "retention_days": 0.5, "max_batch": 999}
        assert command.json("settings") == changed
    finally:
        assert command.json("settings", "retention_days=null", '{"max_batch": null}') == before
    assert "retention_days" in command.refuses("settings", "retention_days=soon")
    assert "nope" in command.refuses("settings", "nope=1")


def test_policies_are_put_and_taken_back(command: Command, tmp_path: Path) -> None:
    assert "--reset" in command.refuses("policy", "put")
    assert "authz.rego" in command.refuses("policy", "put", "--dir", tmp_path)
    text = "# ours\n" + command.says("policy", "show", "filter")
    (tmp_path / "filter.rego").write_text(text)
    try:
        assert command.says("policy", "put", "--dir", tmp_path).startswith("put by an admin: filter;")
        assert command.says("policy", "show", "filter") == text
        (tmp_path / "filter.rego").write_text("package memories.filter\nnamespace_prefix := ")
        assert "filter" in command.refuses("policy", "put", "--dir", tmp_path)
    finally:
        assert command.json("policy", "put", "--reset")["stored"] == []


def test_the_audit_log_is_read_newest_first_by_user_and_action(command: Command) -> None:
    user = f"ann-{uuid.uuid4().hex[:6]}"
    for _ in range(3):
        command.run("review", user)
    entries = command.lines("audit", "--user", user)
    assert [entry["action"] for entry in entries] == ["user.review"] * 3
    assert command.lines("audit", "--user", user, "--action", "user.wipe") == []
    assert len(command.lines("audit", "--user", user, "--limit", 2)) == 2
    header, row = command.says("audit", "--user", user, "--limit", 1).splitlines()
    assert header.split() == ["when", "actor", "action", "subject", "details"]
    assert row.split()[2:4] == ["noop", "user.review"]
    assert command.run("audit", "--action", "nothing").stderr == "the audit log has no such entry\n"


def test_a_memory_is_found_by_review_and_removed(command: Command) -> None:
    user = f"ann-{uuid.uuid4().hex[:6]}"
    with Alcove(command.path, settings=QUIET) as store:
        for key in ("kept", "gone"):
            store.as_user(user).put(("user", user, "notes"), key, {"text": f"a {key} thing"})
    ids = {each["key"]: each["id"] for each in command.lines("review", user)}
    told = command.says("review", user).splitlines()
    assert told[0].endswith(f"  user:{user}:notes")
    assert [line.strip() for line in told[1:3]] == ['kept: {"text":"a kept thing"}', ids["kept"]]
    assert told[5].strip() == ids["gone"]
    assert "--yes" in command.refuses("remove", user, ids["gone"])
    assert command.says("remove", user, ids["gone"], "--yes") == f"removed {ids['gone']}\n"
    assert [each["key"] for each in command.lines("review", user)] == ["kept"]
    assert "no such memory" in command.refuses("remove", user, ids["gone"], "--yes", code=1)
    assert len(command.lines("review", user, "--limit", 1)) == 1
    assert command.run("review", "nobody").stderr == "nothing is stored about nobody\n"
