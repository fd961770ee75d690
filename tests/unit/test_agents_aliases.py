"""The published spellings load as they stand, and an error in one names the path as it was written."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from alcove.agents.specs.loading import load
from alcove.agents.specs.reader import InvalidSpecs
from alcove.agents.specs.records import (
    Agent,
    AgentMemory,
    Catalogue,
    Conversation,
    Facts,
    KnowledgeUse,
    LongTerm,
    Private,
    SessionMemory,
    Team,
)


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    return tmp_path / "agents.yaml"


def loaded(file: Path, text: str) -> Catalogue:
    file.write_text(dedent(text), encoding="utf-8")
    return load(file)


def refused(file: Path, text: str) -> list[tuple[str, str]]:
    with pytest.raises(InvalidSpecs) as caught:
        loaded(file, text)
    assert {problem.file for problem in caught.value.problems} == {str(file)}
    return [(problem.path, problem.message) for problem in caught.value.problems]


def test_our_own_spelling(specs: Path) -> None:
    found = loaded(
        specs,
        """
        agents:
          - name: researcher
            owner: system
            instructions: You find sources and keep what matters.
            shared_with: ["*"]                       # who may use the agent; never who sees memory
            memory:
              private:   {enabled: true, namespace: "agent:{agent_name}:{session_id}"}
              pools:     ["org:engineering-docs", "project:{agent_name}-shared"]
              scratch:   [agent, workflow, session]
              facts:     {enabled: true, max_facts: 100}
              long_term: {enabled: true, recall_budget: 50}
            auto_memory: true
          - name: writer
        teams:
          - name: research-team
            workers: [researcher, writer]
            shared_memory_namespace: "team:{team_name}"
        """,
    )
    assert found.agents["researcher"] == Agent(
        name="researcher",
        instructions="You find sources and keep what matters.",
        shared_with=("*",),
        memory=AgentMemory(
            private=Private(namespace="agent:{agent_name}:{session_id}"),
            pools=("org:engineering-docs", "project:{agent_name}-shared"),
            scratch=("agent", "workflow", "session"),
            conversation=Conversation(),
            facts=Facts(),
            long_term=LongTerm(),
        ),
        auto_memory=True,
    )
    assert found.agents["writer"] == Agent(name="writer")
    assert found.teams == {"research-team": Team(name="research-team", workers=("researcher", "writer"))}
    assert found.warnings == ()
    assert [name for name, team in found.teams.items() if "writer" in team.workers] == ["research-team"]


def test_hooks_beside_primitives_say_whether_turns_are_stored(specs: Path) -> None:
    found = loaded(
        specs,
        """
        agents:
          - name: storing
            primitives: {memory: {enabled: true}}
            hooks: {auto_memory: true, auto_trace: false}
            provider_overrides: {temperature: 0}
            max_turns: 10
          - name: quiet
            primitives: {memory: {enabled: true}}
            hooks: {autoMemory: false}
        """,
    )
    storing, quiet = found.agents["storing"], found.agents["quiet"]
    assert [storing.auto_memory, quiet.auto_memory] == [True, False]
    assert storing.memory.conversation.enabled, "turns that are stored are loaded, too"
    assert not quiet.memory.conversation.enabled
    assert [each.removeprefix(f"{specs}: ") for each in found.warnings] == [
        "agents[0].hooks.auto_trace: not used here",
        "agents[0].max_turns: not used here",
        "agents[0].provider_overrides: not used here",
    ]


def test_auto_memory_is_said_once(specs: Path) -> None:
    at, agent = "agents[0].hooks.auto_memory", "{name: a, primitives: {}, auto_memory: false, hooks: %s}"
    text = f"agents: [{agent % '{auto_memory: true}'}]"
    assert refused(specs, text) == [(at, "expected this once, not also as agents[0].auto_memory")]
    text = "agents: [{name: a, primitives: {}, hooks: {auto_memory: 3}}]"
    assert refused(specs, text) == [(at, "expected true or false")]


def test_primitives_on_an_agent(specs: Path) -> None:
    found = loaded(
        specs,
        """
        agents:
          - name: research-assistant
            model: gpt-4o
            primitives:
              memory:
                enabled: true
                namespace: "agent:{agent_name}:{session_id}"
                shared_namespaces: ["org:engineering-docs"]
              tools: {enabled: true}
          - name: quiet
            primitives: {memory: {enabled: false, shared_namespaces: ["org:engineering-docs"]}}
          - name: plain
            primitives: {memory: }
        teams:
          - name: t
            workers: [research-assistant]
            shared_memory_namespace: "team:{team_name}:findings"
        """,
    )
    assert found.agents["research-assistant"].memory == AgentMemory(
        private=Private(namespace="agent:{agent_name}:{session_id}"), pools=("org:engineering-docs",)
    )
    assert not found.agents["quiet"].memory.private.enabled
    assert found.agents["quiet"].memory.pools == ()
    assert found.agents["plain"].memory == AgentMemory()
    assert found.teams["t"].shared_memory_namespace == "team:{team_name}:findings"
    assert [warning.split(": ", 1)[1] for warning in found.warnings] == [
        "agents[0].model: not used here",
        "agents[0].primitives.tools: not used here",
    ]


def test_a_memory_block_in_camel_case(specs: Path) -> None:
    found = loaded(
        specs,
        """
        agents:
          - name: helper
            role: assistant
            systemPrompt: Be kind.
            memory:
              conversation: {enabled: true, windowSize: 12, summarize: true}
              knowledge: {enabled: true, sources: [handbook], retrievalLimit: 3, similarityThreshold: 0.7}
              facts: {enabled: true, maxFacts: 7, namespace: helper-facts}
        """,
    )
    assert found.agents["helper"] == Agent(
        name="helper",
        role="assistant",
        instructions="Be kind.",
        memory=AgentMemory(
            conversation=Conversation(window_size=12, summarize=True),
            knowledge=KnowledgeUse(sources=("handbook",), retrieval_limit=3, similarity_threshold=0.7),
            facts=Facts(max_facts=7, namespace="helper-facts"),
        ),
    )
    assert "'handbook'" in found.warnings[0]


def test_session_memory_beside_types(specs: Path) -> None:
    found = loaded(
        specs,
        """
        agents:
          - name: helper
            memory:
              session_memory: true
              types:
                - id: working_memory
                  enabled: true
                  config: {max_tokens: 8000, compaction_strategy: summarize}
                - {id: long_term, enabled: true, config: {max_memories: 30}}
          - name: other
            memory:
              session_memory: false
              types:
                - {id: working_memory, config: {compaction_strategy: truncate}}
                - {id: long_term, enabled: false}
        """,
    )
    assert found.agents["helper"].memory == AgentMemory(
        session_memory=SessionMemory(),
        conversation=Conversation(max_tokens=8000, summarize=True),
        long_term=LongTerm(recall_budget=30),
    )
    assert found.agents["other"].memory == AgentMemory(conversation=Conversation())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("{recall_budget: 30}", LongTerm(recall_budget=30)),
        ("{recallBudget: 30, scope: agent}", LongTerm(recall_budget=30)),
        ("{max_memories: 30, scope: user}", LongTerm(recall_budget=30, scope="user")),
        ("{scope: all}", LongTerm(scope="all")),
    ],
)
def test_long_term_memory_among_types_takes_a_recall_budget_and_a_scope(
    specs: Path, config: str, expected: LongTerm
) -> None:
    written = f"{{name: a, memory: {{types: [{{id: long_term, enabled: true, config: {config}}}]}}}}"
    assert loaded(specs, written).agents["a"].memory.long_term == expected
    if "max_memories" not in config:
        ours = f"{{name: a, memory: {{long_term: {config}}}}}"
        assert loaded(specs, ours).agents["a"].memory.long_term == expected


def test_auto_memory_turns_the_conversation_on_unless_the_spec_says_otherwise(specs: Path) -> None:
    def conversation(written: str) -> Conversation:
        return loaded(specs, f"{{name: a, {written}}}").agents["a"].memory.conversation

    on, off = Conversation(), Conversation(enabled=False)
    assert conversation("auto_memory: true") == on
    assert conversation("autoMemory: true, memory: ") == on
    assert conversation("auto_memory: true, memory: {private: {}}") == on
    assert conversation("auto_memory: true, memory: {conversation: {window_size: 3}}").window_size == 3
    assert conversation("auto_memory: true, memory: {conversation: {enabled: false}}") == off
    assert conversation("auto_memory: true, memory: {types: [{id: working_memory, enabled: false}]}") == off
    assert conversation("auto_memory: false") == off
    assert conversation("memory: {private: {}}") == off


def test_a_resource_with_metadata_and_spec(specs: Path) -> None:
    found = loaded(
        specs,
        """
        apiVersion: example.dev/v1
        kind: Agent
        metadata: {name: helper, version: 1.2.0, labels: {a: b}}
        spec:
          role: assistant
          systemPrompt: Be kind.
          model: {name: gpt-4o}
          memory: {facts: {maxFacts: 5}}
        ---
        apiVersion: example.dev/v1
        kind: Agent
        metadata: {name: empty, version: 2}
        spec:
        ---
        kind: Team
        metadata: {name: both}
        spec: {workers: [helper, empty]}
        """,
    )
    assert found.agents["helper"] == Agent(
        name="helper",
        version="1.2.0",
        role="assistant",
        instructions="Be kind.",
        memory=AgentMemory(facts=Facts(max_facts=5)),
    )
    assert found.agents["empty"] == Agent(name="empty", version="2")
    assert found.teams["both"].workers == ("helper", "empty")
    assert [warning.split(": ", 1)[1] for warning in found.warnings] == [
        "document 1: metadata.labels: not used here",
        "document 1: spec.model: not used here",
    ]


def test_a_file_may_be_one_agent(specs: Path) -> None:
    assert loaded(specs, "{name: solo, systemPrompt: Hm.}").agents == {
        "solo": Agent(name="solo", instructions="Hm.")
    }
    assert refused(specs, "{name: solo, colour: red}")[0][0] == "colour"


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        (
            "agents: [{name: a, memory: {facts: {maxFacts: many}}}]",
            "agents[0].memory.facts.maxFacts",
            "whole number",
        ),
        (
            "agents: [{name: a, primitives: {memory: {shared_namespaces: [ok, 'u:x']}}}]",
            "agents[0].primitives.memory.shared_namespaces[1]",
            "'u'",
        ),
        (
            "agents: [{name: a, primitives: {memory: {namespace: 'a:{nobody}'}}}]",
            "agents[0].primitives.memory.namespace",
            "{nobody}",
        ),
        (
            "agents: [{name: a, primitives: {memory: {colour: 1}}}]",
            "agents[0].primitives.memory.colour",
            "unknown field",
        ),
        ("agents: [{name: a, primitives: {memory: 3}}]", "agents[0].primitives.memory", "a block"),
        ("agents: [{name: a, primitives: 3}]", "agents[0].primitives", "a block"),
        (
            "{name: a, memory: {types: [{id: working_memory, config: {compaction_strategy: forget}}]}}",
            "memory.types[0].config.compaction_strategy",
            "summarize, truncate",
        ),
        (
            "agents: [{name: a, memory: {types: [{id: dreams}]}}]",
            "agents[0].memory.types[0].id",
            "working_memory",
        ),
        ("agents: [{name: a, memory: {types: [{id: [x]}]}}]", "agents[0].memory.types[0].id", "long_term"),
        ("agents: [{name: a, memory: {types: 3}}]", "agents[0].memory.types", "a list"),
        (
            "agents: [{name: a, memory: {types: [{id: long_term, config: {max_memories: 0}}]}}]",
            "agents[0].memory.types[0].config.max_memories",
            "from 1",
        ),
        (
            "{name: a, memory: {types: [{id: long_term, config: {max_memories: 3, recall_budget: 3}}]}}",
            "memory.types[0].config.recall_budget",
            "not also as memory.types[0].config.max_memories",
        ),
        (
            "{name: a, memory: {types: [{id: long_term, config: {scope: everybody}}]}}",
            "memory.types[0].config.scope",
            "one of agent, all, user",
        ),
        (
            "{name: a, memory: {types: [{id: long_term, config: {c: 0}}]}}",
            "memory.types[0].config.c",
            "unknown field",
        ),
        (
            "agents: [{name: a, memory: {types: [{id: long_term, config: 3}]}}]",
            "agents[0].memory.types[0].config",
            "a block with enabled, recall_budget, scope",
        ),
        (
            "agents: [{name: a, memory: {long_term: {}, types: [{id: long_term}]}}]",
            "agents[0].memory.types[0]",
            "not also as agents[0].memory.long_term",
        ),
        (
            "agents: [{name: a, systemPrompt: x, instructions: y}]",
            "agents[0].instructions",
            "not also as agents[0].systemPrompt",
        ),
        (
            "agents: [{name: a, autoMemory: true, auto_memory: true}]",
            "agents[0].auto_memory",
            "not also as agents[0].autoMemory",
        ),
        ("agents: [{name: a, 'primitives.memory': }]", "agents[0].primitives.memory", "unknown field"),
        (
            "agents: [{name: a, memory: {'types.long_term': {}}}]",
            "agents[0].memory.types.long_term",
            "unknown",
        ),
        (
            "{kind: Agent, metadata: {name: a}, spec: {memory: {factz: {}}}}",
            "spec.memory.factz",
            "Did you mean 'facts'?",
        ),
        ("{kind: Agent, metadata: {name: a}, spec: {name: b}}", "spec.name", "not also as metadata.name"),
        ("{kind: Agent, metadata: {}, spec: {}}", "metadata.name", "required"),
        ("{kind: Agent, metadata: {name: u}}", "metadata.name", "another name"),
        ("{kind: Agent, metadata: {name: a, colour: red}}", "metadata.colour", "unknown field"),
        ("{kind: Agent, spec: {}}", "metadata.name", "required"),
        ("{kind: Agent, metadata: 3}", "metadata", "a block with name, version"),
        ("{kind: Agent, metadata: {name: a}, spec: 3}", "spec", "a block of fields"),
        ("{kind: Agent, metadata: {name: a}, status: {}}", "status", "unknown field"),
        ("{kind: Pod, metadata: {name: a}}", "kind", "Agent, Team"),
        ("{apiVersion: 1, kind: Agent, metadata: {name: a}}", "apiVersion", "text"),
        ("{apiVersion: v1, agents: []}", "kind", "Agent"),
    ],
)
def test_an_error_names_the_path_as_it_was_written(specs: Path, text: str, path: str, expected: str) -> None:
    found = refused(specs, text)
    assert any(where == path and expected in what for where, what in found), found


def test_what_other_programs_need_is_an_unknown_field_in_our_own_spelling(specs: Path) -> None:
    assert refused(specs, "agents: [{name: a, model: gpt-4o}]")[0][0] == "agents[0].model"
