"""Samples between processes."""

import numpy as np
import pytest

from hopyard.errors import StorageError
from hopyard.stockroom.importers.parcels import unwrap, wrap
from hopyard.stockroom.importers.testing import same

SAMPLES = [
    np.arange(100_000, dtype=np.int8)[1:],
    [
        np.zeros((3, 0)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::2],
        np.float64(2) * np.ones(()),
    ],
    ["text", ""],
    [b"x" * 100],
]


@pytest.mark.parametrize("samples", [SAMPLES, SAMPLES[1:]], ids=["by file", "by message"])
def test_samples_come_as_they_were_and_the_file_goes(tmp_path, samples):
    parcel = wrap(samples, tmp_path / "p")
    assert (parcel.path is None) == (len(samples) == 3)
    found = unwrap(parcel)
    assert all(same(a, b) for a, b in zip(found, samples, strict=True))
    assert all(array.flags.aligned for array in found[-3])
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(StorageError, match=r"gone/p"):
        wrap(SAMPLES, tmp_path / "gone" / "p")
