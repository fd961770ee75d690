"""What one user can take from the others: much, while nobody else wants it, and never all of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from alcove import Alcove
from tests.support.agent_service import Player
from tests.support.service import Service, serving
from tests.support.store_inspection import locked, processor_seconds
from tests.support.tokens import FLAGS
from tests.support.waiting import PATIENCE, until

PLACES = 20
STREAM = "/v1/memories/events/stream"
IMPORT = "/v1/memories/import"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with few places and threads, which one user could fill."""
    patient = ("--busy-timeout", 600, "--request-seconds", 600)  # on a busy machine, too
    flags = (*FLAGS, *patient, "--most-in-flight", PLACES, "--threads", 4, "--embedder", "none")
    with serving(tmp_path_factory.mktemp("crowded"), *flags) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that may open few files, and waits a second at most."""
    flags = ("--head-seconds", 1, "--request-seconds", 1, "--embedder", "none")
    with serving(tmp_path_factory.mktemp("hasty"), *flags, files=256) as running:
        yield running


def sent(service: Service, head: str, body: bytes = b"") -> socket.socket:
    """A connection over which this was sent, and on which nothing more comes."""
    one = socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE)
    one.sendall(head.replace("\n", "\r\n").encode() + body)
    return one


def opened(player: Player, method: str, path: str) -> socket.socket:
    """A request that stays open: a stream, or an import of which nothing comes."""
    head = f"{method} {path} HTTP/1.1\nHost: localhost\nAuthorization: Bearer {player.token}\n"
    if method == "POST":
        head += "Content-Type: application/x-ndjson\nTransfer-Encoding: chunked\n"
    return sent(player.service, f"{head}\n")


def said(one: socket.socket) -> bytes:
    """All that comes before the other side closes."""
    whole = b""
    with suppress(ConnectionResetError):
        while piece := one.recv(65536):
            whole += piece
    return whole


# Heads and bodies that do not come


def test_many_heads_that_never_come_whole_keep_nobody_out(hasty: Service) -> None:
    """More than the service may open files."""
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(closing(sent(hasty, "GET /v1/memories HTTP/1.1\nX-Half: ")))
        with httpx.Client(base_url=hasty.url, timeout=20, trust_env=False) as newcomer:
            assert newcomer.get("/v1/memories/namespaces").status_code == 200


def test_a_request_that_arrives_while_the_server_is_busy_is_answered_however_late(hasty: Service) -> None:
    """The connection has been idle for longer than it may be, by the time the server looks at it again."""
    with closing(sent(hasty, "GET /healthz HTTP/1.1\n\n")) as one:
        assert one.recv(65536).startswith(b"HTTP/1.1 200 ")
        os.kill(hasty.process.pid, signal.SIGSTOP)
        try:
            one.sendall(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
            time.sleep(3)
        finally:
            os.kill(hasty.process.pid, signal.SIGCONT)
        assert said(one).startswith(b"HTTP/1.1 200 ")


def test_a_head_that_does_not_come_in_time_is_cut_off(hasty: Service) -> None:
    with closing(sent(hasty, "GET / HTTP/1.1\nX-Half: ")) as half, closing(sent(hasty, "")) as nothing:
        assert said(half).startswith(b"HTTP/1.1 400 ")
        assert said(nothing) == b""


def test_a_body_that_trickles_is_cut_off(hasty: Service) -> None:
    line = json.dumps({"namespace": ["user", "noop"], "key": "k", "value": {}}).encode() + b"\n"
    head = f"POST {IMPORT} HTTP/1.1\nHost: localhost\nContent-Type: application/x-ndjson\n"
    with closing(sent(hasty, f"{head}Content-Length: 1000000\n\n")) as one:
        one.settimeout(0.1)
        for _ in range(int(PATIENCE / 0.1)):
            one.sendall(line)
            with suppress(TimeoutError):
                if answer := one.recv(65536):
                    break
        assert answer.startswith(b"HTTP/1.1 503 ")


# Answers that nobody takes


def test_who_does_not_take_an_answer_loses_the_connection(hasty: Service) -> None:
    """Closing it would wait for the rest to be taken, and keep that until then."""
    for n in range(10):
        assert hasty.put(["user", "noop", "large"], str(n), {"x": "x" * 1_000_000}).status_code == 200

    def sockets() -> int:
        """Those the server has open; its files come and go with how many read at once."""
        found = 0
        for each in Path(f"/proc/{hasty.process.pid}/fd").iterdir():
            with suppress(OSError):
                found += str(each.readlink()).startswith("socket:")
        return found

    before = sockets()
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(closing(sent(hasty, "GET /v1/memories/export HTTP/1.1\nHost: localhost\n\n")))
        until(lambda: hasty.log.count("was cut off") == 20)
        until(lambda: sockets() < before + 10)


# Places


def test_where_bodies_must_be_small_there_is_still_room_for_lines(tmp_path: Path) -> None:
    line = b'{"namespace": ["user", "noop"], "key": "k", "value": {}}'
    with serving(tmp_path, "--max-body-bytes", 1000, "--embedder", "none") as service:
        as_lines = {"content-type": "application/x-ndjson"}
        assert service.call("POST", IMPORT, content=line, headers=as_lines).json()["imported"] == 1
        assert len(service.call("GET", "/v1/memories/export").text.splitlines()) == 1


@pytest.mark.parametrize(("method", "path"), [("GET", STREAM), ("POST", IMPORT)])
def test_one_users_streams_and_imports_leave_places_for_others(
    crowded: Service, method: str, path: str
) -> None:
    alice, bob = Player(crowded, f"alice {method}"), Player(crowded, f"bob {method}")
    with ExitStack() as stack:
        until(lambda: refused(stack.enter_context(closing(opened(alice, method, path)))))
        assert not refused(stack.enter_context(closing(opened(bob, method, path))))
        for each in (alice, bob):
            assert each.put("user", each.name, key="k").status_code == 200


def refused(one: socket.socket) -> bool:
    """Whether a request was turned away; one that is taken says nothing, or that it is."""
    one.settimeout(0.05)
    with suppress(TimeoutError):
        return one.recv(12) == b"HTTP/1.1 503"
    return False


def test_a_request_whose_client_is_gone_gives_its_place_back_at_once(crowded: Service) -> None:
    """It waits for a lock that is still held when the next is answered."""
    alice = Player(crowded, "alice gone")
    assert alice.put("user", alice.name, key="k").status_code == 200
    body = json.dumps({"namespace": ["user", alice.name], "key": "k", "value": {}}).encode()
    head = f"PUT /v1/memories HTTP/1.1\nHost: localhost\nAuthorization: Bearer {alice.token}\n"
    head += f"Content-Type: application/json\nContent-Length: {len(body)}\n\n"
    with locked(crowded.at):
        with ExitStack() as stack:
            while alice.ask("GET", "/v1/memories/namespaces").status_code != 503:
                stack.enter_context(closing(sent(crowded, head, body)))
        until(lambda: alice.ask("GET", "/v1/memories/namespaces").status_code == 200)


def test_a_search_whose_caller_is_gone_stops(tmp_path: Path) -> None:
    """It looks into sixty large values, and costs a fraction of that when nobody waits for it any more."""
    value = {"parts": [{"n": n} for n in range(60_000)]}
    with Alcove(tmp_path / "memory.db", embedder=None) as store:
        for n in range(60):
            store.put("user:noop", f"k{n}", value)
    body = json.dumps({"namespace_prefix": ["user", "noop"], "filter": {"absent": 7}}).encode()
    head = "POST /v1/memories/search HTTP/1.1\nHost: localhost\nContent-Type: application/json\n"
    head += f"Content-Length: {len(body)}\nConnection: close\n\n"
    with serving(tmp_path, "--embedder", "none") as service:
        used = partial(processor_seconds, service.process.pid)
        started = used()
        with closing(sent(service, head, body)) as one:
            assert said(one).endswith(b'{"items":[]}')
        whole = used() - started
        started = used()
        with closing(sent(service, head, body.replace(b"absent", b"absend"))):
            until(lambda: used() - started > whole / 10)
        time.sleep(2 * whole)
        assert used() - started < whole / 2


# The write lock


def test_nobodys_read_waits_for_a_lock_that_a_newcomer_or_a_stranger_waits_for(crowded: Service) -> None:
    alice, stranger = Player(crowded, "alice reads"), Player(crowded, "stranger")
    assert alice.put("user", alice.name, key="k").status_code == 200
    with locked(crowded.at) as release:
        newcomers = [Player(crowded, f"newcomer {n}") for n in range(8)]
        puts = [
            threading.Thread(target=each.put, args=("user", each.name), kwargs={"key": "k"})
            for each in newcomers
        ]
        for put in puts:
            put.start()
        for _ in range(20):
            assert stranger.service.get(["user", alice.name], "k", stranger.token).status_code == 403
            assert crowded.get(["user", alice.name], "k", alice.token).status_code == 200
            found = alice.ask("POST", "/v1/memories/search", json={"namespace_prefix": ["user", alice.name]})
            assert len(found.json()["items"]) == 1
        release()
        for put in puts:
            put.join(PATIENCE)
    for each in newcomers:
        assert crowded.get(["user", each.name], "k", each.token).status_code == 200


# All of it at once


class Attack:
    """One user who does everything that is dear, again and again, until told to stop."""

    def __init__(self, service: Service) -> None:
        self.player = Player(service, "mallory")
        self._stop = threading.Event()
        self._large = {"words": [f"word {n}" for n in range(60_000)]}
        for n in range(8):
            assert self.player.put("user", "mallory", key=f"large-{n}", value=self._large).status_code == 200
        ways = [self._search, self._put, self._read, self._head, self._denied]
        self._streams = [threading.Thread(target=self._again, args=(self._stream,)) for _ in range(3)]
        self._others = [threading.Thread(target=self._again, args=(way,)) for way in ways * 3]
        self._full = threading.Event()

    def __enter__(self) -> None:
        """Begins when they have as many streams as they can have."""
        for each in self._streams:
            each.start()
        assert self._full.wait(PATIENCE)
        for each in self._others:
            each.start()
        time.sleep(1)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in [*self._streams, *self._others]:
            each.join(PATIENCE)

    def _again(self, way: Callable[[ExitStack, httpx.Client], None]) -> None:
        service = self.player.service
        with ExitStack() as stack, httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
            client.headers["authorization"] = f"Bearer {self.player.token}"
            while not self._stop.is_set():
                with suppress(httpx.TransportError, OSError):
                    way(stack, client)

    def _search(self, _: ExitStack, client: httpx.Client) -> None:
        dear = {f"absent{n}": None for n in range(60)}
        client.post("/v1/memories/search", json={"filter": dear, "limit": 100})

    def _put(self, _: ExitStack, client: httpx.Client) -> None:
        client.put("/v1/memories", json={"namespace": ["user", "mallory"], "key": "l", "value": self._large})

    def _read(self, _: ExitStack, client: httpx.Client) -> None:
        client.get("/v1/memories", params={"ns": ["user", "mallory"], "key": "large-1"})

    def _stream(self, stack: ExitStack, _: httpx.Client) -> None:
        if refused(stack.enter_context(closing(opened(self.player, "GET", STREAM)))):
            self._full.set()
            time.sleep(0.05)

    def _head(self, stack: ExitStack, _: httpx.Client) -> None:
        stack.enter_context(closing(sent(self.player.service, "GET / HTTP/1.1\nX: ")))
        time.sleep(0.01)

    def _denied(self, _: ExitStack, client: httpx.Client) -> None:
        client.get("/v1/memories", params={"ns": ["user", "victim 1"], "key": "k"})


def visits(victim: Player) -> list[float]:
    """Small requests of somebody like any other, each of which must be answered; how long each took."""
    room: list[str] = ["user", victim.name]
    found = f"{victim.service.url}/v1/memories/namespaces"
    token = {"authorization": f"Bearer {victim.token}"}
    ways: list[Callable[[], Any]] = [
        lambda: victim.put(*room, key="k", value={"n": 1}),
        lambda: victim.service.get(room, "k", victim.token),
        lambda: victim.ask(
            "POST", "/v1/memories/search", json={"namespace_prefix": room, "filter": {"n": 1}}
        ),
        lambda: httpx.get(found, headers=token, timeout=PATIENCE, trust_env=False),  # over a new connection
    ]
    seconds = []
    for way in ways * 10:
        started = time.perf_counter()
        try:
            answer = way()
        except httpx.ReadError:  # the server closed an idle connection at the moment that it was used again
            answer = way()
        seconds.append(time.perf_counter() - started)
        assert answer.status_code == 200, answer.text
    return seconds


def test_everybody_is_served_beside_a_user_who_takes_all_they_can(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS, "--most-in-flight", 60, "--threads", 4, files=512) as service:
        victims = [Player(service, f"victim {n}") for n in range(2)]
        alone = [second for victim in victims for second in visits(victim)]
        with Attack(service):
            beside = [second for victim in victims for second in visits(victim)]
        assert service.look(victims[0].token).status_code == 200
    assert statistics.median(beside) < max(100 * statistics.median(alone), 1), (alone, beside)
