"""A filter policy that puts another prefix in place of a room's: what agents then read, and what they do not.

Such a policy leads a search that it does not accept back to `user:alice`, where the memories of all of her
agents are. An agent must not be shown those as the content of the room that it asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, PermissionDenied
from alcove.client.store import AgentsHandle
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.policy.rego import Bundle, Policy

SECRET = "Alice has an illness that only her doctor knows of."
NARROWING = """package memories.filter

user_prefix := ["user", input.context.user_id]

inside if array.slice(input.namespace_prefix, 0, 2) == user_prefix

namespace_prefix := input.namespace_prefix if inside

namespace_prefix := user_prefix if not inside

attribute_filter := {"namespace": "user", "sub": input.context.user_id}
"""
PUBLISHED = {
    "authz": """package memories.authz

default decision = {"allow": false, "reason": "access denied"}

decision = {"allow": true} if {
	input.namespace[0] == "user"
	input.namespace[1] == input.context.user_id
}
""",
    "attributes": """package memories.attributes

default attributes = {}

attributes = {"namespace": input.namespace[0], "sub": input.namespace[1]} if {
	count(input.namespace) >= 2
}
""",
    "filter": """package memories.filter

is_admin if {
	"admin" in input.context.jwt_claims.roles
}

namespace_prefix := input.namespace_prefix if { is_admin }

namespace_prefix := user_prefix if {
	not is_admin
	not starts_with(input.namespace_prefix, user_prefix)
}

attribute_filter := {} if { is_admin }

attribute_filter := {"namespace": "user", "sub": input.context.user_id} if { not is_admin }

# What the published text leaves undefined:
user_prefix := ["user", input.context.user_id]

starts_with(namespace, prefix) if array.slice(namespace, 0, count(prefix)) == prefix

namespace_prefix := input.namespace_prefix if {
	not is_admin
	starts_with(input.namespace_prefix, user_prefix)
}
""",
}
"""The default policies of the published memory service, and the names that they leave undefined."""
BUNDLES = {"a filter that narrows": {"filter": NARROWING}, "the published bundle": PUBLISHED}
ON = {"enabled": True}
SPECS: dict[str, Any] = {
    "agents": [
        {
            "name": "bot",
            "auto_memory": True,
            "memory": {
                "private": ON,
                "pools": ["org:docs"],
                "scratch": ["global", "session"],
                "conversation": {"summarize": True, "recall": 5},
                "session_memory": True,
                "facts": ON,
                "long_term": ON,
            },
        },
        {"name": "doctor", "memory": {"long_term": ON}},
    ],
    "teams": [{"name": "crew", "workers": ["bot"]}],
}
READS: list[tuple[str, dict[str, Any]]] = [
    ("list_memories", {}),
    ("search_memory", {"query": "illness"}),
    ("list_pool", {"pool": "org:docs"}),
    ("search_pool", {"pool": "org:docs", "query": "illness"}),
    ("list_shared", {"team": "crew"}),
    ("search_shared", {"team": "crew", "query": "illness"}),
    ("recall_facts", {"query": "illness"}),
    ("shared_memory_list", {"namespace": "global"}),
    ("shared_memory_list", {"namespace": "session", "session_id": "s"}),
]
KEY = "agent-illness"


@pytest.fixture(params=[*BUNDLES])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Alcove]:
    with Alcove(tmp_path / "memory.db", embedder=None) as opened:
        opened.admin.put_policies(BUNDLES[request.param])
        value = {"content": SECRET, "type": "fact", "tags": [], "scope": "agent"}
        at = ("user", "alice", "long-term", "agent", "doctor")
        opened.as_user("alice").put(at, KEY, value, index={"content": SECRET})
        yield opened


@pytest.fixture
def alice(memory: Alcove) -> AgentsHandle:
    return memory.agents(SPECS).as_user("alice")


@pytest.mark.parametrize(("tool", "arguments"), READS)
def test_a_tool_reads_nothing_outside_the_room_that_it_asked_for(
    alice: AgentsHandle, tool: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(PermissionDenied) as refused:
        alice.call("bot", tool, **arguments)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("tool", ["recall", "forget"])
def test_no_key_of_another_agent_is_read_or_forgotten_through_the_fallback(
    memory: Alcove, alice: AgentsHandle, tool: str
) -> None:
    with pytest.raises(Exception, match=r"denied|there is nothing"):
        alice.call("bot", tool, key=KEY)
    at = ("user", "alice", "long-term", "agent", "doctor")
    assert memory.as_user("alice").get(at, KEY) is not None


def test_a_context_leaves_out_the_rooms_that_the_policy_does_not_show_and_goes_on(
    alice: AgentsHandle,
) -> None:
    alice.call("bot", "memory_remember", content="Prefers short answers.")
    context = alice.context("bot", "s", "Which illness do I have?")
    assert SECRET not in str(context.messages)
    assert "Prefers short answers." in str(context.messages)
    assert context.receipt.degraded is not None
    assert "preamble is left out" in context.receipt.degraded
    assert "facts is left out" in context.receipt.degraded
    assert "long_term" not in context.receipt.degraded


def test_the_rooms_of_an_agent_are_those_that_the_policy_shows(alice: AgentsHandle) -> None:
    rooms = {str(each.namespace): each.memories for each in alice.rooms("bot")}
    assert rooms == {"user:alice:long-term:all": 0, "user:alice:long-term:agent:bot": 0}


def test_a_room_that_the_policy_accepts_works_as_ever(alice: AgentsHandle) -> None:
    alice.call("doctor", "memory_remember", content="Sleeps well.")
    found = alice.call("doctor", "memory_recall", query="sleep").result["items"]
    assert {each["content"] for each in found} == {SECRET, "Sleeps well."}


def test_a_user_is_still_led_to_their_own_memories_and_told_so(memory: Alcove) -> None:
    found = memory.as_user("alice").search(("org", "docs"), query="illness")
    assert [each.key for each in found] == [KEY]
    assert found.namespace_prefix == ("user", "alice")


def test_a_policy_may_narrow_an_agent_to_a_part_of_its_room(tmp_path: Path) -> None:
    built_in = Bundle.load().filter
    part = built_in.replace("namespace_prefix := input.namespace_prefix if {", PART, 1)
    (tmp_path / "filter.rego").write_text(part)
    room = Namespace(("org", "docs"))
    agent = Principal("alice", agent="bot", grants=(Grant(room),))
    assert Policy(tmp_path).narrow(agent, room).prefix == ("org", "docs", "alice")


PART = """namespace_prefix := array.concat(input.namespace_prefix, [input.context.user_id]) if {
	input.context.agent != null
	inside
}

namespace_prefix := input.namespace_prefix if {
	input.context.agent == null
"""
