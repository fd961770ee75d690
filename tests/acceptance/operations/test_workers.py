"""Several workers on one store, kills, graceful stops, and the limits of what is taken on."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from alcove import Alcove
from tests.support.service import Service, assert_error, serving
from tests.support.store_inspection import assert_sound
from tests.support.waiting import PATIENCE, until

MINE = ["user", "noop"]


class Writers:
    """Threads that write keys of their own, and remember which ones the service acknowledged."""

    def __init__(self, service: Service, threads: int = 6) -> None:
        self.acknowledged: list[str] = []
        self.answers: set[int] = set()
        self._service = service
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(threads)]
        for each in self._threads:
            each.start()

    def wait_for(self, more: int) -> None:
        """Until this many more writes were acknowledged."""
        goal = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= goal)

    def stop(self) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(PATIENCE)

    def _write(self, name: int) -> None:
        with httpx.Client(timeout=PATIENCE, trust_env=False) as client:
            url, n = f"{self._service.url}/v1/memories", 0
            while not self._stop.is_set():
                n += 1
                key = f"{name}-{n}"
                try:
                    answer = client.put(url, json={"namespace": MINE, "key": key, "value": {"of": key}})
                except httpx.TransportError:
                    time.sleep(0.005)
                    continue
                self.answers.add(answer.status_code)
                if answer.status_code == 200:
                    self.acknowledged.append(key)


@contextmanager
def writing(service: Service) -> Iterator[Writers]:
    writers = Writers(service)
    try:
        yield writers
    finally:
        writers.stop()


class HalfSent:
    """A PUT whose last byte is kept back, so that it is in flight for as long as a test likes."""

    def __init__(self, service: Service, key: str) -> None:
        body = f'{{"namespace": ["user", "noop"], "key": "{key}", "value": {{"of": "{key}"}}}}'.encode()
        head = f"PUT /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        self._rest = body[-1:]
        self._socket = socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE)
        self._socket.sendall(head.encode() + body[:-1])

    def finish(self) -> bytes:
        """Sends the last byte; the answer's first line."""
        self._socket.sendall(self._rest)
        return self.answer().partition(b"\r\n")[0]

    def answer(self) -> bytes:
        """What the service says, up to the end of its JSON."""
        said = b""
        while not said.endswith(b"}"):
            more = self._socket.recv(65536)
            assert more, said
            said += more
        self.close()
        return said

    def close(self) -> None:
        self._socket.close()


def wait_until_stopping(service: Service, workers: int) -> None:
    """Until every worker has said that it stops."""
    until(lambda: sum(line["event"] == "Shutting down" for line in service.lines) == workers)


def wait_for_workers(service: Service, count: int, without: int = 0) -> list[int]:
    """Until there are this many, and this one is not among them."""
    until(lambda: len(found := service.children()) == count and without not in found)
    return service.children()


def wait_until_in_flight(service: Service, requests: int = 1) -> None:
    """Until so many are being answered, beside our question."""
    until(lambda: service.gauge("alcove_requests_in_flight") == requests + 1)


def assert_all_kept(at: Path, keys: list[str]) -> None:
    """Read with the library, in this process, once the service is gone."""
    with Alcove(at) as memory:
        assert_sound(memory)
        kept = memory.as_user("noop")
        for key in keys:
            found = kept.get(MINE, key)
            assert found is not None, f"{key} was acknowledged and is lost"
            assert found.value == {"of": key}


def test_what_one_worker_wrote_every_worker_reads(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", 2) as service:
        wait_for_workers(service, 2)
        for n in range(40):
            fresh: dict[str, Any] = {"headers": {"connection": "close"}}
            written = service.put(MINE, "k", {"n": n}, **fresh)
            assert written.json()["revision"] == n + 1
            for _ in range(3):
                assert service.get(MINE, "k", **fresh).json()["value"] == {"n": n}


def test_a_worker_killed_under_load_loses_no_acknowledged_write(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", 2) as service:
        first = wait_for_workers(service, 2)
        with writing(service) as writers:
            for round_ in range(2):
                writers.wait_for(200)
                victim = service.children()[round_ % 2]
                os.kill(victim, signal.SIGKILL)
                writers.wait_for(200)
                wait_for_workers(service, 2, without=victim)
        assert writers.answers == {200}
        assert set(service.children()) != set(first)
        assert service.get(MINE, writers.acknowledged[-1]).status_code == 200
        service.signal()
        assert service.wait() == 0
    assert_all_kept(service.at, writers.acknowledged)


def test_everything_killed_under_load_loses_no_acknowledged_write(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", 2) as service:
        wait_for_workers(service, 2)
        with writing(service) as writers:
            writers.wait_for(300)
            os.killpg(service.process.pid, signal.SIGKILL)
            service.wait()
    assert writers.answers == {200}
    assert_all_kept(service.at, writers.acknowledged)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_under_load_keeps_everything_acknowledged(tmp_path: Path, workers: int) -> None:
    with serving(tmp_path, "--workers", workers) as service, writing(service) as writers:
        writers.wait_for(200)
        service.signal()
        assert service.wait() in (0, -signal.SIGTERM)
        writers.stop()
    assert writers.answers == {200}
    assert_all_kept(service.at, writers.acknowledged)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_finish_before_a_stop(tmp_path: Path, workers: int, number: int) -> None:
    with serving(tmp_path, "--workers", workers) as service:
        halves = {f"half-{n}": HalfSent(service, f"half-{n}") for n in range(4)}
        wait_until_in_flight(service, 4)
        service.signal(number)
        wait_until_stopping(service, workers)
        assert service.running
        for half in halves.values():
            assert half.finish() == b"HTTP/1.1 200 OK"
        service.wait()
    assert_all_kept(service.at, [*halves])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_that_stops_turns_new_callers_away(tmp_path: Path, workers: int) -> None:
    """Rather than leave them waiting for an answer that nobody will give."""
    with serving(tmp_path, "--workers", workers, "--request-seconds", 600) as service:
        half = HalfSent(service, "half")
        wait_until_in_flight(service)
        service.signal()
        wait_until_stopping(service, workers)
        try:
            for _ in range(3):
                with pytest.raises((httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError)):
                    httpx.get(f"{service.url}/healthz", timeout=10, trust_env=False)
            assert service.running
        finally:
            half.close()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(tmp_path: Path, workers: int, number: int) -> None:
    """The request in flight may take ten minutes, which is longer than this test may."""
    with serving(tmp_path, "--workers", workers, "--request-seconds", 600) as service:
        assert service.put(MINE, "before", {"of": "before"}).status_code == 200
        half = HalfSent(service, "half")
        try:
            wait_until_in_flight(service)
            service.signal(number)
            wait_until_stopping(service, workers)
            assert service.running
            service.signal(number)
            service.process.wait(PATIENCE / 3)
            assert service.children() == []
        finally:
            half.close()
    assert_all_kept(service.at, ["before"])


def test_a_request_that_takes_too_long_is_told_so(tmp_path: Path) -> None:
    with serving(tmp_path, "--request-seconds", 1) as service:
        answer = HalfSent(service, "half").answer()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"service_unavailable"' in answer
        assert service.put(MINE, "k", {}).status_code == 200


def test_more_requests_at_once_than_are_taken_on_are_told_to_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, "--most-in-flight", 1, "--request-seconds", 600) as service:
        half = HalfSent(service, "half")
        wait_until_in_flight(service)
        for answer in (service.look(), service.put(MINE, "k", {})):
            assert_error(answer, 503, "service_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert half.finish() == b"HTTP/1.1 200 OK"
        assert service.get(MINE, "half").json()["value"] == {"of": "half"}
        assert service.get(MINE, "k").status_code == 404


def test_a_client_that_goes_away_gives_its_place_back(tmp_path: Path) -> None:
    with serving(tmp_path, "--most-in-flight", 1, "--request-seconds", 600) as service:
        half = HalfSent(service, "half")
        wait_until_in_flight(service)
        half.close()
        until(lambda: service.look().status_code == 200)
        assert service.get(MINE, "half").status_code == 404


def test_more_requests_a_second_than_allowed_are_told_to_come_back(tmp_path: Path) -> None:
    """A rate so small that nothing is saved up again while the test runs."""
    with serving(tmp_path, "--auth", "apikey", "--rate-limit", 0.0001) as service:
        with Alcove(service.at) as store:
            alice, bob = (
                store.api_keys.create(client="c", user=user, roles=[], trusted=False)
                for user in ("alice", "bob")
            )
        assert service.look(alice).status_code == 200
        for _ in range(3):
            answer = service.look(alice)
            assert_error(answer, 429, "rate_limited")
            assert int(answer.headers["retry-after"]) >= 1
        assert service.look(bob).status_code == 200
        assert service.call("GET", "/healthz").status_code == 200


def test_any_number_of_requests_is_taken_unless_told_otherwise(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert {service.look().status_code for _ in range(300)} == {200}


def test_the_largest_body_is_a_setting(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-body-bytes", 1000) as service:
        assert service.put(MINE, "k", {"text": "x" * 500}).status_code == 200
        assert_error(service.put(MINE, "k", {"text": "x" * 1000}), 413, "payload_too_large")
        chunks = (b'{"namespace": [' + b" " * 500 for _ in range(4))
        headers = {"content-type": "application/json"}
        answer = service.call("PUT", "/v1/memories", content=chunks, headers=headers)
        assert_error(answer, 413, "payload_too_large")
        assert service.get(MINE, "k").json()["revision"] == 1
