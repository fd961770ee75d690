"""The figures for people, for programs and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from msgspec import Struct

INK, MET, MISSED, PALE = "#1f2933", "#2f7d6d", "#c0562f", "#9aa5b1"


class Figure(Struct, frozen=True):
    """One ratio beside the bar that the issue sets for it."""

    name: str
    against: str
    ours: str
    base: str
    ratio: float
    low: float
    high: float
    bar: float
    must: Literal["reach", "stay below"]

    @property
    def met(self) -> bool:
        return self.ratio >= self.bar if self.must == "reach" else self.ratio <= self.bar

    @property
    def times(self) -> str:
        return f"{self.ratio:.3f} ×" if self.ratio < 0.1 else f"{self.ratio:.2f} ×"

    @property
    def sign(self) -> str:
        return "≥" if self.must == "reach" else "≤"


def table(figures: Sequence[Figure]) -> str:
    """A table that reads the same in a terminal and in Markdown."""
    head = ("what", "ours", "against", "ratio", "quartiles", "bar", "")
    body = [
        (
            each.name,
            each.ours,
            f"{each.against}, {each.base}",
            each.times,
            f"{each.low:.2f}–{each.high:.2f}",
            f"{each.sign} {each.bar:.2g} ×",
            "met" if each.met else "not met",
        )
        for each in figures
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in (head, *body)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(figures: Sequence[Figure], folder: Path, *, quick: bool) -> None:
    """`results.json` and `core.png`."""
    result = {"quick": quick, "figures": [{**msgspec.to_builtins(f), "met": f.met} for f in figures]}
    text = msgspec.json.format(msgspec.json.encode(result), indent=2)
    (folder / "results.json").write_bytes(text + b"\n")
    _draw(figures, folder / "core.png", quick=quick)


def _draw(figures: Sequence[Figure], path: Path, *, quick: bool) -> None:
    speeds = [f for f in figures if f.must == "reach"]
    costs = [f for f in figures if f.must == "stay below"]
    with rc_context({"font.size": 10, "text.color": INK, "ytick.color": INK, "xtick.color": INK}):
        canvas = Canvas(figsize=(9, 6), layout="constrained")
        above, below = canvas.subplots(2, 1, height_ratios=[len(speeds) + 0.5, len(costs) + 0.5])
        _panel(above, speeds, "Speed against its bar: past the line is enough")
        _panel(below, costs, "Cost as the store grows: up to the line is flat enough")
        note = "quick run" if quick else "whole run"
        canvas.supxlabel(f"{note}; medians of alternating rounds, whiskers are quartiles", fontsize=9)
        canvas.savefig(path, dpi=150)


def _panel(axis: Axes, panel: Sequence[Figure], title: str) -> None:
    """Each bar is as long as its ratio is of its own bar, so that one line serves them all."""
    rows = range(len(panel))
    lengths = [f.ratio / f.bar for f in panel]
    whiskers = [[(f.ratio - f.low) / f.bar for f in panel], [(f.high - f.ratio) / f.bar for f in panel]]
    colours = [MET if f.met else MISSED for f in panel]
    axis.barh(rows, lengths, xerr=whiskers, color=colours, height=0.55, ecolor=PALE, capsize=3)
    axis.axvline(1, color=INK, linewidth=1.4)
    for row, figure in enumerate(panel):
        text = f"{figure.times}  (bar {figure.sign} {figure.bar:.2g} ×)"
        axis.text(max(figure.high / figure.bar, 1) + 0.03, row, text, va="center")
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axis.set_yticks(rows, [f"{f.name}\nagainst {f.against}" for f in panel])
    axis.invert_yaxis()
    axis.set_xlim(0, max([1.0, *(f.high / f.bar for f in panel)]) * 1.45)
    axis.set_xticks([0, 1], ["0", "the bar"])
    axis.tick_params(length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(PALE)
