"""OpenAI's official client in every way it is used: called and awaited, for whole answers and for streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import openai

from tests.support.chat_service import Chatter

WAYS = ("plain", "stream", "async plain", "async stream")


class Said(NamedTuple):
    """What a completion came to."""

    text: str | None
    finish: str
    calls: list[tuple[str, Any]]
    """The name and the arguments of each."""
    ids: list[str]
    usage: Any
    model: str
    headers: dict[str, str]

    def message(self) -> dict[str, Any]:
        """It as a client sends it back."""
        pairs = zip(self.ids, self.calls, strict=True)
        made = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for id, (name, given) in pairs
        ]
        return {"role": "assistant", "content": self.text, **({"tool_calls": made} if made else {})}


def complete(who: Chatter, agent: str, *messages: Any, way: str = "plain", **asked: Any) -> Said:
    """Has an agent answer messages; texts are the user's."""
    session = asked.pop("session", None)
    told = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
    asked |= {"model": agent, "messages": told}
    if session is not None:
        asked["extra_headers"] = {**asked.get("extra_headers", {}), "X-Session-ID": session}
    reached: Any = {"base_url": f"{who.service.url}/v1", "api_key": who.token, "max_retries": 0}
    if way.endswith("stream"):
        asked["stream"] = True
    if way.startswith("async"):
        return asyncio.run(_awaited(reached, asked))
    with openai.OpenAI(**reached) as client:
        answer: Any = client.chat.completions.with_raw_response.create(**asked)
        found = answer.parse()
        if not asked.get("stream"):
            return _whole(found, answer.headers)
        with found:
            return _folded([*found], answer.headers)


async def _awaited(reached: Any, asked: Any) -> Said:
    async with openai.AsyncOpenAI(**reached) as client:
        answer: Any = await client.chat.completions.with_raw_response.create(**asked)
        found = answer.parse()
        if not asked.get("stream"):
            return _whole(found, answer.headers)
        pieces: AsyncIterator[Any] = aiter(found)
        try:
            return _folded([piece async for piece in pieces], answer.headers)
        finally:
            await found.close()


def _whole(answer: Any, headers: Any) -> Said:
    type(answer).model_validate(answer.to_dict())
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    made = choice.message.tool_calls or []
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in made]
    return Said(
        choice.message.content,
        choice.finish_reason,
        calls,
        [call.id for call in made],
        answer.usage,
        answer.model,
        dict(headers),
    )


def _folded(chunks: list[Any], headers: Any) -> Said:
    """What the chunks of a stream come to, put together by their indexes as clients do."""
    text, finish, calls, usage = None, None, dict[int, list[str]](), None
    for number, chunk in enumerate(chunks):
        type(chunk).model_validate(chunk.to_dict())
        assert chunk.object == "chat.completion.chunk"
        assert (chunk.id, chunk.model) == (chunks[0].id, chunks[0].model)
        usage = chunk.usage or usage
        for choice in _only(chunk.choices):
            assert finish is None, "something came after the end"
            assert choice.delta.role == (None if number else "assistant")
            finish = choice.finish_reason
            if choice.delta.content is not None:
                text = (text or "") + choice.delta.content
            for call in choice.delta.tool_calls or []:
                found = calls.setdefault(call.index, [call.id or "", call.function.name or "", ""])
                found[2] += call.function.arguments or ""
    assert finish is not None
    made = [(name, json.loads(given)) for _, name, given in calls.values()]
    ids = [id for id, _, _ in calls.values()]
    return Said(text, finish, made, ids, usage, chunks[0].model, dict(headers))


def _only(choices: list[Any]) -> Iterator[Any]:
    assert len(choices) <= 1
    yield from choices
