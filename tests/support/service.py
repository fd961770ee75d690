"""`alcove serve` as a process of its own, with a folder, a port and an environment that only one test has."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.patience import PATIENCE, until

COMMAND = [sys.executable, "-c", "from alcove.cli import main; main(prog_name='alcove')"]
ERROR_FIELDS = {"code", "error", "request_id"}
MORE_ERROR_FIELDS = {"details", "reason"}


def environment(**more: str) -> dict[str, str]:
    """This process's environment without anything that configures Alcove, and with what is given."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ALCOVE_", "MEMORY_"))}
    return {**own, **more}


def alcove(*arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def refused(folder: Path, *flags: object, env: Mapping[str, str] | None = None) -> str:
    """What `alcove serve` says when it does not start; one that starts is stopped, and fails the test."""
    command = ["serve", "--port", free_port(), "--at", folder / "memory.db", *flags]
    process = _popen(command, folder / "refused", env or {})
    try:
        process.wait(PATIENCE / 4)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it started with {flags}") from None
    finally:
        _end(process)
    said = (folder / "refused").read_text()
    assert process.returncode == 2, (process.returncode, said)
    assert "Traceback" not in said, said
    return said


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

    def __init__(self, process: subprocess.Popen[bytes], port: int, at: Path, said: Path) -> None:
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
        return self.process.poll() is None

    @property
    def log(self) -> str:
        """Everything it has written so far, to either stream."""
        return self._said.read_text(encoding="utf-8")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its log; every line of it is JSON."""
        return [json.loads(line) for line in self.log.splitlines()]

    def requests(self, request_id: str) -> list[dict[str, Any]]:
        """The log's lines about one request, once there is one."""
        return until(lambda: [line for line in self.lines if line.get("request_id") == request_id])

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.running, f"it ended before it was ready: {self.log}"
            assert time.monotonic() < deadline, f"it never became ready: {self.log}"
            with suppress(httpx.TransportError):
                if self.client.get("/readyz").status_code == 200:
                    return
            time.sleep(0.01)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits for its end; the exit code."""
        return self.process.wait(PATIENCE)

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
) -> Iterator[Service]:
    """A service for the length of a `with`; it may end before, and may open that many files at most.

    No stack may be in its log, except of requests that a second signal cut off.
    """
    port, at, said = port or free_port(), folder / "memory.db", folder / f"said-{time.monotonic_ns()}"
    process = _popen(["serve", "--port", port, "--at", at, *flags], said, env or {})
    if files:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
    service = Service(process, port, at, said)
    try:
        service.wait_until_ready()
        yield service
    finally:
        service.client.close()
        _end(process)
    stacks = [line for line in service.log.splitlines() if '"trace"' in line or "Traceback" in line]
    faults = [line for line in stacks if "CancelledError" not in line]
    assert not faults, faults[0][-1500:]


def _popen(arguments: list[Any], said: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with said.open("wb") as output:
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=said.parent,
            env=environment(**env),
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL for whatever of its own session is left."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)
