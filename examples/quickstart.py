"""Memory in a few lines: nobody else sees what a user stores. Run it: python examples/quickstart.py"""

from __future__ import annotations

import tempfile
from pathlib import Path

from alcove import Alcove, PermissionDenied


def main(folder: Path) -> None:
    with Alcove(folder / "memory.db") as memory:
        alice, bob = memory.as_user("alice"), memory.as_user("bob")

        alice.put("user:alice:notes", "tea", {"text": "Alice drinks green tea", "cups": 2})
        alice.put("user:alice:notes", "tea", {"text": "Alice drinks mint tea now", "cups": 3})
        alice.put("user:alice:notes", "trip", {"text": "To Lisbon in May"}, ttl_seconds=3600)

        print("her memories:     ", [(m.key, m.value["text"]) for m in alice.search("user:alice")])
        print("three cups:       ", [m.key for m in alice.search("user:alice", filter={"cups": {"gte": 3}})])
        print(
            "tea in the past:  ",
            [v.value and v.value["text"] for v in alice.history("user:alice:notes", "tea")],
        )
        print("what happened:    ", [(e.kind, e.key) for e in alice.events().events])

        print("bob searches hers:", bob.search("user:alice"))
        try:
            bob.get("user:alice:notes", "tea")
        except PermissionDenied as denied:
            print("bob reads hers:   ", denied)

        receipt = memory.wipe("alice")
        print("alice, wiped:     ", receipt.removed, "key destroyed:", receipt.key_destroyed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
