"""Texts as words: in lower case, without stop words, by their stems; and what a text shows of itself."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from functools import lru_cache

LONGEST_WORD = 64
"""Letters; what is longer is no word of any language, and is taken as it is."""
MOST_GROWTH = 4
"""One character can stand for eighteen; a text of nothing else is read as far as any other."""
MAX_QUERY_TERMS = 64
"""A question of 100 kB is answered by its most frequent words."""
_WORD = re.compile(r"\w+")
_UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]+)")
"""Japanese, Chinese and Thai, which write words without spaces between them."""
_SPEAKER = re.compile(r"\s*([^\W\d_][\w .'-]{0,38}?)\s*:\s")
_ASKS = re.compile(r"[?？]\W*$")

_STOP_WORDS = (
    "a an the is are was were be been being am do does did done doing has have had having of to in on at for "
    "with and or by from as about into what when where who whom whose which how why s t it its that this "
    "these those there i you he she they we me him her them us my your his their our would could should will "
    "can may might must shall not no if then than so too very just also re ve ll d m don didn doesn isn wasn "
    "some any all"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())


def words(text: str) -> list[str]:
    """The words in lower case; scripts written without spaces give pairs of characters."""
    found: list[str] = []
    normal = unicodedata.normalize("NFKC", text).casefold()
    for word in _WORD.findall(normal[: MOST_GROWTH * len(text)]):
        if word.isascii():
            found.append(word)
            continue
        for n, run in enumerate(_UNSPACED.split(word)):
            if n % 2 and len(run) > 2:  # every second part is what the pattern matched
                found.extend(run[m : m + 2] for m in range(len(run) - 1))
            elif run:
                found.append(run)
    return found


def term_counts(text: str) -> Counter[str]:
    """How often each term is in a text."""
    return Counter(map(term, (word for word in words(text) if word not in STOP_WORDS)))


def question_words(text: str) -> list[str]:
    """A question's words, each once; if it has nothing but stop words, those."""
    counts = Counter(words(text))
    telling = [word for word, _ in counts.most_common() if word not in STOP_WORDS]
    chosen = set((telling or list(counts))[:MAX_QUERY_TERMS])
    return [word for word in counts if word in chosen]


_of_thread = threading.local()
"""A stemmer for each thread: one must not be used by two at once."""


def term(word: str) -> str:
    """What a word is counted as, in memories and questions alike: its stem."""
    return word if len(word) > LONGEST_WORD else stem(word)


@lru_cache(maxsize=50_000)  # of short words, so a few megabytes; equal terms are then one object
def stem(word: str) -> str:
    """The stem of an English word; what is not plain English letters stays as it is."""
    if len(word) <= 2 or not (word.isascii() and word.isalpha()):
        return word
    if not hasattr(_of_thread, "stem"):
        import Stemmer  # noqa: PLC0415  for who searches or summarises

        _of_thread.stem = Stemmer.Stemmer("porter", 0).stemWord
    return _of_thread.stem(word)  # type: ignore[no-any-return]


def speaker(text: str) -> str | None:
    """Who says it, where a text begins as transcripts do: `Name: …`."""
    match = _SPEAKER.match(text[:48])
    return match[1].casefold() if match else None


def asks(text: str) -> bool:
    """Whether a text ends as a question."""
    return _ASKS.search(text[-16:]) is not None
