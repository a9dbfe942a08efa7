import pickle
import re
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import Category, NodeCache, fit_steps, mix, open_dataset, prepare
from hopyard.data.preprocessing.category import Categories
from hopyard.data.ragged import Ragged
from hopyard.data.reading import flat, strings
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.strings import LARGE, Lying, MappedStrings, views_of, width_of_views, with_codes
from hopyard.data.schema import Column
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.storage import LocalStore

TEXTS = st.one_of(
    st.sampled_from(["", "a", "\0", "a\0", "\0a", "exactly twelve"[:12], "exactly 13 by", "ü" * 6, "ü" * 7]),
    st.text(max_size=5),
    st.text(st.characters(min_codepoint=0x10000, max_codepoint=0x10FFFF), max_size=5),
    st.text("ab", min_size=10, max_size=80),
)
TYPES = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.uint32(), pa.large_string()),
]  # fmt: skip


@st.composite
def columns(draw):
    """A list of values of which few or many are different, in another place of the list another share."""
    values = []
    for _ in range(draw(st.integers(1, 3))):
        some = draw(st.lists(TEXTS, min_size=1, max_size=8))
        rows = draw(st.integers(1, 40))
        values += [some[draw(st.integers(0, len(some) - 1))] for _ in range(rows)]
    return values


@given(
    columns(), st.sampled_from(TYPES), st.booleans(), st.integers(3, 60), st.integers(1, 50), st.booleans()
)
def test_batches_are_what_arrow_takes(
    tmp_path_factory, values, kind, is_binary, group, batch, is_dictionary_page
):
    folder = tmp_path_factory.mktemp("strings")
    if pa.types.is_dictionary(kind):
        kind = pa.dictionary(kind.index_type, pa.binary()) if is_binary else kind
    elif is_binary:
        kind = pa.large_binary()
    given_values = [value.encode() for value in values] if is_binary else values
    if pa.types.is_dictionary(kind):
        column = pa.array(given_values).dictionary_encode().cast(kind)
    else:
        column = pa.array(given_values, kind)
    table = pa.table({"text": column, "row": np.arange(len(values))})
    pq.write_table(table, folder / "a.parquet", row_group_size=group, use_dictionary=is_dictionary_page)
    cache = NodeCache(folder / "cache")
    for _ in range(2):  # decoded, then from the cache
        dataset = open_dataset(folder / "a.parquet", cache=cache)
        for shuffle in (False, True):
            for made in dataset.loader(batch, shuffle=shuffle, output="numpy"):
                assert made["text"].dtype == object
                assert made["text"].tolist() == [given_values[row] for row in made["row"]]
            for made in dataset.loader(batch, shuffle=shuffle, output="numpy", strings="arrow"):
                assert made["text"].type == LARGE["bytes" if is_binary else "string"]
                assert made["text"].to_pylist() == [given_values[row] for row in made["row"]]
        rows = np.arange(len(values))[:: max(1, len(values) // 7)]
        assert dataset[rows]["text"].tolist() == [given_values[row] for row in rows]
        view = dataset.reader().view({"text": "text"})
        groups, places = view.locate(rows, view.room_for(len(rows)))
        ((column, _),) = view._sources
        assert list(map(bytes, column.slices(places, groups))) == [
            value if is_binary else value.encode() for value in (given_values[row] for row in rows)
        ]


@st.composite
def lengths(draw):
    """Of a column's values: the least and the most bytes, which say how wide its views are."""
    least = draw(st.sampled_from([0, 10, 13, 26, 29, 58, 61, 110, 121, 126]))
    return least, least + draw(st.sampled_from([0, 2, 5, 40]))


@given(
    st.lists(st.tuples(st.booleans(), st.lists(lengths(), min_size=3, max_size=3)), min_size=1, max_size=4),
    st.integers(1, 30), st.integers(1, 25), st.integers(0, 1000), st.sampled_from([1, 300, 8 << 20]),
    st.sampled_from([1, 20, 1 << 15]),
)  # fmt: skip
def test_columns_side_by_side_are_what_each_is_alone(
    tmp_path_factory, kinds, group, batch, seed, piece, at_once
):
    folder = tmp_path_factory.mktemp("strings")
    random = np.random.default_rng(seed)
    table = {}
    for number, (is_binary, bounds) in enumerate(kinds):
        sizes = [random.integers(least, most + 1) for least, most in bounds for _ in range(group)]
        values = [random.integers(97, 123, size, np.uint8).tobytes() for size in sizes]
        table[f"c{number}"] = values if is_binary else [value.decode() for value in values]
    rows = 3 * group
    pq.write_table(pa.table({**table, "row": np.arange(rows)}), folder / "a.parquet", row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat, "_PIECE", piece)
        patch.setattr(strings, "_AT_ONCE", at_once)
        dataset = open_dataset(folder / "a.parquet", cache=NodeCache(folder / "cache"))
        for shuffle in (False, True):
            for made in dataset.loader(batch, shuffle=shuffle, output="numpy", window=group * 100):
                for name, values in table.items():
                    assert made[name].tolist() == [values[row] for row in made["row"]]
            for made in dataset.loader(batch, shuffle=shuffle, output="numpy", strings="arrow"):
                for name, values in table.items():
                    assert made[name].to_pylist() == [values[row] for row in made["row"]]
    some = random.integers(0, rows, 5)
    for name, values in table.items():
        assert dataset[some][name].tolist() == [values[row] for row in some]


@pytest.mark.parametrize(
    ("sizes", "width"),
    [([12] * 9, 16), ([13] * 9, 32), ([28, 3] * 9, 32), ([29] * 9, 64), ([60, 5] * 9, 16), ([60, 50] * 9, 64),
     ([90] * 9, 128), ([125] * 9, 16), ([12] * 90 + [20] * 9, 16), ([20] * 90 + [1000], 32), ([], 16)],
)  # fmt: skip
def test_views_are_as_wide_as_most_values_need_if_that_is_not_much(sizes, width):
    rows = Ragged.from_rows([np.zeros(size, np.uint8) for size in sizes], np.uint8)
    assert width_of_views([rows[:5], rows[5:]]) == width


def test_views_of_equal_width_lie_in_one_block(tmp_path):
    texts = {f"c{number}": [f"{number} {text}" for text in MANY] for number in range(3)}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({**texts, "short": [f"{row}" for row in range(40)], "few": FEW}), path)
    dataset = open_dataset(path, cache=NodeCache(tmp_path / "cache"))
    names = [*texts, "short", "few"]
    (flat,) = dataset.reader()._decoder.flats(tuple((name,) for name in names), [0])
    views = [(block.columns, block.dtype) for block in flat.blocks if block.part == "views"]
    assert sorted(views) == [(("c0", "c1", "c2"), "V64"), (("few",), "V32"), (("short",), "V16")]
    batch = next(iter(dataset.loader(40, output="numpy")))
    assert {name: batch[name].tolist() for name in texts} == texts


@pytest.mark.long
@pytest.mark.parametrize("form", ["objects", "arrow"])
def test_a_batch_of_hundreds_of_columns_needs_little_memory_beside_itself(tmp_path, form):
    rows, texts = 1024, pa.array([f"row {row}" for row in range(1024)])
    pq.write_table(pa.table({f"c{number}": texts for number in range(400)}), tmp_path / "a.parquet")
    dataset = open_dataset(tmp_path / "a.parquet", cache=NodeCache(tmp_path / "cache"))
    loader = dataset.loader(rows, strings=form)
    for _ in loader:
        pass
    tracemalloc.start()
    try:
        (batch,) = loader
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert batch["c399"].tolist() if form == "objects" else batch["c399"].to_pylist() == texts.to_pylist()
    assert most - held < 5 << 20, "400 views a row, with where they begin, all at once are 11 MB"


def write(path, texts, group=40, **columns):
    pq.write_table(
        pa.table({"text": texts, "row": np.arange(len(texts)), **columns}), path, row_group_size=group
    )
    return path


FEW = [f"one of the seven, number {row % 7}" for row in range(40)]
MANY = [f"each its own text, number {row}" for row in range(40)]


@pytest.fixture
def mixed(tmp_path):
    """Row groups of few and of many different texts; the dictionaries of files differ."""
    write(tmp_path / "a.parquet", FEW + MANY + FEW[::-1])
    write(tmp_path / "b.parquet", [text.upper() for text in FEW] + FEW)
    texts = FEW + MANY + FEW[::-1] + [text.upper() for text in FEW] + FEW
    cache = NodeCache(tmp_path / "cache")
    return open_dataset([tmp_path / "a.parquet", tmp_path / "b.parquet"], cache=cache), texts


def blocks_of(dataset):
    """Of each row group, the parts in which the column of texts lies in the node cache."""
    reader = dataset.reader()
    flats = reader._decoder.flats((("text",),), range(dataset.num_row_groups))
    return [[block.part for block in flat.blocks] for flat in sorted(flats, key=lambda flat: flat.groups)]


def test_columns_of_few_different_texts_are_codes_and_others_are_views(mixed):
    dataset, texts = mixed
    coded, plain = ["codes", "views", "values"], ["views", "values"]
    assert blocks_of(dataset) == [coded, plain, coded, coded, coded]
    for _ in range(2):
        assert [text for made in dataset.loader(13, output="numpy") for text in made["text"]] == texts
    rows = np.random.default_rng(0).permutation(len(texts))
    assert dataset[rows]["text"].tolist() == [texts[row] for row in rows]
    assert pickle.loads(pickle.dumps(dataset))[rows]["text"].tolist() == [texts[row] for row in rows]
    parts = dataset.partitions(3)
    assert sorted(text for part in parts for text in part[:]["text"]) == sorted(texts)


def test_equal_texts_of_few_are_one_object_whatever_row_group_they_are_in(tmp_path):
    path = write(tmp_path / "a.parquet", FEW + FEW[::-1])
    dataset = open_dataset(path, cache=NodeCache(tmp_path / "cache"))
    made = [text for batch in dataset.loader(16, shuffle=True, output="numpy") for text in batch["text"]]
    assert len(set(map(id, made))) == len(set(made)) == 7


@pytest.mark.parametrize("most", [0, 7, 1 << 18])
def test_dictionaries_too_large_for_objects_give_the_same_batches(mixed, monkeypatch, most):
    monkeypatch.setattr(strings, "_MOST_OBJECTS", most)
    dataset, texts = mixed
    part = dataset.part([0, 2, 3, 4])
    assert part[:]["text"].tolist() == texts[:40] + texts[80:]


def test_texts_held_in_memory_are_those_of_the_cache(tmp_path):
    path = write(tmp_path / "a.parquet", FEW + MANY + FEW, group=10)
    dataset = open_dataset(path, cache=False)
    for _ in range(2):
        made = {
            row: text
            for batch in dataset.loader(16, shuffle=True, output="numpy", window=2000)
            for row, text in zip(batch["row"].tolist(), batch["text"], strict=True)
        }
        assert [made[row] for row in range(120)] == FEW + MANY + FEW


@pytest.mark.parametrize("nulls", ["fill", "mask"])
def test_filters_and_nulls_leave_the_texts_of_the_other_rows(tmp_path, nulls):
    texts = [None if row % 5 == 0 else text for row, text in enumerate(FEW + MANY)]
    path = write(tmp_path / "a.parquet", texts, x=np.arange(80.0))
    dataset = open_dataset(path, nulls=nulls, filters=pc.field("x") > 7, cache=NodeCache(tmp_path / "cache"))
    for _ in range(2):
        for made in dataset.loader(11, shuffle=True, output="numpy"):
            assert made["text"].tolist() == [texts[row] or "" for row in made["row"]]
            if nulls == "mask":
                (mask,) = [name for name in made if name not in ("text", "row", "x")]
                assert made[mask].tolist() == [texts[row] is None for row in made["row"]]


def test_prepared_texts_are_those_of_their_rows(tmp_path):
    path = write(tmp_path / "a.parquet", FEW + MANY, x=np.arange(80.0))
    train = prepare(path, LocalStore(tmp_path / "store")).train
    for _ in range(2):
        for made in train.loader(11, shuffle=True, output="numpy", strings="arrow"):
            assert made["text"].to_pylist() == [(FEW + MANY)[row] for row in made["row"]]


def test_values_beyond_2_gib_of_the_mapped_bytes_are_found(tmp_path):
    texts = ["the first long text", "short", "a text across the bound of 2 GiB", "far behind all of that"]
    places = [100_000, 0, (1 << 31) - 10, 5 << 30]
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(6 << 30)
    content = np.memmap(path, np.uint8, "r+")
    for number, (text, place) in enumerate(zip(texts, places, strict=True)):
        data = text.encode()
        rows = Ragged(np.frombuffer(data, np.uint8), np.array([0, len(data)]))
        its, values = views_of("text", rows, place - 64, 16)
        content[place : place + len(values)] = values
        content[64 + 16 * number : 80 + 16 * number] = its[0]
    lying = Lying(*(np.array([[number]]) for number in (64, 16, False, 64, 4, 64, 16)))
    column = MappedStrings([Column("text", "string")], content, lying, np.array([0]))
    rows = np.array([3, 0, 2, 1, 3])
    found = column.gather(rows + column.shift[0], np.zeros(5, np.int64), Buffers())
    assert found.tolist() == [texts[row] for row in rows]


def test_pieces_too_large_for_arrow_are_viewed_in_halves(monkeypatch):
    rows = Ragged.from_rows([np.frombuffer(text.encode(), np.uint8) for text in MANY], np.uint8)
    whole = views_of("text", rows, 17, 16)
    monkeypatch.setattr(strings, "_LONGEST", 40)
    halves = views_of("text", rows, 17, 16)
    assert np.array_equal(whole.views, halves.views)
    assert np.array_equal(whole.values, halves.values)
    monkeypatch.setattr(strings, "_LONGEST", 20)
    rule = "Column 'text' holds a value of 27 bytes, but none may be longer than 20. Store what is so large in files"
    with pytest.raises(DataError, match=rule):
        views_of("text", rows, 0, 16)


def test_codes_are_made_only_where_they_save_something():
    def rows_of(texts):
        return Ragged.from_rows([np.frombuffer(text.encode(), np.uint8) for text in texts], np.uint8)

    codes, different = with_codes([rows_of(FEW[:25]), rows_of(FEW[25:])])
    assert [different[code].tobytes().decode() for code in codes] == FEW
    assert with_codes([rows_of(MANY)]) is None
    assert with_codes([rows_of(["a", "b", "a"])]) is None
    assert with_codes([rows_of([])]) is None
    assert with_codes([]) is None
    once = ["a"] * 2999 + [f"{row}" for row in range(1001)]  # the sample misses most of them
    assert with_codes([rows_of(once)]) is None


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_arrow_arrays_come_from_every_dataset(mixed, tmp_path, output):
    dataset, _ = mixed
    other = open_dataset(
        write(tmp_path / "c.parquet", ["eine zusätzliche Zeile"] * 30), cache=NodeCache(tmp_path / "cache")
    )
    both = mix([dataset, other], weights=[3, 1])
    fitted = fit_steps([Category("row", most=3)], dataset).of(dataset)
    window = dataset.windows(3, columns={"text": ("text", 1), "row": ("row", 1)})
    for each in (dataset, both, fitted, window):
        for shuffle in (False, True):
            plain = each.loader(16, shuffle=shuffle, output=output, seed=3)
            arrow = each.loader(16, shuffle=shuffle, output=output, seed=3, strings="arrow")
            count = 0
            for expected, made in zip(plain, arrow, strict=True):
                assert made["text"].type == pa.large_string()
                assert made["text"].to_pylist() == expected["text"].tolist()
                assert type(made["row"]) is type(expected["row"])
                count += len(made["text"])
            assert count == len(each)


def test_impossible_forms_of_strings_are_refused(mixed):
    dataset, _ = mixed
    with pytest.raises(
        UsageError, match="strings='arow', but it must be one of 'objects', 'arrow'; did you mean"
    ):
        dataset.loader(4, strings="arow")
    rule = r"strings='arrow' was given, but column text: string\[3\] has several in a row, and an Arrow array has one"
    with pytest.raises(ColumnError, match=rule):
        dataset.windows(3).loader(4, strings="arrow")


def test_texts_become_the_numbers_of_their_categories_in_every_process_and_part(mixed):
    dataset, texts = mixed
    fitted = fit_steps([Category("text")], dataset.part([0, 1]))
    known = sorted(set(texts[:80]))
    assert fitted.categories("text") == known
    numbers = {text: number for number, text in enumerate(known, 1)}
    for steps in (fitted, pickle.loads(pickle.dumps(fitted))):
        for part in (dataset, *dataset.partitions(3)):
            plain = part.loader(17, shuffle=True, output="numpy")
            for expected, made in zip(
                plain, steps.of(part).loader(17, shuffle=True, output="numpy"), strict=True
            ):
                assert made["text"].dtype == np.int64
                assert made["text"].tolist() == [numbers.get(text, 0) for text in expected["text"]]


@given(columns(), st.booleans(), st.integers(3, 60), st.integers(1, 50), st.sampled_from(["index", "error"]))
def test_numbers_of_categories_are_the_same_whether_texts_come_as_codes_or_not(
    tmp_path_factory, values, is_binary, group, batch, unknown
):
    folder = tmp_path_factory.mktemp("codes")
    texts = [value.encode() for value in values] if is_binary else values
    path = write(folder / "a.parquet", texts, group)
    dataset = open_dataset(path, cache=NodeCache(folder / "cache"))
    known = list(dict.fromkeys(texts))[: None if unknown == "error" else 3]
    fitted = fit_steps([Category("text", values=known, unknown=unknown)], dataset)
    for window in (1 << 30, 1000):  # of several windows, batches have rows of several dictionaries
        for made in fitted.of(dataset).loader(batch, shuffle=True, output="numpy", window=window):
            expected = [
                known.index(text) + 1 if text in known else 0 for text in map(texts.__getitem__, made["row"])
            ]
            assert made["text"].dtype == np.int64
            assert made["text"].tolist() == expected
    if unknown == "error" and len(known) > 1:
        others = open_dataset(write(folder / "b.parquet", known[1:]), cache=False)
        some = fit_steps([Category("text", values=known[1:], unknown="error")], others).of(dataset)
        rule = rf"Column 'text' holds {re.escape(repr(known[0]))}, a category that no training row has"
        with pytest.raises(DataError, match=rule):
            list(some.loader(len(texts), output="numpy"))


def test_of_few_different_texts_only_these_are_looked_up(tmp_path, monkeypatch):
    dataset = open_dataset(write(tmp_path / "a.parquet", FEW * 3), cache=NodeCache(tmp_path / "cache"))
    fitted = fit_steps([Category("text")], dataset)
    looked_up = []
    index_in = pc.index_in

    def counting(values, **how):
        looked_up.append(len(values))
        return index_in(values, **how)

    monkeypatch.setattr("hopyard.data.preprocessing.category.pc.index_in", counting)
    monkeypatch.setattr(Categories, "_looked_up", None)
    for _ in range(2):
        made = [number for each in fitted.of(dataset).loader(16, output="numpy") for number in each["text"]]
        assert made == [sorted(set(FEW)).index(text) + 1 for text in FEW * 3]
    assert looked_up == [21], "seven of each of three row groups, once"
