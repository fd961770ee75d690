"""`alcove serve` as a process of its own, on a free port over a throw-away folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

PATIENCE = 30.0
"""Seconds after which a test gives up on a server; nothing depends on how long it really takes."""
_COMMAND = [sys.executable, "-c", "from alcove.cli import main; main()", "serve"]


class Server:
    """A running server: where it listens, what it logs, and how it is stopped."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_file = folder / "server.log"
        command = [*_COMMAND, "--port", str(self.port), "--at", str(folder / "memory.db"), *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ALCOVE_")}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything it has written so far, to either stream."""
        return self.log_file.read_text(encoding="utf-8")

    def requests(self, request_id: str) -> list[dict[str, Any]]:
        """The log's lines about one request, once there is one."""
        deadline = time.monotonic() + PATIENCE
        while True:
            lines = [json.loads(line) for line in self.log.splitlines()]
            if found := [line for line in lines if line.get("request_id") == request_id]:
                return found
            assert time.monotonic() < deadline, f"nothing was logged about {request_id}"
            time.sleep(0.01)

    def stop(self) -> int:
        """Asks it to stop, insists after a while, and gives its exit code."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(timeout=PATIENCE)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.running, f"it ended before it was ready: {self.log}"
            try:
                if httpx.get(f"{self.url}/readyz", timeout=PATIENCE).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, f"it never became ready: {self.log}"
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
