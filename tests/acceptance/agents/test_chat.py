"""A turn over REST: what the model is sent, what the user is answered, what is kept and counted of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_service import KEY, Parlour, chatting, events, told
from tests.support.llm_server import LLMServer, calls, cut, llm, text  # noqa: F401
from tests.support.service import assert_error, serving
from tests.support.tokens import FLAGS, token


@pytest.fixture(scope="module")
def served(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    with chatting(tmp_path_factory.mktemp("chat"), llm) as parlour:
        yield parlour


@pytest.fixture
def parlour(served: Parlour) -> Parlour:
    served.llm.reset()
    return served


def test_a_turn_is_assembled_and_answered_and_the_next_one_knows_it(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(text("Green.", usage=(12, 3)), text("You asked for tea."))
    reply = alice.chat("talk", "s", "Which tea?")
    assert (reply["agent"], reply["session_id"]) == ("talk", "s")
    assert (reply["text"], reply["finish"], reply["rounds"]) == ("Green.", "stop", 1)
    assert (reply["stored"], reply["tools"], reply["tool_calls"]) == (True, [], [])
    assert reply["usage"] == {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    assert alice.chat("talk", "s", "What did I ask?")["text"] == "You asked for tea."
    first, second = parlour.llm.requests
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.body["model"] == "scripted"
    assert "stream" not in first.body
    assert "tools" not in first.body  # which this agent has none of
    system, *said = second.messages
    assert system["role"] == "system"
    assert system["content"].startswith("You talk.")
    assert said == [
        {"role": "user", "content": "Which tea?"},
        {"role": "assistant", "content": "Green."},
        {"role": "user", "content": "What did I ask?"},
    ]
    assert alice.kept("talk", "s") == [
        ("user", "Which tea?"),
        ("assistant", "Green."),
        ("user", "What did I ask?"),
        ("assistant", "You asked for tea."),
    ]
    (session,) = alice.see("/v1/agents/talk/sessions")["sessions"]
    assert (session["id"], session["messages"], session["ended"]) == ("s", 4, False)


def test_what_is_remembered_is_sent_and_accounted_for(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.call("bot", "remember", key="mood", content="cheerful")
    alice.call("bot", "learn_fact", content="The cat is called Miau")
    alice.call("bot", "memory_remember", content="Answer about the cat in French", type="instruction")
    reply = alice.chat("bot", "s", "What is the name of my cat?")
    (request,) = parlour.llm.requests
    sent = told(request.messages[1:])
    for known in ("cheerful", "Miau", "in French"):
        assert known in sent
        assert known not in request.messages[0]["content"]
    assert {"standing", "preamble", "facts", "message"} <= reply["receipt"]["tiers"].keys()
    tiers = reply["receipt"]["tiers"].values()
    assert reply["receipt"]["total_tokens"] == sum(tier["tokens"] for tier in tiers)
    assert {"queue", "context", "llm", "store"} <= reply["timings_ms"].keys()


@pytest.mark.parametrize("agent", ["bare", "auto", "talk", "bot"])
def test_turns_are_kept_where_the_spec_says_so(parlour: Parlour, agent: str) -> None:
    alice, keeps = parlour.chatter("alice"), agent != "bare"
    assert alice.chat(agent, "s", "Hello")["stored"] is keeps
    assert alice.kept(agent, "s") == ([("user", "Hello"), ("assistant", "Hello.")] if keeps else [])
    assert len(alice.see(f"/v1/agents/{agent}/sessions")["sessions"]) == keeps


def test_sessions_and_users_are_apart(parlour: Parlour) -> None:
    alice, bob = parlour.chatter("alice"), parlour.chatter("bob")
    alice.chat("talk", "s", "My secret is Quetzal.")
    alice.chat("talk", "other", "Hello")
    bob.chat("talk", "s", "Hello")
    for request in parlour.llm.requests[1:]:
        assert "Quetzal" not in told(request.messages)
    assert bob.kept("talk", "s") == [("user", "Hello"), ("assistant", "Hello.")]


def test_a_message_like_the_last_one_that_was_added_is_said_all_the_same(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.say("talk", "s", "Hello?")
    alice.chat("talk", "s", "Hello?")
    assert [each["content"] for each in parlour.llm.requests[0].messages[1:]] == ["Hello?", "Hello?"]
    assert alice.kept("talk", "s") == [("user", "Hello?"), ("user", "Hello?"), ("assistant", "Hello.")]


# Streams


def test_a_stream_has_the_text_as_it_comes_the_tools_and_the_reply(parlour: Parlour) -> None:
    alice, tea = parlour.chatter("alice"), {"key": "tea", "content": "green"}
    parlour.llm.play(calls(("remember", tea), text="Noted."), text("Green tea, please.", pieces=3))
    *heard, (last, reply) = alice.hears("bot", "s", "Which tea?")
    assert [kind for kind, _ in heard] == ["text"] * 3 + ["tool"] + ["text"] * 4
    assert heard[3][1]["tool"] == "remember"
    assert heard[3][1]["outcome"] == "ok"
    spoken = "".join(said for kind, said in heard if kind == "text")
    assert (last, reply["text"]) == ("reply", spoken)
    assert spoken == "Noted.\n\nGreen tea, please."
    assert (reply["stored"], reply["rounds"], len(reply["tools"])) == (True, 2, 1)
    assert alice.kept("bot", "s")[1] == ("assistant", spoken)
    for request in parlour.llm.requests:
        assert request.body["stream"] is True
        assert request.body["stream_options"] == {"include_usage": True}


def test_a_stream_is_asked_for_by_a_field_or_by_a_header(parlour: Parlour) -> None:
    alice, wants = parlour.chatter("alice"), {"accept": "text/event-stream"}
    assert [kind for kind, _ in alice.hears("talk", "a", "Hello")] == ["text", "reply"]
    by_header = alice.tries("talk", "b", "Hello", headers=wants)
    assert [kind for kind, _ in events(by_header.text)] == ["text", "reply"]
    assert alice.tries("talk", "c", "Hello", stream=False).json()["text"] == "Hello."


def test_a_server_that_ignores_the_wish_for_a_stream_is_understood(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(
        calls(("remember", {"key": "tea", "content": "green"}), streams=False),
        text("Green tea.", streams=False, usage=(12, 3)),
    )
    heard = alice.hears("bot", "s", "Which tea?")
    assert [kind for kind, _ in heard] == ["tool", "text", "reply"]
    assert heard[-1][1]["text"] == "Green tea."
    assert alice.call("bot", "recall", key="tea")["content"] == "green"


def test_what_is_wrong_before_the_first_piece_has_a_status(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    for stream in (False, True):
        assert_error(alice.tries("nobody", "s", "Hello", stream=stream), 404, "not_found")
        assert_error(alice.tries("secret", "s", "Hello", stream=stream), 404, "not_found")
        for message in ("", " \n"):
            refused = alice.tries("talk", "s", message, stream=stream)
            assert assert_error(refused, 400, "invalid_request")["details"]["field"] == "message"
        refused = alice.tries("talk", "", "Hello", stream=stream)
        assert assert_error(refused, 400, "invalid_request")["details"]["field"] == "session_id"
        refused = alice.tries("talk", "s", "Hello", stream=stream, sesion="x")
        assert_error(refused, 400, "invalid_request")
        stranger = parlour.service.call("POST", "/v1/agents/talk/chat", json={"stream": stream})
        assert_error(stranger, 401, "unauthenticated")
    assert parlour.llm.requests == []


def test_what_goes_wrong_after_the_first_piece_is_an_event(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(cut(after=3))
    *heard, (last, error) = alice.hears("talk", "s", "Hello")
    assert "".join(said for _, said in heard) == "Once upon a tim"
    assert last == "error"
    assert error["code"] == "upstream_failed"
    assert error["error"]
    assert error["request_id"]
    assert alice.kept("talk", "s") == []
    assert len(parlour.llm.requests) == 1  # what was passed on cannot be taken back


def test_without_a_model_there_is_no_turn(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(
        "agents: [{name: talk, memory: {conversation: {}}}]\n"
        "teams: [{name: crew, workers: [talk]}, {name: rowers, workers: [talk], mode: parallel}]\n"
    )
    with serving(tmp_path, *FLAGS, "--agents", specs, "--embedder", "none") as service:
        for path, body in (
            ("/v1/agents/talk/chat", {"session_id": "s", "message": "Hello"}),
            ("/v1/agents/talk/chat", {"session_id": "s", "message": "Hello", "stream": True}),
            ("/v1/teams/crew/run", {"task": "Hello"}),
            ("/v1/teams/rowers/run", {"task": "Hello"}),
        ):
            refused = service.call("POST", path, token("alice"), json=body)
            assert "--llm-url" in assert_error(refused, 503, "service_unavailable")["error"]


# Options


def test_an_explained_turn_shows_what_was_sent_the_last_time(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(("recall", {"key": "tea"})))
    reply = alice.chat("bot", "s", "Which tea?", explain=True)
    sent = [{name: each[name] for name in shown} for each, shown in zip(
        parlour.llm.requests[-1].messages, reply["sent"], strict=True)]  # fmt: skip
    assert sent == reply["sent"]
    assert [each["role"] for each in sent] == ["system", "user", "assistant", "tool"]
    assert alice.chat("bot", "s", "And now?")["sent"] == []


def test_runs_are_named_by_instances(parlour: Parlour) -> None:
    alice, bob, run = parlour.chatter("alice"), parlour.chatter("bob"), parlour.new_id()
    written = {"namespace": "workflow", "key": "plan", "value": "dig"}
    parlour.llm.play(
        calls(("shared_memory_write", written), ("shared_memory_write", {**written, "namespace": "session"}))
    )
    reply = alice.chat("bot", "s", "Make a plan", instances={"workflow": run})
    assert [use["outcome"] for use in reply["tools"]] == ["ok", "ok"]
    for where in ({"instances": {"workflow": run}}, {"session_id": "s"}):
        namespace = "workflow" if "instances" in where else "session"
        found = alice.call("bot", "shared_memory_read", where=where, namespace=namespace, key="plan")
        assert found["value"] == "dig"
    for who, where, outcome in ((bob, {"workflow": run}, "not_found"), (alice, {}, "invalid_request")):
        parlour.llm.play(calls(("shared_memory_read", {"namespace": "workflow", "key": "plan"})))
        (use,) = who.chat("bot", "s", "Read it", instances=where)["tools"]
        assert use["outcome"] == outcome
        assert "dig" not in told(parlour.llm.requests[-1].messages)


def test_a_budget_bounds_what_is_sent(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    alice.say("talk", "s", *(f"turn {n}: {'long ' * 60}" for n in range(6)))
    reply = alice.chat("talk", "s", "And now?", budget_tokens=200)
    assert reply["receipt"]["total_tokens"] <= reply["receipt"]["budget_tokens"] == 200
    assert len(parlour.llm.requests[0].messages) < 8
    refused = alice.tries("talk", "s", "word " * 300, budget_tokens=200)
    assert assert_error(refused, 400, "invalid_request")["details"]["field"] == "budget_tokens"
    assert_error(alice.tries("talk", "s", "Hi", budget_tokens=0), 400, "invalid_request")
    assert len(parlour.llm.requests) == 1


# Tokens


def test_tokens_are_counted_for_the_agent_and_the_user(parlour: Parlour) -> None:
    alice, bob = parlour.chatter("alice"), parlour.chatter("bob")

    def usage(who: Any) -> dict[str, tuple[int, int, int]]:
        rows = who.see("/v1/agents/scout/usage")["usage"]
        names = ("turns", "prompt_tokens", "completion_tokens")
        return {row["user"]: tuple(row[name] for name in names) for row in rows}

    def in_all() -> int:
        rows = parlour.admin.see("/v1/admin/stats")["llm"]
        return sum(row["prompt_tokens"] for row in rows if row["agent"] == "scout")

    before = in_all()
    parlour.llm.play(calls(("list_memories", {}), usage=(100, 10)), text("None.", usage=(200, 20)))
    alice.chat("scout", "s", "What do you know?")
    parlour.llm.play(text("Hi.", usage=(30, 3)), text("Hi.", usage=(40, 4)))
    alice.hears("scout", "s", "Hello")
    bob.chat("scout", "s", "Hello")
    assert usage(alice) == {alice.name: (2, 330, 33)}
    assert usage(bob) == {bob.name: (1, 40, 4)}
    assert usage(parlour.admin) == usage(alice) | usage(bob)
    auditor = parlour.chatter("auditor", roles=["auditor"])
    assert usage(auditor) == usage(parlour.admin)
    assert in_all() - before == 370
    assert_error(alice.ask("GET", "/v1/admin/stats"), 403, "permission_denied")
    assert_error(alice.ask("GET", "/v1/agents/secret/usage"), 404, "not_found")


def test_tokens_of_a_model_that_does_not_tell_are_estimated(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(text("One two three four five.", usage=False, times=2))
    reply = alice.chat("talk", "s", "Hello there")
    assert reply["usage"]["prompt_tokens"] > 10
    assert 4 <= reply["usage"]["completion_tokens"] <= 12
    assert alice.hears("talk", "s2", "Hello there")[-1][1]["usage"] == reply["usage"]
