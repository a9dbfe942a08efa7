"""What the dataset that Petastorm wrote holds, and a copy of it to be changed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from .stored import DATASET, HERE


@pytest.fixture(scope="module")
def expected():
    with np.load(HERE / "expected.npz") as arrays:
        return dict(arrays)


@pytest.fixture
def copy(tmp_path):
    """A copy of the dataset, to be changed."""
    return Path(shutil.copytree(DATASET, tmp_path / "dataset"))
