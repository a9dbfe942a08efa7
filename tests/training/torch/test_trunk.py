"""A trunk: frozen, shared by all trials, run once for a partition."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tests.training.torch.trunks import (
    BATCH,
    CLASSES,
    HIDDEN,
    WIDTH,
    Features,
    Head,
    estimator,
    same,
    with_features,
)
from torch import nn

from hopyard.data.combining import computed
from hopyard.errors import EstimatorError
from hopyard.objects import derive_seed
from hopyard.objects.identity.usercode import is_user_module
from hopyard.torch import TorchEstimator
from hopyard.training import Program, check_trial
from hopyard.training.estimator import Context
from hopyard.training.torch.replica import TorchReplica
from hopyard.training.torch.state import from_tree
from hopyard.training.torch.trunk import ROWS_AT_ONCE, Trunk, frozen, weights_digest
from hopyard.training.unit import residents

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file

Make = Callable[..., Any]


@pytest.fixture
def rows_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every call of a trunk, its rows."""
    seen: list[int] = []
    run = Trunk._run

    def counted(self: Trunk, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        seen.append(len([*arguments, *keywords.values()][0]))
        return run(self, arguments, keywords)

    monkeypatch.setattr(Trunk, "_run", counted)
    return seen


def trained(chain: Any, visits: list[tuple[int, int, bool]], fresh: bool = False) -> dict[str, Any]:
    """The head's weights after all visits; with ``fresh`` every unit begins in a process that has nothing."""
    for epoch, partition, last in visits:
        if fresh:
            residents.clear()
            computed._held.clear()
        chain.train(epoch, partition, last=last)
    model = from_tree(chain.state()["model"])
    return dict(model["head"] if "trunk" in model else model)


# What is trained


def test_a_head_is_trained_as_a_plain_loop_trains_it(chain: Make, visits: Any, data: Any) -> None:
    """The loop computes the trunk's outputs of a partition's rows in their order, 64 at a time."""
    hopped = trained(chain(with_features, trial=4), visits, fresh=True)
    assert same(hopped, trained(chain(with_features, trial=4, folder="serial"), visits))

    torch.manual_seed(derive_seed(5, 4, "init"))
    trunk, head = Features().eval(), nn.Linear(HIDDEN, CLASSES)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9, fused=True)
    parts = data.train.partitions(3)
    for epoch, number, _ in visits:
        part, seed = parts[number], derive_seed(5, "order", number)
        columns = part[:]
        rows = torch.from_numpy(columns["features"])
        with torch.no_grad():
            outputs = torch.cat(
                [trunk(rows[i : i + ROWS_AT_ONCE]) for i in range(0, len(rows), ROWS_AT_ONCE)]
            )
        order = part.order(seed, epoch, True, None)
        start = 0
        for batch in part.loader(BATCH, True, seed, output="torch", tail="join", epoch=epoch):
            its = order[start : start + len(batch["label"])]
            start += len(its)
            assert torch.equal(batch["features"], rows[its])
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(outputs[its]), batch["label"]).backward()
            optimizer.step()
    assert same(hopped, dict(head.state_dict()))


@pytest.mark.parametrize("inside", ["exact", "product"])
def test_it_is_the_model_with_the_frozen_trunk_inside(chain: Make, visits: Any, inside: str) -> None:
    """To the last bit, but for products of matrices, whose kernels may sum otherwise for other numbers of rows."""
    tokens = inside == "exact"

    def trunk() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Embedding(20, 4), nn.Flatten()) if tokens else Features()

    def shared(params: dict[str, Any]) -> TorchEstimator:
        made = trunk()
        torch.manual_seed(9)
        return estimator(made, nn.Linear(24 if tokens else HIDDEN, CLASSES))

    def whole(params: dict[str, Any]) -> TorchEstimator:
        made = trunk().requires_grad_(False).eval()
        made.train = lambda mode=True: made  # type: ignore[method-assign, assignment]
        torch.manual_seed(9)
        return estimator(None, nn.Sequential(made, nn.Linear(24 if tokens else HIDDEN, CLASSES)))

    features = ("tokens",) if tokens else ("features",)
    chains = [chain(shared, features), chain(whole, features, folder="whole")]
    one, two = (trained(each, visits) for each in chains)
    values = [each.validate(1) for each in chains]
    for name, value in one.items():
        other = two[f"1.{name}"]
        assert torch.equal(value, other) if tokens else torch.allclose(value, other, rtol=1e-4, atol=1e-6)
    assert values[0] == (values[1] if tokens else pytest.approx(values[1], rel=1e-5))


def test_the_trunk_runs_once_for_a_partition_whatever_trials_and_epochs(
    chain: Make, visits: Any, data: Any, rows_run: list[int]
) -> None:
    for trial, rate in enumerate((0.1, 0.01)):
        its = chain(with_features, trial=trial, folder=f"run-{trial}", lr=rate)
        trained(its, visits, fresh=True)
        its.validate(0)
        its.validate(1)
    assert sum(rows_run) == len(data.train) + len(data.val)
    assert max(rows_run) == ROWS_AT_ONCE


@pytest.mark.parametrize("size", [16, 50])
def test_the_batch_size_of_a_trial_does_not_change_what_the_trunk_gives(
    chain: Make, data: Any, size: int
) -> None:
    seen: list[torch.Tensor] = []

    def step(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch["trunk"])
        return {"loss": nn.functional.cross_entropy(model(batch["trunk"]), batch["label"])}

    chain(lambda params: estimator(Features(), batch_size=size, step=step, loss=None, metrics=[])).train(0, 0)
    part = data.train.partitions(3)[0]
    rows = torch.from_numpy(part[:]["features"])
    with torch.no_grad():
        outputs = torch.cat([Features().eval()(some) for some in rows.split(ROWS_AT_ONCE)])
    assert torch.equal(torch.cat(seen), outputs[part.order(derive_seed(5, "order", 0), 0, True, None)])


@pytest.mark.parametrize("gives", ["tuple", "dict"])
def test_several_outputs_are_arguments_of_the_model(chain: Make, visits: Any, gives: str) -> None:
    its = chain(lambda params: estimator(Features(gives), Head()))
    trained(its, visits[:2], fresh=True)
    assert its.validate(0)["accuracy"] > 0.3


def test_a_step_gets_the_output_and_the_columns_that_the_trunk_does_not_take(chain: Make) -> None:
    seen: list[dict[str, Any]] = []

    def step(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
        seen.append({name: tuple(value.shape) for name, value in batch.items()})
        return {"loss": nn.functional.cross_entropy(model(batch["trunk"]), batch["label"])}

    def gen(params: dict[str, Any]) -> TorchEstimator:
        return estimator(Features(), step=step, loss=None, metrics=[], inputs={"features": "features"})

    its = chain(gen, ("features", "weight"))
    its.train(0, 0)
    assert seen[0] == {"weight": (BATCH,), "label": (BATCH,), "trunk": (BATCH, HIDDEN)}


def test_bfloat16_is_kept_as_it_is(chain: Make, visits: Any) -> None:
    kinds = set()

    class Noting(nn.Linear):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            kinds.add(features.dtype)
            return super().forward(features)

    def gen(params: dict[str, Any]) -> TorchEstimator:
        trunk = nn.Linear(WIDTH, HIDDEN)
        nn.init.constant_(trunk.weight, 0.1)
        nn.init.constant_(trunk.bias, 0.1)
        return estimator(trunk, Noting(HIDDEN, CLASSES), precision="bf16")

    one, two = (chain(gen, folder=folder) for folder in ("one", "two"))
    assert same(trained(one, visits[:3]), trained(two, visits[:3], fresh=True))
    assert kinds == {torch.bfloat16}


def test_rows_without_labels_and_without_a_cache(chain: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPYARD_CACHE_BYTES", "0")

    def step(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
        return {"loss": (model(batch["trunk"]) ** 2).mean()}

    its = chain(lambda params: estimator(Features(), step=step, loss=None, metrics=[]), labels=())
    rows = its.train(0, 0).rows
    assert its.train(1, 0).bytes_read == rows * HIDDEN * 4


# What hops


def test_only_the_head_hops(chain: Make, visits: Any) -> None:
    hidden = 2000

    def gen(params: dict[str, Any]) -> TorchEstimator:
        torch.manual_seed(3)
        return estimator(nn.Linear(WIDTH, hidden), nn.Linear(hidden, CLASSES))

    its = chain(gen)
    trained(its, visits, fresh=True)
    trunk, head, header = 4 * hidden * (WIDTH + 1), 4 * CLASSES * (hidden + 1), 4000
    # Weights and momentum come and go; at the end of an epoch the weights go once more, to a file of their own.
    for result in its.results:
        assert result.bytes_moved < 2 * head + header < trunk
        assert result.bytes_written < 3 * head + 2 * header < trunk


def test_trials_of_one_trunk_have_its_weights_once_in_memory(chain: Make) -> None:
    for trial in range(2):
        chain(with_features, trial=trial, folder=f"run-{trial}").train(0, 0)
    kept = [each.replica for each in residents._kept.values()]
    one, two = (replica._trunk.module for replica in kept if replica is not None)
    assert one is two
    with torch.no_grad():
        one.linear.weight.mul_(2)  # as who was given the model may do
    chain(with_features, trial=2, folder="run-2").train(0, 0)
    third = next(reversed(residents._kept.values())).replica
    assert third is not None
    assert third._trunk.module is not one
    assert third._trunk.weights == weights_digest(Features().eval())


def test_a_state_of_another_trunk_is_refused(chain: Make) -> None:
    its = chain(with_features)
    its.train(0, 0)
    replica = next(iter(residents._kept.values())).replica
    assert replica is not None
    tree = its.state()
    tree["model"]["trunk"] = "0" * 64
    for take in (replica.load, replica.adopt):
        with pytest.raises(
            EstimatorError, match="outputs of another trunk than the estimator function now gives"
        ):
            take(tree)
    tree["model"] = tree["model"]["head"]
    with pytest.raises(EstimatorError, match="that of a model without trunk="):
        replica.load(tree)


# What is refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"trunk": nn.Linear}, "but it must be a torch.nn.Module"),
        ({"trunk": nn.LazyLinear(3)}, "The trunk has lazy layers, whose sizes are unknown"),
        (
            {"trunk": nn.Sequential(torch.jit.ScriptModule())},
            "The trunk is, or has in it, a module of TorchScript",
        ),
        (
            {"transform": lambda batch, rng: batch},
            "transform was given with trunk, but it changes batches anew",
        ),
        ({"val_transform": lambda batch, rng: batch}, "val_transform was given with trunk"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(EstimatorError, match=said):
        estimator(**({"trunk": Features()} | arguments))


def test_a_model_that_has_the_trunk_inside_is_refused() -> None:
    trunk = Features()
    with pytest.raises(EstimatorError, match=r"The model's '0.linear.weight' belongs to the trunk too"):
        estimator(trunk, nn.Sequential(trunk, nn.Linear(HIDDEN, CLASSES)))


def test_a_column_may_not_be_called_as_the_output_is() -> None:
    context = Context(("features", "trunk"), ("label",), "cpu", (100,), 1)
    with pytest.raises(EstimatorError, match="The column 'trunk' has the name of the trunk's output"):
        estimator(Features(), inputs=["features"]).replica(context)


def test_what_is_done_to_the_users_trunk_and_to_the_searchs_does_not_reach_the_other() -> None:
    """One that is frozen already was not copied."""
    trunk = frozen(Features())
    rows = {"features": np.random.default_rng(0).random((5, WIDTH), np.float32)}
    context = Context(("features",), ("label",), "cpu", (100,), 1)
    kept = estimator(trunk)
    replica = kept.replica(context)
    assert isinstance(replica, TorchReplica)
    before = replica.predict(rows)
    assert replica._trunk is not None
    assert replica._trunk.module is not trunk
    with torch.no_grad():
        for value in trunk.state_dict().values():
            value.data.add_(1)  # which PyTorch does not count as a change
    trunk.train().requires_grad_(True)
    np.testing.assert_array_equal(replica.predict(rows), before)
    assert not any(part.training for part in replica.give_out().modules())
    again = estimator(trunk).replica(context)
    assert again.trunk_weights != replica.trunk_weights
    assert trunk.training
    assert trunk.linear.weight.requires_grad


def test_a_trunk_that_was_changed_meanwhile_gives_no_outputs_to_others(chain: Make, data: Any) -> None:
    """As whoever got hold of the search's own may do."""
    its = chain(with_features)
    its.train(0, 0)
    replica = next(iter(residents._kept.values())).replica
    assert replica is not None
    with torch.no_grad():
        replica._trunk.module.linear.weight.mul_(2)
    with pytest.raises(AssertionError, match="The trunk's weights were changed since the trial began"):
        its.train(0, 1)
    residents.clear()
    computed._held.clear()
    its.train(0, 1)
    assert same(
        dict(from_tree(its.state()["model"])["head"]),
        trained(chain(with_features, folder="alone"), [(0, 0, False), (0, 1, False)]),
    )


def test_a_trunk_that_is_not_frozen_is_copied() -> None:
    given = Features()
    taken = frozen(given)
    assert taken is not given
    assert given.training
    assert given.linear.weight.requires_grad
    assert not any(module.training for module in taken.modules())
    assert not any(parameter.requires_grad for parameter in taken.parameters())
    assert frozen(taken) is taken


def test_trunks_of_their_own_are_noticed_before_the_run(data: Any) -> None:
    batch = {name: values[:24] for name, values in data.train[:24].items()}

    def advice(gen: Callable[[dict[str, Any]], Any]) -> str:
        return check_trial(
            Program(gen, ("features",), ("label",), None, None, 1, 1, 0, "cpu"), {}, 0, batch
        ).advice

    assert advice(with_features) == ""
    assert advice(lambda params: estimator(nn.Linear(WIDTH, HIDDEN))).startswith(
        "Each trial has a trunk of its own, with other weights than the others' have"
    )


def test_code_from_main_is_the_users_also_where_main_is_a_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", torch.__file__, raising=False)
    assert is_user_module("__main__")
