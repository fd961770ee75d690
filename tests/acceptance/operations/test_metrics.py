"""`/metrics`: exact counts from one worker and from several, and who may read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.service import Service, assert_error, serving
from tests.support.store_inspection import locked
from tests.support.tokens import FLAGS, token
from tests.support.waiting import PATIENCE, until

MINE = ["user", "noop"]
Labels = frozenset[tuple[str, str]]


class Counts(dict[tuple[str, Labels], float]):
    """What `/metrics` said: every sample by its name and labels."""

    @classmethod
    def of(cls, service: Service) -> Counts:
        again = {"connection": "close"}  # the next one may reach another worker
        answer = service.call("GET", "/metrics", headers=again)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = cls()
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in found, key
                found[key] = sample.value
        return found

    def one(self, name: str, **labels: str) -> float:
        """One sample; nothing was counted where there is none."""
        return self.get((name, frozenset(labels.items())), 0)

    def requests(self, route: str = "/v1/memories") -> dict[tuple[str, str], float]:
        """How many requests there were at a route, by method and status."""
        found = {}
        for (name, labels), value in self.items():
            told = dict(labels)
            if name == "alcove_request_seconds_count" and told["route"] == route:
                found[told["method"], told["status"]] = value
        return found


def folder_of(service: Service) -> Path:
    """Where the workers keep their counts, as their own environment says."""
    worker = service.children()[0]
    environment = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    (folder,) = [each[25:] for each in environment if each.startswith(b"PROMETHEUS_MULTIPROC_DIR=")]
    return Path(os.fsdecode(folder))


def pids_in(folder: Path, pattern: str) -> set[str]:
    """Whose files are there: the name of each ends with a pid."""
    return {path.stem.rpartition("_")[2] for path in folder.glob(pattern)}


@contextmanager
def putting(service: Service, count: int) -> Iterator[list[int]]:
    """Puts that are under way at the same time, each on a connection of its own.

    Their statuses are there as they come, 0 for one that was cut off; it ends when the last has.
    """
    statuses: list[int] = []

    def put(key: str) -> None:
        body = {"namespace": MINE, "key": key, "value": {"n": 1}}
        try:
            answer = httpx.put(f"{service.url}/v1/memories", json=body, timeout=PATIENCE, trust_env=False)
            statuses.append(answer.status_code)
        except httpx.TransportError:
            statuses.append(0)

    threads = [threading.Thread(target=put, args=(f"key-{n}",)) for n in range(count)]
    for each in threads:
        each.start()
    try:
        yield statuses
    finally:
        for each in threads:
            each.join(PATIENCE)


# Counting


def test_requests_are_counted_by_declared_path_method_and_status(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        for n in range(3):
            service.put(MINE, f"secret-key-{n}", {"n": n})
        service.get(MINE, "secret-key-1")
        service.get(MINE, "absent")
        service.call("GET", "/v1/memories")
        service.call("PATCH", "/v1/memories")
        service.call("PURGE", "/v1/memories")
        service.call("MKCOL", "/v1/memories")
        service.call("GET", "/v1/of-my-own-making")
        counts = Counts.of(service)
        assert counts.requests() == {
            ("PUT", "200"): 3, ("GET", "200"): 1, ("GET", "404"): 1, ("GET", "400"): 1,
            ("PATCH", "405"): 1, ("other", "405"): 2,
        }  # fmt: skip
        assert counts.requests("unknown") == {("GET", "404"): 1}
        assert counts.requests("/metrics") == {}
        assert Counts.of(service).requests("/metrics") == {("GET", "200"): 1}
        labels = {"route": "/v1/memories", "method": "PUT", "status": "200"}
        assert counts.one("alcove_request_seconds_bucket", **labels, le="+Inf") == 3
        assert 0 < counts.one("alcove_request_seconds_sum", **labels) < PATIENCE
        assert counts.one("alcove_requests_in_flight") == 1
        assert counts.one("alcove_commit_writes_sum") == 3
        assert counts.one("process_resident_memory_bytes") > 0
        told = service.call("GET", "/metrics").text
        assert "secret-key" not in told
        assert "of-my-own-making" not in told


def test_any_of_several_workers_answers_for_all_of_them(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", 2) as service:
        until(lambda: len(pids_in(folder_of(service), "histogram_*.db")) == 2)
        with putting(service, 60) as statuses:
            pass
        assert statuses == [200] * 60
        for _ in range(20):
            counts = Counts.of(service)
            assert counts.requests() == {("PUT", "200"): 60}
            assert counts.one("alcove_commit_writes_sum") == 60
            assert 1 <= counts.one("alcove_commit_writes_count") <= 60


def test_what_a_killed_worker_did_stays_counted_and_what_it_was_doing_does_not(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", 2, "--busy-timeout", 3000) as service:
        for n in range(5):
            service.put(MINE, f"key-{n}", {"n": n})
        folder, workers = folder_of(service), service.children()
        with locked(service.at):
            with putting(service, 8) as statuses:
                until(lambda: Counts.of(service).one("alcove_writes_waiting") == 8)
                until(lambda: Counts.of(service).one("alcove_requests_in_flight") == 9)
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
            assert statuses == [0] * 8
        until(lambda: not {str(pid) for pid in workers} & pids_in(folder, "gauge_*.db"))
        service.wait_until_ready()
        counts = Counts.of(service)
        assert counts.one("alcove_writes_waiting") == 0
        assert counts.one("alcove_requests_in_flight") == 1
        assert counts.requests() == {("PUT", "200"): 5}
        assert counts.one("alcove_commit_writes_sum") == 5


@pytest.mark.parametrize("workers", [1, 2])
def test_writes_that_wait_are_seen_while_they_do(tmp_path: Path, workers: int) -> None:
    with serving(tmp_path, "--workers", workers, "--busy-timeout", 3000) as service:
        service.put(MINE, "first", {"n": 0})  # makes the data key
        with locked(service.at) as release, putting(service, 7) as statuses:
            until(lambda: Counts.of(service).one("alcove_writes_waiting") == 7)
            until(lambda: Counts.of(service).one("alcove_requests_in_flight") == 8)
            assert statuses == []
            release()
        until(lambda: Counts.of(service).one("alcove_writes_waiting") == 0)
        assert statuses == [200] * 7
        assert Counts.of(service).one("alcove_commit_writes_sum") == 8


def test_a_commit_that_fails_is_counted_apart(tmp_path: Path) -> None:
    with serving(tmp_path, "--busy-timeout", 0.05) as service:
        service.put(MINE, "first", {"n": 0})  # makes the data key
        with locked(service.at):
            assert_error(service.put(MINE, "key", {"n": 1}), 503, "service_unavailable")
        service.put(MINE, "key", {"n": 1})
        counts = Counts.of(service)
        assert counts.one("alcove_commit_failures_total") == 1
        assert counts.one("alcove_commit_writes_count") == 2
        assert counts.one("alcove_writes_waiting") == 0


def test_each_expiry_is_counted_once_however_many_workers_sweep(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", 2, "--sweep-interval", 0.05) as service:
        assert Counts.of(service).one("alcove_expirations_total", which="due") == 0
        for n in range(25):
            body = {"namespace": MINE, "key": f"key-{n}", "value": {"n": n}, "ttl_seconds": 1}
            assert service.call("PUT", "/v1/memories", json=body).status_code == 200
        until(lambda: Counts.of(service).one("alcove_expirations_total", which="due") >= 25)
        events = service.call("GET", "/v1/memories/events", params={"limit": 200, "kinds": "expired"})
        assert len(events.json()["events"]) == 25
        assert Counts.of(service).one("alcove_expirations_total", which="due") == 25


def test_denials_are_counted_by_route(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS) as service:
        bob = token("bob")
        for n in range(3):
            assert_error(service.put(["user", "alice"], f"k{n}", {"n": n}, bob), 403, "permission_denied")
        assert_error(service.get(["user", "alice"], "k", bob), 403, "permission_denied")
        assert_error(service.get(["user", "alice"], "k"), 401, "unauthenticated")
        counts = Counts.of(service)
        assert counts.one("alcove_denials_total", route="/v1/memories", method="PUT") == 3
        assert counts.one("alcove_denials_total", route="/v1/memories", method="GET") == 1


# Who may read it


def test_others_than_programs_on_this_machine_need_the_role_admin_or_auditor(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS) as service:
        assert service.call("GET", "/metrics").status_code == 200
        for elsewhere in (
            {"x-forwarded-for": "203.0.113.9"},
            {"x-forwarded-for": "127.0.0.1"},
            {"forwarded": "for=127.0.0.1"},
            {"host": "rebound.example"},
            {"origin": "https://page.example"},
        ):
            refused = service.call("GET", "/metrics", headers=elsewhere)
            assert_error(refused, 401, "unauthenticated")
            refused = service.call("GET", "/metrics", token("bob", roles=["reader"]), headers=elsewhere)
            assert_error(refused, 403, "permission_denied")
            for role in ("admin", "auditor"):
                allowed = service.call("GET", "/metrics", token("eve", roles=[role]), headers=elsewhere)
                assert allowed.status_code == 200, allowed.text
        assert_error(service.call("GET", "/metrics", params={"name": "x"}), 400, "invalid_request")


def test_a_service_that_has_too_much_to_do_still_tells_so(tmp_path: Path) -> None:
    with serving(tmp_path, "--most-in-flight", 1) as service:
        service.put(MINE, "first", {"n": 0})  # makes the data key
        with locked(service.at) as release, putting(service, 1) as statuses:
            until(lambda: Counts.of(service).one("alcove_writes_waiting") == 1)  # it has the only place
            assert service.look().status_code == 503
            assert Counts.of(service).requests("/v1/memories/namespaces")["GET", "503"] >= 1
            release()
        assert statuses == [200]


# Leaving nothing behind


@pytest.mark.parametrize("signals", [1, 2])
def test_the_folder_of_the_counts_ends_with_the_service(tmp_path: Path, signals: int) -> None:
    with serving(tmp_path, "--workers", 2, "--busy-timeout", 3000) as service:
        service.put(MINE, "first", {"n": 0})  # makes the data key
        folder = folder_of(service)
        assert folder.stat().st_mode & 0o077 == 0
        if signals == 1:
            service.signal()
            assert service.wait() == 0
        else:
            with locked(service.at), putting(service, 1):
                until(lambda: Counts.of(service).one("alcove_writes_waiting") == 1)
                service.signal()
                until(lambda: any(line["event"] == "Shutting down" for line in service.lines))
                service.signal()
                service.wait()
        assert not folder.exists()


def test_a_folder_that_another_service_counts_in_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with serving(tmp_path, env={"PROMETHEUS_MULTIPROC_DIR": str(other)}) as service:
        service.put(MINE, "key", {"n": 1})
        assert Counts.of(service).requests() == {("PUT", "200"): 1}
    assert list(other.iterdir()) == []


def test_the_library_alone_imports_nothing_that_counts() -> None:
    program = "import sys, alcove; print([m for m in sys.modules if m.startswith(('prometheus', 'opentel'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
