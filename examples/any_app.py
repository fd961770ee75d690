"""Memory for your own program, with any model: two lines, `remember` and `context`.

Run it: python examples/any_app.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import alcove


def model(messages: list[dict[str, str]]) -> str:
    """Stands in for your model; it answers from what it finds in the prompt."""
    return "Rice with vegetables, no nuts." if "allergic" in str(messages[:-1]) else "Noted."


def main(folder: Path) -> None:
    with alcove.connect(folder / "memory.db") as store:
        for user, session, message in (
            ("alice", "monday", "I am allergic to peanuts."),
            ("alice", "friday", "What should I cook tonight?"),
            ("bob", "friday", "What should I cook tonight?"),
        ):
            memory = store.as_user(user).agent("helper", session_id=session)
            prompt = memory.context(message)
            answer = model([{"role": m.role, "content": m.content or ""} for m in prompt.messages])
            memory.remember([{"role": "user", "content": message}, {"role": "assistant", "content": answer}])
            print(f"{user}: {message}\n    {answer}  ({prompt.receipt.total_tokens} tokens)")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
