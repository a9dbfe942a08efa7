"""Parquet and CSV, as the data layer reads them."""

import datetime
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard import StockRoom
from hopyard.data import prepare
from hopyard.errors import ColumnError, CorruptError, DataError, UnsupportedTypeError, UsageError
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
        (tmp_path / "a.csv").write_text('id,name,score,ok\n1,a,0.5,true\n2,bé,1.5,false\n3,"",2,true\n')
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


def test_decimals_are_refused_unless_floats_are_asked_for(tmp_path):
    table = pa.table(
        {
            "price": pa.array([Decimal("12345678901234567890.12"), Decimal("0.10")]),
            "n": [1, 2],
            "list": [[Decimal("1.5")], []],
            "at": [{"x": Decimal("2.5")}, {"x": Decimal("3.5")}],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with Parquet(tmp_path / "a.parquet") as importer, pytest.raises(UnsupportedTypeError) as caught:
        importer.columns()
    assert "columns store no decimals" in str(caught.value)
    for name in ("'price' (decimal128(22, 2))", "'list'", "'at.x'", "decimals=float", "to text"):
        assert name in str(caught.value)
    with Parquet(tmp_path / "a.parquet", columns="n") as importer:
        assert [column.name for column in importer.columns()] == ["n"]
    with (
        Parquet(tmp_path / "a.parquet", columns="n", key="price") as importer,
        pytest.raises(UnsupportedTypeError, match="'price'"),
    ):
        importer.columns()
    with Parquet(tmp_path / "a.parquet", columns="price,at.x", decimals="float") as importer:
        found = {column.name: list(column.read(0, 2)) for column in importer.columns()}
    assert found == {"price": [12345678901234567890.12, 0.1], "at.x": [2.5, 3.5]}


def test_what_is_no_parquet_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 but nothing else")
    with pytest.raises(CorruptError, match=r"x.parquet"):
        Parquet(tmp_path / "x.parquet").columns()


def test_csv_refuses_nulls_and_other_files(tmp_path):
    (tmp_path / "n.csv").write_text("a,b\n1,x\n,y\n")
    with pytest.raises(
        DataError, match=r"missing in 1 column: 'a' \(1 value, the first in row 1\); samples cannot be null"
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


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("id,n\n007,1\n123,2\n", {"id": ["007", "123"], "n": [1, 2]}),
        ("id,n\n7,1\n0,2\n", {"id": [7, 0], "n": [1, 2]}),
        ('id,n\n"007",0.5\n"1",1e-05\n', {"id": ["007", "1"], "n": [0.5, 1e-05]}),
        ("n,id\n1,12345678901234567890\n2,5\n", {"id": ["12345678901234567890", "5"], "n": [1, 2]}),
        ("n,id\n1,1234567890123456789\n2,5\n", {"id": [1234567890123456789, 5], "n": [1, 2]}),
        ("n\n0.1234567890123456789\n2\n", {"n": [0.1234567890123456789, 2.0]}),
        ("id\n-07\n5\n", {"id": ["-07", "5"]}),
        ("n,x\n-0,-0\n5,1.5\n", {"n": ["-0", "5"], "x": [-0.0, 1.5]}),
        ("x,n\n-0.5,7\n1,-0\n", {"x": [-0.5, 1.0], "n": ["7", "-0"]}),
        ("zip\tn\n01234\t1\n", {"zip": ["01234"], "n": [1]}),
    ],
)
def test_names_in_digits_stay_texts(tmp_path, text, kinds):
    file = tmp_path / ("a.tsv" if "\t" in text else "a.csv")
    file.write_text(text)
    with Csv(file) as importer:
        found = {column.name: list(column.read(0, column.count)) for column in importer.columns()}
    assert found == kinds


def test_a_column_is_text_in_all_files_if_it_is_in_one(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text("id\n" + "5\n" * 600_000 + "007\n")
    with Csv(tmp_path) as importer:
        (column,) = importer.columns()
        assert column.read(0, 2) == ["1", "5"]
        assert column.read(column.count - 1, column.count) == ["007"]


def test_types_of_columns_can_be_said(tmp_path):
    (tmp_path / "a.csv").write_text("id,n\n007,1\n")
    with Csv(tmp_path, types="id=int16,n=text") as importer:
        found = {column.name: list(column.read(0, 1)) for column in importer.columns()}
    assert found == {"id": [7], "n": ["1"]}
    with pytest.raises(UsageError, match=r"the part 'n=word', but each is COLUMN=TYPE with one of the types"):
        Csv(tmp_path, types="id=text,n=word").columns()
    with pytest.raises(ColumnError, match=r"has no column 'idd'; did you mean 'id'\? Its columns are id, n"):
        Csv(tmp_path, types="idd=text").columns()


def test_a_value_that_is_not_of_its_type_is_named_with_its_column(tmp_path):
    (tmp_path / "a.csv").write_text("id,age\n1,30\n2,old\n")
    with Csv(tmp_path / "a.csv", types="age=int16") as importer, pytest.raises(DataError) as caught:
        importer.columns()
    assert "a.csv, column 'age': " in str(caught.value)
    assert "invalid value 'old'" in str(caught.value)
    assert "types=age=int16" in str(caught.value)
    assert "read the column as text: as_source(path, types={'age': 'text'}) instead of the path" in str(
        caught.value
    )
    assert str(caught.value).endswith("or, of an import, types=age=text")


def test_preparing_a_csv_keeps_names_in_digits_too(tmp_path):
    (tmp_path / "a.csv").write_text("id,n\n" + "".join(f"{n:03},{n}\n" for n in range(50)))
    train = prepare(str(tmp_path / "a.csv"), store=LocalStore(tmp_path / "store"), validation=None).train
    assert sorted(train[:50]["id"]) == [f"{n:03}" for n in range(50)]


def test_the_advice_on_nulls_is_an_option_of_the_import_and_works(tmp_path):
    pq.write_table(pa.table({"n": [1, None, 3]}), tmp_path / "a.parquet")
    stock = StockRoom.init(tmp_path / "room")
    with pytest.raises(
        DataError, match=r"'n' has 1 nulls; samples cannot be null. Import with the option nulls=fill"
    ):
        stock.import_from("parquet", tmp_path / "a.parquet")
    stock.import_from("parquet", tmp_path / "a.parquet", {"nulls": "fill"})
    assert stock.data["n"][...].tolist() == [1, 0, 3]
    stock.import_from("parquet", tmp_path / "a.parquet", {"nulls": "mask"})
    assert stock.data["n_mask"][...].tolist() == [False, True, False]


def test_missing_values_of_a_csv_have_a_policy(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("n,x,ok,name\n1,0.5,true,a\n,,,\n3,1.5,false,c\n")

    def read(policy):
        with Csv(file, nulls=policy) as importer:
            return {column.name: list(column.read(0, 3)) for column in importer.columns()}

    with pytest.raises(
        DataError,
        match=r"missing in 4 columns: 'n' \(1 value, the first in row 1\), 'x' .*, 'name' .*--option nulls=nan",
    ):
        read("error")
    with pytest.raises(
        DataError,
        match=r"missing in 1 column: 'ok' .*nulls=nan does not serve bools.* Import with nulls=fill",
    ):
        read("nan")
    texts = ["a", "", "c"]
    assert read("fill") == {"n": [1, 0, 3], "x": [0.5, 0, 1.5], "ok": [True, False, False], "name": texts}
    masked = read("mask")
    assert list(masked) == ["n", "n_mask", "x", "x_mask", "ok", "ok_mask", "name", "name_mask"]
    assert masked["ok_mask"] == [False, True, False]
    file.write_text("n,big\n1,9007199254740993\n,2\n3,3\n")
    with_nan = read("nan")
    assert str(with_nan) == str(
        {"n": [np.float64(1), np.float64("nan"), np.float64(3)], "big": with_nan["big"]}
    )
    assert with_nan["big"] == [9007199254740993, 2, 3]
    file.write_text("big\n9007199254740993\nNA\n3\n")
    with pytest.raises(DataError, match=r"missing in 1 column: 'big' .*nor whole numbers beyond 2\*\*53"):
        read("nan")


class TestCsvWithKeys(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        (tmp_path / "a.csv").write_text("id,name,score\n007,a,0.5\n003,b,1.5\nx,c,2\n")
        with Csv(tmp_path / "a.csv", key="id") as importer:
            yield importer


@pytest.mark.parametrize(
    ("ids", "keys"), [(["30", "10", "20"], [10, 20, 30]), (["007", "b", "003"], ["003", "007", "b"])]
)
def test_a_column_of_a_csv_file_has_the_keys(tmp_path, ids, keys):
    rows = [f"{each},{at},name {each}" for at, each in enumerate(ids)]
    (tmp_path / "a.csv").write_text("\n".join(["id,n,name", *rows]))
    with StockRoom.init(tmp_path / "own", enable_write=True) as stock:
        stock.import_from("csv", tmp_path / "a.csv", options={"key": "id"})
        assert list(stock.data["n"].keys()) == keys
        assert list(stock.data) == ["n", "name"]
        for at, each in enumerate(ids):
            key = type(keys[0])(each)
            assert (int(stock.data["n"][key]), stock.data["name"][key]) == (at, f"name {each}")


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("id,n\n1,1\n2,2\n", "ID", "key='ID' shall name the column that has the keys of the others, but is none of"),
        ("id\n1\n2\n", "id", "but is the only one. The columns are id"),
        ("id,n\n1,1\n2,2\n1,3\n1,4\n", "id", "has 2 keys more than once, the first is 1 in the rows 0 and 2. Name"),
        ("id,n\n1,1\n,2\n", "id", "lacks 1 value, the first in row 1. Fill them in the file, or import without key"),
        ("id,n\n1.5,1\n2,2\n", "id", "is float64, but keys are whole numbers or texts. Read it as text, types=id=text"),
        ("id,n\ntrue,1\nfalse,2\n", "id", "is bool, but keys are whole numbers or texts"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_keys_are_refused(tmp_path, text, key, expected):
    (tmp_path / "a.csv").write_text(text)
    with Csv(tmp_path / "a.csv", key=key) as importer, pytest.raises(UsageError, match=re.escape(expected)):
        importer.columns()


def _read(path, **options):
    with Csv(path, **options) as importer:
        return {
            column.name: (column.dtype, list(column.read(0, column.count))) for column in importer.columns()
        }


@pytest.mark.parametrize(
    ("texts", "dtype"),
    [
        (["9007199254740993", "0.5"], "object"),
        (["9007199254740992", "0.5"], "float64"),
        (["12345678901234567891", "3.5"], "object"),
        (["12345678901234567891", "NA"], "object"),
        (["9007199254740993", "NA", "0.5"], "object"),
        (["+4917012345678", "5"], "object"),
        (["007.50", "1.5"], "object"),
        (["007", "NA"], "object"),
        (["0x1F", "2"], "object"),
        (["00:10", "01:20"], "object"),
        (["00:10:30", "01:20:00"], "object"),
        (["true", "1"], "object"),
        (["1e400", "2"], "object"),
        (["1e5", "-2.5E-07"], "float64"),
        (["-0.0", "inf"], "float64"),
        ([".5", "-1."], "float64"),
        (["-9223372036854775808", "9223372036854775807"], "int64"),
        (["0", "-5", "10"], "int64"),
        (["true", "False"], "bool"),
        (["2024-01-02", "1970-01-01"], "int64"),
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_type_that_is_found_out_changes_no_value(tmp_path, texts, dtype, delimiter):
    rows = [delimiter.join(["a", text, "b"]) for text in texts]
    (tmp_path / "a.csv").write_text("\n".join([f"x{delimiter}p{delimiter}y", *rows]))
    found, values = _read(tmp_path / "a.csv", nulls="nan", delimiter=delimiter)["p"]
    assert found == dtype
    if dtype == "object":
        assert values == texts
    elif dtype == "float64":
        assert values == [float(text) for text in texts]
    elif "-01-" not in texts[0]:
        known = {"true": True, "False": False}
        assert values == [known[text] if text in known else int(text) for text in texts]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("9007199254740993", "0.5", ["9007199254740993", "0.5"]),
        ("5", "0.5", [5.0, 0.5]),
        ("5", "word", ["5", "word"]),
        ("5", "true", ["5", "true"]),
        ("007", "5", ["007", "5"]),
    ],
)
def test_a_column_is_of_one_type_in_all_files_without_another_value(tmp_path, first, second, expected):
    (tmp_path / "a.csv").write_text(f"p\n{first}\n")
    (tmp_path / "b.csv").write_text(f"p\n{second}\n")
    assert _read(tmp_path)["p"][1] == expected


def test_a_blank_line_never_shifts_rows(tmp_path):
    file = tmp_path / "a.csv"
    for end in ("\n", "\r\n"):
        file.write_bytes("p\n1\n\n3\n".replace("\n", end).encode())
        with pytest.raises(DataError, match=r"missing in 1 column: 'p' \(1 value, the first in row 1\)"):
            _read(file)
        assert _read(file, nulls="fill")["p"][1] == [1, 0, 3]
        file.write_bytes("name\nann\n\nbob\n".replace("\n", end).encode())
        with pytest.raises(DataError, match=r"missing in 1 column: 'name' \(1 value, the first in row 1\)"):
            _read(file)
        for policy in ("fill", "nan", "mask"):
            assert _read(file, nulls=policy)["name"][1] == ["ann", "", "bob"]
        file.write_bytes("a,b\n1,2\n\n3,4\n".replace("\n", end).encode())
        with pytest.raises(
            DataError, match=r"a.csv: line 3 is blank, and rows follow it. A row .* is ','. Write"
        ):
            _read(file)
        file.write_bytes("\n\na,b\n1,2\n3,4\n\n\n".replace("\n", end).encode())
        assert _read(file)["b"][1] == [2, 4]
    file.write_text('a,b\n1,"two\n\nlines"\n3,4\n')
    assert _read(file)["b"][1] == ["two\n\nlines", "4"]


def test_texts_of_many_lines_are_read_in_files_of_any_size(tmp_path):
    texts = [f"{'x' * (n % 50)}\n\nmore, {n}" for n in range(60_000)]
    rows = "".join(f'{n},"{text}"\n' for n, text in enumerate(texts))
    (tmp_path / "a.csv").write_text("a,b\n" + rows)
    found = _read(tmp_path / "a.csv")
    assert found["a"][1] == list(range(60_000))
    assert found["b"][1] == texts


def test_floats_keep_their_type_with_nan_also_without_any_value(tmp_path):
    (tmp_path / "a.csv").write_text("p,q,r\n,0.5,1\n,,\n")
    found = _read(tmp_path / "a.csv", types="p=float32,q=float32", nulls="nan")
    assert {name: dtype for name, (dtype, _) in found.items()} == {
        "p": "float32",
        "q": "float32",
        "r": "float64",
    }
    assert np.isnan(found["p"][1]).all()
    with pytest.raises(DataError, match=r"'?p \(nothing but nulls\).*types=NAME=text.*columns=NAME,NAME"):
        _read(tmp_path / "a.csv")


def test_another_delimiter_can_be_given_and_is_asked_for(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("a ; b\n1;2,5\n")
    with pytest.raises(DataError, match=r"has one, 'a ; b', whose name has a semicolon in it.*delimiter=';'"):
        _read(file)
    assert _read(file, delimiter=";") == {"a": ("int64", [1]), "b": ("object", ["2,5"])}
    file.write_text("a\tb\n1\t2\n")
    assert _read(file, delimiter="tab")["b"] == ("int64", [2])
    file.write_text("a;b\n1;2\n")
    assert _read(file, delimiter=",")["a;b"] == ("object", ["1;2"])
    with pytest.raises(UsageError, match=r"delimiter=';;' must be one character of ASCII"):
        _read(file, delimiter=";;")


def test_columns_that_are_named_twice_are_said_with_their_file(tmp_path):
    (tmp_path / "a.csv").write_text("a,b, a\n1,2,3\n")
    with pytest.raises(
        DataError, match=r"a.csv, whose first line names the columns: .*more than once: a. Rename"
    ):
        _read(tmp_path / "a.csv")


@pytest.mark.parametrize(("types", "text"), [("", "id,p\na,2\n,3\n"), ("id=text", "id,p\n1,2\n,3\n")])
def test_a_key_that_is_missing_is_refused_with_its_row(tmp_path, types, text):
    (tmp_path / "a.csv").write_text(text)
    for nulls in ("error", "fill", "mask", "nan"):
        with pytest.raises(
            DataError, match=r"'id', which shall have the keys, lacks 1 value, the first in row 1"
        ):
            _read(tmp_path / "a.csv", key="id", types=types, nulls=nulls)


def test_a_training_and_a_test_set_with_the_same_columns_lie_beside_each_other(tmp_path):
    (tmp_path / "train.csv").write_text("id,a,b\n2,20,x\n1,10,y\n")
    (tmp_path / "test.csv").write_text("id,a,b\n3,30,z\n")
    pq.write_table(pa.table({"id": ["q", "p"], "a": [1.5, None]}), tmp_path / "t.parquet")
    with StockRoom.init(tmp_path / "own", enable_write=True) as stock:
        stock.import_from("csv", tmp_path / "train.csv", {"key": "id"})
        stock.import_from("csv", tmp_path / "test.csv", {"key": "id", "prefix": "test-", "columns": "a"})
        assert sorted(stock.data) == ["a", "b", "test-a"]
        assert dict(stock.data["a"].items()) == {1: 10, 2: 20}
        assert dict(stock.data["test-a"].items()) == {3: 30}
        assert stock.log()[0].message.startswith("Import test.csv as csv\n\n{")
        (tmp_path / "train.csv").write_text("id,a,b\n2,21,x\n1,10,y\n")
        stock.import_from("csv", tmp_path / "train.csv", {"key": "id"})
        assert stock.log()[0].message.startswith("Import train.csv as csv\n\nReplaces a.\n\n{")
        stock.import_from("parquet", tmp_path / "t.parquet", {"key": "id", "prefix": "p-", "nulls": "mask"})
        assert dict(stock.data["p-a"].items()) == {"p": 0.0, "q": 1.5}
        assert dict(stock.data["p-a_mask"].items()) == {"p": True, "q": False}
    with pytest.raises(UsageError, match=r"names 'c', which is no column. The columns are id, a, b"):
        _read(tmp_path / "train.csv", columns="a,c")


def test_a_parquet_file_is_refused_whose_keys_are_missing_or_not_unique(tmp_path):
    file = tmp_path / "t.parquet"
    for keys, said in (
        ([1, None], "lacks some"),
        ([2, 2], "has 1 key more than once"),
        ([0.5, 1], "is float64"),
    ):
        pq.write_table(pa.table({"id": keys, "a": [1, 2]}), file)
        with pytest.raises(DataError, match=rf"'id', which shall have the keys,? {said}"):
            Parquet(file, key="id", nulls="fill").columns()


def test_what_was_exported_with_its_keys_is_imported_with_them(tmp_path):
    with StockRoom.init(tmp_path / "own", enable_write=True) as stock:
        stock.data["a"] = {"x": 1, "y": 2}
        stock.commit("a")
        stock.export("data/a", tmp_path / "a.parquet")
        del stock.data["a"]
        stock.commit("none")
        stock.import_from("parquet", tmp_path / "a.parquet", {"key": "key"})
        assert dict(stock.data["a"].items()) == {"x": 1, "y": 2}
