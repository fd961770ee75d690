"""A service with agents that converse, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.conversation_service import Salon, written
from tests.support.service import serving
from tests.support.tokens import FLAGS


@pytest.fixture(scope="module")
def salon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Salon]:
    specs = written(folder := tmp_path_factory.mktemp("salon"))
    with serving(folder, *FLAGS, "--agents", specs) as running:
        yield Salon(running, specs)
