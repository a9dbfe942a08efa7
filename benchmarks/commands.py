"""How long `hopyard` takes in fresh processes, from its start to its end: help, version, what a shell asks after Tab.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value; less is better). The peer is the help
of a Typer app with one command that does nothing. Medians of processes that take turns, after one of each that warms
the page cache and writes the bytecode. The goal for `hopyard --help` is 0.5 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

PEER = "help of a bare Typer app"
BARE = "import sys, typer; app = typer.Typer(); app.command()(lambda: None); sys.argv[1:] = ['--help']; app()"
ROUNDS = 9


def commands(hopyard: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """By name what is run, with further environment variables."""

    def completed(*words: str) -> tuple[list[str], dict[str, str]]:
        line = " ".join(("hopyard", *words))
        given = {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "_TYPER_COMPLETE_ARGS": line}
        return [hopyard], {"_HOPYARD_COMPLETE": "complete_bash", **given}

    return {
        PEER: ([sys.executable, "-c", BARE], {}),
        "hopyard --help": ([hopyard, "--help"], {}),
        "hopyard version": ([hopyard, "version"], {}),
        "hopyard stock --help": ([hopyard, "stock", "--help"], {}),
        "hopyard <Tab>": completed(""),
        "hopyard stock <Tab>": completed("stock", ""),
        "hopyard run <Tab>": completed("run", ""),
        "hopyard model describe <Tab>": completed("model", "describe", ""),
    }


def seconds(command: list[str], env: dict[str, str], folder: Path) -> float:
    start = perf_counter()
    subprocess.run(command, env=os.environ | env, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - start


def main() -> None:
    run = commands(str(Path(sys.executable).with_name("hopyard")))
    with tempfile.TemporaryDirectory() as folder:
        rounds = [
            {name: seconds(*given, Path(folder)) for name, given in run.items()} for _ in range(1 + ROUNDS)
        ][1:]
    medians = {name: median(measured[name] for measured in rounds) for name in run}
    for name, value in medians.items():
        figure = {"name": name, "value": round(value, 3), "unit": "s", "peer": PEER}
        print(json.dumps(figure | {"ratio": round(value / medians[PEER], 2)}), flush=True)


if __name__ == "__main__":
    main()
