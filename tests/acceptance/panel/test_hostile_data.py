"""Whatever users store, and whatever the server answers, the panel shows as text and never as markup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser

from tests.support.panel import NEEDS_CHROMIUM, Panel
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS, token

pytestmark = NEEDS_CHROMIUM

MARKUP = '<img src=x class=planted onerror="window.ran=1">'
PROPERTIES: dict[str, Any] = {
    "innerHTML": [MARKUP], "outerHTML": MARKUP, "textContent": ["planted text"], "id": "planted",
    "class": "planted", "style": "position:fixed", "onclick": "window.ran=1",
    "href": "javascript:window.ran=1", "srcdoc": MARKUP, "hidden": True, "dataset": {"a": 1},
    "toString": "x", "valueOf": 1, "length": 3,
}  # fmt: skip
"""As an argument of `Object.assign` or of an element's maker, it would be markup and code."""
VALUES: list[dict[str, Any]] = [
    {"text": MARKUP, MARKUP: MARKUP, "type": MARKUP, "tags": [MARKUP]},
    {"text": PROPERTIES, "type": PROPERTIES, "tags": [PROPERTIES, [MARKUP], [[PROPERTIES]], None, 1]},
    {"content": [PROPERTIES], "tags": PROPERTIES},
    {"message": {"content": PROPERTIES}, "calls": PROPERTIES},
    {"message": {"content": [MARKUP, PROPERTIES]}, "nested": [[[PROPERTIES]]]},
    {**PROPERTIES},
    {"__proto__": PROPERTIES, "constructor": PROPERTIES},
]
MESSAGES: list[Any] = [
    {"role": "user", "content": PROPERTIES},
    {"role": PROPERTIES, "name": PROPERTIES, "content": [MARKUP, PROPERTIES], "at": PROPERTIES},
    {"role": MARKUP, "name": MARKUP, "content": MARKUP, "at": MARKUP, "tool_calls": MARKUP},
    {"role": "tool planted", "tool_calls": [None, 1, PROPERTIES, {"function": PROPERTIES}]},
    {"tool_calls": [{"function": {"name": PROPERTIES, "arguments": PROPERTIES}}]},
    MARKUP,
    [PROPERTIES],
]
USER, ADMIN, AGENT, SESSION = f"{MARKUP} user", f"{MARKUP} admin", f"{MARKUP} agent", f"{MARKUP} session"
SPECS = [{"name": AGENT, "memory": {"private": {}, "facts": {}, "long_term": {}, "scratch": ["agent"],
                                    "knowledge": {"sources": [MARKUP]}}}]  # fmt: skip
ROOM = ["user", ADMIN, MARKUP]
WITHOUT_NAMES = ("admin?page=people", "admin?page=policies", "admin?page=index")
HAS_MARKUP = """() => window.ran ? ["a script ran"] : [...document.querySelectorAll(
    ".planted, #planted, [innerhtml], [textcontent], [onclick], [onerror], [srcdoc], [outerhtml], [dataset], "
    + "body [style*=fixed], a[href^=javascript], main img, #top img, #toast img, main script, iframe"
)].map((each) => each.outerHTML)"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service in which a user, an admin and an operator's files are as hostile as they can be."""
    folder = tmp_path_factory.mktemp("planted")
    (documents := folder / "documents").mkdir()
    (documents / "<img src=x class=planted onerror=ran()>.md").write_text(f"# {MARKUP}\n{MARKUP} vinegar")
    specs = {"agents": SPECS, "knowledge": [{"name": MARKUP, "path": "./documents"}]}
    (file := folder / "agents.yaml").write_text(json.dumps(specs))
    with serving(folder, *FLAGS, "--agents", file) as running:
        for user in (USER, ADMIN):
            plant(running, user)
        yield running


def plant(service: Service, user: str) -> None:
    own, admin = token(user, azp=MARKUP), token(ADMIN, roles=["admin"])

    def call(path: str, body: object, caller: str = own, method: str = "POST") -> None:
        service.call(method, path, caller, json=body).raise_for_status()

    room = ["user", user, MARKUP]
    for n, value in enumerate(VALUES):
        body = {"namespace": room, "key": f"{MARKUP}{n}", "value": value, "index": {"text": f"{MARKUP} {n}"}}
        call("/v1/memories", body, method="PUT")
        call("/v1/memories", {**body, "value": {"before": value}}, method="PUT")
        call("/v1/memories", {**body, "index": {}, "key": f"{MARKUP} {n} sealed"}, method="PUT")
    for n, message in enumerate(MESSAGES):
        turn = {
            "namespace": ["turns", AGENT, "u", user, SESSION],
            "key": str(n),
            "value": {"message": message},
        }
        call("/v1/memories", turn, method="PUT")
    agent = f"/v1/agents/{quote(AGENT, safe='')}"
    said = [
        {"role": "user", "content": f"{MARKUP} I fly on Friday.", "name": MARKUP},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": MARKUP, "arguments": MARKUP}}
            ],
        },
    ]
    call(f"{agent}/sessions/{quote(SESSION + ' told', safe='')}/turns", {"messages": said})
    call(f"{agent}/tools/remember", {"arguments": {"key": MARKUP, "content": MARKUP}})
    call("/v1/admin/apikeys", {"client": MARKUP, "user": user, "roles": ["auditor"]}, admin)
    service.call("GET", f"/v1/admin/users/{quote(user, safe='')}/export", admin).raise_for_status()


@pytest.fixture
def panel(planted: Service, browser: Browser) -> Iterator[Panel]:
    admin = Panel(browser, planted.url).sign_in(token(ADMIN, roles=["admin"]))
    yield admin
    admin.close()
    assert admin.console_errors == []


def address(view: str, **asked: object) -> str:
    return f"{view}?{urlencode(asked, doseq=True)}"


def views() -> list[str]:
    """Every view, as an admin sees it of their own, and of another user."""
    agent, key = {"agent": AGENT}, f"{MARKUP}1"
    return [
        address("agents", **agent), address("agents", **agent, user=USER),
        "explore", address("explore", ns=ROOM), address("explore", q=MARKUP),
        address("memory", ns=ROOM, key=key), address("prompt", **agent, message=MARKUP),
        address("conversations", **agent), address("conversations", **agent, session=f"{SESSION} told"),
        address("conversations", **agent, user=USER, session=SESSION),
        address("knowledge", source=MARKUP, q="vinegar"),
        "map", "map?by=type", "activity",
        "admin?page=people", address("admin", page="people", user=USER), "admin?page=policies",
        "admin?page=keys", "admin?page=index", "admin?page=audit",
    ]  # fmt: skip


def show_with_details(panel: Panel, view: str) -> None:
    """Goes to a view, and opens everything in it that can be opened."""
    panel.show(view)
    panel.page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")


def test_what_is_stored_is_shown_as_text_in_every_view(panel: Panel) -> None:
    for view in views():
        show_with_details(panel, view)
        panel.wait_for_answers()
        assert panel.page.evaluate(HAS_MARKUP) == [], view
        assert "That did not work" not in panel.text, (view, panel.text)
        assert MARKUP in panel.text or view in WITHOUT_NAMES, (view, panel.text)


def test_a_message_that_is_an_object_is_shown_as_json(panel: Panel) -> None:
    show_with_details(panel, address("conversations", agent=AGENT, user=USER, session=SESSION))
    shown = panel.text
    assert shown.count('"innerHTML"') >= 6, shown
    assert MARKUP in shown


TRY_EVERY_FIELD = """async ([view, hostile]) => {
    const asked = window.asked ??= window.fetch, answers = {}, wrong = [];
    let place = null, tried = 0;
    const changed = (answer, [first, ...rest]) => {
        if (first === undefined) return hostile;
        const copy = Array.isArray(answer) ? [...answer] : {...answer};
        copy[first] = changed(answer[first], rest);
        return copy;
    };
    document.documentElement.style.display = "none";  // it is not drawn, which would take most of the time
    window.EventSource = class extends EventTarget { close() {} };
    window.fetch = async (url, options) => {
        const method = options?.method ?? "GET", name = `${method} ${url} ${options?.body ?? ""}`;
        if (!(name in answers)) {
            const answer = await asked(url, options);
            if (!answer.headers.get("content-type")?.startsWith("application/json")) return answer;
            answers[name] = await answer.json();
        }
        return Response.json(place?.name === name ? changed(answers[name], place.at) : answers[name]);
    };
    const pause = (ms) => new Promise((done) => setTimeout(done, ms));
    const look = async () => {
        const moved = new Promise((done) => addEventListener("hashchange", done, {once: true}));
        location.hash = `${view}${view.includes("?") ? "&" : "?"}n=${view.length}.${tried++}`;
        await moved;
        while (document.querySelector("main[aria-busy]")) await pause(1);
        document.querySelectorAll("main details").forEach((each) => { each.open = true; });
        await pause(5);  // what is loaded once it is open
    };
    const leaves = (answer, at = [], found = new Map()) => {
        // one of each list, and what users store as a whole
        if (answer !== null && typeof answer === "object" && !["value", "message"].includes(at.at(-1)))
            for (const name of Object.keys(answer).slice(0, Array.isArray(answer) ? 2 : 50))
                leaves(answer[name], [...at, name], found);
        if (at.length) found.set(at.map((each) => (isNaN(each) ? each : "*")).join(), at);
        return found;
    };
    await look();
    await pause(300);
    for (const [name, answer] of Object.entries({...answers}))
        for (const at of leaves(answer).values()) {
            place = {name, at};
            await look();
            const markup = (HAS_MARKUP)();
            if (markup.length) wrong.push([name, at, markup]);
        }
    return [tried, wrong];
}""".replace("HAS_MARKUP", HAS_MARKUP)
"""Puts something hostile into one field of one answer after the other, and looks at the view each time."""


def test_no_field_of_any_answer_can_become_markup(planted: Service, browser: Browser) -> None:
    """Also of those that today's server never fills with anything but its own words."""
    panel = Panel(browser, planted.url).sign_in(token(ADMIN, roles=["admin"]))
    panel.open("explore")
    wrong, tried = [], 0
    for view in views():
        fields, found = panel.page.evaluate(TRY_EVERY_FIELD, [view, PROPERTIES])
        tried += fields
        wrong += [(view, *each) for each in found]
    assert tried > 300
    assert wrong == []
    drawn = "Error: <"  # of a plot whose numbers are none
    assert [each for each in panel.console_errors if not each.startswith(drawn)] == []
