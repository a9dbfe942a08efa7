"""Columns of a dataset: statistics true to the rows, samples the same every time, thumbnails, differences of splits."""

import io
import re
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hopyard.data import NodeCache, open_dataset, prepare
from hopyard.data.reports.columns import describe_columns, first_rows
from hopyard.data.reports.images import Thumbnail
from hopyard.data.reports.sample import spread_rows
from hopyard.errors import DataError, NotFoundError, UsageError
from hopyard.storage import LocalStore


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    rows = 600
    frame = pd.DataFrame(
        {
            "income": rng.gamma(3, 1, rows).astype(np.float32),
            "grade": rng.integers(0, 5, rows),
            "flag": rng.random(rows) < 0.2,
            "city": rng.choice(["Rome", "Oslo", "Bonn"], rows),
            "name": [f"person {i}" for i in range(rows)],
            "words": [list(range(i % 7)) for i in range(rows)],
            "score": np.where(np.arange(rows) % 100 == 0, np.inf, rng.normal(0, 1, rows)),
            "born": pd.Timestamp("2001-02-03") + pd.to_timedelta(np.arange(rows), unit="h"),
        }
    )
    frame.loc[::10, "city"] = None
    return frame


@pytest.fixture(scope="module")
def store(tmp_path_factory, frame):
    store = LocalStore(tmp_path_factory.mktemp("described") / "store")
    prepare(frame, store, 0.25, nulls="mask", ragged="keep")
    return store


def described(data, *arguments):
    return {report.column.name: report for report in describe_columns(data, *arguments)}


def test_statistics_are_those_of_the_rows(store):
    columns, train = described(store), open_dataset(store)[:]
    income = columns["income"].splits[0]
    assert (income.split, income.rows, income.complete, income.exact) == ("train", 450, True, True)
    assert (income.min, income.max) == (train["income"].min(), train["income"].max())
    assert income.mean == pytest.approx(train["income"].mean())
    assert income.std == pytest.approx(train["income"].std(), rel=1e-4)
    assert columns["score"].splits[0].infinite == np.isinf(train["score"]).sum()
    assert [facts.split for facts in columns["flag"].splits] == ["train", "val"]
    assert columns["flag"].charts[0][1].labels == ("false", "true")


def test_distributions_are_those_of_the_rows(store):
    columns, train = described(store), open_dataset(store)[:]
    ((title, grades),) = columns["grade"].charts
    assert (title, grades.labels) == ("", ("0", "1", "2", "3", "4"))
    assert grades.shares[0].tolist() == (np.bincount(train["grade"]) / 450).tolist()
    assert [title for title, _ in columns["words"].charts] == ["", "Values of a row"]
    assert columns["words"].charts[1][1].labels == tuple("0123456")
    assert columns["name"].frequent.unique
    assert columns["name"].charts[0][0] == "Characters of a row"


def test_missing_rows_are_no_values(store):
    columns, train = described(store), open_dataset(store)[:]
    city = columns["city"]
    facts = city.splits[0]
    assert (facts.missing, facts.of, city.masked) == (train["city_mask"].sum(), 450, True)
    assert facts.distinct == 3
    assert set(city.frequent.values) == {"Bonn", "Oslo", "Rome"}
    assert "city_mask" not in columns


def test_integers_that_may_be_times_are_told_as_such(store):
    columns = described(store)
    assert columns["born"].times == ("2001-02-03 00:00:00", "2001-02-27 23:00:00")
    assert columns["grade"].times is None


def test_splits_that_differ_are_noticed(tmp_path):
    rng = np.random.default_rng(0)
    rows = 2000
    fold = np.arange(rows) % 2
    data = {
        "shifted": rng.normal(0, 1, rows) + fold,
        "alike": rng.normal(0, 1, rows),
        "city": np.where(fold, "Rome", rng.choice(["Rome", "Oslo"], rows)).tolist(),
        "longer": [[0] * (1 + number * 3) for number in fold],
        "known": [None if number and row % 4 < 3 else "yes" for row, number in enumerate(fold)],
        "id": [str(i) for i in range(rows)],
        "fold": fold,
    }
    prepare(data, LocalStore(tmp_path), "fold", nulls="mask", ragged="keep")
    differences = {name: report.differences for name, report in described(tmp_path).items()}
    assert differences["alike"] == differences["id"] == ()
    assert re.fullmatch(
        r"the values, by a Kolmogorov-Smirnov distance of 0\.(3|4)\d", differences["shifted"][0]
    )
    assert re.fullmatch(
        r"the shares of its values, by a total variation of 0\.(4|5)\d", differences["city"][0]
    )
    assert differences["longer"] == ("the lengths of rows, by a Kolmogorov-Smirnov distance of 1.00",)
    assert differences["known"][-1] == "missing rows, 0.0% and 50.0% of all"


def test_parquet_of_others_is_described_with_its_nulls(tmp_path):
    table = pa.table(
        {"x": [1.5, None, 2.5, float("nan")], "s": ["a", "b", None, None], "l": [[1], [1, 2], [], [3]]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    columns = described(tmp_path / "t.parquet")
    assert list(columns) == ["x", "s", "l"]
    x = columns["x"].splits[0]
    assert (x.missing, x.nan, x.min, x.max, x.mean, x.distinct) == (1, 1, 1.5, 2.5, 2.0, 2)
    assert columns["s"].splits[0].missing == 2
    assert first_rows(tmp_path / "t.parquet", tuple(columns.values()))[1][:2] == [None, "b"]


def test_ragged_rows_of_arrays_are_described_by_their_elements(tmp_path):
    rows = [np.arange(2.0 * (i % 3)).reshape(-1, 2) for i in range(60)]
    prepare({"v": rows}, LocalStore(tmp_path), None, ragged="keep")
    report = described(tmp_path)["v"]
    (_, values), (_, lengths) = report.charts
    assert values.shares[0].sum() == pytest.approx(1)
    assert lengths.labels == ("0", "1", "2")


def test_the_node_cache_is_left_alone(tmp_path):
    pq.write_table(pa.table({"s": ["a", "b"] * 50}), tmp_path / "t.parquet")
    dataset = open_dataset(tmp_path / "t.parquet", cache=tmp_path / "cache")
    first_rows(dataset, describe_columns(dataset))
    first_rows(tmp_path / "t.parquet", describe_columns(tmp_path / "t.parquet"))
    assert NodeCache(tmp_path / "cache").entries() == []
    assert not [
        entry for entry in NodeCache().entries() if str(tmp_path) in str(entry.description["row_groups"])
    ]
    assert dataset.cache.path == tmp_path / "cache"


def test_a_sample_is_said_to_be_one_and_repeats(tmp_path):
    rng = np.random.default_rng(0)
    rows = 30_000
    table = pa.table({"x": rng.normal(0, 1, rows), "s": [f"v{i % 50}" for i in range(rows)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000)
    first, second = described(tmp_path / "t.parquet", 2000), described(tmp_path / "t.parquet", 2000)
    assert str(first) == str(second)
    x, s = first["x"].splits[0], first["s"].splits[0]
    assert (x.rows, x.complete, x.exact) == (2000, False, False)
    assert x.mean == pytest.approx(0, abs=0.15)
    assert (s.distinct, s.at_least) == (50, True)


def test_rows_are_spread_over_the_whole_dataset(make_dataset):
    dataset = make_dataset([[100] * 30, [50] * 40], ("id", "text"))
    for mapped, reached in ((True, 200), (False, 16)):
        rows = spread_rows(dataset, 200, mapped)
        assert len(rows) == 200
        assert (np.diff(rows) > 0).all()
        assert rows.max() > 4700
        assert rows.min() < 300
        assert np.array_equal(rows, spread_rows(dataset, 200, mapped))
        groups = np.unique(np.searchsorted(np.cumsum(dataset.group_rows), rows, side="right"))
        assert (len(groups) > 60) if mapped else len(groups) == reached
    assert np.array_equal(spread_rows(dataset, 5000, False), np.arange(5000))


def test_progress_counts_columns(store):
    told = []
    columns = describe_columns(store, progress=lambda *at: told.append(at))
    assert told == [(number, len(columns)) for number in range(1, len(columns) + 1)]


def test_what_cannot_be_described_is_refused(store, tmp_path):
    with pytest.raises(UsageError, match="sample_rows=0, but it must be an integer of at least 1"):
        describe_columns(store, 0)
    with pytest.raises(NotFoundError, match=r"There is no file or directory .*empty\. Check the path"):
        describe_columns(tmp_path / "empty")
    with pytest.raises(DataError, match=r"no rows, so there is nothing to describe\. Open one that has some"):
        describe_columns(open_dataset(store).part([]))


def encoded(kind):
    file = io.BytesIO()
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    rows = 40
    data = {
        "grey": rng.integers(0, 255, (rows, 8, 9)).astype(np.uint8),
        "last": rng.integers(0, 255, (rows, 12, 10, 3)).astype(np.uint8),
        "first": rng.integers(0, 255, (rows, 3, 200, 100)).astype(np.uint8),
        "table": rng.integers(0, 255, (rows, 4, 5)).astype(np.uint8),
        "photo": [encoded("JPEG") if i % 2 else encoded("PNG") for i in range(rows)],
        "blob": [b"no image"] * rows,
        "broken": [encoded("PNG")[:40]] * rows,
    }
    prepare(data, LocalStore(tmp_path / "store"), None)
    return tmp_path / "store"


def test_columns_of_images_have_thumbnails(images):
    found = {name: report.images for name, report in described(images).items()}
    assert found["table"] is found["blob"] is None
    sizes = {
        name: {(each.width, each.height) for each in found[name].shown}
        for name in ("grey", "last", "first", "photo")
    }
    assert sizes == {"grey": {(9, 8)}, "last": {(10, 12)}, "first": {(100, 200)}, "photo": {(30, 20)}}
    assert Image.open(io.BytesIO(found["first"].shown[0].png)).size == (64, 128)
    assert (len(found["grey"].shown), len(found["photo"].shown)) == (24, 12)
    assert (found["broken"].shown, found["broken"].note) == ((), "12 of 12 could not be decoded.")


def test_pixels_of_a_thumbnail_are_those_of_the_row(images):
    first = described(images)["grey"].images.shown[0]
    pixels = np.asarray(Image.open(io.BytesIO(first.png)))
    assert np.array_equal(pixels, open_dataset(images)[first.row]["grey"])


def test_first_rows_hold_thumbnails_of_images_and_other_values_as_they_are(images):
    columns = describe_columns(images)
    rows = first_rows(images, columns)
    assert len(rows) == 8
    values = dict(zip((report.column.name for report in columns), rows[3], strict=True))
    assert isinstance(values["photo"], Thumbnail)
    assert (values["photo"].row, values["first"].height) == (3, 200)
    assert Image.open(io.BytesIO(values["first"].png)).size == (20, 40)
    assert values["blob"] == b"no image"
    assert values["broken"] == encoded("PNG")[:40]


def test_without_pillow_images_are_left_out_with_a_note(images, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    found = described(images)["grey"].images
    assert found.shown == ()
    assert (
        found.note == "Images are not shown: that needs Pillow, which pip install 'hopyard[images]' installs."
    )
