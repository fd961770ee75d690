"""The policy: what the built-in bundle decides, what custom ones are asked, and how they are swapped."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import regopy
from hypothesis import given, settings
from hypothesis import strategies as st

from alcove import Alcove, Grant, MemoryKey, Namespace, PermissionDenied, PolicyError, Principal, Settings
from alcove.filters import Filter, OneOf
from alcove.policy import Bundle, Narrowed, Policy
from alcove.principal import JSON
from tests.conftest import LONG

ALICE = Principal("alice")
ADMIN = Principal("root", claims={"roles": ["admin"]})
OWN_FILTER = Filter.parse({"namespace": "user", "sub": "alice"})


def room(spelling: str, *operations: str) -> Grant:
    return Grant(Namespace.parse(spelling), operations or ("read", "write", "delete"))


def refusal(
    policy: Policy, who: Principal, spelling: str, operation: Literal["read", "write", "delete"] = "read"
) -> str | None:
    """The reason why this operation is denied, None where it is allowed."""
    namespace = Namespace.parse(spelling)
    try:
        if operation == "write":
            policy.authorise_write(who, namespace, "key", b'{"n":1}', None)
        else:
            policy.authorise(who, operation, namespace, "key")
    except PermissionDenied as denied:
        return denied.reason
    return None


def narrowed(policy: Policy, who: Principal, spelling: str) -> Narrowed | None:
    """Where this caller may look, None where they may not."""
    try:
        return policy.narrow(who, Namespace.parse(spelling))
    except PermissionDenied:
        return None


@pytest.fixture(scope="module")
def built_in() -> Policy:
    return Policy()


OWN = ["user:alice", "user:alice:notes", "user:alice:u:bob", "u:alice", "agent:bot:u:alice",
       "agent:bot:u:alice:u:bob"]  # fmt: skip
FOREIGN = ["user", "user:bob", "user:al", "user:alice2", "user:bob:u:alice", "user:u:alice", "agent:bot:u",
           "agent:bot:u:bob:u:alice", "agent:u:u:alice", "agent:bot", "team:user:alice", "alice"]  # fmt: skip


@pytest.mark.parametrize("operation", ["read", "write", "delete"])
def test_a_direct_call_enters_what_its_user_owns_and_nothing_else(
    built_in: Policy, operation: Literal["read", "write", "delete"]
) -> None:
    assert {refusal(built_in, ALICE, namespace, operation) for namespace in OWN} == {None}
    reasons = {refusal(built_in, ALICE, namespace, operation) for namespace in FOREIGN}
    assert reasons == {"this namespace is not yours, and nothing grants it to you"}


def test_a_grant_opens_its_room_and_below_for_its_operations_only(built_in: Policy) -> None:
    alice = Principal("alice", grants=(room("pool:news", "read"), room("team:red")))
    for namespace in ("pool:news", "pool:news:2026", "pool:news:u:alice"):
        assert refusal(built_in, alice, namespace) is None
    for namespace in ("pool", "pool:news2", "pool:other", "pool:news:u:bob", "user:bob"):
        assert refusal(built_in, alice, namespace)
    assert refusal(built_in, alice, "pool:news", "write")
    assert refusal(built_in, alice, "team:red:plans", "write") is None
    assert refusal(built_in, alice, "team:red:plans", "delete") is None


def test_a_grant_to_everything_opens_nobody_elses_rooms(built_in: Policy) -> None:
    alice = Principal("alice", grants=(room(""),))
    assert refusal(built_in, alice, "pool:news") is None
    assert refusal(built_in, alice, "user:bob")
    assert refusal(built_in, alice, "agent:bot:u:bob")


def test_with_an_agent_ownership_opens_nothing_and_grants_do(built_in: Policy) -> None:
    agent = Principal("alice", agent="bot", grants=(room("agent:bot:u:alice"),))
    assert refusal(built_in, agent, "agent:bot:u:alice:notes", "write") is None
    for namespace in ("user:alice", "agent:other:u:alice", "agent:bot:u:bob", "agent:bot"):
        assert refusal(built_in, agent, namespace)
        assert narrowed(built_in, agent, namespace) is None
    assert narrowed(built_in, agent, "") is None
    inside = Narrowed(Namespace.parse("agent:bot:u:alice"), Filter(), "alice")
    assert narrowed(built_in, agent, "agent:bot:u:alice") == inside


def test_an_admin_looks_everywhere_but_opens_no_door_directly(built_in: Policy) -> None:
    for prefix in ("", "user", "user:bob", "agent:bot:u:alice", "pool"):
        assert narrowed(built_in, ADMIN, prefix) == Narrowed(Namespace.parse(prefix), Filter(), None)
    for operation in ("read", "write", "delete"):
        assert refusal(built_in, ADMIN, "user:bob", operation)  # type: ignore[arg-type]
    agent = Principal("root", claims={"roles": ["admin"]}, agent="bot")
    assert narrowed(built_in, agent, "user:bob") is None


@pytest.mark.parametrize(
    "roles",
    [
        "admin",
        {"admin": True},
        ["admin", 1],
        ["admin", None],
        [["admin"]],
        ["Admin"],
        ["auditor"],
        [],
        None,
        7,
    ],
)
def test_roles_that_are_not_a_list_of_strings_with_admin_in_it_make_no_admin(
    built_in: Policy, roles: JSON
) -> None:
    alice = Principal("alice", claims={"roles": roles})
    assert not alice.is_admin
    assert narrowed(built_in, alice, "") == narrowed(built_in, ALICE, "")


KEPT = {"user:alice": OWN_FILTER, "user:alice:notes": OWN_FILTER, "agent:bot:u:alice": Filter(),
        "pool:news": Filter(), "pool:news:2026": Filter()}  # fmt: skip
REPLACED = ["", "user", "user:bob:notes", "agent:bot:u:bob", "agent:bot", "pool:news:u:bob", "pool", "inbox"]


def test_a_prefix_is_kept_inside_what_is_owned_or_granted_and_replaced_elsewhere(built_in: Policy) -> None:
    alice = Principal("alice", grants=(room("pool:news", "read"), room("inbox", "write")))
    for prefix, conditions in KEPT.items():
        assert narrowed(built_in, alice, prefix) == Narrowed(Namespace.parse(prefix), conditions, "alice")
    home = Narrowed(Namespace.parse("user:alice"), OWN_FILTER, "alice")
    assert [narrowed(built_in, alice, prefix) for prefix in REPLACED] == [home] * len(REPLACED)


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        ("user", {}),
        ("user:alice", {"namespace": "user", "sub": "alice"}),
        ("a:b:c", {"namespace": "a", "sub": "b"}),
    ],
)
def test_attributes_are_the_first_two_segments(built_in: Policy, namespace: str, expected: object) -> None:
    derived = built_in.attributes(ALICE, Namespace.parse(namespace), "key", b"{}", None)
    assert msgspec.json.decode(derived) == expected


# Custom bundles


@pytest.fixture
def custom(tmp_path: Path) -> Callable[..., Policy]:
    def make(**texts: str) -> Policy:
        for name, text in texts.items():
            (tmp_path / f"{name}.rego").write_text(f"package memories.{name}\n{text}\n", encoding="utf-8")
        return Policy(tmp_path)

    return make


def test_each_policy_is_asked_exactly_what_the_contract_says(
    tmp_path: Path, custom: Callable[..., Policy]
) -> None:
    policy = custom(
        authz='decision := {"allow": false, "reason": json.marshal(input)}',
        attributes='attributes := {"asked": json.marshal(input)}',
        filter='namespace_prefix := []\nattribute_filter := {"asked": json.marshal(input)}',
    )
    claims: dict[str, JSON] = {"roles": ["x"], "n": 2**53 + 1}
    who = Principal("alice", "web", claims, "bot", (room("pool:a", "read"),))
    context = {"user_id": "alice", "client_id": "web", "jwt_claims": claims, "agent": "bot",
               "grants": [{"namespace": ["pool", "a"], "operations": ["read"]}]}  # fmt: skip
    place = {"namespace": ["user", "alice"], "key": "key", "context": context}
    content: dict[str, object] = {"value": {"n": 2**53 + 1}, "index": {"topic": "t"}}

    with Alcove(tmp_path / "memory.db", keys=MemoryKey(), policy_dir=tmp_path) as memory:
        alice = memory.as_principal(who)
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: alice.get("user:alice", "key"),
            "delete": lambda: alice.delete("user:alice", "key"),
            "write": lambda: alice.put("user:alice", "key", {"n": 2**53 + 1}, index={"topic": "t"}),
        }
        for operation, call in calls.items():
            with pytest.raises(PermissionDenied) as denied:
                call()
            asked = {"operation": operation, **place, **(content if operation == "write" else {})}
            assert msgspec.json.decode(denied.value.reason) == asked

    derived = policy.attributes(
        who, Namespace(("user", "alice")), "key", b'{"n":9007199254740993}', b'{"topic":"t"}'
    )
    assert msgspec.json.decode(msgspec.json.decode(derived)["asked"]) == {**place, **content}
    ((_, test),) = policy.narrow(who, Namespace(("a", "b")), {"f": {"gt": 1}}).conditions.conditions
    assert isinstance(test, OneOf)
    asked = {"namespace_prefix": ["a", "b"], "filter": {"f": {"gt": 1}}, "context": context}
    assert msgspec.json.decode(str(test.choices[0])) == asked


def test_a_direct_call_has_no_agent_and_a_write_without_index_an_empty_one(
    custom: Callable[..., Policy],
) -> None:
    policy = custom(
        authz='decision := {"allow": false, "reason": json.marshal([input.context.agent, input.index])}'
    )
    assert msgspec.json.decode(refusal(policy, ALICE, "user:alice", "write") or "") == [None, {}]


@pytest.mark.parametrize(
    "text",
    ["", "decision := null", "decision := true", 'decision := {"allow": 1}', 'decision := {"allow": "true"}',
     'decision := {"allow": true} if input.nothing', 'allow := true', 'decision := {"reason": "no"}'],
)  # fmt: skip
def test_anything_but_a_decision_that_allows_is_a_denial(custom: Callable[..., Policy], text: str) -> None:
    assert refusal(custom(authz=text), ALICE, "user:alice") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "namespace_prefix := []",
        "attribute_filter := {}",
        "namespace_prefix := []\nattribute_filter := null",
    ],
)
def test_a_filter_policy_that_leaves_something_undefined_denies(
    custom: Callable[..., Policy], text: str
) -> None:
    assert narrowed(custom(filter=text), ALICE, "user:alice") is None


@pytest.mark.parametrize(
    "numbers", ['{"n":9007199254740993,"m":-9223372036854775808,"deep":[{"n":7}]}', '{"f":0.5}']
)
def test_attributes_keep_their_integers(custom: Callable[..., Policy], numbers: str) -> None:
    policy = custom(attributes="attributes := input.value")
    derived = policy.attributes(ALICE, Namespace(("user", "alice")), "key", numbers.encode(), None)
    assert msgspec.json.decode(derived) == msgspec.json.decode(numbers)


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("authz", 'decision := {"allow": tru', "authz.rego:2"),
        ("authz", "\n\ndecision = true { input.key }", "authz.rego:4"),
        ("authz", "decision := nothing_of_the_kind(1)", "authz.rego:2"),
        ("attributes", "attributes := [x | y]", "attributes.rego:2"),
        ("filter", "namespace_prefix := [] if {\n  1 ==\n}", "filter.rego:4"),
        ("attributes", "attributes := 7", "attributes.rego"),
        ("filter", "namespace_prefix := 7\nattribute_filter := {}", "filter.rego"),
    ],
)
def test_a_broken_bundle_is_refused_with_file_and_line_and_the_old_one_stays(
    custom: Callable[..., Policy], tmp_path: Path, name: str, text: str, place: str
) -> None:
    policy = custom(authz='decision := {"allow": false, "reason": "the old one"}')
    (tmp_path / f"{name}.rego").write_text(f"package memories.{name}\n{text}\n")
    for _ in range(2):
        with pytest.raises(PolicyError, match=re.escape(place)):
            policy.reload()
        assert refusal(policy, ALICE, "user:alice") == "the old one"
    with pytest.raises(PolicyError, match=re.escape(place)):
        Policy(tmp_path)


def test_threads_that_decide_during_reloads_see_one_whole_bundle_each_time(
    custom: Callable[..., Policy], tmp_path: Path
) -> None:
    text = 'namespace_prefix := ["{0}"]\nattribute_filter := {{"from": "{0}"}}\nowner := "{0}"'
    policy = custom(filter=text.format("0"))
    stop, seen, wrong = threading.Event(), set[str](), list[object]()

    def decide() -> None:
        while not stop.is_set():
            answer = policy.narrow(ALICE, Namespace())
            (name,) = answer.prefix
            if answer != Narrowed(Namespace((name,)), Filter.parse({"from": name}), name):
                wrong.append(answer)
            seen.add(name)

    threads = [threading.Thread(target=decide) for _ in range(8)]
    for thread in threads:
        thread.start()
    for round in range(300 if LONG else 30):
        custom(filter=text.format(round % 7))
        policy.reload()
        (tmp_path / "filter.rego").write_text("package memories.filter\nbroken")
        with pytest.raises(PolicyError):
            policy.reload()
        assert policy.narrow(ALICE, Namespace()).owner == str(round % 7)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(seen) > 1


# The same bundle in an independent implementation


SEGMENTS = st.sampled_from(["user", "u", "alice", "bob", "al", "agent", "pool", "é:%"])
PATHS = st.lists(SEGMENTS, max_size=5)
OPERATIONS = st.sampled_from(["read", "write", "delete"])
ROLES = st.sampled_from(
    [[], ["admin"], ["auditor", "admin"], ["admin", 1], [["admin"]], "admin", {"admin": 1}, None]
)
RULES = [
    "authz/decision",
    "attributes/attributes",
    "filter/namespace_prefix",
    "filter/attribute_filter",
    "filter/owner",
]


@functools.cache
def _independent() -> Callable[[dict[str, object]], list[object]]:
    """Asks regopy for the value of every rule of the built-in bundle; None where it is undefined."""
    engine = regopy.Interpreter()
    for name, text in Bundle.load()._asdict().items():
        engine.add_module(name, text)
    bundle = engine.build(None, [f"memories/{rule}" for rule in RULES])

    def ask(question: dict[str, object]) -> list[object]:
        engine.set_input(question)
        outputs = [engine.query_bundle_entrypoint(bundle, f"memories/{rule}") for rule in RULES]
        assert all(output.ok() for output in outputs)
        return [
            output.results[0].expressions[0] if output.results[0].expressions else None for output in outputs
        ]

    return ask


@given(data=st.data(), user=st.sampled_from(["alice", "alice", "bob", "u", "user", "é:%"]), roles=ROLES)
@settings(max_examples=6000 if LONG else 600, deadline=None)
def test_an_independent_rego_engine_decides_the_same(data: st.DataObject, user: str, roles: JSON) -> None:
    namespace = Namespace(data.draw(PATHS) or ["user"])
    prefix = Namespace(data.draw(PATHS | st.just(list(namespace))))
    rooms = PATHS | st.integers(0, 5).map(lambda depth: [*namespace[:depth]])
    grant = st.builds(
        lambda path, operations: Grant(Namespace(path), (*operations,)), rooms, st.sets(OPERATIONS)
    )
    granted = tuple(data.draw(st.lists(grant, max_size=2)))
    agent = data.draw(st.sampled_from([None, None, "bot", ""]))
    who = Principal(user, claims={"roles": roles}, agent=agent, grants=granted)
    operation = data.draw(OPERATIONS)
    question = {"operation": operation, "namespace": [*namespace], "key": "key", "value": {"n": 1}, "index": {},
                "namespace_prefix": [*prefix], "filter": {}, "context": msgspec.json.decode(who.context)}  # fmt: skip

    decision, attributes, looked_at, conditions, owner = _independent()(question)
    reason = refusal(Policy(), who, str(namespace), operation)  # type: ignore[arg-type]
    assert decision == ({"allow": True} if reason is None else {"allow": False, "reason": reason})
    assert msgspec.json.decode(Policy().attributes(who, namespace, "key", b'{"n":1}', None)) == attributes
    answer = narrowed(Policy(), who, str(prefix))
    if looked_at is None or conditions is None:
        assert answer is None
    else:
        assert answer == Narrowed(Namespace.checked(looked_at), Filter.parse(conditions), owner)
