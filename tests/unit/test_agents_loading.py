"""Specs that do not load say why: every reason at once, with file, path and expectation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from alcove.agents.specs.loading import load
from alcove.agents.specs.reader import InvalidSpecs
from alcove.core.errors import AlcoveError

A: dict[str, Any] = {"name": "a"}
PRIVATE = "agents[0].memory.private.namespace"
SHARED_MEMORY = "teams[0].shared_memory_namespace"


def refused(path: Path, **options: Any) -> list[str]:
    with pytest.raises(InvalidSpecs) as caught:
        load(path, **options)
    assert isinstance(caught.value, AlcoveError)
    assert caught.value.message == "\n".join(map(str, caught.value.problems))
    return [str(problem).removeprefix(f"{path}: ") for problem in caught.value.problems]


def _memory(**memory: Any) -> dict[str, Any]:
    return {"agents": [{"name": "a", "memory": memory}]}


def _private(template: str, **more: Any) -> dict[str, Any]:
    return _memory(private={"namespace": template, **more})


def _pool(template: str) -> dict[str, Any]:
    return _memory(private={}, pools=[template])


def _team(**team: Any) -> dict[str, Any]:
    return {"agents": [A], "teams": [{"name": "t", "workers": ["a"], **team}]}


@pytest.mark.parametrize(
    ("tree", "path", "expected"),
    [
        ({"agentz": []}, "agentz", "Did you mean 'agents'?"),
        ({"agents": {}}, "agents", "a list"),
        ({"agents": ["a"]}, "agents[0]", "a block with name"),
        ({"agents": [{}]}, "agents[0].name", "required"),
        ({"agents": [{"name": ""}]}, "agents[0].name", "text of 1 to 128"),
        ({"agents": [{"name": 7}]}, "agents[0].name", "text"),
        ({"agents": [{"name": "a\n"}]}, "agents[0].name", "printable"),
        ({"agents": [{**A, "colour": 1}]}, "agents[0].colour", "unknown field"),
        ({"agents": [{**A, "auto_memory": "yes"}]}, "agents[0].auto_memory", "true or false"),
        ({"agents": [{**A, "shared_with": "*"}]}, "agents[0].shared_with", "a list"),
        ({"agents": [{**A, "shared_with": ["group:"]}]}, "agents[0].shared_with[0]", "a group's name"),
        ({"agents": [{"name": "u"}]}, "agents[0].name", "another name"),
        ({"agents": [{"name": "user"}]}, "agents[0].name", "another name"),
        ({"agents": [A, A]}, "agents[1].name", "a name of its own"),
        (_private("agent:{nobody}"), PRIVATE, "no {nobody} here"),
        (_private("agent:{team_name}"), PRIVATE, "no {team_name} here"),
        (_private("agent:{"), PRIVATE, "braces only"),
        (_private("agent:{{agent_name}}"), PRIVATE, "braces only"),
        (_private("{session_id}"), PRIVATE, "something left"),
        (_private("{session_id}-:.{session_id}"), PRIVATE, "something left"),
        (_private("a::b"), PRIVATE, "not empty"),
        (_private("a:%zz"), PRIVATE, "%3A and %25"),
        (_private("a:b:c:d"), PRIVATE, "at most 3 segments"),
        (_private("a:{session_id}:b:c", session_isolated=True), PRIVATE, "at most 3"),
        (_private("a", session_isolated=True), PRIVATE, "with {session_id}"),
        (_private("a:u"), PRIVATE, "no segment 'u'"),
        (_private("user:a"), PRIVATE, "no segment 'user'"),
        (_private("u-{session_id}:a"), PRIVATE, "no segment 'u'"),
        (_private("facts:a"), PRIVATE, "another first segment"),
        (_private("é" * 511), PRIVATE, "1024 bytes"),
        (_pool("org:{user_id}"), "agents[0].memory.pools[0]", "no {user_id} here, only {agent_name}"),
        (_pool("org:{session_id}"), "agents[0].memory.pools[0]", "no {session_id} here"),
        (_pool("org:u:alice"), "agents[0].memory.pools[0]", "no segment 'u'"),
        (_pool("u"), "agents[0].memory.pools[0]", "no segment 'u'"),
        (_pool("user"), "agents[0].memory.pools[0]", "no segment 'user'"),
        (_pool("user:alice"), "agents[0].memory.pools[0]", "no segment 'user'"),
        (_pool("agent:a"), "agents[0].memory.pools[0]", "private rooms of 'a'"),
        (_pool("agent"), "agents[0].memory.pools[0]", "private rooms of 'a'"),
        (_pool("agent:{agent_name}:abc123"), "agents[0].memory.pools[0]", "private rooms of 'a'"),
        (_pool("a:b:c:d:e:f"), "agents[0].memory.pools[0]", "at most 5 segments"),
        (_pool("workflow:w"), "agents[0].memory.pools[0]", "another first segment"),
        (_pool("session"), "agents[0].memory.pools[0]", "another first segment"),
        (_pool("facts:a"), "agents[0].memory.pools[0]", "another first segment"),
        (_memory(pools=["org", "org"]), "agents[0].memory.pools[1]", "each pool once"),
        (_memory(scratch=["attic"]), "agents[0].memory.scratch[0]", "one of agent, debate, global"),
        (_memory(scratch=["agent", "agent"]), "agents[0].memory.scratch[1]", "each kind once"),
        (_memory(facts={"namespace": "Not This"}), "agents[0].memory.facts.namespace", "[a-z]"),
        (_memory(facts={"namespace": "line\n"}), "agents[0].memory.facts.namespace", "[a-z]"),
        (_memory(facts={"namespace": "u"}), "agents[0].memory.facts.namespace", "another name"),
        (_memory(facts={"namespace": "user"}), "agents[0].memory.facts.namespace", "another name"),
        (_memory(facts={"max_facts": True}), "agents[0].memory.facts.max_facts", "a whole number from 1"),
        (_memory(facts=None), "agents[0].memory.facts", "a block with enabled, max_facts"),
        (_memory(knowledge={"similarity_threshold": float("nan")}),
         "agents[0].memory.knowledge.similarity_threshold", "a number from 0"),
        (_memory(conversation={"max_tokens": "x"}), "agents[0].memory.conversation.max_tokens", "or nothing"),
        (_team(workers=["b"]), "teams[0].workers[0]", "the name of an agent (a), not 'b'"),
        (_team(workers=["a", "a"]), "teams[0].workers[1]", "each worker once"),
        (_team(workers=[]), "teams[0].workers", "not empty"),
        (_team(name="u"), "teams[0].name", "another name"),
        (_team(mode="chaos"), "teams[0].mode", "one of order, parallel"),
        (_team(shared_memory_namespace="team:{agent_name}"), SHARED_MEMORY, "{team_name}"),
        (_team(shared_memory_namespace="t:{user_id}"), SHARED_MEMORY, "no {user_id}"),
        (_team(shared_memory_namespace="t:{session_id}"), SHARED_MEMORY, "no {session_id}"),
        ({**_team(shared_memory_namespace="agent"), **_memory(private={})},
         SHARED_MEMORY, "private rooms of 'a'"),
        ({**_memory(knowledge={"sources": ["handbook"]}), "knowledge": []},
         "agents[0].memory.knowledge.sources[0]", "not 'handbook'"),
        ({"knowledge": [{"name": "k", "path": "x"}] * 2}, "knowledge[1].name", "a name of its own"),
        ({"knowledge": [{"name": "k"}]}, "knowledge[0].path", "required"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, tree: Any, path: str, expected: str) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    found = refused(file)
    assert any(line.startswith(f"{path}: ") and expected in line for line in found), found
    assert len(found) == 1, found


@pytest.mark.parametrize(
    ("one", "other", "isolated"),
    [
        ("mind", "mind", False),
        ("mind:{session_id}", "mind", False),
        ("mind:b", "mind:{agent_name}", False),
        ("mind", "mind:b", False),
        ("mind:{user_id}", "mind:b", False),
        ("{user_id}:b", "mind:b", False),
        ("mind:{session_id}", "mind:{agent_name}:{session_id}", True),
        ("mind:a-{session_id}", "mind:a-b-{session_id}", True),
    ],
)
def test_two_agents_never_share_private_rooms(tmp_path: Path, one: str, other: str, isolated: bool) -> None:
    pairs = (("a", one), ("b", other))
    tree = {
        "agents": [
            {"name": n, "memory": {"private": {"namespace": t, "session_isolated": isolated}}}
            for n, t in pairs
        ]
    }
    file = tmp_path / "agents.yaml"
    file.write_text(yaml.safe_dump(tree))
    (line,) = refused(file)
    assert line.startswith("agents[1].memory.private.namespace: expected a room apart from that of 'a'")


def test_all_errors_of_all_files_come_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("agents: [{name: a, colour: 1, owner: 2}, {name: u}]")
    (tmp_path / "b.yml").write_text("teams: [{name: t, workers: [a, nobody]}]\nagents: [{name: u}]")
    (tmp_path / "c.yaml").write_text("agents: [")
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / ".hidden.yaml").write_text("agents: [")
    with pytest.raises(InvalidSpecs) as caught:
        load(tmp_path)
    found = {(Path(t.file).name, t.path) for t in caught.value.problems}
    assert found == {
        ("a.yaml", "agents[0].colour"),
        ("a.yaml", "agents[0].owner"),
        ("a.yaml", "agents[1].name"),
        ("b.yml", "teams[0].workers[1]"),
        ("b.yml", "agents[0].name"),
        ("c.yaml", ""),
    }


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert "exists" in refused(tmp_path / "nothing.yaml")[0]
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InvalidSpecs, match=r"folder\.yaml: expected a file"):
        load(tmp_path)


def test_a_shallow_store_refuses_rooms_that_are_too_deep_for_it(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text(
        "agents: [{name: a, memory: {scratch: [agent, global], facts: {}, long_term: {}, private: {}}}]"
    )
    assert [line.split(":")[0] for line in refused(file, max_depth=3)] == [
        "agents[0].memory.facts",
        "agents[0].memory.long_term",
        "agents[0].memory.scratch[0]",
        PRIVATE,
    ]


def test_sources_are_looked_for_in_the_file_that_configures_any(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "a.yaml").write_text(
        "knowledge: [{name: handbook, path: docs, writers: [bob]}, {name: lost, path: gone}]"
    )
    (tmp_path / "b.yaml").write_text(
        "agents: [{name: a, memory: {knowledge: {sources: [handbook, nowhere]}}},"
        " {name: b, memory: {knowledge: {enabled: false, sources: [never]}}}]"
    )
    found = load(tmp_path)
    assert found.knowledge["handbook"].path == str(tmp_path / "docs")
    assert found.knowledge["handbook"].writers == ("bob",)
    nowhere, lost = found.warnings
    assert "b.yaml: agents[0].memory.knowledge.sources[1]: no file configures 'nowhere'" in nowhere
    assert "a.yaml: knowledge[1].path" in lost


def test_a_shared_room_inside_another_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("agents: [{name: a, memory: {pools: [org, 'org:docs']}}]")
    (warning,) = load(tmp_path).warnings
    assert "agents[0].memory.pools[1]: every reader of 'org' also reads 'org:docs'" in warning


@pytest.mark.parametrize(
    ("pool_of", "team", "loads"),
    [
        ({}, {"shared_with": ["alice"]}, False),
        ({"shared_with": ["*"]}, {"shared_with": []}, False),
        ({"shared_with": ["alice", "bob"]}, {"shared_with": ["alice"]}, False),
        ({"shared_with": [], "owner": "bob"}, {"shared_with": ["alice"]}, False),
        ({"shared_with": ["alice"]}, {"shared_with": ["alice", "bob"]}, True),
        ({"shared_with": [], "owner": "bob"}, {"shared_with": [], "owner": "bob"}, True),
        ({}, {}, True),
        ({}, {"shared_with": ["*", "alice"]}, True),
    ],
)
def test_a_pool_does_not_open_the_room_of_a_team_to_whom_the_team_does_not_admit(
    tmp_path: Path, pool_of: dict[str, Any], team: dict[str, Any], loads: bool
) -> None:
    agents = [{"name": "a", "memory": {"pools": ["team:t"]}, **pool_of}, {"name": "b"}]
    tree = {"agents": agents, "teams": [{"name": "t", "workers": ["b"], **team}]}
    (file := tmp_path / "agents.yaml").write_text(yaml.safe_dump(tree))
    if loads:
        assert load(file).warnings == ()
    else:
        (line,) = refused(file)
        assert line.startswith("agents[0].memory.pools[0]: expected another namespace")
        assert "'t'" in line


def test_a_team_does_not_open_the_room_of_another_either(tmp_path: Path) -> None:
    (file := tmp_path / "agents.yaml").write_text(
        "agents: [{name: a}]\n"
        "teams: [{name: t, workers: [a], shared_with: [alice], shared_memory_namespace: x},\n"
        "        {name: s, workers: [a], shared_memory_namespace: x}]"
    )
    (line,) = refused(file)
    assert line.startswith("teams[1].shared_memory_namespace: expected another namespace")


def test_aliases_and_merges_are_welcome(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "agents:\n"
        "  - &one {name: a, owner: bob, memory: &m {facts: {}}}\n"
        "  - {<<: *one, name: b}\n"
        "  - {name: c, memory: *m}\n",
        encoding="utf-8-sig",
    )
    found = load(tmp_path)
    assert [each.owner for each in found.agents.values()] == ["bob", "bob", "system"]
    assert found.agents["c"].memory == found.agents["a"].memory


def test_an_empty_file_or_folder_has_no_agents(tmp_path: Path) -> None:
    assert load(tmp_path).agents == {}
    assert load(tmp_path).warnings == (f"{tmp_path}: it has no .yaml or .yml file, so there are no agents",)
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "b.yaml").write_text("agents:\nteams:\n")
    assert load(tmp_path).agents == {}
    assert load(tmp_path).warnings == (f"{tmp_path}: no file has any spec, so there are no agents",)
