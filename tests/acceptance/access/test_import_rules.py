"""Who may import what is the policy's to say, and what operators do to others' memories is on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alcove import Alcove
from tests.support.concurrent_workers import QUIET

NO_IMPORTS = """package memories.authz
default decision := {"allow": false, "reason": "no imports here"}
decision := {"allow": true} if input.operation in ["read", "write", "delete"]
decision := {"allow": true} if {
	input.operation == "import"
	input.value.kind == "note"
}
"""


def line(user: str, **value: object) -> bytes:
    return json.dumps({"namespace": ["user", user], "key": "k", "value": value}).encode()


@pytest.fixture
def memory(path: Path) -> Alcove:
    return Alcove(path, settings=QUIET, embedder=None)


def test_an_admin_imports_anywhere_and_others_where_they_may_write(memory: Alcove) -> None:
    with memory:
        assert memory.import_memories([line("alice", n=1)]).imported == 1
        assert memory.import_memories([line("alice", n=1)]).unchanged == 1
        alice, bob = memory.as_user("alice"), memory.as_user("bob")
        assert alice.import_memories([line("alice", n=2)]).imported == 1
        for value in (1, 2):  # and is not told whether it is the same
            report = bob.import_memories([line("alice", n=value)])
            assert (report.imported, report.unchanged, report.failures) == (0, 0, 1)
            assert "not yours" in report.failed[0].error


def test_a_policy_may_refuse_an_admins_import_by_what_is_in_it(path: Path, tmp_path: Path) -> None:
    (tmp_path / "authz.rego").write_text(NO_IMPORTS)
    with Alcove(path, settings=QUIET, policy_dir=tmp_path, embedder=None) as memory:
        memory.as_user("alice").put("user:alice", "k", {"n": 1})
        report = memory.import_memories([line("alice", n=1), line("alice", kind="note")])
        assert (report.imported, report.unchanged) == (1, 0)
        assert [(each.line, "no imports here" in each.error) for each in report.failed] == [(1, True)]


def test_an_import_is_on_record_for_everybody_whose_rooms_it_wrote_to(memory: Alcove) -> None:
    with memory:
        memory.as_user("root", roles=["admin"]).import_memories(
            [line("alice", n=1), line("bob", n=1), line("bob", n=2)]
        )
        memory.import_memories([line("carol", n=1), line("carol", n=1)])
        for user, actor, count in (("alice", "root", 1), ("bob", "root", 2), ("carol", "noop", 2)):
            (entry,) = memory.admin.audit(user=user).entries
            assert (entry.action, entry.actor) == ("memories.import", actor)
            assert entry.details == {"count": count}


def test_a_review_is_on_record_like_an_export(memory: Alcove) -> None:
    with memory:
        memory.as_user("alice").put("user:alice", "k", {"n": 1})
        memory.as_user("aud", roles=["auditor"]).admin.memories_of("alice")
        [*memory.as_user("aud", roles=["auditor"]).admin.export("alice")]
        found = [(entry.action, entry.actor) for entry in memory.admin.audit(user="alice").entries]
        assert found == [("user.export", "aud"), ("user.review", "aud")]
