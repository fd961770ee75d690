"""What starting costs: `python bench/startup.py [--rounds 15]`.

CPU time of a new interpreter that loads Alcove or prints a help page, against one that only loads the three
packages every command needs. They run in turn, and the least of each counts: the rest is what others did
meanwhile.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

BASE = "import click, apsw, msgspec"
HELP = "import sys; from alcove.cli import main; sys.argv = ['alcove', *{}]; main()"
CONTENDERS = {
    BASE: BASE,
    "import alcove": "import alcove",
    "from alcove import Alcove": "from alcove import Alcove",
    "alcove --help": HELP.format(["--help"]),
    "alcove policy --help": HELP.format(["policy", "--help"]),
    "alcove serve --help": HELP.format(["serve", "--help"]),
}


def cpu_seconds(code: str) -> float:
    """User and system time of one interpreter that runs this code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    least = {
        name: min(times)
        for name, times in zip(
            CONTENDERS,
            zip(*([cpu_seconds(code) for code in CONTENDERS.values()] for _ in range(rounds)), strict=True),
            strict=True,
        )
    }
    for name, seconds in least.items():
        print(f"{name:<30}{seconds:>8.3f} s{seconds / least[BASE]:>8.2f} ×")


if __name__ == "__main__":
    main()
