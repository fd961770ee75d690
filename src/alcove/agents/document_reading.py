"""Reads HTML and PDF into sections, in a process of its own: it may hang, run out of memory or crash.

The parsers are native code that blocks all other threads, for as long as a hostile file makes them (300 kB of
nested tags take half a minute). `python -m alcove.agents.document_reading .pdf 20` reads a document from its
standard input, for 20 seconds at most, and answers in JSON: the sections, or a text that says what is wrong.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from alcove.core.decoding import decoder
from alcove.core.errors import AlcoveError, requires_extra

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument
    from selectolax.lexbor import LexborNode

PARSERS = {".html": "selectolax.lexbor", ".htm": "selectolax.lexbor", ".pdf": "pypdfium2"}
"""The parser of each suffix."""

READ_SECONDS = 20
"""Processor time for one document; PDF takes a second for hundreds of pages, HTML for some MB."""
READ_BYTES = 2**30
"""Memory for one document."""
MAX_PAGES = 5_000
MAX_CHARACTERS = 20_000_000
MAX_SECTIONS = 20_000
MAX_HEADING = 200
"""Characters of one heading; a longer one is text as well."""
MAX_TITLES, MAX_DEPTH = 10_000, 6
"""Entries and levels that are read of a PDF's outline."""


class BadDocument(AlcoveError):
    """A document that cannot be read; the message says why."""

    code = "invalid_request"


class Section(NamedTuple):
    """Text below a heading: paragraphs with blank lines between them, fenced code, rows of `| cells |`."""

    text: str
    heading: str
    page: int | None = None


_SectionsOrError: Any = list[Section] | str


class Outline:
    """Collects text below headings into sections."""

    def __init__(self) -> None:
        self._path: list[tuple[int, str]] = []
        self._text: list[str] = []
        self._sections: list[Section] = []

    def heading(self, level: int, title: str) -> None:
        """Starts the text below a heading, which ends all headings of its level and below."""
        title = " ".join(title.split())
        if not title:
            return
        if self._path and title == self._path[-1][1] and not "".join(self._text).strip():
            self._text = []
            return  # the first heading repeats the page's title
        self._close(level)
        short = title if len(title) <= MAX_HEADING else f"{title[:MAX_HEADING]}…"
        self._path = [*(each for each in self._path if each[0] < level), (level, short)]
        self._text = [] if short == title else [title, "\n\n"]

    def add(self, text: str) -> None:
        self._text.append(text)

    def sections(self) -> list[Section]:
        self._close(0)
        return self._sections

    def _close(self, level: int) -> None:
        text = re.sub(r"\n\s*\n", "\n\n", "".join(self._text)).strip("\n")
        if not text.strip() and self._path and level <= self._path[-1][0]:
            text = self._path[-1][1]  # nothing stands below the heading, so the heading is the text
        if text.strip():
            self._sections.append(Section(text, " > ".join(title for _, title in self._path)))
        if len(self._sections) > MAX_SECTIONS:
            raise BadDocument(f"has more than {MAX_SECTIONS:,} headings")
        self._text = []


def read_apart(suffix: str, content: bytes, *, seconds: int = READ_SECONDS) -> list[Section]:
    """Reads a document in another process; raises `BadDocument`.

    `suffix`: one of `PARSERS`. `content`: HTML in UTF-8, or PDF. `seconds`: of processor time.
    """
    with requires_extra(f"reading {suffix} files", extra="knowledge"):
        import_module(PARSERS[suffix])
    command = [sys.executable, "-P", "-m", "alcove.agents.document_reading", suffix, str(seconds)]
    # No other variables: a service's secrets are in its environment, and a parser must not find them.
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    timed_out = BadDocument(f"takes more than {seconds} seconds to read")
    try:
        process = subprocess.run(  # noqa: S603 - this module, by its name
            command,
            input=content,
            capture_output=True,
            env=environment,
            timeout=3 * seconds + 10,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise timed_out from None
    if process.returncode == -signal.SIGXCPU:
        raise timed_out
    try:
        answer: list[Section] | str = decoder(_SectionsOrError).decode(process.stdout)
    except msgspec.DecodeError:
        raise BadDocument("breaks its reader, or needs too much memory") from None
    if isinstance(answer, str):
        raise BadDocument(answer)
    return answer


def _html(content: bytes) -> list[Section]:
    from selectolax.lexbor import LexborHTMLParser  # noqa: PLC0415

    tree = LexborHTMLParser(content.decode())
    outline, title = Outline(), tree.css_first("title")
    if title is not None:
        outline.heading(0, title.text())
    body = tree.css_first("main") or tree.body
    if body is not None:
        _add_elements(outline, body)
    return outline.sections()


_SKIPPED = {"script", "style", "nav", "template", "noscript", "svg", "head", "iframe", "object"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = (
    "p", "div", "section", "article", "main", "aside", "header", "footer", "figure", "ul", "ol", "dl",
    "table", "blockquote", "form", "fieldset", "details", "address",
)  # fmt: skip
_AROUND = {
    **dict.fromkeys(_BLOCKS, ("\n\n", "\n\n")),
    **dict.fromkeys(("option", "figcaption", "summary", "caption", "legend"), ("\n", "\n")),
    "pre": ("\n\n```\n", "\n```\n\n"),
    "li": ("\n- ", ""),
    "dt": ("\n", ""),
    "dd": ("\n", ""),
    "tr": ("\n", "|"),
    "td": ("| ", " "),
    "th": ("| ", " "),
    "br": ("\n", ""),
    "hr": ("\n\n", ""),
}
"""The text before and after that of an element."""
_CELLS = {"td", "th"}


def _add_elements(outline: Outline, root: LexborNode) -> None:
    preformatted = cells = 0
    last = "\n"
    for node, opens in _steps(root):
        tag, text = node.tag or "", ""
        preformatted += (tag == "pre") * (1 if opens else -1)
        cells += (tag in _CELLS) * (1 if opens else -1)
        if tag in _HEADINGS and opens:
            outline.heading(_HEADINGS[tag], node.text().rstrip("\n ¶"))
            last = "\n"
        elif node.is_text_node and opens:
            text = node.text_content or ""
        elif tag in _AROUND and not (opens and last == "\n- "):  # an item's first block stays in its line
            # The text of a cell stays in the line of its row.
            text = " " if cells and tag not in _CELLS else _AROUND[tag][0 if opens else 1]
        if text == " " or (node.is_text_node and (cells or not preformatted)):
            text = re.sub(r"\s+", " ", text)
            text = text.lstrip() if last[-1] in "\n " else text
        if text:
            outline.add(text)
            last = text


def _steps(root: LexborNode) -> Iterator[tuple[LexborNode, bool]]:
    """Each node as it opens, and again with False as it closes; nesting may be of any depth."""
    node: LexborNode | None = root
    while node is not None:
        yield node, True
        inner = None if node.tag in _SKIPPED or node.tag in _HEADINGS else node.child
        while inner is None and node is not None:
            yield node, False
            if node.mem_id == root.mem_id:
                return
            inner, node = node.next, node.parent
        node = inner


def _pdf(content: bytes) -> list[Section]:
    from pypdfium2 import PdfDocument, PdfiumError  # noqa: PLC0415

    try:
        document = PdfDocument(content)
    except PdfiumError as error:
        encrypted = "password" in str(error).lower()
        raise BadDocument("is encrypted" if encrypted else "is no PDF, or a broken one") from None
    if len(document) > MAX_PAGES:
        raise BadDocument(f"has more than {MAX_PAGES:,} pages")
    titles = _titles(document)
    path: list[tuple[int, str]] = []
    sections: list[Section] = []
    characters = 0
    for number in range(len(document)):
        try:
            text = document[number].get_textpage().get_text_bounded()
        except PdfiumError:
            continue  # a broken page among others
        characters += len(text)
        if characters > MAX_CHARACTERS:
            raise BadDocument(f"has more than {MAX_CHARACTERS:,} characters")
        # pdfium marks a word that is hyphenated at the end of a line.
        text = text.replace("\ufffe\r\n", "").replace("\ufffe", "").replace("\r\n", "\n")
        for level, title in [*titles.get(number, []), (0, "")]:
            # A section begins with the line of its title; a page number above it is no section.
            here = text.rfind("\n", 0, text.find(title) + 1) + 1 if title else len(text)
            if any(map(str.isalnum if not title else str.isalpha, text[:here])):
                heading = " > ".join(title for _, title in path)
                sections.append(Section(text[:here].strip("\n"), heading, number + 1))
                text = text[here:]
            path = [*(each for each in path if each[0] < level), (level, title)] if title else path
    if not sections:
        raise BadDocument("has no text: scanned pages are not read")
    return sections


def _titles(document: PdfDocument) -> dict[int, list[tuple[int, str]]]:
    """Levels and titles of a PDF's outline, by the page where each begins."""
    titles: dict[int, list[tuple[int, str]]] = {}
    for entry in islice(document.get_toc(max_depth=MAX_DEPTH), MAX_TITLES):
        target = entry.get_dest()
        title = " ".join(entry.get_title().split())[:MAX_HEADING]
        if target is not None and title and (page := target.get_index()) is not None:
            titles.setdefault(page, []).append((entry.level, title))
    return titles


def _main(suffix: str, seconds: str) -> None:
    """Reads a document from standard input, and writes its sections or what is wrong with it."""
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, int(seconds), int(seconds) + 1),
        (resource.RLIMIT_AS, READ_BYTES, READ_BYTES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        with suppress(ValueError, OSError):  # the operator's own limit is lower, or the system has none
            resource.setrlimit(limit, (soft, hard))
    content = sys.stdin.buffer.read()
    answer: list[Section] | str
    try:
        answer = _pdf(content) if suffix == ".pdf" else _html(content)
    except BadDocument as error:
        answer = error.message
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    _main(*sys.argv[1:])
