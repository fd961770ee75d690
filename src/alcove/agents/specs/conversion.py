"""Writes spec files of any spelling in our own form."""

from __future__ import annotations

from pathlib import Path

import yaml

from alcove.agents.specs.loading import read_contents, read_specs
from alcove.agents.specs.problems import InvalidSpecs
from alcove.agents.specs.spec_set import KINDS, SpecSet


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no YAML aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def read_valid_specs(path: Path) -> SpecSet:
    """The specs of a file or a folder; raises `InvalidSpecs` with every mistake in them."""
    specs = read_specs(read_contents(path))
    if specs.problems:
        raise InvalidSpecs(specs.problems)
    return specs


def to_own_form(specs: SpecSet) -> dict[str, list[object]]:
    """The fields that the files set, in our own form; defaults are left out."""
    blocks = {kind: [spec.translation.tree for spec in getattr(specs, kind)] for kind in KINDS}
    has_knowledge = bool(specs.knowledge_files)
    return {kind: trees for kind, trees in blocks.items() if trees or (kind == "knowledge" and has_knowledge)}


def to_yaml(specs: SpecSet) -> str:
    """The specs as one YAML document in our own form."""
    return yaml.dump(to_own_form(specs), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
