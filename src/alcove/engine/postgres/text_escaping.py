"""Escapes what PostgreSQL texts cannot hold: a NUL character, in plain or as JSON spells it."""

from __future__ import annotations

import re

_ESCAPE = "\uf8f0"
"""A private-use character; a text that has it is escaped, too."""
_ORIGINAL = {"0": "\0", "1": _ESCAPE, "2": "\\u0000"}
_ESCAPED = re.compile(f"{_ESCAPE}([012])")
_JSON_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def escape(text: str) -> str:
    """Returns the text without characters that PostgreSQL cannot hold."""
    if "\0" not in text and "\\u0000" not in text and _ESCAPE not in text:
        return text
    text = text.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")
    return _JSON_NUL.sub(rf"\1{_ESCAPE}2", text)


def unescape(text: str) -> str:
    """Returns the text that `escape` was given."""
    if _ESCAPE not in text:
        return text
    return _ESCAPED.sub(lambda match: _ORIGINAL[match[1]], text)
