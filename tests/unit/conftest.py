"""Whatever specs a test loads, the schema for editors takes, and our own form of them loads as the same."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from alcove.agents.specs import loading
from alcove.agents.specs.loading import read_specs, to_yaml
from alcove.agents.specs.reader import read_yaml
from tests.support.spec_schema import json_schema

SCHEMA = jsonschema_rs.validator_for(json_schema())


@pytest.fixture(autouse=True)
def everything_that_loads_fits_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    load = loading.build_catalogue

    def loaded(path: Any, contents: Any, max_depth: int) -> Any:
        catalogue = load(path, contents, max_depth)
        for content in contents.values():
            for document in read_yaml(content)[0]:
                SCHEMA.validate(document)
        own_form = {file: to_yaml(read_specs({file: content})) for file, content in contents.items()}
        again = load(path, {file: text.encode() for file, text in own_form.items()}, max_depth)
        kinds = ("agents", "teams", "knowledge")
        assert [getattr(again, kind) for kind in kinds] == [getattr(catalogue, kind) for kind in kinds]
        return catalogue

    monkeypatch.setattr(loading, "build_catalogue", loaded)
