"""How well tokens are estimated without vocabularies, and how fast they are counted.

    python bench/tokens.py FOLDER …

Of a folder's files in UTF-8, 600 texts of 40 to 1,500 characters are taken. For each folder and family: the
share of texts with no more tokens than the estimate, and how many tokens there are for an estimated one.
"""

from __future__ import annotations

import math
import random
import sys
import time
from pathlib import Path

from alcove.agents.tokens import ESTIMATE_MARGIN, FAMILIES, _estimate, token_counter

SIZES = (40, 120, 400, 1_500)
TEXTS = 600


def texts_of(folder: Path) -> list[str]:
    chosen = random.Random(1)
    whole = ""
    for file in sorted(each for each in folder.rglob("*") if each.is_file())[:500]:
        try:
            whole += file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    places = [chosen.randrange(max(1, len(whole) - SIZES[-1])) for _ in range(TEXTS)]
    return [whole[at : at + chosen.choice(SIZES)] for at in places]


def main() -> None:
    exact = {name: token_counter(name) for name, (_, margin) in FAMILIES.items() if margin == 1}
    print(f"{'':24}" + "".join(f"{name:>16}" for name in exact))
    speed: dict[str, list[float]] = {}
    for folder in map(Path, sys.argv[1:]):
        texts = texts_of(folder)
        guessed = [math.ceil(ESTIMATE_MARGIN * _estimate(text)) for text in texts]
        row = f"{folder.name[:23]:24}"
        for name, counter in exact.items():
            began = time.perf_counter()
            counted = [counter(text) for text in texts]
            speed.setdefault(name, []).append(sum(counted) / (time.perf_counter() - began))
            covered = sum(real <= high for real, high in zip(counted, guessed, strict=True)) / len(texts)
            row += f"{covered:10.1%} {sum(counted) / max(1, sum(guessed)):5.2f}"
        print(row)
    print(f"{'million tokens/s':24}" + "".join(f"{max(speed[name]) / 1e6:16.1f}" for name in speed))


if __name__ == "__main__":
    main()
