"""The answers of tools: a structured result for programs, and text for the model.

The text has one line for each memory, `key: content (notes)`, which nothing in the memory can end or add to:
content is JSON, and a key or name that is no plain word is JSON, too. So what users and agents wrote stays
inside its quotes, and only Alcove writes outside of quotes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from alcove.agents.rooms import BUDGET_SPENT
from alcove.core.records import Author, Memory, SearchResults

MAX_LISTED_CHARACTERS = 1_000
"""Characters of each content in a list or a search."""
MAX_READ_CHARACTERS = 20_000
"""Characters of a content that is read by its key."""
DOUBTFUL_RELEVANCE = 0.1
"""Below this relevance, the text for the model says that an entry may not fit."""
MAY_NOT_FIT = "may not fit"
NO_RESULTS = "Nothing found."
TOO_LARGE = "Only the best {} are shown: more would be too large for one answer."
_WORD = re.compile(r"[\w./@+-]+")
_INVISIBLE_CATEGORIES = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))
"""Categories of characters that end a line, or that a reader does not see."""
_BLANK = re.compile("[\u115f\u1160\u2800\u3164\uffa0]")
"""Letters and a symbol that look like nothing, so that a name with one looks like another name."""
_JOINERS = "\u200c\u200d"
"""Invisible, but Persian, Hindi and emoji need them."""


class Answer(NamedTuple):
    """The answer of a call: a structured result, and the same as text for the model."""

    result: Any
    text: str


def read_answer(memory: Memory, *notes: str, field: str = "content") -> Answer:
    """One memory in full."""
    text = format_memory(memory, *notes, field=field, max_characters=MAX_READ_CHARACTERS)
    return Answer(memory_result(memory), text)


def list_answer(
    memories: Sequence[Memory], read_tool: str | None = None, next_offset: int | None = None
) -> Answer:
    """Some memories; `read_tool` is the tool that shows all of a long content."""
    lines = [format_memory(memory, read_tool=read_tool) for memory in memories]
    return Answer(list_result(memories, next_offset), format_list(lines, next_offset))


def search_answer(
    hits: SearchResults,
    to_result: Callable[[Memory], dict[str, Any]] | None = None,
    to_line: Callable[[Memory], str] | None = None,
    *,
    read_tool: str | None = None,
) -> Answer:
    """The hits of a search; `read_tool` is the tool that shows all of a long content."""
    to_result = to_result or memory_result
    to_line = to_line or (lambda hit: format_memory(hit, *relevance_notes(hit), read_tool=read_tool))
    omission = [] if hits.next_offset is None else [TOO_LARGE.format(len(hits))]
    result: dict[str, Any] = {"items": [to_result(hit) for hit in hits]}
    if degraded := [*filter(None, (hits.degraded, *omission))]:
        result["degraded"] = "; ".join(degraded)
    if hits.degraded == BUDGET_SPENT:
        return Answer(result, BUDGET_SPENT)
    return Answer(result, "\n".join([format_list(map(to_line, hits)), *omission]))


def list_result(memories: Sequence[Memory], next_offset: int | None) -> dict[str, Any]:
    """The result of a list, with the offset of its next page if there is one."""
    items = [memory_result(memory) for memory in memories]
    return {"items": items} if next_offset is None else {"items": items, "next_offset": next_offset}


def memory_result(memory: Memory) -> dict[str, Any]:
    """One memory in a result, without its namespace and policy attributes."""
    return {
        **memory.value,
        "key": memory.key,
        "version": memory.revision,
        "written_at": memory.created_at,
        "written_by": {"user": memory.written_by.user, "agent": memory.written_by.agent},
        **scores(memory),
    }


def scores(memory: Memory) -> dict[str, float]:
    """The score and relevance of a hit; empty for a memory that was not searched for."""
    both = {"score": memory.score, "relevance": memory.relevance}
    return {name: round(number, 4) for name, number in both.items() if number is not None}


def relevance_notes(memory: Memory) -> tuple[str, ...]:
    """The note on a hit that is hardly relevant, or that a search could not rank."""
    is_doubtful = memory.relevance is None or memory.relevance < DOUBTFUL_RELEVANCE
    return (MAY_NOT_FIT,) if is_doubtful else ()


def format_list(lines: Iterable[str], next_offset: int | None = None) -> str:
    """Lines as a list, with the offset of its next page if there is one."""
    items = [f"- {line}" for line in lines] or [NO_RESULTS]
    if next_offset is not None:
        items.append(f"There is more: call this again with offset {next_offset}.")
    return "\n".join(items)


def format_memory(
    memory: Memory,
    *notes: str,
    field: str = "content",
    max_characters: int = MAX_LISTED_CHARACTERS,
    read_tool: str | None = None,
) -> str:
    """A memory in one line: key, content, notes, author and date."""
    notes = (*notes, *_author_notes(memory.written_by), str(memory.created_at.date()))
    content = format_value(memory.value.get(field, memory.value), max_characters, read_tool)
    return f"{format_name(memory.key)}: {content} ({', '.join(notes)})"


def format_value(
    value: object, max_characters: int = MAX_LISTED_CHARACTERS, read_tool: str | None = None
) -> str:
    """A value as JSON; of a long one the beginning as a JSON string, and a note that it is cut."""
    text = value if isinstance(value, str) else _to_json(value)
    if len(text) <= max_characters:
        return _to_json(value)
    hint = f"; {read_tool} shows all" if read_tool else ""
    return f"{_to_json(text[:max_characters])} [the first {max_characters} of {len(text)} characters{hint}]"


def format_name(name: str) -> str:
    """A key or a name: unchanged if it is a plain word, otherwise as JSON."""
    return name if _WORD.fullmatch(name) and not _BLANK.search(name) else _to_json(name)


def escape_tags(text: str) -> str:
    """Escapes `<`, so that nothing in a line can end the quotes around it."""
    return text.replace("<", "\\u003c")


def _author_notes(author: Author) -> Iterator[str]:
    if author.agent and author.user:
        yield f"by {format_name(author.agent)} for {format_name(author.user)}"
    elif author.user:
        yield f"by user {format_name(author.user)}"
    elif author.agent:
        yield f"by agent {format_name(author.agent)}"


def _to_json(value: object) -> str:
    """JSON in one line, with invisible characters as escapes."""
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() and not _BLANK.search(text) else "".join(map(_escape_invisible, text))


def _escape_invisible(char: str) -> str:
    if char in _JOINERS or not (unicodedata.category(char) in _INVISIBLE_CATEGORIES or _BLANK.match(char)):
        return char
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
