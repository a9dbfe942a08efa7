"""MNIST and Fashion-MNIST from IDX files."""

import gzip
import hashlib
import os

import numpy as np
import pytest

from hopyard.errors import CorruptError, DataError
from hopyard.stockroom.importers.mnist import FashionMnist, Mnist
from hopyard.stockroom.importers.testing import ImporterSuite

from .formats import idx, mnist, unpack


class TestMnist(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        with Mnist(unpack(tmp_path, mnist()[0])) as importer:
            yield importer


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("below", ["", "MNIST/raw"])
def test_packed_and_plain_files_are_read_as_they_are(tmp_path, packed, below):
    files, expected = mnist(packed=packed)
    unpack(tmp_path / below, files)
    with Mnist(tmp_path) as importer:
        columns = importer.columns()
        assert [(c.name, c.count, c.dtype, c.shape) for c in columns] == [
            ("image", 5, "uint8", (28, 28)),
            ("label", 5, "uint8", ()),
            ("test-image", 3, "uint8", (28, 28)),
            ("test-label", 3, "uint8", ()),
        ]
        for column in columns:
            np.testing.assert_array_equal(column.read(0, column.count), expected[column.name])
        assert importer.identity()["classes"][3] == "3 - three"


def test_missing_files_are_listed(tmp_path):
    files, _ = mnist()
    del files["t10k-labels-idx1-ubyte.gz"]
    unpack(tmp_path, files)
    with pytest.raises(
        DataError,
        match=r"not what the importer 'torchvision.mnist' reads: expected .* files .*there is t10k-images-idx3",
    ):
        Mnist(tmp_path).columns()
    with pytest.raises(DataError, match=r"there is one file. Give the folder with the original files."):
        Mnist(tmp_path / "t10k-images-idx3-ubyte.gz").columns()


def test_truncated_files_are_named(tmp_path):
    unpack(tmp_path, mnist()[0])
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 100)
    with pytest.raises(
        CorruptError, match=r"train-images-idx3-ubyte.gz \([\d,]+ bytes\) is truncated or damaged"
    ):
        Mnist(tmp_path).columns()
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(
        CorruptError,
        match=r"its header says 5 x 28 x 28, which are 3,936 bytes, but there are 3,935. Download",
    ):
        Mnist(tmp_path).columns()
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:9]))
    with pytest.raises(
        CorruptError, match=r"it ends after 9 bytes, within its header of 16. Download or copy"
    ):
        Mnist(tmp_path).columns()


def test_another_idx_file_is_refused(tmp_path):
    files, columns = mnist(packed=False)
    files["train-images-idx3-ubyte"] = idx(columns["label"])
    unpack(tmp_path, files)
    with pytest.raises(
        DataError, match=r"is no IDX file of uint8 with 3 dimensions: it begins with b'.*x01' instead"
    ):
        Mnist(tmp_path).columns()


def test_images_without_labels_are_refused(tmp_path):
    files, columns = mnist(packed=False)
    files["train-labels-idx1-ubyte"] = idx(columns["label"][:-1])
    with pytest.raises(
        DataError, match=r"has 5 images but 4 labels for the column image. Give files that belong"
    ):
        Mnist(unpack(tmp_path, files)).columns()


def test_the_files_of_the_sibling_are_told_apart(tmp_path, monkeypatch):
    files, _ = mnist()
    labels = hashlib.md5(files["train-labels-idx1-ubyte.gz"]).hexdigest()
    monkeypatch.setattr(FashionMnist, "md5s", ("", labels, "", ""))
    unpack(tmp_path, files)
    with pytest.raises(
        DataError,
        match=r"the files of the importer 'torchvision.fashion_mnist', but was given to 'torchvision.mnist'\. Use",
    ):
        Mnist(tmp_path).columns()
    with FashionMnist(tmp_path) as importer:
        assert importer.columns()[0].count == 5
        assert importer.identity()["classes"][0] == "T-shirt/top"
