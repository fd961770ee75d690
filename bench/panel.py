"""How soon the panel's first view is there, with 100,000 memories in the store: a real browser over loopback.

    python bench/panel.py [--memories N]

From the navigation until the view is whole, as a user and as an admin, who sees everything; the median of ten
after one that warms up. Beside it, what a page without any content takes in the same browser.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from alcove import Alcove
from alcove.server.jwt_tokens import make_token

SECRET = "only for this bench, and long enough to be taken"
USERS, AT_ONCE = 100, 1000
VIEWS = ("agents", "explore", "explore?ns=user&ns=user-7", "activity", "admin")
SPECS = "agents: [{name: helper, memory: {private: {}, long_term: {}}}]"


def filled(path: Path, memories: int) -> None:
    with Alcove(path) as store:
        for start in range(0, memories, AT_ONCE):
            user = f"user-{start // AT_ONCE % USERS}"
            puts = [
                {"op": "put", "namespace": ["user", user, f"room-{n % 10}"], "key": f"k{start + n}",
                 "value": {"text": f"number {start + n}", "type": "note"}}
                for n in range(AT_ONCE)
            ]  # fmt: skip
            store.as_user(user).batch(puts)


def until_up(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/readyz").close()
            return
        except urllib.error.URLError:
            time.sleep(0.1)
    raise TimeoutError(url)


def took(page: Page, show: Callable[[], object], rounds: int = 10) -> float:
    show()
    times = []
    for _ in range(rounds):
        page.goto("about:blank")  # so that all of it is loaded anew
        started = time.perf_counter()
        show()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def shown(page: Page, url: str, view: str) -> None:
    page.goto(f"{url}/#{view}")
    page.wait_for_selector("main:not([aria-busy]) h1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memories", type=int, default=100_000)
    memories = parser.parse_args().memories
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        at = Path(folder) / "memory.db"
        filled(at, memories)
        (specs := Path(folder) / "agents.yaml").write_text(SPECS)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = [sys.executable, "-c", "from alcove.cli import main; main()", "serve", "--port", str(port)]
        words += ["--at", str(at), "--auth", "jwt", "--jwt-secret", SECRET, "--agents", str(specs)]
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        try:
            until_up(url)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                print(
                    f"{memories:,} memories, {USERS} users, load {os.getloadavg()[0]:.1f}; ms, median of 10"
                )
                for user, roles in (("user-7", []), ("root", ["admin"])):
                    page = browser.new_page()
                    page.goto(url)
                    page.fill("input[name=token]", make_token(SECRET, user, roles, seconds=3600))
                    page.click("button.main")
                    page.wait_for_selector("#top nav a[aria-current]")
                    bare = took(page, lambda page=page: page.goto(f"{url}/healthz"))  # type: ignore[misc]
                    print(f"{user:8} {'a bare answer':28} {bare:7.1f}")
                    for view in VIEWS if roles else VIEWS[:-1]:
                        ms = took(page, lambda page=page, view=view: shown(page, url, view))  # type: ignore[misc]
                        print(f"{user:8} {view:28} {ms:7.1f}")
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
