"""Searches over Keras models, as users of Cerebro ran them; and what they asked for or met there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

keras = pytest.importorskip("keras")

from hopyard.backend import InlineBackend  # noqa: E402
from hopyard.errors import DataError, SettingsError, TrialError  # noqa: E402
from hopyard.keras import KerasEstimator  # noqa: E402
from hopyard.storage import LocalStore, MemoryStore  # noqa: E402
from hopyard.tune import GridSearch, HyperOpt, hp_choice, hp_log, hp_quniform  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # TensorFlow, as Keras reads its tensors
layers = keras.layers


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray[Any, Any]]:
    """203 rows: no number of partitions divides them, nor do batches."""
    random = np.random.default_rng(0)
    x = random.standard_normal((203, 6)).astype(np.float32)
    price = (x[:, 0] + 2 * x[:, 1] * x[:, 2]).astype(np.float32)
    return {
        "features": x,
        "age": random.integers(0, 9, 203),
        "label": (price > 0).astype(np.int64),
        "price": price,
        "held_out": np.arange(203) % 4 == 0,
    }


def classifier(params: dict[str, Any]) -> KerasEstimator:
    model = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(1, activation="sigmoid")])
    optimizer = keras.optimizers.Adam(params["lr"])
    batch_size = int(params.get("batch_size", 32))
    # Eagerly: to trace functions takes longer than to train on so few rows.
    return KerasEstimator(
        model, optimizer, "binary_crossentropy", metrics=["acc"], batch_size=batch_size, run_eagerly=True
    )


def search(estimator: Callable[[dict[str, Any]], Any], kind: Any = GridSearch, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "backend": InlineBackend(),
        "store": MemoryStore(),
        "estimator_gen_fn": estimator,
        "search_space": {"lr": hp_choice([0.1, 0.001])},
        "num_epochs": 2,
        "num_partitions": 3,
        "validation": "held_out",
        "feature_columns": ["features"],
        "progress": False,
    }
    return kind(**(arguments | changes))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (GridSearch, {"search_space": {"lr": hp_choice([0.1, 0.01])}}),
        (
            HyperOpt,
            {
                "search_space": {"lr": hp_log(1e-4, 1e-1), "batch_size": hp_quniform(16, 64, 16)},
                "num_models": 2,
            },
        ),
    ],
)
def test_searches_keep_every_model_and_choose_the_least_loss(
    kind: Any, arguments: dict[str, Any], rows: dict[str, Any]
) -> None:
    backend, store = InlineBackend(), MemoryStore()
    model = search(classifier, kind, backend=backend, store=store, **arguments).fit(rows)
    histories = model.get_all_model_history()
    assert {name: len(values) for name, values in model.get_history().items()} == dict.fromkeys(
        ("train_loss", "train_acc", "val_loss", "val_acc"), 2
    )
    assert len(model.get_all_models()) == len(histories) == 2
    best = {number: min(history["val_loss"]) for number, history in histories.items()}
    assert model.trial == min(best, key=lambda number: best[number])
    found = model.set_output_columns(["chance"]).transform(rows)["chance"]
    assert np.allclose(found, model.keras().predict(rows["features"], verbose=0)[:, 0], atol=1e-6)
    # The same backend, the same prepared data: nothing is prepared again, and another search goes over it.
    again = search(classifier, backend=backend, store=store, num_epochs=1).fit_on_prepared_data()
    assert len(again.get_all_models()) == 2


def test_the_greatest_accuracy_wins(rows: dict[str, Any]) -> None:
    model = search(classifier, evaluation_metric="acc").fit(rows)
    best = {number: max(history["val_acc"]) for number, history in model.get_all_model_history().items()}
    assert best[model.trial] == max(best.values()) > min(best.values())


def test_values_of_uneven_partitions_are_those_of_all_rows(rows: dict[str, Any]) -> None:
    """A mean over partitions would weigh their rows unequally, and no mean of AUCs or roots is one of all rows."""

    def estimator(params: dict[str, Any]) -> KerasEstimator:
        given = classifier(params)
        given.metrics = [
            "acc",
            keras.metrics.AUC(name="auc"),
            keras.metrics.RootMeanSquaredError(name="rmse"),
        ]
        return given

    model = search(estimator, num_partitions=5, num_epochs=1, evaluation_metric="auc", mode="max").fit(rows)
    held = {name: column[rows["held_out"]] for name, column in rows.items()}
    expected = model.keras().evaluate(
        held["features"], held["label"], batch_size=64, verbose=0, return_dict=True
    )
    assert set(expected) == {"loss", "acc", "auc", "rmse"}
    for name, value in expected.items():
        assert model.get_history()[f"val_{name}"][0] == pytest.approx(value, rel=1e-5)


def test_no_metrics(rows: dict[str, Any]) -> None:
    def estimator(params: dict[str, Any]) -> KerasEstimator:
        given = classifier(params)
        given.metrics = []
        return given

    assert set(search(estimator, num_epochs=1).fit(rows).get_history()) == {"train_loss", "val_loss"}


class Scaled(layers.Layer):  # type: ignore[misc]
    """A layer of the user's own, with a weight."""

    def build(self, shape: tuple[Any, ...]) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return x * self.scale


def test_two_inputs_two_outputs_and_a_layer_of_ones_own(rows: dict[str, Any]) -> None:
    def estimator(params: dict[str, Any]) -> KerasEstimator:
        features, age = keras.Input((6,), name="features"), keras.Input((1,), name="age")
        ages = layers.Flatten()(layers.Embedding(9, 2)(age))
        hidden = layers.Concatenate()([Scaled()(features), ages])
        outputs = [
            layers.Dense(1, activation="sigmoid", name="label")(hidden),
            layers.Dense(1, name="price")(hidden),
        ]
        losses = {"label": "binary_crossentropy", "price": "mae"}
        return KerasEstimator(
            keras.Model([features, age], outputs),
            keras.optimizers.SGD(params["lr"]),
            losses,
            loss_weights={"label": 1.0, "price": 0.5},
            metrics={"label": ["acc"]},
            run_eagerly=True,
        )

    columns = {"feature_columns": ["age", "features"], "label_columns": ["label", "price"]}
    model = search(estimator, num_epochs=1, **columns).fit(rows)
    assert {"val_loss", "val_label_acc", "val_price_loss"} <= set(model.get_history())
    table = model.set_output_columns(["chance", "guess"]).transform(rows)
    inputs = {"features": rows["features"], "age": rows["age"]}
    chance, guess = model.keras().predict(inputs, verbose=0)
    assert np.allclose(table["chance"], chance[:, 0], atol=1e-6)
    assert np.allclose(table["guess"], guess[:, 0], atol=1e-6)


def test_a_failing_trial_leaves_the_others_alone(rows: dict[str, Any]) -> None:
    def estimator(params: dict[str, Any]) -> KerasEstimator:
        if params["lr"] == 0.001:
            raise ValueError("no such rate")
        return classifier(params)

    model = search(estimator, num_epochs=1, search_space={"lr": hp_choice([0.1, 0.001, 0.01])}).fit(rows)
    table = model.trials().set_index("number")
    assert len(model.get_all_models()) == 2
    (failed,) = table.index[table["state"] == "failed"]
    assert table.loc[failed, "params"] == {"lr": 0.001}
    assert "no such rate" in table.loc[failed, "error"]


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """The largest output: no sum."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.value


def test_a_metric_that_is_no_sum_is_refused_on_the_first_batch(rows: dict[str, Any]) -> None:
    def estimator(params: dict[str, Any]) -> KerasEstimator:
        given = classifier(params)
        given.metrics = [Largest(name="largest")]
        return given

    with pytest.raises(TrialError) as caught:
        search(estimator).check(rows)
    assert "The metric 'largest' (Largest) keeps 'value', which does not add up: " in str(caught.value)
    assert (
        "update_state must add sums to its variables (of values, and of rows), and result() divide them; what "
        "stays the same belongs into an attribute." in str(caught.value)
    )


def test_weights_of_rows_may_come_with_the_labels_and_are_not_asked_for_in_predictions(rows: Any) -> None:
    def weighted(params: dict[str, Any]) -> KerasEstimator:
        model = keras.Sequential([layers.Dense(1, activation="sigmoid")])
        return KerasEstimator(
            model, "sgd", "binary_crossentropy", sample_weight_column="age", run_eagerly=True
        )

    once: dict[str, Any] = {"search_space": {"lr": hp_choice([0.1])}, "num_epochs": 1}
    model = search(weighted, label_columns=["label", "age"], **once).fit(rows)
    assert model.predict(rows["features"][:3]).shape == (3, 1)
    plain = KerasEstimator(model.keras(), "sgd", "binary_crossentropy").compiled_model()
    held = rows["held_out"]
    expected = plain.evaluate(
        rows["features"][held], rows["label"][held], sample_weight=rows["age"][held].astype("f4"), verbose=0
    )
    assert model.get_history()["val_loss"] == pytest.approx([expected], rel=1e-5)


def test_lists_that_were_padded_for_training_are_padded_for_predictions(rows: Any) -> None:
    def embedding(params: dict[str, Any]) -> KerasEstimator:
        parts = [keras.Input((None,), dtype="int32"), layers.Embedding(9, 4), layers.GlobalAveragePooling1D()]
        model = keras.Sequential([*parts, layers.Dense(1, activation="sigmoid")])
        return KerasEstimator(model, "sgd", "binary_crossentropy", run_eagerly=True)

    tokens = [[int(age)] * (1 + number % 5) for number, age in enumerate(rows["age"])]
    data = pa.table({"tokens": tokens, "label": rows["label"]})
    model = search(
        embedding, feature_columns=["tokens"], ragged="pad", validation=0.25, num_epochs=1,
        search_space={"lr": hp_choice([0.1])},
    ).fit(data)  # fmt: skip
    by_hand = np.array([row + [0] * (5 - len(row)) for row in tokens])
    assert np.array_equal(model.predict(data), model.predict(by_hand))
    assert (
        model.set_output_columns(["chance"]).transform(data)["chance"].to_pylist()
        == model.predict(by_hand)[:, 0].tolist()
    )
    assert model.evaluate(data)["loss"] > 0
    with pytest.raises(DataError) as caught:
        model.predict({"tokens": pa.array([[1] * 6, [2]])})
    assert str(caught.value) == (
        "column 'tokens' has a row of 6 values, but those that the model was trained on have at most 5, to which they "
        "were padded. Shorten the row, or train on rows as long."
    )


def test_a_search_on_another_backend_of_keras_is_another_run(
    rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    once: dict[str, Any] = {"search_space": {"lr": hp_choice([0.1])}, "num_epochs": 1, "store": store}
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    first = search(classifier, **once).fit(rows).run.run_id
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # which Keras takes if nothing is said
    assert search(classifier, **once).fit(rows).run.run_id == first
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert search(classifier, **once).fit(rows).run.run_id != first


class Fading(keras.callbacks.Callback):
    """A rate that falls to nothing over the whole training."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * (1 - epoch / self.params["epochs"])


def decaying(steps: int) -> Callable[[dict[str, Any]], KerasEstimator]:
    def estimator(params: dict[str, Any]) -> KerasEstimator:
        model = keras.Sequential([layers.Dense(1, activation="sigmoid")])
        schedule = keras.optimizers.schedules.CosineDecay(params["lr"], steps)
        return KerasEstimator(model, keras.optimizers.SGD(schedule), "binary_crossentropy", run_eagerly=True)

    return estimator


def test_what_follows_from_num_epochs_is_not_extended(rows: Any) -> None:
    def fading(params: dict[str, Any]) -> KerasEstimator:
        model = keras.Sequential([layers.Dense(1, activation="sigmoid")])
        return KerasEstimator(model, "sgd", "binary_crossentropy", callbacks=[Fading()], run_eagerly=True)

    once: dict[str, Any] = {"search_space": {"lr": hp_choice([0.1])}, "store": MemoryStore()}
    search(fading, **once, run_id="a", num_epochs=1).fit(rows)
    with pytest.raises(
        SettingsError, match=r"training of trial 0 .* callback Fading uses params\['epochs'\]\. Epo"
    ):
        search(fading, **once, run_id="a", num_epochs=2).fit(rows)
    # Steps that the user's function has from a variable are part of what identifies it.
    search(decaying(10), **once, run_id="b", num_epochs=1).fit(rows)
    with pytest.raises(
        SettingsError,
        match=r"run b exists with other settings: the estimator function's code changed: steps in",
    ):
        search(decaying(20), **once, run_id="b", num_epochs=2).fit(rows)
    extended = search(decaying(10), **once, run_id="b", num_epochs=2).fit(rows)
    whole = search(decaying(10), search_space=once["search_space"], num_epochs=2).fit(rows)
    assert extended.get_history() == whole.get_history()


def embedding() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((6, 20_000)).astype(np.float32)


def on_an_embedding(params: dict[str, Any]) -> KerasEstimator:
    frozen = layers.Dense(20_000, use_bias=False, trainable=False)
    model = keras.Sequential([keras.Input((6,)), frozen, layers.Dense(1, activation="sigmoid")])
    frozen.set_weights([embedding()])
    return KerasEstimator(
        model, keras.optimizers.Adam(params["lr"]), "binary_crossentropy", batch_size=32, run_eagerly=True
    )


def test_frozen_layers_are_stored_once_for_all_trials_and_epochs(rows: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    best = search(on_an_embedding, store=store).fit(rows)
    sizes = {entry.name: entry.size for entry in store.runs.list()}
    once = sum(size for name, size in sizes.items() if name.startswith("_frozen/"))
    assert embedding().nbytes <= once < embedding().nbytes + 20_000
    assert all(size < embedding().nbytes for name, size in sizes.items() if not name.startswith("_frozen/"))
    np.testing.assert_array_equal(best.keras().layers[0].get_weights()[0], embedding())
