"""`alcove serve` as a process of its own, with a folder, a port and an environment that only one test has."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from click.testing import CliRunner

from alcove.cli import main
from tests.support.processes import Process
from tests.support.waiting import PATIENCE, until

COMMAND = [sys.executable, "-c", "from alcove.cli import main; main(prog_name='alcove')"]
ERROR_FIELDS = {"code", "error", "request_id"}
MORE_ERROR_FIELDS = {"details", "reason"}
_CONFIGURES = ("ALCOVE_", "MEMORY_")


def environment(**more: str) -> dict[str, str]:
    """This process's environment without anything that configures Alcove, and with what is given."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_CONFIGURES)}
    return {**own, **more}


class Done(NamedTuple):
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str
    output: str
    """Both, as they came."""


def alcove(*arguments: object, env: Mapping[str, str] | None = None) -> Done:
    """Runs the command to its end, in this process."""
    ours = {name: None for name in os.environ if name.startswith(_CONFIGURES)}
    done = CliRunner(env={**ours, **(env or {})}).invoke(main, [*map(str, arguments)], prog_name="alcove")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout, done.stderr, done.output)


def refused(folder: Path, *flags: object, env: Mapping[str, str] | None = None, code: int = 2) -> str:
    """What `alcove serve` says when it does not start; one that starts is stopped, and fails the test."""
    words, said = ["serve", "--port", free_port(), "--at", folder / "memory.db", *flags], folder / "refused"
    process = Process([*map(str, words)], folder=folder, says=said, env=environment(**(env or {})))
    try:
        ended = process.wait(PATIENCE / 4)
    finally:
        process.end()
    assert ended is not None, f"it started with {flags}"
    assert ended == code, (ended, said.read_text())
    assert "Traceback" not in said.read_text(), said.read_text()
    return said.read_text()


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def assert_error(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The one shape of an error, with this status and code, and without a stack."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/json"
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text
    body = answer.json()
    assert ERROR_FIELDS <= set(body) <= ERROR_FIELDS | MORE_ERROR_FIELDS, body
    assert body["code"] == code, body
    assert body["error"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return dict(body)


class Service:
    """A running service, how to call it and how to end it."""

    def __init__(self, process: Process, port: int, at: Path, said: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.at = at
        self._said = said
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def call(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
        """One request, with a bearer token if one is given."""
        headers = {**more.pop("headers", {})}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return self.client.request(method, path, headers=headers, **more)

    def look(self, token: str | None = None, **more: Any) -> httpx.Response:
        """A call that everybody may make who is somebody."""
        return self.call("GET", "/v1/memories/namespaces", token, **more)

    def put(
        self, namespace: list[str], key: str, value: object, token: str | None = None, **more: Any
    ) -> httpx.Response:
        body = {"namespace": namespace, "key": key, "value": value}
        return self.call("PUT", "/v1/memories", token, json=body, **more)

    def get(self, namespace: list[str], key: str, token: str | None = None, **more: Any) -> httpx.Response:
        return self.call("GET", "/v1/memories", token, params={"ns": namespace, "key": key}, **more)

    @property
    def running(self) -> bool:
        return self.process.running

    @property
    def log(self) -> str:
        """Everything it has written so far, to either stream."""
        return self._said.read_text(encoding="utf-8")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its log; every line of it is JSON."""
        return [json.loads(line) for line in self.log.splitlines()]

    def gauge(self, name: str) -> float:
        """One figure of `/metrics`, which any worker tells for all; 0 for what is not there yet."""
        told = self.call("GET", "/metrics", headers={"connection": "close"}).text
        return sum(float(line.split()[1]) for line in told.splitlines() if line.startswith(f"{name} "))

    def requests(self, request_id: str) -> list[dict[str, Any]]:
        """The log's lines about one request, once there is one."""
        return until(lambda: [line for line in self.lines if line.get("request_id") == request_id])

    def wait_until_ready(self, workers: int = 1) -> None:
        """Until it serves, and so many workers have told that they do."""
        until(self._ready)
        until(lambda: self.log.count("Application startup complete") >= workers or not self.log)

    def _ready(self) -> bool:
        assert self.running, f"it ended before it was ready: {self.log}"
        with suppress(httpx.TransportError):
            return self.client.get("/readyz").status_code == 200
        return False

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.signal(number)

    def wait(self) -> int:
        """Waits for its end; the exit code."""
        code = self.process.wait(PATIENCE)
        assert code is not None, "it does not end"
        return code

    def children(self) -> list[int]:
        """The pids of its worker processes, as the kernel lists them; Python's resource tracker is none."""
        found = []
        for each in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                state, parent = (each / "stat").read_text().rpartition(")")[2].split()[:2]
                tracker = b"resource_tracker" in (each / "cmdline").read_bytes()
                if int(parent) == self.process.pid and state != "Z" and not tracker:
                    found.append(int(each.name))
        return sorted(found)


@contextmanager
def serving(
    folder: Path,
    *flags: object,
    env: Mapping[str, str] | None = None,
    port: int | None = None,
    files: int | None = None,
    skew: int | None = None,
) -> Iterator[Service]:
    """A service for the length of a `with`; it may end before, and may open that many files at most.

    With a `skew` its clock is that many seconds ahead.

    No stack may be in its log, except of requests that a second signal cut off.
    """
    port, at, said = port or free_port(), folder / "memory.db", folder / f"said-{time.monotonic_ns()}"
    said.touch()
    words = [*map(str, ["serve", "--port", port, "--at", at, *flags])]
    workers = int(words[words.index("--workers") + 1]) if "--workers" in words else 1
    module, words = (None, words) if skew is None else ("tests.support.clock_skew", [str(skew), *words])
    process = Process(
        words, module=module, folder=folder, says=said, env=environment(**(env or {})), files=files
    )
    service = Service(process, port, at, said)
    try:
        service.wait_until_ready(workers)
        yield service
    finally:
        service.client.close()
        process.end(patience=10)
    stacks = [line for line in service.log.splitlines() if '"trace"' in line or "Traceback" in line]
    faults = [line for line in stacks if "CancelledError" not in line]
    assert not faults, faults[0][-1500:]
