"""Models as ONNX, read by ONNX's own evaluator; the first export of a process imports for seconds."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from tests.tune import test_kinds_of_data as kinds
from tests.tune import test_missing_values as missing
from tests.tune import test_preprocessing as preprocessing

from hopyard import load_model
from hopyard.backend import InlineBackend
from hopyard.errors import EstimatorError, UsageError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, hp_choice


def onnx_outputs(path: Path, inputs: dict[str, Any]) -> list[Any]:
    graph = onnx.load(path)
    onnx.checker.check_model(graph, full_check=True)
    assert {entry.name for entry in graph.graph.input} == set(inputs)
    outputs: list[Any] = ReferenceEvaluator(graph).run(None, inputs)
    return outputs


@pytest.mark.parametrize("traced", [True, False])
def test_an_exported_model_predicts_or_says_what_it_leaves_out(
    traced: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def predict(outputs: Any) -> Any:
        return outputs.softmax(1) if traced else 2 * np.array(json.loads(json.dumps(outputs.tolist())))

    def gen(params: dict[str, Any]) -> TorchEstimator:
        model = torch.nn.Linear(4, 3)
        change = None if traced else (lambda batch, rng: {**batch, "features": batch["features"] * 3})
        return TorchEstimator(
            model, torch.optim.SGD, torch.nn.CrossEntropyLoss(), (), 16, {"lr": params["lr"]},
            predict=predict, val_transform=change,
        )  # fmt: skip

    rng = np.random.default_rng(0)
    data = {"features": rng.standard_normal((64, 4)).astype(np.float32), "label": rng.integers(0, 3, 64)}
    model = RandomSearch(
        InlineBackend(), MemoryStore(), gen, {"lr": hp_choice([0.1])}, num_models=1, num_epochs=1,
        num_partitions=1, progress=False,
    ).fit(data)  # fmt: skip
    path = model.export(tmp_path / "model.onnx")
    scale = 1 if traced else 3
    for rows in (1, 7):
        [out] = onnx_outputs(path, {"features": data["features"][:rows] * scale})
        expected = model.predict(data["features"][:rows]) / (1 if traced else 2)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    said = [each for each in caplog.messages if "leaves out" in each]
    assert len(said) == (0 if traced else 1)
    if not traced:
        assert "predict= (it cannot be traced" in said[0]
        assert "val_transform= (its inputs are what that gives)" in said[0]


def test_stacked_inputs_and_transformed_ones_are_exported_as_the_model_gets_them(tmp_path: Path) -> None:
    data = kinds.people()
    model = kinds.short_search(MemoryStore(), kinds.tabular, **kinds.TABULAR).fit(data)
    model.export(tmp_path / "tabular.onnx")
    dense = data[["age", "income"]].to_numpy(np.float32)[:5]
    inputs = {"dense": dense, "ids": data[["group"]].to_numpy(np.int64)[:5]}
    [out] = onnx_outputs(tmp_path / "tabular.onnx", inputs)
    np.testing.assert_allclose(out, model.predict(data[:5]), rtol=1e-4, atol=1e-4)

    model = kinds.short_search(MemoryStore(), kinds.mixed, **kinds.MIXED).fit(data)
    model.export(tmp_path / "mixed.onnx")
    loaded = load_model(model.save(tmp_path / "saved"))
    with pytest.raises(EstimatorError, match=r"val_transform failed .*'' is not in list.*export\(path, exam"):
        loaded.export(tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()
    loaded.export(tmp_path / "other.onnx", example=data)
    assert (tmp_path / "other.onnx").stat().st_size == (tmp_path / "mixed.onnx").stat().st_size


def test_what_onnx_cannot_express_is_said(tmp_path: Path) -> None:
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if x.sum() > 0 else -self.linear(x)

    def branching(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(Branching(), torch.optim.SGD, torch.nn.MSELoss(), optimizer_params=params)

    x = np.random.default_rng(0).standard_normal((kinds.ROWS, 2))
    model = kinds.short_search(MemoryStore(), branching).fit({"features": x, "label": x[:, 0]})
    with pytest.raises(EstimatorError, match="cannot be exported as ONNX"):
        model.export(tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match=r"ends in '.pt'; models are exported as '.onnx'"):
        model.export(tmp_path / "x.pt")


def test_padded_tokens_and_their_lengths_are_inputs(tmp_path: Path) -> None:
    columns = ["tokens", "tokens_length"]
    model = missing.search(missing.of_tokens, columns, "label", ragged="pad").fit(missing.sentences())
    model.export(tmp_path / "model.onnx")
    lists = [[1, 2, 3], [4], [5, 6]]
    padded = np.zeros((3, 8), np.int64)
    for place, row in zip(padded, lists, strict=True):
        place[: len(row)] = row
    inputs = {"tokens": padded, "tokens_length": np.array([3, 1, 2])}
    [found] = onnx_outputs(tmp_path / "model.onnx", inputs)
    np.testing.assert_allclose(found, model.predict(lists), rtol=1e-4, atol=1e-5)


def test_onnx_leaves_the_steps_out_and_says_so(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = preprocessing.search(LocalStore(tmp_path)).fit(preprocessing.people())
    with caplog.at_level(logging.WARNING, "hopyard"):
        model.export(tmp_path / "net.onnx")
    assert "leaves out preprocess= (Impute('age', by='median', indicator=True), StandardScale" in caplog.text
    assert (
        "its inputs are what these steps give: numbers: float32 (rows, 3), city: int64 (rows). model"
        in caplog.text
    )
    names = [given.name for given in onnx.load(tmp_path / "net.onnx").graph.input]
    assert names == ["numbers", "city"]

    new = preprocessing.people(9, seed=7).drop(columns="label")
    made = model.preprocessing.apply(new)  # type: ignore[union-attr]
    numbers = np.stack([made[name] for name in preprocessing.NUMBERS], axis=1)
    (found,) = ReferenceEvaluator(str(tmp_path / "net.onnx")).run(
        None, {"numbers": numbers.astype(np.float32), "city": made["city"]}
    )
    np.testing.assert_allclose(found, model.predict(new), rtol=1e-5, atol=1e-6)
