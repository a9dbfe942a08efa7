"""W2: float32[768], an id and a label, 200,000 rows as Spark writes them, batch 1,024, shuffled.

    python benchmarks/data_w2_embeddings.py [--rows 200000] [--pairs 3] [--peers all] [--cores 2]

``hopyard-cold`` is a first epoch: the dataset is opened with an empty node cache. ``decode`` is pyarrow reading
every row group in one thread, and doing nothing with it. The other lines compare later epochs with limits of the
machine and with peers that read the same rows and feed the same consumer; epochs take turns, and the medians are
printed. ``take`` is ``numpy.take`` of whole rows, ``memcpy`` a copy of the epoch's bytes.
"""

from __future__ import annotations

from _peers import run

if __name__ == "__main__":
    run(
        "W2",
        __doc__ or "",
        [("hopyard-cold", "decode"), ("hopyard", "take"), ("hopyard", "memcpy")],
    )
