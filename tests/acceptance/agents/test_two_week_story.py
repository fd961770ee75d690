"""Two weeks: six conversations of two users with one agent, which keeps what it should, and no more."""

from __future__ import annotations

from pathlib import Path

from tests.support.conversation_service import Salon, at, text, written
from tests.support.service import serving
from tests.support.tokens import FLAGS
from tests.support.waiting import until


def test_an_agent_remembers_across_two_weeks_what_it_should_and_nothing_of_the_other_user(
    tmp_path: Path,
) -> None:
    specs = written(tmp_path)
    with serving(tmp_path, *FLAGS, "--agents", specs) as running:
        salon = Salon(running, specs)
        alice, bob = salon.talker("alice"), salon.talker("bob")

        def merged(who: object, count: int) -> None:
            until(lambda: who.see("/v1/agents/all/summary")["conversations"] == count)  # type: ignore[attr-defined]

        # Monday: Alice introduces herself.
        assert "recalled from" not in text(alice.context("all", "mon", "Hi, who are you?"))
        alice.say("all", "mon", "I am Alice Ferreira, a nurse from Braga.", "Nice to meet you, Alice.")
        alice.say("all", "mon", "We decided to fly to Oslo on 3 December 2026.", "I will keep that in mind.")
        alice.call("all", "memory_remember", content="Answer in short sentences", type="instruction")
        alice.end("all", "mon")
        merged(alice, 1)

        # Tuesday: Bob, with the same agent and the same name for his session.
        bob.say("all", "mon", "I am Bob Lindqvist and I am allergic to shellfish.", "Noted, Bob.")
        bob.call("all", "learn_fact", content="Bob drives a red van")
        bob.end("all", "mon")
        merged(bob, 1)

        # Thursday: a new conversation begins with what the last one was about.
        thursday = text(alice.context("all", "thu", "Do you remember our trip?"))
        assert "Oslo on 3 December 2026" in thursday
        assert "Answer in short sentences" in thursday
        assert not any(word in thursday for word in ("Bob", "shellfish", "red van", "Lindqvist"))
        alice.say("all", "thu", "Do you remember our trip?", "To Oslo, on 3 December.")
        alice.say("all", "thu", "Change of plan: the hotel is the Grand in Bergen.", "Bergen it is.")
        for n in range(5):
            alice.say("all", "thu", f"By the way, small talk {n}.", "Indeed.")
        inside = alice.context("all", "thu", "Where is our hotel?")
        assert "Grand in Bergen" in text(inside)  # it fell out of the window, into the running summary
        assert "running" in inside["receipt"]["tiers"]
        alice.end("all", "thu")
        merged(alice, 2)

        # The week after: facts kept by tools, and the manual.
        alice.call("all", "learn_fact", content="Alice bought an espresso machine in Braga")
        alice.say("all", "tue", "How often do I descale it?", "Every two months.")
        alice.end("all", "tue")
        merged(alice, 3)
        bob.say("all", "wed", "What can I eat tonight?", "Anything without shellfish.")
        bob.end("all", "wed")
        merged(bob, 2)

        # Two weeks later, each with what is theirs.
        last = alice.context("all", "fri", "How do I descale my espresso machine, and where do we fly to?")
        told = text(last)
        assert all(
            word in told for word in ("Alice Ferreira", "Oslo", "Bergen", "citric acid", "bought an espresso")
        )
        assert not any(word in told for word in ("Bob", "shellfish", "van"))
        theirs = text(bob.context("all", "fri", "What do you know about me, and about Oslo?"))
        assert "allergic to shellfish" in theirs
        assert not any(word in theirs for word in ("Alice", "Oslo on", "Bergen", "nurse"))
        assert len(alice.see("/v1/agents/all/sessions")["sessions"]) == 3
        assert len(bob.see("/v1/agents/all/sessions")["sessions"]) == 2

        # And a service that starts again knows the same.
        salon.admin.ask("POST", f"/v1/admin/users/{bob.name}/wipe", json={"wait": True})
        assert "shellfish" not in text(bob.context("all", "sat", "What do you know about me?"))
        assert bob.ask("GET", at("all", "mon")).status_code == 404
    with serving(tmp_path, *FLAGS, "--agents", specs) as again:
        alice.service = again
        until(
            lambda: (
                "citric acid" in text(alice.context("all", "sun", "How do I descale my espresso machine?"))
            )
        )
        assert "Oslo" in text(alice.context("all", "sun", "Hello"))
