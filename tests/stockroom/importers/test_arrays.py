"""NumPy files."""

import os

import numpy as np
import pytest

from hopyard.errors import CorruptError, DataError, UnsupportedTypeError, UsageError
from hopyard.stockroom.importers.arrays import Numpy
from hopyard.stockroom.importers.testing import ImporterSuite, same

RNG = np.random.default_rng(0)
ARRAYS = {
    "image": RNG.integers(0, 256, (5, 3, 4), np.uint8),
    "half": RNG.normal(size=(5, 2)).astype(np.float16),
    "wave": (RNG.normal(size=5) + 1j).astype(np.complex64),
    "flag": np.array([True, False, True, True, False]),
    "name": np.array(["a", "bé", "", "longer", "x"]),
    "raw": np.array([b"a", b"\xff\x01", b"", b"xyz", b"q"]),
    "empty": np.zeros((5, 0, 2), np.float32),
    "swapped": np.arange(5, dtype=">i4"),
    "fortran": np.asfortranarray(RNG.normal(size=(5, 3, 2))),
}


class TestNpz(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
        with Numpy(tmp_path / "a.npz") as importer:
            yield importer


class TestFolder(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        for name, array in ARRAYS.items():
            np.save(tmp_path / f"{name}.npy", array)
        with Numpy(tmp_path) as importer:
            yield importer


def test_values_and_dtypes_are_those_of_the_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    with Numpy(tmp_path / "a.npz") as importer:
        columns = {column.name: column for column in importer.columns()}
        assert list(columns) == list(ARRAYS)
        for name, array in ARRAYS.items():
            found = columns[name].read(0, 5)
            if array.dtype.kind in "US":
                assert found == array.tolist()
                assert columns[name].kind == ("string" if array.dtype.kind == "U" else "bytes")
            else:
                assert columns[name].dtype == found.dtype.name == array.dtype.newbyteorder("=").name
                assert same(found, array.astype(found.dtype))


@pytest.mark.parametrize(
    ("arrays", "columns"),
    [
        (
            {"x_train": 3, "y_train": 3, "x_test": 2, "y_test": 2},
            {"x": ("", 3), "y": ("", 3), "test-x": ("test", 2), "test-y": ("test", 2)},
        ),
        ({"x_train": 3, "y_val": 2}, {"x": ("", 3), "val-y": ("val", 2)}),
        ({"x_train": 3, "other": 3}, {"x_train": ("", 3), "other": ("", 3)}),
        (
            {"test-x_train": 2, "test_train": 3, "x_train": 3},
            {"test-x": ("test", 2), "test": ("", 3), "x": ("", 3)},
        ),
        (
            {"x_test": 2, "test-x_train": 2},
            {"x_test": ("", 2), "test-x_train": ("test", 2)},
        ),  # one name for two
    ],
)
def test_arrays_that_are_all_called_as_keras_calls_them_are_columns_of_splits(tmp_path, arrays, columns):
    np.savez(tmp_path / "a.npz", **{name: np.arange(count) for name, count in arrays.items()})
    with Numpy(tmp_path / "a.npz") as importer:
        assert {each.name: (each.split, each.count) for each in importer.columns()} == columns


def test_one_file_is_one_column(tmp_path):
    np.save(tmp_path / "x.npy", ARRAYS["image"])
    with Numpy(tmp_path / "x.npy") as importer:
        (column,) = importer.columns()
        assert (column.name, column.count, column.shape) == ("x", 5, (3, 4))
        (file,) = importer.identity()["files"]
        assert (file["name"], file["bytes"], len(file["digest"])) == ("x.npy", 188, 64)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (
            np.float32(1),
            r"x.npy is of shape \(\), but the first axis numbers the samples, at least one. Reshape it.",
        ),
        (np.zeros((0, 2)), r"x.npy is of shape \(0, 2\), but"),
        (
            np.array(["2020-01-01"], "M8[D]"),
            r"x.npy is of dtype datetime64\[D\] with 1 axes, which no column can hold",
        ),
        (
            np.array([("a", 1)], [("n", "U1"), ("v", "i4")]),
            r"which no column can hold. Save numbers \(times as int64",
        ),
        (np.array([["a"]]), r"is of dtype <U1 with 2 axes"),
        (
            np.array([{}], object),
            r"x.npy holds Python objects, which only a pickle can: it could run any code.",
        ),
    ],
)
def test_what_no_column_can_hold_is_refused(tmp_path, array, text):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises((DataError, UnsupportedTypeError), match=text):
        Numpy(tmp_path / "x.npy").columns()


def test_truncated_files_are_named(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(100))
    os.truncate(tmp_path / "x.npy", 500)
    with pytest.raises(
        CorruptError, match=r"x.npy is no whole .npy file \(.*\). Give an array that numpy.save wrote."
    ):
        Numpy(tmp_path / "x.npy").columns()
    (tmp_path / "y.npy").write_bytes(b"text")
    with pytest.raises((CorruptError, UnsupportedTypeError), match=r"y.npy"):
        Numpy(tmp_path / "y.npy").columns()
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(1000))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[100:300] = bytes(200)
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(CorruptError, match=r"a.npz is truncated or damaged: .* Restore it."):
        Numpy(tmp_path / "a.npz").columns()
    for wrong in (bytes(data[:300]), b"garbage", b""):
        (tmp_path / "a.npz").write_bytes(wrong)
        with pytest.raises(CorruptError, match=r"a.npz is truncated or damaged: .* Restore it."):
            Numpy(tmp_path / "a.npz").columns()


def test_a_folder_without_arrays_and_no_source_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError, match=r"There are no .npy files in .*, but a.txt. Check the path."):
        Numpy(tmp_path).columns()
    with pytest.raises(
        UsageError, match=r"the importer 'numpy' needs a source: .* Give a path \(--from PATH\)."
    ):
        Numpy()
