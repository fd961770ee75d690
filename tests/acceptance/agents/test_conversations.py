"""Conversations over REST: what is kept, in which order, by whom it is seen, and what becomes of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.conversation_service import Salon, at, text
from tests.support.service import assert_error
from tests.support.waiting import until


def said(session: Any) -> list[str]:
    return [message["content"] for message in session["said"]]


def test_messages_are_kept_in_the_order_they_were_said(salon: Salon) -> None:
    alice = salon.talker("alice")
    assert alice.say("talk", "s", "one", "two") == {"added": 2, "messages": 2}
    assert alice.say("talk", "s", "three") == {"added": 1, "messages": 3}
    session = alice.see(at("talk", "s"))
    assert said(session) == ["one", "two", "three"]
    assert session["actor"] == f"talk:u:{alice.name}"
    assert session["messages"] == 3
    assert all(message["at"] for message in session["said"])


def test_sessions_users_and_agents_are_apart(salon: Salon) -> None:
    alice, bob = salon.talker("alice"), salon.talker("bob")
    alice.say("talk", "s", "of alice with talk")
    alice.say("talk", "t", "of alice in t")
    alice.say("running", "s", "of alice with running")
    bob.say("talk", "s", "of bob")
    assert said(alice.see(at("talk", "s"))) == ["of alice with talk"]
    assert said(bob.see(at("talk", "s"))) == ["of bob"]
    assert {each["id"] for each in alice.see("/v1/agents/talk/sessions")["sessions"]} == {"s", "t"}
    context = bob.context("talk", "s", "What did I say?")
    assert "of bob" in text(context)
    assert "alice" not in text(context)
    room = ["turns", "talk", "u", alice.name, "s"]
    assert_error(salon.service.get(room, "999999999999", bob.token), 403, "permission_denied")


def test_who_adds_at_the_same_time_waits_for_the_other(salon: Salon) -> None:
    alice = salon.talker("alice")
    with ThreadPoolExecutor(8) as threads:
        done = [*threads.map(lambda n: alice.say("running", "s", f"question {n}", f"answer {n}"), range(24))]
    assert all(each["added"] == 2 for each in done)
    assert max(each["messages"] for each in done) == 48
    texts = said(alice.see(at("running", "s"), limit=100))
    assert sorted(texts[::2]) == sorted(f"question {n}" for n in range(24))
    assert [each.replace("question", "answer") for each in texts[::2]] == texts[1::2]


def test_a_long_session_is_read_backwards_page_by_page(salon: Salon) -> None:
    alice = salon.talker("alice")
    for start in range(0, 250, 50):
        alice.say("talk", "s", *(f"message {n}" for n in range(start, start + 50)))
    found: list[str] = []
    before: dict[str, Any] = {}
    while True:
        page = alice.see(at("talk", "s"), limit=100, **before)
        found = said(page) + found
        if page["before"] is None:
            break
        before = {"before": page["before"]}
    assert found == [f"message {n}" for n in range(250)]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "system", "content": "x"}, "messages[0].role"),
        ({"role": "developer", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": "function"}]}, "messages[0].tool_calls"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[0].tool_call_id"),
        ({"role": "nobody", "content": "x"}, "messages[0].role"),
    ],
)
def test_what_is_no_message_is_refused_and_nothing_is_kept(salon: Salon, message: Any, field: str) -> None:
    alice = salon.talker("alice")
    answer = alice.ask("POST", f"{at('talk', 's')}/turns", json={"messages": [message]})
    assert assert_error(answer, 400, "invalid_request")["details"]["field"] == field
    assert_error(alice.ask("GET", at("talk", "s")), 404, "not_found")


def test_no_messages_too_many_and_a_session_without_a_name_are_refused(salon: Salon) -> None:
    alice = salon.talker("alice")
    for messages in ([], [{"role": "user", "content": "x"}] * 201):
        answer = alice.ask("POST", f"{at('talk', 's')}/turns", json={"messages": messages})
        assert assert_error(answer, 400, "invalid_request")["details"]["field"] == "messages"
    answer = alice.ask(
        "POST", f"{at('talk', 'u')}/turns", json={"messages": [{"role": "user", "content": "x"}]}
    )
    assert assert_error(answer, 400, "invalid_request")["details"]["field"] == "session_id"
    nobody = alice.ask(
        "POST", f"{at('nobody', 's')}/turns", json={"messages": [{"role": "user", "content": "x"}]}
    )
    assert_error(nobody, 404, "not_found")


def test_deleting_a_session_leaves_nothing_of_it_and_the_others_alone(salon: Salon) -> None:
    alice = salon.talker("alice")
    alice.say("running", "a", *(f"secret {n} of the garden" for n in range(12)))
    alice.say("running", "b", "stays")
    assert alice.ask("DELETE", at("running", "a")).json() == {"sessions": 1, "messages": 12}
    assert_error(alice.ask("GET", at("running", "a")), 404, "not_found")
    assert_error(alice.ask("DELETE", at("running", "a")), 404, "not_found")
    held = salon.admin.see(f"/v1/admin/users/{alice.name}")
    assert held["versions"] == 1
    assert said(alice.see(at("running", "b"))) == ["stays"]


def test_the_last_active_sessions_are_kept_and_the_others_go(salon: Salon) -> None:
    alice = salon.talker("alice")
    for name in "abcde":
        alice.say("talk", name, f"in {name}", "yes")
    alice.say("talk", "a", "again")
    removed = alice.ask("DELETE", "/v1/agents/talk/sessions", params={"keep": 2})
    assert removed.json() == {"sessions": 3, "messages": 6}
    assert [each["id"] for each in alice.see("/v1/agents/talk/sessions")["sessions"]] == ["a", "e"]
    assert_error(alice.ask("DELETE", "/v1/agents/talk/sessions"), 400, "invalid_request")


def test_a_wipe_takes_conversations_and_summaries_away(salon: Salon) -> None:
    alice = salon.talker("alice")
    alice.say("rolling", "s", "I moved to Lisbon in May 2026.", "Noted.")
    alice.end("rolling", "s")
    until(lambda: alice.see("/v1/agents/rolling/summary")["points"])
    receipt = salon.admin.ask("POST", f"/v1/admin/users/{alice.name}/wipe", json={"wait": True}).json()
    assert receipt["removed"]["turns"] == 2
    assert receipt["scrubbed"]
    assert alice.see("/v1/agents/rolling/summary")["points"] == []
    assert alice.see("/v1/agents/rolling/sessions")["sessions"] == []
    assert b"Lisbon" not in salon.service.at.read_bytes()


def test_an_ended_conversation_is_merged_once_and_what_is_added_later_once_more(salon: Salon) -> None:
    alice = salon.talker("alice")
    alice.say("rolling", "s", "My sister Marta lives in Porto.", "Nice.")
    assert alice.end("rolling", "s")["ended"]
    until(lambda: alice.see("/v1/agents/rolling/summary")["conversations"] == 1)
    alice.say("rolling", "s", "My brother Rui lives in Faro.", "Good.")
    assert not alice.see(at("rolling", "s"))["ended"]
    alice.end("rolling", "s")
    until(lambda: alice.see("/v1/agents/rolling/summary")["conversations"] == 2)
    points = [point["text"] for point in alice.see("/v1/agents/rolling/summary")["points"]]
    assert sum("Marta" in point for point in points) == 1
    assert sum("Rui" in point for point in points) == 1
    assert alice.see("/v1/agents/rolling/summary")["pending"] == []


def test_a_conversation_that_nobody_goes_on_with_is_merged_by_itself(salon: Salon) -> None:
    alice = salon.talker("alice")
    alice.say("rolling", "s", "I am allergic to peanuts.", "I will remember that.")
    assert alice.see("/v1/agents/rolling/summary")["pending"] == ["s"]
    until(lambda: "peanuts" in str(alice.see("/v1/agents/rolling/summary")["points"]))


def test_conversations_that_end_together_both_count(salon: Salon) -> None:
    alice = salon.talker("alice")
    for n in range(6):
        alice.say("rolling", f"s{n}", f"I have been to town number {100 + n} with Anna{n}.", "Nice.")
    with ThreadPoolExecutor(6) as threads:
        [*threads.map(lambda n: alice.end("rolling", f"s{n}"), range(6))]
    until(lambda: alice.see("/v1/agents/rolling/summary")["conversations"] == 6)
    points = str(alice.see("/v1/agents/rolling/summary")["points"])
    assert all(f"town number {100 + n}" in points for n in range(6))


def test_an_empty_conversation_changes_nothing(salon: Salon) -> None:
    alice = salon.talker("alice")
    assert_error(alice.ask("POST", f"{at('rolling', 's')}/end"), 404, "not_found")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    alice.add("rolling", "s", {"role": "assistant", "tool_calls": [call]})
    alice.end("rolling", "s")
    until(lambda: alice.see("/v1/agents/rolling/summary")["pending"] == [])
    assert alice.see("/v1/agents/rolling/summary")["conversations"] == 0


def test_a_summary_is_forgotten_with_all_it_ever_said(salon: Salon) -> None:
    alice = salon.talker("alice")
    assert_error(alice.ask("DELETE", "/v1/agents/rolling/summary"), 404, "not_found")
    alice.say("rolling", "s", "The parrot is called Quetzalcoatl.", "Nice.")
    alice.end("rolling", "s")
    until(lambda: alice.see("/v1/agents/rolling/summary")["points"])
    assert alice.ask("DELETE", at("rolling", "s")).status_code == 200
    assert "Quetzalcoatl" in str(alice.see("/v1/agents/rolling/summary"))
    assert alice.ask("DELETE", "/v1/agents/rolling/summary").status_code == 204
    assert alice.see("/v1/agents/rolling/summary")["points"] == []
    history = salon.service.call(
        "GET", "/v1/memories/history", alice.token,
        params={"ns": ["summary", "rolling", "u", alice.name], "key": "rolling"},
    )  # fmt: skip
    assert [each["kind"] for each in history.json()["versions"]] == ["delete"]


def test_an_answer_is_bounded_in_bytes_and_says_where_to_go_on(salon: Salon) -> None:
    alice = salon.talker("alice")
    for n in range(6):
        alice.say("talk", "s", f"{n} " + "x" * 900_000)
    page = alice.see(at("talk", "s"), limit=100)
    assert 1 <= len(page["said"]) < 6
    rest = alice.see(at("talk", "s"), limit=100, before=page["before"])
    assert [text[0] for text in said(rest) + said(page)] == [*"012345"]


def test_all_of_a_message_is_counted(salon: Salon) -> None:
    alice = salon.talker("alice")
    alice.add(
        "talk", "s", {"role": "user", "content": "Hello", "name": "a somewhat longer name for one person"}
    )
    named = alice.context("talk", "s", "And?")["receipt"]["tiers"]["conversation"]["tokens"]
    alice.say("talk", "t", "Hello")
    assert named > alice.context("talk", "t", "And?")["receipt"]["tiers"]["conversation"]["tokens"]


def test_a_message_with_a_name_that_is_none_or_a_field_too_many_is_refused(salon: Salon) -> None:
    alice = salon.talker("alice")
    for more in ({"name": "x" * 65}, {"name": "a\nb"}, {"bogus": 1}, {"at": "2026-01-01T00:00:00"}):
        body = {"messages": [{"role": "user", "content": "x", **more}]}
        answer = alice.ask("POST", f"{at('talk', 's')}/turns", json=body)
        assert (
            assert_error(answer, 400, "invalid_request")["details"]["field"]
            == f"messages[0].{next(iter(more))}"
        )
