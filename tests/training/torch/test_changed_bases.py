"""Trials that write to the base which they share: they fail, and nobody else notices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.conftest import Prepared
from tests.training.torch.test_base import Trials, adapted, estimator, in_a_new_process, network
from torch import nn

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import BaseChangedError, StateLostError, TrialError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.training.program import forget_program
from hopyard.training.request import UnitRequest
from hopyard.training.torch import base as bases
from hopyard.training.torch import pack
from hopyard.training.torch import replica as replicas
from hopyard.training.unit import run_unit
from hopyard.tune import GridSearch, hp_choice


def _merged(model: Any) -> None:
    inner = model[0].second
    inner.layer.weight.data += inner.up.data @ inner.down.data


def _in_place(model: Any) -> None:
    with torch.no_grad():
        model[0].first.bias.add_(1e-6)


def _buffer(model: Any) -> None:
    model[0].scale.data.mul_(2)


def _flipped(model: Any) -> None:
    rows = model[0].first.weight.data
    rows.copy_(rows.roll(1, 0))


@pytest.mark.parametrize(
    ("change", "names"),
    [(_merged, "second.weight"), (_in_place, "first.bias"), (_buffer, "scale"), (_flipped, "first.weight")],
)
def test_a_trial_that_changes_the_base_fails_and_others_do_not_notice(
    tmp_path: Path, data: Prepared, change: Callable[[Any], None], names: str
) -> None:
    base = network()

    def function(params: dict[str, Any]) -> TorchEstimator:
        def step(model: Any, batch: Any) -> dict[str, Any]:
            loss = nn.functional.cross_entropy(model(batch["features"]), batch["label"])
            if params["bad"]:
                change(model)
            return {"loss": loss}

        return TorchEstimator(
            adapted(), torch.optim.SGD, batch_size=32, optimizer_params={"lr": 0.1}, step=step, base=base
        )

    undisturbed = Trials(tmp_path / "undisturbed", data, function)
    expected = [undisturbed.train(0, {"bad": False}) for _ in range(3)]
    in_a_new_process()
    trials = Trials(tmp_path / "disturbed", data, function)
    forget_program(trials.store, trials.name)  # as in another process than the driver's
    trials.train(0, {"bad": False})
    trials.train(2, {"bad": False}, save=False, last=False)
    evidence = trials.train(1, {"bad": True}).errors[0]
    assert evidence is not None
    assert evidence.phase == "train"
    assert evidence.message == (
        f"the trial changed tensors of the base, which all trials share: {names}. Leave the base as it is: train "
        "adapters, or set requires_grad_(True) on the tensors in model=fn(base), which makes them the trial's own; "
        "merge adapters (merge_and_unload) in a copy of the trained model. Adapters that write to the base when they "
        "are made (init_lora_weights='olora' of PEFT's, for one) need another initialisation, or a base of their own: "
        "model=lambda base: get_peft_model(copy.deepcopy(base), config)."
    )
    with pytest.raises(StateLostError):  # what was in memory alone has seen the changed base, maybe
        trials.train(2, {"bad": False})
    for result in expected[1:]:
        again = trials.train(0, {"bad": False})
        assert again.metrics == result.metrics
        assert again.states == result.states


@pytest.mark.parametrize("fails", [False, True], ids=["", "and the visit fails"])
@pytest.mark.parametrize("change", [_in_place, _buffer, _flipped])
@pytest.mark.parametrize("bad", [[True], [False, True]], ids=["when one batch is tried", "in a unit"])
def test_the_users_module_is_whole_again_after_a_change(
    bad: list[bool], change: Callable[[Any], None], fails: bool
) -> None:
    base = network()
    base.first.weight.data = base.first.weight.data.t().contiguous().t()
    before = {name: value.clone() for name, value in base.state_dict().items()}

    def function(params: dict[str, Any]) -> TorchEstimator:
        def step(model: Any, batch: Any) -> dict[str, Any]:
            loss = nn.functional.cross_entropy(model(batch["features"]), batch["label"])
            if params["bad"]:
                change(model)
                if fails:
                    raise ValueError("and that")
            return {"loss": loss}

        return TorchEstimator(
            adapted(), torch.optim.SGD, batch_size=32, optimizer_params={"lr": 0.1}, step=step, base=base
        )

    search = GridSearch(
        InlineBackend(),
        MemoryStore(),
        function,
        {"bad": hp_choice(bad)},
        1,
        progress=False,
        evaluation_metric="loss",
    )
    draws = np.random.default_rng(0)
    rows = {"features": draws.standard_normal((96, 12)).astype("f4"), "label": draws.integers(0, 3, 96)}
    if len(bad) == 1:
        with pytest.raises(TrialError, match="fails on one batch") as raised:
            search.fit(rows)
        assert "BaseChangedError: the trial changed tensors of the base" in str(raised.value)
    else:
        assert list(search.fit(rows).trials()["state"]) == ["completed", "failed"]
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    assert not base.first.weight.is_contiguous()


@pytest.mark.long
@pytest.mark.parametrize("validation", [1, 2])
@pytest.mark.parametrize("backend", [InlineBackend, functools.partial(LocalBackend, 1)])
def test_a_trial_that_changes_the_base_while_it_is_validated_fails_alone(
    backend: Callable[[], Any], validation: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = network()
    before = {name: value.clone() for name, value in base.state_dict().items()}

    def step(model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": nn.functional.cross_entropy(model(batch["features"]), batch["label"])}

    def function(params: dict[str, Any]) -> TorchEstimator:
        def validate_step(model: Any, batch: Any) -> dict[str, Any]:
            if params["bad"]:
                _merged(model) if validation == 1 else _in_place(model)
            return step(model, batch)

        options = {"lr": params["lr"]}
        return TorchEstimator(
            adapted(),
            torch.optim.SGD,
            None,
            [],
            32,
            options,
            step=step,
            validate_step=validate_step,
            base=base,
        )

    draws = np.random.default_rng(0)
    rows = {"features": draws.standard_normal((192, 12)).astype("f4"), "label": draws.integers(0, 3, 192)}
    found = []
    for bad in ([False], [False, True]):
        space = {"bad": hp_choice(bad), "lr": hp_choice([0.1, 0.2])}
        search = GridSearch(
            backend(), LocalStore(tmp_path / str(len(bad))), function, space, 2, num_partitions=validation,
            validation=0.25, progress=False, evaluation_metric="loss", seed=1,
        )  # fmt: skip
        found.append(search.fit(rows))
    states = found[1].trials().sort_values("number")["state"]
    assert list(states) == ["completed"] * 2 + ["failed"] * 2
    assert "trial 2 with BaseChangedError: the trial changed tensors of the base" in caplog.text
    histories = [each.get_all_model_history() for each in found]
    assert [histories[0][trial] for trial in (0, 1)] == [histories[1][trial] for trial in (0, 1)]
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())


def _step(model: Any, batch: Any) -> dict[str, Any]:
    """A step of no memory, that changes the base if the model says so, in its phase."""
    if model.changes == ("train" if model.training else "validate"):
        _in_place(model)
    return {"loss": nn.functional.cross_entropy(model(batch["features"]), batch["label"])}


@pytest.mark.parametrize("phase", ["train", "validate"])
@pytest.mark.parametrize("worker", [False, True], ids=["in the user's process", "on a worker"])
def test_a_pack_of_which_one_changes_the_base_loses_that_one_alone(
    tmp_path: Path, data: Prepared, worker: bool, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = network()
    settings = {"LEAST_GAIN": 0.0, "_MOST_PROBE_SECONDS": 1e9, "_widths": {}, "_BATCHES_FIRST": 0}
    for name, value in settings.items():
        monkeypatch.setattr(pack, name, value)
    raised = []
    for kind in ("train_together", "validate_together"):

        def watched(real: Any, *args: Any) -> Any:
            try:
                return real(*args)
            except Exception as error:
                raised.append(type(error))
                raise

        monkeypatch.setattr(replicas, kind, functools.partial(watched, getattr(pack, kind)))

    def function(params: dict[str, Any]) -> TorchEstimator:
        def model(base: nn.Module) -> nn.Module:
            made = adapted()(base)
            made.changes = params["changes"]
            return made

        return TorchEstimator(model, torch.optim.SGD, None, [], 32, {"lr": 0.1}, step=_step, base=base)

    results = []
    for changes in ("", phase):
        in_a_new_process()
        trials = Trials(tmp_path / f"changes {changes}", data, function)
        if worker:
            forget_program(trials.store, trials.name)
        points: tuple[dict[str, Any], ...] = ({"changes": ""}, {"changes": changes}, {"changes": ""})
        states: tuple[Any, ...] = (None,) * 3
        for number, each in enumerate(("train", "validate")):
            request = UnitRequest(
                trials.store, trials.name, (0, 1, 2), points, each, 0, 0, number, states, together=True, last=True,
                carried=((),) * 3,
            )  # fmt: skip
            result = run_unit(request)
            results.append(result)
            states = result.states
            if each == phase:
                break
    undisturbed, disturbed = results[len(results) // 2 - 1], results[-1]
    assert undisturbed.errors == (None,) * 3
    assert disturbed.errors[::2] == (None, None)
    assert disturbed.errors[1] is not None
    assert "changed tensors of the base, which all trials share: first.bias." in disturbed.errors[1].message
    assert disturbed.metrics[::2] == undisturbed.metrics[::2]
    assert disturbed.states[::2] == undisturbed.states[::2]
    assert raised == [BaseChangedError]


def test_the_module_on_a_worker_is_not_kept_a_second_time(tmp_path: Path, data: Prepared) -> None:
    base = network()
    for forgotten in (False, True):
        in_a_new_process()
        trials = Trials(tmp_path / str(forgotten), data, lambda params: estimator(base))
        if forgotten:
            forget_program(trials.store, trials.name)
        trials.train(0, {})
        [shared] = bases._of_modules.values()
        assert (shared._kept is None) == forgotten
