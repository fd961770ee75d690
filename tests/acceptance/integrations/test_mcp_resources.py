"""Memories as resources: any namespace and key there and back, page by page, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, MCPError

from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.integrations.mcp import PAGE_SIZE, memory_uri, parse_memory_uri
from tests.support.agent_service import SPECS, Player, Table
from tests.support.mcp_clients import MODES, at_url, run
from tests.support.service import serving
from tests.support.tokens import FLAGS

ODD = [
    "tea",
    "🍵",
    "a/b",
    "50%",
    "%2F",
    "a:b",
    "..",
    ".",
    "a b?c#d",
    "é\u0301",
    "\n",
    "-",
    "alcove://x/y",
    "𝔘",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """A service of its own: what other tests put into pools would be listed here, too."""
    folder = tmp_path_factory.mktemp("resources")
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", specs) as running:
        yield Table(running, specs)


async def everything(client: Client) -> list[list[Any]]:
    """Every page of resources."""
    pages: list[list[Any]] = []
    cursor = None
    while not pages or cursor:
        page = await client.list_resources(cursor=cursor)
        pages.append(page.resources)
        cursor = page.next_cursor
    return pages


@pytest.mark.parametrize("mode", MODES)
def test_memories_with_odd_names_are_listed_and_read(table: Table, mode: str) -> None:
    alice = table.player("al/ice:%🍵")
    for key in ODD:
        assert alice.put("user", alice.name, key, key=key).status_code == 200
        alice.call("bot", "remember", key=key, content=f"under {key}")

    async def talk() -> dict[str, Any]:
        async with at_url(f"{table.service.url}/mcp/bot", alice.token, mode=mode) as client:
            (page,) = await everything(client)
            read = {}
            for each in page:
                (content,) = (await client.read_resource(each.uri)).contents
                assert content.uri == each.uri
                assert content.mime_type == each.mime_type == "application/json"
                read[each.uri] = content.text  # type: ignore[union-attr]
            return read

    read = run(talk())
    own = {((*("user", alice.name, key),), key) for key in ODD}
    kept = {(("agent", "bot", "u", alice.name), key) for key in ODD}
    assert {(tuple(parse_memory_uri(uri)[0]), parse_memory_uri(uri)[1]) for uri in read} == own | kept
    for uri, text in read.items():
        namespace, key = parse_memory_uri(uri)
        assert text == alice.service.get([*namespace], key, alice.token).text


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.text())
def test_any_namespace_and_key_round_trip(segments: list[str], key: str) -> None:
    try:
        namespace = Namespace.checked(segments)
        key.encode()
    except (InvalidRequest, UnicodeEncodeError):
        return
    uri = memory_uri(namespace, key)
    assert uri.isascii()
    assert parse_memory_uri(uri) == (namespace, key)


def test_more_than_a_page_comes_page_by_page_in_order(table: Table) -> None:
    alice = table.player()
    puts = [
        {"op": "put", "namespace": ["user", alice.name, f"n{n % 3}"], "key": f"k{n:03}", "value": {}}
        for n in range(2 * PAGE_SIZE)
    ]
    assert alice.ask("POST", "/v1/memories/batch", json={"operations": puts}).status_code == 200
    for n in range(5):
        alice.call("bot", "learn_fact", key=f"f{n % 3}", content=f"fact {n}")
        alice.call("bot", "remember", key=f"r{n}", content="r")

    async def talk() -> list[list[str]]:
        async with at_url(f"{table.service.url}/mcp/bot", alice.token) as client:
            return [[each.uri for each in page] for page in await everything(client)]

    pages = run(talk())
    assert [len(page) for page in pages] == [PAGE_SIZE, PAGE_SIZE, 8]
    places = [(tuple(parse_memory_uri(uri)[0]), parse_memory_uri(uri)[1]) for page in pages for uri in page]
    assert len({*places}) == len(places)
    assert sorted(places) == places


def test_a_page_that_ends_with_a_room_leads_to_the_next_room(table: Table) -> None:
    alice = table.player()
    puts = [
        {"op": "put", "namespace": ["user", alice.name], "key": f"k{n}", "value": {}}
        for n in range(PAGE_SIZE - 1)
    ]
    alice.ask("POST", "/v1/memories/batch", json={"operations": puts})
    alice.call("bot", "remember", key="first", content="in a room that sorts before the user's own")

    async def talk() -> list[int]:
        async with at_url(f"{table.service.url}/mcp/bot", alice.token) as client:
            before = [len(page) for page in await everything(client)]
            alice.put("user", alice.name, key="one more")
            return before + [len(page) for page in await everything(client)]

    assert run(talk()) == [PAGE_SIZE, PAGE_SIZE, 1]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_an_empty_list_and_a_template_tells_the_addresses(table: Table, mode: str) -> None:
    async def talk() -> None:
        async with at_url(f"{table.service.url}/mcp/bot", table.player().token, mode=mode) as client:
            assert await everything(client) == [[]]
            (template,) = (await client.list_resource_templates()).resource_templates
            assert template.uri_template == "alcove://{+namespace}/{key}"

    run(talk())


def test_pools_are_listed_for_all_and_rooms_of_others_for_nobody(table: Table) -> None:
    alice, bob = table.player(), table.player()
    alice.call("bot", "share_to", pool="org:docs", key=alice.name, content="for all")
    alice.call("bot", "remember", key="mine", content="for me")
    alice.call("bot", "shared_memory_write", namespace="global", key=alice.name, value=1)

    async def listed(player: Player) -> list[str]:
        async with at_url(f"{table.service.url}/mcp/bot", player.token) as client:
            return [each.uri for page in await everything(client) for each in page]

    shared = f"alcove://org/docs/{alice.name}"
    assert {shared, f"alcove://agent/bot/u/{alice.name}/mine"} <= {*run(listed(alice))}
    seen = run(listed(bob))
    assert shared in seen
    assert not [uri for uri in seen if alice.name in uri and uri != shared]


def test_reading_what_is_not_there_not_yours_or_no_address_says_so(table: Table) -> None:
    alice, bob = table.player(), table.player()
    alice.call("bot", "remember", key="mine", content="for me")
    refused = {
        f"alcove://user/{bob.name}/nothing": "there is no such memory",
        f"alcove://agent/bot/u/{alice.name}/mine": "access denied",
        "https://example.org/tea": "uri: expected alcove://namespace/key",
        "alcove://alone": "uri: expected alcove://namespace/key",
        "alcove://user//x": "expected a non-empty plain string",
        f"alcove://user/{bob.name}/%ff": "uri: expected percent-encoded UTF-8",
        f"alcove://user/{bob.name}/": "key",
    }

    async def talk() -> None:
        async with at_url(f"{table.service.url}/mcp/bot", bob.token) as client:
            for uri, why in refused.items():
                with pytest.raises(MCPError, match=why):
                    await client.read_resource(uri)
            for cursor in ("", "nonsense", "-1:", "9999999999:", "0:%", "１:user"):
                with pytest.raises(MCPError, match="cursor"):
                    await client.list_resources(cursor=cursor)

    run(talk())
