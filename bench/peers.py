"""Alcove beside what its users would pick instead: `python bench/peers.py [--quick] [--out bench]`.

Raw SQLite, LangGraph's SqliteStore, mem0 and Alcove hold 10,000 memories of 100 users, each with a text to
find it by. Each store runs in a process of its own, one after the other, on the same disk. Latencies are of
single calls; the first search of each user is among the searches. Only Alcove embeds beside its writes, so
writes are also told until everything can be searched. `--out` names a folder for the figures and a plot.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

import sample
from peer_stores import CHOICES, OF_A_USER, PEERS, Peer, text

OURS, AGAINST = "Alcove", "SqliteStore"
MEMORIES = 10_000
THREADS = 8
SLOW = {"mem0": 20}
"""Who is asked fewer questions, and how many times fewer: a search takes a sixth of a second."""


class Measured(Struct, frozen=True):
    """One row of one store: operations a second, and milliseconds and the processor's microseconds of one."""

    rate: float
    p50: float | None = None
    p99: float | None = None
    cpu: float | None = None


class Bar(Struct, frozen=True):
    """What a row has to reach, against the SqliteStore (`times`) or by itself."""

    row: str
    least: float
    of: str = "rate"
    times: bool = True

    @property
    def told(self) -> str:
        if self.times:
            return f"≥ {self.least:g} ×" + (" in p50" if self.of == "p50" else "")
        return f"p99 ≤ {self.least:g} ms" if self.of == "p99" else f"≤ {self.least:g} MB"

    def met(self, ours: Measured, theirs: Measured) -> bool:
        mine, other = getattr(ours, self.of), getattr(theirs, self.of)
        if not self.times:
            return bool(mine <= self.least)
        return bool((other / mine if self.of == "p50" else mine / other) >= self.least)


PUT, GET, LIST = "put with index text", "get", "list by a field of the value"
SEARCH, EVERYTHING, DELETE = "search in one user", "search everything", "delete"
CROWD, LOAD = f"put, {THREADS} threads", f"bulk load, {OF_A_USER} at once"
SETTLED = ", until all can be searched"
MEMORY = "resident memory at the end, MB"
ROWS = (PUT, PUT + SETTLED, GET, LIST, SEARCH, EVERYTHING, DELETE, CROWD, LOAD, LOAD + SETTLED, MEMORY)
BARS = (
    Bar(PUT, 1.5),
    Bar(GET, 1.0),
    Bar(LIST, 1.0),
    Bar(SEARCH, 1.5),
    Bar(SEARCH, 2, of="p50"),
    Bar(SEARCH, 5, of="p99", times=False),
    Bar(CROWD, 4),
    Bar(LOAD, 0.8),
    Bar(MEMORY, 120, times=False),
)
Column = dict[str, Measured]


def timed(call: Callable[[int], object], numbers: Sequence[int]) -> Measured:
    """One call a number, on this thread."""
    times, clock = [], time.perf_counter
    cpu, started = time.process_time(), clock()
    for n in numbers:
        before = clock()
        call(n)
        times.append(clock() - before)
    spent, cpu = clock() - started, time.process_time() - cpu
    times.sort()
    return Measured(
        rate=len(numbers) / spent,
        p50=times[len(times) // 2] * 1e3,
        p99=times[len(times) * 99 // 100] * 1e3,
        cpu=cpu / len(numbers) * 1e6,
    )


def calls(peer: Peer, memories: int, fewer: int) -> Iterator[tuple[str, Measured]]:
    """Single calls on one store, and what its process holds in the end."""
    scattered = [n * 7919 % memories for n in range(memories)]
    few = scattered[: max(20, memories // 10 // fewer)]
    started = time.perf_counter()
    yield PUT, timed(peer.put, scattered)
    peer.settle()
    yield PUT + SETTLED, Measured(memories / (time.perf_counter() - started))
    yield GET, timed(peer.get, range(memories))
    assert len(peer.listed(0)) == OF_A_USER // CHOICES
    yield LIST, timed(peer.listed, few)
    if peer.search:
        yield SEARCH, timed(peer.search, few)
    if peer.search_everything:
        peer.search_everything(0)  # reads it all, once
        yield EVERYTHING, timed(peer.search_everything, few[: len(few) // 5])
    yield DELETE, timed(peer.delete, scattered[::10])
    if peer.threads:
        yield CROWD, crowd(peer, range(-1, -memories, -5))
    peer.settle()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    yield MEMORY, Measured(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)


def crowd(peer: Peer, numbers: Sequence[int]) -> Measured:
    """Puts by several threads at once."""
    shares = [numbers[start::THREADS] for start in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(time.sleep, [0.05] * THREADS))  # so that each has begun
        cpu, started = time.process_time(), time.perf_counter()
        list(pool.map(lambda share: [peer.put(n) for n in share], shares))
        spent, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Measured(len(numbers) / spent, cpu=cpu / len(numbers) * 1e6)


def loads(peer: Peer, memories: int, fewer: int) -> Iterator[tuple[str, Measured]]:
    """All memories of a user at once, user by user, into an empty store."""
    users = range(0, memories, OF_A_USER * fewer)
    cpu, started = time.process_time(), time.perf_counter()
    for first in users:
        peer.load(range(first, first + OF_A_USER))
    spent, cpu = time.perf_counter() - started, time.process_time() - cpu
    loaded = len(users) * OF_A_USER
    yield LOAD, Measured(loaded / spent, cpu=cpu / loaded * 1e6)
    peer.settle()
    yield LOAD + SETTLED, Measured(loaded / (time.perf_counter() - started))


PARTS = {"calls": calls, "loads": loads}


def alone(name: str, part: str, folder: Path, memories: int) -> None:
    """What a process of its own does: measures one store, and writes its figures to the standard output."""
    for n in range(-memories, memories):
        text(n)  # made before anything is measured
    peer = PEERS[name](folder)
    found = dict(PARTS[part](peer, memories, SLOW.get(name, 1)))
    peer.close()
    sys.stdout.buffer.write(msgspec.json.encode(found))


def column(name: str, memories: int, beside: Path | None) -> Column:
    """Every row of one store, by processes of its own."""
    found: Column = {}
    for part in PARTS:
        with sample.folder(beside) as folder:
            asked = ["--alone", name, "--part", part, "--dir", str(folder), "--memories", str(memories)]
            done = subprocess.run([sys.executable, __file__, *asked], check=True, stdout=subprocess.PIPE)
            found |= msgspec.json.decode(done.stdout, type=Column)
    print(f"  {name}: load {os.getloadavg()[0]:.2f}", file=sys.stderr)
    return found


def middle(rounds: Sequence[Column]) -> Column:
    """The medians of some rounds, figure by figure."""

    def of(row: str, figure: str) -> float | None:
        values = [getattr(each[row], figure) for each in rounds]
        return None if values[0] is None else statistics.median(values)

    figures = Measured.__struct_fields__
    return {row: Measured(*(of(row, figure) for figure in figures)) for row in rounds[0]}  # type: ignore[arg-type]


def table(columns: dict[str, Column]) -> str:
    """Every row of every store, ours against the SqliteStore, and the bars."""
    lines = [["", *columns, f"{OURS} / {AGAINST}", "bar", ""]]
    for row in ROWS:
        ours, theirs = columns[OURS][row], columns[AGAINST].get(row)
        bars = [bar for bar in BARS if bar.row == row]
        lines.append(
            [
                row,
                *(_told(each.get(row)) for each in columns.values()),
                f"{ours.rate / theirs.rate:.2f} ×" if theirs else "–",
                ", ".join(bar.told for bar in bars),
                ", ".join("met" if theirs and bar.met(ours, theirs) else "not met" for bar in bars),
            ]
        )
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cpu_table(columns: dict[str, Column]) -> str:
    """What the processor does for one call, which other work on the machine changes less than times."""
    lines = [["processor, µs a call", *columns], ["---"] * (1 + len(columns))]
    for row in ROWS:
        spent = [each[row].cpu if row in each else None for each in columns.values()]
        if any(spent):
            lines.append([row, *("–" if each is None else f"{each:,.0f}" for each in spent)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _told(found: Measured | None) -> str:
    if found is None:
        return "–"
    return f"{found.rate:,.0f}" + (f" ({found.p50:.2g} / {found.p99:.2g})" if found.p50 and found.p99 else "")


def draw(columns: dict[str, Column], path: Path, note: str) -> None:
    """Operations a second of every row, on one scale of powers of ten."""
    from matplotlib.figure import Figure  # noqa: PLC0415  the processes that measure do not load it

    from report import INK, MET, MISSED, PALE  # noqa: PLC0415

    rows = [row for row in ROWS if row != MEMORY]
    canvas = Figure(figsize=(9, 8), layout="constrained")
    axis = canvas.subplots()
    for place, (name, colour) in enumerate(zip(columns, (PALE, INK, MISSED, MET), strict=True)):
        there = [(at, columns[name][row].rate) for at, row in enumerate(rows) if row in columns[name]]
        heights = [at + (place - 1.5) * 0.2 for at, _ in there]
        bars = axis.barh(heights, [rate for _, rate in there], height=0.18, color=colour, label=name)
        axis.bar_label(bars, [f"{rate:,.0f}" for _, rate in there], padding=3, fontsize=7, color=INK)
    axis.set_xscale("log")
    axis.set_yticks(range(len(rows)), rows)
    axis.set_title("Operations a second, longer is better", loc="left", fontsize=11, fontweight="bold")
    axis.set_xlabel(note, fontsize=9)
    axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=9)
    axis.set_ylim(len(rows) - 0.5, -1)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    canvas.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of the memories")
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many runs")
    parser.add_argument("--only", action="append", choices=PEERS, help="these stores beside the two compared")
    parser.add_argument("--out", type=Path, help="a folder for peers.json and peers.png")
    parser.add_argument("--dir", type=Path, help="where the temporary stores are made")
    parser.add_argument("--memories", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--alone", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    memories = options.memories or (MEMORIES // 5 if options.quick else MEMORIES)
    if options.alone:
        return alone(options.alone, options.part, options.dir, memories)
    names = [name for name in PEERS if not options.only or name in (*options.only, OURS, AGAINST)]
    before = os.getloadavg()[0]
    rounds = [{name: column(name, memories, options.dir) for name in names} for _ in range(options.rounds)]
    columns = {name: middle([each[name] for each in rounds]) for name in names}
    load = f"load {before:.2f} before, {os.getloadavg()[0]:.2f} after, on {os.cpu_count()} cores"
    note = f"{memories:,} memories of {memories // OF_A_USER} users; rounds: {options.rounds}; {load}"
    print(f"Operations/s (p50 / p99 ms). {note}\n\n{table(columns)}\n\n{cpu_table(columns)}")
    if options.out:
        result = {"note": note, "quick": options.quick, "stores": columns}
        text = msgspec.json.format(msgspec.json.encode(result), indent=2)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "peers.json").write_bytes(text + b"\n")
        draw(columns, options.out / "peers.png", note)
    return None


if __name__ == "__main__":
    main()
