"""Pages of other origins: none may call unless the operator names their origin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from alcove import InvalidRequest
from alcove.server import logs
from alcove.server.config import ServeConfig
from alcove.server.startup import build, check
from tests.support.tokens import SECRET, token

OURS, OTHERS = "https://app.example.org", "https://evil.example"
ASKED = {"access-control-request-method": "PUT", "access-control-request-headers": "authorization"}


def answers(
    folder: Path, origins: str | None, requests: Sequence[tuple[str, dict[str, str]]]
) -> list[httpx.Response]:
    """What a service says to requests, each a method and headers, that is told of these origins."""
    config = ServeConfig(
        at=str(folder / "memory.db"), auth="jwt", jwt_secret=SECRET, embedder="none", sweep_interval=0,
        cors_origins=origins,
    )  # fmt: skip
    check(config)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=build(config))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            path = "/v1/memories/namespaces"
            return [await client.request(method, path, headers=headers) for method, headers in requests]

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def _own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # pytest's own log is left alone


def test_without_the_setting_no_page_of_another_origin_may_call(tmp_path: Path) -> None:
    mine = {"authorization": f"Bearer {token('alice')}", "origin": OURS}
    asked, answered = answers(tmp_path, None, [("OPTIONS", {**ASKED, "origin": OURS}), ("GET", mine)])
    assert (asked.status_code, answered.status_code) == (405, 200)
    for each in (asked, answered):
        assert not [name for name in each.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("origins", [OURS, f"http://localhost:3000, {OURS}"])
def test_a_named_origin_may_call_and_no_other(tmp_path: Path, origins: str) -> None:
    mine = {"authorization": f"Bearer {token('alice')}"}
    asked, answered, refused, asked_by_others, answered_others = answers(
        tmp_path,
        origins,
        [
            ("OPTIONS", {**ASKED, "origin": OURS}),
            ("GET", {**mine, "origin": OURS}),
            ("GET", {"origin": OURS}),
            ("OPTIONS", {**ASKED, "origin": OTHERS}),
            ("GET", {**mine, "origin": OTHERS}),
        ],
    )
    assert asked.status_code == 200
    assert "PUT" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == "authorization"
    assert (answered.status_code, refused.status_code) == (200, 401)
    for each in (asked, answered, refused):
        assert each.headers["access-control-allow-origin"] == OURS
        assert "access-control-allow-credentials" not in each.headers
    assert "x-request-id" in answered.headers["access-control-expose-headers"]
    for each in (asked_by_others, answered_others):
        assert "access-control-allow-origin" not in each.headers


def test_a_star_lets_every_page_call_with_a_token_of_its_own(tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {token('alice')}", "origin": OTHERS}
    (answered,) = answers(tmp_path, "*", [("GET", headers)])
    assert answered.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answered.headers


@pytest.mark.parametrize("origins", ["app.example.org", f"{OURS}/", "ftp://x", f"{OURS},", "null"])
def test_what_is_no_origin_is_refused_at_the_start(origins: str) -> None:
    with pytest.raises(InvalidRequest, match="cors-origins"):
        check(ServeConfig(cors_origins=origins))
