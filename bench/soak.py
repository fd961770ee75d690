"""Minutes of mixed load with hostile users among it: is memory flat, and are the others still served?

    python bench/soak.py                       ten minutes
    python bench/soak.py --minutes 1 --quick   the same in small, to see that it runs

One service with tokens, agents and the real embedder. Victims read, write and search their own rooms and a
pool, a few requests a second each, first alone (a fifth of the time) and then beside attackers, each of whom
does the dearest thing that one request can ask for, again and again, as users like any other. Victims and
attackers are processes of their own; all of it shares the machine's cores, so the ratio says what a small
server would see.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import jwt

from sample import folder

SECRET = "a secret that is long enough for HS256 to be taken seriously"
POOL = ["org", "docs"]
SPECS = """
agents:
  - name: bot
    memory: {private: {}, pools: ["org:docs"], scratch: [agent, session], facts: {}, long_term: {}}
"""
VICTIMS = 8
PAUSE = 0.15
"""Seconds between two requests of a victim, about."""
WORDS = [
    "tea", "rain", "Rome", "bicycle", "violin", "garden", "yesterday", "blue", "lantern", "harbour", "letter",
    "window", "bread", "river", "mountain", "ticket", "orange", "winter", "doctor", "market",
]  # fmt: skip


def client(url: str, user: str) -> httpx.Client:
    token = jwt.encode({"sub": user, "exp": int(time.time()) + 86_400}, SECRET, algorithm="HS256")
    return httpx.Client(
        base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60, trust_env=False
    )


def text(chance: random.Random, words: int = 12) -> str:
    return " ".join(chance.choices(WORDS, k=words))


# Victims


class Victim:
    """A user like any other, who notes how long each request took."""

    def __init__(self, url: str, name: str) -> None:
        self._chance, self._client, self._room = random.Random(name), client(url, name), ["user", name]

    def one(self) -> tuple[str, float, int]:
        kind = self._chance.choice(
            ["get", "get", "get", "put", "put", "search", "pool", "remember", "recall"]
        )
        started = time.perf_counter()
        try:
            status = getattr(self, f"_{kind}")().status_code
        except httpx.TransportError:
            status = 599
        return kind, time.perf_counter() - started, status

    def _key(self) -> str:
        return f"k{self._chance.randrange(50)}"

    def _get(self) -> httpx.Response:
        return self._client.get("/v1/memories", params={"ns": self._room, "key": self._key()})

    def _put(self) -> httpx.Response:
        said = text(self._chance)
        body = {"namespace": self._room, "key": self._key(), "value": {"text": said}, "index": {"text": said}}
        return self._client.put("/v1/memories", json=body)

    def _search(self) -> httpx.Response:
        body = {"namespace_prefix": self._room, "query": text(self._chance, 3)}
        return self._client.post("/v1/memories/search", json=body)

    def _tool(self, name: str, **arguments: object) -> httpx.Response:
        return self._client.post(f"/v1/agents/bot/tools/{name}", json={"arguments": arguments})

    def _pool(self) -> httpx.Response:
        return self._tool("search_pool", pool="org:docs", query=text(self._chance, 3))

    def _remember(self) -> httpx.Response:
        return self._tool("remember", key=self._key(), content=text(self._chance))

    def _recall(self) -> httpx.Response:
        return self._tool("recall", key=self._key())


def victims(url: str, seconds: float, told: Any) -> None:
    """Every victim in a thread of its own, until the time is over."""
    until = time.monotonic() + seconds
    found: list[tuple[str, float, int]] = []

    def live(name: str) -> None:
        victim, chance = Victim(url, name), random.Random(name)
        while time.monotonic() < until:
            found.append(victim.one())
            time.sleep(chance.uniform(0.5, 1.5) * PAUSE)

    threads = [threading.Thread(target=live, args=(f"victim{n}",)) for n in range(VICTIMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put(found)


# Attackers: each is called again and again until the time is over


def half_heads(mallory: httpx.Client, chance: random.Random) -> None:
    """Connections whose request never becomes whole."""
    host, port = mallory.base_url.host, mallory.base_url.port or 80
    held = []
    for _ in range(200):
        with suppress(OSError):
            held.append(socket.create_connection((host, port), timeout=1))
            held[-1].sendall(b"GET /v1/memories HTTP/1.1\r\nhost: x\r\nx-slow: ")
    time.sleep(2)
    for each in held:
        each.close()


def idle_streams(mallory: httpx.Client, chance: random.Random) -> None:
    """As many event streams and imports at once as a user can open."""

    def hold(path: str) -> None:
        with suppress(httpx.HTTPError), mallory.stream("GET", path) as answer:
            for _ in answer.iter_raw():
                break
            time.sleep(2)

    threads = [threading.Thread(target=hold, args=("/v1/memories/events/stream",)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def large_texts(mallory: httpx.Client, chance: random.Random) -> None:
    fields = {f"f{n}": text(chance, 9_000) for n in range(30)}
    body = {
        "namespace": mallory_room(mallory),
        "key": f"k{chance.randrange(5)}",
        "value": {},
        "index": fields,
    }
    mallory.put("/v1/memories", json=body)


def endless_words(mallory: httpx.Client, chance: random.Random) -> None:
    body = {"namespace_prefix": mallory_room(mallory), "query": "ya" * 30_000}
    mallory.post("/v1/memories/search", json=body)


def long_names(mallory: httpx.Client, chance: random.Random) -> None:
    body = {"namespace": mallory_room(mallory), "key": "k", "value": {"x" * 2_600_000: {"a": [1] * 1000}}}
    mallory.put("/v1/memories", json=body)


def dear_filters(mallory: httpx.Client, chance: random.Random) -> None:
    conditions = {f"text.v{n}": {"$ne": chance.random()} for n in range(60)}
    mallory.post(
        "/v1/memories/search", json={"namespace_prefix": mallory_room(mallory), "filter": conditions}
    )


def batch_of_gets(mallory: httpx.Client, chance: random.Random) -> None:
    room = mallory_room(mallory)
    mallory.put("/v1/memories", json={"namespace": room, "key": "big", "value": {"t": "x" * 1_000_000}})
    gets = [{"op": "get", "namespace": room, "key": "big"}] * 1000
    mallory.post("/v1/memories/batch", json={"operations": gets})


def brackets(mallory: httpx.Client, chance: random.Random) -> None:
    arguments = {"namespace": "agent", "pattern": "[" * 100_000}
    mallory.post("/v1/agents/bot/tools/shared_memory_list", json={"arguments": arguments})


def rooms_in_the_pool(mallory: httpx.Client, chance: random.Random) -> None:
    """A room of one's own below the pool that everybody searches, and changes of expiry in it."""
    name = mallory_room(mallory)[1]
    body = {"namespace": [*POOL, "u", name], "key": f"k{chance.randrange(200)}", "value": {}}
    mallory.put("/v1/memories", json={**body, "index": {"text": text(chance)}, "ttl_seconds": 60})


def denials(mallory: httpx.Client, chance: random.Random) -> None:
    mallory.get("/v1/memories", params={"ns": ["user", "victim1"], "key": "k1"})


def newcomers(mallory: httpx.Client, chance: random.Random) -> None:
    """Users nobody has seen before, each with a key to be made."""
    name = f"newcomer{chance.random()}"
    with client(str(mallory.base_url), name) as other:
        other.put("/v1/memories", json={"namespace": ["user", name], "key": "k", "value": {}})


def the_past(mallory: httpx.Client, chance: random.Random) -> None:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 5))
    body = {"namespace_prefix": mallory_room(mallory), "query": text(chance), "as_of": when}
    mallory.post("/v1/memories/search", json=body)


ATTACKS: list[Callable[[httpx.Client, random.Random], None]] = [
    half_heads, idle_streams, large_texts, endless_words, long_names, dear_filters, batch_of_gets, brackets,
    rooms_in_the_pool, denials, newcomers, the_past,
]  # fmt: skip


def mallory_room(mallory: httpx.Client) -> list[str]:
    token = mallory.headers["authorization"].removeprefix("Bearer ")
    return ["user", jwt.decode(token, options={"verify_signature": False})["sub"]]


def attackers(url: str, seconds: float, told: Any) -> None:
    """Every attack by a user of its own in a thread of its own."""
    until = time.monotonic() + seconds
    done: dict[str, int] = defaultdict(int)

    def attack(number: int) -> None:
        chance, how = random.Random(number), ATTACKS[number]
        with client(url, f"mallory{number}") as mallory:
            with suppress(httpx.HTTPError):  # a room with something in it, or searches of it cost nothing
                body = {"namespace": mallory_room(mallory), "key": "large", "value": {"text": "x" * 900_000}}
                mallory.put("/v1/memories", json={**body, "index": {"text": text(chance, 200)}})
            while time.monotonic() < until:
                with suppress(httpx.HTTPError):
                    how(mallory, chance)
                    done[how.__name__] += 1
                time.sleep(0.02)

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(len(ATTACKS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put(dict(done))


# The run


@contextmanager
def service(at: Path) -> Iterator[tuple[str, int]]:
    """`alcove serve`, its URL and its process id."""
    (at / "agents.yaml").write_text(SPECS)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from alcove.cli import main; main()", "serve", "--port", str(port)]
    command += ["--at", str(at / "memory.db"), "--auth", "jwt", "--jwt-secret", SECRET]
    with (at / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--agents", str(at / "agents.yaml")], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(400):
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/readyz", trust_env=False).status_code == 200:
                    break
            time.sleep(0.05)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(60)


def filled(url: str, size: int) -> None:
    """A pool that everybody searches."""
    chance = random.Random(1)
    with client(url, "librarian") as librarian:
        for n in range(size):
            arguments = {"pool": "org:docs", "key": f"k{n}", "content": f"{text(chance)} {n}"}
            librarian.post("/v1/agents/bot/tools/share_to", json={"arguments": arguments}).raise_for_status()


def run(url: str, seconds: float, *parts: Callable[[str, float, Any], None]) -> list[Any]:
    """Each part in a process of its own, and what each has to tell."""
    told: list[Any] = [multiprocessing.Queue() for _ in parts]
    processes = [
        multiprocessing.Process(target=part, args=(url, seconds, queue))
        for part, queue in zip(parts, told, strict=True)
    ]
    for process in processes:
        process.start()
    found = [queue.get(timeout=seconds + 300) for queue in told]
    for process in processes:
        process.join()
    return found


class Memory(threading.Thread):
    """Notes how much memory a process has, every few seconds."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.megabytes: list[float] = []

    def run(self) -> None:
        with suppress(OSError):
            while True:
                pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
                self.megabytes.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
                time.sleep(2)


def share(values: list[float], of: float) -> float:
    return sorted(values)[min(len(values) - 1, int(of * len(values)))] * 1000


def report(alone: list[Any], beside: list[Any], megabytes: list[float], attacks: dict[str, int]) -> None:
    print(f"{'victims':10}{'requests':>10}{'failed':>8}{'p50 ms':>9}{'p99 ms':>9}"
          f"{'beside':>10}{'failed':>8}{'p50 ms':>9}{'p99 ms':>9}{'p99 ×':>8}")  # fmt: skip
    kinds = sorted({kind for kind, _, _ in alone})
    for kind in [*kinds, "all"]:
        row = f"{kind:10}"
        p99 = []
        for found in (alone, beside):
            those = [(took, status) for name, took, status in found if kind in (name, "all")]
            times = [took for took, _ in those]
            failed = sum(status >= 400 and status != 404 for _, status in those)
            p99.append(share(times, 0.99))
            row += f"{len(those):>10}{failed:>8}{share(times, 0.5):>9.1f}{p99[-1]:>9.1f}"
        print(f"{row}{p99[1] / p99[0]:>8.1f}")
    third = len(megabytes) // 3
    middle, last = statistics.median(megabytes[third : 2 * third]), statistics.median(megabytes[-third:])
    print(
        f"\nmemory: {middle:.0f} MB in the middle third, {last:.0f} in the last, {max(megabytes):.0f} at most"
    )
    print("attacks:", ", ".join(f"{name} {count}" for name, count in sorted(attacks.items())))
    print("load of the machine:", *(f"{each:.1f}" for each in os.getloadavg()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--quick", action="store_true", help="a pool of 200 instead of 5,000")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    seconds = options.minutes * 60
    with folder() as at, service(at) as (url, pid):
        filled(url, 200 if options.quick else 5000)
        run(url, 5, victims)  # models loaded, rooms filled
        (alone,) = run(url, seconds / 5, victims)
        memory = Memory(pid)
        memory.start()
        beside, attacks = run(url, seconds * 4 / 5, victims, attackers)
    report(alone, beside, memory.megabytes, attacks)
    if options.json:
        found = {"alone": alone, "beside": beside, "megabytes": memory.megabytes, "attacks": attacks}
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
