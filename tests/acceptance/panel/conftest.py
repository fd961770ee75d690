"""One service with agents, documents and memories for all tests of the panel, and a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.panel import ROLES, SPECS, WIDE, OpenPanel, Panel, Scheme, add_sample_data, run_chromium
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS, token


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("panel")
    (folder / "manuals").mkdir()
    (folder / "manuals" / "kettle.md").write_text("# Kettle\nDescale it once a month with vinegar.")
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", specs) as running:
        for user in (*ROLES, "alice"):
            add_sample_data(running, user)
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """For this folder only: Playwright keeps an event loop running, and other tests run their own."""
    with run_chromium() as running:
        yield running


@pytest.fixture(scope="package")
def idle_panels(browser: Browser) -> Iterator[list[Panel]]:
    """Pages that tests have finished with: using one again takes half the time of making one."""
    panels: list[Panel] = []
    yield panels
    for panel in panels:
        panel.close()


@pytest.fixture
def open_panel(service: Service, browser: Browser, idle_panels: list[Panel]) -> Iterator[OpenPanel]:
    """Opens the panel as a user; an error in any of its scripts fails the test."""
    opened: list[Panel] = []

    def open_as(user: str, *roles: str, width: int = WIDE, scheme: Scheme = "light") -> Panel:
        panel = idle_panels.pop() if idle_panels else Panel(browser, service.url)
        opened.append(panel)
        panel.set_window(width, scheme)
        return panel.sign_in(token(user, roles=[*roles]))

    yield open_as
    for panel in opened:
        assert not panel.errors, panel.errors
        panel.sign_out()
        idle_panels.append(panel)
