"""Who calls `/mcp` is who the API key says, as over REST; a stream ends with the key that opened it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mcp_clients import rpc
from tests.support.service import Service, alcove, serving

SPECS = "agents: [{name: bot, memory: {private: {}}}]"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("mcp-keys")
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, "--auth", "apikey", "--agents", specs, "--embedder", "none") as running:
        yield running


def key(at: Path, *flags: str) -> str:
    return alcove("apikey", "create", "--at", at, "--client", "phone", *flags).stdout.strip()


def remember(service: Service, content: str, **headers: str) -> Any:
    params = {"name": "remember", "arguments": {"key": "tea", "content": content}}
    return rpc(service, "/mcp/bot", "tools/call", params=params, headers=headers)


def test_a_key_acts_for_its_user_and_a_trusted_one_for_whom_it_names(service: Service) -> None:
    hers, trusted = key(service.at, "--user", "alice"), key(service.at, "--trusted")
    assert remember(service, "green", **{"x-api-key": hers}).status_code == 200
    assert remember(service, "mint", **{"x-api-key": trusted, "x-user-id": "bob"}).status_code == 200
    for user, content in (("alice", "green"), ("bob", "mint")):
        headers = {"x-api-key": trusted, "x-user-id": user}
        found = rpc(service, "/mcp/bot", "resources/list", headers=headers).json()["result"]["resources"]
        assert [each["uri"] for each in found] == [f"alcove://agent/bot/u/{user}/tea"]
        params = {"uri": found[0]["uri"]}
        read = rpc(service, "/mcp/bot", "resources/read", params=params, headers=headers).json()["result"]
        assert f'"value":{{"content":"{content}"}}' in read["contents"][0]["text"]
    assert remember(service, "x", **{"x-api-key": hers, "x-user-id": "bob"}).status_code == 403
    assert remember(service, "x", **{"x-api-key": trusted}).status_code == 401
    assert remember(service, "x", authorization=f"Bearer {hers}x").status_code == 401


def test_a_stream_ends_when_its_key_is_revoked(service: Service) -> None:
    hers = key(service.at, "--user", "carol")
    with service.client.stream("GET", "/mcp/bot", headers={"x-api-key": hers}) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        lines = stream.iter_lines()
        assert next(lines) == ": listening"
        assert alcove("apikey", "revoke", hers.split("_")[1], "--at", service.at).returncode == 0
        assert '"unauthenticated"' in "".join(lines)
