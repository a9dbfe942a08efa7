"""Writes scikit-learn's digits into a directory, as arrays that can be mapped.

python make_data.py /mnt/data
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main(directory):
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    for name, rows in (("validation", order[:297]), ("training", order[297:])):
        folder = Path(directory) / name
        folder.mkdir(parents=True)
        np.save(folder / "pixels.npy", digits.data[rows].astype("float32") / 16)
        np.save(folder / "digits.npy", digits.target[rows])


if __name__ == "__main__":
    main(sys.argv[1])
