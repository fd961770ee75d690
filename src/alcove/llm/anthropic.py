"""Anthropic's models, through its official client library.

What Alcove says in OpenAI's words is translated here: instructions beside the messages, calls of tools and
their results as blocks, and the events of a stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from alcove.core.errors import requires_extra
from alcove.core.messages import Message
from alcove.core.settings import LLMSettings
from alcove.core.waiting import Awaiting, Waiting
from alcove.llm.model import (
    Answered,
    Answering,
    Asked,
    Trouble,
    parsed_arguments,
    seconds_after,
    used,
    was_sent,
)

_FINISH = {"max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}
_SYSTEM = ("system", "developer")
_TOOL_CHOICE = {"auto": "auto", "none": "none", "required": "any"}
"""What OpenAI and Anthropic call the same."""


class Anthropic:
    """A provider of models by Anthropic's messages."""

    def __init__(self, settings: LLMSettings, waiting: Waiting) -> None:
        with requires_extra("--llm-provider anthropic", extra="anthropic"):
            import anthropic  # noqa: PLC0415
        self._library, self._waiting = anthropic, waiting
        kind = anthropic.AsyncAnthropic if isinstance(waiting, Awaiting) else anthropic.Anthropic
        url = settings.llm_url and settings.llm_url.rstrip("/").removesuffix("/v1")
        self._client: Any = kind(api_key=settings.llm_key or "", base_url=url, max_retries=0)
        self._model, self._max_tokens = settings.llm_model or "default", settings.max_answer_tokens

    async def ask(self, asked: Asked, seconds: float) -> AsyncGenerator[str | Answered, None]:
        """Pieces of the text as they come, and the whole answer at last."""
        library, request = self._library, self._request(asked)
        try:
            made = self._client.messages.create(**request, stream=True, timeout=seconds)
            stream = await self._waiting.given(made)
            try:
                async for piece in self._folded(self._waiting.each(stream), asked):
                    yield piece
            finally:
                await self._waiting.given(stream.close())
        except library.APITimeoutError as error:
            raise Trouble(repr(error), timeout=True, may_be_billed=was_sent(error.__cause__)) from None
        except library.APIStatusError as error:
            after = seconds_after(error.response.headers.get("retry-after", ""))
            status = error.status_code if error.status_code >= 400 else 500  # in a stream, it comes with 200
            billed = error.status_code < 400
            raise Trouble(str(error), status=status, after=after, may_be_billed=billed) from None
        except library.APIConnectionError as error:
            why, billed = f"{error} ({error.__cause__!r})", was_sent(error.__cause__)
            raise Trouble(why, may_be_billed=billed) from None
        except (library.AnthropicError, AttributeError, TypeError, ValueError) as error:  # it is no event
            raise Trouble(f"its answer is none: {error!r}", status=200) from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore2", "httpcore"):
                raise Trouble(f"its answer broke off: {error!r}", status=502, may_be_billed=True) from None
            raise

    def _request(self, asked: Asked) -> dict[str, Any]:
        given = asked.options
        most = given.get("max_completion_tokens") or given.get("max_tokens") or self._max_tokens
        request: dict[str, Any] = {"model": self._model, "max_tokens": most}
        if stop := given.get("stop"):
            request["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if more := {name: given[name] for name in ("temperature", "top_p") if name in given}:
            request["extra_body"] = more  # which the library does not name for all models
        system = [each.content for each in asked.messages if each.role in _SYSTEM and each.content]
        if system:
            request["system"] = [{"type": "text", "text": text} for text in system]
        request["messages"] = [*_merged(asked.messages)]
        if asked.tools:
            request["tools"] = [_tool(each["function"]) for each in asked.tools]
            if choice := _choice(given.get("tool_choice")):
                request["tool_choice"] = choice
        elif used := {call["function"]["name"] for each in asked.messages for call in each.tool_calls}:
            request["tools"] = [_tool({"name": name}) for name in sorted(used)]  # calls are told of with them
            request["tool_choice"] = {"type": "none"}
        return request

    async def _folded(self, events: AsyncIterator[Any], asked: Asked) -> AsyncGenerator[str | Answered, None]:
        """The text of a stream's events as it comes, and in the end all that they came to."""
        answer, prompt = Answering(asked.meter), 0
        async for event in events:
            asked.left()
            match event.type:
                case "message_start":
                    use = event.message.usage
                    cached = (use.cache_creation_input_tokens or 0) + (use.cache_read_input_tokens or 0)
                    prompt = use.input_tokens + cached
                case "content_block_start" if event.content_block.type == "tool_use":
                    answer.call(event.index, id=event.content_block.id, name=event.content_block.name)
                case "content_block_start" if event.content_block.type == "text":
                    if event.content_block.text:
                        yield answer.say(event.content_block.text)
                case "content_block_delta" if event.delta.type == "input_json_delta":
                    answer.call(event.index, arguments=event.delta.partial_json)
                case "content_block_delta" if event.delta.type == "text_delta":
                    yield answer.say(event.delta.text)
                case "message_delta":
                    answer.finish = _FINISH.get(event.delta.stop_reason, "stop")
                    asked.meter.use = used(prompt, event.usage.output_tokens)
            if asked.meter.is_full:
                break
        yield answer.done()

    async def close(self) -> None:
        await self._waiting.given(self._client.close())


def _merged(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Messages as blocks; neighbours of one role are one, as results of parallel calls have to be."""
    spoken = [each for each in messages if each.role not in _SYSTEM]
    if spoken[0].role == "assistant":  # the user is to begin
        spoken.insert(0, Message(role="user", content="(What was said before is left out.)"))
    role, blocks = None, list[dict[str, Any]]()
    for message in spoken:
        speaks = "assistant" if message.role == "assistant" else "user"
        if speaks != role and blocks:
            yield {"role": role, "content": blocks}
            blocks = []
        role = speaks
        blocks += _blocks(message)
    yield {"role": role, "content": blocks}


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        yield {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content or ""}
        return
    if message.content and message.content.strip():
        yield {"type": "text", "text": message.content}
    for call in message.tool_calls:
        name, given = call["function"]["name"], parsed_arguments(call["function"]["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": name, "input": given or {}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description", ""), "input_schema": schema}


def _choice(choice: object) -> dict[str, str] | None:
    if isinstance(choice, str) and choice in _TOOL_CHOICE:
        return {"type": _TOOL_CHOICE[choice]}
    if isinstance(choice, dict):
        return {"type": "tool", "name": str(choice.get("function", {}).get("name"))}
    return None
