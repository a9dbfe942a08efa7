"""Estimator functions that cannot work: what the user sees, before anything is prepared."""

# ruff: noqa: E501 - the messages stand in one piece
from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopyard.errors
from hopyard.backend import InlineBackend
from hopyard.errors import EstimatorError, MetricError, TrialError, UsageError, WorkerMismatchError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, RandomSearch, hp_choice


def made(params: dict[str, Any], **changes: Any) -> TorchEstimator:
    arguments: dict[str, Any] = {
        "model": torch.nn.Linear(4, 2),
        "optimizer": torch.optim.SGD,
        "loss": torch.nn.CrossEntropyLoss(),
        "optimizer_params": {"lr": 0.1},
        "batch_size": 8,
    }
    return TorchEstimator(**(arguments | changes))


def with_(**changes: Any) -> Any:
    return lambda params: made(params, **changes)


def drop(column: str) -> Any:
    return lambda batch, rng: {name: value for name, value in batch.items() if name != column}


def raising(*arguments: Any) -> Any:
    raise ValueError("no such luck")


def nothing(*arguments: Any) -> Any:
    return None


def per_row(outputs: Any, labels: Any) -> Any:
    return outputs.argmax(dim=1) == labels


FUNCTIONS: list[tuple[Any, str]] = [
    (lambda params: None, "EstimatorError: The estimator function returned NoneType, but must return a TorchEstimator, a LightningEstimator or a KerasEstimator; end it with"),
    (lambda params: torch.nn.Linear(params["width"], 2), "EstimatorError: The estimator function returned Linear, but must"),
    (lambda params: TorchEstimator, "EstimatorError: The estimator function returned ABCMeta, but must return"),
    (lambda: made({}), "TypeError: <lambda>() takes 0 positional arguments but 1 was given (build)"),
    (lambda params: made(params["widht"]), "KeyError: 'widht' (build)"),
    (lambda params: sys.exit(3), "SystemExit: 3 (build)"),
    (with_(metrics=["acuracy"]), "MetricError: The metric 'acuracy' is unknown; did you mean 'accuracy'? Known are accuracy"),
    (with_(metrics=[raising]), "ValueError: no such luck (validate)"),
    (with_(metrics=[nothing]), "MetricError: The metric nothing returned None, but must return one number for a batch; end it with"),
    (with_(metrics=[per_row]), "MetricError: The metric per_row returned Tensor of shape (8,), but must return one number for a batch"),
    (with_(transform=raising), "ValueError: no such luck (train)"),
    (with_(transform=nothing), "EstimatorError: transform=fn(batch, rng) returned NoneType, but must return the dict of columns to use; end it with `return batch`."),
    (with_(transform=lambda batch: batch), "takes 1 positional argument but 2 were given (train)"),
    (with_(transform=drop("label")), "ColumnError: The label column 'label' is missing. Given are features. A transform must return the labels too."),
    (with_(transform=drop("features")), "ColumnError: The column 'features' is missing. Given are label. Give all feature columns that the model was trained with; a transform must return them too."),
    (with_(step=raising, loss=None), "ValueError: no such luck (train)"),
    (with_(step=nothing, loss=None), "EstimatorError: step=fn(model, batch) returned NoneType, but must return a dict with 'loss'"),
    (with_(step=lambda model, batch: {"loss": model(batch["features"]).mean()}, loss=None, metrics=["hits"]), "MetricError: metrics names 'hits', but step returned nothing but 'loss'. Return it from step, or leave it out of metrics."),
    (with_(scheduler=raising), "ValueError: no such luck (build)"),
    (with_(scheduler=nothing), "EstimatorError: scheduler=fn returned NoneType, but must return a torch.optim.lr_scheduler"),
    (with_(scheduler=lambda optimizer, steps, epochs: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)), "EstimatorError: scheduler=fn returned ReduceLROnPlateau, which needs a validation value"),
    (with_(optimizer=nothing, optimizer_params=None), "EstimatorError: optimizer=fn returned NoneType for the model, but must return a torch.optim.Optimizer"),
    (with_(optimizer=lambda model: torch.optim.SGD(torch.nn.Linear(4, 2).parameters(), lr=0.1), optimizer_params=None), "EstimatorError: optimizer=fn returned an optimizer of 2 parameters of something else than the model, so that no step would change the model. Make it of parameters of the model that the function is called with: torch.optim.SGD(model.parameters(), lr=0.1)."),
    (with_(optimizer_params={"lrate": 0.1}), "unexpected keyword argument 'lrate'. Give its arguments in optimizer_params"),
    (with_(inputs={"x": ["feature"]}), "EstimatorError: inputs names the column 'feature', which is not one of feature_columns ['features']; did you mean 'features'? Correct the name"),
    (with_(inputs={"zz": "features"}), "EstimatorError: The model failed on inputs zz=float32 (8, 4): Linear.forward() got an unexpected keyword argument 'zz'"),
    (with_(sample_weight_column="weight"), "ColumnError: sample_weight_column is 'weight', but the columns are features, label. Add it to the search's feature_columns"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(FUNCTIONS)))
def test_what_is_wrong_with_an_estimator_function_is_said_before_anything_is_prepared(
    case: int, search: Any, make_rows: Any, tmp_path: Path
) -> None:
    function, text = FUNCTIONS[case]
    with pytest.raises(TrialError, match=re.escape(text)) as caught:
        search(LocalStore(tmp_path), estimator_gen_fn=function, evaluation_metric="loss").fit(make_rows())
    assert "the first 3 trials fail alike on one batch, so nothing was prepared and no run was begun." in str(
        caught.value
    )
    assert caught.value.evidence is not None
    frames = [line for line in caught.value.evidence.traceback.splitlines() if line.startswith("  File ")]
    if issubclass(getattr(hopyard.errors, caught.value.evidence.kind, ValueError), UsageError):
        assert not [frame for frame in frames[:-1] if str(Path(hopyard.__file__).parent) in frame]
    else:
        assert frames


def test_one_trial_alone_is_not_called_the_first_of_many(search: Any, make_rows: Any) -> None:
    with pytest.raises(TrialError, match=r"^the only trial fails on one batch, so nothing was prepared"):
        search(MemoryStore(), estimator_gen_fn=nothing, num_models=1).fit(make_rows())


def test_a_metric_that_the_estimator_does_not_measure_is_refused(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        MetricError,
        match=re.escape(
            "evaluation_metric is 'f1', but the estimator measures ['accuracy', 'loss']. Name one of these, or add it"
        ),
    ):
        search(LocalStore(tmp_path), evaluation_metric="f1").fit(make_rows())
    with pytest.raises(MetricError, match=r"measures .*; did you mean 'accuracy'"):
        search(LocalStore(tmp_path), evaluation_metric="accurancy", mode="max").fit(make_rows())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_weights_of_another_architecture_are_refused(search: Any, make_rows: Any, tmp_path: Path) -> None:
    first = search(MemoryStore(), num_models=1, num_epochs=1).fit(make_rows())
    wide = {"width": hp_choice([32, 64, 128])}
    again = search(LocalStore(tmp_path), search_space=wide, init_from=first, estimator_gen_fn=lambda p: made(p, model=torch.nn.Linear(4, p["width"])))  # fmt: skip
    with pytest.raises(
        TrialError, match="The state is that of another model than the estimator function now builds"
    ):
        again.fit(make_rows())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# What cannot travel ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["inline", "local"])
@pytest.mark.parametrize(
    ("captured", "reason"),
    [(threading.Lock(), "_thread.lock"), ((i for i in range(3)), "generator"), (sys.stdin, "TextIOWrapper")],
    ids=["lock", "generator", "open file"],
)
def test_a_function_that_cannot_be_pickled_is_refused_on_every_backend(
    captured: Any, reason: str, backend: str, search: Any, make_rows: Any, local: Any, tmp_path: Path
) -> None:
    if reason == "TextIOWrapper":
        captured = (tmp_path / "log").open("w")

    def function(params: dict[str, Any]) -> TorchEstimator:
        assert captured is not None
        return made(params)

    used = InlineBackend() if backend == "inline" else local
    with pytest.raises(EstimatorError) as caught:
        search(LocalStore(tmp_path / "store"), used, estimator_gen_fn=function).fit(make_rows())
    if reason == "TextIOWrapper":
        captured.close()
    message = str(caught.value)
    assert message.startswith("The estimator function cannot be pickled (")
    assert (
        "Locks, threads, generators, open files and connections cannot travel: make those inside the function."
        in message
    )
    assert (
        f"It reaches: estimator_gen_fn -> captured 'captured' is a {captured.__class__.__module__}."
        in message
        or reason in message
    )
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_memory_stores_are_refused_by_worker_processes(search: Any, make_rows: Any, local: Any) -> None:
    with pytest.raises(UsageError, match=r"lives in the driver's memory, .* cannot see it; use LocalStore"):
        search(MemoryStore(), local).fit(make_rows())
    assert local.submit(0, int, "3").result() == 3


def test_a_function_without_a_digest_is_always_a_new_run_and_run_id_makes_it_resumable(
    search: Any, make_rows: Any, capsys: Any, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text(
        "pickled with its content, but without a content that is known before it is read"
    )
    with (tmp_path / "notes").open() as notes:

        def function(params: dict[str, Any]) -> TorchEstimator:
            assert notes is not None
            return made(params)

        check_that_run_id_helps(function, search, make_rows, capsys)


def check_that_run_id_helps(function: Any, search: Any, make_rows: Any, capsys: Any) -> None:

    store = MemoryStore()
    ids = {
        search(store, estimator_gen_fn=function, evaluation_metric="loss").fit(make_rows()).run_id
        for _ in range(2)
    }
    said = capsys.readouterr().out
    assert len(ids) == 2
    assert (
        "this run cannot be found again by its settings, because these cannot be digested: estimator_gen_fn -> "
        in said
    )
    assert "Give run_id= to make it resumable." in said

    class Stop(Callback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"estimator_gen_fn": function, "evaluation_metric": "loss", "run_id": "mine"}
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[Stop()], **settings).fit(make_rows())
    model = search(store, **settings).fit(make_rows())
    said = capsys.readouterr().out
    assert re.search(r"interrupted after \d+ units; run the same script again to go on \(run mine\)\.", said)
    assert re.search(r"run mine goes on after \d+ units\.", said)
    assert model.run.broken_rules() == []


def test_several_inputs_by_keyword_train_and_predict() -> None:
    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 2)

        def forward(self, dense: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.cat([dense, image.flatten(1)], dim=1))

    def pair(params: dict[str, Any]) -> TorchEstimator:
        return made(params, model=Pair(), inputs={"dense": ["a", "b"], "image": "image"})

    random = np.random.default_rng(0)
    data = {"a": random.random(64), "b": random.integers(0, 9, 64), "image": random.random((64, 2, 2)), "label": random.integers(0, 2, 64)}  # fmt: skip
    arguments: dict[str, Any] = {"num_models": 1, "num_epochs": 1, "num_partitions": 2, "progress": False, "feature_columns": ["a", "b", "image"]}  # fmt: skip
    model = RandomSearch(InlineBackend(), MemoryStore(), pair, {"x": hp_choice([1])}, **arguments).fit(data)
    assert model.predict(data).shape == model.predict((data["a"], data["b"], data["image"])).shape == (64, 2)
    swapped = with_(model=Pair(), inputs={"dense": ["a", "image"], "image": "b"})
    with pytest.raises(
        TrialError,
        match=r"inputs\['dense'\] stacks columns with rows of shape .* only scalar columns can be stacked",
    ):
        RandomSearch(InlineBackend(), MemoryStore(), swapped, {"x": hp_choice([1])}, **arguments).fit(data)


def test_a_package_that_only_the_driver_has_is_named_with_the_worker_that_lacks_it(
    search: Any, make_rows: Any, local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path)  # the workers have started, and do not see it

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        import only_here  # noqa: F401

        return made(params)

    with pytest.raises(
        WorkerMismatchError, match=r"The package 'only_here' is missing on worker 0, and the driver has"
    ):
        search(LocalStore(tmp_path / "store"), local, estimator_gen_fn=estimator).fit(make_rows())


def test_a_base_that_differs_between_workers_is_refused(
    local: Any, search: Any, make_rows: Any, tmp_path: Path
) -> None:
    def make(params: dict[str, Any]) -> TorchEstimator:
        def base() -> torch.nn.Module:
            torch.manual_seed(os.getpid())
            return torch.nn.Linear(4, 8)

        def model(base: torch.nn.Module) -> torch.nn.Module:
            return torch.nn.Sequential(base, torch.nn.Linear(8, 2))

        options = {"lr": params["lr"]}
        return TorchEstimator(model, torch.optim.SGD, torch.nn.CrossEntropyLoss(), [], 16, options, base=base)

    store = LocalStore(tmp_path)
    with pytest.raises(
        WorkerMismatchError, match=r"makes other weights on .* than on .*torch\.manual_seed in it"
    ):
        search(store, estimator_gen_fn=make, backend=local).fit(make_rows())
    assert not list(store.runs.names())
