"""The page that shows the API, as a browser sees it: it works under its own rules, and in no frame."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.support.panel import NEEDS_CHROMIUM, Panel
from tests.support.service import Service
from tests.support.tokens import token

pytestmark = NEEDS_CHROMIUM


def test_a_call_can_be_tried_and_nothing_that_the_page_does_is_against_its_policy(
    service: Service, browser: Browser
) -> None:
    panel = Panel(browser, service.url)
    page = panel.page
    page.goto(f"{service.url}/docs")
    page.click("button.authorize")
    page.fill(".auth-container input >> nth=0", token("reader"))
    page.click(".auth-container button.authorize >> nth=0")
    page.click(".btn-done >> nth=0")
    page.click(".opblock-summary:has-text('/v1/me') >> nth=0")
    page.click("text=Try it out")
    page.click("text=Execute")
    page.wait_for_selector(".live-responses-table tbody tr")
    answer = page.inner_text(".live-responses-table")
    assert "200" in answer
    assert '"reader"' in answer
    assert page.evaluate("getComputedStyle(document.querySelector('.opblock')).borderRadius") != "0px"
    panel.close()
    assert panel.console_errors == []


def test_no_other_page_can_put_it_into_a_frame(service: Service, browser: Browser) -> None:
    page = browser.new_page()
    for path in ("/docs", "/"):
        page.set_content(f'<iframe src="{service.url}{path}"></iframe>')
        page.wait_for_load_state("networkidle")
        framed = page.frames[1]
        assert framed.query_selector("#ui, #main") is None
    page.close()
