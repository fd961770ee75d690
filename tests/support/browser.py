"""A real headless Chromium, and the panel in it as somebody sees it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.support.waiting import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDE, NARROW = 1280, 380
NEEDED = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the package chromium")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Seen:
    """The panel in a browser of its own, and what went wrong in it."""

    def __init__(self, browser: Browser, url: str, *, width: int = WIDE, shade: str = "light") -> None:
        self._context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if shade == "dark" else "light"
        )
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.url, self.troubles, self.complaints = url, list[str](), list[str]()
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append(f"a dialog: {dialog.message}"))
        self.page.on("console", self._heard)

    def _heard(self, message: ConsoleMessage) -> None:
        """Keeps what the console calls an error, but for answers that are one."""
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def sign_in(self, token: str) -> Seen:
        self.page.goto(self.url)
        self.page.fill("input[name=token]", token)
        self.page.click("text=Sign in >> nth=-1")
        self.page.wait_for_selector("#top nav a[aria-current]")
        return self

    def sign_in_beside(self, token: str) -> None:
        """Replaces the cookie of the page, as another application on this host can."""
        answer = self._context.request.post(f"{self.url}/panel/session", data={"token": token})
        assert answer.ok, answer.text()

    def show(self, view: str) -> Page:
        """A view by its address, once it is whole."""
        self.page.goto(f"{self.url}/#{view}")
        self.page.reload()  # as somebody comes by a link
        return self.shown()

    def shown(self) -> Page:
        self.page.wait_for_selector("main:not([aria-busy]) h1")
        return self.page

    @property
    def text(self) -> str:
        return self.page.inner_text("main")

    @property
    def scroll_width(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def violations(self) -> list[tuple[str, str]]:
        """What axe takes for serious, with where it is."""
        found: list[dict[str, Any]] = Axe().run(self.page).response["violations"]
        serious = (each for each in found if each["impact"] in ("serious", "critical"))
        return [(each["id"], node["html"]) for each in serious for node in each["nodes"]]

    def close(self) -> None:
        self._context.close()
        assert not self.troubles, self.troubles
