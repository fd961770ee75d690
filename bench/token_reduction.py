"""Finds how the states of MiniLM's tokens are made small: `src/alcove/search/embedders/minilm_tokens.npy`.

    python bench/token_reduction.py

The principal directions of the states of two kinds of tokens, as many of the one as of the other: those of
this project's own pages, which are running text, and every piece of the model's vocabulary, eight at random
beside each other, which is every language that it knows. No evaluation data is used. The first row of the
file is the middle of the states, each at length 1; then a row for each direction.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np

from alcove.search.embedders import Matrix
from alcove.search.embedders.minilm import MiniLM
from alcove.search.late_interaction import DIMENSIONS, MAX_TOKENS

ROOT = Path(__file__).parents[1]
BESIDE = 8
CHUNK = 512


def states(encoder: MiniLM, tokens: list[list[int]]) -> Matrix:
    """The states of all tokens of these texts, but for the two that mark the ends of each."""
    found = []
    for start in range(0, len(tokens), CHUNK):
        for batch in encoder._run_batches(encoder._network(), tokens[start : start + CHUNK]):
            found += [row[used][1:-1] for row, used in zip(batch.states, batch.used, strict=True)]
    every: Matrix = np.concatenate(found)
    every /= np.linalg.norm(every, axis=1, keepdims=True)
    return every


def main() -> None:
    encoder, chance = MiniLM(), random.Random(0)
    tokenizer = encoder._network().tokenizer
    pages = [
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/*.md")),
        *sorted(ROOT.glob("bench/knowledge/**/*.md")),
    ]
    sentences = [
        sentence
        for page in pages
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", page.read_text(encoding="utf-8"))
        if len(sentence) > 20
    ]
    written = [each.ids[:MAX_TOKENS] for each in tokenizer.encode_batch(sentences)]
    vocabulary = sorted(id for piece, id in tokenizer.get_vocab().items() if not piece.startswith("["))
    chance.shuffle(vocabulary)
    begin, end = written[0][0], written[0][-1]
    drawn = [[begin, *vocabulary[n : n + BESIDE], end] for n in range(0, len(vocabulary), BESIDE)]
    known, running = states(encoder, drawn), states(encoder, written)
    running = running[np.random.default_rng(0).permutation(len(running))[: len(known)]]
    both = np.concatenate([known, running])
    middle = both.mean(axis=0)
    kept, directions = np.linalg.eigh(np.cov(both - middle, rowvar=False))
    file = ROOT / "src/alcove/search/embedders/minilm_tokens.npy"
    np.save(file, np.concatenate([middle[None], directions[:, ::-1][:, :DIMENSIONS].T]).astype(np.float16))
    print(
        f"{len(both)} states; {kept[::-1][:DIMENSIONS].sum() / kept.sum():.0%} of what they differ in is kept"
    )


if __name__ == "__main__":
    main()
