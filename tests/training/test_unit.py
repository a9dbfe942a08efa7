"""Units: what comes back, what stays in memory, how trials fail, and that nothing else notices."""

from __future__ import annotations

import json
import pickle
import random
import re
import site
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from hopyard.data import prepare
from hopyard.errors import NotFoundError, StateLostError, StorageFullError
from hopyard.objects import StateRef, load_part
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training import unit
from hopyard.training.check import check_trial
from hopyard.training.program import Program, save_program
from hopyard.training.request import UnitRequest, UnitResult
from hopyard.training.resident import Resident, Residents
from hopyard.training.torch.state import from_tree
from hopyard.training.unit import residents, run_unit


def linear(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        nn.Linear(12, 3),
        torch.optim.SGD,
        nn.CrossEntropyLoss(),
        ["accuracy", "auc"],
        32,
        {"lr": params.get("lr", 0.1)},
    )


class Counting(nn.Module):
    """Keeps a number outside its state dict that changes what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return self.layer(x) / (1 + self.calls)


class Caching(nn.Module):
    """The same in a buffer that is not part of the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
        return self.layer(x) / (1 + self.seen)


def test_results_and_requests_travel(chain: Any) -> None:
    units = chain(linear)
    result = units.train(0, 1)
    assert pickle.loads(pickle.dumps(result)) == result
    request = units.request("train", 0, 2)
    copy: UnitRequest = cloudpickle.loads(cloudpickle.dumps(request))
    assert copy.trials == (0,)
    assert json.loads(json.dumps(result.metrics)) == list(result.metrics)
    loss, weight = result.metrics[0]["loss"]
    assert result.rows == weight == len(units.program.train_partitions[1])
    assert 0.8 < loss / weight < 2
    assert result.bytes_written > 0
    assert result.seconds > 0


def test_the_last_unit_of_an_epoch_keeps_the_model_in_a_file_of_its_own(chain: Any) -> None:
    units = chain(linear)
    ref = units.train(0, 0, last=True).states[0]
    part = load_part(units.store.at("00000"), ref, "model")
    assert from_tree(part)["weight"].shape == (3, 12)


def test_bytes_of_states_that_are_moved_and_of_data_that_is_read_are_counted(chain: Any) -> None:
    units = chain(linear)
    here = [units.train(0, 0), units.train(0, 1)]
    assert [result.bytes_moved for result in here] == [0, 0]
    for result, partition in zip(here, units.program.train_partitions, strict=False):
        rows = partition[:]
        assert result.bytes_read == rows["features"].nbytes + rows["label"].nbytes
    residents.clear()  # as on another worker
    (file,) = here[1].states[0].files
    assert units.train(0, 2).bytes_moved == units.store.at("00000").size(file)


def test_what_the_worker_has_of_a_state_is_not_moved(chain: Any, visits: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        trunk = nn.Linear(12, 2000).requires_grad_(False)
        model = nn.Sequential(trunk, nn.Linear(2000, 3))
        return TorchEstimator(model, torch.optim.Adam, nn.CrossEntropyLoss(), batch_size=32)

    changed, header = (
        3 * 4 * (3 * 2000 + 3) + 8,
        4096,
    )  # bytes: weights, biases and Adam's two averages; steps
    digests = []
    for folder in ("one worker", "a new one for every unit", "an old one every other time"):
        units, kept = chain(gen, folder=folder), []
        for number, (epoch, partition, last) in enumerate(visits):
            if folder == "a new one for every unit":
                residents.clear()
            if folder == "an old one every other time":
                kept.append(residents.take((units.store.url, units.name, 0)))
                if number > 1:
                    residents.put((units.store.url, units.name, 0), kept[number - 1])
            units.train(epoch, partition, last=last)
        digests.append(units.ref.digest)
        moved = [result.bytes_moved for result in units.results]
        assert moved[0] == 0
        if folder == "one worker":
            assert not any(moved)
        else:
            assert all(changed <= nbytes <= changed + header for nbytes in moved[1:])
        written = [
            result.bytes_written for result, visit in zip(units.results, visits, strict=True) if not visit[2]
        ]
        assert all(changed <= nbytes <= changed + header for nbytes in written[1:])
    assert len(set(digests)) == 1


def test_a_copy_of_a_trial_takes_its_state_from_the_workers_memory(chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(nn.Linear(12, 3000), torch.optim.SGD, nn.CrossEntropyLoss(), batch_size=32)

    moved, digests = [], []
    for here in (True, False):
        source = chain(gen, folder=f"run {here}")
        source.train(0, 0)
        if not here:
            residents.clear()
        request = replace(source.request("train", 0, 1), trials=(1,), homes=(0,))
        result = run_unit(request)
        moved.append(result.bytes_moved)
        digests.append(result.states[0].digest)
        assert source.train(0, 2).bytes_moved == (
            0 if here else moved[1]
        )  # the source's own went on as it was
    assert moved[0] < 4096
    assert moved[1] > 4 * 12 * 3000
    assert digests[0] == digests[1]


def test_validation_merges_partitions_in_their_order_whatever_order_they_came_in(chain: Any) -> None:
    units = chain(linear)
    units.train(0, 0)
    forward = units.validate(0)
    carried: tuple[dict[str, Any], ...] = ()
    for partition in (2, 0, 1):
        residents.clear()
        request = units.request("validate", 0, partition, last=partition == 1, carried=(carried,))
        result = run_unit(request)
        assert result.states == request.states
        carried = (*carried, json.loads(json.dumps(result.metrics[0])))
    assert result.metrics[0]["values"] == forward
    assert list(forward) == ["loss", "accuracy", "auc"]


def test_validation_equals_the_metrics_of_the_whole(chain: Any, data: Any) -> None:
    units = chain(linear)
    units.train(0, 0)
    model = nn.Linear(12, 3)
    model.load_state_dict(from_tree(units.state()["model"]))
    columns = data.val[:]
    with torch.no_grad():
        outputs = model(torch.from_numpy(columns["features"]))
    labels = torch.from_numpy(columns["label"])
    values = units.validate(0)
    assert values["accuracy"] == (outputs.argmax(1) == labels).double().mean()
    assert values["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, labels).item(), rel=1e-5)


def test_large_metric_states_are_objects_of_the_trial(chain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    units = chain(linear)
    units.train(0, 0)
    inline = units.validate(0)
    monkeypatch.setattr("hopyard.training.metric_store._INLINE_BYTES", 8)
    result = run_unit(units.request("validate", 0, 0))
    ref = StateRef.from_json(result.metrics[0]["states"]["ref"])
    assert all(units.store.at("00000").exists(name) for name in ref.files)
    assert result.bytes_written > 0
    assert units.validate(0) == inline


def test_a_state_that_is_not_in_memory_any_more_is_said_to_be_lost(chain: Any) -> None:
    units = chain(linear)
    units.train(0, 0, save=False)
    residents.clear()
    with pytest.raises(
        StateLostError, match="The state of trial 0 after 1 training units is no longer in this"
    ):
        units.train(0, 1)


def test_a_repeated_unit_starts_from_the_state_it_names(chain: Any) -> None:
    units = chain(linear)
    units.train(0, 0)
    request = units.request("train", 0, 1)
    first = run_unit(request)
    again = run_unit(request)  # the resident is ahead now
    assert again.states[0].digest == first.states[0].digest
    assert again.metrics == first.metrics


def test_an_unsaved_unit_cannot_be_repeated_in_place(chain: Any) -> None:
    units = chain(linear)
    units.train(0, 0, save=False)
    request = units.request("train", 0, 1, save=False)
    run_unit(request)
    with pytest.raises(StateLostError):
        run_unit(request)


@pytest.mark.parametrize("module", [Counting, Caching])
@pytest.mark.parametrize("save", [True, False])
def test_state_outside_the_state_dict_never_survives_a_unit(
    module: type[nn.Module], save: bool, chain: Any, visits: Any
) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(module(), torch.optim.Adam, nn.CrossEntropyLoss(), batch_size=32)

    digests = []
    for folder in ("kept", "cleared"):
        units = chain(gen, folder=folder)
        for epoch, partition, last in visits:
            if folder == "cleared":
                residents.clear()
            units.train(epoch, partition, last=last, save=save or last or folder == "cleared")
        digests.append(units.ref.digest)
    assert digests[0] == digests[1]


def test_changed_parameters_build_the_model_anew(chain: Any) -> None:
    units = chain(linear, lr=0.1)
    units.train(0, 0)
    kept = residents.take((units.store.url, units.name, 0))
    assert kept is not None
    residents.put((units.store.url, units.name, 0), kept)
    units.params = {"lr": 5.0}
    units.train(0, 1)
    now = residents.take((units.store.url, units.name, 0))
    assert now is not None
    assert now.replica is not kept.replica


def test_a_loss_that_is_not_finite_is_evidence(chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(nn.Linear(12, 1), torch.optim.SGD, nn.MSELoss(), optimizer_params={"lr": 1e12})

    units = chain(gen, labels=("target",))
    error = run_unit(units.request("train", 0, 1)).errors[0]
    assert error is not None
    assert re.match(
        r"The loss became (nan|inf) in epoch 1, partition 1, batch [2-9]; lower the learning rate",
        error.message,
    )
    assert (error.kind, error.phase, error.partition, error.worker) == ("DivergedError", "train", 1, None)
    assert residents.take((units.store.url, units.name, 0)) is None


@pytest.mark.parametrize("where", ["train", "val"])
@pytest.mark.parametrize("column", ["x", "words", "target"])
def test_columns_that_make_a_loss_not_finite_are_named(
    chain: Any, tmp_path: Path, where: str, column: str
) -> None:
    rng = np.random.default_rng(0)
    sets = {
        name: {
            "x": rng.normal(size=(60, 3)).astype(np.float32),
            "words": rng.normal(size=(60, 2)),
            "target": rng.normal(size=60).astype(np.float32),
        }
        for name in ("train", "val")
    }
    sets[where][column][7] = np.nan

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 1)

        def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.cat([x, words.float()], 1))

    made = prepare(sets["train"], LocalStore(tmp_path / "data"), val=sets["val"])

    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            Both(), torch.optim.SGD, nn.MSELoss(), optimizer_params={"lr": 0.01}, batch_size=16
        )

    program = Program(gen, ("x", "words"), ("target",), made.train, made.val, 1, 1, seed=5, device="cpu")
    units = type(chain(gen))(LocalStore(tmp_path / "run"), program, {}, 0)
    if where == "val":
        units.train(0, 0)
        error = run_unit(units.request("validate", 0, 0, last=True)).errors[0]
    else:
        error = run_unit(units.request("train", 0, 0)).errors[0]
    assert error is not None
    assert f"column {column!r} in 1 of 60 rows of this partition. Fill them or leave" in error.message
    assert (error.kind, error.phase) == ("DivergedError", "validate" if where == "val" else "train")
    head = {name: values[:16] for name, values in sets["train"].items()}
    found = check_trial(program, {}, 0, head).evidence
    assert (found is None) == (where == "val")
    assert found is None or f"column {column!r} in 1 of 16 rows" in found.message


def failing(params: dict[str, Any]) -> TorchEstimator:
    raise KeyError("no such layer")


def test_a_failing_estimator_function_is_evidence_with_the_users_frames(chain: Any) -> None:
    units = chain(failing)
    request = units.request("train", 0, 0, log_tail="site:getsitepackages")
    error = run_unit(request).errors[0]
    assert error is not None
    assert (error.kind, error.message, error.phase) == ("KeyError", "'no such layer'", "build")
    assert "in failing" in error.traceback
    assert error.log == "\n".join(site.getsitepackages())


def leaving(params: dict[str, Any]) -> TorchEstimator:
    raise SystemExit("enough")


def test_leaving_the_process_is_a_failure_of_the_trial(chain: Any) -> None:
    error = run_unit(chain(leaving).request("train", 0, 0)).errors[0]
    assert error is not None
    assert (error.kind, error.message) == ("SystemExit", "enough")


def test_tracebacks_leave_out_the_frames_of_libraries(chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        model = nn.Sequential(nn.Linear(12, 5), nn.Sequential(nn.Linear(4, 3)))
        return TorchEstimator(model, torch.optim.SGD, nn.CrossEntropyLoss(), batch_size=32)

    error = run_unit(chain(gen).request("train", 0, 0)).errors[0]
    assert error is not None
    assert "mat1 and mat2 shapes" in error.message
    frames = [line for line in error.traceback.splitlines() if line.startswith("  File")]
    assert sum("site-packages" in frame for frame in frames) == 1  # the innermost, which raised
    assert any("forward.py" in frame for frame in frames)


def test_one_failing_trial_of_a_pack_leaves_the_others(chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        if params["bad"]:
            raise MemoryError("out of memory")
        return linear(params)

    units = chain(gen)
    params = ({"bad": False}, {"bad": True}, {"bad": False})
    request = UnitRequest(units.store, units.name, (0, 1, 2), params, "train", 0, 0, 0, (None, None, None))
    result = run_unit(request)
    assert [error and error.kind for error in result.errors] == [None, "MemoryError", None]
    assert [state is None for state in result.states] == [False, True, False]
    assert result.states[0] != result.states[2]  # another initialisation


def test_a_full_store_is_raised_and_the_unit_can_be_repeated(
    chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = chain(linear)
    units.train(0, 0)
    request = units.request("train", 0, 1)
    expected = run_unit(request)

    def full(*args: Any, **options: Any) -> StateRef:
        raise StorageFullError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(unit, "save_state", full)
        with pytest.raises(StorageFullError):
            run_unit(request)
    assert run_unit(request).states == expected.states


def test_a_missing_program_is_said(chain: Any, tmp_path: Path) -> None:
    units = chain(linear)
    units.name = "program/none"
    with pytest.raises(NotFoundError):
        run_unit(units.request("train", 0, 0))


def test_the_callers_generators_threads_and_flags_stay_as_they_are(chain: Any) -> None:
    threads = torch.get_num_threads()
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    torch.set_num_threads(2)
    try:
        expected = random.random(), float(np.random.rand()), float(torch.rand(()))
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        units = chain(linear)
        units.train(0, 0)
        units.validate(0)
        assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == expected
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.set_num_threads(threads)


def test_what_a_process_did_before_does_not_matter(chain: Any) -> None:
    first: UnitResult = chain(linear, folder="a").train(0, 0)
    torch.rand(17)
    random.random()
    other = chain(linear, folder="b")
    second = other.train(0, 0)
    assert first.states == second.states


def test_a_program_is_stored_once_under_its_digest(chain: Any) -> None:
    units = chain(linear)
    assert save_program(units.store, units.program) == units.name
    assert [entry.name for entry in units.store.list("program")] == [units.name]


def resident(nbytes: int, saved: bool, base: tuple[str, int] | None = None) -> Resident:
    return Resident({}, 1, None, saved, None, None, nbytes, base)


def test_residents_drop_other_runs_first_then_stored_states_and_never_the_only_copy() -> None:
    kept = Residents(limit_bytes=100, limit_count=10)
    kept.put(("old", "p", 0), resident(40, saved=False))
    kept.put(("run", "p", 0), resident(30, saved=False))
    kept.put(("run", "p", 1), resident(30, saved=True))
    kept.put(("run", "p", 2), resident(30, saved=True))  # 130: the other run goes
    assert kept.take(("old", "p", 0)) is None
    kept.put(("run", "p", 3), resident(30, saved=True))  # 120: the stored one used longest ago goes
    assert kept.take(("run", "p", 1)) is None
    assert kept.has_room(("run", "p", 4), 70)
    assert not kept.has_room(("run", "p", 4), 71)
    assert kept.take(("run", "p", 0)) is not None


def test_a_base_that_residents_share_counts_once() -> None:
    kept = Residents(limit_bytes=100, limit_count=10)
    for trial in range(3):
        kept.put(("run", "p", trial), resident(20, saved=False, base=("a", 30)))
    assert kept.has_room(("run", "p", 3), 10, ("a", 30))
    assert not kept.has_room(("run", "p", 3), 11, ("a", 30))
    kept = Residents(limit_bytes=100, limit_count=10)
    for trial in range(4):  # 80 and 30: one too many
        kept.put(("run", "p", trial), resident(20, saved=True, base=("a", 30)))
    assert [trial for trial in range(4) if kept.look(("run", "p", trial)) is None] == [0]


def test_states_over_a_base_larger_than_the_limit_have_half_of_it() -> None:
    """Without room they would be loaded again for each unit, over a base that stays in memory all the same."""
    kept = Residents(limit_bytes=100, limit_count=10)
    for trial in range(3):
        kept.put(("run", "p", trial), resident(25, saved=True, base=("a", 1_000)))
    assert [trial for trial in range(3) if kept.look(("run", "p", trial)) is None] == [0]
    assert kept.has_room(("run", "p", 3), 50, ("a", 1_000))
    assert not kept.has_room(("run", "p", 3), 51, ("a", 1_000))


GROWING = """
import os, resource
import numpy as np
from hopyard.training.resident import Resident, Residents

def used():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

np.ones(3 << 20)  # 24 MB: once such is freed, the allocator keeps what is smaller
kept, before = Residents(), used()
for number in range(28):
    step = [(np.ones(1 << 19), np.ones(1000)) for _ in range(20)]
    own = [small for _, small in step]
    del step
    kept.put(("run", "program", number), Resident({}, 1, None, True, None, own))
print(used() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is glibc that keeps memory so")
def test_what_steps_free_between_residents_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", GROWING], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 28 * 20 * 8_000 + 20e6  # a step has 80 MB


def test_a_state_without_room_in_memory_is_saved_instead(chain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit, "residents", Residents(limit_bytes=0))
    assert chain(linear).train(0, 0, save=False).states[0] is not None


def test_units_run_over_a_store_that_travelled(chain: Any, tmp_path: Path) -> None:
    units = chain(linear)
    units.store = pickle.loads(pickle.dumps(LocalStore(tmp_path / "run")))
    assert units.train(0, 0).states[0] is not None
