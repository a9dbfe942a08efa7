"""Parquet and CSV, as the data layer reads them."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import prepare
from hopyard.errors import CorruptError, DataError
from hopyard.stockroom.importers.tables import Csv, Parquet
from hopyard.stockroom.importers.testing import ImporterSuite
from hopyard.storage import LocalStore

ROWS = 7
TABLE = pa.table(
    {
        "id": np.arange(ROWS, dtype=np.int16),
        "text": [f"row {n}" for n in range(ROWS)],
        "raw": [bytes([n]) * n for n in range(ROWS)],
        "even": pa.array([[n, n + 1] for n in range(ROWS)], pa.list_(pa.float32())),
        "ragged": pa.array([list(range(n)) for n in range(ROWS)], pa.list_(pa.int64())),
        "place": pa.array([{"x": float(n), "y": n} for n in range(ROWS)]),
    }
)


class TestParquet(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=3)
        with Parquet(tmp_path / "a.parquet") as importer:
            yield importer


class TestCsv(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        (tmp_path / "a.csv").write_text("id,name,score,ok\n1,a,0.5,true\n2,bé,1.5,false\n3,,2,true\n")
        with Csv(tmp_path / "a.csv") as importer:
            yield importer

    def test_values(self, importer):
        columns = {column.name: column for column in importer.columns()}
        assert {name: (c.kind, c.dtype) for name, c in columns.items()} == {
            "id": ("tensor", "int64"),
            "name": ("string", "object"),
            "score": ("tensor", "float64"),
            "ok": ("tensor", "bool"),
        }
        assert columns["name"].read(0, 3) == ["a", "bé", ""]
        assert columns["score"].read(1, 3).tolist() == [1.5, 2.0]


def test_columns_are_those_of_the_data_layer(tmp_path):
    folder = tmp_path / "t"
    for key in ("a", "b"):
        (folder / f"key={key}").mkdir(parents=True)
        pq.write_table(TABLE, folder / f"key={key}" / "x.parquet")
    with Parquet(folder) as importer:
        columns = {column.name: column for column in importer.columns()}
        assert list(columns) == ["id", "text", "raw", "even", "ragged", "place.x", "place.y", "key"]
        assert columns["id"].dtype == "int16"
        assert columns["even"].shape == (2,)
        assert columns["ragged"].shape is None
        assert [row.tolist() for row in columns["ragged"].read(ROWS, ROWS + 3)] == [[], [0], [0, 1]]
        assert columns["raw"].read(ROWS - 1, ROWS + 2) == [b"\6" * 6, b"", b"\1"]
        assert columns["key"].read(ROWS - 1, ROWS + 1) == ["a", "b"]
        assert columns["place.y"].read(0, 3).tolist() == [0, 1, 2]
        assert len(importer.identity()["files"]) == 2


def test_a_prepared_dataset_gives_back_its_tensors(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4), np.uint8)
    prepare({"image": images, "y": np.arange(60)}, store=LocalStore(tmp_path), validation=None)
    with Parquet(tmp_path) as importer:
        image, y = importer.columns()
        assert (image.dtype, image.shape) == ("uint8", (4, 4))
        np.testing.assert_array_equal(image.read(0, 60), images[y.read(0, 60)])


def test_nulls_have_a_policy(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1.0, None])}), tmp_path / "n.parquet")
    with pytest.raises(DataError, match=r"null"):
        Parquet(tmp_path / "n.parquet").columns()[0].read(0, 2)
    assert Parquet(tmp_path / "n.parquet", nulls="fill").columns()[0].read(0, 2).tolist() == [1.0, 0.0]
    assert [c.name for c in Parquet(tmp_path / "n.parquet", nulls="mask").columns()] == ["a", "a_mask"]


def test_times_are_nanoseconds(tmp_path):
    pq.write_table(pa.table({"t": [datetime.datetime(1970, 1, 1, 0, 0, 1)] * 2}), tmp_path / "t.parquet")
    assert Parquet(tmp_path / "t.parquet").columns()[0].read(0, 2).tolist() == [10**9] * 2


def test_what_is_no_parquet_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 but nothing else")
    with pytest.raises(CorruptError, match=r"x.parquet"):
        Parquet(tmp_path / "x.parquet").columns()


def test_csv_refuses_nulls_and_other_files(tmp_path):
    (tmp_path / "n.csv").write_text("a,b\n1,x\n,y\n")
    with pytest.raises(
        DataError, match=r"Column 'a' has 1 nulls, the first in row 1; samples cannot be null. Fill"
    ):
        Csv(tmp_path / "n.csv").columns()
    (tmp_path / "none.csv").write_text("a,b\n")
    with pytest.raises(DataError, match=r"none.csv: there are names of columns, but no rows. Give"):
        Csv(tmp_path / "none.csv").columns()
    (tmp_path / "broken.csv").write_text("a,b\n1\n2,3,4\n")
    with pytest.raises(DataError, match=r"broken.csv cannot be read as CSV: .*Correct the file."):
        Csv(tmp_path / "broken.csv").columns()
    pq.write_table(TABLE, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x.parquet is no .csv or .* file. Use another importer \(parquet\)"):
        Csv(tmp_path / "x.parquet").columns()
