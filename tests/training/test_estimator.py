"""TorchEstimator's arguments: what each does to the training, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hopyard.errors import EstimatorError, MetricError
from hopyard.torch import TorchEstimator
from hopyard.training.check import check_trial
from hopyard.training.estimator import Context, OneBatch, Visit, batch_sizes
from hopyard.training.program import Program

ROWS = 24
RNG = np.random.default_rng(0)
BATCH = {
    "x": RNG.standard_normal((ROWS, 4)),
    "a": RNG.standard_normal(ROWS),
    "b": RNG.standard_normal(ROWS).astype(np.float32),
    "c": RNG.integers(0, 5, ROWS).astype(np.int16),
    "image": RNG.integers(0, 255, (ROWS, 3, 4)).astype(np.uint8),
    "word": np.array(["one"] * ROWS, dtype=object),
    "class": RNG.integers(0, 3, ROWS),
    "class_column": RNG.integers(0, 3, (ROWS, 1)),
    "yes": RNG.integers(0, 2, ROWS).astype(np.float64),
    "flag": RNG.integers(0, 2, ROWS).astype(bool),
    "y": RNG.standard_normal(ROWS),
    "z": RNG.standard_normal(ROWS),
    "weight": RNG.uniform(0, 2, ROWS),
}


def estimator(**arguments: Any) -> TorchEstimator:
    given: dict[str, Any] = {
        "model": nn.Linear(4, 3),
        "optimizer": torch.optim.SGD,
        "loss": nn.CrossEntropyLoss(),
        "batch_size": ROWS,
        "optimizer_params": {"lr": 0.1},
    }
    return TorchEstimator(**(given | arguments))


def trained(
    made: TorchEstimator,
    features: tuple[str, ...] = ("x",),
    labels: tuple[str, ...] = ("class",),
    rows: int = ROWS,
) -> tuple[nn.Module, dict[str, list[float]]]:
    """The model after one visit to the batch, and the sums of that visit."""
    replica = made.replica(Context(features, labels, "cpu", (rows,), 1))
    sums = replica.train(Visit(OneBatch({name: BATCH[name][:rows] for name in BATCH}), 0, 0, 0))
    return replica.module, sums


def check(gen: Any, features: tuple[str, ...] = ("x",), labels: tuple[str, ...] = ("class",)) -> str:
    """What the check on one batch says."""
    evidence = check_trial(Program(gen, features, labels, None, None, 1, 1, 0, "cpu"), {}, 0, BATCH).evidence
    return "" if evidence is None else f"{evidence.phase}: {evidence.kind}: {evidence.message}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": nn.Linear}, "but it must be a torch.nn.Module"),
        ({"model": nn.LazyLinear(3)}, "has lazy layers, whose sizes are unknown; give all sizes"),
        ({"model": nn.ReLU()}, "no parameters that require gradients"),
        (
            {"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters())},
            "must be a class such as torch.optim.Adam",
        ),
        ({"optimizer": "adam"}, "optimizer='adam', but it must be a class"),
        ({"optimizer": nn.Linear}, "optimizer=Linear is a class, but not a torch.optim.Optimizer"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS evaluates the loss several times"),
        ({"optimizer": lambda model: None}, "optimizer_params are for an optimizer class"),
        ({"loss": nn.CrossEntropyLoss}, "give an object: loss=CrossEntropyLoss\\(\\)"),
        ({"loss": None}, "loss=None, but it must be a module or function"),
        ({"loss": nn.MSELoss(reduction="none")}, "must give one number; use 'mean' or 'sum'"),
        ({"batch_size": 0}, "batch_size=0, but it must be an integer of at least 1"),
        ({"accumulate": 1.5}, "accumulate=1.5, but it must be an integer of at least 1"),
        ({"gradient_clip": -1}, "gradient_clip=-1, but it must be a norm > 0"),
        ({"precision": "bf61"}, "must be one of 'fp32', 'bf16', 'fp16'; did you mean 'bf16'"),
        ({"scheduler_interval": "batch"}, "must be one of 'step', 'epoch'"),
        ({"scheduler": 3}, "scheduler=3, but it must be a function"),
        ({"metrics": ["accuracy", "accuracy"]}, "metrics names 'accuracy' twice"),
        ({"step": lambda m, b: {}, "class_weight": [1, 1]}, "class_weight was given with step"),
        (
            {"step": lambda m, b: {}},
            r"loss=CrossEntropyLoss\(\) was given with step, .* Leave loss out, and call it in step; or leave step out",
        ),
        ({"step": lambda m, b: {}, "metrics": [max]}, "metrics must be names of values that step returns"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(EstimatorError, match=said):
        estimator(**arguments)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("acuracy", "did you mean 'accuracy'"),
        (lambda o, y: 0, "define it with `def`"),
        (3, "neither a name, a function"),
        (nn.Linear, "is a class; give an object"),
    ],
)
def test_a_metric_that_cannot_work_is_refused_at_once(metric: Any, said: str) -> None:
    with pytest.raises(MetricError, match=said):
        estimator(metrics=[metric])


@pytest.mark.parametrize(
    ("arguments", "labels", "said"),
    [
        ({"model": nn.Linear(4, 2)}, "class", "takes classes 0 to 1, not 2"),
        ({"model": nn.Linear(4, 1), "loss": nn.MSELoss()}, "class", "MSELoss needs floating labels; store"),
        ({"model": nn.Linear(4, 1), "loss": nn.BCEWithLogitsLoss()}, "class", "needs floating labels; store"),
        ({}, "y", r"Floating labels \(24,\) do not fit the model's outputs \(24, 3\)"),
        ({}, "flag", "label column 'flag' holds torch.bool, but labels must be integers"),
        ({}, "word", "label column 'word' holds str objects such as 'one', but labels must be integers"),
        (
            {"loss": nn.functional.nll_loss, "model": nn.Linear(4, 1)},
            "y",
            "nll_loss needs integer labels; store the label column as int64",
        ),
        ({"loss": lambda o, y: o}, "class", r"The loss has the shape \(24, 3\), but must be one number"),
        ({"loss": lambda o, y: 1.0}, "class", "The loss is a float, but must be a tensor"),
        (
            {"optimizer_params": {"lrr": 1}},
            "class",
            r"SGD\(model.parameters\(\), lrr=1\) failed: .*Give its arguments in",
        ),
        ({"scheduler": lambda o, s, e: 3}, "class", "scheduler=fn returned int, but must return"),
        (
            {"scheduler": lambda o, s, e: torch.optim.lr_scheduler.ReduceLROnPlateau(o)},
            "class",
            "needs a validation",
        ),
        (
            {"loss": None, "step": lambda m, b: {"los": 1}},
            "class",
            "returned keys los, but must return a dict with 'loss'",
        ),
        ({"transform": lambda b, rng: None}, "class", r"transform=fn\(batch, rng\) returned NoneType"),
        ({"inputs": ["xx"]}, "class", r"inputs names the column 'xx', which is not one of feature_columns"),
        (
            {"sample_weight_column": "weight", "loss": lambda o, y: o.mean()},
            "class",
            "has no `reduction` that can be",
        ),
        (
            {"metrics": ["mse"]},
            "class",
            r"outputs \(24, 3\) and labels int64 \(24,\), but needs integer labels",
        ),
    ],
)
def test_the_check_on_one_batch_says_what_does_not_fit(
    arguments: dict[str, Any], labels: str, said: str
) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return estimator(**arguments)

    assert re.search(said, check(gen, labels=(labels,)))


def test_the_check_names_the_phase_and_passes_what_works() -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return estimator(metrics=["accuracy"])

    assert check(gen) == ""
    program = Program(gen, ("x",), ("class",), None, None, 1, 1, 0, "cpu")
    assert check_trial(program, {}, 0, BATCH).measured == ("loss", "accuracy")
    assert check(lambda params: 3).startswith(
        "build: EstimatorError: The estimator function returned int, but must return a TorchEstimator, a"
    )
    assert check(gen, features=("word",)).startswith(
        "train: EstimatorError: The feature column 'word' holds texts such as "
    )
    assert "The column 'missing' is missing" in check(gen, features=("missing",))


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 23, 24, 40, 47, 48])
def test_steps_are_counted_as_the_loader_makes_batches(rows: int, data: Any) -> None:
    part = data.train.partitions(3)[0]
    loader = part.loader(rows, tail="join")
    assert batch_sizes(len(part), rows) == [len(batch["label"]) for batch in loader]


def test_schedulers_are_told_the_steps_of_all_partitions() -> None:
    told: list[tuple[int, int]] = []

    def scheduler(optimizer: torch.optim.Optimizer, steps: int, epochs: int) -> Any:
        told.append((steps, epochs))
        return torch.optim.lr_scheduler.ConstantLR(optimizer)

    # 100 rows: 3 batches and a joined tail, 2 steps; 50: a batch and a tail of 18, 1 step.
    made = estimator(batch_size=32, accumulate=2, scheduler=scheduler)
    made.replica(Context(("x",), ("class",), "cpu", (100, 50), 7))
    assert told == [(3, 7)]


def test_skipped_steps_of_a_loss_scaler_raise_no_warnings() -> None:
    def overflowing(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return 1e6 * nn.functional.cross_entropy(outputs, labels)

    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    schedule = torch.optim.lr_scheduler.StepLR
    trained(
        estimator(model=model, loss=overflowing, precision="fp16", scheduler=lambda o, s, e: schedule(o, 1))
    )
    assert torch.equal(model.weight, before)


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.dense = nn.Linear(2, 3)

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        assert ids.dtype == torch.int64
        assert ids.shape == (ROWS, 1)
        assert dense.dtype == torch.float32
        return self.table(ids)[:, 0] + self.dense(dense)


def test_inputs_stack_scalar_columns_into_keyword_arguments() -> None:
    made = estimator(model=Keywords(), inputs={"dense": ["a", "b"], "ids": ["c"]})
    trained(made, features=("a", "b", "c"))


class Positional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        assert image.dtype == torch.uint8
        return self.layer(x) + image.float().mean()


def test_several_features_are_positional_in_their_order_or_in_that_of_inputs() -> None:
    trained(estimator(model=Positional()), features=("x", "image"))
    trained(estimator(model=Positional(), inputs=["x", "image"]), features=("image", "x"))


def gradient(loss: Any, **arguments: Any) -> torch.Tensor:
    """The step that SGD with lr 1 makes: minus the gradient."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    trained(estimator(model=model, loss=loss, optimizer_params={"lr": 1.0}, **arguments))
    return before - model.weight.detach()


def expected_gradient(weights: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.from_numpy(BATCH["x"]).float(), torch.from_numpy(BATCH["class"])
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    (losses * weights / divisor).sum().backward()
    assert model.weight.grad is not None
    return model.weight.grad


def test_weighted_means_divide_by_the_sum_of_row_weights_also_with_class_weights() -> None:
    rows = torch.from_numpy(BATCH["weight"]).float()
    table = torch.tensor([1.0, 5.0, 1.0])[torch.from_numpy(BATCH["class"])]
    for loss in (nn.CrossEntropyLoss(), nn.functional.cross_entropy):
        for arguments, weights, divisor in (
            ({"sample_weight_column": "weight"}, rows, rows.sum()),
            ({"class_weight": {1: 5.0, 2: 1.0}}, table, torch.tensor(ROWS)),
            ({"class_weight": [1.0, 5.0, 1.0], "sample_weight_column": "weight"}, rows * table, rows.sum()),
        ):
            found = gradient(loss, **arguments)
            torch.testing.assert_close(found, expected_gradient(weights, divisor), rtol=1e-4, atol=1e-6)


def test_a_sum_is_summed_and_its_mean_is_reported() -> None:
    sums = trained(estimator(loss=nn.CrossEntropyLoss(reduction="sum")))[1]
    assert sums["loss"][1] == ROWS
    assert 0.5 < sums["loss"][0] / ROWS < 3
    total = gradient(nn.CrossEntropyLoss(reduction="sum"))
    torch.testing.assert_close(
        total / ROWS, expected_gradient(torch.ones(ROWS), torch.tensor(ROWS)), rtol=1e-4, atol=1e-6
    )


def test_accumulated_batches_step_like_one_large_batch() -> None:
    # 24 rows as 8 + 8 + 8 in a group of three, against one batch of 24; the same rows in any order.
    class Rows(OneBatch):
        def batches(self, batch_size: int, *args: Any, **options: Any) -> Any:
            whole = next(super().batches(batch_size, *args, **options))
            for start in range(0, ROWS, batch_size):
                yield {name: column[start : start + batch_size] for name, column in whole.items()}

    weights = []
    for batch_size, accumulate in ((24, 1), (8, 3), (16, 2)):
        torch.manual_seed(0)
        made = estimator(model=nn.Linear(4, 3), batch_size=batch_size, accumulate=accumulate)
        replica = made.replica(Context(("x",), ("class",), "cpu", (ROWS,), 1))
        replica.train(Visit(Rows(BATCH), 0, 0, 0))
        weights.append(replica.module.weight)
    torch.testing.assert_close(weights[1], weights[0])
    torch.testing.assert_close(weights[2], weights[0])


@pytest.mark.parametrize(
    ("labels", "model", "loss"),
    [
        (("class_column",), nn.Linear(4, 3), nn.CrossEntropyLoss()),
        (("yes",), nn.Linear(4, 1), nn.BCEWithLogitsLoss()),
        (("y",), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), nn.MSELoss()),
        (("y", "z"), nn.Linear(4, 2), nn.MSELoss()),
    ],
)
def test_labels_take_the_form_of_the_outputs(labels: tuple[str, ...], model: nn.Module, loss: Any) -> None:
    shapes = []

    def watched(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        shapes.append((tuple(outputs.shape), tuple(targets.shape), targets.dtype))
        return loss(outputs, targets)

    trained(estimator(model=model, loss=watched), labels=labels)
    outputs, targets, dtype = shapes[0]
    assert (targets == (ROWS,)) if dtype == torch.int64 else (targets == outputs and dtype == torch.float32)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind, self.value = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kind(x), self.value(x)


def two_losses(outputs: Any, labels: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs[0], labels[0]) + nn.functional.mse_loss(outputs[1], labels[1])


def kind_accuracy(outputs: Any, labels: Any) -> torch.Tensor:
    return (outputs[0].argmax(1) == labels[0]).float().mean()


def test_several_outputs_meet_several_labels_and_predict_as_a_tuple() -> None:
    made = estimator(model=TwoHeads(), loss=two_losses, metrics=[kind_accuracy], batch_size=10)
    replica = made.replica(Context(("x",), ("class", "y"), "cpu", (ROWS,), 1))
    values = replica.evaluate([BATCH])
    kinds, numbers = replica.predict({"x": BATCH["x"]})
    assert kinds.shape == (ROWS, 3)
    assert numbers.shape == (ROWS, 1)
    assert values["kind_accuracy"] == pytest.approx((kinds.argmax(1) == BATCH["class"]).mean())


def test_a_step_replaces_forward_and_loss_and_its_values_are_averaged_by_rows() -> None:
    def step(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["class"])
        return {"loss": loss, "rows": len(batch["class"]), "double": 2 * loss}

    made = estimator(loss=None, step=step, metrics=["double"])
    sums = trained(made)[1]
    assert sums["rows"] == [ROWS * ROWS, ROWS]
    assert sums["double"][0] == pytest.approx(2 * sums["loss"][0])
    made = estimator(loss=None, step=step, metrics=["double"])
    replica = made.replica(Context(("x",), ("class",), "cpu", (ROWS,), 1))
    values = replica.evaluate([BATCH])
    assert values["double"] == pytest.approx(2 * values["loss"])
    assert "metrics names 'doubled', but step returned rows, double; did you mean 'double'" in check(
        lambda params: estimator(loss=None, step=step, metrics=["doubled"])
    )


def test_transforms_get_a_generator_of_the_batch_the_same_for_all_trials() -> None:
    drawn: list[float] = []

    def transform(batch: dict[str, torch.Tensor], rng: np.random.Generator) -> dict[str, torch.Tensor]:
        drawn.append(float(rng.random()))
        batch["x"] = batch["x"] * 0
        return batch

    made = estimator(transform=transform, val_transform=transform)
    replica = made.replica(Context(("x",), ("class",), "cpu", (ROWS,), 1))
    visits = [
        Visit(OneBatch(BATCH), 0, epoch, partition) for epoch, partition in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    for visit in visits:
        replica.train(visit)
    assert drawn[0] == drawn[3]
    assert len(set(drawn)) == 3
    replica.validate(visits[0])
    assert drawn[4] not in drawn[:4]
    assert BATCH["x"].any()  # what the caller holds is not changed


def test_predictions_pass_through_predict_in_batches_and_leave_out_labels() -> None:
    def share(outputs: torch.Tensor) -> torch.Tensor:
        assert len(outputs) <= 10
        return outputs.softmax(dim=1)

    replica = estimator(predict=share, batch_size=10).replica(Context(("x",), ("class",), "cpu", (), 1))
    found = replica.predict({"x": BATCH["x"]})
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found.sum(axis=1), np.ones(ROWS), rtol=1e-5)
    assert replica.predict({"x": BATCH["x"][:0]}).shape == (0, 3)  # type: ignore[union-attr]


def test_validation_that_changes_the_model_is_refused() -> None:
    class Drifting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.bias += 1
            return super().forward(x)

    replica = estimator(model=Drifting(4, 3)).replica(Context(("x",), ("class",), "cpu", (), 1))
    with pytest.raises(EstimatorError, match="changed its own parameters or buffers while it was validated"):
        replica.validate(Visit(OneBatch(BATCH), 0, 0, 0))


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(EstimatorError, match="PyTorch sees 0 CUDA devices here; use 'auto' or 'cpu'"):
        estimator().replica(Context(("x",), ("class",), "cuda", (), 1))
