"""Documents into chunks: what belongs together stays together, and nothing is lost or hangs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove.agents import chunking
from alcove.agents.chunking import Chunk, split_document
from alcove.agents.document_reading import BadDocument, read_apart
from alcove.core.errors import MissingExtra
from tests.support.pdf import pdf


def words(text: str) -> int:
    """A tokenizer that is easy to reckon with: a token is a word."""
    return len(text.split())


def cut(name: str, content: str | bytes, *, most: int = 20, overlap: int = 0) -> list[Chunk]:
    data = content.encode() if isinstance(content, str) else content
    return split_document(name, data, most_tokens=most, overlap=overlap, count=words)


def said(found: Sequence[Chunk]) -> list[tuple[str, str]]:
    return [(chunk.heading, chunk.text) for chunk in found]


MANUAL = """---
title: not text
---
Before all headings.

# Care

Wipe it daily.

## Descaling ##

Every three months.

Underlined
==========

After that.
"""


def test_chunks_stand_under_the_path_of_their_headings() -> None:
    assert said(cut("manual.md", MANUAL)) == [
        ("", "Before all headings."),
        ("Care", "Wipe it daily."),
        ("Care > Descaling", "Every three months."),
        ("Underlined", "After that."),
    ]


def test_a_heading_with_nothing_under_it_is_a_chunk_of_its_own() -> None:
    assert said(cut("a.md", "# A\n## B\n# C\ntext")) == [("A > B", "B"), ("C", "text")]


def test_what_looks_like_a_heading_in_code_is_code() -> None:
    text = "# Run\n\n```sh\n# a comment\n\nmake\n```\n\nDone.\n"
    assert said(cut("a.md", text)) == [("Run", "```sh\n# a comment\n\nmake\n```\n\nDone.")]


def test_a_rule_at_the_start_of_a_text_is_no_front_matter() -> None:
    (chunk,) = cut("a.md", "---\n\nFirst.\n\n---\n\nSecond.\n")
    assert "First." in chunk.text


def test_small_paragraphs_stay_together_and_one_that_does_not_fit_begins_a_chunk() -> None:
    text = "one two three\n\nfour five\n\n" + "a " * 9 + "end\n\nsix"
    assert [words(chunk.text) for chunk in cut("a.txt", text, most=12)] == [5, 11]


def test_a_long_paragraph_is_cut_between_sentences() -> None:
    text = " ".join(f"This is the sentence {n}." for n in range(10))
    found = cut("a.txt", text, most=12)
    assert [chunk.text.count(".") for chunk in found] == [2] * 5
    assert all(chunk.text.endswith(".") for chunk in found)


def test_a_long_sentence_is_cut_between_words() -> None:
    found = cut("a.txt", " ".join(f"word{n}" for n in range(1_000)), most=50)
    assert {word for chunk in found for word in chunk.text.split()} == {f"word{n}" for n in range(1_000)}


@pytest.mark.parametrize("block", ["```\n{}\n```\n", "| a | b |\n|---|---|\n{}\n"])
def test_code_and_tables_are_whole_where_they_fit_and_cut_between_lines_where_not(block: str) -> None:
    line = "| x. y | z |"
    short = block.format("\n".join([line] * 3))
    first, second = cut("a.md", f"{'w ' * 18}\n\n{short}\nafter", most=30)
    assert (words(first.text), second.text) == (18, f"{short}\nafter")
    for chunk in cut("a.md", block.format("\n".join([line] * 40)), most=30):
        assert set(chunk.text.splitlines()) <= {line, "```", "| a | b |", "|---|---|"}


def test_chunks_of_one_section_overlap_by_whole_sentences() -> None:
    text = "# A\n" + " ".join(f"Sentence number {n}." for n in range(12)) + "\n# B\nAnother one."
    *under_a, under_b = cut("a.md", text, most=12, overlap=4)
    for before, after in pairwise(under_a):
        assert before.text.rsplit("Sentence", 1)[1].strip() in after.text.split("Sentence")[1].strip()
    assert under_b == Chunk("Another one.", "B", None)


PAGE = """<!doctype html><html><head><title>Coffee &amp; care</title>
<style>p {color: red}</style></head><body>
<nav><ul><li>Home</ul></nav><h1>Coffee &amp; care</h1><p>Wipe   it
<b>daily</b>.</p>
<h2>Descaling<a href="#d">¶</a></h2>Every <i>three</i> months.<ul><li><p>acid</p><li>water</ul>
<table><tr><th>part<th>age</tr><tr><td><div>pump</div></td><td>2</td></tr></table>
<pre>if x:
    y</pre><script>var no = 1</script></body></html>"""


def test_a_web_page_is_its_text_under_its_title_and_headings() -> None:
    assert said(cut("a.html", PAGE, most=50)) == [
        ("Coffee & care", "Wipe it daily."),
        (
            "Coffee & care > Descaling",
            "Every three months.\n\n- acid\n\n- water\n\n"
            "| part | age |\n| pump | 2 |\n\n```\nif x:\n    y\n```",
        ),
    ]


def test_of_a_page_with_a_main_part_only_that_is_taken() -> None:
    assert said(cut("a.htm", "<p>menu</p><main><p>text</p></main><footer>legal</footer>")) == [("", "text")]


def test_a_web_page_may_say_its_encoding() -> None:
    page = '<meta http-equiv=Content-Type content="text/html; charset=iso-8859-1"><p>Käse</p>'
    assert cut("a.html", page.encode("latin-1"))[0].text == "Käse"


ENCRYPTED = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O ({'o' * 32}) /U ({'u' * 32}) >> /ID [(a) (a)]"
BOOK = ["Cover", "Care\nWipe it daily.", "12\nDescaling\nEvery three months.\nStorage\nKeep it dry."]


def test_a_pdf_has_pages_and_the_headings_of_its_outline() -> None:
    found = cut("a.PDF", pdf(BOOK, outline=[("Care", 1), ("Descaling", 2), ("Storage", 2)]))
    assert found == [
        Chunk("Cover", "", 1),
        Chunk("Care\nWipe it daily.", "Care", 2),
        Chunk("12\nDescaling\nEvery three months.", "Descaling", 3),
        Chunk("Storage\nKeep it dry.", "Storage", 3),
    ]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.docx", b"text", "is none of .md"),
        ("a.md", b"caf\xe9", "not text in UTF-8"),
        ("a.txt", b"\xff\xfea", "not text in UTF-8"),
        ("a.html", b"<p>\xe4</p>", "not text in UTF-8"),
        ("a.pdf", b"", "is no PDF"),
        ("a.pdf", b"%PDF-1.7\nnothing", "is no PDF"),
        ("a.pdf", pdf([""]), "has no text"),
        ("a.pdf", pdf(["secret"], trailer=ENCRYPTED), "is encrypted"),
    ],
)
def test_a_document_that_cannot_be_read_says_why(name: str, content: bytes, why: str) -> None:
    with pytest.raises(BadDocument, match=why):
        cut(name, content)


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html"])
@pytest.mark.parametrize("content", [b"", b" \n\n \n", b"\xef\xbb\xbf"])
def test_a_document_without_text_has_no_chunks(name: str, content: bytes) -> None:
    assert cut(name, content) == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_may_be_in_utf_8_or_in_utf_16_with_its_mark(encoding: str) -> None:
    assert said(cut("a.md", "# Größe\r\n漢字 😀\r\n".encode(encoding))) == [("Größe", "漢字 😀")]


def test_a_document_is_bounded_in_bytes_and_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "MAX_CHUNKS", 10)
    assert len(cut("a.md", "# a\nb\n" * 10)) == 10
    with pytest.raises(BadDocument, match="more than 10 chunks"):
        cut("a.md", "# a\nb\n" * 11)
    monkeypatch.setattr(chunking, "MAX_BYTES", 10)
    with pytest.raises(BadDocument, match="larger than 10 bytes"):
        cut("a.md", "a" * 11)


LINES = [
    "\n",
    "# a\n",
    "# a\n\n",
    "```\n",
    "~~~ `\n",
    "|\n",
    "-\n",
    "=\n",
    "a\n=\n",
    "---\n",
    "a: b\n",
    "> a\n",
    "- a\n",
]
SIGNS = [
    "# ",
    "> ",
    "**a",
    "[a](",
    "- ",
    ". ",
    ".)",
    "a. ",
    "。",
    "😀",
    "\u2028",
    "\0",
    "\r",
    "\t",
    *" a#>*`[|-.<&",
]
UNITS = LINES + SIGNS


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("start", ["", "---\na: b\n", "# "])
def test_no_markdown_takes_long(unit: str, start: str) -> None:
    text = start + unit * (200_000 // len(unit))
    try:
        found = split_document("a.md", text.encode(), count=lambda each: len(each) // 4 + 1)
    except BadDocument as error:
        assert "more than 20,000" in error.message  # noqa: PT017 - either is right
    else:
        assert all(len(chunk.heading) <= 6 * 210 for chunk in found)


@pytest.mark.parametrize(
    "unit", ["<b>", "<p>", "<table>", "<h1>a", "<svg>", "<", "&", "<!--", "<template>", "<td><pre>", "<li>"]
)
def test_a_web_page_of_one_thing_again_and_again_is_read_or_refused(unit: str) -> None:
    try:
        found = read_apart(".html", unit.encode() * 20_000)
    except BadDocument:
        return
    assert isinstance(found, list)


def test_a_page_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(BadDocument, match="takes more than 1 seconds to read"):
        read_apart(".html", b"<div>" * 1_000_000, seconds=1)


def test_a_pdf_that_unpacks_to_far_more_than_it_has_is_given_up() -> None:
    bomb = pdf(["x"] * 20, content=b"BT /F 1 Tf " + b"(a) Tj " * 2_000_000 + b"ET")
    assert len(bomb) < 1_000_000
    with pytest.raises(BadDocument):
        read_apart(".pdf", bomb, seconds=1)


def test_a_reader_that_crashes_breaks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BadDocument, match="breaks its reader"):
        cut("a.html", "<p>text</p>")


def test_the_reader_does_not_see_the_secrets_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALCOVE_KEY", "secret")
    spy = tmp_path / "python"
    spy.write_text(f"#!{sys.executable}\nimport json, os\nprint(json.dumps(' '.join(os.environ)))\n")
    spy.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(spy))
    with pytest.raises(BadDocument, match="PYTHONPATH") as refused:
        cut("a.html", "<p>text</p>")
    assert "ALCOVE_KEY" not in refused.value.message


def test_without_the_extra_text_is_read_and_the_rest_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in ("selectolax.lexbor", "pypdfium2"):
        monkeypatch.setitem(sys.modules, package, None)
    assert cut("a.md", "text")
    for name in ("a.html", "a.pdf"):
        with pytest.raises(MissingExtra, match=r"\.\[knowledge\]"):
            cut(name, "text")


MARKDOWN = st.lists(
    st.sampled_from(
        ["# ", "## ", "###### ", "\n", "\n\n", "```\n", "- ", "| ", "===\n", "---\n", "> ", ". ", "! "]
    )
    | st.text("abcäß漢😀 .", max_size=12),
    max_size=60,
).map("".join)


@given(MARKDOWN, st.integers(1, 30), st.integers(0, 20))
def test_every_word_of_a_text_is_in_some_chunk_in_its_order(text: str, most: int, overlap: int) -> None:
    letters = re.compile(r"[a-zäß漢😀]")
    content = f"start\n{text}".encode()
    found = split_document(
        "a.md", content, most_tokens=most, overlap=overlap, count=lambda each: len(each) // 4 + 1
    )
    kept = "".join(chunk.heading + chunk.text for chunk in found)
    assert {*letters.findall(text)} <= {*letters.findall(kept)}
    for word in text.split():
        if len(word) < most // 2 and word.isalpha():
            assert word in kept
    plain = split_document(
        "a.txt", content, most_tokens=most, overlap=0, count=lambda each: len(each) // 4 + 1
    )
    assert "".join("".join(chunk.text for chunk in plain).split()) == "".join(content.decode().split())


@given(MARKDOWN, st.integers(1, 30), st.integers(0, 20))
def test_no_chunk_is_longer_than_asked(text: str, most: int, overlap: int) -> None:
    for chunk in split_document("a.txt", text.encode(), most_tokens=most, overlap=overlap, count=len):
        assert 0 < len(chunk.text) <= most


@given(st.binary(max_size=300), st.sampled_from([".md", ".txt"]))
def test_any_bytes_are_chunks_or_a_bad_document(content: bytes, suffix: str) -> None:
    try:
        found = split_document(f"a{suffix}", content, count=words)
    except BadDocument:
        return
    assert all(chunk.text.strip() for chunk in found)
