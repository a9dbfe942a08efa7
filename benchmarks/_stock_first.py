"""A new process that reads one sample of a commit: ``_stock_first.py DIRECTORY COMMIT NUMBER``. Says what it took."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hopyard.stockroom.data import Column
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.packs import Objects
from hopyard.stockroom.view import Snapshot
from hopyard.storage import LocalStore

start = time.perf_counter()
directory, commit, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
objects = Objects(LocalStore(directory), directory / "index.sqlite")
record = Snapshot(objects, read_commit(objects, commit).root, commit).record("data", "x")
sample = Column(objects, "x", record)[number]
print(json.dumps({"seconds": time.perf_counter() - start, "sum": int(sample.sum())}))
