"""Searches on data of many kinds, and the calls that prepare, open and load it, as users type them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_wine, make_friedman1

import hopyard
from hopyard import load_model, make_torch_dataset
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import Category, Ragged, as_source, open_dataset, prepare
from hopyard.errors import UsageError
from hopyard.storage import LocalStore, MemoryStore, open_store
from hopyard.torch import TorchEstimator
from hopyard.tune import (
    RandomSearch,
    hp_log,
)

ROWS = 96
CITIES = ["Aarhus", "Bergen", "Cork"]
TABULAR: dict[str, Any] = {
    "feature_columns": ["age", "income", "group"],
    "label_columns": ["y"],
    "evaluation_metric": "r2",
}
MIXED: dict[str, Any] = {"feature_columns": ["city", "since", "member"], "label_columns": ["y"]}


def wine() -> dict[str, Any]:
    data = load_wine()
    return {"features": (data.data - data.data.mean(axis=0)) / data.data.std(axis=0), "label": data.target}


def people() -> pd.DataFrame:
    """Columns of many types; ``y`` is to be predicted."""
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.integers(18, 90, ROWS),
            "income": random.normal(size=ROWS),
            "city": random.choice(CITIES, ROWS),
            "since": pd.date_range("2024-01-01", periods=ROWS),
            "member": random.random(ROWS) > 0.5,
            "kind": pd.Categorical(random.choice(["x", "y"], ROWS)),
            "group": random.integers(0, 5, ROWS).astype("int8"),
            "y": random.normal(size=ROWS).astype("float32"),
        }
    )


class Tabular(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 4)
        self.out = torch.nn.Linear(6, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.embedding(ids[:, 0]), dense], dim=1))


def tabular(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=Tabular(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=params["lr"]),
        loss=torch.nn.MSELoss(),
        metrics=["mae", "r2"],
        inputs={"dense": ["age", "income"], "ids": ["group"]},
        batch_size=16,
    )


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 4)
        self.out = torch.nn.Linear(6, 1)

    def forward(self, city: torch.Tensor, since: torch.Tensor, member: torch.Tensor) -> torch.Tensor:
        others = torch.stack([since.float() / 1e18, member.float()], dim=1)
        return self.out(torch.cat([self.embedding(city), others], dim=1))


def mixed(params: dict[str, Any]) -> TorchEstimator:
    def numbered(batch: Any, rng: Any) -> Any:
        return batch | {"city": torch.tensor([CITIES.index(city) for city in batch["city"]])}

    return TorchEstimator(
        model=Mixed(),
        optimizer=torch.optim.SGD,
        optimizer_params=params,
        loss=torch.nn.MSELoss(),
        transform=numbered,
        val_transform=numbered,
    )


def short_search(store: Any, estimator_gen_fn: Any, **arguments: Any) -> RandomSearch:
    return RandomSearch(
        backend=InlineBackend(),
        store=store,
        estimator_gen_fn=estimator_gen_fn,
        search_space={"lr": hp_log(1e-5, 1e-3)},
        num_models=1,
        num_epochs=1,
        num_partitions=2,
        progress=False,
        **arguments,
    )


def test_a_run_is_opened_by_its_id(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    model = short_search(store, mixed, **MIXED).fit(people())
    run = hopyard.open_run(open_store(str(tmp_path)), model.run_id)
    assert np.array_equal(run.best.predict(people()), model.predict(people()))


def test_frames_tables_and_files_of_the_same_rows_are_one_run(tmp_path: Path) -> None:
    frame = people()
    frame.to_parquet(tmp_path / "people.parquet")
    (tmp_path / "many").mkdir()
    for part in (0, 1):
        half = frame[part * ROWS // 2 : (part + 1) * ROWS // 2]
        half.to_parquet(tmp_path / "many" / f"{part}.parquet")
    forms = [
        frame,
        pl.from_pandas(frame),
        pa.Table.from_pandas(frame, preserve_index=False),
        tmp_path / "people.parquet",
        str(tmp_path / "people.parquet"),
        tmp_path / "many",
        [tmp_path / "many" / "0.parquet", tmp_path / "many" / "1.parquet"],
    ]
    store = MemoryStore()
    ids = [short_search(store, mixed, **MIXED).fit(form).run_id for form in forms]
    assert len(set(ids)) == 1, ids


class SumOfBoxes(torch.nn.Linear):
    def forward(self, boxes: torch.Tensor) -> torch.Tensor:
        return super().forward(boxes).sum(1)[:, 0]


def padded(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    rows = [torch.as_tensor(row) for row in batch["boxes"]]
    return {**batch, "boxes": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


def sums_of_boxes(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        SumOfBoxes(4, 1, bias=False), torch.optim.SGD, torch.nn.MSELoss(), optimizer_params=params, transform=padded,
        val_transform=padded,
    )  # fmt: skip


def test_rows_of_vectors_are_what_a_transform_pads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    boxes = [random.normal(size=(count, 4)).astype("float32") for count in random.integers(0, 5, ROWS)]
    data = {"boxes": boxes, "y": np.array([box.sum() for box in boxes], np.float32)}
    chosen: dict[str, Any] = {"feature_columns": ["boxes"], "label_columns": ["y"], "ragged": "keep"}
    model = short_search(MemoryStore(), sums_of_boxes, **chosen).fit(data)
    weight = model.torch().weight.detach().numpy()[0]
    expected = np.array([box.sum(0) @ weight for box in boxes])
    for given in (boxes, {"boxes": boxes}, Ragged.from_rows(boxes), pd.DataFrame({"boxes": boxes})):
        assert np.allclose(model.predict(given), expected, atol=1e-5)
    same = model.predict({"boxes": np.ones((3, 2, 4), np.float32)})  # all of one length
    assert np.allclose(same, 2 * weight.sum(), atol=1e-5)
    assert model.evaluate(data)["loss"] == pytest.approx(((expected - data["y"]) ** 2).mean(), rel=1e-4)
    model.save(tmp_path / "model")
    assert np.allclose(load_model(tmp_path / "model").predict(boxes), expected, atol=1e-5)

    stock = hopyard.StockRoom.init(tmp_path / "repo")
    with stock.enable_write():
        stock.data["boxes"], stock.data["y"] = dict(enumerate(boxes)), data["y"]
        stock.data["set"] = prepare(data, MemoryStore(), validation=None, ragged="keep").train
    for name in ("set", ["boxes", "y"]):
        version = stock.data[name] if isinstance(name, str) else stock.data.samples(name)
        assert str(version.schema["boxes"]) == "boxes: float32[*, 4]"
        found = version[:]
        for box, y in zip(found["boxes"], found["y"], strict=True):
            assert box.sum() == pytest.approx(y, abs=1e-4)
        short_search(MemoryStore(), sums_of_boxes, **chosen).fit(version)


def test_types_of_csv_hold_in_a_search_and_in_what_its_model_is_given(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    ids = np.arange(64) % 5 + 100
    frame = pd.DataFrame({"city": ids, "x": random.normal(size=64), "y": random.normal(size=64)})
    frame.to_csv(tmp_path / "a.csv", index=False, sep=";")
    rows = as_source(tmp_path / "a.csv", types={"city": "text", "y": "float32"}, delimiter=";")

    class OfTwo(torch.nn.Linear):
        def forward(self, city: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.stack([city.float(), x.float()], 1))

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(OfTwo(2, 1), torch.optim.SGD, torch.nn.MSELoss(), optimizer_params=params)

    search = short_search(
        MemoryStore(), estimator, feature_columns=["city", "x"], label_columns=["y"],
        preprocess=[Category("city")],
    )  # fmt: skip
    model = search.fit(rows, rows)
    texts = frame.assign(city=ids.astype(str), y=frame["y"].astype("float32"))
    assert search.fit(texts, texts).run.run_id == model.run.run_id  # the same data
    assert model.preprocessing is not None
    assert model.preprocessing.categories("city") == sorted(set(map(str, ids)))
    assert model.evaluate(rows) == model.evaluate(texts)
    assert np.array_equal(model.predict(rows), model.predict(texts))


def test_numbers_from_csv_train_like_those_from_a_frame(tmp_path: Path) -> None:
    numbers = people()[["age", "income", "group", "y"]]
    numbers.to_csv(tmp_path / "people.csv", index=False)
    from_file = short_search(MemoryStore(), tabular, **TABULAR).fit(tmp_path / "people.csv")
    # With the dtypes that a text has: which rows are validated follows from their content.
    as_read = pd.read_csv(tmp_path / "people.csv")
    from_frame = short_search(MemoryStore(), tabular, **TABULAR).fit(as_read)
    for name, values in from_frame.get_history().items():
        assert from_file.get_history()[name] == pytest.approx(values, rel=1e-5)


def images(params: dict[str, Any]) -> TorchEstimator:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 4, 3)
            self.out = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.uint8
            return self.out(self.convolution(x.float() / 255).relu().mean((2, 3)))

    def schedule(optimizer: Any, steps_per_epoch: int, num_epochs: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps_per_epoch * num_epochs)

    return TorchEstimator(
        model=Net(),
        optimizer=torch.optim.AdamW,
        optimizer_params=params,
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy", "auc"],
        batch_size=8,
        scheduler=schedule,
        scheduler_interval="step",
        class_weight={0: 1.0, 1: 2.0},
        gradient_clip=1.0,
        accumulate=2,
        precision="bf16",
        predict=lambda outputs: outputs.argmax(dim=1),
    )


def test_images_come_as_uint8_from_arrays_tensors_and_torch_datasets() -> None:
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 255, (64, 3, 8, 8), dtype=np.uint8))
    labels = torch.from_numpy(random.integers(0, 2, 64))
    columns: dict[str, Any] = {"feature_columns": ["image"], "label_columns": ["label"]}
    histories = []
    for data in (
        {"image": pixels, "label": labels},
        {"image": pixels.numpy(), "label": labels.numpy()},
        torch.utils.data.TensorDataset(pixels, labels),
    ):
        model = short_search(MemoryStore(), images, evaluation_metric="auc", **columns).fit(data)
        histories.append(model.get_history())
        assert set(model.predict(pixels)) <= {0, 1}
        assert model.transform({"image": pixels})["label__output"].shape == (64,)
    assert histories[0] == histories[1] == histories[2]


def test_regression_with_float_labels_weights_and_a_step_of_its_own() -> None:
    x, y = make_friedman1(n_samples=ROWS, random_state=0)

    def weighted(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            model=torch.nn.Linear(10, 1),
            optimizer=torch.optim.SGD,
            optimizer_params=params,
            loss=torch.nn.MSELoss(),
            metrics=["rmse"],
            sample_weight_column="weight",
        )

    def own(params: dict[str, Any]) -> TorchEstimator:
        def step(model: Any, batch: Any) -> dict[str, Any]:
            error = model(batch["features"])[:, 0] - batch["label"]
            return {"loss": error.square().mean(), "largest": error.abs().max()}

        return TorchEstimator(
            model=torch.nn.Linear(10, 1),
            optimizer=torch.optim.SGD,
            optimizer_params=params,
            step=step,
            metrics=["largest"],
        )

    data = {"features": x, "label": y, "weight": np.arange(ROWS) % 2}
    # The column of weights is kept because it is named; the model gets the other one only, also to predict.
    as_label = short_search(MemoryStore(), weighted, label_columns=["label", "weight"]).fit(data)
    model = short_search(MemoryStore(), weighted, feature_columns=["features", "weight"]).fit(data)
    assert as_label.get_history() == model.get_history()
    assert (as_label.predict(x) == model.predict(x)).all()
    assert "label__output" in model.transform(pd.DataFrame({"features": list(x)})).columns
    assert model.evaluate(data).keys() == as_label.evaluate(data).keys() == {"loss", "rmse"}
    assert sorted(model.get_history()) == ["train_loss", "val_loss", "val_rmse"]
    assert model.get_history()["val_rmse"][0] ** 2 == pytest.approx(
        model.get_history()["val_loss"][0], rel=1e-5
    )
    model = short_search(MemoryStore(), own, evaluation_metric="largest", mode="min").fit(data)
    assert sorted(model.get_history()) == ["train_largest", "train_loss", "val_largest", "val_loss"]


def test_two_labels_and_two_outputs() -> None:
    data = load_breast_cancer()
    features = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classes, self.size = torch.nn.Linear(29, 2), torch.nn.Linear(29, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.classes(x), self.size(x)

    def both(outputs: Any, labels: Any) -> torch.Tensor:
        first = torch.nn.functional.cross_entropy(outputs[0], labels[0])
        return first + torch.nn.functional.mse_loss(outputs[1], labels[1])

    def two(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(model=Two(), optimizer=torch.optim.SGD, optimizer_params=params, loss=both)

    rows = {"features": features[:, 1:], "malignant": data.target, "size": features[:, 0]}
    model = short_search(MemoryStore(), two, label_columns=["malignant", "size"]).fit(rows)
    classes, sizes = model.predict(rows)
    assert (classes.shape, sizes.shape) == ((569, 2), (569, 1))
    out = model.set_output_columns(["class_predicted", "size_predicted"]).transform(rows)
    assert out["size_predicted"].shape == (569,)


@pytest.mark.parametrize("validation", ["is_val", 0.5, None, "second frame"])
def test_validation_is_a_share_a_column_a_frame_or_none(validation: Any) -> None:
    data = wine() | {"is_val": np.arange(178) % 4 == 0}
    given = wine() if validation == "second frame" else validation

    def linear(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            torch.nn.Linear(13, 3), torch.optim.SGD, torch.nn.CrossEntropyLoss(), optimizer_params=params
        )

    model = short_search(MemoryStore(), linear, validation=given).fit(data)
    assert model.info.metric == ("train_loss" if validation is None else "val_loss")
    explicit = short_search(MemoryStore(), linear, validation=None).fit(data, val=wine())
    assert explicit.info.metric == "val_loss"


def test_data_is_prepared_through_a_backend_under_either_name(tmp_path: Path) -> None:
    store, frame = LocalStore(tmp_path), people()
    prepared = InlineBackend().prepare_data(
        store, frame, validation=0.25, feature_columns=["age", "income", "group"], label_columns=["y"]
    )
    assert (len(prepared.train), len(prepared.val)) == (72, 24)
    one = LocalBackend(num_workers=1, device="cpu").prepare_data(
        store, frame, feature_column="age", label_column="y"
    )
    assert one.train.schema.names == ["age", "y"]
    with pytest.raises(UsageError, match=r"feature_column='age' and feature_columns=.* mean the same"):
        InlineBackend().prepare_data(store, frame, feature_column="age", feature_columns=["age"])
    again = InlineBackend().prepare_data(
        LocalStore(tmp_path / "other"),
        frame,
        validation=None,
        feature_columns=["age", "income", "group"],
        label_columns=["y"],
    )
    assert again.val is None
    del one
    model = short_search(LocalStore(tmp_path / "fit"), tabular, **TABULAR)
    InlineBackend().prepare_data(LocalStore(tmp_path / "fit"), frame)
    assert model.fit_on_prepared_data().info.metric == "val_r2"


def test_a_prepared_dataset_is_opened_sliced_and_loaded(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    prepare(
        people(),
        store=store,
        validation=0.25,
        feature_columns=None,
        label_columns=None,
        seed=0,
        nulls="error",
        ragged="error",
    )
    train = open_dataset(store, "train")
    assert len(train) == 72
    assert train.schema.names == list(people().columns)
    assert sum(len(part) for part in train.partitions(4)) == 72
    assert {len(values) for values in train[10:20].values()} == {10}
    loader = train.loader(
        batch_size=32,
        shuffle=True,
        seed=0,
        rank=0,
        world_size=1,
        columns=None,
        remainder="drop",
        output="numpy",
    )
    assert [len(batch["age"]) for batch in loader] == [32, 32, 8]
    assert len(loader) == 3
    state = json.loads(json.dumps(loader.state_dict()))
    loader.load_state_dict(state)
    first = next(iter(train.loader(batch_size=8, output="torch", columns=["age", "y"])))
    assert {name: value.dtype for name, value in first.items()} == {"age": torch.int64, "y": torch.float32}
    assert isinstance(make_torch_dataset(train)[3]["city"], str)


def test_a_dataset_is_searched_on_as_it_is(tmp_path: Path) -> None:
    prepared = prepare(people(), LocalStore(tmp_path))
    model = short_search(LocalStore(tmp_path / "runs"), tabular, **TABULAR).fit(prepared.train, prepared.val)
    assert not (tmp_path / "runs" / "train_data").exists()
    assert model.evaluate(prepared.val) == pytest.approx(
        {
            name.removeprefix("val_"): values[0]
            for name, values in model.get_history().items()
            if "val" in name
        }
    )


def test_windows_that_overlap_are_told_of_where_validation_is_a_share_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.sin(np.arange(80) / 5).astype("float32")
    pl.DataFrame({"time": np.arange(80), "value": values}).write_parquet(tmp_path / "waves.parquet")
    waves = open_dataset(tmp_path / "waves.parquet")
    parts = {"past": ("value", slice(0, 4)), "next": ("value", 4)}

    def forecast(params: dict[str, Any]) -> TorchEstimator:
        model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
        return TorchEstimator(
            model, torch.optim.SGD, torch.nn.functional.mse_loss, optimizer_params=params, batch_size=8
        )

    search = short_search(
        MemoryStore("waves"),
        forecast,
        feature_columns=["past"],
        label_columns=["next"],
        evaluation_metric="loss",
    )
    search.fit(waves.windows(5, time="time", columns=parts))
    assert [record.getMessage()[:70] for record in caplog.records] == [
        "validation=0.25 draws at random from windows that overlap, so that row"
    ]
