"""LightningEstimator in a search, its arguments, and what it refuses."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
L = pytest.importorskip("lightning.pytorch")
hooks_of_lightning = pytest.importorskip("lightning.pytorch.core.hooks")

from hopyard import load_model  # noqa: E402
from hopyard.backend import InlineBackend  # noqa: E402
from hopyard.errors import EstimatorError  # noqa: E402
from hopyard.lightning import LightningEstimator  # noqa: E402
from hopyard.storage import LocalStore, MemoryStore  # noqa: E402
from hopyard.training.build import build_replica  # noqa: E402
from hopyard.training.lightning.hooks import CALLED, refused_hooks  # noqa: E402
from hopyard.training.program import Program  # noqa: E402
from hopyard.training.unit import residents  # noqa: E402
from hopyard.tune import GridSearch, hp_choice  # noqa: E402

nn = torch.nn


class Net(L.LightningModule):
    def __init__(self, width: int = 8, lr: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x: Any) -> Any:
        return self.body(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.log("val_loss", nn.functional.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def columns(rows: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, 12)).astype("f4")
    return {"features": features, "label": np.digitize(features[:, 0], [-0.5, 0.5])}


def search(estimator_gen_fn: Callable[..., Any], store: Any = None, **options: Any) -> GridSearch:
    return GridSearch(
        InlineBackend(), store or MemoryStore(), estimator_gen_fn, {"lr": hp_choice([0.05, 1e-5])}, num_epochs=4,
        num_partitions=3, progress=False, **options,
    )  # fmt: skip


def test_a_search_from_end_to_end(tmp_path: Path) -> None:
    data = columns()
    model = search(
        lambda params: LightningEstimator(Net(lr=params["lr"]), 32, predict=lambda logits: logits.softmax(1)),
        evaluation_metric="val_acc",
    ).fit(data)
    assert model.params == {"lr": 0.05}
    history = model.get_history()
    assert history.keys() == {"train_loss", "val_loss", "val_acc"}
    assert max(history["val_acc"]) > 0.8
    module = model.torch()
    assert isinstance(module, Net)
    assert module.hparams.lr == 0.05
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(data["features"])).softmax(1).numpy()
    np.testing.assert_allclose(model.predict(data["features"]), expected, rtol=1e-5)
    assert model.evaluate(data).keys() == {"loss", "acc"}
    frame = model.set_output_columns(["p"]).transform(data)
    np.testing.assert_allclose(np.stack(frame["p"]), expected, rtol=1e-5)
    model.save(tmp_path / "best")
    again = load_model(tmp_path / "best")
    np.testing.assert_array_equal(again.predict(data["features"]), model.predict(data["features"]))


class OnAnEmbedding(Net):
    def __init__(self, lr: float = 0.05) -> None:
        super().__init__(lr=lr)
        frozen = nn.Linear(12, 10_000, bias=False).requires_grad_(False)
        frozen.weight.copy_(torch.randn(10_000, 12, generator=torch.Generator().manual_seed(1)))
        self.body = nn.Sequential(frozen, nn.Linear(10_000, 3))


def test_frozen_layers_are_stored_once_for_all_trials_and_epochs(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    best = search(lambda params: LightningEstimator(OnAnEmbedding(params["lr"]), 32), store).fit(columns())
    frozen = OnAnEmbedding().body[0].weight
    sizes = {entry.name: entry.size for entry in store.runs.list()}
    once = sum(size for name, size in sizes.items() if name.startswith("_frozen/"))
    assert frozen.nbytes <= once < frozen.nbytes + 20_000
    assert all(size < frozen.nbytes for name, size in sizes.items() if not name.startswith("_frozen/"))
    assert torch.equal(best.torch().body[0].weight, frozen)


def test_the_model_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    model = search(lambda params: LightningEstimator(Net(), 64)).fit(columns(200))
    model.export(tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size > 0


class Named(Net):
    """Takes what it is given by name; ``predict_step`` has the last word."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch["x"], batch["y"]), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step((batch["x"], batch["y"]), batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch["x"]).argmax(1)


def test_a_function_makes_the_batch_and_predict_step_the_predictions() -> None:
    def batch(columns: dict[str, Any]) -> dict[str, Any]:
        return {"x": columns["features"]} | ({"y": columns["label"]} if "label" in columns else {})

    data = columns(200)
    model = search(lambda params: LightningEstimator(Named(), 64, batch=batch)).fit(data)
    found = model.predict(data["features"])
    with torch.no_grad():
        logits = model.torch().eval()(torch.from_numpy(data["features"]))
    np.testing.assert_array_equal(found, logits.argmax(1).numpy())


def test_another_trial_goes_on_with_rates_of_its_own(chain: Callable[..., Any]) -> None:
    def decaying(params: dict[str, Any]) -> LightningEstimator:
        net = Net(lr=params["lr"])

        def optimizers() -> Any:
            optimizer = torch.optim.Adam(net.parameters(), lr=net.hparams.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

        net.configure_optimizers = optimizers
        return LightningEstimator(net, 64)

    hopping = chain(decaying, lr=0.1)
    for partition in range(3):
        hopping.train(0, partition)
    program = hopping.program
    replica = build_replica(program, {"lr": 0.2}, 1)
    replica.adopt(hopping.state())
    state = replica.state()
    assert state["trainer"] == hopping.state()["trainer"]
    assert state["trainer"]["global_step"] == state["trainer"]["batches"] > 9
    assert state["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.1)  # 0.2, halved once
    assert (
        state["model"]["body.0.bias"].data.tobytes() == hopping.state()["model"]["body.0.bias"].data.tobytes()
    )


class Stepped(Net):
    """Its scheduler and optimizer refer to each other, as PyTorch's do."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


@pytest.mark.parametrize("kind", [Net, Stepped])
def test_what_is_not_used_any_more_is_freed_at_once(chain: Callable[..., Any], kind: Any) -> None:
    """Not when the garbage collector comes around: its parameters may fill a GPU."""
    hopping = chain(lambda params: LightningEstimator(kind(lr=0.1), 32))
    gc.disable()
    try:
        hopping.train(0, 0)
        hopping.validate(0)
        [resident] = residents._kept.values()
        replica = resident.replica
        assert replica is not None
        parts = [replica, replica.module, replica._trainer, replica.module.body[0].weight]
        kept = [weakref.ref(part) for part in parts]
        del resident, replica, parts
        residents.clear()
        assert [ref() for ref in kept] == [None] * 4
    finally:
        gc.enable()


def failing(method: str, body: Callable[..., Any]) -> Any:
    return type("Failing", (Net,), {method: body})()


def nothing(self: Any, *arguments: Any) -> None:
    return None


REFUSED = {
    "prepare_data": "a search trains on the data that fit() is given",
    "train_dataloader": "a search trains on the data that fit() is given",
    "configure_callbacks": "give the search callbacks= and patience=, which see every epoch",
    "on_save_checkpoint": "a trial's state is the module's state_dict; keep what must hop in a buffer, or in "
    "get_extra_state",
    "on_train_end": "no worker sees where a trial ends; use on_train_epoch_start, or a callback of the search",
    "on_train_epoch_end": "an epoch is trained in parts, by several workers, and none sees all of it; log values and "
    "torchmetrics objects in training_step, and do the rest in on_train_epoch_start",
    "configure_gradient_clipping": "give LightningEstimator gradient_clip=, or use on_before_optimizer_step",
    "optimizer_step": "let a scheduler with the interval 'step' change rates, and on_before_optimizer_step gradients",
    "backward": "use on_before_optimizer_step, which sees the gradients of a step",
    "on_before_zero_grad": "use on_train_batch_end, which comes after each step",
    "transfer_batch_to_device": "give LightningEstimator batch=fn(columns), or change batches in "
    "on_after_batch_transfer",
    "on_validation_model_eval": "validation runs in eval mode, and each module has its own mode back afterwards",
    "log": "a search puts its own in its place",
    "on_predict_batch_end": "predictions call predict_step alone",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hook_without_a_place_is_refused(name: str) -> None:
    with pytest.raises(EstimatorError) as caught:
        LightningEstimator(failing(name, nothing))
    assert str(caught.value) == (
        f"Failing has {name}, which has no place in a search: {REFUSED[name]}. Take it out."
    )


def test_every_hook_is_called_or_refused_or_of_test() -> None:
    """Also one that a later version of Lightning adds."""
    hooks = {
        name
        for part in (
            hooks_of_lightning.ModelHooks,
            hooks_of_lightning.DataHooks,
            hooks_of_lightning.CheckpointHooks,
        )
        for name in vars(part)
        if not name.startswith("_")
    }
    left = hooks - CALLED - refused_hooks(Net()).keys()
    assert {name for name in left if "test" not in name} == {"predict_dataloader"}
    later = type("ModelHooks", (), {"__module__": "lightning.pytorch.core.hooks", "on_coffee": nothing})
    base = type("LightningModule", (L.LightningModule, later), {"__module__": L.LightningModule.__module__})
    assert refused_hooks(type("Net", (base,), {})())["on_coffee"] == "it is never called"


def test_the_docs_list_all_hooks() -> None:
    page = (Path(__file__).parents[3] / "docs/lightning.md").read_text().partition("## Hooks")[2]
    called, others = page.split("| not called |")
    assert set(re.findall("`([a-z_]+)` *[,|]", called)) - {"predict"} == CALLED
    refused = {name for name in refused_hooks(Net()) if not name.startswith("on_predict_")}
    obsolete, own = {"configure_sharded_model"}, {"log", "optimizers"}
    assert refused - obsolete - own <= set(re.findall("`([a-z_]+)`", others))


@pytest.mark.parametrize("name", ["test_step", "on_test_epoch_end", "test_dataloader", "predict_dataloader"])
def test_a_hook_that_fit_does_not_call_either_is_ignored(name: str) -> None:
    LightningEstimator(failing(name, nothing))


class Bare(L.LightningModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any: ...


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (lambda: nn.Linear(2, 2), {}, ("module is a Linear, but must be a LightningModule. A torch.nn.Module goes into "
         "TorchEstimator.")),
        (lambda: Net, {}, "module=Net is a class; give an object: Net(...)."),
        (lambda: 7, {}, "module is a int, but must be a LightningModule."),
        (Bare, {}, ("Bare has no validation_step; define validation_step(self, batch, batch_idx) that logs val_loss, "
         "since trials are compared by what validation gives.")),
        (Net, {"batch": "dicts"}, ("batch='dicts', but it must be 'tuple', 'dict' or a function fn(columns); "
         "did you mean 'dict'?")),
        (Net, {"batch_size": 0}, "batch_size=0, but it must be an integer of at least 1."),
        (Manual, {}, ("Manual sets automatic_optimization = False, but a search takes the steps of its one optimizer "
         "itself. Return the loss from training_step, and one optimizer from configure_optimizers; networks that train "
         "in turns, such as GANs, have no place in a search.")),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_when_it_is_made(
    make: Callable[[], Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(EstimatorError) as caught:
        LightningEstimator(make(), **options)
    assert str(caught.value) == text


def test_a_module_alone_is_no_estimator() -> None:
    program = Program(lambda params: Net(), ("features",), ("label",), None, None, 1, 1, seed=0, device="cpu")
    with pytest.raises(EstimatorError) as caught:
        build_replica(program, {})
    assert str(caught.value) == (
        "The estimator function returned Net, but must return a TorchEstimator, a LightningEstimator or a "
        "KerasEstimator; end it with `return LightningEstimator(module)`."
    )


def lbfgs(self: Any) -> Any:
    return torch.optim.LBFGS(self.parameters())


def plateau_of_steps(self: Any) -> Any:
    optimizer = torch.optim.SGD(self.parameters())
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": plateau, "interval": "step", "monitor": "val_loss"},
    }


def several(self: Any) -> Any:
    return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.body[0], self.body[2])]


def misspelled(self: Any) -> Any:
    optimizer = torch.optim.SGD(self.parameters(), 0.1)
    schedule = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "intervall": "step"}
    return {"optimizer": optimizer, "lr_scheduler": schedule}


def by_batches(self: Any) -> Any:
    optimizer = torch.optim.SGD(self.parameters(), 0.1)
    return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "batch"}]


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (several, ("configure_optimizers returned 2 optimizers and 0 schedulers, but a search steps one optimizer with "
         "one schedule. Give one optimizer several parameter groups, and chain schedulers with "
         "torch.optim.lr_scheduler.SequentialLR or ChainedScheduler.")),
        (lambda self: "adam", ("configure_optimizers returned a str, but must return an optimizer of torch.optim, or "
         "{'optimizer': ..., 'lr_scheduler': ...}.")),
        (misspelled, ("configure_optimizers gave a schedule with the keys scheduler, intervall, but it must have "
         "'scheduler' and may have interval, frequency, monitor, strict, reduce_on_plateau, name.")),
        (by_batches, ("configure_optimizers gave a schedule the interval 'batch', but must give 'step' or 'epoch'.")),
        (nothing, "configure_optimizers returned None, so nothing would be trained; return an optimizer."),
        (lbfgs, ("configure_optimizers returned LBFGS, which evaluates the loss several times a step, which is not "
         "possible; use Adam.")),
        (plateau_of_steps, ("configure_optimizers gave ReduceLROnPlateau the interval 'step', but what it monitors is "
         "known when an epoch has ended; give it 'epoch'.")),
    ],
)  # fmt: skip
def test_optimizers_that_cannot_hop_are_refused(method: Callable[..., Any], text: str) -> None:
    program = Program(
        lambda params: LightningEstimator(failing("configure_optimizers", method)),
        ("features",), ("label",), None, None, 1, 1, seed=0, device="cpu",
    )  # fmt: skip
    with pytest.raises(EstimatorError) as caught:
        build_replica(program, {})
    assert str(caught.value) == text


def unpacks_three(self: Any, batch: Any, batch_idx: int) -> Any:
    x, y, z = batch
    return x + y + z


def stops(self: Any, batch: Any, batch_idx: int) -> Any:
    self.trainer.should_stop = True


def looks_for_data(self: Any, batch: Any, batch_idx: int) -> Any:
    return self.trainer.datamodule


def skips(self: Any, batch: Any, batch_idx: int) -> int:
    return -1


def without_loss(self: Any, batch: Any, batch_idx: int) -> Any:
    return {"logits": 1, "labels": 2}


def thaws_by_a_group(self: Any) -> None:
    self.optimizers().add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize(
    ("name", "method", "text"),
    [
        ("on_train_epoch_start", thaws_by_a_group, ("The module added a parameter group to an optimizer while it was "
         "trained, but on the next worker there are those that configure_optimizers makes. Make all groups there, also "
         "of frozen parameters: they are not changed until on_train_epoch_start calls requires_grad_(True).")),
        ("training_step", unpacks_three, ("training_step failed on the batch (float32 (32, 12), int64 (32,)): not "
         "enough values to unpack (expected 3, got 2). A batch is the feature columns and then the label columns; "
         "batch='dict' makes it a dict of columns, batch=fn whatever fn(columns) returns.")),
        ("training_step", without_loss, ("training_step returned the keys logits, labels, but a dict must have 'loss'; "
         "end it with `return {'loss': loss, ...}`.")),
        ("training_step", stops, ("world_size. Whether a trial goes on is decided by the search: give it patience=, or "
         "use ASHA.")),
        ("training_step", nothing, ("training_step returned None, but a search takes a step after each batch; return "
         "the loss.")),
        ("training_step", lambda self, batch, batch_idx: self.manual_backward(batch[0].sum()), "manual_backward"),
        ("training_step", looks_for_data, ("The module used self.trainer.datamodule, but a search trains without "
         "Lightning's Trainer; of it there are accumulate_grad_batches, callbacks, current_epoch, ")),
        ("training_step", looks_for_data, "Give the module what else it needs when it is made."),
        ("on_train_batch_start", skips, ("on_train_batch_start returned -1, which would skip the rest of the epoch, "
         "but a trial visits all partitions of an epoch; return nothing.")),
    ],
)  # fmt: skip
def test_what_a_step_may_not_do_is_said(
    chain: Callable[..., Any], name: str, method: Callable[..., Any], text: str
) -> None:
    hopping = chain(lambda params: LightningEstimator(failing(name, method), 32))
    with pytest.raises(AssertionError) as caught:
        hopping.train(0, 0)
    assert text in str(caught.value)


def test_a_plateau_without_its_value_is_told_what_there_is(chain: Callable[..., Any]) -> None:
    def monitoring(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters())
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val_f1"}

    hopping = chain(lambda params: LightningEstimator(failing("configure_optimizers", monitoring), 32))
    residents.clear()
    with pytest.raises(AssertionError) as caught:
        hopping.train(1, 0, history=({"train_loss": 1.0, "val_loss": 2.0},))
    assert (
        "ReduceLROnPlateau monitors 'val_f1', but the last epoch gave train_loss, val_loss. Monitor one of these, or "
        "log it."
    ) in str(caught.value)
