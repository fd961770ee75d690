"""What each mechanism of ranking is worth: the figures of `recall.py` with it and without it.

    python bench/ablation.py DATA.json            the table, turns in order and shuffled
    python bench/ablation.py DATA.json --memory   what a subtree of 10,000 turns takes in memory
    python bench/ablation.py --speed              ranking and changes at 100 to 100,000 items, no data needed

DATA.json is LoCoMo's layout, and is never part of this repository. The ranking module is called directly,
so that a run takes a minute; `make eval` measures the whole service. Embeddings are kept between runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from alcove.core.records import SearchMode
from alcove.search import query, words
from alcove.search.corpus import Corpus, Item
from alcove.search.embedders import Matrix
from alcove.search.embedders.minilm import MiniLM
from alcove.search.late_interaction import token_matrix
from alcove.search.query import Lexicon, ParsedQuery
from alcove.search.ranking import RankingWeights, rank

SHOWN = ("frac@10", "frac@20", "any@20", "ndcg@10", "session frac@10")
NEUTRAL = RankingWeights(**{each.name: 0 for each in fields(RankingWeights) if each.name != "similarity"})
Figures = dict[str, float]


@dataclass(frozen=True)
class Turn:
    id: str
    fields: dict[str, str]


@dataclass(frozen=True)
class Asked:
    text: str
    evidence: list[str]


@dataclass(frozen=True)
class Conversation:
    name: str
    turns: list[Turn]
    questions: list[Asked]


def conversations(path: Path) -> Iterator[Conversation]:
    """As recall.py stores them: one memory a turn, its text and its session's date as index fields."""
    for sample in json.loads(path.read_text()):
        talk: dict[str, Any] = sample["conversation"]
        sessions = sorted((k for k in talk if re.fullmatch(r"session_\d+", k)), key=lambda k: int(k[8:]))
        turns = []
        for session in sessions:
            for turn in talk[session]:
                caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
                text = f"{turn['speaker']}: {turn['text']}{caption}"
                turns.append(
                    Turn(turn["dia_id"], {"text": text, "date": talk.get(f"{session}_date_time", "")})
                )
        known = {turn.id for turn in turns}
        asked = []
        for qa in sample["qa"]:
            found = [e for text in qa.get("evidence") or [] for e in re.findall(r"D\d+:\d+", text)]
            if evidence := [e for e in dict.fromkeys(found) if e in known]:
                asked.append(Asked(qa["question"], evidence))
        yield Conversation(sample["sample_id"], turns, asked)


class Kept:
    """Embeddings that are computed once and kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self.model, self._folder = MiniLM(), folder
        folder.mkdir(parents=True, exist_ok=True)

    def embed(self, texts: Sequence[str]) -> tuple[Matrix, list[bytes]]:
        """The vector of each text, and what is kept of its tokens."""
        digest = hashlib.sha256("\0".join([self.model.name, *texts]).encode()).hexdigest()
        file = self._folder / f"{digest[:32]}.npz"
        if not file.exists():
            rows, tokens = self.model.embed_with_tokens(texts)
            every = np.frombuffer(b"".join(tokens), dtype=np.int8)
            np.savez(file, rows=rows, tokens=every, ends=np.cumsum([*map(len, tokens)]))
        kept = np.load(file)
        split = np.split(kept["tokens"], kept["ends"][:-1])
        return kept["rows"], [part.tobytes() for part in split]


@dataclass(frozen=True)
class Loaded:
    """A conversation ready to be asked."""

    name: str
    corpus: Corpus
    questions: list[tuple[ParsedQuery, list[str]]]


def load(talk: Conversation, kept: Kept, lexicon: Lexicon | None, *, shuffle: bool = False) -> Loaded:
    texts = [turn.fields["text"] for turn in talk.turns]
    dates = sorted({turn.fields["date"] for turn in talk.turns})
    by_date = dict(zip(dates, kept.embed(dates)[0], strict=True))
    pairs = list(zip(talk.turns, *kept.embed(texts), strict=True))
    if shuffle:
        random.Random(talk.name).shuffle(pairs)
    items = [
        Item(
            id=turn.id,
            namespace=talk.name,
            sequence=n,
            fields=turn.fields,
            vectors={"text": vector[None], "date": by_date[turn.fields["date"]][None]},
            tokens={"text": tokens},
        )
        for n, (turn, vector, tokens) in enumerate(pairs)
    ]
    embedded = kept.embed([asked.text for asked in talk.questions])
    questions = [
        (ParsedQuery.of(asked.text, vector, tokens=token_matrix(tokens), lexicon=lexicon), asked.evidence)
        for asked, vector, tokens in zip(talk.questions, *embedded, strict=True)
    ]
    return Loaded(talk.name, Corpus.of(items), questions)


def score(ranked: Sequence[str], evidence: Sequence[str]) -> Figures:
    """recall.py's figures of one question."""
    out = {}
    for k in (5, 10, 20):
        hits = len(set(ranked[:k]) & set(evidence))
        out[f"any@{k}"], out[f"frac@{k}"] = float(hits > 0), hits / len(evidence)
    gains = sum(1 / math.log2(n + 2) for n, each in enumerate(ranked[:10]) if each in evidence)
    out["ndcg@10"] = gains / sum(1 / math.log2(n + 2) for n in range(min(10, len(evidence))))
    return out


def measured(
    talks: Sequence[Loaded], weights: RankingWeights, mode: SearchMode = "hybrid"
) -> dict[str, list[Figures]]:
    """The figures of every question, by conversation."""
    rows: dict[str, list[Figures]] = {}
    for talk in talks:
        for question, evidence in talk.questions:
            hits = [str(hit.id) for hit in rank(talk.corpus, question, limit=40, mode=mode, weights=weights)]
            sessions = score(_sessions(hits), _sessions(evidence))
            row = score(hits, evidence) | {f"session {name}": value for name, value in sessions.items()}
            rows.setdefault(talk.name, []).append(row)
    return rows


def _sessions(ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(each.split(":")[0] for each in ids))


def show(label: str, rows: dict[str, list[Figures]]) -> None:
    every = [row for some in rows.values() for row in some]
    values = " | ".join(f"{100 * statistics.fmean(row[name] for row in every):.1f}" for name in SHOWN)
    print(f"| {label} | {values} |", flush=True)


def table(path: Path, cache: Path) -> None:
    kept = Kept(cache)
    lexicon = kept.model.lexicon()
    talks = list(conversations(path))

    def loaded(*, shuffle: bool = False) -> list[Loaded]:
        return [load(talk, kept, lexicon, shuffle=shuffle) for talk in talks]

    ordered, shuffled = loaded(), loaded(shuffle=True)
    every = RankingWeights()
    mechanisms = [each.name for each in fields(RankingWeights)]
    print(f"| | {' | '.join(SHOWN)} |\n|---{'|---' * len(SHOWN)}|")
    show("**everything**", measured(ordered, every))
    show("keyword mode, nothing else", measured(ordered, NEUTRAL, "keyword"))
    show("semantic mode", measured(ordered, NEUTRAL, "semantic"))
    show("words + meaning, nothing else", measured(ordered, NEUTRAL))
    for name in mechanisms:
        show(f"− {name}", measured(ordered, every.without(name)))
    with ExitStack() as without:
        without.enter_context(patch.dict(words.TERM_NUMBERS, clear=True))
        for module in (words, query):
            without.enter_context(patch.object(module, "stems", lambda found, *_: [*found]))
        show("− stemming", measured(loaded(), every))
    with patch.dict(words.TERM_NUMBERS, clear=True), patch.dict(words.STOP_WORDS, {"english": frozenset()}):
        show("− stop words", measured(loaded(), every))
    for name in mechanisms:
        if name != "similarity":
            alone = replace(NEUTRAL, **{name: getattr(every, name)})
            show(f"words + meaning + {name}", measured(ordered, alone))
    show("shuffled, everything", measured(shuffled, every))
    show("shuffled, − neighbours", measured(shuffled, every.without("neighbours")))
    for name, rows in measured(ordered, every).items():
        show(f"{name} alone", {name: rows})


def memory(path: Path, cache: Path) -> None:
    """Bytes a memory of 10,000 turns, over again where there are fewer, each with one field."""
    kept, turns = Kept(cache), []
    for talk in conversations(path):
        texts = [turn.fields["text"] for turn in talk.turns]
        turns += [*zip(texts, *kept.embed(texts), strict=True)]

    def items(*, lean: bool) -> Iterator[Item]:
        for n in range(10_000):
            text, vector, tokens = turns[n % len(turns)]
            kept_tokens = {} if lean else {"text": tokens}
            yield Item(
                n, "a", n, {"text": text}, {"text": vector[None]}, written_at=float(n), tokens=kept_tokens
            )

    print("| embedder | bytes each | tokens | vectors | words |\n|---|---|---|---|---|")
    for name, lean in (("minilm", False), ("minilm-lean", True)):
        Corpus.of(items(lean=lean))  # words that are remembered for all subtrees are not this one's
        tracemalloc.start()
        corpus = Corpus.of(items(lean=lean))
        rank(corpus, ParsedQuery.of("who?", turns[0][1]), limit=10)  # neighbours and middle, once for all
        total = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        every = (total, corpus.tokens.bytes, corpus.vectors.bytes, corpus.postings.bytes)
        print(f"| {name} | {' | '.join(f'{each / len(corpus):,.0f}' for each in every)} |", flush=True)


def speed() -> None:
    """Medians with made-up memories; the question's embedding and its related words are not in them."""
    chance = np.random.default_rng(1)
    lexicon = MiniLM().lexicon()
    vocabulary = [word for word, _ in lexicon.related(["house"])[0]] if lexicon else []
    vocabulary += [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe") for b in range(800)]
    rarity = 1 / np.arange(1, len(vocabulary) + 1)

    def item(n: int) -> Item:
        words = chance.choice(vocabulary, 25, p=rarity / rarity.sum())
        vector = chance.normal(size=(1, 384)).astype(np.float32)
        text = f"{'Ann' if n % 2 else 'Bob'}: {' '.join(words)}"
        fields = {"text": text, "date": f"{n // 20 % 28 + 1} May {2000 + n // 2000}"}
        return Item(
            id=n, namespace="a", sequence=n, fields=fields, vectors={"text": vector / np.linalg.norm(vector)}
        )

    def median(call: Callable[[], object], count: int) -> str:
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            taken.append(1e3 * (time.perf_counter() - start))
        return f"{statistics.median(taken):.2f}"

    print("| items | hybrid, ms | semantic | keyword | add one | build, s |\n|---|---|---|---|---|---|")
    for size in (100, 1_000, 10_000, 100_000):
        items = [item(n) for n in range(size)]
        start = time.perf_counter()
        corpus = Corpus.of(items)
        built = time.perf_counter() - start
        questions = []
        for n in range(20):
            text = "Which house did Ann " + " ".join(chance.choice(vocabulary[:400], 5))
            questions.append(ParsedQuery.of(text, np.asarray(items[n].vectors["text"])[0], lexicon=lexicon))

        def ask(mode: SearchMode, corpus: Corpus = corpus, questions: list[ParsedQuery] = questions) -> None:
            rank(corpus, questions[int(chance.integers(20))], limit=10, mode=mode)

        ask("hybrid")
        modes: tuple[SearchMode, ...] = ("hybrid", "semantic", "keyword")
        figures = [median(lambda mode=mode: ask(mode), 100) for mode in modes]  # type: ignore[misc]
        figures.append(median(lambda n=size, corpus=corpus: corpus.changed(add=[item(n)]), 20))  # type: ignore[misc]
        print(f"| {size:,} | " + " | ".join(figures) + f" | {built:.2f} |", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("data", type=Path, nargs="?")
    arguments.add_argument("--speed", action="store_true")
    arguments.add_argument("--memory", action="store_true")
    arguments.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "alcove-ablation", help="for embeddings"
    )
    given = arguments.parse_args()
    if given.speed:
        speed()
    elif given.data and given.memory:
        memory(given.data, given.cache)
    elif given.data:
        table(given.data, given.cache)
    else:
        arguments.error("a data file, or --speed")


if __name__ == "__main__":
    main()
