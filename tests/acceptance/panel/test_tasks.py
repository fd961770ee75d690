"""What people do in the panel: look for something, change it and take it back, see news, erase somebody."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser

from tests.support.panel import NEEDS_CHROMIUM, OpenPanel, Panel, add_sample_data, call_tool
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS, token
from tests.support.waiting import until

pytestmark = NEEDS_CHROMIUM
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"


def store(service: Service, user: str, room: str, key: str, value: dict[str, object]) -> None:
    body = {"namespace": ["user", user, *room.split("/")], "key": key, "value": value, "index": True}
    service.call("PUT", "/v1/memories", token(user), json=body).raise_for_status()


def test_what_is_stored_is_shown_as_it_is_and_never_becomes_a_part_of_the_page(
    open_panel: OpenPanel, service: Service
) -> None:
    store(service, "eve", f"odd/{HOSTILE}", HOSTILE, {"text": HOSTILE, "type": HOSTILE, "tags": [HOSTILE]})
    panel = open_panel("eve")
    for view in ("explore", "explore?q=script", "map", "activity", "explore?ns=user&ns=eve&ns=odd"):
        page = panel.show(view)
        page.wait_for_timeout(100)
        assert page.locator("main script, main img").count() == 0
        assert "owned" not in page.title()
    assert HOSTILE in panel.text
    panel.page.click(f"main a >> text={HOSTILE[:20]} >> nth=-1")
    panel.page.wait_for_selector("text=History (1)")
    assert panel.page.locator("main script, main img").count() == 0
    assert HOSTILE in panel.text


def test_a_page_whose_cookie_was_replaced_asks_to_sign_in_again(open_panel: OpenPanel) -> None:
    panel = open_panel("alice")
    panel.show("agents")
    context = panel.page.context
    cookies = context.cookies()
    panel.sign_in(token("eve"))
    assert context.cookies() != cookies
    panel.page.click("text=Explore")
    panel.page.wait_for_selector("text=another session")
    assert "eve" not in panel.text
    panel.fill_in_token(token("alice"))
    assert "alice" in panel.page.inner_text("#top")


def test_a_value_of_a_megabyte_is_shown_in_part_until_somebody_wants_all_of_it(
    open_panel: OpenPanel, service: Service
) -> None:
    body = {"namespace": ["user", "big", "notes"], "key": "big", "value": {"text": "x" * 1_000_000}}
    service.call("PUT", "/v1/memories", token("big"), json=body).raise_for_status()
    panel = open_panel("big")
    page = panel.show("memory?ns=user&ns=big&ns=notes&key=big")
    assert len(panel.text) < 100_000
    page.click("text=Show all")
    assert len(panel.text) > 1_000_000


def test_a_namespace_of_any_characters_can_be_walked_into(open_panel: OpenPanel, service: Service) -> None:
    store(service, "ann", "🎲 dice/a:b%c/ü", "k", {"text": "at the bottom"})
    page = open_panel("ann").show("explore")
    for name in ("🎲 dice", "a:b%c", "ü"):
        page.click(f"aside a >> text='{name}'")
        page.wait_for_selector(f"aside a[aria-current] >> text='{name}'")
    page.click("main a >> text=at the bottom")
    page.wait_for_selector("text=History (1)")


def test_a_room_of_five_thousand_is_shown_a_page_at_a_time_newest_first(
    open_panel: OpenPanel, service: Service
) -> None:
    key, room = token("many"), ["user", "many", "notes"]
    for start in range(0, 5000, 1000):
        puts = [
            {"op": "put", "namespace": room, "key": f"k{n}", "value": {"text": f"number {n}"}}
            for n in range(start, start + 1000)
        ]
        service.call("POST", "/v1/memories/batch", key, json={"operations": puts}).raise_for_status()
    page = open_panel("many").show("explore?ns=user&ns=many&ns=notes")
    assert page.locator("main ul.plain > li").count() == 20
    assert page.locator("main ul.plain > li >> nth=0").inner_text().startswith("number 4999")
    page.click("text=Show more")
    page.wait_for_selector("main ul.plain > li >> nth=39")
    assert "5,000" in page.inner_text("aside")


def test_nobody_sees_anothers_memory_by_its_address(open_panel: OpenPanel) -> None:
    panel = open_panel("mallory")
    panel.show("memory?ns=user&ns=alice&ns=notes&key=note-0")
    assert "You may not see this" in panel.text
    panel.show("explore?ns=user&ns=alice")
    assert "green tea" not in panel.text
    panel.show("agents?agent=helper&user=alice")
    assert "light coat" not in panel.text
    panel.show("conversations?agent=helper&user=alice&session=monday")
    assert "I fly on Friday." not in panel.text


def test_a_memory_is_added_changed_taken_back_and_looked_at_as_it_was(
    open_panel: OpenPanel, service: Service
) -> None:
    panel = open_panel("writer")
    page = panel.show("explore")
    page.click("text=Add a memory")
    page.fill("input[name=namespace]", "user:writer:notes")
    page.fill("input[name=key]", "tea")
    page.fill("textarea[name=value]", "not JSON")
    page.click("button >> text=Store")
    page.wait_for_selector("[role=alert]")
    page.fill("textarea[name=value]", json.dumps({"text": "green tea", "cups": 1}))
    page.click("button >> text=Store")
    page.wait_for_selector("text=History (1)")
    page.click("text=Change, set an expiry")
    page.fill("textarea[name=value]", json.dumps({"text": "mint tea", "cups": 1}))
    page.click("button >> text=Store")
    page.wait_for_selector("text=History (2)")
    assert page.locator(".removed").all_inner_texts() == ["green tea"]
    page.locator("input[type=range]").press("Home")
    page.wait_for_selector("h2 >> text=Revision 1")
    assert '"green tea"' in page.inner_text("main section.card pre.json >> nth=0")
    page.click("text=Undo")
    page.wait_for_selector("text=History (3)")
    there = service.get(["user", "writer", "notes"], "tea", token("writer")).json()
    assert there["value"] == {"text": "green tea", "cups": 1}


def test_whatever_is_done_to_a_memory_is_undone_to_what_was_there_before(
    open_panel: OpenPanel, service: Service
) -> None:
    place, key, who = ["user", "undoer", "notes"], "k", token("undoer")

    def there() -> dict[str, object]:
        return dict(service.get(place, key, who).json())

    panel = open_panel("undoer")
    page = panel.show("explore?ns=user&ns=undoer&ns=notes")

    def undo(until_said: str) -> None:
        page.click("#toast button >> text=Undo")
        page.wait_for_selector(f"text={until_said}")

    page.click("text=Add a memory")
    page.fill("input[name=key]", key)
    page.fill("textarea[name=value]", json.dumps({"text": "plain", "secret": "sealed"}))
    page.click("button >> text=Store")
    page.wait_for_selector("text=History (1)")
    undo("There is nothing here yet.")
    assert service.get(place, key, who).status_code == 404

    value = {"text": "plain", "secret": "sealed"}
    body = {"namespace": place, "key": key, "value": value, "index": ["text"], "ttl_seconds": 90_000}
    service.call("PUT", "/v1/memories", who, json=body).raise_for_status()
    panel.show("memory?ns=user&ns=undoer&ns=notes&key=k")
    before = there()

    page.click("text=Change, set an expiry")
    page.fill("textarea[name=value]", json.dumps({"text": "other", "secret": "still sealed"}))
    page.click("button >> text=Store")
    page.wait_for_selector("text=History (4)")
    changed = there()
    assert changed["index"] == {"text": "other"}  # and nothing that was sealed
    assert days_left(changed) == 1
    undo("History (5)")
    assert (there()["value"], there()["index"], days_left(there())) == (value, before["index"], 1)

    for days, told in (("10", "in 10 days"), ("", "It never expires.")):
        page.click("text=Change, set an expiry")
        page.fill("input[name=days]", days)
        page.click("button >> text='Set'")
        page.wait_for_selector(f"text={told}")
        assert days_left(there()) == (int(days) if days else None)
        undo("Expires tomorrow")
        until(lambda: days_left(there()) == 1)

    panel.wait_for_view()
    page.click("text=Change, set an expiry")
    page.click("button >> text='Delete'")
    page.click("dialog button >> text=Delete")
    page.wait_for_selector("text=History (6)")
    assert service.get(place, key, who).status_code == 404
    undo("History (7)")
    assert (there()["value"], there()["index"], days_left(there())) == (value, before["index"], 1)


def days_left(memory: dict[str, object]) -> int | None:
    at = memory["expires_at"]
    return (
        at
        if at is None
        else round((datetime.fromisoformat(str(at)) - datetime.now(UTC)).total_seconds() / 86_400)
    )


def test_an_undo_never_takes_back_what_somebody_else_wrote_since(
    open_panel: OpenPanel, service: Service
) -> None:
    store(service, "two", "notes", "k", {"text": "first"})
    page = open_panel("two").show("memory?ns=user&ns=two&ns=notes&key=k")
    page.click("text=Change, set an expiry")
    page.fill("textarea[name=value]", json.dumps({"text": "second"}))
    page.click("button >> text=Store")
    page.wait_for_selector("text=History (2)")
    store(service, "two", "notes", "k", {"text": "of somebody else"})
    page.click("#toast button >> text=Undo")
    page.wait_for_selector("#toast:not(:has(button)) p")
    assert (
        service.get(["user", "two", "notes"], "k", token("two")).json()["value"]["text"] == "of somebody else"
    )


def test_the_prompt_is_shown_as_it_would_be_sent_with_what_was_left_out(
    open_panel: OpenPanel, service: Service
) -> None:
    add_sample_data(service, "asker")
    call_tool(service, "asker", "learn_fact", key="cats", content="Has <two> cats")
    said = {"session_id": "monday", "message": "What of my cats?", "budget_tokens": 4000}
    sent = service.call("POST", "/v1/agents/helper/context", token("asker"), json=said).json()
    panel = open_panel("asker")
    page = panel.show("prompt?agent=helper&session=monday&message=What+of+my+cats%3F")
    shown = page.locator(".message p").all_text_contents()
    lines = [line for message in sent["messages"] for line in message["content"].split("\n")]
    assert [line for text in shown for line in text.split("\n")] == lines
    assert any("cats" in line for line in lines[:-1])
    assert "similarity" in panel.text or "score" in panel.text
    assert "Descale it once a month" in page.inner_text("table")
    assert "below the threshold" in page.inner_text("table")


def test_a_memory_that_was_deleted_is_brought_back_from_its_history(
    open_panel: OpenPanel, service: Service
) -> None:
    store(service, "finder", "notes", "k", {"text": "keep me"})
    page = open_panel("finder").show("memory?ns=user&ns=finder&ns=notes&key=k")
    page.click("text=Change, set an expiry")
    page.click("button >> text=Delete")
    page.click("dialog button >> text=Delete")
    page.wait_for_selector("text=History (2)")
    assert service.get(["user", "finder", "notes"], "k", token("finder")).status_code == 404
    page.click("text=Restore this")
    page.wait_for_selector("text=History (3)")
    assert service.get(["user", "finder", "notes"], "k", token("finder")).status_code == 200


def test_what_others_store_appears_by_itself(open_panel: OpenPanel, service: Service) -> None:
    store(service, "reader", "notes", "first", {"text": "the first"})
    page = open_panel("reader").show("explore?ns=user&ns=reader")
    store(service, "reader", "notes", "second", {"text": "came meanwhile"})
    page.wait_for_selector("main a >> text=came meanwhile")


def test_a_room_of_an_agent_tells_its_new_count_and_stays_open(
    open_panel: OpenPanel, service: Service
) -> None:
    add_sample_data(service, "watcher")
    page = open_panel("watcher").show("agents")
    page.click("summary >> text=agent:helper:u:watcher")
    page.wait_for_selector("main a >> text=A light coat")
    call_tool(service, "watcher", "remember", key="hat", content="A straw hat")
    page.wait_for_selector("main a >> text=A straw hat")
    page.wait_for_selector("summary >> text=/agent:helper:u:watcher 2 memories/")
    page.focus("main a >> text=A straw hat")
    with page.expect_response("**/v1/memories/newest*"):  # it looks again by itself
        pass
    assert page.evaluate("document.activeElement.textContent") == "A straw hat"
    page.fill("input[type=search]", "straw")
    page.wait_for_selector("main a >> text=A light coat", state="detached")
    assert page.is_visible("main a >> text=A straw hat")


def test_child_namespaces_of_an_agent_are_listed_with_counts(open_panel: OpenPanel, service: Service) -> None:
    def bring(namespace: list[str], key: str, author: str) -> None:
        line = {"namespace": namespace, "key": key, "value": {"content": f"{key} of {author} <b>bold</b>"},
                "written_by": {"user": author}}  # fmt: skip
        headers = {"content-type": "application/x-ndjson"}
        answer = service.call("POST", "/v1/memories/import", token("admin", roles=["admin"]),
                            content=json.dumps(line).encode(), headers=headers)  # fmt: skip
        assert answer.json()["imported"] == 1, answer.text

    for user in ("parent", "admin"):
        bring(["agent", "helper", "u", user, "<i>s1</i>"], "hat", user)
        bring(["agent", "helper", "u", user, "<i>s1</i>"], "coat", user)
        bring(["agent", "helper", "s2", "u", user], "scarf", user)
        bring(["agent", "helper", f"s3 of {user}"], "glove", user)
    bring(["agent", "helper", "s3 of parent"], "secret", "bob")
    expected = [
        "child namespace agent:helper:s2:u:parent 1 memory",
        "child namespace agent:helper:s3 of parent 1 memory",
        "child namespace agent:helper:u:parent:<i>s1</i> 2 memories",
    ]
    for panel in (open_panel("parent"), open_panel("admin", "admin")):
        page = panel.show("agents?agent=helper&user=parent")
        page.wait_for_selector("summary >> text=child namespace")
        summaries = page.locator("main details.room > summary").all_inner_texts()
        assert sorted(each for each in summaries if each.startswith("child")) == expected
        assert summaries[0].startswith("private agent:helper:u:parent 0 memories")
        page.click("summary >> text=agent:helper:u:parent:<i>s1</i>")
        page.wait_for_selector("main a >> text=coat of parent <b>bold</b>")
        page.click("summary >> text=agent:helper:s3 of parent")
        assert "while the private namespace is empty" in panel.text
        assert "secret" not in panel.text
        assert not panel.accessibility_problems()


def test_a_person_is_erased_from_click_to_receipt(open_panel: OpenPanel, service: Service) -> None:
    add_sample_data(service, "gone")
    page = open_panel("admin", "admin").show("admin?page=people&user=gone")
    page.click("text=Erase gone")
    assert page.locator("dialog button.danger").is_disabled()
    page.fill("dialog input", "gon")
    assert page.locator("dialog button.danger").is_disabled()
    page.fill("dialog input", "gone")
    page.click("dialog button.danger")
    page.wait_for_selector("h2 >> text=Receipt")
    receipt = json.loads(page.inner_text("pre.json"))
    assert receipt["user"] == "gone"
    assert receipt["key_destroyed"]
    assert receipt["removed"]["memories"] > 0
    assert service.get(["user", "gone", "notes"], "note-0", token("gone")).status_code == 404


def test_a_policy_is_tried_before_it_is_in_force(open_panel: OpenPanel) -> None:
    page = open_panel("admin", "admin").show("admin?page=policies")
    page.click("text=Test the policies above")
    page.wait_for_selector("pre.json")
    assert json.loads(page.inner_text("pre.json"))["decision"]["allow"] is False
    page.fill("textarea >> nth=0", "package memories.authz\n\nbroken")
    page.click("text=Test the policies above")
    page.wait_for_selector("[role=alert]")


def test_a_server_that_is_away_is_told_of_in_words_and_tried_again(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serving(tmp_path_factory.mktemp("away"), *FLAGS) as service:
        panel = Panel(browser, service.url)
        panel.page.goto(service.url)
        panel.fill_in_token(token("user"))
        service.signal()
        service.wait()
        panel.page.click("#top a >> text=Explore")
        until(lambda: "The server cannot be reached" in panel.text or "Failed to fetch" in panel.text)
        assert "Try again" in panel.text
        panel._context.close()
