"""Who a caller is to a store, in a file and at a URL."""

from __future__ import annotations

from tests.support.command import Command


def test_a_caller_is_told_who_they_are(command: Command) -> None:
    assert command.json("whoami") == {"user": "noop", "client": None, "roles": ["admin"]}
    assert command.says("whoami") == "noop, with the roles admin\n"


def test_in_a_file_one_can_be_somebody_else(command: Command) -> None:
    if not command.remote:
        assert command.says("whoami", "--as-user", "alice") == "alice\n"
