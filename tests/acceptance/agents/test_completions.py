"""OpenAI's chat completions, as its official client sees them: answers, tools, options, errors, models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.chat_service import KEY, Chatter, Parlour, chatting, told
from tests.support.llm_server import LLMServer, calls, cut, endless, fails, llm, text  # noqa: F401
from tests.support.openai_clients import WAYS, complete
from tests.support.waiting import until

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Today's.", "parameters": SCHEMA, "strict": True},
}
PORTO: Any = ("get_weather", {"city": "Porto"})
TEA: Any = ("remember", {"key": "tea", "content": "green"})


@pytest.fixture(scope="module")
def served(llm: LLMServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlour]:  # noqa: F811
    flags = ("--llm-retries", 1, "--turn-rounds", 3)
    with chatting(tmp_path_factory.mktemp("completions"), llm, *flags) as parlour:
        yield parlour


@pytest.fixture
def parlour(served: Parlour) -> Parlour:
    served.llm.reset()
    return served


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_answers_as_a_model_would(parlour: Parlour, way: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(text("Green tea, please.", pieces=3, usage=(12, 3)))
    said = complete(alice, "talk", "Which tea?", way=way)
    assert (said.text, said.finish, said.calls, said.model) == ("Green tea, please.", "stop", [], "talk")
    (request,) = parlour.llm.requests
    assert request.body["model"] == "scripted"
    assert bool(request.body.get("stream")) is way.endswith("stream")
    system, message = request.messages
    assert system["content"].startswith("You talk.")
    assert message == {"role": "user", "content": "Which tea?"}


@pytest.mark.parametrize("way", WAYS)
def test_the_callers_tools_are_called_by_the_caller(parlour: Parlour, way: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(PORTO, ("get_weather", {"city": "Braga"}), text="Let me look."))
    said = complete(alice, "bot", "Will it rain?", way=way, tools=[WEATHER])
    assert (said.text, said.finish) == ("Let me look.", "tool_calls")
    assert said.calls == [PORTO, ("get_weather", {"city": "Braga"})]
    assert len({*said.ids}) == 2
    (request,) = parlour.llm.requests
    offered = [each["function"]["name"] for each in request.body["tools"]]
    assert request.body["tools"][-1] == WEATHER
    assert {"remember", "learn_fact", "memory_recall"} < {*offered}


@pytest.mark.parametrize("way", WAYS)
def test_the_tools_of_memory_are_run_inside(parlour: Parlour, way: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(TEA, text="Noted."), calls(PORTO), text("Sunny."))
    said = complete(alice, "bot", "I like tea. Will it rain?", way=way, tools=[WEATHER])
    assert (said.text, said.finish, said.calls) == ("Noted.", "tool_calls", [PORTO])
    assert alice.call("bot", "recall", key="tea")["content"] == "green"
    roles = [each["role"] for each in parlour.llm.requests[1].messages]
    assert roles[-3:] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("way", WAYS)
def test_of_a_mixed_round_the_caller_does_their_part(parlour: Parlour, way: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(PORTO, TEA, ("get_weather", {"city": "Braga"})), text("Sunny."))
    said = complete(alice, "bot", "Will it rain?", way=way, tools=[WEATHER])
    assert said.calls == [PORTO, ("get_weather", {"city": "Braga"})]
    assert said.text is None
    assert alice.keys("bot", "list_memories") == ["tea"]
    results = [{"role": "tool", "tool_call_id": id, "content": "Sun"} for id in said.ids]
    assert complete(alice, "bot", "Will it rain?", said.message(), *results, tools=[WEATHER]).text == "Sunny."
    asked, *answers = parlour.llm.requests[-1].messages[-3:]
    assert [call["id"] for call in asked["tool_calls"]] == [each["tool_call_id"] for each in answers]


def test_a_tool_that_is_named_like_one_of_memory_is_refused(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    mine = {"type": "function", "function": {"name": "recall", "parameters": SCHEMA}}
    with pytest.raises(openai.BadRequestError) as refused:
        complete(alice, "bot", "Hello", tools=[WEATHER, mine])
    assert refused.value.param == "tools[1].function.name"
    assert complete(alice, "talk", "Hello", tools=[mine]).text == "Hello."  # this agent has no such tool
    for odd in ({"type": "web_search"}, {"type": "function"}, {"type": "function", "function": {"name": 7}}):
        with pytest.raises(openai.BadRequestError) as refused:
            complete(alice, "bot", "Hello", tools=[odd])
        assert refused.value.param == "tools[0]"


# What passes


def test_options_reach_the_model(parlour: Parlour) -> None:
    options: Any = {
        "temperature": 0.25, "top_p": 0.5, "max_completion_tokens": 77, "stop": ["END", "\n\n"], "seed": 7,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"50256": -100},
        "response_format": {"type": "json_object"}, "reasoning_effort": "low", "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    }  # fmt: skip
    complete(parlour.chatter(), "bot", "Hello", tools=[WEATHER], **options)
    body = parlour.llm.requests[0].body
    assert {name: body[name] for name in options} == options
    complete(parlour.chatter(), "talk", "Hello", max_tokens=5, stop="END")
    body = parlour.llm.requests[1].body
    assert (body["max_tokens"], body["stop"]) == (5, "END")
    assert "max_completion_tokens" not in body


def test_a_choice_of_tools_holds_for_the_first_round(parlour: Parlour) -> None:
    parlour.llm.play(calls(TEA), calls(TEA))
    said = complete(parlour.chatter(), "bot", "Tea", tool_choice="required", temperature=0.5)
    assert said.text == "Hello."
    assert [each.body.get("tool_choice") for each in parlour.llm.requests] == ["required", None, None]
    assert [each.body["temperature"] for each in parlour.llm.requests] == [0.5] * 3


def test_options_about_tools_go_with_the_tools(parlour: Parlour) -> None:
    parlour.llm.play(calls(TEA, times=3))
    complete(parlour.chatter(), "bot", "Tea", parallel_tool_calls=False)
    assert [each.body.get("parallel_tool_calls") for each in parlour.llm.requests] == [
        False,
        False,
        False,
        None,
    ]
    complete(parlour.chatter(), "talk", "Tea", parallel_tool_calls=False, tool_choice="auto")  # it has none
    assert not {"parallel_tool_calls", "tool_choice", "tools"} & parlour.llm.requests[-1].body.keys()


def test_fields_that_are_not_known_are_passed_over(parlour: Parlour) -> None:
    more = {"x_trace": {"a": [1]}, "metadata": {"k": "v"}, "store": True, "stop": None, "n": 1}
    assert complete(parlour.chatter(), "talk", "Hello", extra_body=more).text == "Hello."
    assert not {"x_trace", "metadata", "store", "stop", "n"} & parlour.llm.requests[0].body.keys()


def test_who_the_caller_is_follows_from_the_token_alone(parlour: Parlour) -> None:
    alice, bob = parlour.chatter("alice"), parlour.chatter("bob")
    bob.call("bot", "learn_fact", content="The secret word is Quetzal")
    parlour.llm.play(calls(TEA, ("recall_facts", {"query": "secret word"})))
    complete(alice, "bot", "What is the secret word?", user=bob.name, session="s",
             extra_body={"user_id": bob.name, "safety_identifier": bob.name})  # fmt: skip
    for request in parlour.llm.requests:
        assert "Quetzal" not in told(request.messages)
        assert "user" not in request.body
    assert bob.keys("bot", "list_memories") == []
    assert bob.kept("bot", "s") == []
    assert alice.keys("bot", "list_memories") == ["tea"]


def test_a_content_may_come_in_parts_of_text(parlour: Parlour) -> None:
    parts = [{"type": "text", "text": "Which tea?"}, {"type": "text", "text": "Green?"}]
    alice = parlour.chatter("alice")
    said = complete(alice, "talk", {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                    {"role": "user", "content": parts}, session="s")  # fmt: skip
    assert said.text == "Hello."
    assert parlour.llm.requests[0].messages[-1] == {"role": "user", "content": "Which tea?\nGreen?"}
    assert alice.kept("talk", "s")[0] == ("user", "Which tea?\nGreen?")


# Tokens


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_told_of_all_rounds(parlour: Parlour, way: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(calls(TEA, usage=(10, 2)), text("Noted.", usage=(20, 3)))
    wants = {"stream_options": {"include_usage": True}} if way.endswith("stream") else {}
    usage = complete(alice, "bot", "Tea", way=way, **wants).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 5, 35)
    if wants:
        assert complete(alice, "bot", "Tea", way=way).usage is None  # who did not ask
    (counted,) = alice.see("/v1/agents/bot/usage")["usage"]
    assert counted["turns"] == (2 if wants else 1)


# Errors


def refusal(error: openai.APIError) -> Any:
    """The body of an error, in the shape that OpenAI gives it."""
    body: Any = error.body
    assert {"message", "type", "code"} <= body.keys()
    assert body["message"]
    return body


@pytest.mark.parametrize("way", WAYS)
def test_what_is_wrong_is_told_in_openais_shape(parlour: Parlour, way: str) -> None:
    alice = parlour.chatter("alice")
    image = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}],
    }
    for param, messages, more in (
        ("n", ["Hello"], {"n": 2}),
        ("messages[1].content[0]", ["Look", image], {}),
        ("messages[0].role", [{"role": "robot", "content": "Hello"}], {}),
        ("messages[0].content", [{"role": "user"}], {}),
        ("messages[0].tool_call_id", [{"role": "tool", "content": "x"}], {}),
        ("messages", [], {}),
        ("messages", [{"role": "system", "content": "Only this"}], {}),
        ("messages", ["Hello", {"role": "assistant", "content": "Hi"}], {}),
        ("temperature", ["Hello"], {"extra_body": {"temperature": "hot"}}),
    ):
        with pytest.raises(openai.BadRequestError) as wrong:
            complete(alice, "bot", *messages, way=way, **more)
        body = refusal(wrong.value)
        assert (body["type"], body["code"], body["param"]) == (
            "invalid_request_error",
            "invalid_request",
            param,
        )
    with pytest.raises(openai.NotFoundError) as unknown:
        complete(alice, "gpt-4o", "Hello", way=way)
    assert refusal(unknown.value)["code"] == "not_found"
    stranger = Chatter(parlour.service, "mallory")
    stranger.token = "not-a-token"
    with pytest.raises(openai.AuthenticationError) as nobody:
        complete(stranger, "bot", "Hello", way=way)
    assert refusal(nobody.value)["type"] == "authentication_error"
    assert parlour.llm.requests == []
    parlour.llm.play(fails(401))
    with pytest.raises(openai.InternalServerError) as failed:
        complete(alice, "bot", "Hello", way=way)
    assert failed.value.status_code == 502
    assert refusal(failed.value)["type"] == "api_error"
    assert KEY not in failed.value.response.text


def test_the_wrong_method_and_the_wrong_body_are_told_in_the_same_shape(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    path = "/v1/chat/completions"
    for status, answer in (
        (405, alice.ask("GET", path)),
        (400, alice.ask("POST", path, content=b"{no", headers={"content-type": "application/json"})),
        (400, alice.ask("POST", path, json={"messages": []})),
        (415, alice.ask("POST", path, content=b"x", headers={"content-type": "text/plain"})),
        (404, alice.ask("GET", "/v1/models/nobody")),
        (405, alice.ask("DELETE", "/v1/models/bot")),
        (401, parlour.service.call("GET", "/v1/models")),
    ):
        assert answer.status_code == status, answer.text
        assert {"message", "type", "code"} <= answer.json()["error"].keys()


@pytest.mark.parametrize("session", [b"", b"\xff", b"x" * 2000])
def test_a_session_that_cannot_be_one_is_named_as_it_was_given(parlour: Parlour, session: bytes) -> None:
    body = {"model": "talk", "messages": [{"role": "user", "content": "Hello"}]}
    headers: Any = {"authorization": f"Bearer {parlour.chatter().token}", "x-session-id": session}
    answer = parlour.service.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "X-Session-ID"
    assert parlour.llm.requests == []


@pytest.mark.parametrize("way", ["stream", "async stream"])
def test_a_stream_that_breaks_off_raises_where_it_is_read(parlour: Parlour, way: str) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(cut(after=2))
    with pytest.raises(openai.APIError) as broken:
        complete(alice, "talk", "Hello", way=way, session="s")
    assert refusal(broken.value)["code"] == "upstream_failed"
    assert alice.kept("talk", "s") == []


def test_a_caller_that_leaves_a_stream_stops_the_model(parlour: Parlour) -> None:
    alice = parlour.chatter("alice")
    parlour.llm.play(endless("word ", delay=0.01))
    told_to: Any = {"model": "talk", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    with openai.OpenAI(base_url=f"{parlour.service.url}/v1", api_key=alice.token, max_retries=0) as client:
        answer = client.chat.completions.create(**told_to, extra_headers={"X-Session-ID": "s"})
        with answer as stream:
            assert next(iter(stream)).choices[0].delta.content
    until(lambda: parlour.llm.requests[-1].gone)
    assert alice.kept("talk", "s") == []


# Models


def test_the_models_are_the_agents_that_a_caller_may_use(parlour: Parlour) -> None:
    alice, carol = parlour.chatter("alice"), parlour.known("carol")
    staff = parlour.chatter("sam", groups=["staff"])
    for who, may in ((alice, False), (carol, True), (staff, True)):
        with openai.OpenAI(base_url=f"{parlour.service.url}/v1", api_key=who.token, max_retries=0) as client:
            models = {model.id: model for model in client.models.list()}
            assert {"bare", "auto", "talk", "bot", "scout"} == models.keys() - {"secret"}
            assert ("secret" in models) is may
            assert {model.object for model in models.values()} == {"model"}
            assert client.models.retrieve("bot") == models["bot"]
            if not may:
                with pytest.raises(openai.NotFoundError):
                    client.models.retrieve("secret")
    with pytest.raises(openai.NotFoundError):
        complete(alice, "secret", "Hello")
    assert complete(staff, "secret", "Hello").text == "Hello."
