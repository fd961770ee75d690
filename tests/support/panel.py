"""The panel in a real headless Chromium, as a user, an auditor or an admin sees it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests.support.service import Service
from tests.support.tokens import token
from tests.support.waiting import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the package chromium")
WIDE, NARROW = 1280, 380
Scheme = Literal["light", "dark"]
ROLES: dict[str, list[str]] = {"user": [], "auditor": ["auditor"], "admin": ["admin"]}
SPECS = """
agents:
  - name: helper
    memory: {private: {}, facts: {}, long_term: {}, scratch: [agent], knowledge: {sources: [manuals]}}
knowledge:
  - {name: manuals, path: ./manuals}
"""


@contextmanager
def run_chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def add_sample_data(service: Service, user: str) -> None:
    """Stores memories, a conversation and a tool call of a user."""
    bearer = token(user)
    for n, text in enumerate(("I drink green tea", "We fly to Rome", "The report is due")):
        body = {"namespace": ["user", user, "notes"], "key": f"note-{n}", "value": {"text": text}}
        body["index"] = {"text": text}
        service.call("PUT", "/v1/memories", bearer, json=body).raise_for_status()
    turns = [{"role": "user", "content": "I fly on Friday."}, {"role": "assistant", "content": "Noted."}]
    path = "/v1/agents/helper/sessions/monday/turns"
    service.call("POST", path, bearer, json={"messages": turns}).raise_for_status()
    call_tool(service, user, "remember", key="coat", content="A light coat")


def call_tool(service: Service, user: str, tool: str, **arguments: str) -> None:
    path = f"/v1/agents/helper/tools/{tool}"
    service.call("POST", path, token(user), json={"arguments": arguments}).raise_for_status()


class Panel:
    """The panel in a browser profile of its own.

    `errors`: uncaught errors of scripts, and dialogs; none may happen. `console_errors`: what the console
    calls an error, except for answers that are one.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self._context = browser.new_context()
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.url, self.errors, self.console_errors = url, list[str](), list[str]()
        self._open_requests = set[Request]()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"a dialog: {dialog.message}"))
        self.page.on("console", self._add_console_error)
        self.page.on("request", self._request_started)
        self.page.on("requestfinished", self._request_ended)
        self.page.on("requestfailed", self._request_ended)

    def _request_started(self, request: Request) -> None:
        self._open_requests.add(request)

    def _request_ended(self, request: Request) -> None:
        self._open_requests.discard(request)

    def _add_console_error(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.console_errors.append(message.text)

    def sign_in(self, token: str) -> Panel:
        """Sets the cookie of a session, without loading the page."""
        answer = self._context.request.post(f"{self.url}/panel/session", data={"token": token})
        assert answer.ok, answer.text()
        return self

    def fill_in_token(self, token: str) -> None:
        """Signs in by the form of the page."""
        self.page.fill("input[name=token]", token)
        self.page.click("text=Sign in >> nth=-1")
        self.page.wait_for_selector("#top nav a[aria-current]")

    def open(self, view: str) -> Page:
        """Loads the page at the address of a view, as a link from elsewhere does."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/#{view}")
        return self.wait_for_view()

    def show(self, view: str) -> Page:
        """Goes to a view, within the page if that is loaded, and waits until it is complete."""
        if not self.page.url.startswith(self.url) or self.page.evaluate("location.hash.slice(1)") == view:
            return self.open(view)
        self.page.evaluate(
            """view => new Promise((done) => {
                addEventListener("hashchange", done, {once: true});
                location.hash = view;
            })""",
            view,
        )
        return self.wait_for_view()

    def wait_for_view(self) -> Page:
        self.page.wait_for_selector("main:not([aria-busy]) h1")
        return self.page

    def wait_for_answers(self) -> None:
        """Waits until all requests of the page are answered, except for its event streams."""
        quiet = 0
        while quiet < 2:
            self.page.wait_for_timeout(20)
            waiting = [each for each in self._open_requests if each.resource_type != "eventsource"]
            quiet = 0 if waiting else quiet + 1

    @property
    def text(self) -> str:
        return self.page.inner_text("main")

    def set_window(self, width: int, scheme: Scheme = "light") -> None:
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(color_scheme=scheme)

    @property
    def scroll_width(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def accessibility_problems(self) -> list[tuple[str, str]]:
        """The serious problems that axe finds, and the element of each."""
        violations: list[dict[str, Any]] = Axe().run(self.page).response["violations"]
        serious = (each for each in violations if each["impact"] in ("serious", "critical"))
        return [(each["id"], node["html"]) for each in serious for node in each["nodes"]]

    def sign_out(self) -> None:
        """Forgets everything that the browser stores, so that another user can have the page."""
        if self.page.url.startswith(self.url):
            self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.page.goto("about:blank")
        self._context.clear_cookies()
        self.console_errors.clear()

    def close(self) -> None:
        self._context.close()
        assert not self.errors, self.errors


OpenPanel = Callable[..., Panel]
"""Opens the panel as a user with some roles."""
