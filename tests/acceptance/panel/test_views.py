"""Each view of the panel as a user, an auditor and an admin see it: whole, readable, usable by everybody."""

from __future__ import annotations

import pytest

from tests.support.panel import NARROW, NEEDS_CHROMIUM, ROLES, WIDE, OpenPanel, Scheme

pytestmark = NEEDS_CHROMIUM

OF_ALL = {
    "agents": "agent:helper:u:",
    "explore": "Namespaces",
    "explore?q=something+to+drink": "I drink green tea",
    "prompt?message=what+do+I+drink": "tokens",
    "conversations": "monday",
    "conversations?agent=helper&session=monday": "I fly on Friday.",
    "map": "memories",
    "activity": "Events by day",
}
OF_OPERATORS = {
    "admin": "Stored data by root segment",
    "admin?page=people&user=alice": "Data of alice",
    "admin?page=policies": "authz.rego",
    "admin?page=keys": "Key-encryption keys",
    "admin?page=index": "are indexed by",
    "admin?page=audit": "Who did what",
}


@pytest.mark.parametrize(
    ("role", "width", "scheme"),
    [
        ("user", WIDE, "light"),
        ("auditor", NARROW, "light"),
        ("admin", WIDE, "dark"),
    ],
)
def test_every_view_is_whole_readable_by_all_and_never_wider_than_the_screen(
    open_panel: OpenPanel, role: str, width: int, scheme: Scheme
) -> None:
    panel = open_panel(role, *ROLES[role], width=width, scheme=scheme)
    memory = f"memory?ns=user&ns={role}&ns=notes&key=note-0"
    views = {**OF_ALL, memory: "History (1)", **(OF_OPERATORS if ROLES[role] else {})}
    if role == "admin":
        views["knowledge?q=descale"] = "vinegar"
        views["agents?agent=helper&user=alice"] = "user:alice:long-term:all"
        views["conversations?agent=helper&user=alice&session=monday"] = "I fly on Friday."
    for view, expected in views.items():
        panel.show(view)
        assert expected in panel.text, (view, panel.text)
        assert "That did not work" not in panel.text, (view, panel.text)
        assert panel.scroll_width <= width, view
        assert panel.accessibility_problems() == [], view
        panel.set_window(NARROW, scheme)
        assert panel.scroll_width <= NARROW, view
        panel.set_window(width, scheme)


def test_a_user_is_shown_no_administration_and_is_refused_it_at_its_address(open_panel: OpenPanel) -> None:
    panel = open_panel("user")
    panel.show("agents")
    assert "Admin" not in panel.page.inner_text("#top")
    panel.show("admin?page=people&user=alice")
    assert "You may not see this" in panel.text


def test_an_auditor_looks_and_is_offered_nothing_that_changes_what_is_looked_after(
    open_panel: OpenPanel,
) -> None:
    panel = open_panel("auditor", "auditor")
    for view in (
        "admin?page=people&user=alice",
        "admin?page=policies",
        "admin?page=keys",
        "admin?page=index",
    ):
        buttons = panel.show(view).locator("main button").all_inner_texts()
        assert {*buttons} <= {"Show their data"}, (view, buttons)


def test_every_view_can_be_reached_by_keys_alone(open_panel: OpenPanel) -> None:
    page = open_panel("user").show("agents")
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent"))
    assert {"Agents", "Explore", "Prompt", "Conversations", "Map", "Activity", "Sign out"} <= reached


def test_the_way_past_the_navigation_leads_to_the_content_of_the_same_view(open_panel: OpenPanel) -> None:
    page = open_panel("user").show("explore")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("#explore")


RECORDED = "Reading other people's memories is recorded in the audit log."
OF_ALICE = (
    "explore?ns=user&ns=alice",
    "explore?ns=user&ns=alice&q=tea",
    "map?ns=user&ns=alice",
    "activity?ns=user&ns=alice",
    "conversations?agent=helper&user=alice&session=monday",
    "admin?page=people&user=alice",
)


def test_whoever_looks_at_other_peoples_memories_is_told_once_that_it_is_recorded(
    open_panel: OpenPanel,
) -> None:
    panel = open_panel("admin", "admin")
    for view in OF_ALICE:
        panel.show(view)
        assert panel.text.count(RECORDED) == 1, (view, panel.text)
        panel.show(view.replace("alice", "admin"))
        assert RECORDED not in panel.text, view
    panel.show("agents?agent=helper&user=alice")
    assert RECORDED not in panel.text, "rooms that are closed show counts"
    panel.page.click("text=user:alice:long-term:all")
    panel.page.click("text=agent:helper:u:alice")
    panel.page.wait_for_selector("text=A light coat")
    assert panel.text.count(RECORDED) == 1, "in the room that shows something"
    assert panel.accessibility_problems() == []


def test_a_user_without_a_role_is_told_nothing_about_the_audit_log(open_panel: OpenPanel) -> None:
    panel = open_panel("user")
    for view in OF_ALL:
        panel.show(view)
        assert "audit log" not in panel.text, view


def test_the_audit_log_shows_who_looked_at_whose_memories(open_panel: OpenPanel) -> None:
    panel = open_panel("admin", "admin")
    panel.show("explore?ns=user&ns=alice")
    panel.show("admin?page=audit")
    row = panel.page.locator("tr", has_text='"operation":"newest"').first.inner_text()
    assert "admin" in row
    assert "memories.read" in row
    assert "alice" not in row
