"""Anthropic's models, through its official client library.

Requests and answers in OpenAI's format are translated: instructions next to the messages, tool calls and
their results as blocks, and the events of a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from alcove.core.errors import requires_extra
from alcove.core.records import Message
from alcove.core.settings import LLMSettings
from alcove.llm.connections import ConnectionPool, Hooks, seconds_after, timeout_of, was_sent
from alcove.llm.model import (
    AnswerBuilder,
    ModelAnswer,
    ModelRequest,
    ProviderError,
    TokenUse,
    parse_arguments,
)

_FINISH = {"max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}
_SYSTEM = ("system", "developer")
_TOOL_CHOICE = {"auto": "auto", "none": "none", "required": "any"}
"""What OpenAI and Anthropic call the same."""


class Anthropic:
    """A provider of models by Anthropic's messages."""

    def __init__(self, settings: LLMSettings) -> None:
        with requires_extra("--llm-provider anthropic", extra="anthropic"):
            import anthropic  # noqa: PLC0415
        self._library = anthropic
        url = settings.llm_url and settings.llm_url.rstrip("/").removesuffix("/v1")
        # httpx, or its successor
        self._http = import_module(anthropic.DefaultHttpxClient.__mro__[1].__module__)
        verify = self._http.create_ssl_context()  # once for all clients: reading certificates takes 50 ms

        def make_client(hooks: Hooks) -> anthropic.Anthropic:
            http_client = anthropic.DefaultHttpxClient(verify=verify, event_hooks=hooks)
            key = settings.llm_key or ""
            return anthropic.Anthropic(api_key=key, base_url=url, max_retries=0, http_client=http_client)

        self._connections = ConnectionPool(make_client)
        self._model, self._max_tokens = settings.llm_model or "default", settings.max_answer_tokens

    def ask(self, request: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        """Gives the text piece by piece, then the complete answer."""
        library, body = self._library, self._body(request)
        timeout = timeout_of(self._http, seconds)
        try:
            with (
                self._connections.client() as client,
                client.messages.create(**body, stream=True, timeout=timeout) as stream,
            ):
                yield from _answer(stream, request)
        except library.APITimeoutError as error:
            billed = was_sent(error.__cause__)
            raise ProviderError(repr(error), timeout=True, may_be_billed=billed) from None
        except library.APIStatusError as error:
            wait = seconds_after(error.response.headers.get("retry-after", ""))
            status = error.status_code if error.status_code >= 400 else 500  # in a stream, it comes with 200
            billed = error.status_code < 400
            raise ProviderError(str(error), status=status, retry_after=wait, may_be_billed=billed) from None
        except library.APIConnectionError as error:
            reason, billed = f"{error} ({error.__cause__!r})", was_sent(error.__cause__)
            raise ProviderError(reason, may_be_billed=billed) from None
        except (library.AnthropicError, AttributeError, TypeError, ValueError) as error:  # it is no event
            raise ProviderError(f"its answer cannot be read: {error!r}", status=200) from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore2", "httpcore"):
                reason = f"its answer broke off: {error!r}"
                raise ProviderError(reason, status=502, may_be_billed=True) from None
            raise

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        options = request.options
        limit = options.get("max_completion_tokens") or options.get("max_tokens") or self._max_tokens
        body: dict[str, Any] = {"model": self._model, "max_tokens": limit}
        if stop := options.get("stop"):
            body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if extra := {name: options[name] for name in ("temperature", "top_p") if name in options}:
            body["extra_body"] = extra  # which the library does not name for all models
        system = [each.content for each in request.messages if each.role in _SYSTEM and each.content]
        if system:
            body["system"] = [{"type": "text", "text": text} for text in system]
        body["messages"] = [*_merge(request.messages)]
        if request.tools:
            body["tools"] = [_tool(each["function"]) for each in request.tools]
            if choice := _choice(options.get("tool_choice")):
                body["tool_choice"] = choice
        elif used := {call["function"]["name"] for each in request.messages for call in each.tool_calls}:
            body["tools"] = [_tool({"name": name}) for name in sorted(used)]  # calls are refused without
            body["tool_choice"] = {"type": "none"}
        return body

    def close(self) -> None:
        self._connections.close()


def _answer(events: Iterable[Any], request: ModelRequest) -> Iterator[str | ModelAnswer]:
    """Gives the text of a stream's events as they come, then the complete answer."""
    answer, meter, prompt = AnswerBuilder(request.meter), request.meter, 0
    for event in events:
        request.seconds_left()
        match event.type:
            case "message_start":
                use = event.message.usage
                cached = (use.cache_creation_input_tokens or 0) + (use.cache_read_input_tokens or 0)
                prompt = use.input_tokens + cached
            case "content_block_start" if event.content_block.type == "tool_use":
                answer.add_call(event.index, id=event.content_block.id, name=event.content_block.name)
            case "content_block_start" if event.content_block.type == "text":
                if event.content_block.text:
                    yield answer.add_text(event.content_block.text)
            case "content_block_delta" if event.delta.type == "input_json_delta":
                answer.add_call(event.index, arguments=event.delta.partial_json)
            case "content_block_delta" if event.delta.type == "text_delta":
                yield answer.add_text(event.delta.text)
            case "message_delta":
                answer.finish = _FINISH.get(event.delta.stop_reason, "stop")
                meter.use = TokenUse.of(prompt, event.usage.output_tokens)
        if meter.is_full:
            break
    yield answer.build()


def _merge(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Makes blocks of messages, one of neighbours of the same role, as results of parallel calls must be."""
    turns = [each for each in messages if each.role not in _SYSTEM]
    if turns[0].role == "assistant":  # the user is to begin
        turns.insert(0, Message(role="user", content="(What was said before is left out.)"))
    role, blocks = None, list[dict[str, Any]]()
    for message in turns:
        speaker = "assistant" if message.role == "assistant" else "user"
        if speaker != role and blocks:
            yield {"role": role, "content": blocks}
            blocks = []
        role = speaker
        blocks += _blocks(message)
    yield {"role": role, "content": blocks}


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        yield {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content or ""}
        return
    if message.content and message.content.strip():
        yield {"type": "text", "text": message.content}
    for call in message.tool_calls:
        name, arguments = call["function"]["name"], parse_arguments(call["function"]["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": name, "input": arguments or {}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description", ""), "input_schema": schema}


def _choice(choice: object) -> dict[str, str] | None:
    if isinstance(choice, str) and choice in _TOOL_CHOICE:
        return {"type": _TOOL_CHOICE[choice]}
    if isinstance(choice, dict):
        return {"type": "tool", "name": str(choice.get("function", {}).get("name"))}
    return None
