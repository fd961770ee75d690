"""Files that are no specs, or that mean harm, are clear errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from alcove.agents.specs.loading import load
from alcove.agents.specs.reader import InvalidSpecs


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"agents: [{name: caf\xe9}]", "UTF-8 (byte 19 is not)"),
        (b"agents: [", "not valid YAML: "),
        (b"agents: []\nagents: []\n", "each field once (lines 1 and 2)"),
        (b"agents:\n  - name: a\n    name: b\n", "agents[0].name: expected each field once"),
        (b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
         b"d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nagents: [*e,*e,*e]",
         "50000 values"),
        (b"agents: &a [*a]", "an alias inside the block"),
        (b"agents: " + b"[" * 5000, "24 levels"),
        (b"agents: " + b"[" * 40 + b"]" * 40, "24 levels"),
        (b"x" * (1024 * 1024 + 1), "at most 1048576 bytes"),
        (b"agents: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        (b"1: x", "fields named by text (line 1"),
        (b"no: x", "fields named by text"),
        (b"[a]: x", "fields named by text"),
        (b'agents: [{name: "\\ud800"}]', "agents[0].name: expected text without lone surrogates"),
        (b"agents: [{name: \x07}]", "not valid YAML: "),
        (b"agents: [{name: a, memory: {facts: {max_facts: " + b"9" * 5000 + b"}}}]", "not valid YAML: "),
        (b"just text", "a block with agents, teams, knowledge"),
        (b"- a", "a block with agents, teams, knowledge"),
        (b"a: !!set {x}\n", "unknown field"),
        (b"agents: [{name: !!binary aGk=}]", "agents[0].name: expected text"),
    ],
)  # fmt: skip
def test_a_hostile_or_broken_file_is_a_clear_error(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "agents.yaml"
    file.write_bytes(content)
    with pytest.raises(InvalidSpecs) as caught:
        load(file)
    assert any(expected in str(problem) for problem in caught.value.problems), caught.value.message
