"""Whether a session store makes contexts faster: `python bench/session_store.py [--rounds 15]`.

The beginning of a context (21 messages, how many there are, the running and the rolling summary) is read
from one store by two handles in turn, one with a Valkey on this machine and one without; then messages are
added by each. Once over a file and once over PostgreSQL, both with what the tests start.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.postgres import new_database
from tests.support.valkey import own_server

from alcove import Alcove, Settings
from alcove.agents.transcripts import ROLLING, STATE, conversation_principal, summary_room, turns_room
from alcove.core.principal import Principal
from alcove.store.session_cache import SessionLocation
from rounds import compare, timed

MEMORY = {
    "conversation": {"window_size": 20, "summarize": True},
    "session_memory": {"idle_seconds": 3600},
}
WHO = conversation_principal(Principal("alice"), "guide")
PLACES = SessionLocation(
    turns_room("guide", "alice", "s"),
    (summary_room("guide", "alice", "s"), STATE),
    (summary_room("guide", "alice"), ROLLING),
)


def read(store: Alcove) -> None:
    reads = store.memories.reader.for_session(WHO, PLACES)
    said = [*islice(reads.scan(WHO, PLACES.messages, exact=True), 21)]
    assert len(said) == 21
    assert reads.count(WHO, PLACES.messages, exact=True) > 21
    assert all(reads.get(WHO, *place) for place in PLACES[1:])


def say(store: Alcove, session: str = "s") -> None:
    words = "The kettle in the kitchen is the one that my aunt brought from Lisbon. " * 3
    turns = [{"role": role, "content": words} for role in ("user", "assistant")]
    specs = {"agents": [{"name": "guide", "memory": MEMORY}]}
    store.as_user("alice").agents(specs).add_turns("guide", session, turns)


def _timed(work: Callable[[Alcove], None], store: Alcove, count: int) -> float:
    return timed(lambda _: work(store), count)


def measure(at: str, valkey: str, rounds: int) -> None:
    with ExitStack() as opened:
        plain, kept = (
            opened.enter_context(
                Alcove(at, settings=Settings(sweep_interval=0, session_store=address), embedder=None)
            )
            for address in (None, valkey)
        )
        say(kept, "before")
        guide = kept.as_user("alice").agents({"agents": [{"name": "guide", "memory": MEMORY}]})
        guide.end_session("guide", "before")
        guide.context("guide", "next", "Hello?")  # so that there is a rolling summary
        for _ in range(20):
            say(kept)
        works: list[tuple[str, Callable[[Alcove], None], int]] = [("read", read, 50), ("add", say, 10)]
        for name, work, count in works:
            base, ours = (partial(_timed, work, store) for store in (plain, kept))
            found = compare(base, ours, base_count=count, count=count, rounds=rounds)
            told = f"{1e3 / found.base:.2f} ms without, {1e3 / found.ours:.2f} ms with"
            read(kept)
            print(f"  {name}: {told}, {found.ratio:.2f} × as fast ({found.low:.2f} to {found.high:.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder, own_server() as server:
        os.environ["ALCOVE_STATE"] = folder
        for name, at in (("a file", f"{folder}/memory.db"), ("PostgreSQL", new_database())):
            print(name)
            server.client.flushall()
            measure(at, server.address, rounds)
            held = [server.client.memory_usage(each, samples=0) for each in server.client.keys("*")]
            print(f"  {sum(held):,} bytes of Valkey's memory for the one user")
