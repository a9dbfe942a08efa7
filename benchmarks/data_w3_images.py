"""W3: uint8 images 3x32x32 and a label, 200,000 rows as ``prepare`` writes them, batch 256, shuffled.

    python benchmarks/data_w3_images.py [--rows 200000] [--pairs 3] [--peers all] [--cores 2]

Each line compares our loader with a limit of the machine or with a peer that reads the same rows and feeds
the same consumer; epochs take turns, and the medians are printed. ``take`` is ``numpy.take`` of whole rows,
``memcpy`` a copy of the epoch's bytes.
"""

from __future__ import annotations

from _peers import run

if __name__ == "__main__":
    run("W3", __doc__ or "", [("hopyard", "take"), ("hopyard", "memcpy")])
