"""Steps of preprocessing against scikit-learn and Keras, fitted on rows that come in uneven batches."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileTransformer,
    StandardScaler,
    TargetEncoder,
)

from hopyard.data import Apply, Category, Impute, StandardScale, fit_steps, prepare
from hopyard.data.preprocessing import fitting
from hopyard.data.preprocessing.base import Step
from hopyard.data.preprocessing.fitting import FittedSteps, Steps
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.storage import LocalStore, MemoryStore

ROWS = 1003
CITIES = ["Lima", "Oslo", "Rome", "Åre", "ü"]


def columns(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    age = random.normal(40, 10, ROWS)
    age[random.random(ROWS) < 0.2] = np.nan
    city = random.choice(CITIES, ROWS).astype(object)
    city[random.random(ROWS) < 0.1] = None
    return {
        "age": age,
        "fare": random.integers(-5, 1000, ROWS),
        "same": np.full(ROWS, 0.1),
        "huge": 1e9 + random.normal(0, 1e-2, ROWS),
        "vector": random.normal(5, 3, (ROWS, 3)).astype(np.float32),
        "city": city,
        "deck": random.choice(["a", "b"], ROWS).astype(object),
    }


def frame(**more: Any) -> pd.DataFrame:
    return pd.DataFrame({name: values for name, values in columns().items() if name != "vector"} | more)


def fit_on_batches(steps: Sequence[Step], data: Mapping[str, Any], sizes: Sequence[int]) -> FittedSteps:
    """Fitted on rows in batches of these sizes, the last of which has the rest."""
    bounds = [0, *np.cumsum(sizes).tolist(), ROWS]
    batches = [
        {name: values[start:stop] for name, values in data.items()}
        for start, stop in itertools.pairwise(bounds)
        if start < stop
    ]
    return fitting._fitted(Steps.of(steps), lambda: batches, "")


def masked(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The data as datasets hold it: null texts are empty, and a column says which they are."""
    lost = np.array([value is None for value in data[name]])
    filled = data[name].copy()
    filled[lost] = ""
    return {**data, name: filled, f"{name}_mask": lost}


uneven = st.lists(st.integers(1, 200), max_size=4)


@given(uneven)
def test_scaling_is_that_of_scikit_learn(sizes: list[int]) -> None:
    data = columns()
    names = ["age", "fare", "same", "huge", "vector"]
    scaled = fit_on_batches([StandardScale(*names)], data, sizes).apply(data)
    for name in names:
        given = np.asarray(data[name], np.float64).reshape(ROWS, -1)
        expected = StandardScaler().fit_transform(given).reshape(data[name].shape)
        assert scaled[name].dtype == np.float32
        np.testing.assert_allclose(scaled[name], expected, rtol=1e-4, atol=1e-4)


@given(uneven)
def test_categories_are_those_of_scikit_learn(sizes: list[int]) -> None:
    data = masked(columns(), "city")
    numbers = fit_on_batches([Category("deck", "fare")], data, sizes).apply(data)
    expected = OrdinalEncoder().fit_transform(pd.DataFrame({name: data[name] for name in ("deck", "fare")}))
    assert numbers["deck"].dtype == np.int64
    assert np.array_equal(numbers["deck"], expected[:, 0] + 1)
    assert np.array_equal(numbers["fare"], expected[:, 1] + 1)


@given(uneven, st.sampled_from(["mean", "median", "most_frequent"]))
def test_values_for_missing_ones_are_those_of_scikit_learn(sizes: list[int], by: Any) -> None:
    data = columns()
    data["age"] = np.round(data["age"])
    filled = fit_on_batches([Impute("age", by=by, indicator=True)], data, sizes).apply(data)
    imputer = SimpleImputer(strategy=by, add_indicator=True)
    expected = imputer.fit_transform(data["age"][:, None])
    np.testing.assert_allclose(filled["age"], expected[:, 0], rtol=1e-12)
    assert np.array_equal(filled["age_missing"], expected[:, 1])


@given(uneven)
def test_missing_texts_become_the_most_frequent_one(sizes: list[int]) -> None:
    data = columns()
    expected = SimpleImputer(strategy="most_frequent", missing_values=None).fit_transform(
        data["city"][:, None]
    )
    filled = fit_on_batches([Impute("city", by="most_frequent")], masked(data, "city"), sizes)
    assert filled.apply(masked(data, "city"))["city"].tolist() == expected[:, 0].tolist()


def test_each_number_of_a_vector_gets_its_own_value() -> None:
    data = columns()
    data["vector"][::3, 1] = np.nan
    for by in ("mean", "median", "most_frequent"):
        filled = fit_on_batches([Impute("vector", by=by)], data, [100]).apply(data)  # type: ignore[arg-type]
        expected = SimpleImputer(strategy=by).fit_transform(data["vector"].astype(np.float64))
        np.testing.assert_allclose(filled["vector"], expected, rtol=1e-5)


def test_steps_are_applied_and_fitted_in_their_order() -> None:
    data = columns()
    steps = [Impute("age", by="median"), StandardScale("age", "fare")]
    expected = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit_transform(
        data["age"][:, None]
    )
    made = fit_on_batches(steps, data, [5, 300]).apply(data)
    np.testing.assert_allclose(made["age"], expected[:, 0], rtol=1e-4, atol=1e-6)


def test_steps_of_different_columns_share_a_pass() -> None:
    steps = Steps.of([Impute("a"), Category("b"), StandardScale("a", "c"), StandardScale("d")])
    assert steps.levels() == [0, 0, 1, 0]


def test_the_most_frequent_categories_are_kept_and_others_are_unknown() -> None:
    data = {"x": np.array(["b"] * 5 + ["c"] * 3 + ["a"] * 3 + ["d"], object)}
    fitted = fit_on_batches([Category("x", most=2)], data, [2])
    assert fitted.categories("x") == ["a", "b"]  # of equally frequent ones the smaller
    assert fitted.apply({"x": np.array(["a", "b", "c", "new"], object)})["x"].tolist() == [1, 2, 0, 0]


def test_categories_that_are_given_have_the_order_given() -> None:
    fitted = fit_on_batches([Category("deck", values=["b", "z", "a"])], columns(), [])
    assert fitted.categories("deck") == ["b", "z", "a"]
    assert fitted.apply({"deck": np.array(["a", "b", "?"], object)})["deck"].tolist() == [3, 1, 0]


def test_an_unknown_category_can_be_an_error() -> None:
    fitted = fit_on_batches([Category("deck", unknown="error")], columns(), [])
    with pytest.raises(DataError, match="Column 'deck' holds 'z', a category that no training row has"):
        fitted.apply({"deck": np.array(["a", "z"], object)})


def test_integers_that_come_as_floats_keep_their_categories() -> None:
    fitted = fit_on_batches([Category("fare")], {"fare": np.arange(ROWS) % 7}, [])
    assert fitted.apply({"fare": np.array([3.0, 0.5, np.nan])})["fare"].tolist() == [4, 0, 0]
    assert fitted.apply({"fare": np.array([6], np.uint8)})["fare"].tolist() == [7]


@pytest.mark.parametrize("unknown", ["index", "error"])
def test_numbers_are_no_categories_that_are_texts_and_texts_none_that_are_numbers(unknown: Any) -> None:
    texts = fit_on_batches([Category("x", unknown=unknown)], {"x": np.array(["007", "100"], object)}, [])
    for rows in ([7], [100], [100.0], [True]):
        with pytest.raises(
            DataError, match=r"Column 'x' holds numbers, such as .*its categories are texts, such as"
        ):
            texts.apply({"x": np.array(rows)})
    with pytest.raises(
        DataError, match=r"Give texts, as in training; frame.astype\(\{'x': str\}\), or types="
    ):
        texts.apply({"x": np.array([7, 8], object)})
    numbers = fit_on_batches([Category("x", unknown=unknown)], {"x": np.array([7, 100])}, [])
    with pytest.raises(
        DataError, match="Column 'x' holds texts, such as '7', but its categories are numbers"
    ):
        numbers.apply({"x": np.array(["7"], object)})
    with pytest.raises(DataError, match="its categories are numbers"):
        fit_on_batches([Category("x", values=[1, 2])], {"x": np.array(["1"], object)}, [])


def test_rows_that_are_null_do_not_count_for_steps_that_give_them_no_value() -> None:
    data = {"x": np.array([0.0, 2.0, 4.0] * 3), "x_mask": np.array([True, False, False] * 3)}
    scaled = fit_on_batches([StandardScale("x")], data, [])
    assert scaled.apply(data)["x"].tolist() == [0, -1, 1] * 3
    numbers = fit_on_batches([Category("x")], data, [])
    assert numbers.categories("x") == [2.0, 4.0]
    assert numbers.apply(data)["x"].tolist() == [0, 1, 2] * 3


def test_a_transformer_that_learns_in_parts_never_holds_all_rows() -> None:
    data = columns()
    made = fit_on_batches([Apply(MinMaxScaler(), "fare", "same")], data, [10, 500]).apply(data)
    expected = MinMaxScaler().fit_transform(np.stack([data["fare"], data["same"]], 1))
    np.testing.assert_allclose(made["fare"], expected[:, 0], atol=1e-6)


def test_pipelines_of_scikit_learn_get_frames_with_missing_values() -> None:
    data = columns()
    pipeline = make_pipeline(SimpleImputer(strategy="most_frequent", missing_values=None), OneHotEncoder())
    fitted = fit_on_batches([Apply(pipeline, "city", output="where")], masked(data, "city"), [7])
    expected = pipeline.fit_transform(pd.DataFrame({"city": data["city"]}, dtype=object)).toarray()
    assert np.array_equal(fitted.apply(masked(data, "city"))["where"], expected)
    assert fitted.columns["where"].shape == (len(CITIES),)


def test_the_transformer_that_was_given_stays_as_it_is_and_draws_alike() -> None:
    given = QuantileTransformer(n_quantiles=10, subsample=20)
    results = []
    for _ in range(2):
        np.random.seed(5)
        fitted = fit_on_batches([Apply(given, "fare")], columns(), [])
        results.append(fitted.apply(columns())["fare"])
        assert np.random.randint(1000) == np.random.RandomState(5).randint(1000)
    assert np.array_equal(*results)
    assert not hasattr(given, "quantiles_")


def test_definitions_are_the_same_in_every_process_and_tell_steps_apart() -> None:
    made = [
        Apply(StandardScaler(), "a"),
        Apply(StandardScaler(with_mean=False), "a"),
        StandardScale("a"),
        Category("a"),
        Category("a", most=3),
        Category("a", values=[1]),
        Category("a", values=["1"]),
        Impute("a"),
        Impute("a", by="median"),
        Impute("a", value=0),
        Impute("a", value=0.0),
    ]
    definitions = [str(step.definition()) for step in made]
    assert len(set(definitions)) == len(made)
    assert [str(pickle.loads(pickle.dumps(step)).definition()) for step in made] == definitions


def test_datasets_after_the_steps_keep_rows_order_and_partitions(tmp_path: Any) -> None:
    train = prepare(frame(), LocalStore(tmp_path), validation=None, masked=["age", "city"]).train
    fitted = fit_steps([Impute("age"), StandardScale("age"), Category("city")], train)
    dataset = pickle.loads(pickle.dumps(fitted.of(train, ["age", "city", "deck"])))
    assert dataset.schema.names == ["age", "city", "deck"]
    whole = dataset[:]
    expected = fitted.apply(train[:])
    assert all(np.array_equal(whole[name], expected[name]) for name in whole)
    before = list(train.loader(100, shuffle=True, seed=3))
    after = list(dataset.loader(100, shuffle=True, seed=3))
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(fitted.apply(old)["age"], new["age"])
        assert new["deck"].tolist() == old["deck"].tolist()
    parts = dataset.partitions(3)
    assert np.array_equal(np.concatenate([part[:]["age"] for part in parts]), whole["age"])
    stacked = next(iter(dataset.loader(8, columns={"x": ["age", "age"]})))
    assert np.array_equal(stacked["x"][:, 1], whole["age"][:8])
    others = fit_steps([Impute("age", value=0), StandardScale("age"), Category("city")], train)
    assert others.of(train).fingerprint != fitted.of(train).fingerprint != train.fingerprint


@pytest.mark.parametrize(
    "step", [Impute("a", indicator=True), Apply(SimpleImputer(), "a", output="a_missing")]
)
def test_a_step_never_replaces_a_column_of_the_data_by_one_that_it_adds(step: Step) -> None:
    data = {"a": [1.0, 2.0], "a_missing": [3.0, 4.0]}
    with pytest.raises(
        UsageError, match=r"makes a column 'a_missing', but the data has one of that name\. Rename"
    ):
        fit_steps([step], prepare(data, MemoryStore(), None).train)


@pytest.mark.parametrize("step", [Category("words"), StandardScale("words"), Impute("words", value=7)])
def test_steps_do_not_take_padding_for_values(step: Step) -> None:
    data = {"words": [[5, 6, 7], [5], [7, 0]]}
    text = r"'words', whose rows ragged='pad' filled with zeros .* Leave 'words' out of preprocess, .* words_length"
    padded = prepare(data, MemoryStore(), None, ragged="pad").train
    with pytest.raises(DataError, match=text):
        fit_steps([step], padded)
    even = prepare({"words": [[5, 6], [5, 7], [7, 0]]}, MemoryStore(), None).train
    with pytest.raises(DataError, match=text):  # nor do steps that other rows were fitted on
        fit_steps([step], even).of(padded)


def test_states_do_not_depend_on_the_partitions(tmp_path: Any) -> None:
    train = prepare(frame(), LocalStore(tmp_path), validation=None, masked=["age", "city"]).train
    steps = [StandardScale("fare", "huge"), Impute("age")]
    states = [pickle.dumps(fit_steps(steps, train).states) for _ in range(2)]
    assert states[0] == states[1]


def test_what_was_fitted_is_kept_by_the_content_of_rows_and_steps(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = prepare(frame(), LocalStore(tmp_path), validation=None, masked=["age", "city"]).train
    store = MemoryStore()
    first = fitting.fit_steps_in(store, Steps.of([StandardScale("fare")]), train)
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "fit_steps", None)  # must not be called
        again = fitting.fit_steps_in(store, Steps.of([StandardScale("fare")]), train)
    assert again.digest == first.digest
    fitting.fit_steps_in(store, Steps.of([StandardScale("huge")]), train)
    (kept, _) = sorted(entry.name for entry in store.list())
    store.put(kept, b"damaged")
    assert fitting.fit_steps_in(store, Steps.of([StandardScale("fare")]), train).digest == first.digest
    assert len(list(store.list())) == 2


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: StandardScale(), r"StandardScale was given the columns \(\). Give names"),
        (lambda: StandardScale(["a"]), r"Give names, one after another"),  # type: ignore[arg-type]
        (lambda: StandardScale("a", "a"), "Name each column once"),
        (lambda: Category("a", most=0), "most=0, but it must be an integer of at least 1"),
        (lambda: Category("a", unknown="eror"), "must be one of .index., .error.; did you mean .error."),  # type: ignore[arg-type]
        (lambda: Category("a", values=[]), "values are a list of at least one category"),
        (lambda: Category("a", values=[1, 1]), "Name each category once"),
        (lambda: Impute("a", by="avg"), "by='avg', but it must be one of 'mean'"),  # type: ignore[arg-type]
        (lambda: Impute("a", by="mean", value=1), "Give one of them"),
        (lambda: Impute("a", value=[1]), "a constant is one number, text or bool"),
        (lambda: Apply("age", "fare"), "Give the object first, then the columns"),
        (lambda: Apply(StandardScaler, "fare"), "Give the object first, then the columns"),
        (lambda: Apply(object(), "fare"), r"has no fit\(...\) and transform\(...\)"),
        (lambda: Steps.of(StandardScaler()), "preprocess=StandardScaler"),
        (lambda: Steps.of([StandardScaler()]), r"Apply\(StandardScaler\(\), 'column'\)"),
        (lambda: Steps.of([Impute]), r"Impute\('column'\)"),
    ],
)
def test_steps_that_cannot_be_are_refused_with_what_to_write(make: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


@pytest.mark.parametrize(
    ("step", "data", "text"),
    [
        (StandardScale("x"), {"x": ["a", "b"]}, r"takes numbers, but column 'x' holds texts"),
        (StandardScale("x"), {"x": [1.0, np.inf]}, "an infinite number in column 'x'"),
        (StandardScale("x"), {"x": [np.nan, np.nan]}, "no training row has a number there"),
        (Category("x"), {"x": [1.0, np.nan]}, r"found NaN in column 'x'.*Impute\('x'"),
        (Impute("x"), {"x": ["a", "b"]}, "column 'x' holds texts, which have none"),
        (Impute("x"), {"x": [np.nan, np.nan]}, "missing in all training rows"),
        (Impute("x", by="most_frequent"), {"x": [np.nan, np.nan]}, "missing in all training rows"),
        (Impute("x", value="a"), {"x": [1, 2]}, "value='a' for column 'x', which holds int64"),
        (Impute("x", value=1), {"x": ["a", "b"]}, "value=1 for column 'x', which holds texts"),
        (Apply(StandardScaler(), "x"), {"x": [1.0, np.nan]}, "gave NaN in 1 rows"),
        (Apply(StandardScaler(), "x"), {"x": ["a", "b"]}, r"could not be fitted \(ValueError"),
        (Apply(TargetEncoder(), "x"), {"x": ["a", "b"]}, "learns from labels, which no step"),
        (Apply(OneHotEncoder(), "x", "y"), {"x": ["a", "b"], "y": ["a", "b"]}, "output='...'"),
    ],
)
def test_rows_that_a_step_does_not_take_are_named(step: Step, data: Any, text: str) -> None:
    arrays = {
        name: np.array(rows, object if isinstance(rows[0], str) else None) for name, rows in data.items()
    }
    with pytest.raises(DataError, match=text):
        fitting._fitted(Steps.of([step]), lambda: [arrays], "")


def test_columns_that_are_not_there_are_named(tmp_path: Any) -> None:
    train = prepare({"age": np.arange(10.0)}, LocalStore(tmp_path), validation=None).train
    with pytest.raises(
        ColumnError, match=r"reads column 'aged', which the data has not; did you mean 'age'|Did you"
    ):
        fit_steps([StandardScale("aged")], train)
    fitted = fit_steps([StandardScale("age")], train)
    with pytest.raises(ColumnError, match="No Category step has column 'age'"):
        fitted.categories("age")


@pytest.mark.parametrize("step", [Category("x"), Impute("x"), StandardScale("x")])
def test_steps_refuse_rows_of_several_lengths_and_say_where_to_change_them(step):
    kept = prepare({"x": [[1.0], [1.0, 2.0]] * 4}, MemoryStore(), validation=None, ragged="keep").train
    with pytest.raises(DataError, match=r"rows .* length.*(transform|Leave)"):
        fit_steps([step], kept)


def test_dates_that_come_as_texts_are_to_be_made_dates():
    dates = pd.DataFrame({"d": pd.to_datetime(["2020-01-02", "2020-01-01"] * 4)})
    steps = fit_steps([Category("d")], prepare(dates, MemoryStore(), validation=None).train)
    with pytest.raises(
        DataError,
        match=r"holds texts, .* categories are numbers.* pandas\.to_datetime\(frame\['d'\]\)",
    ):
        steps.apply(pd.DataFrame({"d": ["2020-01-02"]}))
