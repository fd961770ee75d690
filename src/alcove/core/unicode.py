"""Unicode normalisation in linear time, whatever a text consists of."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

MAX_MARKS = 30
"""Combining marks in a row that are sorted together: UAX #15 calls such a text stream-safe."""
MAX_PIECE = 2048
"""Characters after which a piece ends at the next boundary: normalising holds the GIL."""

_MARK = r"[^\w\s\x00-\x7f]"
"""Every combining mark, and symbols beyond ASCII, between which splitting changes nothing."""
_LONG_RUN = re.compile(f"(?<!{_MARK}){_MARK}{{{MAX_MARKS + 1},}}")
_HALFWIDTH_MARKS = str.maketrans("\uff9e\uff9f", "\u3099\u309a")
"""The two letters that compatibility forms turn into combining marks."""
_BOUNDARY = re.compile("[\x00-\u02ff\u3400-\u9fff\uac00-\ud7a3\ufb50-\ufdff]")
"""Characters that never combine with the one before them."""


def normalize(form: Form, text: str) -> str:
    """Normalises a text like `unicodedata.normalize`, unless it has very long runs of combining marks.

    That function sorts combining marks in quadratic time. Here, at most 30 in a row are sorted together; no
    word of any language has as many.
    """
    return text if text.isascii() else "".join(normalized_pieces(form, text))


def normalized_pieces(form: Form, text: str) -> Iterator[str]:
    """Yields the pieces of a normalised text, for callers that need only the beginning of a long one."""
    start = 0
    for end in _ends(text):
        while end - start > MAX_PIECE and (boundary := _BOUNDARY.search(text, start + MAX_PIECE, end)):
            yield unicodedata.normalize(form, text[start : boundary.start()])
            start = boundary.start()
        yield unicodedata.normalize(form, text[start:end])
        start = end


def _ends(text: str) -> Iterator[int]:
    """Yields where pieces must end: inside each long run of marks, and at the end of the text."""
    for run in _LONG_RUN.finditer(text.translate(_HALFWIDTH_MARKS)):
        yield from range(run.start() + MAX_MARKS, run.end(), MAX_MARKS)
    yield len(text)
