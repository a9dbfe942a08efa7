"""What a module logs, over partitions that are trained and validated apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
L = pytest.importorskip("lightning.pytorch")
torchmetrics = pytest.importorskip("torchmetrics")

from hopyard.errors import DivergedError, EstimatorError, MetricError  # noqa: E402
from hopyard.lightning import LightningEstimator  # noqa: E402
from hopyard.training.estimator import batch_sizes  # noqa: E402
from hopyard.training.lightning.logged import Logged  # noqa: E402
from hopyard.training.unit import residents  # noqa: E402

nn = torch.nn


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.auc = torchmetrics.AUROC(task="multiclass", num_classes=3)
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.scores = torchmetrics.MetricCollection(
            {
                "precision": torchmetrics.Precision(task="multiclass", num_classes=3, average="macro"),
                "recall": torchmetrics.Recall(task="multiclass", num_classes=3, average="macro"),
            },
            prefix="val_",
        )

    def forward(self, x: Any) -> Any:
        return self.layer(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("train/acc", self.accuracy, on_step=True, on_epoch=True)
        self.log_dict({"train_norm": logits.norm(), "rows": float(len(y))}, prog_bar=True)
        self.log("steps", float(self.global_step), on_step=True, on_epoch=False)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self(x)
        self.auc(logits, y)
        self.log("val_auc", self.auc)
        self.scores.update(logits, y)
        self.log_dict(self.scores)
        self.log("val_sure", logits.softmax(1).amax(1).mean())
        self.outputs.append(logits)
        return nn.functional.cross_entropy(logits, y)

    def on_validation_epoch_start(self) -> None:
        self.outputs: list[Any] = []

    def on_validation_epoch_end(self) -> None:
        self.log("val/mean", torch.cat(self.outputs).mean())
        del self.outputs

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def test_objects_and_values_are_those_of_all_rows(chain: Callable[..., Any]) -> None:
    hopping = chain(lambda params: LightningEstimator(Net(), 32))
    for partition in range(3):
        hopping.train(0, partition)
    values = hopping.validate(0)

    module = Net()
    state = hopping.state()["model"]
    module.load_state_dict({name: torch.from_numpy(tensor.array().copy()) for name, tensor in state.items()})
    parts = [rows.loader(1000, columns=["features", "label"]) for rows in hopping.program.val_partitions]
    whole = [batch for part in parts for batch in part]
    x = torch.from_numpy(np.concatenate([batch["features"] for batch in whole]))
    y = torch.from_numpy(np.concatenate([batch["label"] for batch in whole]))
    with torch.no_grad():
        logits = module(x)
    expected = {
        "loss": nn.functional.cross_entropy(logits, y),
        "auc": module.auc(logits, y),
        "sure": logits.softmax(1).amax(1).mean(),
        "mean": logits.mean(),
        **{name.removeprefix("val_"): value for name, value in module.scores(logits, y).items()},
    }
    assert values == {name: pytest.approx(float(value), rel=1e-5) for name, value in expected.items()}


def test_values_of_training_are_weighted_by_rows(chain: Callable[..., Any]) -> None:
    hopping = chain(lambda params: LightningEstimator(Net(), 32))
    found = hopping.train(0, 1)
    sums = found.metrics[0]
    assert sums.keys() == {"loss", "acc", "norm", "rows"}
    assert {weight for _, weight in sums.values()} == {float(found.rows)}
    assert sums["rows"][0] == sum(size * size for size in batch_sizes(found.rows, 32))
    assert 0 < sums["acc"][0] / sums["acc"][1] < 1


class Sometimes(Net):
    """Logs now and then, about rows of its own counting, and a loss that is not the one that it trains by."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", 2.0)
        if batch_idx % 2:
            self.log("odd", float(batch_idx), batch_size=batch_idx)
        return loss


def test_values_count_for_the_rows_that_they_are_about(chain: Callable[..., Any]) -> None:
    hopping = chain(lambda params: LightningEstimator(Sometimes(), 32))
    found = hopping.train(0, 1)
    odd = range(1, len(batch_sizes(found.rows, 32)), 2)
    assert found.metrics[0] == {
        "loss": [2.0 * found.rows, found.rows],
        "odd": [sum(number**2 for number in odd), sum(odd)],
    }


def test_metric_objects_leave_the_module_on_its_worker(chain: Callable[..., Any]) -> None:
    hopping = chain(lambda params: LightningEstimator(Net(), 32))
    hopping.train(0, 0)
    (kept,) = residents._kept.values()
    assert kept.replica is not None
    replica = kept.replica
    hopping.validate(0)
    hopping.train(0, 1)
    (kept,) = residents._kept.values()
    assert kept.replica is replica


def test_what_is_logged_twice_under_one_name_is_refused() -> None:
    logged = Logged("val")
    logged("val_loss", 1.0)
    with pytest.raises(MetricError) as caught:
        logged("loss", 1.0)
    assert str(caught.value) == (
        "'val_loss' and 'loss' were both logged, which histories call val_loss; log one of them, or give it another "
        "name."
    )


def test_what_is_no_number_is_refused() -> None:
    logged = Logged("train")
    with pytest.raises(MetricError) as caught:
        logged("logits", torch.zeros(3))
    assert str(caught.value) == (
        "self.log('logits', ...) was given a tensor of shape (3,), but must be given one number or a torchmetrics "
        "object."
    )
    with pytest.raises(MetricError) as caught:
        logged("most", 1.0, reduce_fx="max")
    assert str(caught.value) == (
        "self.log('most', ..., reduce_fx='max') was called, but values are averaged over rows; log a torchmetrics "
        "object, such as SumMetric, MaxMetric or MinMetric."
    )


def test_a_loss_that_is_not_finite_says_where() -> None:
    logged = Logged("train", "epoch 2, partition 1")
    for value in [1.0] * 300 + [float("nan")]:
        logged.sums.note("loss", torch.tensor(value), 10)
    with pytest.raises(DivergedError, match="The loss became nan in epoch 2, partition 1, batch 301; lower"):
        logged.totals(10)


def test_without_a_loss_of_validation_there_is_nothing_to_compare() -> None:
    logged = Logged("val")
    logged.rows = 10
    logged("val_acc", 1.0)
    with pytest.raises(EstimatorError) as caught:
        logged.metric_set()
    assert str(caught.value) == (
        "validation_step neither logged val_loss nor returned the loss; call self.log('val_loss', loss) in it."
    )


def using(method: str, use: Callable[[Any], Any]) -> Any:
    """A module that does this when that hook is called."""

    def hook(self: Any, *arguments: Any) -> Any:
        use(self)
        return getattr(Net, method)(self, *arguments)

    return type("Using", (Net,), {method: hook})()


@pytest.mark.parametrize(
    ("method", "use", "used"),
    [
        ("setup", lambda self: self.logger.log_hyperparams({"lr": 1}), "logger.log_hyperparams"),
        ("configure_optimizers", lambda self: self.logger.log_graph(self), "logger.log_graph"),
        ("on_train_epoch_start", lambda self: self.trainer.logger.save_dir, "logger.save_dir"),
        ("training_step", lambda self: self.logger.log_metrics({"a": 1.0}), "logger.log_metrics"),
        ("validation_step", lambda self: self.logger.experiment.add_scalar("a", 1.0), "logger.experiment"),
        ("on_validation_epoch_end", lambda self: self.logger.log_image("a", []), "logger.log_image"),
    ],
)
def test_a_module_that_uses_a_logger_is_told_what_there_is(
    chain: Callable[..., Any], method: str, use: Callable[[Any], Any], used: str
) -> None:
    hopping = chain(lambda params: LightningEstimator(using(method, use), 32))

    def units() -> None:
        hopping.train(0, 0)
        hopping.validate(0)

    with pytest.raises(AssertionError) as caught:
        units()
    assert (
        f"EstimatorError: The module used self.{used}, but a search has no logger of Lightning's: self.logger is None, "
        "as with Trainer(logger=False). Log numbers with self.log(name, value), which histories hold and the search's "
        "callbacks= write to TensorBoard, MLflow or W&B; put all else behind `if self.logger is not None`."
    ) in str(caught.value)


def test_a_module_that_asks_whether_there_is_a_logger_goes_on(chain: Callable[..., Any]) -> None:
    def asks(self: Any) -> None:
        if self.logger is not None:
            self.logger.experiment.add_image("x", None)
        for logger in self.loggers:
            logger.log_metrics({"a": 1.0})

    hopping = chain(lambda params: LightningEstimator(using("training_step", asks), 32))
    hopping.train(0, 0)


def test_an_error_with_an_attribute_that_is_no_loggers_stays_as_it_is(chain: Callable[..., Any]) -> None:
    hopping = chain(lambda params: LightningEstimator(using("training_step", lambda self: None.log), 32))
    with pytest.raises(AssertionError, match="AttributeError: 'NoneType' object has no attribute 'log'"):
        hopping.train(0, 0)
