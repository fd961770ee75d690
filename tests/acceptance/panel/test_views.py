"""Each view of the panel as a user, an auditor and an admin see it: whole, readable, usable by everybody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.panel.conftest import ROLES
from tests.support.browser import NARROW, NEEDED, WIDE, Seen

pytestmark = NEEDED
Open = Callable[..., Seen]

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
    "admin": "What is held, by root",
    "admin?page=people&user=alice": "Held of alice",
    "admin?page=policies": "authz.rego",
    "admin?page=keys": "Key-encryption keys",
    "admin?page=index": "are indexed by",
    "admin?page=audit": "Who did what",
}


@pytest.mark.parametrize(
    ("role", "width", "shade"),
    [
        ("user", WIDE, "dark"),
        ("auditor", NARROW, "light"),
        ("admin", WIDE, "light"),
        ("admin", NARROW, "dark"),
    ],
)
def test_every_view_is_whole_readable_by_all_and_never_wider_than_the_screen(
    panel: Open, role: str, width: int, shade: str
) -> None:
    seen = panel(role, *ROLES[role], width=width, shade=shade)
    memory = f"memory?ns=user&ns={role}&ns=notes&key=note-0"
    views = {**OF_ALL, memory: "History (1)", **(OF_OPERATORS if ROLES[role] else {})}
    if role == "admin":
        views["knowledge?q=descale"] = "vinegar"
        views["agents?agent=helper&user=alice"] = "user:alice:long-term:all"
        views["conversations?agent=helper&user=alice&session=monday"] = "I fly on Friday."
    for view, expected in views.items():
        seen.show(view)
        assert expected in seen.text, (view, seen.text)
        assert "That did not work" not in seen.text, (view, seen.text)
        assert seen.scroll_width <= width, view
        assert seen.violations() == [], view


def test_a_user_is_shown_no_administration_and_is_refused_it_at_its_address(panel: Open) -> None:
    seen = panel("user")
    assert "Admin" not in seen.page.inner_text("#top")
    seen.show("admin?page=people&user=alice")
    assert "You may not see this" in seen.text


def test_an_auditor_looks_and_is_offered_nothing_that_changes_what_is_looked_after(panel: Open) -> None:
    seen = panel("auditor", "auditor")
    for view in (
        "admin?page=people&user=alice",
        "admin?page=policies",
        "admin?page=keys",
        "admin?page=index",
    ):
        buttons = seen.show(view).locator("main button").all_inner_texts()
        assert {*buttons} <= {"Show what is held"}, (view, buttons)


def test_every_view_can_be_reached_by_keys_alone(panel: Open) -> None:
    page = panel("user").show("agents")
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent"))
    assert {"Agents", "Explore", "Prompt", "Conversations", "Map", "Activity", "Sign out"} <= reached


def test_the_way_past_the_navigation_leads_to_the_content_of_the_same_view(panel: Open) -> None:
    page = panel("user").show("explore")
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


def test_whoever_looks_at_other_peoples_memories_is_told_once_that_it_is_recorded(panel: Open) -> None:
    seen = panel("admin", "admin")
    for view in OF_ALICE:
        seen.show(view)
        assert seen.text.count(RECORDED) == 1, (view, seen.text)
        seen.show(view.replace("alice", "admin"))
        assert RECORDED not in seen.text, view
    seen.show("agents?agent=helper&user=alice")
    assert RECORDED not in seen.text, "rooms that are closed show counts"
    seen.page.click("text=user:alice:long-term:all")
    seen.page.click("text=agent:helper:u:alice")
    seen.page.wait_for_selector("text=A light coat")
    assert seen.text.count(RECORDED) == 1, "in the room that shows something"
    assert seen.violations() == []


def test_a_user_without_a_role_is_told_nothing_about_the_audit_log(panel: Open) -> None:
    seen = panel("user")
    for view in OF_ALL:
        seen.show(view)
        assert "audit log" not in seen.text, view


def test_the_audit_log_shows_who_looked_at_whose_memories(panel: Open) -> None:
    seen = panel("admin", "admin")
    seen.show("explore?ns=user&ns=alice")
    seen.show("admin?page=audit")
    row = seen.page.locator("tr", has_text='"operation":"newest"').first.inner_text()
    assert "admin" in row
    assert "memories.read" in row
    assert "alice" not in row
