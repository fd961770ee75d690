"""What comes to /mcp from who means no good, or knows no better: each is refused, and costs little."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from alcove.server import logs
from alcove.server.config import ServeConfig
from alcove.server.mcp_exchanges import Exchanges
from alcove.server.startup import build
from tests.support.agent_service import Table
from tests.support.mcp_clients import TAKES, rpc, run
from tests.support.service import Service, environment, free_port, serving
from tests.support.waiting import until

SPECS = "agents: [{name: bot, memory: {private: {}}}]"
MODERN = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "recall"}


@pytest.fixture(scope="module")
def noop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with no authentication, of which only this machine may ask."""
    folder = tmp_path_factory.mktemp("hostile")
    (specs := folder / "agents.yaml").write_text(SPECS)
    flags = ("--agents", specs, "--embedder", "none", "--most-in-flight", 5)
    with serving(folder, *flags) as service:
        yield service


def posted(service: Service, content: bytes, **headers: str) -> Any:
    given = {**TAKES, "content-type": "application/json", **headers}
    return service.call("POST", "/mcp/bot", content=content, headers=given)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"garbage", b"[]", b"[{}]", b"{}", b'"x"', b"null", b"\xff", b"[" * 100_000,
        b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}',
        b'{"jsonrpc": "2.0", "id": null, "method": "ping"}',
        b'{"jsonrpc": "2.0", "id": [1], "method": "ping"}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}',
        b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]',
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)  # fmt: skip
def test_what_is_no_message_is_400_in_the_shape_of_json_rpc(noop: Service, body: bytes) -> None:
    answer = posted(noop, body)
    assert answer.status_code == 400, answer.text
    told = answer.json()
    assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", None, -32600)
    assert told["error"]["message"].startswith(("body: ", "jsonrpc: ", "id: ", "params: "))
    assert "Traceback" not in answer.text


def test_a_body_that_is_too_large_is_413_and_of_another_kind_415(noop: Service) -> None:
    answer = posted(noop, b'{"jsonrpc": "2.0", "x": "' + b"x" * (5 << 20))
    assert (answer.status_code, answer.json()["error"]["data"]["code"]) == (413, "payload_too_large")
    assert posted(noop, b"{}", **{"content-type": "text/plain"}).status_code == 415


@pytest.mark.parametrize("params", [{"name": 3}, {}, {"name": "recall", "arguments": [1]}])
def test_parameters_that_are_wrong_are_an_error_of_the_request(noop: Service, params: Any) -> None:
    answer = rpc(noop, "/mcp/bot", "tools/call", params=params)
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32602)


def test_an_unknown_method_and_version_are_told(noop: Service) -> None:
    assert rpc(noop, "/mcp/bot", "tools/explode").json()["error"]["code"] == -32601
    assert (
        rpc(noop, "/mcp/bot", "logging/setLevel", params={"level": "info"}).json()["error"]["code"] == -32601
    )
    answer = rpc(noop, "/mcp/bot", "ping", headers={"mcp-protocol-version": "2999-01-01"})
    assert answer.status_code == 400


def test_headers_that_contradict_the_body_are_refused(noop: Service) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "recall", "arguments": {"key": "k"}, "_meta": meta}
    assert rpc(noop, "/mcp/bot", "tools/call", params=params, headers=MODERN).status_code == 200
    for wrong in ({"mcp-name": "forget"}, {"mcp-method": "tools/list"}):
        answer = rpc(noop, "/mcp/bot", "tools/call", params=params, headers={**MODERN, **wrong})
        assert answer.status_code == 400
        assert "does not match" in answer.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"host": "evil.example"}])
def test_a_page_of_another_origin_gets_nowhere_without_authentication(
    noop: Service, headers: dict[str, str]
) -> None:
    for answer in (
        rpc(noop, "/mcp/bot", "tools/list", headers=headers),
        noop.call("GET", "/mcp/bot", headers=headers),
        rpc(noop, "/mcp", "tools/list", headers=headers),
    ):
        assert answer.status_code == 403
        assert "has no authentication" in answer.json()["error"]["message"]
    assert rpc(noop, "/mcp/bot", "tools/list", headers={"origin": "http://localhost:3000"}).status_code == 200


def test_two_hundred_thousand_arguments_are_looked_at_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # pytest's own log is left alone
    on_the_loop, answer = list[bool](), Exchanges.answer

    async def noted(*args: Any) -> Any:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        return await answer(*args)

    monkeypatch.setattr(Exchanges, "answer", noted)

    async def talk() -> list[Any]:
        config = ServeConfig(
            at=str(tmp_path / "memory.db"), agents=str(specs), embedder="none", sweep_interval=0
        )
        transport = httpx.ASGITransport(app=build(config))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            told = []
            for count in (1, 200_000):
                params = {"name": "recall", "arguments": {f"k{n}": 0 for n in range(count)}}
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                told.append((await client.post("/mcp/bot", json=body)).json())
            return told

    small, large = run(talk())
    assert small == large
    assert small["result"]["content"][0]["text"].startswith("error: key: expected")
    assert on_the_loop == [True, False]


def test_what_a_client_tells_the_server_is_taken_and_passed_over(noop: Service) -> None:
    for body in (
        b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}',
        b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
        b'{"jsonrpc": "2.0", "method": "x"}',
    ):
        answer = posted(noop, body)
        assert (answer.status_code, answer.content) == (202, b"")
    answer = noop.call("DELETE", "/mcp/bot", headers={"mcp-session-id": "x"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


@pytest.mark.parametrize("query", ["agent=bot", "session=a&session=b", "sessions=a", "team=%ff"])
def test_a_query_that_is_not_understood_is_400(noop: Service, query: str) -> None:
    assert rpc(noop, f"/mcp/bot?{query}", "tools/list").status_code == 400


def test_who_may_not_name_a_user_is_refused(table: Table) -> None:
    answer = rpc(table.service, "/mcp/bot", "ping", table.player().token, headers={"x-user-id": "bob"})
    assert answer.status_code == 403


def test_open_streams_count_in_the_limits_of_the_server(noop: Service) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {**TAKES, "mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen"}
    params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}

    async def talk() -> list[int]:
        statuses = []
        async with httpx.AsyncClient(base_url=noop.url, timeout=30, trust_env=False) as client:
            for n in range(6):
                asked = ("GET", {}) if n % 2 else ("POST", {"json": body, "headers": headers})
                request = client.build_request(asked[0], "/mcp/bot", **asked[1])  # type: ignore[arg-type]
                statuses.append((await client.send(request, stream=True)).status_code)
            answer = await client.post(
                "/mcp/bot", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=TAKES
            )
            return [*statuses, answer.status_code]

    *streams, call = run(talk())
    assert streams == [200, 200, 200, 200, 503, 503]
    assert call == 200  # what is soon answered has places of its own


def test_without_the_extra_the_service_serves_and_says_what_to_install(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    code = "import sys; sys.modules['mcp'] = None; from alcove.cli import main; main()"
    port = free_port()
    words = ["serve", "--port", port, "--agents", specs, "--embedder", "none", "--rate-limit", 3]
    with (
        subprocess.Popen([sys.executable, "-c", code, *map(str, words)], cwd=tmp_path, env=environment(),
                         stdout=subprocess.DEVNULL) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):  # fmt: skip
        try:
            until(lambda: _ready(client))
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            answers = [client.post("/mcp/bot", json=ping) for _ in range(8)]
        finally:
            process.terminate()
    assert {each.status_code for each in answers} == {404, 429}
    assert (
        answers[0].json()["error"]["message"] == "/mcp needs mcp: pip install '.[mcp]' in a clone of Alcove"
    )
    late = next(each for each in answers if each.status_code == 429)
    assert late.headers["retry-after"] == "1"
    assert late.json()["error"]["data"]["code"] == "rate_limited"


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
