"""Hopping gives the module that Lightning's own Trainer gives over the same batches."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
L = pytest.importorskip("lightning.pytorch")

from hopyard.lightning import LightningEstimator  # noqa: E402
from hopyard.objects import derive_seed  # noqa: E402
from hopyard.torch import TorchEstimator  # noqa: E402
from hopyard.training.lightning.hooks import CALLED  # noqa: E402
from hopyard.training.session import Session  # noqa: E402
from hopyard.training.unit import residents  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:Found 1 module.s. in eval mode at the start of training"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
]
TRIAL, BATCH, SEED = 4, 32, 5
ORDERS = [[0, 2, 1], [1, 0, 2]]
nn = torch.nn


class Net(L.LightningModule):
    """Dropout draws numbers, normalisation has buffers, the rate falls with every epoch."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(12, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))

    def loss(self, batch: Any) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class OneCycle(Net):
    """A schedule of steps over the whole training, and batches that are dicts."""

    def loss(self, batch: Any) -> Any:
        return nn.functional.cross_entropy(self(batch["features"]), batch["label"])

    def training_step(self, batch: Any) -> Any:
        return {"loss": self.loss(batch), "rows": len(batch["label"])}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.001)
        steps = self.trainer.estimated_stepping_batches
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class Hooked(Net):
    """Thaws after an epoch, sets modes of its own, looks at where it is, and changes what goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.body[3].eval()  # no dropout, also in training
        self.steps = 0

    def on_train_epoch_start(self) -> None:
        self.body[0].requires_grad_(self.current_epoch > 0)
        self.body[1].train(self.current_epoch == 0)
        self.scale = 1.0 / (1 + self.current_epoch)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return (x + 0.1 * torch.rand_like(x) if self.trainer.training else x), y

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (self.scale + 0.01 * batch_idx)

    def on_before_backward(self, loss: Any) -> None:
        self.large = loss.item() > 1.0

    def on_after_backward(self) -> None:
        self.head.bias.grad.mul_(0.5 if self.large else 0.7)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.head.weight.grad.add_(1e-4 * self.global_step)
        for group in optimizer.param_groups:
            group["weight_decay"] = 1e-3 * len(self.optimizers().param_groups)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if outputs["loss"] > 1.0:
            with torch.no_grad():
                self.head.bias.mul_(0.99)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.steps += 1
        if self.steps != 2:
            super().lr_scheduler_step(scheduler, metric)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": decay, "interval": "step", "frequency": 4},
        }


class Noisy(Net):
    """Shakes its weights when an epoch begins, by numbers of NumPy, Python and PyTorch."""

    def on_train_epoch_start(self) -> None:
        with torch.no_grad():
            self.head.bias += 0.1 * float(np.random.rand()) + 0.1 * random.random()
            self.head.weight += 0.1 * torch.randn_like(self.head.weight)


class Plateau(Net):
    """A rate that falls when validation gets no better, as it does with labels that say little."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.2)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val_loss"}


@dataclass
class Case:
    """A training, as arguments of the estimator and of the Trainer."""

    module: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)


class Annealed(Net):
    """A temperature that falls with every epoch, noise that falls with every step, and losses that the next epoch
    begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.step, self.losses = 1.0, 0, []

    def on_train_epoch_start(self) -> None:
        self.temperature *= 0.5
        with torch.no_grad():
            self.head.bias += sum(self.losses) / max(1, len(self.losses))
        self.losses.clear()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.step += 1
        x, y = batch
        noise = torch.randn_like(x) / self.step
        loss = nn.functional.cross_entropy(self(x + noise) / self.temperature, y)
        self.losses.append(loss.item())
        return loss


CASES = {
    "plain": Case(Net),
    "annealed": Case(Annealed),
    "onecycle-dicts": Case(OneCycle, {"batch": "dict"}),
    "hooks": Case(Hooked),
    "clipped-bf16": Case(
        Net,
        {"gradient_clip": 0.2, "precision": "bf16"},
        {"gradient_clip_val": 0.2, "precision": "bf16-mixed"},
    ),
    "plateau": Case(Plateau),
}


def of_the_older_package() -> Any:
    """A module of ``pytorch_lightning``, whose classes are others."""
    base = importlib.import_module("pytorch_lightning").LightningModule
    own = {name: value for name, value in vars(Net).items() if name != "__init__"}

    def init(self: Any) -> None:
        base.__init__(self)
        self.body, self.head = nn.Linear(12, 8), nn.Linear(8, 3)

    return type("Older", (base,), {**own, "__init__": init})()


def batches(case: Case, rows: Any, **options: Any) -> Iterator[Any]:
    for batch in rows.loader(BATCH, columns=["features", "label"], **options):
        made = {name: torch.from_numpy(each.copy()) for name, each in batch.items()}
        yield made if case.options.get("batch") == "dict" else (made["features"], made["label"])


class Batches:
    """The batches of an epoch, partitions in the order of visits; each visit begins with its documented seed."""

    def __init__(self, case: Case, program: Any, session: Session) -> None:
        self.case, self.program, self.session = case, program, session
        self.trainer: Any = None

    def __len__(self) -> int:
        return len(list(self.of_epoch(0)))

    def __iter__(self) -> Iterator[Any]:
        return self.of_epoch(self.trainer.current_epoch)

    def of_epoch(self, epoch: int) -> Iterator[Any]:
        for partition in ORDERS[epoch % 2]:
            self.session.seed(SEED, TRIAL, epoch, partition, "train")
            rows, seed = self.program.train_partitions[partition], derive_seed(SEED, "order", partition)
            yield from batches(self.case, rows, shuffle=True, seed=seed, tail="join", epoch=epoch)


class Held:
    """Validation batches, all partitions."""

    def __init__(self, case: Case, program: Any) -> None:
        self.all = [each for rows in program.val_partitions for each in batches(case, rows)]

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.all)


def trained_by_lightning(case: Case, program: Any, epochs: int) -> tuple[Any, float]:
    """The module, and its last validation loss."""
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    with Session(1) as session:
        session.seed(SEED, TRIAL, "init")
        module = case.module()
        trainer = L.Trainer(
            max_epochs=epochs, accelerator="cpu", num_sanity_val_steps=0, **dict.fromkeys(quiet, False),
            **case.trainer,
        )  # fmt: skip
        loader, held = Batches(case, program, session), Held(case, program)
        loader.trainer = trainer
        trainer.fit(module, loader, held)
        return module, float(trainer.callback_metrics["val_loss"])


@pytest.mark.parametrize("name", CASES)
def test_hopping_equals_the_trainer(name: str, chain: Callable[..., Any]) -> None:
    case = CASES[name]
    epochs = 4 if name == "plateau" else 2
    hopping = chain(lambda params: LightningEstimator(case.module(), BATCH, **case.options), trial=TRIAL)
    history: dict[str, float] = {}
    for epoch in range(epochs):
        for partition in ORDERS[epoch % 2]:
            residents.clear()  # each visit is on another worker
            hopping.train(epoch, partition, history=(history,))
        values = hopping.validate(epoch)
        history = {f"val_{name}": value for name, value in values.items()}
    module, loss = trained_by_lightning(case, hopping.program, epochs)

    tree = hopping.state()["model"]
    attributes = tree.pop("attributes.", {})
    names = {"hooks": ["large", "scale", "steps"], "annealed": ["losses", "step", "temperature"]}.get(
        name, []
    )
    assert attributes.get("model", {}) == {name: [getattr(module, name)] for name in names}
    assert list(tree) == list(module.state_dict())
    for key, value in module.state_dict().items():
        assert tree[key].data.tobytes() == value.numpy().tobytes(), key
    assert values == {"loss": pytest.approx(loss, rel=1e-5)}


HOOKS = sorted(CALLED - {"predict_step"})


CALLS: list[str] = []


def noted(name: str) -> Callable[..., Any]:
    """The hook, which is noted when it is called."""
    own = getattr(Net, name)

    def hook(self: Any, *arguments: Any, **named: Any) -> Any:
        CALLS.append(name)
        return own(self, *arguments, **named)

    return hook


Noting = type("Noting", (Net,), {name: noted(name) for name in HOOKS})


def test_hooks_are_called_in_the_order_of_the_trainer(chain: Callable[..., Any]) -> None:
    CALLS.clear()
    hopping = chain(lambda params: LightningEstimator(Noting(), BATCH), trial=TRIAL)
    for partition in ORDERS[0]:
        hopping.train(0, partition)
    trained = list(CALLS)
    hopping.validate(0)
    validated = CALLS[len(trained) :]
    CALLS.clear()
    trained_by_lightning(Case(Noting), hopping.program, 1)
    start = CALLS.index("on_validation_start")
    expected, of_lightning = CALLS[:start], CALLS[start:]

    assert {*trained, *validated} == set(CALLS) == set(HOOKS)
    # Layers are made before all else here, and a schedule of epochs steps when the last batch is over.
    assert trained[:2] == expected[1::-1] == ["configure_model", "setup"]
    assert trained[-1] == "lr_scheduler_step"
    assert trained[2:-1] == [name for name in expected[2:] if name != "lr_scheduler_step"]
    # Each partition is validated as Lightning validates all of them.
    assert list(dict.fromkeys(validated)) == list(dict.fromkeys(of_lightning))


def test_a_module_that_stays_on_its_worker_trains_the_same(chain: Callable[..., Any]) -> None:
    with_scaler = {"fp16": Case(OneCycle, {"batch": "dict", "precision": "fp16"})}
    for name, case in {**CASES, **with_scaler, "noisy": Case(Noisy)}.items():
        states = []
        for moving in (True, False):
            folder = f"{name}-{moving}"
            hopping = chain(
                lambda params, case=case: LightningEstimator(case.module(), BATCH, **case.options),
                folder=folder,
            )
            residents.clear()
            for epoch, order in enumerate(ORDERS):
                for partition in order:
                    if moving:
                        residents.clear()
                    hopping.train(epoch, partition, history=({"val_loss": 1.0} if epoch else {},))
                hopping.validate(epoch)
            states.append(hopping.ref.digest)
        assert states[0] == states[1], name


def test_steps_over_several_batches_are_those_of_a_torch_estimator(chain: Callable[..., Any]) -> None:
    """Groups end with the partition and are averaged by rows; the Trainer's go on, and are not."""

    def by_torch(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            Net(),
            lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            step=lambda model, batch: {"loss": model.loss((batch["features"], batch["label"]))},
            batch_size=BATCH, accumulate=3, gradient_clip=0.2,
            scheduler=lambda optimizer, steps, epochs: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
            scheduler_interval="epoch",
        )  # fmt: skip

    def by_lightning(params: dict[str, Any]) -> LightningEstimator:
        return LightningEstimator(Net(), BATCH, accumulate=3, gradient_clip=0.2)

    models, sums = [], []
    for folder, fn in (("torch", by_torch), ("lightning", by_lightning)):
        hopping = chain(fn, folder=folder)
        for epoch, order in enumerate(ORDERS):
            for partition in order:
                residents.clear()
                hopping.train(epoch, partition)
        models.append({name: tensor.data.tobytes() for name, tensor in hopping.state()["model"].items()})
        sums.append([result.metrics for result in hopping.results])
    assert models[0] == models[1]
    assert sums[0] == sums[1]


def test_modules_of_the_older_package_train_the_same(chain: Callable[..., Any]) -> None:
    pytest.importorskip("pytorch_lightning")
    hopping = chain(lambda params: LightningEstimator(of_the_older_package(), BATCH, gradient_clip=1.0))
    hopping.train(0, 0)
    assert hopping.validate(0).keys() == {"loss"}
    assert hopping.state()["trainer"]["global_step"] > 5
