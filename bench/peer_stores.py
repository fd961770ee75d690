"""The stores that `peers.py` compares: each a real package on a file, with the same memories and vectors.

All commit with `synchronous=FULL`, where they let one choose. Vectors come from a table by a hash of the
text, so that the stores are measured and not a model.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sample import VALUE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OF_A_USER = 100
FIELD, CHOICES = "shelf", 10
"""A field of the value that nothing is indexed by, and how many values it has: ten memories of a user fit."""
DIMENSIONS = 384
SYLLABLES = ("ka", "lo", "mi", "ren", "tas", "vo", "shi", "bel", "dor", "un", "per", "gra")


@cache
def _vectors() -> list[array[float]]:
    chance = random.Random(1)
    return [array("f", _unit([chance.gauss() for _ in range(DIMENSIONS)])) for _ in range(512)]


def _unit(numbers: list[float]) -> list[float]:
    length = sum(each * each for each in numbers) ** 0.5
    return [each / length for each in numbers]


def vector(text: str) -> array[float]:
    """One of 512 directions; not numpy's, which not every store would load."""
    return _vectors()[zlib.crc32(text.encode()) % 512]


def user(n: int) -> str:
    """Whose memory a number is; a negative one is a further memory of the same user's."""
    return f"user{abs(n) // OF_A_USER}"


@cache
def text(n: int) -> str:
    """Ten words of two thousand, which are the same for a number in every store."""
    chance = random.Random(n)
    return " ".join("".join(chance.choices(SYLLABLES, k=3)) for _ in range(10))


def value(n: int) -> dict[str, object]:
    return {**VALUE, "text": text(n), "note": VALUE["text"], FIELD: n % CHOICES}


def question(n: int) -> str:
    """Three words that a memory of this number's user has."""
    return " ".join(text(n).split()[2:5])


class Peer:
    """What is asked of every store; None is what a store cannot do."""

    def put(self, n: int) -> object:
        raise NotImplementedError

    def get(self, n: int) -> object:
        raise NotImplementedError

    def listed(self, n: int) -> Sequence[object]:
        """The memories of a user that have a value in a field."""
        raise NotImplementedError

    threads = True
    """Whether several may put at once."""
    search: Callable[[int], object] | None = None
    """The ten best of a user's memories for a question."""
    search_everything: Callable[[int], object] | None = None

    def delete(self, n: int) -> object:
        raise NotImplementedError

    def load(self, numbers: Sequence[int]) -> object:
        """Many at once."""
        raise NotImplementedError

    def settle(self) -> None:
        """Returns when everything that was put can be searched."""

    def close(self) -> None:
        """Ends it."""


class Raw(Peer):
    """A table of a program's own, by the bare driver: no vectors, nothing checked, sealed or versioned."""

    def __init__(self, folder: Path) -> None:
        import apsw  # noqa: PLC0415  each store is alone in its process

        self._db = apsw.Connection(os.fspath(folder / "raw.db"))
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        self._db.execute("CREATE TABLE items (user, key, value, words, PRIMARY KEY (user, key))")
        self._turn = threading.Lock()

    def put(self, n: int) -> None:
        self.load([n])

    def load(self, numbers: Sequence[int]) -> None:
        with self._turn, self._db:
            for n in numbers:
                row = user(n), str(n), msgspec.json.encode(value(n)).decode(), text(n)
                self._db.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", row)

    def get(self, n: int) -> object:
        asked = "SELECT value FROM items WHERE user = ? AND key = ?", (user(n), str(n))
        ((found,),) = self._db.execute(*asked)
        return msgspec.json.decode(found)

    def listed(self, n: int) -> Sequence[object]:
        asked = f"SELECT value FROM items WHERE user = ? AND value ->> '{FIELD}' = ? ORDER BY key LIMIT 10"
        return [msgspec.json.decode(found) for (found,) in self._db.execute(asked, (user(n), n % CHOICES))]

    def delete(self, n: int) -> None:
        self._db.execute("DELETE FROM items WHERE user = ? AND key = ?", (user(n), str(n)))


class LangGraph(Peer):
    """LangGraph's SqliteStore, over an SQLite that loads extensions."""

    def __init__(self, folder: Path) -> None:
        import pysqlite3  # noqa: PLC0415
        from langgraph.store.base import PutOp  # noqa: PLC0415
        from langgraph.store.sqlite import SqliteStore  # noqa: PLC0415

        connection = pysqlite3.connect(folder / "langgraph.db", check_same_thread=False, isolation_level=None)
        embed = lambda texts: [vector(each).tolist() for each in texts]  # noqa: E731
        index: Any = {"dims": DIMENSIONS, "embed": embed, "fields": ["text"]}
        self._store = SqliteStore(connection, index=index)
        self._store.setup()
        connection.execute("PRAGMA synchronous=FULL")
        self._operation = PutOp

    @staticmethod
    def _room(n: int) -> tuple[str, ...]:
        return user(n), "memories"

    def put(self, n: int) -> None:
        self._store.put(self._room(n), str(n), value(n))

    def load(self, numbers: Sequence[int]) -> object:
        return self._store.batch([self._operation(self._room(n), str(n), value(n)) for n in numbers])

    def get(self, n: int) -> object:
        return self._store.get(self._room(n), str(n))

    def listed(self, n: int) -> Sequence[object]:
        return self._store.search(self._room(n), filter={FIELD: n % CHOICES}, limit=10)

    def search(self, n: int) -> object:
        return self._store.search(self._room(n), query=question(n), limit=10)

    def search_everything(self, n: int) -> object:
        return self._store.search((), query=question(n), limit=10)

    def delete(self, n: int) -> None:
        self._store.delete(self._room(n), str(n))


class Mem0(Peer):
    """mem0 with qdrant's local files; no model is asked (`infer=False`), and nobody is told."""

    threads = False  # qdrant's local files refuse some: "cannot start a transaction within a transaction"

    def __init__(self, folder: Path) -> None:
        from unittest.mock import patch  # noqa: PLC0415  15 MB, which are not the others'

        logging.disable(logging.WARNING)  # what it could do with further packages
        os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder / "mem0")}
        from mem0 import Memory  # type: ignore[import-untyped]  # noqa: PLC0415  it reads these variables when it is loaded
        from mem0.configs.embeddings.base import BaseEmbedderConfig  # type: ignore[import-untyped]  # noqa: PLC0415
        from mem0.embeddings.base import EmbeddingBase  # type: ignore[import-untyped]  # noqa: PLC0415
        from mem0.utils.factory import EmbedderFactory, LlmFactory  # type: ignore[import-untyped]  # noqa: PLC0415

        class Embedder(EmbeddingBase):  # type: ignore[misc]
            def embed(self, text: str, memory_action: object = None) -> list[float]:
                return vector(text).tolist()

        embedder = Embedder(BaseEmbedderConfig(embedding_dims=DIMENSIONS))
        vectors = {"path": str(folder / "vectors"), "embedding_model_dims": DIMENSIONS, "on_disk": True}
        config = {
            "vector_store": {"provider": "qdrant", "config": vectors},
            "history_db_path": str(folder / "history.db"),
        }
        with (
            patch.object(EmbedderFactory, "create", lambda *_, **__: embedder),
            patch.object(LlmFactory, "create", lambda *_, **__: None),
        ):
            self._memory = Memory.from_config(config)
        self._ids: dict[int, str] = {}

    def put(self, n: int) -> None:
        metadata = {FIELD: n % CHOICES, "note": VALUE["text"]}
        added = self._memory.add(text(n), user_id=user(n), metadata=metadata, infer=False)
        self._ids[n] = added["results"][0]["id"]

    def load(self, numbers: Sequence[int]) -> None:
        messages = [{"role": "user", "content": text(n)} for n in numbers]
        self._memory.add(messages, user_id=user(numbers[0]), metadata={"note": VALUE["text"]}, infer=False)

    def get(self, n: int) -> object:
        return self._memory.get(self._ids[n])

    def listed(self, n: int) -> Sequence[object]:
        found = self._memory.get_all(filters={"user_id": user(n), FIELD: n % CHOICES}, top_k=10)
        return found["results"]  # type: ignore[no-any-return]

    def search(self, n: int) -> object:
        return self._memory.search(question(n), filters={"user_id": user(n)}, top_k=10)

    def delete(self, n: int) -> None:
        self._memory.delete(self._ids[n])


class Ours(Peer):
    """Alcove on a file, as the hundred users who own their memories; everything is searched by an admin."""

    def __init__(self, folder: Path) -> None:
        from alcove import Alcove, Put  # noqa: PLC0415

        self._store = Alcove(folder / "alcove.db", embedder=_Embedder())
        self._as = cache(self._store.as_user)
        self._operation = Put

    @staticmethod
    def _room(n: int) -> tuple[str, ...]:
        return "user", user(n), "memories"

    def put(self, n: int) -> object:
        return self._as(user(n)).put(self._room(n), str(n), value(n), index={"text": text(n)})

    def load(self, numbers: Sequence[int]) -> object:
        room = self._room(numbers[0])
        puts = [self._operation(room, str(n), value(n), index={"text": text(n)}) for n in numbers]
        return self._as(user(numbers[0])).batch(puts)

    def get(self, n: int) -> object:
        return self._as(user(n)).get(self._room(n), str(n))

    def listed(self, n: int) -> Sequence[object]:
        return self._as(user(n)).search(self._room(n), filter={FIELD: n % CHOICES}, limit=10)

    def search(self, n: int) -> object:
        return self._as(user(n)).search(self._room(n), query=question(n), limit=10)

    def search_everything(self, n: int) -> object:
        return self._store.search((), query=question(n), limit=10)

    def delete(self, n: int) -> None:
        self._as(user(n)).delete(self._room(n), str(n))

    def settle(self) -> None:
        while self._store.admin.index().waiting:
            time.sleep(0.02)

    def close(self) -> None:
        self._store.close()


class _Embedder:
    name = "by-a-hash"
    dimensions = DIMENSIONS

    def windows(self, text: str) -> list[str]:
        return [text]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np  # noqa: PLC0415  the first search or text brings it, as it does with a model

        return np.array([vector(each) for each in texts], dtype=np.float32)


PEERS: dict[str, Callable[[Path], Peer]] = {
    "raw SQLite": Raw,
    "SqliteStore": LangGraph,
    "mem0": Mem0,
    "Alcove": Ours,
}
