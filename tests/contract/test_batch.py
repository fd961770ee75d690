"""batch and idempotent requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from alcove import (
    Alcove,
    AlcoveError,
    Conflict,
    Delete,
    Deletion,
    Entry,
    Get,
    InvalidRequest,
    Memory,
    NotFound,
    PermissionDenied,
    Principal,
    Put,
    Settings,
    Touch,
)
from alcove.core import validation
from alcove.core.records import EvictOldest
from tests.contract.conftest import Open
from tests.support.clock import ManualClock

NOTES = ("user", "alice", "notes")


def put(key: str, **fields: object) -> dict[str, object]:
    return {"op": "put", "namespace": list(NOTES), "key": key, "value": {}, **fields}


def get(key: str) -> dict[str, object]:
    return {"op": "get", "namespace": list(NOTES), "key": key}


def test_a_batch_answers_in_order_and_reads_its_own_writes(alice: Alcove) -> None:
    results = alice.batch(
        [
            Get(namespace=NOTES, key="k"),
            Put(namespace=NOTES, key="k", value={"n": 1}),
            Get(namespace=NOTES, key="k"),
            Touch(namespace=NOTES, key="k", ttl_seconds=10),
            Delete(namespace=NOTES, key="k"),
            Get(namespace=NOTES, key="k"),
        ]
    )
    nothing, stored, read, touched, deleted, gone = results
    assert nothing is None
    assert isinstance(stored, Entry)
    assert isinstance(read, Memory)
    assert read.value == {"n": 1}
    assert read.id == stored.id
    assert isinstance(touched, Entry)
    assert touched.expires_at is not None
    assert isinstance(deleted, Deletion)
    assert deleted.revision == 2
    assert gone is None


def test_what_made_room_is_added_anew_by_a_put_that_comes_with_it(alice: Alcove) -> None:
    for key in ("first", "second"):
        alice.put(NOTES, key, {})
    evicted, _, again = alice.memories.writer.batch(
        Principal("alice"),
        [
            EvictOldest(namespace=NOTES, key="third", most=2),
            Put(namespace=NOTES, key="third", value={}),
            Put(namespace=NOTES, key="first", value={"n": 2}),
        ],
    )
    assert isinstance(evicted, Memory)
    assert isinstance(again, Entry)
    assert (evicted.key, evicted.revision, again.revision) == ("first", 1, 3)
    told = [event.kind for event in alice.events(NOTES).events if event.key == "first"]
    assert told == ["add", "delete", "add"]


def test_a_batch_is_one_moment(alice: Alcove) -> None:
    alice.batch([put("a"), put("b"), put("a", value={"n": 2})])
    moments = {event.occurred_at for event in alice.events().events}
    assert len(moments) == 1
    found = alice.get(NOTES, "a", as_of=moments.pop())
    assert found is not None
    assert found.value == {"n": 2}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (put("b", expected_revision=5), Conflict),
        (put("", value={}), InvalidRequest),
        ({"op": "put", "namespace": ["user", "bob"], "key": "k", "value": {}}, PermissionDenied),
        ({"op": "touch", "namespace": list(NOTES), "key": "absent"}, NotFound),
        ({"op": "move", "namespace": list(NOTES), "key": "k"}, InvalidRequest),
        ({"op": "get", "namespace": list(NOTES), "key": "k", "colour": 1}, InvalidRequest),
        ({"op": "put", "namespace": list(NOTES), "key": "k"}, InvalidRequest),
    ],
)
def test_one_refused_operation_refuses_the_batch_and_says_which(
    alice: Alcove, bad: dict[str, object], error: type[AlcoveError]
) -> None:
    with pytest.raises(error) as refused:
        alice.batch([put("a"), bad, put("c")])
    assert refused.value.details["operation"] == 1
    assert alice.list(NOTES) == []
    assert alice.events().events == []


@pytest.mark.parametrize(
    "judged", ["input.value.n > 0", 'input["value"].n > 0', 'input.key != "b"', 'input.index.text != "no"']
)
def test_a_policy_that_judges_content_judges_every_put_of_a_batch(
    open_store: Open, tmp_path: Path, judged: str
) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    allowing = f'package memories.authz\ndecision := {{"allow": true}} if {judged}'
    (policies / "authz.rego").write_text(allowing)
    alice = open_store(policy_dir=policies).as_user("alice")
    allowed = [put(key, value={"n": 1}, index={"text": "yes"}) for key in "ac"]
    assert len(alice.batch(allowed)) == 2
    with pytest.raises(PermissionDenied) as refused:
        alice.batch([allowed[0], put("b", value={"n": 0}, index={"text": "no"}), allowed[1]])
    assert refused.value.details["operation"] == 1


def test_attributes_of_content_are_of_each_put_of_a_batch(open_store: Open, tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "attributes.rego").write_text(
        'package memories.attributes\nattributes := {"n": input.value.n}'
    )
    alice = open_store(policy_dir=policies).as_user("alice")
    written = alice.batch([put(f"k{n}", value={"n": n}) for n in range(3)])
    assert [entry.attributes for entry in written if isinstance(entry, Entry)] == [{"n": n} for n in range(3)]


def test_a_batch_that_enters_one_room_enters_no_other(alice: Alcove) -> None:
    with pytest.raises(PermissionDenied) as refused:
        alice.batch([put("a"), put("b", namespace=["user", "bob", "notes"]), put("c")])
    assert refused.value.details["operation"] == 1
    assert alice.list(NOTES) == []


def test_a_single_call_says_nothing_of_batches(alice: Alcove) -> None:
    with pytest.raises(Conflict) as refused:
        alice.put(NOTES, "k", {}, expected_revision=3)
    assert "operation" not in refused.value.details


def test_a_batch_has_at_most_a_thousand_operations(alice: Alcove) -> None:
    assert len(alice.batch([put(str(n)) for n in range(1000)])) == 1000
    with pytest.raises(InvalidRequest, match="operations"):
        alice.batch([get(str(n)) for n in range(1001)])
    assert alice.batch([]) == []


def test_the_same_idempotency_key_is_done_once(alice: Alcove) -> None:
    first = alice.put(NOTES, "k", {"n": 1}, idempotency_key="once")
    assert alice.put(NOTES, "k", {"n": 1}, idempotency_key="once") == first
    assert alice.put(NOTES, "k", {"n": 1}).revision == 2
    assert alice.put(NOTES, "k", {"n": 1}, idempotency_key="once") == first

    assert alice.delete(NOTES, "k", idempotency_key="gone") == alice.delete(
        NOTES, "k", idempotency_key="gone"
    )

    delete: dict[str, object] = {"op": "delete", "namespace": NOTES, "key": "b"}
    operations = [put("b"), get("b"), delete, get("b")]
    assert alice.batch(operations, idempotency_key="many") == alice.batch(operations, idempotency_key="many")
    assert len(alice.history(NOTES, "b")) == 2


def test_the_same_idempotency_key_with_another_body_is_a_conflict(alice: Alcove) -> None:
    alice.put(NOTES, "k", {"n": 1}, idempotency_key="once")
    with pytest.raises(Conflict, match="idempotency_key"):
        alice.put(NOTES, "k", {"n": 2}, idempotency_key="once")
    with pytest.raises(Conflict, match="idempotency_key"):
        alice.delete(NOTES, "k", idempotency_key="once")


def test_idempotency_keys_are_per_principal(memory: Alcove, alice: Alcove, bob: Alcove) -> None:
    alice.put(NOTES, "k", {"n": 1}, idempotency_key="once")
    assert bob.put(("user", "bob"), "k", {"n": 2}, idempotency_key="once").revision == 1
    phone = memory.as_principal(Principal("alice", client_id="phone"))
    assert phone.put(NOTES, "k", {"n": 3}, idempotency_key="once").revision == 2


def test_an_idempotency_key_is_forgotten_after_a_day(
    memory: Alcove, alice: Alcove, clock: ManualClock
) -> None:
    alice.put(NOTES, "k", {"n": 1}, idempotency_key="once")
    clock.advance(86_399)
    assert alice.put(NOTES, "k", {"n": 1}, idempotency_key="once").revision == 1
    clock.advance(2)
    assert alice.put(NOTES, "k", {"n": 1}, idempotency_key="once").revision == 2
    clock.advance(90_000)
    memory.sweep()
    assert alice.put(NOTES, "k", {"n": 9}, idempotency_key="once").revision == 3


def test_a_refused_request_does_not_use_up_its_key(alice: Alcove) -> None:
    with pytest.raises(Conflict):
        alice.put(NOTES, "k", {"n": 1}, expected_revision=1, idempotency_key="once")
    alice.put(NOTES, "k", {})
    assert alice.put(NOTES, "k", {"n": 1}, expected_revision=1, idempotency_key="once").revision == 2


def test_what_a_newcomer_writes_is_checked_once(memory: Alcove, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, value = list[object](), validation.encode_value

    def counted(given: object, settings: Settings) -> bytes:
        checked.append(given)
        return value(given, settings)

    monkeypatch.setattr(validation, "encode_value", counted)
    newcomer = memory.as_user("newcomer")
    puts = [Put(namespace=("user", "newcomer"), key=f"k{n}", value={"n": n}) for n in range(5)]
    first = newcomer.batch(puts, idempotency_key="once")
    assert len(checked) == len(puts)
    assert newcomer.batch(puts, idempotency_key="once") == first
    assert [each.value for each in newcomer.search(("user", "newcomer"))] == [{"n": n} for n in range(5)]


def test_a_newcomer_whose_write_is_refused_gets_no_data_key(memory: Alcove) -> None:
    allowed = Put(namespace=("user", "newcomer"), key="k", value={})
    refused = Put(namespace=("user", "somebody else"), key="k", value={})
    for puts, once in (([allowed, refused], None), ([allowed], "k" * 256)):
        with pytest.raises(AlcoveError):
            memory.as_user("newcomer").batch(puts, idempotency_key=once)
    assert memory.memories._vault.find_key("user:newcomer") is None
