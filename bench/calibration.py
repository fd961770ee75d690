"""Whether a score of 0.7 means relevant: questions with and without an answer, over documents written for it.

    python bench/calibration.py                   the embedded model
    python bench/calibration.py --onnx FOLDER     another one that is read at its first token, as bge is:
                                                  `tokenizer.json`, and one `*.onnx` there or below

Each section of `bench/knowledge/*/*.md` is one chunk, its heading first. `main` has manuals and handbooks;
half of its questions were used to fit the three numbers of `search/ranking/calibration.py`, and some were
written after that. `second` has a list of questions, an insurer's conditions and a house's rules, and nothing
was fitted to it.

Answerable questions are *plain* (in the terms of the section), *reworded* (a word or two exchanged) or
*paraphrased* (terse, or telling a situation, in words of their own); one counts if a relevant section is
among the first five at or above the threshold. Of the unanswerable, *near misses* ask what the same documents
could say and do not, *elsewhere* is a question for another manual and *off topic* one for an encyclopaedia;
one counts if any section is at or above the threshold.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

from alcove.search.corpus import Item, documents
from alcove.search.embedders import Embedder, Matrix, character_windows, embed_query, unit
from alcove.search.embedders.minilm import MiniLM
from alcove.search.postings import Postings
from alcove.search.query import Lexicon, ParsedQuery
from alcove.search.relevance import Calibration, coverage

KNOWLEDGE = Path(__file__).with_name("knowledge")
LIMIT, THRESHOLD = 5, 0.7
CURVE = (0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
STATED, UNANSWERABLE = ("plain", "reworded"), ("near miss", "elsewhere", "off topic")
COLUMNS: dict[str, tuple[str, ...]] = {
    "plain": ("plain",),
    "reworded": ("reworded",),
    "both": STATED,
    "paraphr.": ("paraphrased",),
    "ANSWERABLE": (*STATED, "paraphrased"),
    "near miss": ("near miss",),
    "elsewhere": ("elsewhere",),
    "off topic": ("off topic",),
    "UNANSWERABLE": UNANSWERABLE,
}

Best = tuple[str, float]
"""The kind of a question, and the highest threshold at which it counts."""


class Onnx:
    """A model that is read at its first token, as bge and arctic are."""

    dimensions = 384
    windows = staticmethod(character_windows)

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(512)
        self._session = InferenceSession(
            str(next(folder.rglob("*.onnx"))), providers=["CPUExecutionProvider"]
        )

    def embed(self, texts: Sequence[str]) -> Matrix:
        return unit(np.stack([self._first_state(text) for text in texts]).astype(np.float32))

    def _first_state(self, text: str) -> Matrix:
        ids = np.array([self._tokenizer.encode(text).ids], dtype=np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        wanted = {each.name for each in self._session.get_inputs()}
        states: Matrix = self._session.run(None, {name: feed[name] for name in feed if name in wanted})[0]
        first: Matrix = states[0, 0]
        return first


@dataclass(frozen=True)
class Chunk:
    set: str
    document: str
    heading: str
    item: Item


@dataclass(frozen=True)
class Asked:
    """A question against every chunk of a corpus."""

    kind: str
    split: str
    relevant: NDArray[np.bool_]
    cosines: Matrix
    covered: NDArray[np.float64]

    def best(self, scores: NDArray[np.float64]) -> float:
        """The highest threshold at which it counts."""
        first = np.lexsort((-self.cosines, -scores))[:LIMIT]
        counted = first if self.kind in UNANSWERABLE else first[self.relevant[first]]
        return float(scores[counted].max(initial=-1))


class Bench:
    def __init__(self, embedder: Embedder, lexicon: Lexicon | None) -> None:
        self.calibration = Calibration.of(embedder)
        self._lexicon = lexicon
        self._chunks = [chunk for file in sorted(KNOWLEDGE.glob("*/*.md")) for chunk in sections(file)]
        self._questions = json.loads((KNOWLEDGE / "questions.json").read_text("utf-8"))
        self._vectors = embedder.embed([chunk.item.fields["text"] for chunk in self._chunks])
        self._asked = [embed_query(embedder, each["question"]) for each in self._questions]

    def asked(self, questions: str, *corpus: str) -> list[Asked]:
        """The questions of one set against the chunks of some sets."""
        rows = [row for row, chunk in enumerate(self._chunks) if chunk.set in corpus]
        return self._against(questions, rows)

    def among_three(self, questions: str) -> list[Asked]:
        """Each question of a set against three chunks; its own is among them if it has one."""
        found = []
        for n, each in enumerate(self._questions):
            if each["set"] == questions:
                own = [row for row, chunk in enumerate(self._chunks) if _answers(chunk, each)]
                others = np.random.default_rng(n).permutation(len(self._chunks)).tolist()
                rows = [*own[:1], *(row for row in others if row not in own)][:3]
                found += self._against(questions, sorted(rows), only=n)
        return found

    def _against(self, questions: str, rows: list[int], only: int | None = None) -> list[Asked]:
        postings = Postings.of(documents((self._chunks[row].item for row in rows), ()))
        return [
            Asked(
                kind=each["kind"],
                split=each["split"],
                relevant=np.array([_answers(self._chunks[row], each) for row in rows]),
                cosines=self._vectors[rows] @ self._asked[n],
                covered=coverage(ParsedQuery.of(each["question"], lexicon=self._lexicon), postings),
            )
            for n, each in enumerate(self._questions)
            if each["set"] == questions and only in (None, n)
        ]

    def scored(self, asked: Sequence[Asked]) -> list[Best]:
        return [(one.kind, one.best(self.calibration.scores(one.cosines, one.covered))) for one in asked]


def sections(file: Path) -> list[Chunk]:
    parts = re.split(r"^## ", file.read_text("utf-8"), flags=re.M)[1:]
    return [Chunk(file.parent.name, file.name, part.split("\n", 1)[0], item(part.strip())) for part in parts]


def item(text: str) -> Item:
    return Item(id=text, namespace=None, sequence=0, fields={"text": text})


def _answers(chunk: Chunk, question: dict[str, str]) -> bool:
    return chunk.document == question.get("document") and chunk.heading in question.get("headings", ())


def share(scored: Sequence[Best], kinds: Sequence[str], threshold: float) -> str:
    """How many of the questions of some kinds count at a threshold."""
    counted = [best >= threshold for kind, best in scored if kind in kinds]
    return f"{np.mean(counted):.0%}" if counted else "-"


def table(title: str, rows: Sequence[tuple[str, Sequence[Best], float]]) -> None:
    print(f"\n{title:22}" + "".join(f"{name:>13}" for name in COLUMNS))
    for name, scored, threshold in rows:
        shares = (share(scored, kinds, threshold) for kinds in COLUMNS.values())
        print(f"{name:22}" + "".join(f"{each:>13}" for each in shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--onnx", type=Path, metavar="FOLDER")
    folder = parser.parse_args().onnx
    embedded = MiniLM()
    bench = Bench(Onnx(folder) if folder else embedded, None if folder else embedded.lexicon())
    every, second = bench.asked("main", "main"), bench.asked("second", "second")
    tune, held_out, later = ([one for one in every if one.split == n] for n in ("tune", "held-out", "later"))
    sets = {
        "main, fitted": tune,
        "main, held out": held_out,
        "main, written later": later,
        "second": second,
        "second in all chunks": bench.asked("second", "main", "second"),
        "main, three chunks": bench.among_three("main"),
        "second, three chunks": bench.among_three("second"),
    }
    print(bench.calibration)
    table(f"threshold {THRESHOLD}", [(name, bench.scored(asked), THRESHOLD) for name, asked in sets.items()])
    unseen = held_out + later + second
    scored = bench.scored(unseen)
    table("all but the fitted", [(f"{threshold:.2f}", scored, threshold) for threshold in CURVE])
    raw = [(one.kind, one.best(one.cosines.astype(np.float64))) for one in unseen]
    highest = sorted((best for kind, best in raw if kind in UNANSWERABLE), reverse=True)
    levels = [highest[round(part * len(highest))] + 1e-6 for part in (0.4, 0.3, 0.2, 0.1, 0.05)]
    table("by the raw cosine", [(f"{level:.2f}", raw, level) for level in levels])


if __name__ == "__main__":
    main()
