"""The page that shows the API, as a browser sees it: it works under its own rules, and in no frame."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.support.browser import NEEDED, Seen
from tests.support.service import Service
from tests.support.tokens import token

pytestmark = NEEDED


def test_a_call_can_be_tried_and_nothing_that_the_page_does_is_against_its_policy(
    house: Service, browser: Browser
) -> None:
    seen = Seen(browser, house.url)
    page = seen.page
    page.goto(f"{house.url}/docs")
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
    seen.close()
    assert seen.complaints == []


def test_no_other_page_can_put_it_into_a_frame(house: Service, browser: Browser) -> None:
    page = browser.new_page()
    for path in ("/docs", "/"):
        page.set_content(f'<iframe src="{house.url}{path}"></iframe>')
        page.wait_for_load_state("networkidle")
        framed = page.frames[1]
        assert framed.query_selector("#ui, #main") is None
    page.close()
