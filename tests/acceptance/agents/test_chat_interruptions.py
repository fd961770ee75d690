"""Turns that somebody comes between: who leaves or speaks twice, a kill, a wipe, a deletion."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.chat_service import Chatter, Parlour, asked, at_once, chatting, told
from tests.support.conversation_service import at
from tests.support.llm_server import LLMServer, Play, calls, endless, llm, silent, text  # noqa: F401
from tests.support.waiting import until
from tests.support.worker_connections import one_client_each

SLOW = 0.7
"""Seconds that a slow answer takes; one that takes longer changes nothing."""


@pytest.fixture(scope="module")
def one(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    with chatting(tmp_path_factory.mktemp("one"), llm) as parlour:
        yield parlour


@pytest.fixture(scope="module")
def two(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    with chatting(tmp_path_factory.mktemp("two"), llm, "--workers", 2) as parlour:
        yield parlour


@pytest.fixture
def parlour(one: Parlour) -> Parlour:
    one.llm.reset()
    return one


@pytest.fixture
def workers(two: Parlour) -> Iterator[tuple[Parlour, list[httpx.Client]]]:
    """A service of two processes, and a client of each."""
    two.llm.reset()
    with one_client_each(two.service) as clients:
        yield two, clients


def said(
    who: Chatter, client: httpx.Client, session: str, message: str, agent: str = "bot"
) -> httpx.Response:
    """What is answered over this client's connection."""
    body = {"session_id": session, "message": message}
    headers = {"authorization": f"Bearer {who.token}"}
    return client.post(f"/v1/agents/{agent}/chat", json=body, headers=headers)


# Who leaves


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "play", [silent(), endless(delay=0.01), text("Once upon a time", pieces=9, delay=600)]
)
def test_a_client_that_leaves_stops_the_model_and_nothing_is_kept(
    parlour: Parlour, play: Play, stream: bool
) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(play)
    with asked(alice, "/v1/agents/talk/chat", {"session_id": "s", "message": "Hello", "stream": stream}):
        parlour.asking()
    until(lambda: parlour.llm.requests[-1].gone)
    assert alice.chat("talk", "s", "Are you there?")["text"] == "Hello."  # nobody holds the session
    assert alice.kept("talk", "s") == [("user", "Are you there?"), ("assistant", "Hello.")]
    assert len(parlour.llm.requests) == 2


def test_a_reader_that_leaves_in_the_middle_of_the_text_stops_the_model(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(("remember", {"key": "tea", "content": "green"})), endless("word ", delay=0.01))
    body = {"session_id": "s", "message": "Hello", "stream": True}
    headers = {"authorization": f"Bearer {alice.token}"}
    with parlour.service.client.stream("POST", "/v1/agents/bot/chat", json=body, headers=headers) as answer:
        lines = filter(None, answer.iter_lines())
        assert '"tool"' in next(lines)
        assert '"text"' in next(lines)
    until(lambda: parlour.llm.requests[-1].gone)
    alice.chat("bot", "other", "Hello")
    assert alice.kept("bot", "s") == []
    assert alice.keys("bot", "list_memories") == ["tea"]
    (count,) = until(lambda: [row for row in alice.see("/v1/agents/bot/usage")["usage"] if row["turns"] == 2])
    assert count["completion_tokens"] > 0  # what was said until then is counted


@pytest.mark.parametrize("mode", ["order", "parallel"])
def test_who_leaves_a_team_stops_all_of_it(parlour: Parlour, mode: str) -> None:
    alice, number = parlour.chatter("alice"), 3 if mode == "parallel" else 1
    parlour.llm.play(silent(times=3))
    with asked(alice, "/v1/teams/crew/run", {"task": "Go", "session_id": "s", "mode": mode}):
        parlour.asking(number)
    until(lambda: [each.gone for each in parlour.llm.requests] == [True] * number)
    assert [alice.kept(worker, "s") for worker in ("talk", "scout", "bot")] == [[]] * 3


def test_who_leaves_while_waiting_for_a_session_is_not_asked_for(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(silent(when="one"))
    first = at_once(alice.chat, "talk", "s", "This is one")
    parlour.asking()
    with asked(alice, "/v1/agents/talk/chat", {"session_id": "s", "message": "This is two"}):
        alice.chat("talk", "other", "Hello")
    left = {"user": alice.name, "status": 499}
    until(lambda: any(left.items() <= line.items() for line in parlour.service.lines))
    parlour.release()
    first.result()
    alice.chat("talk", "s", "This is three")
    said = [each for role, each in alice.kept("talk", "s") if role == "user"]
    assert said == ["This is one", "This is three"]
    assert "This is two" not in "".join(told(request.messages) for request in parlour.llm.requests)


# Two at once


def test_turns_of_one_session_go_one_after_the_other(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(text("First.", delay=SLOW, when="one"))
    first = at_once(alice.chat, "talk", "s", "This is one")
    parlour.asking()
    second = at_once(alice.hears, "talk", "s", "This is two")
    assert first.result()["text"] == "First."
    assert dict(second.result())["reply"]["text"] == "Hello."
    one, two = parlour.llm.requests
    assert [each["content"] for each in two.messages[1:]] == ["This is one", "First.", "This is two"]
    assert len(one.messages) == 2
    assert [each for _, each in alice.kept("talk", "s")] == ["This is one", "First.", "This is two", "Hello."]


def test_many_turns_of_one_session_lose_nothing(parlour: Parlour) -> None:
    alice, number = parlour.chatter("alice"), 8
    with ThreadPoolExecutor(number) as threads:
        list(threads.map(lambda n: alice.chat("bot", "s", f"Message {n}"), range(number)))
    kept = alice.kept("bot", "s")
    assert sorted(text or "" for role, text in kept if role == "user") == [
        f"Message {n}" for n in range(number)
    ]
    assert [role for role, _ in kept] == ["user", "assistant"] * number
    lengths = sorted(len(request.messages) for request in parlour.llm.requests)
    assert lengths[:4] == [2, 4, 6, 8]  # each has seen those before it, as far as the window goes


def test_other_sessions_agents_and_users_are_not_held_up(parlour: Parlour) -> None:
    alice, bob = parlour.chatter("alice"), parlour.chatter("bob")
    parlour.llm.play(silent(when="for ever"))
    with asked(alice, "/v1/agents/talk/chat", {"session_id": "s", "message": "Think for ever"}):
        parlour.asking()
        alice.chat("talk", "other", "Hello")
        alice.chat("bot", "s", "Hello")
        bob.chat("talk", "s", "Hello")
        assert not parlour.llm.requests[0].gone


def test_turns_of_one_session_go_one_after_the_other_in_whichever_process(
    workers: tuple[Parlour, list[httpx.Client]],
) -> None:
    parlour, clients = workers
    for here, there in (clients, clients[::-1]):
        alice = parlour.chatter("alice")
        parlour.llm.reset()
        parlour.llm.play(text("First.", delay=SLOW, when="one"))
        first = at_once(said, alice, here, "s", "This is one")
        parlour.asking()
        second = at_once(said, alice, there, "s", "This is two")
        assert [first.result().status_code, second.result().status_code] == [200, 200]
        spoken = [each["content"] for each in parlour.llm.requests[1].messages[1:]]
        assert spoken == ["This is one", "First.", "This is two"]


def test_a_process_that_is_killed_in_the_middle_of_a_turn_blocks_nobody(
    workers: tuple[Parlour, list[httpx.Client]],
) -> None:
    parlour, (here, there) = workers
    alice = parlour.chatter("alice")
    parlour.llm.play(silent(when="for ever"))
    first = at_once(said, alice, here, "s", "Think for ever")
    parlour.asking()
    waiting = at_once(said, alice, there, "s", "Hello")
    os.kill(parlour.service.children()[0], signal.SIGKILL)  # the one that `here` is connected to
    with pytest.raises(httpx.TransportError):
        first.result()
    assert waiting.result().json()["text"] == "Hello."
    assert alice.kept("bot", "s") == [("user", "Hello"), ("assistant", "Hello.")]


# What is taken away


def wipe(parlour: Parlour, who: Chatter, client: httpx.Client | None = None) -> None:
    headers = {"authorization": f"Bearer {parlour.admin.token}"}
    path = f"/v1/admin/users/{who.name}/wipe"
    answer = (client or parlour.service.client).post(path, json={}, headers=headers)
    assert answer.status_code == 200, answer.text


def counted(who: Chatter, client: httpx.Client) -> Any:
    """The tokens that are counted for a user, once this client's process has written what it gathered."""
    headers = {"authorization": f"Bearer {who.token}"}
    return client.get("/v1/agents/bot/usage", headers=headers).json()["usage"]


def nothing_is_left(parlour: Parlour, who: Chatter, *clients: httpx.Client) -> None:
    """Nothing of a user who was wiped is there, in whichever process."""
    for client in clients or [parlour.service.client]:
        assert counted(who, client) == []
    exported = parlour.admin.ask("GET", "/v1/memories/export").text
    assert [line for line in exported.splitlines() if who.name in line or "Quetzal" in line] == []
    assert who.kept("bot", "s") == []


NOTED = calls(("remember", {"key": "name", "content": "Quetzal"}))


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_said_while_a_user_is_wiped_is_not_kept(parlour: Parlour, stream: bool) -> None:
    alice = parlour.chatter("alice")
    alice.chat("bot", "s", "Hello, I am Quetzal")
    parlour.llm.play(silent())
    turn = at_once(alice.tries, "bot", "s", "My friend is Quetzal", stream=stream)
    parlour.asking()
    wipe(parlour, alice)
    parlour.release(text("I see, Quetzal."))
    ended = turn.result()
    assert ended.status_code == 503 or "event: error" in ended.text
    nothing_is_left(parlour, alice)
    assert alice.chat("bot", "s", "Who am I?")["text"] == "Hello."
    assert "Quetzal" not in told(parlour.llm.requests[-1].messages)


def test_tools_that_are_called_after_a_wipe_write_nothing(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.chat("bot", "s", "Hello, I am Quetzal")
    parlour.llm.play(silent())
    turn = at_once(alice.tries, "bot", "s", "Remember my name")
    parlour.asking()
    wipe(parlour, alice)
    parlour.release(NOTED)
    assert turn.result().status_code == 503
    nothing_is_left(parlour, alice)


def test_a_wipe_in_the_very_first_turn_leaves_nothing_of_it(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(NOTED, silent())
    turn = at_once(alice.tries, "bot", "s", "I am Quetzal")
    until(lambda: len(parlour.llm.requests) == 2)
    wipe(parlour, alice)
    parlour.release(text("Hello, Quetzal."))
    turn.result()
    nothing_is_left(parlour, alice)


@pytest.mark.parametrize("play", [text("Hello, Quetzal."), NOTED])
def test_a_wipe_by_another_process_leaves_nothing_either(
    workers: tuple[Parlour, list[httpx.Client]], play: Play
) -> None:
    parlour, (here, there) = workers
    alice = parlour.chatter("alice")
    assert said(alice, here, "s", "Hello, I am Quetzal").status_code == 200
    assert counted(alice, here)  # so that nothing is written there in the meantime
    parlour.llm.play(silent())
    turn = at_once(said, alice, here, "s", "Remember that I am Quetzal")
    parlour.asking()
    wipe(parlour, alice, there)
    parlour.release(play)
    assert turn.result().status_code == 503, turn.result().text
    nothing_is_left(parlour, alice, here, there)


def test_a_session_that_is_deleted_in_the_middle_of_a_turn_does_not_come_back(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.chat("talk", "s", "My friend is Quetzal")
    parlour.llm.play(silent())
    turn = at_once(alice.tries, "talk", "s", "And now?")
    parlour.asking()
    assert alice.ask("DELETE", at("talk", "s")).status_code in (200, 204)
    parlour.release(text("Well."))
    turn.result()
    assert alice.kept("talk", "s") in ([], [("user", "And now?"), ("assistant", "Well.")])
    alice.chat("talk", "s", "Who is my friend?")
    assert "Quetzal" not in told(parlour.llm.requests[-1].messages)
