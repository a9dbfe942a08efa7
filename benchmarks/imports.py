"""Import time of `hopyard` and `hopyard.tune` in fresh processes, beside that of NumPy.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value; less is better). Medians of
processes that take turns, after one of each that warms the page cache and writes the bytecode.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

PEER = "numpy"
MODULES = (PEER, "hopyard", "hopyard.tune")
ROUNDS = 9

CODE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds_to_import(module: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    rounds = [{module: seconds_to_import(module) for module in MODULES} for _ in range(1 + ROUNDS)][1:]
    seconds = {module: median(measured[module] for measured in rounds) for module in MODULES}
    for module, value in seconds.items():
        figure = {"name": f"import {module}", "value": round(value, 4), "unit": "s"}
        print(
            json.dumps(figure | {"peer": f"import {PEER}", "ratio": round(value / seconds[PEER], 3)}),
            flush=True,
        )


if __name__ == "__main__":
    main()
