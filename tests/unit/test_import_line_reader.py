"""Lines of an import: whole or known to be too long, and few at a time however they come."""

from __future__ import annotations

import io
import random
from itertools import pairwise

import pytest

from alcove.core.settings import Settings
from alcove.upkeep.transfer import Lines, longest_line, pieces_of


def cut(text: bytes, most: int, at: list[int]) -> list[list[bytes]]:
    """The bundles of a text that comes in pieces which end at some places."""
    lines = Lines(most)
    pieces = [text[start:end] for start, end in pairwise([0, *at, len(text)])]
    return [*(batch for piece in pieces for batch in lines.batches(piece)), lines.last_batch()]


@pytest.mark.parametrize("seed", range(50))
def test_lines_are_the_same_wherever_the_text_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    lines = [b"x" * chance.choice([0, 1, 5, 9, 10, 11, 12, 40]) for _ in range(chance.randrange(300))]
    text = b"\n".join(lines) + b"\n" * chance.randrange(2)
    places = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(40)))
    found = [line for batch in cut(text, 10, places) for line in batch]
    wanted = [line[:11] for line in text.split(b"\n")]
    assert found == (wanted if wanted[-1] else wanted[:-1])


def test_a_bundle_is_bounded_in_lines_and_in_bytes() -> None:
    for line, count in ((b"", 1000), (b"x" * 100_000, 100), (b"x" * 3_000_000, 5)):
        bundles = cut((line + b"\n") * count, 2**30, [*range(0, (len(line) + 1) * count, 65536)])
        assert sum(map(len, bundles)) == count
        assert max(map(len, bundles)) <= 200
        assert max(sum(map(len, batch)) for batch in bundles) < 2**20 + len(line)


def test_of_a_line_that_is_too_long_next_to_nothing_is_kept() -> None:
    lines = Lines(1000)
    for _ in range(1000):
        assert [*lines.batches(b"x" * 65536)] == []
    assert len(lines.last_batch()[0]) == 1001


def test_a_file_is_read_in_pieces_and_lines_get_their_ends() -> None:
    file = io.BytesIO(b"x" * 200_000)
    assert [len(piece) for piece in pieces_of(file)] == [65536, 65536, 65536, 200_000 - 3 * 65536]
    assert [*pieces_of([b"a", b"b\n"])] == [b"a\n", b"b\n"]


def test_the_longest_line_follows_the_settings() -> None:
    assert longest_line(Settings()) < 32 * 2**20
    assert longest_line(Settings(max_value_bytes=10**8)) > 6 * 10**8
