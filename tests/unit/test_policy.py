"""The policy: what the built-in bundle decides, what custom ones are asked, and how they are swapped."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import regopy
from hypothesis import given, settings
from hypothesis import strategies as st

from alcove import (
    Alcove,
    Grant,
    InvalidRequest,
    MemoryKey,
    Namespace,
    PermissionDenied,
    PolicyError,
    Principal,
)
from alcove.core.errors import PolicyFailed
from alcove.core.filters import Filter, OneOf
from alcove.core.principal import JSON
from alcove.policy import Bundle, Policy, ReadScope
from tests.support.waiting import LONG

Operation = Literal["read", "write", "import", "delete"]
Custom = Callable[..., Policy]

OPERATIONS: tuple[Operation, ...] = ("read", "write", "import", "delete")
BUILT_IN = Policy()
ALICE = Principal("alice")
ADMIN = Principal("root", claims={"roles": ["admin"]})
HOME = Namespace(("user", "alice"))
OWN_FILTER = Filter.parse({"namespace": "user", "sub": "alice"})


def room(spelling: str, *operations: str) -> Grant:
    return Grant(Namespace.parse(spelling), operations or OPERATIONS)


def refusal(policy: Policy, who: Principal, at: str, operation: Operation = "read") -> str | None:
    """The reason why this operation is denied, None where it is allowed."""
    try:
        if operation == "write" or operation == "import":
            policy.authorise_write(who, Namespace.parse(at), "key", b'{"n":1}', None, operation)
        else:
            policy.authorise(who, operation, Namespace.parse(at), "key")
    except PermissionDenied as denied:
        return denied.reason
    return None


def narrowed(policy: Policy, who: Principal, at: str) -> ReadScope | None:
    """Where this caller may look, None where they may not."""
    try:
        return policy.narrow(who, Namespace.parse(at))
    except PermissionDenied:
        return None


OWN = ["user:alice:notes", "user:alice:u:bob", "u:alice", "agent:bot:u:alice", "agent:bot:u:alice:u:bob"]
FOREIGN = ["user", "user:bob", "user:al", "user:alice2", "user:bob:u:alice", "user:u:alice", "agent:bot:u",
           "agent:bot:u:bob:u:alice", "agent:u:u:alice", "agent:bot", "team:user:alice", "alice"]  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_direct_call_enters_what_its_user_owns_and_no_more(operation: Operation) -> None:
    assert {refusal(BUILT_IN, ALICE, at, operation) for at in OWN} == {None}
    reasons = {refusal(BUILT_IN, ALICE, at, operation) for at in FOREIGN}
    assert reasons == {"this namespace is not yours, and nothing grants it to you"}


def test_a_grant_opens_its_room_and_below_for_its_operations_only() -> None:
    alice = Principal("alice", grants=(room("pool:news", "read"), room("team:red")))
    for at in ("pool:news", "pool:news:2026", "pool:news:u:alice", "team:red"):
        assert refusal(BUILT_IN, alice, at) is None
    assert all(refusal(BUILT_IN, alice, at) for at in ("pool", "pool:news2", "pool:news:u:bob", "user:bob"))
    assert refusal(BUILT_IN, alice, "pool:news", "write")
    assert refusal(BUILT_IN, alice, "team:red:plans", "write") is None
    everything = Principal("alice", grants=(room(""),))
    assert refusal(BUILT_IN, everything, "pool:news") is None
    assert refusal(BUILT_IN, everything, "agent:bot:u:bob")  # belongs to somebody else


def test_with_an_agent_ownership_opens_nothing_and_grants_do() -> None:
    agent = Principal("alice", agent="bot", grants=(room("agent:bot:u:alice"),))
    assert refusal(BUILT_IN, agent, "agent:bot:u:alice:notes", "write") is None
    for at in ("user:alice", "agent:other:u:alice", "agent:bot:u:bob", "agent"):
        assert refusal(BUILT_IN, agent, at)
        assert narrowed(BUILT_IN, agent, at) is None
    inside = Namespace.parse("agent:bot:u:alice")
    assert narrowed(BUILT_IN, agent, str(inside)) == ReadScope(inside, Filter(), "alice")


def test_an_admin_looks_everywhere_but_opens_no_door_except_to_import() -> None:
    for prefix in ("", "user", "user:bob", "pool"):
        assert narrowed(BUILT_IN, ADMIN, prefix) == ReadScope(Namespace.parse(prefix), Filter(), None)
    refused = [each for each in OPERATIONS if refusal(BUILT_IN, ADMIN, "user:bob", each)]
    assert refused == ["read", "write", "delete"]
    assert refusal(BUILT_IN, Principal("root", claims=ADMIN.claims, agent="bot"), "user:bob", "import")
    assert narrowed(BUILT_IN, Principal("root", claims=ADMIN.claims, agent="bot"), "user:bob") is None


NO_ADMIN: list[JSON] = [
    "admin",
    {"role": "admin"},
    ["admin", 1],
    ["admin", None],
    [["admin"]],
    ["Admin"],
    [],
    None,
]


@pytest.mark.parametrize("roles", NO_ADMIN)
def test_only_a_list_of_strings_with_admin_in_it_makes_an_admin(roles: JSON) -> None:
    alice = Principal("alice", claims={"roles": roles})
    assert not alice.is_admin
    assert narrowed(BUILT_IN, alice, "") == ReadScope(HOME, OWN_FILTER, "alice")
    assert refusal(BUILT_IN, alice, "user:bob", "import")


KEPT = {"user:alice": OWN_FILTER, "user:alice:notes": OWN_FILTER, "agent:bot:u:alice": Filter(),
        "pool:news": Filter(), "pool:news:2026": Filter()}  # fmt: skip
REPLACED = ["", "user", "user:bob:notes", "agent:bot:u:bob", "agent:bot", "pool:news:u:bob", "pool", "inbox"]


def test_a_prefix_is_kept_inside_what_is_owned_or_granted_and_replaced_elsewhere() -> None:
    alice = Principal("alice", grants=(room("pool:news", "read"), room("inbox", "write")))
    for prefix, conditions in KEPT.items():
        assert narrowed(BUILT_IN, alice, prefix) == ReadScope(Namespace.parse(prefix), conditions, "alice")
    for prefix in REPLACED:
        assert narrowed(BUILT_IN, alice, prefix) == ReadScope(HOME, OWN_FILTER, "alice")


def test_attributes_are_the_first_two_segments() -> None:
    for at, expected in {"user": {}, "a:b:c": {"namespace": "a", "sub": "b"}}.items():
        derived = BUILT_IN.attributes(ALICE, Namespace.parse(at), "key", b"{}", None)
        assert msgspec.json.decode(derived) == expected


@pytest.fixture
def custom(tmp_path: Path) -> Custom:
    def make(**texts: str) -> Policy:
        for name, text in texts.items():
            (tmp_path / f"{name}.rego").write_text(f"package memories.{name}\n{text}\n", encoding="utf-8")
        return Policy(tmp_path)

    return make


def test_each_policy_is_asked_exactly_what_the_contract_says(tmp_path: Path, custom: Custom) -> None:
    policy = custom(
        authz='decision := {"allow": false, "reason": json.marshal(input)}',
        attributes='attributes := {"asked": json.marshal(input)}',
        filter="namespace_prefix := input.namespace_prefix\n"
        'attribute_filter := {"asked": json.marshal(input)}',
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

    derived = policy.attributes(who, HOME, "key", b'{"n":9007199254740993}', b'{"topic":"t"}')
    assert msgspec.json.decode(msgspec.json.decode(derived)["asked"]) == {**place, **content}
    ((_, test),) = policy.narrow(who, Namespace(("a", "b")), {"f": {"gt": 1}}).conditions.conditions
    assert isinstance(test, OneOf)
    asked = {"namespace_prefix": ["a", "b"], "filter": {"f": {"gt": 1}}, "context": context}
    assert msgspec.json.decode(str(test.choices[0])) == asked


def test_a_direct_call_has_no_agent_and_a_write_without_index_an_empty_one(custom: Custom) -> None:
    policy = custom(authz='decision := {"reason": json.marshal([input.context.agent, input.index])}')
    assert refusal(policy, ALICE, "user:alice", "write") == "[null,{}]"


BY_CONTENT = ["input.value.n > 1", 'input["value"].n > 1', "x := input; x.value.n > 1"]


@pytest.mark.parametrize("condition", BY_CONTENT)
def test_a_policy_that_judges_content_judges_each(custom: Custom, condition: str) -> None:
    policy = custom(authz=f'decision := {{"allow": true}} if {{ {condition} }}')
    for number in [1, 2, 3, 2, 1, 2]:
        allowed = True
        try:
            policy.authorise_write(ALICE, HOME, "key", b'{"n":%d}' % number, None)
        except PermissionDenied:
            allowed = False
        assert allowed is (number > 1)


RESTLESS = ["time.now_ns()", 'time["now_ns"]()', 'rand.intn("x", 1000000)', 'uuid.rfc4122("x")']


@pytest.mark.parametrize("restless", RESTLESS)
def test_what_changes_by_itself_is_asked_for_each_time(custom: Custom, restless: str) -> None:
    policy = custom(authz=f'decision := {{"reason": sprintf("%v", [{restless}])}}')
    assert len({refusal(policy, ALICE, "user:alice") for _ in range(20)}) > 1


SILENT = ["", "decision := null", "decision := true", 'decision := {"allow": 1}', "allow := true",
          'decision := {"allow": "true"}', 'decision := {"allow": true} if input.nothing',
          "namespace_prefix := []", "namespace_prefix := []\nattribute_filter := null"]  # fmt: skip


@pytest.mark.parametrize("text", SILENT)
def test_what_a_policy_leaves_undefined_is_denied(custom: Custom, text: str) -> None:
    policy = custom(authz=text, filter=text, attributes=text)
    assert refusal(policy, ALICE, "user:alice") is not None
    assert narrowed(policy, ALICE, "user:alice") is None
    assert policy.attributes(ALICE, HOME, "key", b"{}", None) == b"{}"


def test_attributes_keep_their_integers(custom: Custom) -> None:
    numbers = b'{"n":9007199254740993,"least":-9223372036854775808,"deep":[{"n":7,"f":0.5}]}'
    derived = custom(attributes="attributes := input.value").attributes(ALICE, HOME, "key", numbers, None)
    assert msgspec.json.decode(derived) == msgspec.json.decode(numbers)


BROKEN = [("authz", 'decision := {"allow": tru}', "authz.rego:2"),
          ("authz", "\n\ndecision = true { input.key }", "authz.rego:4"),
          ("authz", "decision := nothing_of_the_kind(1)", "authz.rego:2"),
          ("attributes", "attributes := [x | y]", "attributes.rego:2"),
          ("filter", "namespace_prefix := [] if {\n  1 ==\n}", "filter.rego:4"),
          ("attributes", "attributes := 7", "attributes.rego"),
          ("filter", "namespace_prefix := 7\nattribute_filter := {}", "filter.rego")]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "place"), BROKEN)
def test_a_broken_bundle_is_refused_with_file_and_line_and_the_old_one_stays(
    custom: Custom, tmp_path: Path, name: str, text: str, place: str
) -> None:
    policy = custom(authz='decision := {"allow": false, "reason": "the old one"}')
    with pytest.raises(PolicyError, match=re.escape(place)):
        custom(**{name: text})
    with pytest.raises(PolicyError, match=re.escape(place)):
        policy.reload()
    assert refusal(policy, ALICE, "user:alice") == "the old one"


@pytest.mark.parametrize(
    ("name", "rule", "place"),
    [
        ("authz", 'decision := {"allow": input.value.note + 1 == 3}', "authz.rego:2:34"),
        ("authz", 'decision := {"allow": {input.value.note: x | x := [1, 2][_]} == {}}', "authz.rego:2:35"),
        ("authz", "decision := time.parse_rfc3339_ns(input.value.note)", "authz.rego"),
        ("authz", 'decision := {"allow": input.context.jwt_claims.note + 1 == 3}', "authz.rego:2:47"),
        ("attributes", "attributes := {input.value.note: 123456789012345678901}", "attributes.rego"),
        ("filter", 'namespace_prefix := []\nattribute_filter := {input.context.jwt_claims.note: {"x": 1}}',
         "filter.rego"),
    ],
)  # fmt: skip
def test_a_policy_that_fails_is_logged_with_its_place_and_no_values(
    custom: Custom, caplog: pytest.LogCaptureFixture, name: str, rule: str, place: str
) -> None:
    policy = custom(**{name: rule})
    who = Principal("alice", claims={"note": "sesame"})
    asked: dict[str, Callable[[], object]] = {
        "authz": lambda: policy.authorise_write(who, HOME, "key", b'{"note":"sesame"}', None),
        "attributes": lambda: policy.attributes(who, HOME, "key", b'{"note":"sesame"}', None),
        "filter": lambda: policy.narrow(who, HOME),
    }
    with pytest.raises(PolicyFailed):
        asked[name]()
    (line,) = caplog.messages
    assert place in line
    assert "sesame" not in line


@pytest.mark.parametrize(
    "rule",
    ["owner := [input.context.user_id]", "owner := {input.context.user_id}", "owner := false",
     "written_by := input.context.user_id", "written_by := {input.context.user_id: true}",
     "written_by := [7]", "written_by := false", "unowned_written_by := [7]", "unowned_written_by := false"],
)  # fmt: skip
def test_a_filter_that_is_spelled_wrong_shows_nothing_rather_than_everything(
    custom: Custom, rule: str
) -> None:
    text = f"namespace_prefix := []\nattribute_filter := {{}}\n{rule}"
    with pytest.raises(PolicyError, match=rule.partition(" ")[0]):
        custom(filter=text)
    policy = custom(filter=f'{text} if input.context.user_id == "alice"')  # seen only when she asks
    with pytest.raises(PolicyFailed):
        policy.narrow(ALICE, HOME)


def test_a_filter_by_author_of_rooms_without_an_owner_leaves_rooms_with_one_as_they_are(
    tmp_path: Path, custom: Custom
) -> None:
    custom(
        filter="namespace_prefix := []\nattribute_filter := {}\nowner := input.context.user_id\n"
        "unowned_written_by := [input.context.user_id]",
    )
    with Alcove(tmp_path / "memory.db", keys=MemoryKey(), policy_dir=tmp_path, embedder=None) as memory:
        grants = (Grant(Namespace(("org",))), Grant(Namespace(("user",))))
        users = {user: memory.as_principal(Principal(user, grants=grants)) for user in ("alice", "bob")}
        for user, store in users.items():
            store.put("org:docs", f"shared by {user}", {}, index={"text": "a text"})
            store.put(f"user:{user}", f"own of {user}", {}, index={"text": "a text"})
        line = {"namespace": ["user", "alice"], "key": "imported", "value": {}, "index": {"text": "a text"},
                "written_by": {"user": "bob"}}  # fmt: skip
        assert memory.import_memories([json.dumps(line).encode()]).imported == 1
        alice, shown = users["alice"], ["imported", "own of alice", "shared by alice"]
        for found in (alice.search(), alice.list(), alice.search(query="text"), alice.export_memories(),
                      alice.events().events):  # fmt: skip
            assert sorted(each.key for each in found) == shown
        assert alice.namespaces() == [("org", "docs"), ("user", "alice")]


@pytest.mark.parametrize(
    ("rule", "shown"),
    [("written_by := []", []), ("written_by contains input.context.user_id", ["hers"]),
     ("written_by := [null]", [])],
)  # fmt: skip
def test_a_filter_by_author_may_be_empty_or_a_set(
    tmp_path: Path, custom: Custom, rule: str, shown: list[str]
) -> None:
    custom(filter=f"namespace_prefix := []\nattribute_filter := {{}}\n{rule}")
    with Alcove(tmp_path / "memory.db", keys=MemoryKey(), policy_dir=tmp_path, embedder=None) as memory:
        alice = memory.as_user("alice")
        alice.put("user:alice", "hers", {}, index={"text": "a text"})
        memory.as_user("bob").put("user:bob", "his", {}, index={"text": "a text"})
        assert [each.key for each in alice.search()] == [each.key for each in alice.list()] == shown
        assert [each.key for each in alice.search(query="text")] == shown
        assert [each.key for each in alice.export_memories()] == shown
        assert [each.key for each in alice.events().events] == shown
        assert len(alice.namespaces()) == len(shown)


def test_threads_that_decide_during_reloads_see_one_whole_bundle_each_time(custom: Custom) -> None:
    text = 'namespace_prefix := ["{0}"]\nattribute_filter := {{"from": "{0}"}}\nowner := "{0}"'
    policy = custom(filter=text.format("0"))
    stop, seen = threading.Event(), set[str]()

    def decide() -> None:
        while not stop.is_set():
            answer = policy.narrow(ALICE, Namespace())
            (name,) = answer.prefix
            seen.add(name)
            assert answer == ReadScope(Namespace((name,)), Filter.parse({"from": name}), name)

    with ThreadPoolExecutor(4) as pool:
        deciders = [pool.submit(decide) for _ in range(4)]
        try:
            for n in range(100 if LONG else 10):
                custom(filter=text.format(n % 6))
                policy.reload()
                for load in (lambda: custom(filter="broken"), policy.reload):
                    with pytest.raises(PolicyError):
                        load()
                assert policy.narrow(ALICE, Namespace()).owner == str(n % 6)
        finally:
            stop.set()
    assert [decider.result() for decider in deciders] == [None] * 4
    assert len(seen) > 1


RULES = ["authz/decision", "attributes/attributes",
         "filter/namespace_prefix", "filter/attribute_filter", "filter/owner"]  # fmt: skip


@functools.cache
def _independent() -> Callable[[dict[str, object]], list[Any]]:
    """Asks regopy for the value of every rule of the built-in bundle; None where it is undefined."""
    engine = regopy.Interpreter()
    for name, text in Bundle.load()._asdict().items():
        engine.add_module(name, text)
    bundle = engine.build(None, [f"memories/{rule}" for rule in RULES])

    def ask(question: dict[str, object]) -> list[Any]:
        engine.set_input(question)
        answers = [engine.query_bundle_entrypoint(bundle, f"memories/{rule}")[0] for rule in RULES]
        return [answer.expressions[0] if answer.expressions else None for answer in answers]

    return ask


ROLES = st.sampled_from([["admin"], *NO_ADMIN])
PATHS = st.lists(st.sampled_from(["user", "u", "alice", "bob", "al", "agent", "pool", "é:%"]), max_size=5)


@given(st.data(), st.sampled_from(["alice", "bob", "u", "user", "é:%"]), ROLES)
@settings(max_examples=4000 if LONG else 400, deadline=None)
def test_an_independent_rego_engine_decides_the_same(data: st.DataObject, user: str, roles: JSON) -> None:
    namespace = Namespace(data.draw(PATHS) or ["user"])
    prefix = Namespace(data.draw(PATHS | st.just([*namespace])))
    rooms = st.builds(Namespace, PATHS | st.integers(0, 5).map(lambda depth: [*namespace[:depth]]))
    grants = st.lists(st.builds(Grant, rooms, st.sets(st.sampled_from(OPERATIONS)).map(tuple)), max_size=2)
    agent = data.draw(st.sampled_from([None, None, "bot", ""]))
    who = Principal(user, claims={"roles": roles}, agent=agent, grants=tuple(data.draw(grants)))
    for operation in OPERATIONS:
        decision, attributes, looked_at, conditions, owner = _independent()(
            {"operation": operation, "namespace": [*namespace], "key": "key", "value": {"n": 1}, "index": {},
             "namespace_prefix": [*prefix], "filter": {}, "context": msgspec.json.decode(who.context)}
        )  # fmt: skip
        reason = refusal(BUILT_IN, who, str(namespace), operation)
        assert decision == ({"allow": True} if reason is None else {"allow": False, "reason": reason})
    assert msgspec.json.decode(BUILT_IN.attributes(who, namespace, "key", b'{"n":1}', None)) == attributes
    defined = looked_at is not None and conditions is not None
    expected = ReadScope(Namespace.checked(looked_at), Filter.parse(conditions), owner) if defined else None
    assert narrowed(BUILT_IN, who, str(prefix)) == expected


def test_a_get_goes_by_what_was_put_elsewhere_a_moment_ago(tmp_path: Path) -> None:
    """The first get after it, too, though it begins with what its own process has loaded."""
    path, keys, place = tmp_path / "memory.db", MemoryKey(), "user:alice"
    with Alcove(path, keys=keys, embedder=None) as here, Alcove(path, keys=keys, embedder=None) as elsewhere:
        alice = here.as_user("alice")
        alice.put(place, "k", {"n": 1})
        elsewhere.admin.put_policies({"authz": 'package memories.authz\n\ndecision := {"reason": "closed"}'})
        with pytest.raises(PermissionDenied, match="closed"):
            alice.get(place, "k")
        elsewhere.admin.put_policies({})
        assert alice.get(place, "k") is not None
        elsewhere.admin.put_settings({"max_depth": 1})
        with pytest.raises(InvalidRequest, match="1 to 1 segments"):
            alice.get(place, "k")
        elsewhere.admin.put_settings({"max_depth": None})
        assert alice.get(place, "k") is not None
        denied = here.admin.audit(action="denied").entries
        assert [entry.details["count"] for entry in denied] == [1]  # and none by a policy that had gone


CLOSED = {"authz": 'package memories.authz\n\ndecision := {"reason": "closed"}'}


def test_a_put_goes_by_what_was_put_elsewhere_a_moment_ago(tmp_path: Path) -> None:
    path, keys, place = tmp_path / "memory.db", MemoryKey(), "user:alice"
    with Alcove(path, keys=keys, embedder=None) as here, Alcove(path, keys=keys, embedder=None) as elsewhere:
        alice = here.as_user("alice")
        alice.put(place, "k", {"n": 1})
        elsewhere.admin.put_policies(CLOSED)
        with pytest.raises(PermissionDenied, match="closed"):
            alice.put(place, "k", {"n": 2})
        elsewhere.admin.put_policies({})
        assert alice.put(place, "k", {"n": 3}).revision == 2
        elsewhere.admin.put_settings({"max_depth": 1})
        with pytest.raises(InvalidRequest, match="1 to 1 segments"):
            alice.put(place, "k", {"n": 4})
        denied = here.admin.audit(action="denied").entries
        assert [entry.details["count"] for entry in denied] == [1]  # and none by a policy that had gone


def test_a_put_is_decided_again_if_rules_come_between_its_decision_and_its_commit(tmp_path: Path) -> None:
    path, keys, place = tmp_path / "memory.db", MemoryKey(), "user:alice"
    with Alcove(path, keys=keys, embedder=None) as here, Alcove(path, keys=keys, embedder=None) as elsewhere:
        alice, engine = here.as_user("alice"), here.memories._engine
        alice.put(place, "k", {"n": 1})
        submit = engine.submit

        def closed_meanwhile(*args: Any) -> Any:
            elsewhere.admin.put_policies(CLOSED)
            return submit(*args)

        engine.submit = closed_meanwhile  # type: ignore[assignment]
        with pytest.raises(PermissionDenied, match="closed"):
            alice.put(place, "k", {"n": 2})
        engine.submit = submit
        elsewhere.admin.put_policies({})
        kept = alice.get(place, "k")
        assert kept is not None
        assert kept.value == {"n": 1}
