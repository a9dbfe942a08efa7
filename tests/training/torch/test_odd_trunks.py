"""Trunks whose outputs cannot be shared, and odd ones whose outputs can."""

from __future__ import annotations

import copy
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.training.conftest import Chain
from tests.training.torch.trunks import CLASSES, WIDTH, Features, estimator, function, same
from torch import nn

from hopyard.data import open_dataset, prepare
from hopyard.data.combining import computed
from hopyard.storage import LocalStore
from hopyard.training import Program, check_trial
from hopyard.training.torch.state import from_tree
from hopyard.training.torch.trunk import ROWS_AT_ONCE
from hopyard.training.unit import residents

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file

Make = Callable[..., Any]


# Refused


def eager(part: nn.Module) -> nn.Module:
    """A trunk whose part stays in training mode, whatever it is told."""
    made = nn.Sequential(part).requires_grad_(False)
    kind = type("Eager", (type(made),), {"train": lambda self, mode=True: nn.Module.train(self, True)})
    made.__class__ = kind
    return made.train()


def calls_counted(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls += 1
    return x + self.calls


def buffered(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
    return x - self.mean


def buffer(**values: torch.Tensor) -> nn.Module:
    made = function("Buffered", buffered)
    for name, value in values.items():
        made.register_buffer(name, value, persistent=False)
    return made


def missing(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.clone().index_fill_(0, torch.tensor([3]), float("nan"))


def computed_before() -> nn.Module:
    made = nn.Linear(WIDTH, 4)
    made.scaled = made.weight * 2
    return made


@pytest.mark.parametrize(
    ("trunk", "said"),
    [
        (nn.Linear(5, 3), r"The trunk failed on inputs float32 \(24, 12\)"),
        (function("Noise", lambda self, x: x + torch.randn_like(x)), "draws random numbers in evaluation mode"),
        (
            function("Counts", lambda self, x: x + self.count.add_(1), count=nn.Parameter(torch.zeros(1), False)),
            "changes its own parameters or buffers in evaluation mode",
        ),
        (function("Text", lambda self, x: "text"), "The trunk gave a str. It must give a tensor, a tuple"),
        (function("Mixed", lambda self, x: (x, 3)), "The trunk gave a int as 'trunk.1'. It must give"),
        (function("Nothing", lambda self, x: ()), "The trunk gave an empty tuple"),
        (function("Mean", lambda self, x: x.mean(0)), r"gave float32 \(12,\) as 'trunk' for 24 rows"),
        (function("Sparse", lambda self, x: x.to_sparse()), r"cannot be kept. Give dense numbers: x.to_dense\(\)"),
        (eager(nn.BatchNorm1d(WIDTH)), "changes its own parameters or buffers in evaluation mode"),
        (eager(nn.Dropout(0.5)), "draws random numbers in evaluation mode"),
        (function("Calls", calls_counted, calls=0), "other outputs when it is run on the same rows again"),
        (buffer(mean=torch.zeros(WIDTH)), "it counts, keeps a buffer or draws from a generator of its own"),
        (function("Missing", missing), "The trunk gave NaN as 'trunk' for row 3, on which nothing can be trained"),
        (function("Double", lambda self, x: x.double()), r"The model failed on inputs float64 \(24, 12\)"),
        (computed_before(), r"The trunk cannot be copied \(RuntimeError: Only Tensors created explicitly by the user"),
        (function("Locked", lambda self, x: x, lock=threading.Lock()), "cannot be told from others, because trunk"),
    ],
)  # fmt: skip
def test_a_trunk_that_cannot_be_shared_is_refused(trunk: nn.Module, said: str) -> None:
    batch = {"x": np.random.default_rng(0).random((24, 12), np.float32), "y": np.arange(24) % 3}
    head = nn.Linear(WIDTH, CLASSES)
    program = Program(
        lambda params: estimator(trunk, copy.deepcopy(head)), ("x",), ("y",), None, None, 1, 1, 0, "cpu"
    )
    evidence = check_trial(program, {}, 0, batch).evidence
    assert evidence is not None
    assert evidence.kind == "EstimatorError"
    assert re.search(said, evidence.message), evidence.message


def test_outputs_of_differing_shapes_are_refused(chain: Make) -> None:
    trunk = function("Cut", lambda self, x: x[:, : 10 if len(x) == ROWS_AT_ONCE else 9])
    with pytest.raises(
        AssertionError, match=r"The trunk gave trunk float32 \(rows, 9\) for the rows from 192 on"
    ):
        chain(lambda params: estimator(trunk, nn.Linear(10, CLASSES))).train(0, 0)


def test_nan_for_some_rows_of_a_partition_is_said_with_the_row(chain: Make) -> None:
    trunk = function(
        "Late", lambda self, x: x / torch.where(x.new_tensor(len(x)) < ROWS_AT_ONCE, 0.0, 1.0) * 0
    )
    with pytest.raises(
        AssertionError, match=r"The trunk gave NaN as 'trunk' for row 192, on which nothing can"
    ):
        chain(lambda params: estimator(trunk, nn.Linear(WIDTH, CLASSES))).train(0, 0)


def test_an_error_of_the_trunks_own_files_is_not_one_of_the_caches(
    chain: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def reads(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x + len(Path("/nowhere/vocabulary.txt").read_text())

    trunk = function("Reads", reads)
    with pytest.raises(AssertionError, match=r"FileNotFoundError.*/nowhere/vocabulary.txt"):
        chain(lambda params: estimator(trunk, nn.Linear(WIDTH, CLASSES))).train(0, 0)
    assert caplog.records == []


# Taken


def weights(its: Any) -> dict[str, torch.Tensor]:
    return dict(from_tree(its.state()["model"])["head"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.bool])
def test_outputs_of_any_dtype_come_back_as_they_were(chain: Make, dtype: torch.dtype) -> None:
    """From the cache, and computed anew in memory."""
    kinds = set()

    class Casting(nn.Linear):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            kinds.add(features.dtype)
            return super().forward(features.float())

    trunk = function("Cast", lambda self, x: (x * 10).to(dtype), dtype=dtype)
    found = []
    for folder, cached in (("one", "1000000"), ("two", "1000000"), ("three", "0")):
        residents.clear()
        computed._held.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOPYARD_CACHE_BYTES", cached)
            its = chain(lambda params: estimator(trunk, Casting(WIDTH, CLASSES)), folder=folder)
            its.train(0, 0)
        found.append(weights(its))
    assert kinds == {dtype}
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_a_trunk_that_runs_in_inference_mode_by_itself_is_trained_on(chain: Make) -> None:
    trunk = function("Inferring", torch.inference_mode()(lambda self, x: x * 2))
    batch = {"x": np.random.default_rng(0).random((24, 12), np.float32), "y": np.arange(24) % 3}
    gen = lambda params: estimator(trunk, nn.Linear(WIDTH, CLASSES))  # noqa: E731
    found = check_trial(Program(gen, ("x",), ("y",), None, None, 1, 1, 0, "cpu"), {}, 0, batch)
    assert found.evidence is None, found.evidence
    chain(gen).train(0, 0)


@pytest.mark.parametrize("with_trunk", [True, False])
def test_partitions_of_one_row_and_of_none(tmp_path: Path, with_trunk: bool) -> None:
    features = pa.FixedSizeListArray.from_arrays(np.ones(65 * WIDTH, "f4"), WIDTH)
    rows = pa.table({"features": features, "label": [1] * 65})
    with pq.ParquetWriter(tmp_path / "rows.parquet", rows.schema) as writer:
        for part in (rows[:64], rows[:0], rows[64:]):
            writer.write_table(part)
    train = open_dataset(tmp_path / "rows.parquet")

    def gen(params: dict[str, Any]) -> Any:
        return estimator(Features()) if with_trunk else estimator(None, nn.Linear(WIDTH, CLASSES))

    its = Chain(
        LocalStore(tmp_path), Program(gen, ("features",), ("label",), train, train, 3, 1, 0, "cpu"), {}
    )
    assert [len(part) for part in its.program.train_partitions] == [64, 1, 0]
    assert [its.train(0, number).rows for number in range(3)] == [64, 1, 0]
    assert its.validate(0)["accuracy"] in (0.0, 1.0)


def test_data_of_the_same_name_that_were_changed_have_outputs_of_their_own(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    found = []
    for number in (1, 2, 1):
        given = {"features": np.full((80, WIDTH), number, "f4"), "label": np.arange(80) % CLASSES}
        train = prepare(given, store, validation=None).train
        program = Program(
            lambda params: estimator(Features()), ("features",), ("label",), train, None, 1, 1, 0, "cpu"
        )
        its = Chain(LocalStore(tmp_path / f"run-{len(found)}"), program, {})
        residents.clear()
        its.train(0, 0)
        found.append(weights(its))
    assert same(found[0], found[2])
    assert not same(found[0], found[1])
