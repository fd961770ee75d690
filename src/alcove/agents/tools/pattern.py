"""Patterns for keys: `*` is any text, `?` any character, `[a-z]` and `[!a-z]` one of some or none of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate

from alcove.core.errors import InvalidRequest

MOST = 200
_PARTS = re.compile(r"\*+|\[!?+\]?+[^\]]*\]|.", re.DOTALL)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a text fits a pattern, in time that follows the text's length whatever the pattern is.

    All ways to fit are followed at once: a bit for each part of the pattern says whether the text so far may
    end before it. The meaning is that of `fnmatch`, whose expressions go back over the text again and again.
    """
    if len(pattern) > MOST:
        raise InvalidRequest("pattern", f"at most {MOST} characters")
    parts = _PARTS.findall(pattern)
    stars = sum(1 << place for place, part in enumerate(parts) if part[0] == "*")
    classes = {part: re.compile(translate(part)) for part in parts if len(part) > 1 and part[0] == "["}
    taking: dict[str, int] = {}

    def takes(character: str) -> int:
        """The parts that this character fits."""
        fitting = {part for part, found in classes.items() if found.match(character)} | {character, "?"}
        return sum(1 << place for place, part in enumerate(parts) if part in fitting)

    def fits(text: str) -> bool:
        reached = 1 | (1 & stars) << 1
        for character in text:
            if (taken := taking.get(character)) is None:
                taken = taking[character] = takes(character)
            reached = (reached & taken & ~stars) << 1 | reached & stars
            reached |= (reached & stars) << 1
        return bool(reached >> len(parts))

    return fits
