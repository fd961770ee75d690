"""Writes as futures, and calls that say that they would block: nothing is done twice, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from alcove import Alcove, Conflict, PermissionDenied, Principal
from alcove.core.threads import WouldBlock, WouldWait, on_event_loop, without_waiting
from alcove.store.writer import PendingWrite, Writer
from tests.contract.conftest import Open

HOME = ("user", "alice")
ALICE = Principal("alice")
OPEN = 'package memories.authz\ndecision := {"allow": true}'
CLOSED = 'package memories.authz\ndecision := {"allow": false, "reason": "closed"}'


def begin(store: Alcove, key: str, value: dict[str, Any], **more: Any) -> PendingWrite[Any]:
    put: Any = Writer.put
    return put.begin(store.memories.writer, ALICE, HOME, key, value, **more)  # type: ignore[no-any-return]


def actions(store: Alcove, action: str) -> list[dict[str, Any]]:
    return [each.details for each in store.admin.audit(action=action).entries]


def test_a_write_that_was_begun_comes_with_its_result(memory: Alcove, alice: Alcove) -> None:
    pending = begin(memory, "k", {"n": 1})
    entry = pending.result()
    assert (entry.key, entry.revision) == ("k", 1)
    assert pending.result() == entry, "asking again writes nothing"
    assert [each.revision for each in alice.history(HOME, "k")] == [1]


def test_writes_that_were_begun_share_a_commit_and_are_ordered(memory: Alcove, alice: Alcove) -> None:
    first, second = begin(memory, "k", {"n": 1}), begin(memory, "k", {"n": 2}, expected_revision=1)
    assert second.result().revision == 2
    assert first.result().revision == 1
    third = begin(memory, "k", {"n": 3}, expected_revision=1)
    with pytest.raises(Conflict) as refused:
        third.result()
    assert "operation" not in refused.value.details


def test_rules_that_were_put_since_a_write_was_begun_decide_it(memory: Alcove, alice: Alcove) -> None:
    memory.admin.put_policies({"authz": OPEN})
    begin(memory, "before", {}).result()
    pending = begin(memory, "k", {})
    memory.admin.put_policies({"authz": CLOSED})
    with pytest.raises(PermissionDenied, match="closed"):
        pending.result()
    memory.open_store.admin.audit(Principal("root", claims={"roles": ["admin"]}))  # writes what was counted
    denied = actions(memory, "denied")
    assert [(each["operation"], each["count"]) for each in denied] == [("write", 1)]


def test_a_wipe_since_a_write_was_begun_seals_it_under_a_new_key(memory: Alcove, alice: Alcove) -> None:
    begin(memory, "before", {}).result()
    pending = begin(memory, "k", {"n": 1})
    memory.wipe("alice")
    assert pending.result().revision == 1
    assert alice.get(HOME, "k").value == {"n": 1}  # type: ignore[union-attr]
    assert alice.get(HOME, "before") is None


def test_an_event_loop_does_not_wait_for_a_newcomers_key(memory: Alcove, alice: Alcove) -> None:
    with pytest.raises(WouldWait):
        on_event_loop(lambda: begin(memory, "k", {}))
    assert alice.history(HOME, "k") == []
    alice.put(HOME, "other", {})
    pending = on_event_loop(lambda: begin(memory, "k", {}))
    pending.commit.wait()
    assert on_event_loop(pending.result).key == "k"


def test_an_event_loop_does_not_decide_anew(memory: Alcove, alice: Alcove) -> None:
    memory.admin.put_policies({"authz": OPEN})
    alice.put(HOME, "k", {})
    pending = on_event_loop(lambda: begin(memory, "k", {"n": 2}))
    memory.admin.put_policies({"authz": f"{OPEN}\n"})
    pending.commit.wait()
    with pytest.raises(WouldWait):
        on_event_loop(pending.result)
    assert pending.result().revision == 2
    assert len(alice.history(HOME, "k")) == 2


@pytest.mark.parametrize("restricted", [on_event_loop, without_waiting])
def test_a_read_that_has_to_be_recorded_is_recorded_once(
    open_store: Open, restricted: Callable[[Callable[[], object]], object]
) -> None:
    store = open_store()
    store.as_user("alice").put(HOME, "k", {})
    root = Principal("root", claims={"roles": ["admin"]})
    store.admin.put_policies({"authz": OPEN})
    store.memories.reader.get(Principal("alice"), HOME, "k")  # by the new rules

    def read() -> object:
        return store.memories.reader.get(root, HOME, "k")

    with pytest.raises(WouldBlock):
        restricted(read)
    assert actions(store, "memories.read") == []
    assert read()
    assert [each["reads"] for each in actions(store, "memories.read")] == [1]


def test_imports_and_reads_of_a_batch_are_recorded_once(memory: Alcove, alice: Alcove) -> None:
    alice.put(HOME, "k", {})
    memory.admin.put_policies({"authz": OPEN})
    root = Principal("root", claims={"roles": ["admin"]})
    batch: Any = Writer.batch
    operations = [
        {"op": "get", "namespace": [*HOME], "key": "k"},
        {"op": "put", "namespace": [*HOME], "key": "new", "value": {}},
    ]
    pending = batch.begin(memory.memories.writer, root, operations)
    pending.commit.wait()
    with pytest.raises(WouldWait):
        without_waiting(pending.result)
    assert actions(memory, "memories.read") == []
    pending.result()
    assert [each["reads"] for each in actions(memory, "memories.read")] == [1]
    assert len(alice.history(HOME, "new")) == 1


def test_a_refusal_is_counted_once_however_often_the_call_is_made_again(memory: Alcove) -> None:
    memory.as_user("bob").put(("user", "bob"), "k", {})

    def ask() -> object:
        return memory.memories.reader.get(ALICE, ("user", "bob"), "k")

    try:
        on_event_loop(ask)
    except WouldBlock:
        with pytest.raises(PermissionDenied):
            ask()
    except PermissionDenied:
        pass
    assert [(each["operation"], each["count"]) for each in actions(memory, "denied")] == [("read", 1)]


def test_help_shows_what_a_write_returns(alice: Alcove) -> None:
    import inspect  # noqa: PLC0415

    assert str(inspect.signature(alice.memories.writer.put)).endswith("-> 'Entry'")
    assert (alice.memories.writer.put.__doc__ or "").startswith("Stores a JSON object")
