"""One service with agents, documents and memories for all tests of the panel, and a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import WIDE, Seen, chromium
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS, token

SPECS = """
agents:
  - name: helper
    memory: {private: {}, facts: {}, long_term: {}, scratch: [agent], knowledge: {sources: [manuals]}}
knowledge:
  - {name: manuals, path: ./manuals}
"""
ROLES = {"user": [], "auditor": ["auditor"], "admin": ["admin"]}


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("house")
    (folder / "manuals").mkdir()
    (folder / "manuals" / "kettle.md").write_text("# Kettle\nDescale it once a month with vinegar.")
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", specs) as running:
        for user in (*ROLES, "alice"):
            furnish(running, user)
        yield running


def furnish(service: Service, user: str) -> None:
    """Memories, a conversation and tool calls of a user."""
    key = token(user)
    for n, said in enumerate(("I drink green tea", "We fly to Rome", "The report is due")):
        index = {"index": {"text": said}}
        body = {"namespace": ["user", user, "notes"], "key": f"note-{n}", "value": {"text": said}, **index}
        service.call("PUT", "/v1/memories", key, json=body).raise_for_status()
    turns = [{"role": "user", "content": "I fly on Friday."}, {"role": "assistant", "content": "Noted."}]
    at = "/v1/agents/helper/sessions/monday/turns"
    service.call("POST", at, key, json={"messages": turns}).raise_for_status()
    told = {"arguments": {"key": "coat", "content": "A light coat"}}
    service.call("POST", "/v1/agents/helper/tools/remember", key, json=told).raise_for_status()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For no longer than a file: while it is there, an event loop runs, and other tests run their own."""
    with chromium() as running:
        yield running


@pytest.fixture
def panel(house: Service, browser: Browser) -> Iterator[Callable[..., Seen]]:
    """Opens the panel as somebody; whatever went wrong in it fails the test."""
    opened: list[Seen] = []

    def open_panel(user: str, *roles: str, width: int = WIDE, shade: str = "light") -> Seen:
        opened.append(Seen(browser, house.url, width=width, shade=shade))
        return opened[-1].sign_in(token(user, roles=[*roles]))

    yield open_panel
    for each in opened:
        each.close()
