"""The service against a bare JSON echo of the same size on the same stack, as ratios in one run.

    python bench/rest.py            needs wrk (Debian: apt-get install wrk)

Both servers are uvicorn with uvloop and httptools, one worker, on loopback; the echo is Starlette and
msgspec with nothing behind it. Rounds alternate, and each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

CLIENTS = 64
SECRET = "a shared secret that is long enough for HS256"
READ = "/v1/memories?ns=user&ns={user}&ns=notes&key=k100"
ECHO = """
import msgspec
from starlette.responses import Response
from starlette.routing import Route, Router

ANSWER = msgspec.json.decode(%r)

async def read(request):
    return Response(msgspec.json.encode(ANSWER), media_type="application/json")

async def write(request):
    body = msgspec.json.decode(await request.body())
    return Response(msgspec.json.encode(body), media_type="application/json")

app = Router([Route("/v1/memories", read, methods=["GET"]), Route("/v1/memories", write, methods=["PUT"])])
"""


class Server:
    """A server process on a free port, stopped by its process id."""

    def __init__(self, command: list[str], folder: Path, ready: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        output = (folder / f"{port}.log").open("wb")
        self._process = subprocess.Popen([*command, "--port", str(port)], cwd=folder, stdout=output)
        self.pid = self._process.pid
        for _ in range(200):
            try:
                urllib.request.urlopen(self.url + ready, timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        self.stop()
        raise SystemExit(f"{command} did not start")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


def body(user: str, key: str) -> str:
    value = {"text": "x" * 440, "n": 1}
    return json.dumps({"namespace": ["user", user, "notes"], "key": key, "value": value})


def script(folder: Path, user: str, token: str | None, *, write: bool) -> Path:
    """What wrk sends: writes go through five thousand keys."""
    path = folder / f"{user}-{write}.lua"
    lines = [f'wrk.headers["Authorization"] = "Bearer {token}"'] if token else []
    if write:
        template = body(user, "KEY").replace("KEY", "k'..(n % 5000)..'")
        lines += [
            'wrk.method = "PUT"',
            'wrk.headers["Content-Type"] = "application/json"',
            "local n = 0",
            "request = function() n = n + 1",
            f"return wrk.format(nil, nil, nil, '{template}') end",
        ]
    path.write_text("\n".join(lines))
    return path


def load(url: str, lua: Path, seconds: int) -> dict[str, float]:
    """One round of wrk: requests a second, and the latency of the middle and of the slowest hundredth."""
    command = ["wrk", "-t1", f"-c{CLIENTS}", f"-d{seconds}s", "--latency", "-s", str(lua), url]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in told:
        raise SystemExit(f"{url} answers with errors:\n{told}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", told)
    p50, p99 = (re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", told) for share in (50, 99))
    assert rate
    assert p50
    assert p99
    scale = {"us": 0.001, "ms": 1.0, "s": 1000.0}
    return {
        "rate": float(rate[1]),
        "p50": float(p50[1]) * scale[p50[2]],
        "p99": float(p99[1]) * scale[p99[2]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path.cwd())
    options = parser.parse_args()
    if not shutil.which("wrk"):
        raise SystemExit("this needs wrk")
    folder = Path(tempfile.mkdtemp(dir=options.dir, prefix=".bench-"))
    alcove = [sys.executable, "-c", "from alcove.cli import main; main()"]
    env = {**os.environ, "ALCOVE_JWT_SECRET": SECRET}
    token = subprocess.run(
        [*alcove, "token", "--user", "alice"], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()
    (folder / "echo.py").write_text(ECHO % body("noop", "k1"))
    uvicorn = [sys.executable, "-m", "uvicorn", "echo:app", "--loop", "uvloop", "--http", "httptools"]
    servers = {
        "echo": Server([*uvicorn, "--no-access-log"], folder, "/v1/memories"),
        "noop": Server([*alcove, "serve", "--at", "noop.db"], folder, "/readyz"),
        "jwt": Server(
            [*alcove, "serve", "--at", "jwt.db", "--auth", "jwt", "--jwt-secret", SECRET], folder, "/readyz"
        ),
    }
    users = {"echo": ("noop", None), "noop": ("noop", None), "jwt": ("alice", token)}
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    try:
        for _ in range(options.rounds):
            for method in ("PUT", "GET"):
                for name, server in servers.items():
                    user, bearer = users[name]
                    lua = script(folder, user, bearer, write=method == "PUT")
                    path = "/v1/memories" if method == "PUT" else READ.format(user=user)
                    found.setdefault((name, method), []).append(load(server.url + path, lua, options.seconds))
    finally:
        for server in servers.values():
            server.stop()
        shutil.rmtree(folder)
    report(found)


def report(found: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    def median(name: str, method: str, what: str) -> float:
        return statistics.median(round_[what] for round_ in found[name, method])

    bars = {"GET": 0.5, "PUT": 0.33}
    print(f"{'':10}{'requests/s':>12}{'x echo':>9}{'bar':>7}{'p50 ms':>9}{'p99 ms':>9}{'p99/p50':>9}")
    for name, method in found:
        rate, echo = median(name, method, "rate"), median("echo", method, "rate")
        p50, p99 = median(name, method, "p50"), median(name, method, "p99")
        bar = f"{bars[method]:>7}" if name == "noop" else f"{'':7}"
        latency = f"{p50:>9.2f}{p99:>9.2f}{p99 / p50:>9.1f}"
        print(f"{name + ' ' + method:10}{rate:>12,.0f}{rate / echo:>9.2f}{bar}{latency}")


if __name__ == "__main__":
    main()
