"""Records used for the first time by several threads at once, in a process that has just begun."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.waiting import LONG

PROGRAM = """
import sys, threading
from alcove.core.decoding import convert
from alcove.core.records import Message
sys.setswitchinterval(1e-6)
gate = threading.Barrier(8)
def use():
    gate.wait()
    for _ in range(50):
        convert({"role": "user", "content": "hi"}, Message)
threads = [threading.Thread(target=use) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
"""
"""With msgspec's own `convert`, it crashes in one run of six."""


@pytest.mark.parametrize("run", range(100 if LONG else 8))
def test_threads_that_are_the_first_to_use_a_record_do_not_crash(run: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
