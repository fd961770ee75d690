"""A language model over real HTTP, in a process of its own: it says what a test has written for it.

It speaks as OpenAI's and as Anthropic's do, or misbehaves, and keeps what it was asked and who went away.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import responses
from pathlib import Path
from struct import pack
from typing import Any, Literal

import httpx
import msgspec
import pytest

from tests.support.processes import Process
from tests.support.waiting import PATIENCE, until

Json = dict[str, Any]
encode, decode = msgspec.json.encode, msgspec.json.decode
_PATHS = ("/v1/chat/completions", "/v1/messages")
_IDS = itertools.count(1)
_SCRIPT: list[Play] = []
_ASKED: list[Asked] = []
_WAITING: set[asyncio.StreamWriter] = set()


class Play(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One answer of the script: what it says, to which request, and how it comes."""

    kind: Literal["says", "endless", "silent"] = "says"
    text: str = ""
    calls: tuple[tuple[str, Json | str], ...] = ()  # the name and the arguments of each
    finish: str | None = None  # why it ends, if not for what it says, in the dialect's own word
    usage: tuple[int, int] | bool = True  # tokens of the prompt and the answer; a rough count of them; none
    pieces: int = 1  # of the text, and of the arguments of each call, after the one that names the call
    delay: float = 0.0  # seconds before each piece and the end; a whole answer takes as long as its pieces
    streams: bool = True  # to who asks for it
    status: int = 200
    headers: dict[str, str] = {}
    raw: bytes | None = None  # in place of all it would say
    cut: int | None = None  # after so many pieces, and in the middle of a whole answer
    resets: bool = False  # the connection that it cuts; else it only closes it
    when: str | None = None  # the request's messages have these words
    always: bool = False  # it stays in the script
    times: int = 1  # it is used up after these


def text(said: str, *, pieces: int = 1, delay: float = 0.0, **more: Any) -> Play:
    """A text, streamed in so many pieces; empty, it is an end without an answer. `more`: fields of `Play`."""
    return Play(text=said, pieces=pieces, delay=delay, **more)


def calls(*called: tuple[str, Json | str], text: str = "", pieces: int = 3, **more: Any) -> Play:
    """Tool calls, after a text if there is one; arguments that are a string are sent as they are."""
    return Play(calls=called, text=text, pieces=pieces, **more)


def fails(status: int, body: object = None, headers: Json | None = None, **more: Any) -> Play:
    """An error. `{key}` in its body is the key that was sent, which a 401 repeats by itself."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "api_error")
    said = "Incorrect API key provided: {key}" if status == 401 else responses.get(status, "Overloaded")
    error = {"type": "error", "error": {"type": kind, "message": said}}  # which either client understands
    return Play(status=status, raw=_raw(error if body is None else body), headers=headers or {}, **more)


def garbage(body: object = b"<html>no</html>", content_type: str | None = None, **more: Any) -> Play:
    """Bytes, or any JSON; streamed, each line is an event's data, unless a content type is given."""
    return Play(raw=_raw(body), headers={"content-type": content_type} if content_type else {}, **more)


def cut(after: int = 2, **more: Any) -> Play:
    """A text that breaks off after so many pieces."""
    return text("Once upon a time there was", pieces=after + 2, cut=after, **more)


def silent(seconds: float = 10 * PATIENCE, **more: Any) -> Play:
    """Nothing, and then the end of the connection."""
    return Play(kind="silent", delay=seconds, cut=0, **more)


def endless(piece: str = "x", delay: float = 0.001, **more: Any) -> Play:
    """A text that goes on until the client goes, or a body that does."""
    return Play(kind="endless", text=piece, delay=delay, **more)


class Asked(msgspec.Struct):
    """A request as it came; whether its answer was written whole, or the client has gone before."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    answered: bool = False
    gone: bool = False

    @property
    def messages(self) -> list[Json]:
        return list(self.body["messages"])


class LLMServer:
    """A running server, and how a test tells it what to say."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"
        self.client = httpx.Client(base_url=self.root, timeout=PATIENCE, trust_env=False)

    def play(self, *answers: Play) -> None:
        """Adds to the script; a request for which nothing is in it is told `Hello.`."""
        self.client.post("/script", content=encode(answers)).raise_for_status()

    @property
    def requests(self) -> list[Asked]:
        """All it was asked since the last reset, in order."""
        return decode(self.client.get("/requests").raise_for_status().content, type=list[Asked])

    @property
    def waiting(self) -> int:
        """How many are being answered now."""
        return int(self.client.get("/waiting").raise_for_status().text)

    def reset(self) -> None:
        """Forgets the script and the requests, and cuts off whoever is being answered."""
        self.client.post("/reset").raise_for_status()


@contextmanager
def llm_server(folder: Path) -> Iterator[LLMServer]:
    """A server for the length of a `with`, which has nothing to complain of."""
    said, complaints = (folder / f"llm-{name}-{time.monotonic_ns()}" for name in ("said", "complaints"))
    process = Process([], module="tests.support.llm_server", folder=folder, says=said, complains=complaints)
    try:
        until(lambda: (said.exists() and said.read_text()) or not process.running)
        assert process.running, complaints.read_text()
        server = LLMServer(process, int(said.read_text()))
        with server.client:
            yield server
    finally:
        process.end()
    assert not complaints.read_text(), complaints.read_text()


@pytest.fixture(scope="session")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMServer]:
    """A server for all tests, each of which resets it first."""
    with llm_server(tmp_path_factory.mktemp("llm")) as server:
        yield server


def _chat(play: Play, body: Json, asked: int, said: int) -> tuple[Json, Iterator[bytes]]:
    """An answer in OpenAI's words: whole, and as events: an opening, the pieces, and an ending."""
    head = {"id": f"chatcmpl-{next(_IDS)}", "created": int(time.time()), "model": body.get("model")}
    usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
    tells = play.usage and (body.get("stream_options") or {}).get("include_usage")
    finish = play.finish or ("tool_calls" if play.calls else "stop")
    message: Json = {"role": "assistant", "content": play.text or (None if play.calls else "")}
    for name, given in play.calls:
        function = {"name": name, "arguments": _raw(given).decode()}
        tool = {"id": f"call_{next(_IDS)}", "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(tool)

    def chunk(finish: str | None = None, usage: Json | None = None, **delta: object) -> bytes:
        choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
        told = {"usage": usage} if tells else {}
        return _event(**head, object="chat.completion.chunk", choices=choices, **told)

    def events() -> Iterator[bytes]:
        yield chunk(role="assistant", content=message["content"] and "")
        yield from (chunk(content=piece) for piece in _split(play, play.text))
        for index, tool in enumerate(message.get("tool_calls", [])):
            named = {**tool, "function": {**tool["function"], "arguments": ""}}
            yield chunk(tool_calls=[{"index": index, **named}])
            for piece in _split(play, tool["function"]["arguments"]):
                yield chunk(tool_calls=[{"index": index, "function": {"arguments": piece}}])
        yield chunk(finish) + (chunk(usage=usage) if tells else b"") + b"data: [DONE]\n\n"

    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = {**head, "object": "chat.completion", "choices": [choice]}
    return {**whole, "usage": usage} if play.usage else whole, events()


def _messages(play: Play, body: Json, asked: int, said: int) -> tuple[Json, Iterator[bytes]]:
    """The same in Anthropic's words."""
    head = {"id": f"msg_{next(_IDS)}", "type": "message", "role": "assistant", "model": body.get("model")}
    ends = {"stop_reason": play.finish or ("tool_use" if play.calls else "end_turn"), "stop_sequence": None}
    content: list[Json] = [{"type": "text", "text": play.text}] if play.text else []
    for name, given in play.calls:
        content.append({"type": "tool_use", "id": f"call_{next(_IDS)}", "name": name, "input": given})
    counts = [{"usage": {"input_tokens": asked, "output_tokens": written}} for written in (1, said)]
    begun, done = counts if play.usage else ({}, {})

    def events() -> Iterator[bytes]:
        yield _event("message_start", message={**head, "content": [], **dict.fromkeys(ends), **begun})
        before = _event("ping")
        for index, block in enumerate(content):
            kind, within, start, pieces = "text_delta", "text", {**block, "text": ""}, _split(play, play.text)
            if "input" in block:
                kind, within, start = "input_json_delta", "partial_json", {**block, "input": {}}
                pieces = ["", *_split(play, _raw(block["input"] or "").decode())]
            before += _event("content_block_start", index=index, content_block=start)
            for piece in pieces:
                yield before + _event("content_block_delta", index=index, delta={"type": kind, within: piece})
                before = b""
            before = _event("content_block_stop", index=index)
        yield before + _event("message_delta", delta=ends, **done) + _event("message_stop")

    return {**head, "content": content, **ends, **done}, events()


def _steps(play: Play, asked: Asked) -> Iterator[bytes]:
    """All that is written of an answer, as it comes."""
    body: Json = asked.body if isinstance(asked.body, dict) else {}
    rough = len(encode(body.get("messages"))) // 4 + 1, len(f"{play.text}{play.calls}") // 4 + 1
    dialect = _messages if "/messages" in asked.path else _chat
    answer, events = dialect(play, body, *(play.usage if isinstance(play.usage, tuple) else rough))
    key = asked.headers.get("x-api-key") or asked.headers.get("authorization", "").removeprefix("Bearer ")
    whole = encode(answer) if play.raw is None else play.raw
    if play.status != 200:
        whole = whole.replace(b"{key}", key.encode())
    sent = play.status != 200 or play.kind == "silent" or "content-type" in play.headers  # as it is
    streamed = body.get("stream") and play.streams and not sent
    if not streamed:
        events = itertools.repeat(play.text.encode())  # of a body without an end
    elif play.raw is not None:
        name = b"event: message_start\n" if dialect is _messages else b""
        events = (name + b"data: %b\n\n" % line for line in whole.splitlines())
    chunked = streamed or play.kind == "endless"
    headers = {"content-type": "text/event-stream" if streamed else "application/json", **play.headers}
    headers |= {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(whole))}
    lines = [f"HTTP/1.1 {play.status} ", *map(": ".join, headers.items()), "", ""]
    step = "\r\n".join(lines).encode()
    if chunked:
        for n, event in enumerate(itertools.islice(events, None if play.cut is None else play.cut + 1)):
            if n:
                yield step
            step = (b"" if n else step) + b"%x\r\n%b\r\n" % (len(event), event)
        step += b"0\r\n\r\n" if play.cut is None else b""
    else:
        yield from itertools.repeat(b"", play.pieces)
        step += whole if play.cut is None else whole[: len(whole) // 2]
    yield b"" if play.kind == "silent" else step


def _event(kind: str = "", /, **data: Any) -> bytes:
    named = (f"event: {kind}\n".encode(), {"type": kind, **data}) if kind else (b"", data)
    return b"%bdata: %b\n\n" % (named[0], encode(named[1]))


def _split(play: Play, whole: str) -> Iterable[str]:
    size, count = len(whole), min(len(whole), play.pieces)
    pieces = [whole[size * n // count : size * (n + 1) // count] for n in range(count)]
    return itertools.repeat(whole) if play.kind == "endless" else pieces


def _raw(body: object) -> bytes:
    return body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else encode(body)


def _next(asked: Asked) -> Play:
    """What the script has for who asks, or what a test wants to know."""
    if asked.path == "/script":
        _SCRIPT.extend(play for play in msgspec.convert(asked.body, list[Play]) for _ in range(play.times))
    elif asked.path == "/reset":
        del _SCRIPT[:], _ASKED[:]
        for writer in _WAITING:
            writer.transport.abort()
    if not asked.path.startswith("/v1/"):
        return garbage(_ASKED if asked.path == "/requests" else len(_WAITING))
    _ASKED.append(asked)
    if asked.path.partition("?")[0] not in _PATHS or not isinstance(asked.body, dict):
        return fails(404)
    words = encode([asked.body.get("system"), asked.body.get("messages")]).decode()
    fits = [play for play in _SCRIPT if (play.when or "") in words]
    play = min(fits, key=lambda play: play.when is None, default=text("Hello.", always=True))
    if not play.always:
        _SCRIPT.remove(play)
    return play


async def _connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.set_write_buffer_limits(0)  # what is drained has been written
    with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            method, path, _ = first.split()
            pairs = (line.partition(":") for line in lines)
            asked = Asked(method, path, {name.lower(): value.strip() for name, _, value in pairs})
            with suppress(msgspec.DecodeError):
                asked.body = decode(await reader.readexactly(int(asked.headers.get("content-length", 0))))
            await _answer(asked, reader, writer)
            if not asked.answered:
                break


async def _answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    play, leaving = _next(asked), asyncio.create_task(reader.read(1))
    _WAITING.add(writer)
    try:
        for n, step in enumerate(_steps(play, asked)):
            await asyncio.wait({leaving}, timeout=play.delay if n else 0)
            if leaving.done():
                raise ConnectionResetError
            writer.write(step)
            await writer.drain()
        asked.answered = play.cut is None
    except ConnectionError:
        asked.gone = True
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    _WAITING.discard(writer)
    if play.resets:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        server = runner.run(asyncio.start_server(_connected, "127.0.0.1", 0, limit=2**20, backlog=1000))
        print(server.sockets[0].getsockname()[1], flush=True)
        runner.run(server.serve_forever())
