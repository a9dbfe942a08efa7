"""Writes scikit-learn's digits into a bucket, in the three forms that model_def.py reads.

python make_data.py s3://my-bucket/digits
"""

import io
import sys

import numpy as np
from sklearn.datasets import load_digits

from hopyard.storage import open_store

BATCH = 64


def main(url):
    store = open_store(url)
    digits = load_digits()
    rows = np.column_stack([digits.data, digits.target]).astype(
        np.uint8
    )  # 64 pixels of 0 to 16, and the digit
    np.random.default_rng(0).shuffle(rows)  # streams are read in order
    for split, part in (("val", rows[:297]), ("train", rows[297:])):
        store.put(f"{split}.csv", "".join(f"{','.join(map(str, row))}\n" for row in part).encode())
        store.put(f"{split}.bin", part.tobytes())
        for number, first in enumerate(range(0, len(part), BATCH)):
            batch = io.BytesIO()
            np.save(batch, part[first : first + BATCH])
            store.put(f"{split}/{number:04d}.npy", batch.getvalue())


if __name__ == "__main__":
    main(sys.argv[1])
