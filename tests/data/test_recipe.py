import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hopyard.data import Column, Ragged, Schema, open_dataset, prepare
from hopyard.data.cache.node import NodeCache
from hopyard.data.recipe.recipe import Recipe
from hopyard.errors import ColumnError, CorruptError, DataError, UsageError
from hopyard.storage import LocalStore

ROWS = 40


def table():
    return pa.table(
        {
            "id": range(ROWS),
            "x": [None if i % 5 == 0 else float(i) for i in range(ROWS)],
            "name": [None if i == 7 else f"n{i}" for i in range(ROWS)],
            "list": pa.array(
                [None if i == 3 else list(range(i % 4)) for i in range(ROWS)], pa.list_(pa.int16())
            ),
            "even": pa.array([None if i == 3 else [i, i] for i in range(ROWS)], pa.list_(pa.int16())),
            "raw": [None if i == 4 else np.full(3, i, np.uint8).tobytes() for i in range(ROWS)],
        }
    )


@pytest.fixture(params=[True, False], ids=["statistics", "no statistics"])
def file(tmp_path, request):
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, row_group_size=11, write_statistics=request.param)
    return path


def rows_of(values):
    return [row.tolist() for row in values] if isinstance(values, Ragged) else values.tolist()


def filled(batch):
    ids = batch["id"].tolist()
    assert batch["x"].tolist() == [0 if i % 5 == 0 else i for i in ids]
    assert batch["name"].tolist() == ["" if i == 7 else f"n{i}" for i in ids]
    assert rows_of(batch["list"]) == [[] if i == 3 else list(range(i % 4)) for i in ids]
    assert batch["even"].tolist() == [[0, 0] if i == 3 else [i, i] for i in ids]
    assert batch["raw"].tolist() == [b"" if i == 4 else bytes([i] * 3) for i in ids]


def test_nulls_are_errors_filled_or_masked(file):
    with pytest.raises(DataError, match=r"a.parquet, row group 0: column '\w+' has .*nulls='fill'"):
        open_dataset(file)[:]
    dataset = open_dataset(file, nulls="fill")
    assert dataset.schema.names == table().column_names
    filled(dataset[:])
    for batch in dataset.loader(7, True):
        filled(batch)
    dataset = open_dataset(file, nulls="mask")
    null = {"x": lambda i: i % 5 == 0, "name": lambda i: i == 7, "list": lambda i: i == 3, "even": lambda i: i == 3,
            "raw": lambda i: i == 4}  # fmt: skip
    assert dataset.schema.names == ["id", *(f"{name}{end}" for name in null for end in ("", "_mask"))]
    for batch in dataset.loader(7, True):
        filled(batch)
        for name, is_null in null.items():
            assert batch[f"{name}_mask"].tolist() == [is_null(i) for i in batch["id"]]


def test_ragged_rows_are_kept_padded_or_errors(file):
    with pytest.raises(
        DataError, match=r"Column 'list' is ragged: its rows have 0 to 3 values. Pass ragged='pad'"
    ):
        open_dataset(file, nulls="fill", ragged="error")
    dataset = open_dataset(file, nulls="fill", ragged="pad")
    assert dataset.schema["list"] == Column("list", "tensor", "int16", (3,))
    for batch in dataset.loader(7, True):
        lengths = [0 if i == 3 else i % 4 for i in batch["id"]]
        assert batch["list_length"].tolist() == lengths
        assert batch["list"].tolist() == [[*range(n), *[0] * (3 - n)] for n in lengths]
        assert "even_length" not in batch
    short = open_dataset(file, nulls="fill", ragged="pad", filters=pc.field("id").isin([0, 1, 2, 6]))
    assert short.schema["list"].shape == (2,)  # of the rows that are there


def test_prepared_lists_are_padded_on_opening(tmp_path):
    lists = Ragged.from_rows([range(i % 4) for i in range(ROWS)], np.int32)
    prepare({"id": np.arange(ROWS), "list": lists}, LocalStore(tmp_path), ragged="keep")
    for dataset in (open_dataset(tmp_path, ragged="pad"), open_dataset(open_dataset(tmp_path), ragged="pad")):
        batch = dataset[:]
        assert batch["list"].tolist() == [[*range(i % 4), *[0] * (3 - i % 4)] for i in batch["id"]]
        assert batch["list_length"].tolist() == (batch["id"] % 4).tolist()
    with pytest.raises(DataError, match="Column 'list' is ragged"):
        open_dataset(tmp_path, ragged="error")


def numbers(raw):
    return np.frombuffer(raw, np.uint8)


def test_bytes_are_decoded_and_null_ones_are_zeros(file):
    dataset = open_dataset(file, nulls="mask", decode={"raw": numbers}, columns=["id", "raw", "raw_mask"])
    assert dataset.schema["raw"] == Column("raw", "tensor", "uint8", (3,))
    for batch in dataset.loader(9, True):
        assert batch["raw"].tolist() == [[0] * 3 if i == 4 else [i] * 3 for i in batch["id"]]
        assert batch["raw_mask"].tolist() == [i == 4 for i in batch["id"]]
    with pytest.raises(DataError, match="decode= is for columns of bytes, but column 'name' is name: string"):
        open_dataset(file, nulls="fill", decode={"name": numbers})
    with pytest.raises(ColumnError, match="Unknown column: 'row'; did you mean 'raw'"):
        open_dataset(file, nulls="fill", decode={"row": numbers})
    with pytest.raises(
        DataError, match=r"a.parquet, row group 0, column 'raw', row 0 is int64 when decoded.*int64\[5\]|"
    ):
        open_dataset(file, nulls="fill", decode={"raw": lambda raw: np.zeros(raw[0] or 5, int)})[:]


def scaled(columns):
    return {
        "z": columns["x"] * 2 + columns["id"],
        "id": columns["id"],
        "short": [n[:2] for n in columns["name"]],
    }


def test_a_cached_transform_makes_the_columns(file):
    dataset = open_dataset(file, nulls="fill", cached_transform=scaled)
    assert [str(column) for column in dataset.schema] == ["z: float64", "id: int64", "short: string"]
    for batch in dataset.loader(9, True):
        assert batch["z"].tolist() == [(0 if i % 5 == 0 else 2 * i) + i for i in batch["id"]]
        assert batch["short"].tolist() == ["" if i == 7 else f"n{i}"[:2] for i in batch["id"]]
    chosen = open_dataset(
        file, nulls="fill", cached_transform=scaled, columns=["short"], filters=pc.field("id") > 30
    )
    assert chosen[:]["short"].tolist() == ["n3"] * 9
    prepared = open_dataset(
        file, nulls="fill", cached_transform=lambda columns: {"list": columns["list"], **columns}
    )
    assert rows_of(prepared[:]["list"]) == [[] if i == 3 else list(range(i % 4)) for i in range(ROWS)]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_cached_transform_runs_once_for_all_processes(tmp_path, is_prepared):
    pq.write_table(pa.table({"id": range(ROWS)}), tmp_path / "a.parquet", row_group_size=11)
    data = tmp_path / "a.parquet"
    if is_prepared:
        data = prepare(data, LocalStore(tmp_path / "store"), validation=data).train
    calls = tmp_path / "calls"
    calls.mkdir()
    directory = str(calls)

    def counted(columns):
        (Path(directory) / f"{columns['id'].min()} {len(columns['id'])}").touch(exist_ok=False)
        return {"id": columns["id"] + 1}

    cache = NodeCache(tmp_path / "cache")
    for again in (False, True):
        dataset = open_dataset(data, cached_transform=counted, cache=cache)
        for call in calls.iterdir():  # of opening
            call.unlink()
        assert sorted(dataset[:]["id"]) == list(range(1, ROWS + 1))
        assert bool(list(calls.iterdir())) != again
        for call in calls.iterdir():
            call.unlink()


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (lambda columns: columns["id"], r"row group 0: cached_transform gave ndarray, but must give a dict"),
        (lambda columns: {"id": columns["id"][::2]}, r"gave 6 rows of column 'id' for 11 rows. .* filters="),
        (lambda columns: {"id": columns["id"].astype(str if columns["id"][0] else int)},
         r"row group 1: cached_transform gave id: string, but for the first rows it gave id: int64"),
        (lambda columns: {f"id{columns['id'][0]}": columns["id"]},
         r"row group 1: cached_transform gave the columns id11, but before it gave id0"),
        (lambda columns: {"id": [None] * 11}, r"gave what a dataset cannot hold: id \(nothing but"),
        (lambda columns: {"id": np.ma.masked_less(columns["id"], 4)}, "gave 4 nulls in column 'id'. Fill them there"),
        (lambda columns: {"id": columns["id"] / columns["nothing"]}, "cached_transform failed: KeyError: 'nothing'"),
    ],
)  # fmt: skip
def test_what_a_cached_transform_does_wrong_is_said(file, transform, text):
    with pytest.raises(DataError, match=text):
        open_dataset(file, nulls="fill", cached_transform=transform, cache=False)[:]


def test_only_what_is_wanted_is_looked_at(file):
    assert open_dataset(file, columns=["id"])[:]["id"].tolist() == list(range(ROWS))
    dataset = open_dataset(file, columns=["x_mask", "id"], nulls="mask")
    assert dataset.schema.names == ["x_mask", "id"]
    assert dataset[:]["x_mask"].tolist() == [i % 5 == 0 for i in range(ROWS)]
    with pytest.raises(ColumnError, match=r"Unknown column: 'idd'; did you mean 'id'"):
        open_dataset(file, columns=["idd"])


def test_the_fingerprint_changes_with_what_is_asked_but_not_with_the_cache(file, tmp_path):
    asked = [
        {"nulls": "fill"},
        {"nulls": "mask"},
        {"nulls": "fill", "ragged": "pad"},
        {"nulls": "fill", "decode": {"raw": numbers}},
        {"nulls": "fill", "decode": {"raw": lambda raw: np.frombuffer(raw, np.uint8) + 1}},
        {"nulls": "fill", "cached_transform": scaled},
        {"nulls": "fill", "cached_transform": lambda columns: {"id": columns["id"]}},
        {"nulls": "fill", "filters": pc.field("id") > 3},
        {"columns": ["id"]},
    ]
    fingerprints = [open_dataset(file, **options).fingerprint for options in asked]
    assert len(set(fingerprints)) == len(asked)
    for cache in (False, tmp_path / "cache", NodeCache(tmp_path / "other")):
        assert [open_dataset(file, cache=cache, **options).fingerprint for options in asked] == fingerprints
    with pytest.raises(UsageError, match="cache=True, but it must be a NodeCache"):
        open_dataset(file, cache=True)
    reopened = open_dataset(open_dataset(file, nulls="fill"), cache=tmp_path / "cache")
    assert reopened.cache.path == tmp_path / "cache"


def test_policies_are_known(file):
    for options in ({"nulls": "drop"}, {"ragged": "cut"}, {"corrupt": "ignore"}):
        [(name, value)] = options.items()
        with pytest.raises(UsageError, match=f"{name}='{value}', but it must be one of"):
            open_dataset(file, **options)
    for columns in ("id", [], ["id", "id"]):
        with pytest.raises(UsageError, match="it must be a list of at least one name, none of them twice"):
            open_dataset(file, columns=columns)
    with pytest.raises(UsageError, match=r"decode=\['raw'\], but it must be a dict of column to decoder"):
        open_dataset(file, decode=["raw"])
    with pytest.raises(UsageError, match="on top of which nothing can be asked"):
        open_dataset(open_dataset(file, nulls="fill"), ragged="pad")


def test_recipes_travel(file):
    dataset = open_dataset(file, nulls="mask", ragged="pad", decode={"raw": numbers})
    again = pickle.loads(pickle.dumps(dataset))
    assert again.recipe == dataset.recipe
    assert again.fingerprint == dataset.fingerprint
    assert again[[3]]["list"].tolist() == [[0, 0, 0]]


def test_the_plain_recipe_changes_nothing():
    recipe = Recipe.plain(Schema([Column("a", "tensor", "int8"), Column("b", "ragged", "float32")]))
    assert recipe.digest == ""
    assert recipe.is_plain("a")
    assert recipe.needs(["b", "a"]) == ["b", "a"]
    rows = pa.table({"a": pa.array([1, 2], pa.int8()), "b": pa.array([[1], [2, 3]], pa.list_(pa.float32()))})
    made = recipe.apply(rows, ["b", "a"], 0, "somewhere")
    assert made["a"].tolist() == [1, 2]
    assert rows_of(made["b"]) == [[1], [2, 3]]
    for wrong, text in (
        (
            pa.table({"a": [1.5], "b": rows["b"][:1]}),
            r"somewhere: column 'a' holds a: float64, but the rows before are a: int8. .* Write the file again",
        ),
        (
            pa.table({"a": rows["a"], "b": ["x", "y"]}),
            r"somewhere: column 'b' holds b: string, but .*float32\[\*\]. .* Write",
        ),
        (
            pa.table({"a": pa.array([1, None], pa.int8()), "b": rows["b"]}),
            "somewhere: column 'a' has 1 nulls",
        ),
    ):
        with pytest.raises(DataError, match=text):
            recipe.apply(wrong, ["a", "b"], 0, "somewhere")


def damage(path, needle):
    """Overwrite the first page that holds the bytes ``needle``."""
    content = bytearray(path.read_bytes())
    place = content.index(needle)
    content[place - 12 : place + len(needle)] = b"\xff" * (12 + len(needle))
    path.write_bytes(content)


@pytest.fixture
def damaged(tmp_path):
    """Three files of two row groups; one is cut, one has a page that cannot be decoded."""
    for number in range(3):
        ids = range(number * 20, number * 20 + 20)
        rows = pa.table({"id": ids, "text": [f"text of row {i:03}" for i in ids]})
        pq.write_table(
            rows, tmp_path / f"{number}.parquet", row_group_size=10, compression="none", use_dictionary=False
        )
    whole = tmp_path / "1.parquet"
    whole.write_bytes(whole.read_bytes()[:-7])
    damage(tmp_path / "2.parquet", b"text of row 055")
    return tmp_path


def test_what_is_corrupt_is_named(damaged):
    with pytest.raises(CorruptError, match=r"1.parquet .* is not a complete Parquet file"):
        open_dataset(damaged)
    with pytest.raises(
        CorruptError, match=r"2.parquet, row group 1, column 'text': cannot be decoded.*corrupt='skip'"
    ):
        open_dataset([damaged / "0.parquet", damaged / "2.parquet"])[:]
    with pytest.raises(CorruptError, match=r"2.parquet, row group 1, column 'text'"):
        open_dataset(damaged / "2.parquet", filters=[("text", "!=", "")])


@pytest.mark.parametrize("options", [{}, {"filters": [("text", "!=", "")]}, {"nulls": "mask"}])
def test_what_is_corrupt_is_skipped_and_counted(damaged, caplog, options):
    dataset = open_dataset(damaged, corrupt="skip", **options)
    assert dataset[:]["id"].tolist() == [*range(20), *range(40, 50)]
    assert list(dataset[:]["text"]) == [f"text of row {i:03}" for i in dataset[:]["id"]]
    file, group = sorted(dataset.skipped, key=lambda each: each.file)
    assert (file.file, file.row_group, file.column, file.rows) == (
        str(damaged / "1.parquet"),
        None,
        None,
        None,
    )
    assert (group.file, group.row_group, group.column, group.rows) == (
        str(damaged / "2.parquet"),
        1,
        "text",
        10,
    )
    [record] = [record for record in caplog.records if "left out" in record.message]
    assert "1 files and 1 row groups of 10 rows are left out" in record.message
    assert sum(map(len, dataset.partitions(3))) == 30
    good = open_dataset(damaged, columns=["id"], corrupt="skip")
    assert len(good) == 40
    assert good.fingerprint != dataset.fingerprint


def test_nothing_is_skipped_of_whole_files_and_something_must_be_left(damaged, caplog):
    dataset = open_dataset(damaged / "0.parquet", corrupt="skip")
    assert dataset.skipped == ()
    assert dataset.fingerprint == open_dataset(damaged / "0.parquet").fingerprint
    assert not caplog.records
    with pytest.raises(
        DataError, match=r"None of the 1 files is a whole Parquet file; the first: .*1.parquet"
    ):
        open_dataset(damaged / "1.parquet", corrupt="skip")
    damage(damaged / "0.parquet", b"text of row 005")
    damage(damaged / "0.parquet", b"text of row 015")
    with pytest.raises(
        DataError, match=r"No row group can be decoded; the first of 2: .*0.parquet, row group 0"
    ):
        open_dataset(damaged / "0.parquet", corrupt="skip")


def test_a_flipped_bit_is_found_where_pages_have_checksums(tmp_path):
    path = tmp_path / "a.parquet"
    rows = pa.table({"id": range(100), "x": [f"text {i}" for i in range(100)]})
    pq.write_table(
        rows, path, row_group_size=50, compression="none", use_dictionary=False, write_page_checksum=True
    )
    content = bytearray(path.read_bytes())
    content[content.index(b"text 77")] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"a.parquet, row group 1, column 'x': cannot be decoded .*"):
        open_dataset(path)[:]
    with pytest.raises(CorruptError, match=r"a.parquet, row group 1, column 'x': cannot be decoded"):
        prepare(path, LocalStore(tmp_path / "store"))
    assert open_dataset(path, corrupt="skip")[:]["id"].tolist() == list(range(50))


def test_a_thousand_columns_are_read(tmp_path):
    path = tmp_path / "wide.parquet"
    wide = pa.table({f"c{i}": [i, -i, None if i == 500 else 0] for i in range(1000)})
    pq.write_table(wide, path, row_group_size=2)
    batch = open_dataset(path, nulls="mask")[:]
    assert list(batch) == [f"c{i}" for i in range(501)] + ["c500_mask"] + [f"c{i}" for i in range(501, 1000)]
    assert all(batch[f"c{i}"].tolist() == [i, -i, 0] for i in range(1000))
    some = open_dataset(path, columns=["c999", "c3"], filters=[("c500", "<", 0), ("c7", "!=", 5)])
    assert {name: values.tolist() for name, values in some[:].items()} == {"c999": [-999], "c3": [-3]}
