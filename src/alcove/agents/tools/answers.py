"""What a tool answers: a structured result, and the same in words for the model.

A model reads one line of each memory, which nothing that somebody wrote can end or add to. It is
`key: content (about)`. Content is JSON; keys and names are a plain word, or JSON where they are not one. So
what others wrote stays inside its quotes, and what stands outside of them is ours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from alcove.core.cursor import portion
from alcove.core.records import Author, Memory

LISTED = 1_000
"""Characters shown of each content in a list or a search."""
READ = 20_000
"""Characters shown of a content that is read by its key."""
_WORD = re.compile(r"[\w./@+-]+")
_HIDDEN = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))
"""Categories of characters that end a line, or that a reader does not see."""
_BLANK = re.compile("[\u115f\u1160\u2800\u3164\uffa0]")
"""Letters and a symbol that look like nothing, so that a name with one looks like another's."""
_JOINERS = "\u200c\u200d"
"""Hidden, but Persian, Hindi and emoji are spelled with them."""


class Answer(NamedTuple):
    """What a call gives: a structured result, and the same in words for the model."""

    result: Any
    text: str


def told(memory: Memory) -> Answer:
    """One memory with its author."""
    return Answer(shown(memory), line(memory, most=READ))


def several(found: Sequence[Memory], reader: str | None, next_offset: int | None = None) -> Answer:
    """Some memories, a line each; `reader` is the tool that shows a long content whole."""
    text = listed([line(each, reader=reader) for each in found], next_offset)
    return Answer(page(found, next_offset), text)


def some(found: Iterable[Memory], limit: int) -> tuple[list[Memory], bool]:
    """As many memories as one answer may have; whether there are more."""
    return portion(found, limit, lambda memory: len(msgspec.json.encode(memory.value)))


def page(found: Sequence[Memory], next_offset: int | None) -> dict[str, Any]:
    """Some memories, and where the list goes on if it does."""
    items = {"items": [shown(each) for each in found]}
    return items if next_offset is None else {**items, "next_offset": next_offset}


def shown(memory: Memory) -> dict[str, Any]:
    """What a tool answers of a memory: no namespace, no policy attributes."""
    return {
        **memory.value,
        "key": memory.key,
        "version": memory.revision,
        "written_at": memory.created_at,
        "written_by": {"user": memory.written_by.user, "agent": memory.written_by.agent},
        **scored(memory),
    }


def scored(memory: Memory) -> dict[str, float]:
    """How well a memory fits, if it was searched for."""
    return {} if memory.score is None else {"score": round(memory.score, 4)}


def listed(lines: Iterable[str], next_offset: int | None = None) -> str:
    """Lines of memories as a list; `next_offset` where it goes on."""
    shown = [f"- {line}" for line in lines] or ["Nothing found."]
    if next_offset is not None:
        shown.append(f"There is more: call this again with offset {next_offset}.")
    return "\n".join(shown)


def line(
    memory: Memory, *more: str, field: str = "content", most: int = LISTED, reader: str | None = None
) -> str:
    """A memory in one line: key, content, `more` about it, who wrote it and when.

    `reader` is the tool that shows all of a content that is cut.
    """
    about = [*more, *_author(memory.written_by), str(memory.created_at.date())]
    content = quoted(memory.value.get(field, memory.value), most, reader)
    return f"{name(memory.key)}: {content} ({', '.join(about)})"


def quoted(value: object, most: int = LISTED, reader: str | None = None) -> str:
    """A value as JSON; of a long one the beginning, as a JSON string, and a note that says so."""
    text = value if isinstance(value, str) else _json(value)
    if len(text) <= most:
        return _json(value)
    whole = f"; {reader} shows all" if reader else ""
    return f"{_json(text[:most])} [the first {most} of {len(text)} characters{whole}]"


def name(text: str) -> str:
    """A key or a name: as it is where it is a plain word, otherwise as JSON."""
    return text if _WORD.fullmatch(text) and not _BLANK.search(text) else _json(text)


def _author(author: Author) -> Iterator[str]:
    """Who wrote it, as far as that is known: the agent, and the user for whom it did."""
    if author.agent and author.user:
        yield f"by {name(author.agent)} for {name(author.user)}"
    elif author.user:
        yield f"by user {name(author.user)}"
    elif author.agent:
        yield f"by agent {name(author.agent)}"


def _json(value: object) -> str:
    """JSON in one line, with hidden characters as escapes."""
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() and not _BLANK.search(text) else "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char in _JOINERS or not (unicodedata.category(char) in _HIDDEN or _BLANK.match(char)):
        return char
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
