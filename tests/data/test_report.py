"""The page of a dataset: whole, harmless, the same every time, and true to the data."""

import io
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset, prepare, report
from hopyard.data.reports.charts import draw, number, percent
from hopyard.data.reports.columns import Bins, Numbers, Values, chart_numbers, count_strings
from hopyard.data.reports.compare import distance_of_numbers, missing_differs, numbers_differ, strings_differ
from hopyard.data.reports.markup import Html, tag
from hopyard.data.reports.report import describe
from hopyard.data.reports.sample import spread_rows
from hopyard.errors import DataError, NotFoundError, NotWritableError, UsageError
from hopyard.storage import LocalStore

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed, in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.links, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attrs):
        attrs = dict(attrs)
        self.tags.append((name, attrs))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if name == "a":
            self.links.append(attrs["href"])
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attrs):
        raise AssertionError(f"<{name}/> is not HTML")

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    def every(self, name):
        return [attrs for its, attrs in self.tags if its == name]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


HOSTILE = "<script>alert('1')</script>\"&\x00\u202e"


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    rows = 600
    frame = pd.DataFrame(
        {
            "income": rng.gamma(3, 1, rows).astype(np.float32),
            "grade": rng.integers(0, 5, rows),
            "flag": rng.random(rows) < 0.2,
            "constant": np.full(rows, 3.5),
            "city": rng.choice(["Rome", "Oslo", HOSTILE], rows),
            "name": [f"person {i}" for i in range(rows)],
            "words": [list(range(i % 7)) for i in range(rows)],
            "score": np.where(np.arange(rows) % 100 == 0, np.inf, rng.normal(0, 1, rows)),
            "born": pd.Timestamp("2001-02-03") + pd.to_timedelta(np.arange(rows), unit="h"),
            HOSTILE: np.arange(rows),
        }
    )
    frame.loc[::10, "city"] = None
    return frame


@pytest.fixture(scope="module")
def store(tmp_path_factory, frame):
    store = LocalStore(tmp_path_factory.mktemp("reported") / "store")
    prepare(frame, store, 0.25, nulls="mask", ragged="keep")
    return store


def read(path):
    text = path.read_text("utf-8")
    return text, Page(text)


def test_the_page_is_whole_and_loads_nothing(store, tmp_path):
    text, page = read(report(store, tmp_path / "page.html"))
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert page.every("script") == page.every("link") == page.every("iframe") == []
    assert not re.search(r"https?://|@import|url\(", text)
    assert "default-src 'none'" in next(
        attrs["content"]
        for attrs in page.every("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert len(text) < 200_000
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".html"] == ["page.html"]
    assert not list(tmp_path.glob(".*")), "nothing temporary is left"


def test_names_and_values_of_the_data_are_only_text(store, tmp_path):
    text, page = read(report(store, tmp_path / "page.html", title=HOSTILE))
    assert "<script" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    shown = "<script>alert('1')</script>\"&\ufffd\ufffd"
    assert sum(shown in part for part in page.texts) >= 5, "title, heading, table, card, values"
    assert all(not name.startswith("on") for _, attrs in page.tags for name in attrs)


def test_pictures_and_tables_can_be_read_aloud(store, tmp_path):
    _, page = read(report(store, tmp_path / "page.html"))
    charts = page.every("svg")
    assert charts
    assert all(chart["role"] == "img" and len(chart["aria-label"]) > 20 for chart in charts)
    assert all(header.get("scope") in ("row", "col") for header in page.every("th"))
    assert any(
        chart["aria-label"].startswith("income: histogram of ") and "of train" in chart["aria-label"]
        for chart in charts
    )
    assert page.every("html") == [{"lang": "en"}]


def test_it_says_what_the_dataset_is(store, tmp_path):
    _, page = read(report(store, tmp_path / "page.html"))
    train = open_dataset(store)
    assert train.fingerprint in page.text
    for said in ("rows in train 450", "rows in val 150", "columns 10", "files 2", "nulls='mask'", store.url):
        assert said in page.text
    assert "constant : all values are the same." in page.text
    assert "score : infinite values:" in page.text
    assert "Charts, most frequent values and comparisons are of all rows." in page.text
    assert "As nanoseconds since 1970: 2001-02-03 00:00:00 to 2001-02-27 23:00:00." in page.text
    assert "No value" not in page.text
    assert "for example" in page.text, "of names, which are all different"


def test_facts_are_those_of_the_rows(store, frame):
    described = {column.column.name: column for column in describe(store).columns}
    train = open_dataset(store)[:]
    facts = described["income"].splits[0]
    assert (facts.min, facts.max) == (train["income"].min(), train["income"].max())
    assert facts.mean == pytest.approx(train["income"].mean())
    assert facts.std == pytest.approx(train["income"].std(), rel=1e-4)
    assert facts.exact
    missing = int(train["city_mask"].sum())
    city = described["city"]
    assert (city.splits[0].missing, city.splits[0].of, city.masked) == (missing, 450, True)
    assert city.splits[0].distinct == 3, "missing rows are no value"
    assert "city_mask" not in described
    infinite = int(np.isinf(train["score"]).sum())
    assert described["score"].splits[0].infinite == infinite
    ((_, grades),) = described["grade"].charts
    assert grades.labels == ("0", "1", "2", "3", "4")
    assert grades.shares[0].tolist() == (np.bincount(train["grade"]) / 450).tolist()
    titles = [title for title, _ in described["words"].charts]
    assert titles == ["", "Values of a row"]
    assert described["words"].charts[1][1].labels == tuple("0123456")


def test_splits_that_differ_are_noticed(tmp_path):
    rng = np.random.default_rng(0)
    rows = 2000
    fold = np.arange(rows) % 2
    data = {
        "shifted": rng.normal(0, 1, rows) + fold,
        "alike": rng.normal(0, 1, rows),
        "city": np.where(fold, "Rome", rng.choice(["Rome", "Oslo"], rows)).tolist(),
        "id": [str(i) for i in range(rows)],
        "fold": fold,
    }
    prepare(data, LocalStore(tmp_path), "fold")
    described = {column.column.name: column.differences for column in describe(tmp_path).columns}
    assert described["alike"] == described["id"] == ()
    assert re.fullmatch(
        r"the values, by a Kolmogorov-Smirnov distance of 0\.(3|4)\d", described["shifted"][0]
    )
    assert re.fullmatch(r"the shares of its values, by a total variation of 0\.(4|5)\d", described["city"][0])


def test_files_of_others_are_reported_with_their_nulls(tmp_path):
    table = pa.table(
        {"x": [1.5, None, 2.5, float("nan")], "s": ["a", "b", None, None], "l": [[1], [1, 2], [], [3]]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    described = {column.column.name: column for column in describe(tmp_path / "t.parquet").columns}
    assert list(described) == ["x", "s", "l"]
    x = described["x"].splits[0]
    assert (x.missing, x.nan, x.min, x.max, x.mean, x.distinct) == (1, 1, 1.5, 2.5, 2.0, 2)
    assert described["s"].splits[0].missing == 2
    _, page = read(report(tmp_path / "t.parquet", tmp_path / "page.html"))
    assert "x : NaN values: 1 in train." in page.text
    assert "s : missing in 2 of 4 rows of train (50%); left out of charts and numbers." in page.text
    assert "Parquet files as they are, without a manifest." in page.text


def test_the_node_cache_is_left_alone(tmp_path):
    from hopyard.data.cache.node import NodeCache

    pq.write_table(pa.table({"s": ["a", "b"] * 50}), tmp_path / "t.parquet")
    dataset = open_dataset(tmp_path / "t.parquet", cache=tmp_path / "cache")
    report(dataset, tmp_path / "page.html")
    report(tmp_path / "t.parquet", tmp_path / "page.html")
    assert NodeCache(tmp_path / "cache").entries() == []
    assert not [
        entry for entry in NodeCache().entries() if str(tmp_path) in str(entry.description["row_groups"])
    ]
    assert dataset.cache.path == tmp_path / "cache"


def test_a_sample_is_said_to_be_one_and_repeats(tmp_path):
    rng = np.random.default_rng(0)
    rows = 30_000
    pq.write_table(
        pa.table({"x": rng.normal(0, 1, rows), "s": [f"v{i % 50}" for i in range(rows)]}),
        tmp_path / "t.parquet",
        row_group_size=1000,
    )
    first, _ = read(report(tmp_path / "t.parquet", tmp_path / "1.html", sample_rows=2000, title="t"))
    second, page = read(report(tmp_path / "t.parquet", tmp_path / "2.html", sample_rows=2000, title="t"))
    assert first == second
    assert "are of a sample: at most 2,000 rows of each split" in page.text
    assert "≈" in page.text
    assert "≥ 50" in page.text
    facts = describe(tmp_path / "t.parquet", 2000).columns[0].splits[0]
    assert (facts.rows, facts.complete, facts.exact) == (2000, False, False)
    assert facts.mean == pytest.approx(0, abs=0.15)


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


def encoded(kind):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("pictures")
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


def test_columns_of_images_are_shown(pictures, tmp_path):
    described = {column.column.name: column.pictures for column in describe(pictures).columns}
    assert described["table"] is described["blob"] is None
    assert {(each.width, each.height) for each in described["grey"].shown} == {(9, 8)}
    assert {(each.width, each.height) for each in described["last"].shown} == {(10, 12)}
    assert {(each.width, each.height) for each in described["first"].shown} == {(100, 200)}
    assert {(each.width, each.height) for each in described["photo"].shown} == {(30, 20)}
    assert (len(described["grey"].shown), len(described["photo"].shown)) == (24, 12)
    assert described["broken"].note == "12 of 12 could not be decoded."
    _, page = read(report(pictures, tmp_path / "page.html"))
    images = page.every("img")
    assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in images)
    assert "photo, row 1" in {image["alt"] for image in images}


def test_pixels_of_a_sample_are_those_of_the_row(pictures):
    import base64

    from PIL import Image

    [grey] = [column.pictures for column in describe(pictures).columns if column.column.name == "grey"]
    first = grey.shown[0]
    png = base64.b64decode(first.uri.partition(",")[2])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), open_dataset(pictures)[first.row]["grey"])


def test_without_pillow_images_are_left_out_with_a_note(pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    _, page = read(report(pictures, tmp_path / "page.html"))
    assert page.every("img") == []
    assert (
        "Images are not shown: that needs Pillow, which pip install 'hopyard[images]' installs." in page.text
    )


def test_what_cannot_be_written_leaves_what_was_there(store, tmp_path):
    target = tmp_path / "page.html"
    target.write_text("before")
    with pytest.raises(UsageError, match=r"is a directory. Give the path of a file, such as .*report\.html"):
        report(store, tmp_path)
    with pytest.raises(
        NotFoundError, match=r"the directory for the report, does not exist. Make it, or give"
    ):
        report(store, tmp_path / "no" / "page.html")
    with pytest.raises(UsageError, match="sample_rows=0, but it must be an integer of at least 1"):
        report(store, target, sample_rows=0)
    with pytest.raises(NotFoundError, match=r"There is no file or directory .*empty\. Check the path"):
        report(tmp_path / "empty", target)
    with pytest.raises(
        NotWritableError, match=r"The report cannot be written to .*Give a path that you may write to"
    ):
        report(store, tmp_path / ("x" * 300))
    assert target.read_text() == "before"


def test_a_dataset_without_rows_is_refused(store, tmp_path):
    import pyarrow.dataset as ds

    with pytest.raises(DataError):
        report(open_dataset(store, filters=ds.field("grade") > 99), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.5] * 9, Values),
        ([1, 2, 3] * 9, Values),
        ([0, 10**9], Bins),
        (np.arange(1000), Bins),
        (np.random.default_rng(0).normal(0, 1, 1000), Bins),
        ([1e300, -1e300, *range(100)], Bins),
        ([0.1, np.nextafter(0.1, 1), *[0.1] * 9], Values),
        ([np.nan, np.inf], type(None)),
        ([], type(None)),
    ],
)
def test_every_distribution_has_its_chart(values, expected):
    numbers = Numbers.of(np.array(values))
    chart = chart_numbers([numbers])
    assert isinstance(chart, expected)
    if chart is not None:
        total = chart.shares[0].sum() + (chart.outside[0] if isinstance(chart, Bins) else 0)
        assert total == pytest.approx(1)
        Page(draw(chart, ["train"], "x"))
    if isinstance(chart, Bins):
        assert (np.diff(chart.edges) > 0).all()
        assert len(chart.shares[0]) <= 60


def test_integers_lie_in_the_middle_of_their_bins():
    chart = chart_numbers([Numbers.of(np.arange(100))])
    assert chart.edges[0] == -0.5
    assert len(set(np.diff(chart.edges))) == 1
    assert float(np.diff(chart.edges)[0]).is_integer()


def test_long_tails_do_not_squeeze_the_rest():
    values = np.append(np.random.default_rng(0).normal(0, 1, 10_000), [1e6, -1e6])
    chart = chart_numbers([Numbers.of(values)])
    assert -4 < chart.edges[0] < chart.edges[-1] < 4
    assert chart.outside[0] == pytest.approx(0.01, abs=0.003)


def test_frequent_strings_are_those_that_repeat():
    _, frequent = count_strings([["b", "a", "b", "c"], ["a", "d"]])
    assert frequent.values == ("a", "b")
    assert [share.tolist() for share in frequent.shares] == [[0.25, 0.5], [0.5, 0.0]]
    assert (frequent.others, frequent.unique) == (2, False)
    _, unique = count_strings([[str(i) for i in range(9)]])
    assert (unique.values, unique.others, unique.unique) == (("0", "1", "2"), 6, True)
    assert count_strings([[]])[1] is None


def test_distances_are_those_of_the_books():
    one, other = np.array([1, 2, 3, 4]), np.array([3, 4, 5, 6])
    assert distance_of_numbers(one, other) == 0.5
    assert distance_of_numbers(one, one) == 0
    assert distance_of_numbers(one, np.array([])) == 0
    assert strings_differ({"a": 3, "b": 1}, {"a": 1, "b": 3})[0] == pytest.approx(0.5)
    assert strings_differ({}, {"a": 1}) == (0.0, False)


def test_chance_is_not_taken_for_a_difference():
    rng = np.random.default_rng(1)
    for _ in range(50):
        one, other = rng.normal(0, 1, 60), rng.normal(0, 1, 60)
        assert not numbers_differ(distance_of_numbers(one, other), 60, 60)
        counts = [dict(enumerate(np.bincount(rng.integers(0, 40, 100), minlength=40).tolist())) for _ in "ab"]
        assert not strings_differ(*counts)[1]
    assert missing_differs(50, 100, 5, 100)
    assert not missing_differs(2, 10, 0, 10)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234567, "1,234,567"),
        (0.0001234, "0.0001234"),
        (1.5, "1.5"),
        (10**18, "1e+18"),
        (None, ""),
    ],
)
def test_numbers_are_readable(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (1, "100%"), (0.0001, "<0.1%"), (0.0123, "1.2%"), (0.5, "50%"), (0.9999, "99.9%")],
)
def test_shares_never_round_to_all_or_nothing(share, text):
    assert percent(share) == text


def test_markup_escapes_what_is_not_markup():
    assert tag("p", "<b>", Html("<i></i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i></i></p>'
    assert tag("img", alt="\x1b", hidden=True, width=None) == '<img alt="\ufffd" hidden>'
