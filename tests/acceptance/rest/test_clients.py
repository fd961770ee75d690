"""A store answers alike wherever it is and however it is called: the same records, the same errors."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import httpx
import msgspec
import pytest

from alcove import (
    Alcove,
    AlcoveError,
    AsyncAlcove,
    InvalidRequest,
    PermissionDenied,
    Store,
    StoreError,
    Unavailable,
    connect,
)
from alcove.client.remote import Remote
from alcove.core.errors import Unauthenticated
from tests.support.concurrent_workers import QUIET
from tests.support.service import Service, alcove, serving
from tests.support.store_clients import WAYS, closed, opened
from tests.support.waiting import PATIENCE, until

ROOM = ("user", "noop", uuid.uuid4().hex)


@pytest.fixture(params=WAYS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = opened(request.param, tmp_path / "memory.db", lambda: request.getfixturevalue("service").url)
    yield store
    closed(store)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Alcove]:
    with Alcove(tmp_path / "here.db", settings=QUIET) as memory:
        yield memory


def test_what_only_the_file_has_is_told(service: Service) -> None:
    with Remote(service.url) as store:
        for call in (store.sweep, store.reload_policy):
            with pytest.raises(AlcoveError, match="cannot be done over a URL"):
                call()
        with pytest.raises(InvalidRequest, match="roles"):
            store.as_user("alice", roles=["admin"])


def test_the_same_calls_give_the_same_records(here: Alcove, store: Store) -> None:
    room = ("user", "noop", uuid.uuid4().hex)
    assert _story(here, room) == _story(store, room)


def _story(store: Store, room: tuple[str, ...]) -> list[Any]:
    """Everything a caller can do to memories, with ids and times taken out of the answers."""
    told: list[Any] = [
        store.put(room, "tea", {"n": 1, "deep": {"er": [1, None, "é"]}}, index={"text": "tea"}),
        store.put(room, "tea", {"n": 2}, expected_revision=1, idempotency_key=f"k-{room[2]}"),
        store.put(room, "tea", {"n": 2}, expected_revision=1, idempotency_key=f"k-{room[2]}"),
        store.get(":".join(room), "tea"),
        store.get(room, "absent"),
        store.put(room, "a\0b/?&=+ %", {"x": 1.5}, ttl_seconds=1000),
        store.touch(room, "tea", ttl_seconds=500),
        store.batch(
            [
                {"op": "put", "namespace": room, "key": "b", "value": {}},
                {"op": "get", "namespace": room, "key": "b"},
                {"op": "get", "namespace": room, "key": "none"},
                {"op": "touch", "namespace": list(room), "key": "b"},
                {"op": "delete", "namespace": room, "key": "b"},
            ]
        ),
        store.search(room, filter={"n": {"gte": 2}}),
        store.search(room, limit=1, offset=1, as_of=datetime.now(UTC)),
        store.list(room),
        store.namespaces(room[:2], suffix=room[2:]),
        store.namespaces(room, max_depth=1, limit=1),
        store.delete(room, "tea", expected_revision=2),
        store.delete(room, "tea"),
        store.history(room, "tea"),
        store.history(room, "never"),
    ]
    first = store.events(room, kinds=["add", "delete"], limit=2)
    rest = store.events(room, kinds=["add", "delete"], after_cursor=first.after_cursor)
    return [_plain(each) for each in [*told, first.events, rest.events]]


def _plain(record: Any) -> Any:
    """A record as plain data under its type's name, without what differs from run to run."""
    if isinstance(record, list):
        return [_plain(each) for each in record]
    if not isinstance(record, msgspec.Struct):
        return type(record).__name__, record
    volatile = {"id", "created_at", "added_at", "occurred_at", "expires_at", "cursor"}
    fields = msgspec.structs.asdict(record)
    return type(record).__name__, {
        name: (type(value).__name__ if name in volatile else value) for name, value in fields.items()
    }


WRONG: dict[str, Callable[[Store], object]] = {
    "no key": lambda s: s.put(ROOM, "", {}),
    "no namespace": lambda s: s.put("", "k", {}),
    "bad spelling": lambda s: s.get("user:100%", "k"),
    "not a value": lambda s: s.put(ROOM, "k", {"x": {1, 2}}),
    "not a number": lambda s: s.put(ROOM, "k", {"x": float("nan")}),
    "a lone surrogate": lambda s: s.get(ROOM, "\ud800"),
    "too large": lambda s: s.put(ROOM, "k", {"x": "x" * 2_000_000}),
    "not there": lambda s: s.touch(ROOM, "not there"),
    "wrong revision": lambda s: s.delete(ROOM, "k", expected_revision=7),
    "in a batch": lambda s: s.batch([{"op": "get", "namespace": ROOM, "key": ""}]),
    "not an operation": lambda s: s.batch([{"op": "steal"}]),
    "too many": lambda s: s.list(ROOM, limit=1001),
    "somebody else's": lambda s: s.get("user:bob", "k"),
    "no zone": lambda s: s.search(as_of="2026-01-01T00:00:00"),
    "no kinds": lambda s: s.events(kinds=[]),
    "no cursor": lambda s: s.events(after_cursor="nonsense"),
    "bad filter": lambda s: s.search(filter={"n": {"near": 1}}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_same_mistakes_give_the_same_errors(wrong: str, here: Alcove, store: Store) -> None:
    errors = []
    stores: tuple[Store, ...] = (here, store)
    for each in stores:
        with pytest.raises(AlcoveError) as caught:
            WRONG[wrong](each)
        errors.append((type(caught.value), caught.value.details.get("operation")))
        assert caught.value.message
    assert errors[0] == errors[1]


def test_denials_carry_the_reason_of_the_policy(store: Store) -> None:
    with pytest.raises(PermissionDenied) as denied:
        store.get("user:bob", "k")
    assert denied.value.reason == "this namespace is not yours, and nothing grants it to you"
    assert str(denied.value).count("access denied") == 1


def test_a_list_is_longer_than_a_page(store: Store) -> None:
    room = ("user", "noop", uuid.uuid4().hex)
    store.batch([{"op": "put", "namespace": room, "key": f"{n:03}", "value": {}} for n in range(250)])
    assert [each.key for each in store.list(room, limit=201, offset=5)] == [f"{n:03}" for n in range(5, 206)]
    assert len(store.list(room, limit=1000)) == 250


def test_tokens_and_trusted_keys_say_who_calls(tmp_path: Path) -> None:
    Alcove(tmp_path / "memory.db").close()
    made = alcove("apikey", "create", "--at", tmp_path / "memory.db", "--client", "app", "--trusted")
    with serving(tmp_path, "--auth", "apikey") as service:
        with Remote(service.url) as nobody, pytest.raises(Unauthenticated):
            nobody.search()
        with Remote(service.url, api_key=made.stdout.strip(), user="alice") as alice:
            alice.put("user:alice", "k", {"n": 1})
            zoe = alice.as_user("zoë/☃")
            zoe.put(("user", "zoë/☃"), "k", {"n": 2})
            assert [m.value for m in zoe.search()] == [{"n": 2}]
            assert [m.value for m in alice.search()] == [{"n": 1}]
        with Remote(service.url, token=made.stdout.strip(), user="bob") as bob:
            assert bob.search("user:alice") == []


def test_a_client_takes_a_token_or_an_api_key_and_refuses_both() -> None:
    with pytest.raises(InvalidRequest, match=r"api_key.*not both"):
        Remote("http://127.0.0.1:1", token="a", api_key="b")


def test_nobody_there_is_unavailable_and_something_else_there_is_told_apart() -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(502 if "broken" in self.path else 200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    with Remote("http://127.0.0.1:1") as store, pytest.raises(Unavailable, match="cannot be reached"):
        store.namespaces()
    with pytest.raises(InvalidRequest), Remote("http://") as store:
        store.namespaces()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with Remote(url) as store, pytest.raises(StoreError, match="not Alcove"):
            store.namespaces()
        with Remote(url, token="a\nsecret") as store, pytest.raises(InvalidRequest) as refused:
            store.namespaces()
        assert "secret" not in refused.value.message
        with Remote(f"{url}/broken") as store, pytest.raises(Unavailable, match="502"):
            store.namespaces()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_wrong_path_is_not_an_absent_memory(service: Service) -> None:
    with Remote(f"{service.url}/elsewhere") as store, pytest.raises(StoreError, match="another service"):
        store.get(ROOM, "k")


def test_connect_opens_a_file_or_a_url_as_somebody(tmp_path: Path, service: Service) -> None:
    with connect(tmp_path / "memory.db", user="alice") as alice:
        assert alice.put("user:alice", "k", {}).revision == 1
    with connect(service.url) as store:
        assert isinstance(store, Remote)
        assert store.put(ROOM, "connected", {}).revision == 1
    with pytest.raises(InvalidRequest, match=r"alcove\.connect"):
        Alcove(service.url)


def test_follow_goes_on_where_it_was_when_the_server_comes_back(tmp_path: Path) -> None:
    seen: list[str] = []
    with serving(tmp_path) as first:
        store = Remote(first.url)
        store.put(ROOM, "before", {})
        start = store.events(ROOM).after_cursor

        def follow() -> None:
            for event in store.follow(ROOM, after_cursor=start):
                seen.append(event.key)
                if event.key == "last":
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        store.put(ROOM, "first\u2028line", {"text": "\u2028"})
        until(lambda: seen == ["first\u2028line"])
    with Alcove(tmp_path / "memory.db", settings=QUIET) as alone:
        alone.put(ROOM, "meanwhile", {})
    with serving(tmp_path, port=first.port):
        until(lambda: "meanwhile" in seen)
        store.put(ROOM, "last", {})
        thread.join(PATIENCE)
    store.close()
    assert seen == ["first\u2028line", "meanwhile", "last"]


def test_every_way_exports_imports_and_backs_up(store: Store, tmp_path: Path) -> None:
    room = ("user", "noop", uuid.uuid4().hex)
    for n in range(3):
        store.put(room, f"k{n}", {"n": n}, index={"text": f"tea number {n}"})
    exported = [*store.export_memories(room)]
    assert [each.value["n"] for each in exported] == [0, 1, 2]
    line = msgspec.json.encode({"namespace": room, "key": "k3", "value": {"n": 3}})
    report = store.import_memories([*map(msgspec.json.encode, exported), line])
    assert (report.imported, report.unchanged, report.failures) == (1, 3, 0)
    steps = [*store.admin.backup(tmp_path / "backup.db")]
    assert steps[-1].result is not None
    assert steps[-1].result.memories >= 4
    assert [each.wrong for each in store.admin.doctor()] == [[]] * len([*store.admin.doctor()])
    assert store.admin.stats().memories >= 4
    assert store.admin.held("noop").memories >= 4


def test_every_way_follows_what_happens(store: Store) -> None:
    room = ("user", "noop", uuid.uuid4().hex)
    store.put(room, "before", {})
    start = store.events(room).after_cursor
    store.put(room, "first", {"n": 1})
    store.delete(room, "first")
    events = store.follow(room, kinds=["add", "delete"], after_cursor=start)
    found = [(event.key, event.kind) for event in islice(events, 2)]
    assert found == [("first", "add"), ("first", "delete")]


def test_what_is_awaited_runs_beside_the_loop_and_a_reader_who_leaves_keeps_no_thread(
    tmp_path: Path, service: Service
) -> None:
    async def gone(store: AsyncAlcove) -> None:
        async for _ in store.follow(ROOM):
            raise AssertionError("nothing has happened")

    async def story(at: str) -> list[int]:
        async with AsyncAlcove(at, settings=QUIET) as store:
            for _ in range(40):  # more than there are threads
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(gone(store), 0.02)
            written = await asyncio.gather(*(store.put(ROOM, f"at once {n}", {"n": n}) for n in range(50)))
            found = await asyncio.gather(*(store.get(ROOM, f"at once {n}") for n in range(50)))
            assert [each.revision for each in written] == [1] * 50
            return [int(str(each.value["n"])) for each in found if each]

    for at in (str(tmp_path / "memory.db"), service.url):
        assert asyncio.run(story(at)) == [*range(50)]


@pytest.mark.parametrize("way", ["file", "url"])
def test_readers_who_wait_keep_nobody_else_from_calling_or_closing(
    way: str, tmp_path: Path, service: Service
) -> None:
    room = ("user", "noop", uuid.uuid4().hex)

    async def story() -> None:
        store = AsyncAlcove(tmp_path / "memory.db" if way == "file" else service.url, settings=QUIET)
        start = (await store.events(room)).after_cursor
        streams = [store.follow(room, after_cursor=start) for _ in range(104)]  # more than httpx connects
        readers = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(PATIENCE):
            await store.put(room, "told", {})
            assert {event.key for event in await asyncio.gather(*readers)} == {"told"}
            left = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await store.close()
        for reader in left:
            reader.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    asyncio.run(story())


def test_a_store_that_is_awaited_can_be_closed_twice_and_says_that_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncAlcove(tmp_path / "memory.db", settings=QUIET) as store:
            begun = asyncio.gather(*(store.put(ROOM, f"begun {n}", {}) for n in range(100)))
            await asyncio.sleep(0)
            await store.close()
            assert len(await begun) == 100
        for call in (store.get(ROOM, "k"), anext(store.follow(ROOM)), store.admin.stats()):
            with pytest.raises(Unavailable, match="has been closed"):
                await call

    asyncio.run(story())


@pytest.mark.parametrize("way", ["file", "url"])
def test_lines_that_let_wait_for_them_hold_no_loop_up(way: str, tmp_path: Path, service: Service) -> None:
    ready = threading.Event()

    def lines() -> Iterator[bytes]:
        assert ready.wait(PATIENCE)
        yield msgspec.json.encode({"namespace": ROOM, "key": "waited for", "value": {"way": way}})

    async def story() -> int:
        at = tmp_path / "memory.db" if way == "file" else service.url
        async with AsyncAlcove(at, settings=QUIET) as store:
            asyncio.get_running_loop().call_later(0.2, ready.set)
            return (await store.import_memories(lines())).imported

    assert asyncio.run(story()) == 1


class Flaky(http.server.BaseHTTPRequestHandler):
    """A server that loses the first answers to each request, and then passes it on."""

    protocol_version = "HTTP/1.1"
    behind = ""
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        key = self.headers.get("idempotency-key")
        self.asked.append((self.command, key))
        passed = ("content-type", "idempotency-key", "prefer")
        headers = {name: value for name, value in self.headers.items() if name.lower() in passed}
        answer = httpx.request(self.command, f"{self.behind}{self.path}", content=body, headers=headers)
        if len(self.asked) % 3:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status_code)
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_DELETE = do_PUT  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def flaky(service: Service) -> Iterator[str]:
    Flaky.behind = service.url
    Flaky.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("way", ["url", "async url"])
def test_a_write_whose_answer_was_lost_is_sent_again_and_done_once(
    way: str, flaky: str, tmp_path: Path
) -> None:
    store = opened(way, tmp_path, lambda: flaky)
    room = ("user", "noop", uuid.uuid4().hex)
    assert store.put(room, "k", {"n": 1}).revision == 1
    assert len({key for _, key in Flaky.asked}) == 1
    assert len(Flaky.asked) == 3
    found = store.get(room, "k")
    assert found is not None
    assert found.revision == 1
    assert store.delete(room, "k").deleted
    with pytest.raises(Unavailable):  # nobody knows whether it was done, and it may not be done twice
        store.admin.verify_receipt({})
    closed(store)
    Flaky.asked.clear()
    store = opened(way, tmp_path, lambda: flaky, retries=1)
    with pytest.raises(Unavailable):
        store.put(room, "k", {"n": 2})
    assert len(Flaky.asked) == 2
    closed(store)
