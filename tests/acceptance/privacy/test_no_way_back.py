"""What was erased cannot be read by any road: a repeated request, or what was still to be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from alcove import Alcove, Get, Grant, Memory, Namespace, Principal, Put, Settings
from tests.support.clock import ManualClock
from tests.support.service import serving
from tests.support.store_inspection import raw_bytes
from tests.support.tokens import FLAGS, token

QUIET = Settings(sweep_interval=0)
DOCS = Namespace(("org", "docs"))
Erase = Callable[[Alcove, ManualClock], object]


def _retain(memory: Alcove, clock: ManualClock) -> None:
    """Retention takes a version away that was superseded long ago."""
    in_docs(memory, "carol").put(DOCS, "k", {"text": "another"})
    memory.admin.put_settings({"retention_days": 0.1})
    clock.advance(0.2 * 86_400)
    memory.sweep()


ERASING: dict[str, Erase] = {
    "a wipe that removes": lambda memory, clock: memory.wipe("alice", shared="remove"),
    "an admin's removal": lambda memory, clock: memory.admin.remove(
        "alice", memory.admin.memories_of("alice").items[0].id
    ),
    "retention": _retain,
}


def in_docs(memory: Alcove, user: str) -> Alcove:
    return memory.as_principal(Principal(user, grants=(Grant(DOCS),)))


@pytest.mark.parametrize("how", ERASING)
def test_a_repeated_request_does_not_bring_back_what_was_erased_since(
    path: Path, clock: ManualClock, how: str
) -> None:
    with Alcove(path, settings=QUIET, clock=clock, embedder=None) as memory:
        in_docs(memory, "alice").put(DOCS, "k", {"text": "a secret"}, index={"text": "MARKER"})
        request = [Get(namespace=DOCS, key="k"), Put(namespace=DOCS, key="mine", value={"n": 1})]
        bob = in_docs(memory, "bob")
        first, put = bob.batch(request, idempotency_key="once")
        assert isinstance(first, Memory)
        assert bob.batch(request, idempotency_key="once") == [first, put]
        ERASING[how](memory, clock)
        assert bob.batch(request, idempotency_key="once") == [None, put]
        if how != "retention":
            memory.sweep()
            assert b"MARKER" not in raw_bytes(path)


def test_a_repeated_put_shows_no_attributes_of_what_was_removed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "attributes.rego").write_text(
        'package memories.attributes\nattributes := {"topic": input.value.topic}\n'
    )
    with Alcove(path, settings=QUIET, policy_dir=tmp_path, embedder=None) as memory:
        alice = memory.as_user("alice")
        first = alice.put(("user", "alice"), "k", {"topic": "MARKER"}, idempotency_key="once")
        memory.admin.remove("alice", first.id)
        again = alice.put(("user", "alice"), "k", {"topic": "MARKER"}, idempotency_key="once")
        assert (again.id, again.revision, again.attributes) == (first.id, 1, {})
        memory.sweep()
        assert b"MARKER" not in raw_bytes(path)


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    (file := tmp_path / "agents.yaml").write_text("agents: [{name: bot, memory: {private: {}}}]")
    return file


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("has_a_key", [False, True])
def test_what_another_process_had_gathered_of_a_user_is_not_written_after_their_wipe(
    path: Path, specs: Path, *, has_a_key: bool, comes_back: bool
) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as one:
        with Alcove(path, settings=QUIET, embedder=None) as two:
            alice = two.agents(specs).as_user("alice")
            if has_a_key:
                alice.call("bot", "remember", key="k", content="c")
            else:
                in_docs(two, "alice").put(DOCS, "k", {"n": 1})
            alice.call("bot", "list_memories")
            assert one.wipe("alice").scrubbed
            if comes_back:
                one.as_user("alice").put("user:alice", "k", {"n": 1})
        # The other process ends: what it had to write is written.
        if comes_back:
            assert ("calls", "bot", "u", "alice") not in one.namespaces()
        else:
            assert b"alice" not in raw_bytes(path)


def test_a_process_that_did_not_see_a_wipe_records_the_calls_of_who_comes_back(
    path: Path, specs: Path
) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as one, Alcove(path, settings=QUIET) as two:
        alice = two.agents(specs).as_user("alice")
        alice.call("bot", "remember", key="k", content="c")
        one.wipe("alice")
        assert [*alice.calls_of("bot")] == []
        one.as_user("alice").put("user:alice", "k", {"n": 1})
        alice.call("bot", "list_memories")
        assert [call.tool for call in alice.calls_of("bot")] == ["list_memories"]


def test_an_access_log_has_pseudonyms_if_wished_which_the_audit_log_knows(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS, "--log-pseudonyms") as service:
        alice, root = token("alice-marker", azp="phone-marker"), token("root", roles=["admin"])
        answer = service.put(["user", "alice-marker"], "k", {"n": 1}, alice)
        (line,) = service.requests(answer.headers["x-request-id"])
        assert service.call("POST", "/v1/admin/users/alice-marker/wipe", root, json={}).is_success
        entries = service.call("GET", "/v1/admin/audit?action=user.wipe", root).json()["entries"]
        assert [entry["subject"] for entry in entries] == [line["user"]]
        assert len(line["client"]) == len(line["user"]) == 64
    assert "marker" not in service.log
