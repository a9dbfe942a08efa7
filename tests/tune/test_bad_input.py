"""Arguments and data that cannot work: each is refused in words, before anything is written."""

# ruff: noqa: E501 - the messages stand in one piece

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from hopyard.backend import InlineBackend
from hopyard.data import prepare
from hopyard.errors import (
    ColumnError,
    DataError,
    HopyardError,
    MetricError,
    NotFoundError,
    SettingsError,
    SpaceError,
    TrialError,
    UsageError,
)
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import (
    ASHA,
    PBT,
    Callback,
    GridSearch,
    Hyperband,
    HyperOpt,
    QuasiRandomSearch,
    RandomSearch,
    hp_choice,
    hp_loguniform,
    hp_uniform,
)


def linear(params: dict[str, Any]) -> TorchEstimator:
    model, loss = torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss()
    return TorchEstimator(model, torch.optim.SGD, loss, batch_size=8, optimizer_params={"lr": 0.1})


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[LocalStore]:
    """A store in which no file may be when the test is over."""
    yield LocalStore(tmp_path / "store")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def refused(kind: type[HopyardError], text: str) -> Any:
    """``text`` must be in the message as it stands."""
    return pytest.raises(kind, match=re.escape(text))


# Arguments -------------------------------------------------------------------------------------

ARGUMENTS: list[tuple[str, Any, type[HopyardError], str]] = [
    ("backend", "local", UsageError, "backend='local', but it must be a Backend, for example hopyard.backend.LocalBackend("),
    ("store", "/tmp/x", UsageError, "store='/tmp/x', but it must be a Store, for example hopyard.storage.LocalStore("),
    ("estimator_gen_fn", None, UsageError, "estimator_gen_fn=None, but it must be a function that takes a dict"),
    ("search_space", None, SpaceError, "the search space is None, but must be a dictionary"),
    ("search_space", {}, SpaceError, "the search space is empty, but needs at least one parameter."),
    ("search_space", {"a": 3}, SpaceError, "has only 1 different point. Write num_models=1 or less"),
    ("search_space", {1: hp_choice([1])}, SpaceError, "has the key 1 (int), but keys are texts. Write '1'."),
    ("num_models", 0, UsageError, "num_models=0, but it must be an integer of at least 1."),
    ("num_models", 2.0, UsageError, "num_models=2.0, but it must be an integer of at least 1."),
    ("num_epochs", "2", UsageError, "num_epochs='2', but it must be an integer of at least 1."),
    ("num_epochs", True, UsageError, "num_epochs=True, but it must be an integer of at least 1."),
    ("evaluation_metric", None, UsageError, "evaluation_metric=None, but it must be the name of one metric"),
    ("evaluation_metric", ["accuracy"], UsageError, "evaluation_metric=['accuracy'], but it must be the name of one metric"),
    ("evaluation_metric", "val_", UsageError, "evaluation_metric='val_', but it must be the name of one metric"),
    ("evaluation_metric", "train_loss", MetricError, "trials are ranked by validation. Give 'loss'"),
    ("evaluation_metric", "acuracy", MetricError, "direction is known; did you mean 'accuracy'? For a metric of your own give mode="),
    ("evaluation_metric", "gain", MetricError, "direction is known. For a metric of your own give mode='max' if"),
    ("mode", "best", UsageError, "mode='best', but it must be 'min', 'max' or None."),
    ("feature_columns", [], UsageError, "feature_columns=[], but it must be a list of column names, at least one."),
    ("feature_columns", None, UsageError, "feature_columns=None, but it must be a list of column names"),
    ("feature_columns", [3], UsageError, "feature_columns=[3], but it must be a list of column names"),
    ("feature_columns", ["features"] * 2, UsageError, "which names 'features' twice. Name each column once."),
    ("label_columns", 3, UsageError, "label_columns=3, but it must be a list of column names"),
    ("validation", 0, DataError, "validation=0 is not a share: it must be greater than 0 and less than 1."),
    ("validation", 1.5, DataError, "validation=1.5 is not a share: it must be greater than 0 and less than 1."),
    ("validation", float("nan"), DataError, "validation=nan is not a share"),
    ("validation", True, DataError, "validation=True is not a share"),
    ("num_partitions", 0, UsageError, "num_partitions=0, but it must be an integer of at least 1, or None."),
    ("num_partitions", "8", UsageError, "num_partitions='8', but it must be an integer of at least 1, or None."),
    ("order_groups", 2.5, UsageError, "order_groups=2.5, but it must be an integer of at least 1, or None."),
    ("seed", "a", UsageError, "seed='a', but it must be an integer, or None for a random one that is recorded."),
    ("seed", True, UsageError, "seed=True, but it must be an integer"),
    ("logdir", 3, UsageError, "logdir=3, but it must be the path of a directory, or None"),
    ("logdir", b"x", UsageError, "logdir=b'x', but it must be the path of a directory, or None"),
    ("stock", 1, UsageError, "stock=1, but it must be a StockRoom, the path of one, or None."),
    ("run_id", "", UsageError, "run_id='', but it must be up to 100 of the letters"),
    ("run_id", "../x", UsageError, "run_id='../x', but it must be up to 100 of the letters"),
    ("run_id", "é", UsageError, "run_id='é', but it must be up to 100 of the letters"),
    ("run_id", "a" * 101, UsageError, "it must be up to 100 of the letters"),
    ("run_id", "-", UsageError, "and begin with a letter or digit."),
    ("fresh", "no", UsageError, "fresh='no', but it must be True or False."),
    ("reproducible", None, UsageError, "reproducible=None, but it must be True or False."),
    ("progress", 1, UsageError, "progress=1, but it must be True or False."),
    ("packing", "grouped", UsageError, "packing is 'grouped', which is for GPUs and comes in a later version. Leave it"),
    ("packing", "none", UsageError, "packing='none', but it must be 'auto', 'fused', 'graph', 'streams', 'serial' or"),
    ("packing", "vmap", UsageError, "packing='vmap', but it must be 'auto', 'fused', 'graph', 'streams', 'serial' or"),
    ("keep", "none", UsageError, "keep='none', but it must be one of 'completed', 'best', 'all'."),
    ("keep_n", 0, UsageError, "keep_n=0, but it must be an integer of at least 1."),
    ("keep_n", 3, UsageError, "keep is 'completed'. Give keep='best', or leave keep_n out."),
    ("checkpoint_every", 0, UsageError, "checkpoint_every=0, but it must be 'unit', 'epoch' or a number of seconds above 0."),
    ("checkpoint_every", "batch", UsageError, "checkpoint_every='batch', but it must be 'unit', 'epoch'"),
    ("time_budget", -1, UsageError, "time_budget=-1, but it must be a number of seconds above 0, or None."),
    ("time_budget", float("nan"), UsageError, "time_budget=nan, but it must be a number of seconds above 0"),
    ("patience", 0, UsageError, "patience=0, but it must be an integer of at least 1, or None."),
    ("initial_params", None, UsageError, "initial_params=None, but it must be a list of points"),
    ("initial_params", {"width": 4}, UsageError, "initial_params={'width': 4}, but it must be a list of points"),
    ("initial_params", [{"width": 5, "lr": 0.1}], SpaceError, "width is 5, but the search space asks for one of 4, 8."),
    ("initial_params", [{"wdth": 4, "lr": 0.1}], SpaceError, "; did you mean 'width'? Rename or remove it."),
    ("initial_params", [{"width": 4}], SpaceError, "lacks 'lr', but a point gives every parameter."),
    ("init_from", "best", UsageError, "init_from='best', but it must be a model of a search"),
    ("callbacks", None, UsageError, "callbacks=None, but it must be a list of objects"),
    ("callbacks", [print], UsageError, "it must be a list of objects whose classes extend hopyard.tune.Callback."),
    ("callbacks", Callback(), UsageError, "it must be a list of objects whose classes extend"),
    ("callbacks", [Callback], UsageError, "callbacks has the class Callback; give an object: Callback()."),
    ("nulls", "drop", UsageError, "nulls='drop'"),
    ("ragged", None, UsageError, "ragged=None"),
    ("num_modles", 3, UsageError, "RandomSearch has no argument 'num_modles'; did you mean 'num_models'? Its arguments are"),
    ("zzz", 3, UsageError, "RandomSearch has no argument 'zzz'. Its arguments are backend, store"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "kind", "text"), ARGUMENTS)
def test_every_argument_is_checked(
    name: str, value: Any, kind: type[HopyardError], text: str, search: Any, make_rows: Any, untouched: Any
) -> None:
    with refused(kind, text):
        search(**({"store": untouched} | {name: value})).fit(make_rows())


def test_arguments_of_another_search_are_refused(untouched: Any) -> None:
    with refused(UsageError, "GridSearch has no argument 'num_models'"):
        GridSearch(InlineBackend(), untouched, linear, {"x": hp_choice([1])}, 1, num_models=3)  # type: ignore[call-arg]
    with refused(SpaceError, "which has no end of values, but a grid tries every point. Write hp_choice("):
        GridSearch(InlineBackend(), untouched, linear, {"x": hp_uniform(0, 1)}, 1)
    with refused(SpaceError, "num_models=3, but the search space has only 2 different points."):
        RandomSearch(InlineBackend(), untouched, linear, {"x": hp_choice([1, 2])}, 3, 1)


@pytest.mark.parametrize(
    ("kind", "name", "ours"),
    [
        (RandomSearch, "num_samples", "num_models"),  # Ray Tune
        (QuasiRandomSearch, "n_trials", "num_models"),  # Optuna
        (HyperOpt, "max_trials", "num_models"),  # Keras Tuner, Determined
        (PBT, "perturbation_interval", "epochs_per_round"),
        (ASHA, "reduction_factor", "divisor"),
        (ASHA, "max_t", "num_epochs"),
        (Hyperband, "eta", "divisor"),
        (GridSearch, "parallelism", "max_concurrent_trials"),  # Cerebro
        (RandomSearch, "verbose", "progress"),
    ],
)
def test_names_of_other_packages_are_answered_with_ours(kind: Any, name: str, ours: str) -> None:
    with refused(
        UsageError, f"{kind.__name__} has no argument {name!r}; it is called {ours!r} here. Its arg"
    ):
        kind(backend=InlineBackend(), store=MemoryStore(), **{name: 4})


def test_what_is_missing_is_said_of_the_class_that_was_called() -> None:
    given = {"store": MemoryStore(), "estimator_gen_fn": linear, "search_space": {"x": hp_choice([1])}}
    with refused(
        UsageError, "RandomSearch cannot be made: missing a required argument: 'num_models'. Its arguments"
    ):
        RandomSearch(InlineBackend(), num_epochs=1, **given)  # type: ignore[arg-type,call-arg]
    with refused(
        UsageError, "PBT cannot be made: multiple values for argument 'store'. Its arguments are backend,"
    ):
        PBT(InlineBackend(), MemoryStore(), **given)  # type: ignore[arg-type,call-arg,misc]
    with refused(UsageError, "GridSearch cannot be made: too many positional arguments."):
        GridSearch(*range(9))  # type: ignore[call-arg,arg-type]


def test_dimensions_that_cannot_be_meant_are_refused() -> None:
    with refused(
        SpaceError, "hp_choice was given no options, but needs at least one. Write hp_choice([32, 64])."
    ):
        hp_choice([])
    with refused(
        SpaceError, "For values from 0.0001 to 0.1 write hp_log(0.0001, 0.1), or hp_loguniform(-4, -1)."
    ):
        hp_loguniform(1e-4, 1e-1)


# Data ------------------------------------------------------------------------------------------


def rows_of(n: int = 96) -> dict[str, Any]:
    features = np.random.default_rng(0).standard_normal((n, 4)).astype(np.float32)
    return {"features": features, "label": (features[:, 0] > 0).astype(np.int64)}


def changed(**columns: Any) -> Any:
    return lambda: rows_of() | columns


LISTS = [list(range(1 + i % 3)) for i in range(96)]
WITH_NULL = [[0.0] * 4] * 95 + [None]
DATA: list[tuple[Any, type[HopyardError], str]] = [
    (lambda: {"feature": rows_of()["features"], "label": rows_of()["label"]}, ColumnError, "'features'; did you mean 'feature'? The columns there are: feature, label."),
    (lambda: {"features": rows_of()["features"]}, ColumnError, "Unknown column: 'label'. The columns there are: features."),
    (lambda: pd.DataFrame(np.zeros((96, 2))), DataError, "Column names must be non-empty strings, but there are: 0, 1."),
    (lambda: pd.DataFrame(np.zeros((96, 2)), columns=["label", "label"]), DataError, "must be unique, but these occur more than once: label."),
    (dict, DataError, "The data is empty: it has no rows, or no columns. Give at least one row."),
    (lambda: rows_of(0), DataError, "The data is empty: it has no rows, or no columns."),
    (lambda: iter(()), DataError, "The data is empty: it has no rows, or no columns."),
    (list, DataError, "The data is empty: it has no rows, or no columns."),
    (lambda: None, DataError, "cannot be read. Give a dict of arrays, a pandas or polars frame"),
    (lambda: rows_of()["features"], DataError, "Data of type numpy.ndarray cannot be read. Give a dict of arrays"),
    (lambda: "nowhere.parquet", NotFoundError, "There is no file or directory nowhere.parquet. Check the path."),
    (lambda: ((1, 2) for _ in range(3)), DataError, "An iterable must give dicts, one a row, but row 0 is a tuple."),
    (changed(label=np.zeros(5, np.int64)), DataError, "All columns must have the same number of rows, but they have: features 96, label 5."),
    (changed(features=LISTS), DataError, "Column 'features' is ragged: its rows have 1 to 3 values. Pass ragged='pad'"),
    (changed(features=WITH_NULL), DataError, "column 'features' in 1 row (row 95). Remove those rows (where labels or weights are null there is no other way), or pass nulls='fill'"),
    (lambda: pd.DataFrame({"features": list(rows_of()["features"]), "label": [None, *[1.0] * 95]}), DataError, "The label column 'label' is null in 1 row (row 0). Labels are never filled"),
    (changed(features=rows_of()["features"].astype(complex)), DataError, "These columns hold what a dataset cannot: features (complex128)"),
    (lambda: rows_of(1), DataError, "validation=0.25 leaves the validation set empty (1 rows in all). Give another share or column, more rows"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(DATA)))
def test_data_that_breaks_a_rule_is_refused(case: int, search: Any, untouched: Any) -> None:
    make, kind, text = DATA[case]
    with refused(kind, text):
        search(untouched, estimator_gen_fn=linear, evaluation_metric="loss").fit(make())


LABELS: list[tuple[Any, str]] = [
    (changed(label=np.array(["yes", "no"] * 48)), "holds str objects such as 'yes', but labels must be integers (classes) or floating numbers"),
    (changed(label=rows_of()["label"].astype(bool)), "holds torch.bool, but labels must be integers (classes) or floating numbers; convert it"),
    (changed(label=rows_of()["label"].astype(np.float32)), "Floating labels (8,) do not fit the model's outputs (8, 2): both need as many elements."),
    (changed(label=rows_of()["label"] + 1), "CrossEntropyLoss with 2 outputs takes classes 0 to 1, not 2"),
    (changed(label=rows_of()["label"] - 1), "CrossEntropyLoss with 2 outputs takes classes 0 to 1, not -1"),
    (changed(label=np.zeros((96, 2), np.int64)), "failed on outputs float32 (8, 2) and labels int64 (8, 2)"),
    (changed(features=np.ones((96, 4), np.int32)), "The model failed on inputs int64 (8, 4): mat1 and mat2 must have the same dtype"),
    (changed(features=np.ones((96, 5))), "The model failed on inputs float32 (8, 5): mat1 and mat2 shapes cannot be multiplied"),
    (changed(features=np.ones(96)), "name other inputs=. A scalar column is (n,): inputs={'x': ['a', 'b']} stacks scalar columns into one array (n, k)"),
    (changed(features=np.array(["a"] * 96)), "holds texts such as 'a', not numbers of one shape; encode or pad it when preparing the data"),
    (changed(features=np.full((96, 4), np.inf)), "The loss became nan in epoch 1, partition 0, batch 1; lower the learning rate"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(LABELS)))
def test_data_that_does_not_fit_the_model_is_refused_by_the_check_on_one_batch(
    case: int, search: Any, tmp_path: Path
) -> None:
    make, text = LABELS[case]
    store = LocalStore(tmp_path / "store")
    with refused(TrialError, text) as caught:
        search(store, estimator_gen_fn=linear).fit(make())
    message = str(caught.value)
    assert message.startswith(
        "the first 3 trials fail alike on one batch, so nothing was prepared and no run was begun."
    )
    assert "None" not in message.splitlines()[1]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_more_partitions_than_row_groups_are_refused_with_the_number_that_works(
    search: Any, untouched: Any
) -> None:
    with refused(
        UsageError,
        "num_partitions is 9, but the training data has 6 row groups, and a partition needs at least one. Give num_partitions=6 or less.",
    ):
        search(untouched, num_partitions=9).fit(rows_of(8))
    stream = ({"features": f, "label": y} for f, y in zip(*rows_of(8).values(), strict=True))
    with refused(UsageError, "Give num_partitions=6 or less."):
        search(untouched, num_partitions=9).fit(stream)
    prepared = prepare(rows_of(8), MemoryStore())
    with refused(UsageError, "Give num_partitions=6 or less."):
        search(untouched, num_partitions=9).fit(prepared.train, prepared.val)


def test_the_most_partitions_work(search: Any) -> None:
    model = search(MemoryStore(), estimator_gen_fn=linear, evaluation_metric="loss", num_partitions=6).fit(
        rows_of(8)
    )
    assert model.run.broken_rules() == []


@pytest.mark.parametrize(
    ("val", "kind", "text"),
    [
        (lambda: {"features": rows_of()["features"]}, ColumnError, "Unknown validation column: 'label'. The columns there are: features."),
        (lambda: rows_of() | {"features": np.zeros((96, 2), np.float32)}, DataError, "float32[4] in the training data but features: float32[2] in the validation data."),
        (lambda: rows_of(0), DataError, "The data is empty"),
        (lambda: 0.3, DataError, "Data of type builtins.float cannot be read."),
    ],
)  # fmt: skip
def test_validation_data_must_be_like_the_training_data(
    val: Any, kind: Any, text: str, search: Any, tmp_path: Path
) -> None:
    with refused(kind, text):
        search(LocalStore(tmp_path)).fit(rows_of(), val())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_column_that_cannot_split_is_refused(search: Any, untouched: Any) -> None:
    for column, text in (
        (np.zeros(96, int), "validation='s' leaves the validation set empty (96 rows in all)."),
        (np.ones(96, int), "validation='s' leaves the training set empty (96 rows in all)."),
        (np.ones(96), "Column 's' cannot split the data: it is s: float64, but must hold bools or ints"),
    ):
        with refused(DataError, text):
            search(untouched, validation="s").fit(rows_of() | {"s": column})
    with refused(ColumnError, "Unknown validation column: 'lable'; did you mean 'label'?"):
        search(untouched, validation="lable").fit(rows_of())
    with refused(DataError, "Column 'features' splits the data and cannot be a feature or label as well."):
        search(untouched, validation="features").fit(rows_of())


def test_prepared_data_is_checked_like_any_other(search: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with refused(NotFoundError, "holds no train dataset: neither a manifest.json nor Parquet files are in"):
        search(store).fit_on_prepared_data()
    prepared, other = (
        prepare(rows_of(), store),
        prepare({"features": [[float(row), 2.0] for row in range(8)], "label": [1] * 8}, MemoryStore()),
    )
    with refused(
        ColumnError,
        "the training data has no column 'feature'; did you mean 'features'? It has ['features', 'label']",
    ):
        search(store, feature_columns=["feature"]).fit_on_prepared_data()
    with refused(
        DataError,
        "column 'features' is features: float32[4] in the training data, but features: float64[2] in the validation data.",
    ):
        search(store).fit(prepared.train, other.val)
    pd.DataFrame({"features": [0.0] * 8, "label": [1] * 8}).to_parquet(tmp_path / "a.parquet")
    with refused(
        UsageError,
        "Parquet is trained on as it is, so none is split off. Give val=... too, or validation=None",
    ):
        search(store).fit_on_parquet(tmp_path / "a.parquet")
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").rglob("*"))


def test_a_run_id_with_other_settings_is_refused_before_anything_is_written(
    search: Any, tmp_path: Path
) -> None:
    class Stop(Callback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    store = LocalStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search(store, run_id="mine", callbacks=[Stop()]).fit(rows_of())
    before = sorted(tmp_path.rglob("*"))
    other = rows_of() | {"features": rows_of()["features"] * 2}
    with refused(
        SettingsError,
        "run mine exists with other settings: seed: 0 (run) -> 5 (now). Only num_models and num_epochs can grow.",
    ):
        search(store, run_id="mine", seed=5).fit(rows_of())
    with refused(SettingsError, "run mine exists with other settings: data: "):
        search(store, run_id="mine").fit(other)
    with refused(SettingsError, "the estimator function's code changed: linear (new)"):
        search(store, run_id="mine", estimator_gen_fn=linear).fit(rows_of())
    assert sorted(tmp_path.rglob("*")) == before
    assert search(store, run_id="mine").fit(rows_of()).run.status == "completed"


# Few rows, odd types: they work ---------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_fewer_rows_than_a_batch_train(rows: int, search: Any) -> None:
    model = search(
        MemoryStore(), estimator_gen_fn=linear, evaluation_metric="loss", validation=0.5, num_partitions=None
    ).fit(rows_of(rows))
    assert model.run.broken_rules() == []
    assert all(np.isfinite(values).all() for values in model.get_history().values())


def test_equal_numbers_of_other_types_train_alike(search: Any) -> None:
    data = rows_of()
    single = {"features": data["features"].tolist(), "label": data["label"].astype(np.uint8)}
    forms = [
        data,
        {"features": data["features"].astype(np.float64), "label": data["label"].astype(np.int8)},
        {"features": data["features"].astype(object), "label": data["label"].reshape(-1, 1)},
        {"features": torch.from_numpy(data["features"]), "label": torch.from_numpy(data["label"])},
        pa.table({"features": single["features"], "label": single["label"]}),
    ]

    def whole_at_once(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            torch.nn.Linear(4, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), ["accuracy"], batch_size=96
        )

    # The order of rows, and which ones a share holds, follow from their content, of which a dtype is part.
    alike: Any = {"num_models": 1, "num_epochs": 1, "num_partitions": 1, "estimator_gen_fn": whole_at_once}
    searches = [search(MemoryStore(), **alike) for _ in forms]
    histories = [one.fit(form, form).get_history() for one, form in zip(searches, forms, strict=True)]
    for history in histories:
        assert history == {name: pytest.approx(values, rel=1e-6) for name, values in histories[0].items()}
