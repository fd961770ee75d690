"""Splitting long texts, so that their end is found as well as their beginning."""

from __future__ import annotations

import re

_WORD = re.compile(r"\S+\s*")


def character_windows(text: str, *, size: int, overlap: int) -> list[str]:
    """Stretches of at most `size` characters that overlap and end between words where they can.

    For models whose tokeniser is not at hand. A text that fits is its own single window.
    """
    if len(text) <= size:
        return [text]
    pieces = [
        (start, min(start + size, word.end()))
        for word in _WORD.finditer(text)
        for start in range(word.start(), word.end(), size)
    ]
    return [text[start:end] for start, end in spans(pieces, size=size, overlap=overlap)]


def spans(pieces: list[tuple[int, int]], *, size: int, overlap: int) -> list[tuple[int, int]]:
    """Runs of consecutive pieces, each at most `size` long, every run taking up the end of the last."""
    found: list[tuple[int, int]] = []
    first = last = 0
    while last < len(pieces):
        begin = pieces[first][0]
        while last < len(pieces) and (pieces[last][1] - begin <= size or last == first):
            last += 1
        end = pieces[last - 1][1]
        found.append((begin, end))
        if last < len(pieces):
            # Back over the overlap, but always past the last start, or the loop would never end.
            back = last
            while back - 1 > first and end - pieces[back - 1][0] <= overlap:
                back -= 1
            first = back
    return found
