"""Whoever reads other people's memories by a role leaves an entry in the audit log, by every operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from alcove import Alcove, Grant, Principal, Settings, Unavailable
from alcove.agents.runs import OVERSEER
from alcove.api.operation import operations
from alcove.api.operations import MemoryOperations
from alcove.core import cursor
from alcove.core.clock import to_datetime
from alcove.core.namespace import Namespace
from alcove.core.records import AuditEntry, SearchMode, SearchResults
from alcove.engine.administration import Administration
from alcove.engine.rows import AuditRow
from alcove.store import audit
from tests.contract.conftest import Open
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag

OPEN = {
    "authz": 'package memories.authz\ndecision := {"allow": true}',
    "filter": """package memories.filter
namespace_prefix := input.namespace_prefix
attribute_filter := {}
""",
}
"""A policy that lets everybody read everything, as one of an operator's own may."""
ILLNESS = "user:alice:illness"
FIRST = cursor.encode(0)
Call = Callable[[Alcove], object]
READS: dict[str, Call] = {
    "get": lambda store: store.get(ILLNESS, "k0"),
    "search": lambda store: store.search(ILLNESS),
    "list": lambda store: store.list(ILLNESS),
    "batch": lambda store: store.batch([{"op": "get", "namespace": ILLNESS, "key": "k0"}]),
    "newest": lambda store: store.newest(ILLNESS),
    "activity": lambda store: store.activity(ILLNESS),
    "map": lambda store: store.map(ILLNESS),
    "events": lambda store: store.events(ILLNESS),
    "history": lambda store: store.history(ILLNESS, "k0"),
    "follow": lambda store: next(iter(store.follow(ILLNESS, after_cursor=FIRST))),
    "export_memories": lambda store: [*store.export_memories(ILLNESS)],
}
SHOW_NO_MEMORIES = {"whoami", "put", "delete", "touch", "namespaces", "tree"}
"""Operations that answer with counts and names of namespaces, or with what the caller wrote."""
MORE_READS: dict[str, tuple[str, Call]] = {
    "a get of a past moment": (
        "get",
        lambda store: store.get(ILLNESS, "k0", as_of=store.memories.now()),
    ),
    "a search with a query": ("search", lambda store: store.search(ILLNESS, query="cough")),
    "a search of a past moment": (
        "search",
        lambda store: store.search(ILLNESS, query="cough", as_of=store.memories.now()),
    ),
}


@pytest.fixture
def store(open_store: Open) -> Alcove:
    """A store with two memories of alice, in which a policy of the operator's lets anybody read them."""
    store = open_store()
    alice = store.as_user("alice")
    for n in range(2):
        alice.put(ILLNESS, f"k{n}", {"text": "I cough", "type": "symptom", "n": n}, index=["text"])
    assert alice.search(ILLNESS, query="cough", wait_for_index=True)
    store.admin.put_policies(OPEN)
    return store


@pytest.fixture
def root(store: Alcove) -> Alcove:
    return store.as_user("root", roles=["admin"])


def reads(store: Alcove, **asked: Any) -> list[AuditEntry]:
    return store.admin.audit(action="memories.read", **asked).entries


def pseudonym(store: Alcove, name: str) -> str:
    return store.memories.pseudonym(name)


def test_every_operation_is_either_recorded_or_shows_no_memories() -> None:
    assert {each.name for each in operations(MemoryOperations)} == READS.keys() | SHOW_NO_MEMORIES


@pytest.mark.parametrize("role", ["admin", "auditor"])
@pytest.mark.parametrize("name", [*READS, *MORE_READS])
def test_a_read_of_somebody_elses_memories_by_a_role_is_recorded(store: Alcove, name: str, role: str) -> None:
    operation, call = MORE_READS.get(name) or (name.removesuffix("_memories"), READS[name])
    call(store.as_user("root", roles=[role]))
    (entry,) = reads(store)
    assert (entry.actor, entry.subject) == ("root", pseudonym(store, "alice"))
    assert entry.details == {
        "operation": operation,
        "scope": f"user:{pseudonym(store, ILLNESS)[:16]}",
        "reads": 1,
        "count": 1 if operation in ("get", "batch", "history") else 2,
    }
    assert reads(store, user="alice") == reads(store, user="root") == [entry]
    assert reads(store, user="bob") == []


@pytest.mark.parametrize("name", READS)
def test_a_read_of_ones_own_memories_is_not_recorded(store: Alcove, name: str) -> None:
    READS[name](store.as_user("alice", roles=["admin"]))
    READS[name](store.as_user("alice"))
    assert reads(store) == []


def test_somebody_without_a_role_who_was_let_in_by_the_policy_is_not_recorded(store: Alcove) -> None:
    assert store.as_user("bob").search(ILLNESS)
    assert reads(store) == []


def test_counts_and_names_of_namespaces_are_not_recorded(store: Alcove, root: Alcove) -> None:
    assert root.tree()
    assert root.namespaces()
    assert root.memories.reader.count(root.principal) == root.admin.stats().memories == 2
    assert root.admin.held("alice").memories == 2
    assert reads(store) == []


def test_a_read_that_returns_nothing_is_not_recorded(store: Alcove, root: Alcove) -> None:
    assert root.get(ILLNESS, "elsewhere") is None
    assert root.search("user:bob") == []
    assert reads(store) == []


def test_an_entry_names_nobody_where_the_memories_of_several_people_were_read(
    store: Alcove, root: Alcove
) -> None:
    store.as_user("bob").put("user:bob", "k", {})
    root.put("user:root", "k", {})
    assert len(root.search()) == 4
    (entry,) = reads(store)
    assert entry.subject is None
    assert entry.details == {"operation": "search", "scope": "", "reads": 1, "count": 3}, "not their own"


def test_rooms_of_nobody_are_recorded_unless_a_grant_opens_them(store: Alcove, root: Alcove) -> None:
    for room in ("team:red", "team:blue", "knowledge:manuals:kettle"):
        store.put(room, "k", {"text": "ours"})
    granted = Principal("root", claims={"roles": ["admin"]}, grants=(Grant(Namespace(("team", "red"))),))
    assert len(store.as_principal(granted).search("team:red")) == 1
    assert len(root.search("knowledge")) == 1, "documents belong to nobody"
    assert reads(store) == []
    assert len(store.as_principal(granted).search("team")) == 2
    assert len(root.search("team")) == 2
    assert [(entry.subject, entry.details) for entry in reads(store)] == [
        (None, {"operation": "search", "scope": "team", "reads": 2, "count": 3})
    ]


def test_a_grant_does_not_open_what_belongs_to_somebody_else(store: Alcove) -> None:
    grant = Grant(Namespace.parse(ILLNESS))
    store.as_principal(Principal("root", claims={"roles": ["admin"]}, grants=(grant,))).search(ILLNESS)
    assert len(reads(store)) == 1


def test_what_the_service_reads_for_itself_is_not_recorded_but_a_user_of_its_name_is(store: Alcove) -> None:
    assert store.as_principal(OVERSEER).search(ILLNESS)
    assert reads(store) == []
    assert store.as_user(OVERSEER.user_id, roles=["admin"]).search(ILLNESS)
    assert [entry.actor for entry in reads(store)] == [OVERSEER.user_id]


def test_equal_reads_share_an_entry_for_a_minute(
    store: Alcove, root: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        root.newest(ILLNESS)
        root.search(ILLNESS)
    found = [
        (entry.details["operation"], entry.details["reads"], entry.details["count"]) for entry in reads(store)
    ]
    assert sorted(found) == [("newest", 50, 100), ("search", 50, 100)]
    monkeypatch.setattr(audit, "_READ_SECONDS", 0.0)  # which is over at once
    for _ in range(2):
        store.as_user("another", roles=["admin"]).newest(ILLNESS)
    assert [entry.details["reads"] for entry in reads(store, user="another")] == [1, 1]


def test_what_was_counted_is_written_when_the_store_is_closed(
    store: Alcove, root: Alcove, open_store: Open
) -> None:
    for _ in range(3):
        root.search(ILLNESS)
    store.close()
    assert [entry.details["reads"] for entry in reads(open_store())] == [3]


def test_the_first_read_is_in_the_store_before_it_is_answered(root: Alcove, open_store: Open) -> None:
    other = open_store()
    root.search(ILLNESS)
    assert [entry.actor for entry in reads(other)] == ["root"], "another process sees it at once"


def test_an_export_of_many_pages_is_one_entry(store: Alcove, root: Alcove) -> None:
    alice = store.as_user("alice")
    put = {"op": "put", "namespace": "user:alice:many", "value": {}}
    alice.batch([{**put, "key": f"k{n}"} for n in range(700)])
    assert len([*root.export_memories("user:alice:many")]) == 700
    (entry,) = reads(store)
    assert (entry.details["operation"], entry.details["count"]) == ("export", 700)


@pytest.mark.parametrize("name", READS)
def test_what_cannot_be_recorded_is_not_shown(
    store: Alcove, root: Alcove, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Administration, entry: AuditRow) -> int:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(Administration, "add_audit_entry", refuse)
    with pytest.raises(Unavailable, match="the audit log could not record this read: the disk is full"):
        READS[name](root)
    READS[name](store.as_user("alice"))  # own memories are shown all the same


def test_a_wipe_leaves_no_words_of_the_user_in_the_log(store: Alcove, root: Alcove) -> None:
    for call in READS.values():
        call(root)
    store.admin.wipe("alice")
    log = store.memories._engine.admin.audit(before=2**62, action=None, actor=None, subject=None, limit=1000)
    assert sum(row.action == "memories.read" for row in log) == len(READS)
    assert not [row for row in log if "alice" in str(row) or "illness" in str(row)]


def test_reads_counted_after_the_reader_was_wiped_do_not_bring_their_name_back(
    store: Alcove, root: Alcove
) -> None:
    root.search(ILLNESS)
    root.search(ILLNESS)
    store.admin.wipe("root")
    assert [(entry.actor, entry.details["reads"]) for entry in reads(store)] == [
        (pseudonym(store, "root"), 2)
    ]


def test_whoever_imports_a_right_guess_is_recorded(store: Alcove, root: Alcove) -> None:
    (line,) = (each for each in store.as_user("alice").export_memories() if each.key == "k0")
    put = {"namespace": [*line.namespace], "key": "k0", "value": line.value, "index": line.index}
    assert root.import_memories([msgspec.json.encode(put)]).unchanged == 1
    (entry,) = reads(store, user="alice")
    assert (entry.details["operation"], entry.details["count"]) == ("import", 1)
    put["value"] = {"text": "another"}
    assert root.import_memories([msgspec.json.encode(put)]).imported == 1
    assert len(reads(store)) == 1, "an import is in the log as an import"


def test_a_filter_cannot_ask_for_what_is_in_a_memory_unseen(store: Alcove, root: Alcove) -> None:
    store.as_user("alice").put("user:alice:secret", "k", {"pin": 1234})
    search: dict[str, Any] = {"query": "anything", "mode": "keyword"}
    assert root.search("user:alice:secret", filter={"pin": 1}, **search).unindexed is None
    assert reads(store) == []
    assert root.search("user:alice:secret", filter={"pin": 1234}, **search).unindexed == 1
    (entry,) = reads(store, user="alice")
    assert entry.details["count"] == 1


@pytest.mark.parametrize("mode", ["semantic", "keyword", "hybrid"])
@pytest.mark.parametrize("is_past", [False, True])
def test_a_filter_cannot_ask_unseen_for_what_waits_for_its_vectors(
    open_store: Open, clock: ManualClock, mode: SearchMode, is_past: bool
) -> None:
    idle = Settings(sweep_interval=0, indexing_interval=0)
    store = open_store(embedder=Bag(), settings=idle, clock=clock)
    for n in range(20):  # of the past, so many are ranked by words alone
        text = {"text": f"{'tea ' * 500}{n}"}
        store.as_user("alice").put("user:alice:secret", f"k{n}", {"pin": 1234}, index=text)
    root = store.as_user("root", roles=["admin"])
    moment = to_datetime(clock()) if is_past else None

    def search(pin: int) -> SearchResults:
        asked: dict[str, Any] = {"query": "milk", "mode": mode, "limit": 1, "as_of": moment}
        return root.search("user:alice:secret", filter={"pin": pin}, **asked)

    assert (search(1), search(1).degraded) == ([], None)
    assert reads(store) == []
    assert search(1234).degraded
    (entry,) = reads(store, user="alice")
    assert 1 <= entry.details["count"] <= 20


def test_a_review_and_an_export_of_a_user_are_one_entry_each_with_a_count(
    store: Alcove, root: Alcove
) -> None:
    store.as_user("alice").put(ILLNESS, "k0", {})
    assert len(root.admin.memories_of("alice").items) == 2
    assert len([*root.admin.export("alice")]) == 3
    found = [(entry.action, entry.details) for entry in store.admin.audit(user="alice").entries]
    assert found == [("user.export", {"count": 3}), ("user.review", {"count": 2})]


def test_the_log_is_bounded_in_memory_and_misses_nothing(
    store: Alcove, root: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_MAX_OPEN_READS", 1)
    for _ in range(2):
        root.search(ILLNESS)
        root.newest(ILLNESS)
    found: Sequence[AuditEntry] = reads(store)
    assert sorted((each.details["operation"], each.details["reads"]) for each in found) == [
        ("newest", 1), ("newest", 1), ("search", 2)
    ]  # fmt: skip
