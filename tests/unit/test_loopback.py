"""Who counts as a program on this machine."""

from __future__ import annotations

import pytest

from alcove.server.authentication import is_local_program


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("fe80::1", False), ("unix", False), ("", False),
    ],
)  # fmt: skip
def test_the_address_of_a_caller_says_whether_it_is_on_this_machine(address: str, here: bool) -> None:
    assert is_local_program(address, {b"host": b"127.0.0.1:8080"}) is here
