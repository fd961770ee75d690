"""What these tests share: a store in a file and at a URL, and stores of LangGraph's over them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
)

from alcove.client.store import Store
from alcove.integrations.langgraph import AlcoveStore
from tests.support.langgraph_stores import (
    OWN,
    Awaited,
    Deployment,
    Open,
    at_a_url,
    in_a_file,
    serving_with_keys,
)


@pytest.fixture(scope="module")
def in_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with in_a_file(tmp_path_factory.mktemp("file") / "memory.db") as one:
        yield one


@pytest.fixture(scope="module")
def at_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with serving_with_keys(tmp_path_factory.mktemp("served")) as running, at_a_url(*running) as one:
        yield one


@pytest.fixture(params=["in_file", "at_url"])
def deployment(request: pytest.FixtureRequest) -> Deployment:
    """A test that uses this runs once on a file and once on a URL."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(params=["called", "awaited"])
def open_store(request: pytest.FixtureRequest, deployment: Deployment) -> Iterator[Open]:
    """Opens stores, for a new user or over a handle; a test runs once by calls and once by awaiting them.

    Labels of any kind are put below the caller's own, unless a test says otherwise.
    """
    with asyncio.Runner() as runner, ExitStack() as opened:

        def opening(over: Store | None = None, **options: Any) -> BaseStore:
            if "by_user" not in options:
                options.setdefault("root", OWN)
            store = AlcoveStore(over or deployment.handle(deployment.new_user()), **options)
            if request.param == "called":
                return store
            if deployment.remote:  # a file stays open for the other tests
                opened.callback(lambda: runner.run(store.aclose()))
            return Awaited(store, runner)

        yield opening
