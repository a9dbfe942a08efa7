"""Ensembles of a run's models: selected as by an independent loop, predicting and saved as one model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopyard import StockRoom, load_model
from hopyard.errors import EstimatorError, NotFoundError, UsageError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.training.torch.ensemble import mean_of_outputs
from hopyard.tune import ASHA, Callback, Model, hp_choice, hp_log
from hopyard.tune.ensemble import greedy

Predictions = np.ndarray[Any, Any]


def cross_entropy(logits: Predictions, labels: Predictions) -> float:
    shifted = logits.astype("float64") - logits.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]))


def accuracy(logits: Predictions, labels: Predictions) -> float:
    return float(np.mean(logits.argmax(axis=1) == labels))


def selected(
    predictions: Sequence[Predictions],
    labels: Predictions,
    value: Callable[[Any, Any], float],
    k: int,
    sign: int,
) -> tuple[Counter[int], float]:
    """Greedy selection with replacement, written from the paper: sums of predictions, and the best of all sizes."""
    total = np.zeros_like(predictions[0], dtype="float64")
    picks: list[int] = []
    found: list[float] = []
    for size in range(1, k + 1):
        values = [sign * value((total + each) / size, labels) for each in predictions]
        pick = int(np.argmin(np.round(values, 12)))
        picks.append(pick)
        found.append(values[pick])
        total += predictions[pick]
    best = int(np.argmin(np.round(found, 12))) + 1
    return Counter(picks[:best]), sign * found[best - 1]


def members(ensemble: Model) -> Counter[int]:
    return Counter({member["trial"]: member["count"] for member in ensemble.params["members"]})


def validation(model: Model) -> Any:
    """The run's validation data."""
    return model.contents()[1].load_program().val


def check_selection(
    run: Any, k: int, label: str, value: Callable[[Any, Any], float], sign: int, least: int = 2
) -> Model:
    ensemble: Model = run.ensemble(k)
    rows = validation(run.best)[:]
    expected, figure = selected(
        [np.asarray(model.predict(rows)) for model in run.models], rows[label], value, k, sign
    )
    assert members(ensemble) == {run.models[place].trial: count for place, count in expected.items()}
    assert ensemble.info.value == pytest.approx(figure)
    assert len(members(ensemble)) >= least
    weights = {trial: count / members(ensemble).total() for trial, count in members(ensemble).items()}
    mean = sum(weight * np.asarray(run.model(trial).predict(rows)) for trial, weight in weights.items())
    assert np.allclose(ensemble.predict(rows), mean, atol=1e-6)
    return ensemble


SIX: dict[str, Any] = {
    "num_models": 6, "num_epochs": 3, "evaluation_metric": "loss", "run_id": "six",
    "search_space": {"width": hp_choice([4, 8]), "lr": hp_log(0.02, 0.05)},
}  # fmt: skip


def noisy(rows: Any) -> dict[str, Any]:
    """The rows, with another label for one in five, so that models err in different places."""
    random = np.random.default_rng(0)
    return {
        **rows,
        "label": np.where(random.random(len(rows["label"])) < 0.2, 1 - rows["label"], rows["label"]),
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    return LocalStore(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def run(make_rows: Any, store: LocalStore) -> Any:
    """Models of two widths, ranked by their loss."""
    from tests.tune.conftest import random_search

    return random_search(store, **SIX).fit(noisy(make_rows(160))).run


@pytest.fixture(scope="module")
def ensemble(run: Any) -> Model:
    found: Model = run.ensemble(8)
    return found


@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_models_are_selected_by_the_loss_as_an_independent_loop_does(run: Any, k: int) -> None:
    """Also where there are more picks than models."""
    check_selection(run, k, "label", cross_entropy, 1, least=2 if k >= 5 else 1)


def test_models_are_selected_by_accuracy(search: Any, make_rows: Any) -> None:
    how = {"num_models": 5, "num_epochs": 1, "evaluation_metric": "accuracy", "seed": 1}
    run = search(MemoryStore(), **how).fit(make_rows(160)).run
    check_selection(run, 6, "label", accuracy, -1, least=1)


class One(torch.nn.Linear):
    """Predicts by one of four features, so that models of different ones are better together."""

    def __init__(self, feature: int) -> None:
        super().__init__(1, 1)
        self.feature = feature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[:, self.feature, None])


def regression(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=One(params["feature"]), optimizer=torch.optim.SGD, optimizer_params={"lr": 0.05},
        loss=torch.nn.MSELoss(), metrics=["r2", worst_error], batch_size=8,
    )  # fmt: skip


def worst_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A user's metric."""
    return (outputs - labels).abs().max()


def sums(rows: Any) -> dict[str, Any]:
    return {"features": rows["features"], "label": rows["features"].sum(axis=1)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("metric", "mode", "value"),
    [
        ("loss", None, lambda outputs, labels: float(np.mean((outputs[:, 0] - labels) ** 2))),
        ("r2", None, lambda o, y: float(1 - np.sum((o[:, 0] - y) ** 2) / np.sum((y - y.mean()) ** 2))),
        ("worst_error", "min", lambda outputs, labels: float(np.abs(outputs[:, 0] - labels).max())),
    ],
)
def test_models_of_regressions_are_selected_also_by_a_metric_of_the_users(
    metric: str, mode: str | None, value: Callable[[Any, Any], float], search: Any, make_rows: Any
) -> None:
    how = {
        "estimator_gen_fn": regression,
        "search_space": {"feature": hp_choice([0, 1, 2, 3])},
        "evaluation_metric": metric,
    }
    run = search(MemoryStore(), num_models=4, mode=mode, **how).fit(sums(make_rows(96))).run
    ensemble = check_selection(run, 5, "label", value, -1 if metric == "r2" else 1)
    assert ensemble.predict(make_rows()["features"]).shape == (96, 1)


def test_the_figure_is_that_of_predicting_with_it(run: Any, ensemble: Model, tmp_path: Path) -> None:
    assert ensemble.evaluate(validation(run.best))["loss"] == ensemble.info.value
    assert ensemble.info.value < run.best.evaluate(validation(run.best))["loss"]
    loaded = load_model(ensemble.save(tmp_path / "one"))
    assert loaded.evaluate(validation(run.best))["loss"] == ensemble.info.value


def test_a_saved_one_predicts_the_same_in_another_process(
    ensemble: Model, make_rows: Any, tmp_path: Path
) -> None:
    rows = make_rows(20, 5)["features"]
    np.save(tmp_path / "rows.npy", rows)
    ensemble.save(tmp_path / "one")
    assert ensemble.save(tmp_path / "one") == tmp_path / "one"
    code = (
        "import numpy, sys, hopyard\n"
        "model = hopyard.load_model(sys.argv[1] + '/one')\n"
        "numpy.save(sys.argv[1] + '/outputs.npy', model.predict(numpy.load(sys.argv[1] + '/rows.npy')))\n"
        "print(len(model.params['members']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert int(done.stdout) == len(members(ensemble))
    assert np.array_equal(np.load(tmp_path / "outputs.npy"), ensemble.predict(rows))


def test_it_is_one_module_and_adds_its_outputs_to_frames(ensemble: Model, make_rows: Any) -> None:
    rows = make_rows(12, 6)
    module = ensemble.torch()
    with torch.no_grad():
        outputs = module(torch.from_numpy(rows["features"])).numpy()
    assert np.array_equal(outputs, ensemble.predict(rows))
    frame = pd.DataFrame({"features": list(rows["features"])})
    added = ensemble.set_output_columns(["guess"]).transform(frame)
    assert np.array_equal(np.stack(list(added.guess)), outputs)
    assert json.loads(json.dumps(ensemble.params)) == ensemble.params
    assert ensemble._repr_html_()


def test_it_is_registered_like_any_model(ensemble: Model, make_rows: Any, tmp_path: Path) -> None:
    stock = StockRoom.init(tmp_path / "stock")
    version = ensemble.register(stock, "team")
    version.download(tmp_path / "there")
    rows = make_rows(12, 6)
    assert np.array_equal(load_model(tmp_path / "there").predict(rows), ensemble.predict(rows))
    assert sorted(stock.model["team/1"]) == sorted(ensemble.torch().state_dict())


@pytest.mark.long
def test_it_is_the_same_of_a_run_that_was_interrupted(
    run: Any, ensemble: Model, make_rows: Any, search: Any
) -> None:
    class Interrupts(Callback):
        epochs = 0

        def on_epoch_end(self, trial: Any, epoch: Any, metrics: Any) -> None:
            self.epochs += 1
            if self.epochs == 5:
                raise KeyboardInterrupt

    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[Interrupts()], **SIX).fit(noisy(make_rows(160)))
    again = search(store, **SIX).fit(noisy(make_rows(160))).run.ensemble(8)
    assert again.info == ensemble.info
    assert again.weights()[1].digest == ensemble.weights()[1].digest


def test_steps_of_the_users_measure_ensembles_too(search: Any, make_rows: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        outputs = model(batch["features"])
        loss = torch.nn.functional.cross_entropy(outputs["logits"], batch["label"])
        return {"loss": loss, "right": (outputs["logits"].argmax(1) == batch["label"]).double().mean()}

    class Named(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return {"logits": super().forward(x)}

    def made(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            model=Named(4, 2), optimizer=torch.optim.SGD, optimizer_params={"lr": params["lr"]}, step=step,
            metrics=["right"], predict=lambda outputs: outputs["logits"], batch_size=8,
        )  # fmt: skip

    run = (
        search(MemoryStore(), estimator_gen_fn=made, evaluation_metric="loss", num_models=4)
        .fit(make_rows(120))
        .run
    )
    check_selection(run, 4, "label", cross_entropy, 1, least=1)


@given(
    st.lists(st.lists(st.integers(-8, 8), min_size=3, max_size=3), min_size=1, max_size=5), st.integers(1, 6)
)
def test_the_greedy_loop_is_that_of_the_paper(outputs: list[list[int]], picks: int) -> None:
    labels = np.array([1.0, -2.0, 3.0])

    def error(mean: Predictions, labels: Predictions) -> float:
        return float(np.mean((mean - labels) ** 2))

    def value_of(chosen: tuple[tuple[int, int], ...]) -> float:
        total = np.sum([count * np.array(outputs[model], "float64") for model, count in chosen], axis=0)
        return round(error(total / sum(count for _, count in chosen), labels), 12)

    chosen, value = greedy(len(outputs), picks, value_of)
    expected, figure = selected([np.array(each, "float64") for each in outputs], labels, error, picks, 1)
    assert dict(chosen) == expected
    assert value == pytest.approx(figure, abs=1e-9)


@pytest.mark.parametrize("k", [0, -1, 2.5, True, None, "3"])
def test_the_number_of_picks_is_a_whole_number(run: Any, k: Any) -> None:
    rule = "it must be an integer of at least 1. Write run.ensemble(10): so many times a model is picked."
    with pytest.raises(UsageError, match=re.escape(f"k={k!r}, but {rule}")):
        run.ensemble(k)


def test_models_that_were_not_kept_are_asked_for(search: Any, make_rows: Any) -> None:
    run = search(MemoryStore(), kind=ASHA, num_models=4, num_epochs=2).fit(make_rows()).run
    words = (
        f"run {run.run_id} has 4 models, and the weights of 1 are kept, but an ensemble is made of at least two. "
        "Search with keep='all', or with keep='best' and keep_n=10."
    )
    with pytest.raises(NotFoundError, match=re.escape(words)):
        run.ensemble(3)


def test_only_kept_models_are_members(search: Any, make_rows: Any) -> None:
    run = search(MemoryStore(), num_models=4, num_epochs=1, keep="best", keep_n=2).fit(make_rows()).run
    assert members(run.ensemble(6)).keys() <= {model.trial for model in run.models[:2]}


def test_a_run_without_validation_data_has_no_ensemble(search: Any, make_rows: Any) -> None:
    how = {"num_models": 2, "num_epochs": 1, "validation": None, "evaluation_metric": "loss"}
    run = search(MemoryStore(), **how).fit(make_rows()).run
    with pytest.raises(
        UsageError, match="has no validation data, but an ensemble is selected on rows that its members"
    ):
        run.ensemble(3)


def test_models_on_trunks_are_refused(search: Any, make_rows: Any) -> None:
    def made(params: dict[str, Any]) -> TorchEstimator:
        torch.manual_seed(0)
        return TorchEstimator(
            trunk=torch.nn.Linear(4, 3), model=torch.nn.Linear(3, 2), optimizer=torch.optim.SGD,
            optimizer_params={"lr": params["lr"]}, loss=torch.nn.CrossEntropyLoss(), metrics=["accuracy"],
        )  # fmt: skip

    run = search(MemoryStore(), estimator_gen_fn=made, num_models=2, num_epochs=1).fit(make_rows()).run
    with pytest.raises(EstimatorError, match="An ensemble has members without trunk="):
        run.ensemble(3)


def test_models_over_one_base_are_an_ensemble(search: Any, make_rows: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = torch.nn.Linear(4, 8)

    def made(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            base=base, model=lambda base: torch.nn.Sequential(base, torch.nn.Linear(8, 2)), optimizer=torch.optim.Adam,
            optimizer_params={"lr": params["lr"]}, loss=torch.nn.CrossEntropyLoss(), metrics=["accuracy"],
        )  # fmt: skip

    run = (
        search(MemoryStore(), estimator_gen_fn=made, num_epochs=1, evaluation_metric="loss")
        .fit(make_rows())
        .run
    )
    ensemble, rows = run.ensemble(3), make_rows(12, 6)
    shares = [each["count"] for each in ensemble.params["members"]]
    members = [
        run.models[[m.trial for m in run.models].index(each["trial"])] for each in ensemble.params["members"]
    ]
    expected = np.average([each.predict(rows) for each in members], axis=0, weights=shares)
    np.testing.assert_allclose(ensemble.predict(rows), expected, rtol=1e-5, atol=1e-6)
    ensemble.save(tmp_path / "saved")
    assert np.array_equal(load_model(tmp_path / "saved").predict(rows), ensemble.predict(rows))


def test_outputs_are_averaged_by_their_structure() -> None:
    one, two = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 6.0]])
    mean = torch.tensor([[1.5, 3.0]])
    assert torch.equal(mean_of_outputs([one, two], [0.75, 0.25]), mean)
    found = mean_of_outputs([(one, {"a": two}), (two, {"a": two})], [0.75, 0.25])
    assert torch.equal(found[0], mean)
    assert torch.equal(found[1]["a"], two)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([torch.ones(2, 3), torch.ones(2, 4)], "Models give float32 (2, 3) and float32 (2, 4), but"),
        ([torch.ones(2, dtype=torch.int64)] * 2, "Models give int64 (2,), but"),
        ([torch.ones(())] * 2, "Models give float32 (), but"),
        ([{"a": torch.ones(1)}, {"b": torch.ones(1)}], "A model gives dict, but"),
        (["text", "text"], "A model gives str, but"),
    ],
)
def test_outputs_without_a_mean_are_refused(outputs: Any, words: str) -> None:
    with pytest.raises(EstimatorError, match=re.escape(words)):
        mean_of_outputs(outputs, [0.5, 0.5])
