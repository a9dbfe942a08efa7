"""W1: 13 float32, 26 int64 and a label, a million rows as pandas writes them, batch 8,192, shuffled.

    python benchmarks/data_w1_tabular.py [--rows 1000000] [--pairs 3] [--peers all] [--cores 2]

Each line compares our loader, whose node cache is warm, with a limit of the machine or with a peer that reads
the same rows and feeds the same consumer; epochs take turns, and the medians are printed. ``take`` is
``numpy.take`` of rows whose columns of one dtype lie side by side, ``memcpy`` a copy of the epoch's bytes;
``hopyard-cold`` against ``decode`` is a first epoch against pyarrow reading every row group in one thread.
"""

from __future__ import annotations

from _peers import run

if __name__ == "__main__":
    run(
        "W1",
        __doc__ or "",
        [("hopyard", "take"), ("hopyard", "memcpy"), ("hopyard-cold", "decode")],
    )
