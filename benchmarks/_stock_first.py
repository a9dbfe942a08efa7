"""A new process that reads one sample of a commit: ``_stock_first.py DIRECTORY COMMIT NUMBER``. Says what it took."""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

from hopyard import StockRoom

directory, commit, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
gc.collect()  # a pass over all that was imported takes 20 ms, and falls into so short a time only by chance
start = time.perf_counter()
sample = StockRoom(directory).at(commit).data["x"][number]
print(json.dumps({"seconds": time.perf_counter() - start, "sum": int(sample.sum())}))
