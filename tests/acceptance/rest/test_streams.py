"""Events as they happen, over a real socket: each of them once and in order, whatever breaks on the way."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.service import Service, assert_error, serving
from tests.support.tokens import FLAGS, token
from tests.support.waiting import PATIENCE, until
from tests.support.worker_connections import connected, one_client_each

AT = "/v1/memories/events/stream"
OWN = ["user", "noop"]


class Reader:
    """Follows a stream; what it has of an event when the connection breaks is not an event."""

    def __init__(self, last: str | None = None, bearer: str | None = None, **params: Any) -> None:
        self.last = last
        self.events: list[dict[str, Any]] = []
        self.notes: list[str] = []
        """Whatever else was sent: comments, events with a name."""
        self._bearer = bearer
        self._params = params

    @property
    def keys(self) -> list[str]:
        return [event["key"] for event in self.events]

    def follow(self, client: httpx.Client, most_bytes: int = 2**62) -> Iterator[None]:
        """One connection; stops after each piece, and breaks off after so many bytes."""
        headers = {"last-event-id": self.last} if self.last else {}
        if self._bearer:
            headers["authorization"] = f"Bearer {self._bearer}"
        rest, left = b"", most_bytes
        with client.stream("GET", AT, headers=headers, params=self._params) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"] == "text/event-stream"
            for piece in answer.iter_raw():
                *whole, rest = (rest + piece[:left]).split(b"\n\n")
                left -= len(piece)
                for each in whole:
                    self._take(each.decode())
                if left <= 0:
                    return
                yield

    def _take(self, block: str) -> None:
        fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
        if "id" in fields:
            self.last = fields["id"]
        if "data" in fields and "id" in fields:
            self.events.append(json.loads(fields["data"]))
            assert self.events[-1]["cursor"] == self.last
        else:
            self.notes.append(block)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("streams"), "--workers", 2) as service:
        yield service


def put(client: httpx.Client, key: str, value: Any = None, room: list[str] = OWN) -> None:
    body = {"namespace": room, "key": key, "value": value or {}}
    answer = client.put("/v1/memories", json=body)
    assert answer.status_code == 200, answer.text


def put_many(client: httpx.Client, name: str, count: int, room: list[str]) -> None:
    for n in range(count):
        put(client, f"{name}-{n}", room=room)


def recorded(client: httpx.Client, room: list[str] = OWN) -> list[str]:
    """The cursors of everything that happened in a room, by the ordinary road."""
    cursors: list[str] = []
    while True:
        params: dict[str, Any] = {
            "ns": room,
            "limit": 200,
            **({"after_cursor": cursors[-1]} if cursors else {}),
        }
        events = client.get("/v1/memories/events", params=params).json()["events"]
        if not events:
            return cursors
        cursors += [event["cursor"] for event in events]


def test_a_reader_on_one_worker_sees_what_is_written_on_the_other(
    two_workers: Service, room: list[str]
) -> None:
    for reads, writes in ((0, 1), (1, 0)):
        with one_client_each(two_workers) as clients:
            reader = Reader(ns=room)
            stream = reader.follow(clients[reads])
            next(stream)
            for n in range(50):
                put(clients[writes], f"k{n}", room=room)
            while len(reader.events) < 50:
                next(stream)
            assert reader.keys == [f"k{n}" for n in range(50)]


@pytest.mark.parametrize("seed", range(3))
def test_every_event_comes_once_and_in_order_through_any_number_of_reconnects(
    two_workers: Service, room: list[str], seed: int
) -> None:
    """Two writers, one on each worker; the reader's connections are cut at any byte."""
    chance, each = random.Random(seed), 250
    with one_client_each(two_workers) as clients:
        put(clients[0], "first", room=room)
        (start,) = recorded(clients[0], room)
        writers = [
            threading.Thread(target=put_many, args=(client, f"{n}", each, room))
            for n, client in enumerate(clients)
        ]
        for writer in writers:
            writer.start()
        reader = Reader(start, ns=room)
        while len(reader.events) < 2 * each:
            with connected(two_workers) as client:
                for _ in reader.follow(client, chance.randrange(1, 20_000)):
                    if len(reader.events) >= 2 * each:
                        break
        for writer in writers:
            writer.join(PATIENCE)
        assert [event["cursor"] for event in reader.events] == recorded(clients[0], room)[1:]
        for name in range(2):
            assert [key for key in reader.keys if key[0] == f"{name}"] == [f"{name}-{n}" for n in range(each)]


def test_a_stream_starts_now(service: Service, room: list[str]) -> None:
    with connected(service) as client:
        put(service.client, "before", room=room)
        reader = Reader(ns=room)
        stream = reader.follow(client)
        next(stream)
        put(service.client, "after", room=room)
        while not reader.events:
            next(stream)
        assert reader.keys == ["after"]
        assert reader.events[0]["kind"] == "add"


def test_a_stream_can_be_narrowed_to_a_namespace_and_to_kinds(service: Service, room: list[str]) -> None:
    with connected(service) as client:
        reader = Reader(ns=room, kinds=["delete"])
        stream = reader.follow(client)
        next(stream)
        service.put(room, "k", {})
        service.put(OWN, "k", {})
        service.call("DELETE", "/v1/memories", params={"ns": room, "key": "k"})
        while not reader.events:
            next(stream)
        assert [(each["kind"], each["value"], each["attributes"]) for each in reader.events] == [
            ("delete", None, None)
        ]


def test_a_stream_shows_what_its_reader_may_see(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS) as service:
        with connected(service) as one, connected(service) as two:
            mine = Reader(bearer=token("alice"))
            everything = Reader(bearer=token("root", roles=["admin"]))
            streams = [mine.follow(one), everything.follow(two)]
            for stream in streams:
                next(stream)
            for n in range(150):
                assert service.put(["user", "bob"], f"b{n}", {}, token("bob")).status_code == 200
            assert service.put(["user", "alice"], "a", {}, token("alice")).status_code == 200
            for reader, stream in zip((mine, everything), streams, strict=True):
                while "a" not in reader.keys:
                    next(stream)
            assert mine.keys == ["a"]
            assert everything.keys == [*(f"b{n}" for n in range(150)), "a"]
        assert_error(service.call("GET", AT), 401, "unauthenticated")


@pytest.mark.parametrize("wrong", [b"x", b"7", b"\xff\xfe", b"-1", b"a" * 3000])
def test_a_wrong_cursor_is_refused(service: Service, wrong: bytes) -> None:
    answer = service.call("GET", AT, headers={"last-event-id": wrong})
    assert_error(answer, 400, "invalid_request")


@pytest.mark.parametrize("params", [{"kinds": "birth"}, {"ns": ""}, {"after_cursor": "x"}, {"limit": 1}])
def test_a_wrong_parameter_of_a_stream_is_refused(service: Service, params: dict[str, Any]) -> None:
    assert_error(service.call("GET", AT, params=params), 400, "invalid_request")


def test_a_head_of_a_stream_ends(service: Service) -> None:
    with connected(service) as client:
        for path in (AT, "/v1/memories/export", "/v1/admin/backup"):
            answer = client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
            assert client.get("/healthz").status_code == 200


def test_a_stream_without_events_of_its_own_says_that_it_is_still_there(
    service: Service, room: list[str]
) -> None:
    """Whatever others do meanwhile; the test's time-out is what it must be earlier than."""
    with connected(service) as client, ThreadPoolExecutor(1) as pool:
        reader, heard = Reader(ns=room), threading.Event()
        stream = reader.follow(client)
        next(stream)
        writing = pool.submit(_write_elsewhere, service, heard)
        try:
            while ": still here" not in reader.notes:
                next(stream)
        finally:
            heard.set()
        assert writing.result() > 20
        service.put(room, "k", {})
        while not reader.events:
            next(stream)
        assert reader.keys == ["k"]


def _write_elsewhere(service: Service, enough: threading.Event) -> int:
    """Something new every moment; how many that were."""
    written = 0
    with connected(service) as client:
        while not enough.wait(0.2):
            put(client, f"other-{written}")
            written += 1
    return written


def test_a_reader_that_comes_back_too_late_is_told_what_it_missed(tmp_path: Path) -> None:
    flags = ["--retention-days", "0.000001", "--sweep-interval", "0.1"]
    with serving(tmp_path, *flags) as service:
        put(service.client, "k")
        start = recorded(service.client)[0]
        for n in range(3):
            put(service.client, "k", {"n": n})

        def swept() -> bool:
            page = service.call("GET", "/v1/memories/events", params={"after_cursor": start}).json()
            return "truncated_before" in page and len(page["events"]) == 1

        until(swept)
        reader = Reader(start)
        with connected(service) as client:
            stream = reader.follow(client)
            while not reader.events:
                next(stream)
        assert reader.notes[1].startswith('event: truncated\ndata: {"truncated_before":"')
        assert reader.events[0]["value"] == {"n": 2}


def test_a_reader_that_never_reads_holds_nobody_up_and_is_cut_off(tmp_path: Path) -> None:
    """Forty megabytes happen meanwhile, of which the server keeps next to nothing for it."""
    with serving(tmp_path, "--request-seconds", 2) as service, ExitStack() as stack:
        put(service.client, "k", {"text": "x" * 900_000})
        start = recorded(service.client)[0]
        for _ in range(8):
            stack.enter_context(_asking(service, start))
        before = _resident(service.process.pid)
        for n in range(40):
            put(service.client, "k", {"n": n, "text": "x" * 900_000})
        until(lambda: service.log.count("too slow") == 8)
        grown = _resident(service.process.pid) - before
        assert grown < 200 * 2**20, grown
        put(service.client, "still", {})


def _asking(service: Service, last: str) -> socket.socket:
    """A connection that has asked for a stream and takes next to nothing of it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", service.port))
    one.sendall(f"GET {AT} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {last}\r\n\r\n".encode())
    return one


def _resident(pid: int) -> int:
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in each]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_ends_open_streams(tmp_path: Path, workers: int) -> None:
    """Long before requests would be cut off, which here is later than the test may last."""
    with serving(tmp_path, "--workers", workers, "--request-seconds", 600) as service:
        clients = [connected(service) for _ in range(6)]
        streams = [Reader().follow(client) for client in clients]
        for stream in streams:
            next(stream)
        service.signal()
        for stream in streams:
            assert list(stream) == []
        assert service.wait() in (0, -15)
        for client in clients:
            client.close()
