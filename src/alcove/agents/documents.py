"""Documents into chunks that know their heading and page: what is found and cited of a knowledge source."""

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
"""Characters of the headings above a chunk, which are kept and embedded with each."""
MAX_CHUNKS = 20_000
"""Of one document: at 512 tokens, some 40 MB of text."""


class Chunk(Struct, frozen=True):
    """A stretch of a document, and where it stands."""

    text: str
    heading: str
    """The headings that it stands under, "Care > Descaling"; empty where there are none."""
    page: int | None
    """Of a PDF, from 1."""


def split_document(
    name: str, content: bytes, *, most_tokens: int = 512, overlap: int = 64, count: Callable[[str], int]
) -> list[Chunk]:
    """A document's text in stretches of about `most_tokens`, in order, or `BadDocument`.

    No chunk has text of two headings or pages. Under one, paragraphs, tables and blocks of code stay whole
    where they fit, then sentences and rows, then lines, then words. Nothing is left out but the front matter
    of Markdown and the scripts, styles and navigation of a web page.

    `name`: its end, one of `SUFFIXES`, says what the document is. `overlap`: at most so many tokens, in whole
    sentences, are repeated from the chunk before, if its heading is the same. `count`: the tokens of a text.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise BadDocument(f"is none of {', '.join(SUFFIXES)}")
    if len(content) > MAX_BYTES:
        raise BadDocument(f"is larger than {MAX_BYTES:,} bytes")
    found = (
        Chunk(text, section.heading[:MAX_PATH], section.page)
        for section in _sections(suffix, content)
        for text in filter(None, _packed(section.text, most_tokens, overlap, count))
    )
    taken = [*islice(found, MAX_CHUNKS + 1)]
    if len(taken) > MAX_CHUNKS:
        raise BadDocument(f"makes more than {MAX_CHUNKS:,} chunks")
    return taken


def _sections(suffix: str, content: bytes) -> list[Section]:
    if suffix == ".pdf":
        return read_apart(suffix, content)
    text = _decoded(content, html=suffix in PARSERS)
    if suffix in PARSERS:
        return read_apart(suffix, text.encode())
    return _markdown(text) if suffix == ".md" else [Section(text, "")]


_CHARSET = re.compile(rb"charset=[\"' ]{0,3}((?:iso-8859-|windows-125)[0-9]{1,2})\b", re.IGNORECASE)


def _decoded(content: bytes, *, html: bool) -> str:
    """The text of a file: UTF-8, UTF-16 if it begins with its mark, or what a web page says at its head."""
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif html and (said := _CHARSET.search(content, 0, 2048)):
        encoding = said[1].decode()
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


def _markdown(text: str) -> list[Section]:
    text = _FRONT_MATTER.sub("", text, count=1)
    outline = Outline()
    fence, title, blank = "", "", True
    begin = at = 0  # of the text under the last heading, and of the line
    for line in _cut(text, _NEWLINE):
        was, fence = fence, _fence(line, fence)
        heading = None if was or fence else _HEADING.match(line)
        underline = None if was or fence or not title else _UNDERLINE.match(line)
        if heading or underline:
            outline.add(text[begin : at - len(title) if underline else at])
            begin = at + len(line)
        if heading:
            outline.heading(len(heading[1]), _title(line[heading.end() :]))
        elif underline:
            outline.heading(1 if "=" in line else 2, title)
        words = "" if was or fence or heading or underline else line.strip()
        title = line if blank and words and words[0] not in "-*+>|" else ""  # if the next line underlines it
        blank = not words
        at += len(line)
    outline.add(text[begin:])
    return outline.sections()


def _title(rest: str) -> str:
    """A heading's words, without the number signs that may close it."""
    title = rest.strip()
    bare = title.rstrip("#")
    return title if bare[-1:].strip() else bare


def _fence(line: str, fence: str) -> str:
    """The fence of the code that goes on after a line; empty if none does."""
    found = _FENCE.match(line)
    if not fence:
        return found[1] if found else ""
    return "" if found and found[1].startswith(fence) and not line[found.end() :].strip() else fence


class _Piece(NamedTuple):
    text: str
    tokens: int


def _packed(text: str, most: int, overlap: int, count: Callable[[str], int]) -> Iterator[str]:
    """A section's text in stretches of at most `most` tokens, cut between blocks where that is possible."""
    held: list[_Piece] = []
    total = 0
    for block in _blocks(text):
        pieces = _pieces(block, most, count)
        size = 0
        start: list[_Piece] = []
        while size <= most and (piece := next(pieces, None)):
            start.append(piece)
            size += piece.tokens
        # Before the first piece of a block, there must be room for all of it, if it fits at all.
        needed = size if size <= most else 0
        for piece in chain(start, pieces):
            needed = needed or piece.tokens
            if held and total + needed > most:
                yield _joined(held)
                held = _end(held, min(overlap, most - needed))
                total = sum(each.tokens for each in held)
            held.append(piece)
            total += piece.tokens
            needed = 0
    yield _joined(held)


def _joined(pieces: list[_Piece]) -> str:
    return "".join(piece.text for piece in pieces).strip()


def _end(pieces: list[_Piece], most: int) -> list[_Piece]:
    """The last pieces that have at most so many tokens together."""
    first = len(pieces)
    while first and pieces[first - 1].tokens <= most:
        first -= 1
        most -= pieces[first].tokens
    return pieces[first:]


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs, and fenced code with the blank lines in it; together, they are the text."""
    fence, ended = "", False
    begin = at = 0
    for line in _cut(text, _NEWLINE):
        was, fence = fence, _fence(line, fence)
        if not was and (fence or (ended and line.strip())):
            yield text[begin:at]
            begin = at
        ended = not fence and (bool(was) or not line.strip())
        at += len(line)
    yield text[begin:]


_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]")


def _pieces(block: str, most: int, count: Callable[[str], int]) -> Iterator[_Piece]:
    """A block's sentences, or the lines of code and tables; of one that is too long, stretches."""
    rows = block.lstrip().startswith(("```", "~~~", "|"))
    for part in _cut(block, _NEWLINE if rows else _SENTENCE):
        tokens = count(part)
        if tokens <= most:
            yield _Piece(part, tokens)
        else:
            for stretch in _stretches(part, most):
                yield from _halved(stretch, most, count)


def _cut(text: str, ends: re.Pattern[str]) -> Iterator[str]:
    """The text in parts that end where the pattern does."""
    start = 0
    for end in ends.finditer(text):
        yield text[start : end.end()]
        start = end.end()
    if start < len(text):
        yield text[start:]


def _stretches(text: str, most: int) -> Iterator[str]:
    """The text in parts of at most so many characters, cut after a line or else a word where one ends."""
    start = 0
    while len(text) - start > most > 0:
        half, end = start + most // 2, start + most
        end = text.rfind("\n", half, end) + 1 or text.rfind(" ", half, end) + 1 or end
        yield text[start:end]
        start = end
    yield text[start:]


def _halved(text: str, most: int, count: Callable[[str], int]) -> Iterator[_Piece]:
    tokens = count(text)
    if tokens <= most or len(text) == 1:
        yield _Piece(text, tokens)
        return
    middle = len(text) // 2
    yield from _halved(text[:middle], most, count)
    yield from _halved(text[middle:], most, count)
