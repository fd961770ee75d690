"""Splits documents into chunks that know their heading and page, so that they can be found and cited."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import PurePath
from typing import NamedTuple

from msgspec import Struct

from alcove.agents.document_reading import PARSERS, BadDocument, Outline, Section, read_apart

SUFFIXES = (".md", ".txt", ".html", ".htm", ".pdf")
MAX_BYTES = 20_000_000
"""Of one document."""
MAX_PATH = 300
"""Characters of the headings above a chunk, which are stored and embedded with it."""
MAX_CHUNKS = 20_000
"""Of one document: at 512 tokens, about 40 MB of text."""


class Chunk(Struct, frozen=True):
    """A passage of a document."""

    text: str
    heading: str
    """The headings above it, such as "Care > Descaling"; empty if there are none."""
    page: int | None
    """Of a PDF, from 1."""


def split_document(
    name: str, content: bytes, *, most_tokens: int = 512, overlap: int = 64, count: Callable[[str], int]
) -> list[Chunk]:
    """Splits a document into chunks of about `most_tokens`, in order; raises `BadDocument`.

    No chunk has text of two headings or pages. Below a heading, paragraphs, tables and blocks of code stay
    whole if they fit, then sentences and rows, then lines, then words. Nothing is left out but the front
    matter of Markdown, and the scripts, styles and navigation of a web page.

    `name`: its suffix, one of `SUFFIXES`, tells the format. `overlap`: a chunk repeats up to this number of
    tokens of the chunk before it below the same heading, in whole sentences. `count`: counts tokens.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise BadDocument(f"is none of {', '.join(SUFFIXES)}")
    if len(content) > MAX_BYTES:
        raise BadDocument(f"is larger than {MAX_BYTES:,} bytes")
    chunks = (
        Chunk(text, section.heading[:MAX_PATH], section.page)
        for section in _read_sections(suffix, content)
        for text in filter(None, _pack(section.text, most_tokens, overlap, count))
    )
    result = [*islice(chunks, MAX_CHUNKS + 1)]
    if len(result) > MAX_CHUNKS:
        raise BadDocument(f"makes more than {MAX_CHUNKS:,} chunks")
    return result


def _read_sections(suffix: str, content: bytes) -> list[Section]:
    if suffix == ".pdf":
        return read_apart(suffix, content)
    text = _decode(content, is_html=suffix in PARSERS)
    if suffix in PARSERS:
        return read_apart(suffix, text.encode())
    return _parse_markdown(text) if suffix == ".md" else [Section(text, "")]


_CHARSET = re.compile(rb"charset=[\"' ]{0,3}((?:iso-8859-|windows-125)[0-9]{1,2})\b", re.IGNORECASE)


def _decode(content: bytes, *, is_html: bool) -> str:
    """Decodes UTF-8, UTF-16 with a byte order mark, or the character set in the head of a web page."""
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif is_html and (charset := _CHARSET.search(content, 0, 2048)):
        encoding = charset[1].decode()
    try:
        text = content.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise BadDocument(f"is not text in UTF-8: {error}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?=\w[^\n]*[:=]).*?\n(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL
)
_NEWLINE = re.compile(r"\n")
_HEADING = re.compile(r" {0,3}(#{1,6})(?![^ \t\n])")
_UNDERLINE = re.compile(r" {0,3}(?:={2,}|-{2,})[ \t]*\n?\Z")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})")


def _parse_markdown(text: str) -> list[Section]:
    text = _FRONT_MATTER.sub("", text, count=1)
    outline = Outline()
    title, follows_blank = "", True
    start = 0  # of the text below the last heading
    for line in _lines(text):
        heading = None if line.is_code else _HEADING.match(line.text)
        underline = None if line.is_code or not title else _UNDERLINE.match(line.text)
        if heading or underline:
            outline.add(text[start : line.start - len(title) if underline else line.start])
            start = line.start + len(line.text)
        if heading:
            outline.heading(len(heading[1]), _heading_text(line.text[heading.end() :]))
        elif underline:
            outline.heading(1 if "=" in line.text else 2, title)
        content = "" if line.is_code or heading or underline else line.text.strip()
        may_be_title = follows_blank and content and content[0] not in "-*+>|"  # if it is underlined
        title = line.text if may_be_title else ""
        follows_blank = not content
    outline.add(text[start:])
    return outline.sections()


def _heading_text(line: str) -> str:
    """The text of a heading, without the number signs that may close it."""
    title = line.strip()
    unclosed = title.rstrip("#")
    return title if unclosed[-1:].strip() else unclosed


class _Line(NamedTuple):
    text: str
    start: int
    was_code: bool
    """Whether it began inside fenced code."""
    opens_code: bool
    """Whether it ends inside fenced code."""

    @property
    def is_code(self) -> bool:
        return self.was_code or self.opens_code


def _lines(text: str) -> Iterator[_Line]:
    fence, start = "", 0
    for line in _split_after(_NEWLINE, text):
        before, fence = fence, _fence_after(line, fence)
        yield _Line(line, start, bool(before), bool(fence))
        start += len(line)


def _fence_after(line: str, fence: str) -> str:
    """The fence that is open after a line; empty if none is."""
    match = _FENCE.match(line)
    if not fence:
        return match[1] if match else ""
    return "" if match and match[1].startswith(fence) and not line[match.end() :].strip() else fence


class _Part(NamedTuple):
    text: str
    tokens: int


def _pack(text: str, most: int, overlap: int, count: Callable[[str], int]) -> Iterator[str]:
    """Packs a section's text into passages of at most `most` tokens, split between blocks if possible."""
    passage: list[_Part] = []
    total = 0
    for block in _blocks(text):
        parts = _split_block(block, most, count)
        size = 0
        start: list[_Part] = []
        while size <= most and (part := next(parts, None)):
            start.append(part)
            size += part.tokens
        # Before the first part of a block, there must be room for the whole block, if it fits at all.
        needed = size if size <= most else 0
        for part in chain(start, parts):
            needed = needed or part.tokens
            if passage and total + needed > most:
                yield _join(passage)
                passage = _tail(passage, min(overlap, most - needed))
                total = sum(each.tokens for each in passage)
            passage.append(part)
            total += part.tokens
            needed = 0
    yield _join(passage)


def _join(parts: list[_Part]) -> str:
    return "".join(part.text for part in parts).strip()


def _tail(parts: list[_Part], most: int) -> list[_Part]:
    """The last parts with at most `most` tokens together."""
    first = len(parts)
    while first and parts[first - 1].tokens <= most:
        first -= 1
        most -= parts[first].tokens
    return parts[first:]


def _blocks(text: str) -> Iterator[str]:
    """Splits text into paragraphs, and fenced code with the blank lines in it."""
    start, is_ended = 0, False
    for line in _lines(text):
        has_text = bool(line.text.strip())
        if not line.was_code and (line.opens_code or (is_ended and has_text)):
            yield text[start : line.start]
            start = line.start
        is_ended = not line.opens_code and (line.was_code or not has_text)
    yield text[start:]


_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]")


def _split_block(block: str, most: int, count: Callable[[str], int]) -> Iterator[_Part]:
    """Splits a block into sentences, or into lines if it is code or a table; splits long ones further."""
    has_rows = block.lstrip().startswith(("```", "~~~", "|"))
    for text in _split_after(_NEWLINE if has_rows else _SENTENCE, block):
        tokens = count(text)
        if tokens <= most:
            yield _Part(text, tokens)
        else:
            for stretch in _split_at_spaces(text, most):
                yield from _halve(stretch, most, count)


def _split_after(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Splits text after each match."""
    start = 0
    for match in pattern.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    if start < len(text):
        yield text[start:]


def _split_at_spaces(text: str, most: int) -> Iterator[str]:
    """Splits text into parts of at most `most` characters, after a line or else a word if one ends there."""
    start = 0
    while len(text) - start > most > 0:
        half, end = start + most // 2, start + most
        end = text.rfind("\n", half, end) + 1 or text.rfind(" ", half, end) + 1 or end
        yield text[start:end]
        start = end
    yield text[start:]


def _halve(text: str, most: int, count: Callable[[str], int]) -> Iterator[_Part]:
    """Halves text until each part has at most `most` tokens."""
    tokens = count(text)
    if tokens <= most or len(text) == 1:
        yield _Part(text, tokens)
        return
    middle = len(text) // 2
    yield from _halve(text[:middle], most, count)
    yield from _halve(text[middle:], most, count)
