"""Runs of LightningModules that are extended in epochs: as if they had been that long from the start, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
L = pytest.importorskip("lightning.pytorch")

from hopyard.backend import InlineBackend  # noqa: E402
from hopyard.errors import SettingsError  # noqa: E402
from hopyard.hopper.journal import read_records  # noqa: E402
from hopyard.lightning import LightningEstimator  # noqa: E402
from hopyard.storage import MemoryStore  # noqa: E402
from hopyard.tune import GridSearch, hp_choice  # noqa: E402

schedulers = torch.optim.lr_scheduler


class Net(L.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.body = torch.nn.Linear(4, 2)

    def loss(self, batch: Any) -> Any:
        x, y = batch
        return torch.nn.functional.cross_entropy(self.body(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert self.trainer.max_epochs > 0  # which changes nothing of what is trained
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class OneCycle(Net):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        cycle = schedulers.OneCycleLR(optimizer, 0.1, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class Cosine(Net):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [schedulers.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


class Scaled(Net):
    """Without a schedule: its rate follows from the number of epochs."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr / self.trainer.max_epochs)


class InHook(Net):
    def on_train_epoch_start(self) -> None:
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = self.lr * (1 - self.current_epoch / self.trainer.max_epochs)


class InItsSecondEpoch(Net):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.rest = self.trainer.max_epochs - self.current_epoch


class InStep(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (1 - self.global_step / self.trainer.estimated_stepping_batches)


class Remembered(Net):
    def on_fit_start(self) -> None:
        self.total = self.trainer.max_epochs


class Steps(Net):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        assert self.trainer.max_epochs > 0
        return [optimizer], [schedulers.StepLR(optimizer, 2)]


class Plateau(Net):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def search(kind: type[Net], store: MemoryStore, num_epochs: int) -> GridSearch:
    return GridSearch(
        InlineBackend(), store, lambda params: LightningEstimator(kind(params["lr"]), 16), {"lr": hp_choice([0.1])},
        num_epochs, num_partitions=2, evaluation_metric="val_loss", run_id="a", progress=False,
    )  # fmt: skip


def rows() -> dict[str, Any]:
    features = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
    return {"features": features, "label": (features.sum(1) > 0).astype(np.int64)}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (OneCycle, r"the schedule of trial 0 follows from num_epochs: .*lr after 1 steps is"),
        (Cosine, r"the schedule of trial 0 follows from num_epochs: lr after 1 steps is"),
        (Scaled, r"the schedule of trial 0 follows from num_epochs: lr after 0 steps is"),
        (
            InHook,
            r"the training of trial 0 .*: the module uses self.trainer.max_epochs outside of configure_opt",
        ),
        (
            InItsSecondEpoch,
            r"the training of trial 0 .*: the module uses self.trainer.max_epochs outside of configure_opt",
        ),
        (
            InStep,
            r"the training of trial 0 .*: the module uses self.trainer.estimated_stepping_batches outside",
        ),
        (
            Remembered,
            r"the training of trial 0 .*: the module uses self.trainer.max_epochs outside of configure_",
        ),
    ],
)
def test_training_that_follows_from_num_epochs_is_not_extended(kind: type[Net], why: str) -> None:
    store = MemoryStore()
    search(kind, store, 2).fit(rows())
    before = list(read_records(store.runs.at("a")))
    with pytest.raises(SettingsError, match=rf"num_epochs is 4 now and was 2, but {why}"):
        search(kind, store, 4).fit(rows())
    assert list(read_records(store.runs.at("a"))) == before
    search(kind, store, 2).fit(rows()).run.extend(num_epochs=4)  # kept until the run goes on
    model = search(kind, store, 2).fit(rows())
    assert len(model.get_history()["val_loss"]) == 2
    refused = [record["refused"] for record in read_records(store.runs.at("a")) if "refused" in record]
    assert len(refused) == 1
    assert "num_epochs is 4 now and was 2" in refused[0]


@pytest.mark.parametrize("kind", [Net, Steps, Plateau])
def test_other_training_is_extended_as_if_it_had_been_that_long_from_the_start(kind: type[Net]) -> None:
    store = MemoryStore()
    search(kind, store, 2).fit(rows())
    extended, whole = search(kind, store, 4).fit(rows()), search(kind, MemoryStore(), 4).fit(rows())
    assert extended.get_history() == whole.get_history()
