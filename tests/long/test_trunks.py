"""Searches over heads on a trunk; what is given out has it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tests.training.torch.trunks import HIDDEN, WIDTH, Features, Head, estimator, rows, same, with_features
from torch import nn

from hopyard import StockRoom, load_model
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import NodeCache
from hopyard.data.combining import computed
from hopyard.errors import EstimatorError, TrialError
from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.torch.trunk import WithTrunk, _modules, frozen
from hopyard.training.unit import residents
from hopyard.tune import PBT, Callback, GridSearch, hp_choice, hp_log
from hopyard.tune.reproduce import reproduce

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file


@pytest.fixture(autouse=True)
def _nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "node-cache"))
    computed._held.clear()


def search(store: Any, backend: Any = None, kind: Any = GridSearch, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "backend": backend or InlineBackend(), "store": store, "estimator_gen_fn": with_features,
        "search_space": {"lr": hp_choice([0.3, 0.1, 0.03])}, "num_epochs": 2, "num_partitions": 2,
        "evaluation_metric": "loss", "progress": False,
    }  # fmt: skip
    return kind(**(arguments | changes))


@pytest.fixture
def from_file(tmp_path: Path) -> Callable[[dict[str, Any]], TorchEstimator]:
    """An estimator function that reads its trunk's weights from a file."""
    path = tmp_path / "pretrained.pt"
    torch.save(Features().state_dict(), path)

    def gen(params: dict[str, Any]) -> TorchEstimator:
        trunk = Features()
        trunk.load_state_dict(torch.load(path))
        return estimator(trunk, optimizer_params={"lr": params["lr"]})

    return gen


def test_what_is_given_out_has_the_trunk(tmp_path: Path, from_file: Any) -> None:
    model = search(LocalStore(tmp_path / "store"), estimator_gen_fn=from_file).fit(rows())
    given = rows(100)
    module = model.torch()
    assert isinstance(module, WithTrunk)
    assert not any(each.training for each in module.modules())
    module.train()
    assert not module.trunk.training
    module.eval()
    with torch.no_grad():
        outputs = module(torch.from_numpy(given["features"])).numpy()
    np.testing.assert_allclose(model.predict(given["features"]), outputs, rtol=1e-5, atol=1e-6)
    assert len(model.set_output_columns(["scores"]).transform(given)["scores"]) == 100
    train = search(LocalStore(tmp_path / "store"), estimator_gen_fn=from_file).fit(rows())
    assert train.run_id == model.run_id
    values = model.evaluate(given)

    model.save(tmp_path / "saved")
    (tmp_path / "pretrained.pt").unlink()
    loaded = load_model(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict(given["features"]), model.predict(given["features"]))
    assert loaded.evaluate(given) == values
    loaded.save(tmp_path / "saved-again")
    again = load_model(tmp_path / "saved-again").torch()
    assert same(dict(again.state_dict()), dict(module.state_dict()))


def test_models_that_are_given_out_have_trunks_of_their_own(tmp_path: Path) -> None:
    trunk = frozen(Features())

    def gen(params: dict[str, Any]) -> TorchEstimator:
        return estimator(trunk, optimizer_params={"lr": params["lr"]})

    first, second, third = search(LocalStore(tmp_path), estimator_gen_fn=gen).fit(rows()).get_all_models()
    features = rows(10)["features"]
    before = [model.predict(features) for model in (first, second, third)]
    module, others = first.torch(), [dict(trunk.state_dict()), dict(second.torch().state_dict())]
    weights = [{name: value.clone() for name, value in other.items()} for other in others]
    with torch.no_grad():
        for parameter in module.trunk.parameters():
            parameter.mul_(2)  # as who trains it on
    assert module is first.torch()
    assert not np.allclose(first.predict(features), before[0])
    assert all(same(other, kept) for other, kept in zip(others, weights, strict=True))
    np.testing.assert_array_equal(second.predict(features), before[1])
    np.testing.assert_array_equal(third.predict(features), before[2])


def test_a_model_whose_trunk_became_another_is_not_loaded_and_not_saved(
    tmp_path: Path, from_file: Any
) -> None:
    run = search(LocalStore(tmp_path / "store"), estimator_gen_fn=from_file).fit(rows()).run
    torch.save(
        {name: value + 1 for name, value in Features().state_dict().items()}, tmp_path / "pretrained.pt"
    )
    with pytest.raises(
        EstimatorError, match="Give the trunk that it was trained with: load the same weights"
    ):
        run.best.torch()
    with pytest.raises(EstimatorError, match="outputs of another trunk"):
        run.best.save(tmp_path / "saved")


def by_name(params: dict[str, Any]) -> TorchEstimator:
    return estimator(
        Features("dict"), Head(), inputs={"features": "features"}, optimizer_params={"lr": params["lr"]}
    )


@pytest.mark.parametrize("gen", [with_features, by_name])
def test_a_model_with_a_trunk_is_exported(tmp_path: Path, gen: Any) -> None:
    """Inputs by position and by name, outputs as one tensor and as a dict."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    model = search(LocalStore(tmp_path / "store"), num_epochs=1, estimator_gen_fn=gen).fit(rows())
    path = model.export(tmp_path / "model.onnx")
    given = rows(5)["features"]
    session = onnx.reference.ReferenceEvaluator(str(path))
    [outputs] = session.run(None, {"features": given})
    np.testing.assert_allclose(outputs, model.predict(given), rtol=1e-4, atol=1e-5)


def test_a_commit_has_the_weights_of_the_whole_and_reproduces(tmp_path: Path, from_file: Any) -> None:
    """The data are samples of the stockroom."""
    given = rows()
    with StockRoom.init(tmp_path / "repository") as stock:
        with stock.enable_write():
            for name, values in given.items():
                stock.data[name] = values
        samples = JoinedSamples({name: stock.data[name] for name in given})
        store = LocalStore(tmp_path / "store")
        model = search(store, estimator_gen_fn=from_file, num_epochs=1, stock=stock).fit(samples)
        weights = stock.model[model.run_id]
        assert same(dict(weights), dict(model.torch().state_dict()))
        again = reproduce(stock, trust=True, num_workers=0, progress=False)
        assert again.equal, str(again)
        assert again.num_tensors == len(weights)


def outcome(model: Any) -> Any:
    return model.get_all_model_history(), model.weights()[1].digest


def test_workers_give_what_one_process_gives(tmp_path: Path) -> None:
    """PBT copies states from trial to trial, and from worker to worker."""
    pbt = {"kind": PBT, "num_models": 4, "num_epochs": 4, "search_space": {"lr": hp_log(0.01, 0.3)}}
    alone = search(LocalStore(tmp_path / "alone"), **pbt).fit(rows())
    computed._held.clear()
    assert NodeCache().clear() > 0
    with LocalBackend(num_workers=2, device="cpu") as backend:
        together = search(LocalStore(tmp_path / "together"), backend, **pbt).fit(rows())
    assert outcome(together) == outcome(alone)


def forget() -> None:
    """As a process that begins has nothing, and another machine no cache."""
    residents.clear()
    computed._held.clear()
    _modules.clear()
    NodeCache().clear()


class Stop(Callback):
    def on_epoch_end(self, trial: int, epoch: int, metrics: Any) -> None:
        raise KeyboardInterrupt


def test_a_run_that_was_interrupted_goes_on_with_the_trunk(tmp_path: Path, from_file: Any) -> None:
    whole = search(LocalStore(tmp_path / "whole"), estimator_gen_fn=from_file).fit(rows())
    forget()
    store = LocalStore(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        search(store, estimator_gen_fn=from_file, callbacks=[Stop()]).fit(rows())
    forget()
    again = search(store, estimator_gen_fn=from_file).fit(rows())
    assert again.run.state.units == whole.run.state.units
    assert outcome(again) == outcome(whole)


LOADING = """
import sys
import numpy as np
from hopyard import load_model, open_run
from hopyard.storage import LocalStore

folder, run = sys.argv[1:]
features = np.load(f"{folder}/features.npy")
best = open_run(LocalStore(f"{folder}/store"), run).best
for name, model in (("saved", load_model(f"{folder}/saved")), ("run", best)):
    np.save(f"{folder}/of-{name}.npy", model.predict(features))
    assert not model.torch().training
"""


def test_a_new_process_loads_the_model_and_the_run(tmp_path: Path, from_file: Any) -> None:
    model = search(LocalStore(tmp_path / "store"), estimator_gen_fn=from_file, num_epochs=1).fit(rows())
    model.save(tmp_path / "saved")
    given = rows(70)["features"]
    np.save(tmp_path / "features.npy", given)
    subprocess.run([sys.executable, "-c", LOADING, tmp_path, model.run_id], check=True, timeout=120)
    for name in ("saved", "run"):
        np.testing.assert_array_equal(np.load(tmp_path / f"of-{name}.npy"), model.predict(given))


def test_a_trunk_of_its_own_for_each_trial_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return estimator(nn.Linear(WIDTH, HIDDEN), optimizer_params={"lr": params["lr"]})

    with caplog.at_level(logging.WARNING, "hopyard"):
        search(LocalStore(tmp_path / "store"), estimator_gen_fn=gen, num_epochs=1).fit(rows())
    said = [record.getMessage() for record in caplog.records if "trunk" in record.getMessage()]
    assert len(said) == 1
    assert said[0].endswith("Build it once, outside of the estimator function, or load its weights there.")


def test_a_trunk_that_fails_is_said_before_anything_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=r"The trunk failed on inputs float32 \(\d+, 12\)"):
        search(
            LocalStore(tmp_path / "store"), estimator_gen_fn=lambda params: estimator(nn.Linear(5, 3))
        ).fit(rows())
