"""The workflow of Databricks' guide: one node, distributed tuning, distributed training; for PyTorch and TensorFlow."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopyard.spark import SparkDatasetConverter, make_spark_converter

HANGS = (
    300.0  # seconds; 10 to 20 are usual, but a starved machine takes minutes to import PyTorch three times
)


@pytest.fixture
def converters(spark: Any, cache: Path) -> tuple[SparkDatasetConverter, SparkDatasetConverter]:
    """Training and validation set of y = 2 x0 - x1, loaded and split by Spark."""
    rows = spark.range(0, 400, 1, 2).selectExpr("id", "id % 20 / 20 as a", "id % 7 / 7 as b")
    rows = rows.selectExpr("id", "array(a, b) as features", "2 * a - b as label")
    return make_spark_converter(rows.where("id % 4 > 0")), make_spark_converter(rows.where("id % 4 = 0"))


def test_training_on_one_node_with_pytorch(converters: tuple[SparkDatasetConverter, ...]) -> None:
    train, val = converters
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with train.make_torch_dataloader(batch_size=25, num_epochs=10) as loader:
        for batch in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch["features"])[:, 0], batch["label"])
            loss.backward()
            optimizer.step()
    with val.make_torch_dataloader(batch_size=100) as loader, torch.no_grad():
        (batch,) = list(loader)
        assert torch.nn.functional.mse_loss(model(batch["features"])[:, 0], batch["label"]) < 0.01


def test_training_on_one_node_with_tensorflow(
    converters: tuple[SparkDatasetConverter, ...], needs: Callable[[object, str], None]
) -> None:
    needs(importlib.util.find_spec("tensorflow"), "TensorFlow")
    import keras

    train, val = converters
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(learning_rate=0.05), "mse")
    with train.make_tf_dataset(batch_size=25) as dataset, val.make_tf_dataset(batch_size=50) as val_dataset:
        pairs, val_pairs = (each.map(lambda x: (x.features, x.label)) for each in (dataset, val_dataset))
        history = model.fit(
            pairs, steps_per_epoch=len(train) // 25, epochs=10, shuffle=False, verbose=0,
            validation_data=val_pairs, validation_steps=max(1, len(val) // 50),
        )  # fmt: skip
    assert history.history["val_loss"][-1] < 0.01
    assert len(history.history["loss"]) == 10


def test_tuning_on_executors(spark: Any, converters: tuple[SparkDatasetConverter, ...]) -> None:
    train, val = converters

    def trained(lr: float) -> tuple[float, float, int]:
        weights, rows = np.zeros(2), 0
        with train.make_torch_dataloader(batch_size=20, num_epochs=5, seed=1) as loader:
            for batch in loader:
                x, y = batch["features"].double().numpy(), batch["label"].double().numpy()
                weights -= lr * 2 * x.T @ (x @ weights - y) / len(y)
                rows += len(y)
        with val.make_torch_dataloader(batch_size=100) as loader:
            (batch,) = list(loader)
        error = batch["features"].double().numpy() @ weights - batch["label"].double().numpy()
        return lr, float((error**2).mean()), rows

    found = spark.sparkContext.parallelize([0.001, 0.2], 2).map(trained).collect()
    assert [rows for _, _, rows in found] == [1500, 1500]
    assert min(found, key=lambda each: each[1])[0] == 0.2


def test_tensorflow_on_executors(
    spark: Any, converters: tuple[SparkDatasetConverter, ...], needs: Callable[[object, str], None]
) -> None:
    needs(importlib.util.find_spec("tensorflow"), "TensorFlow")
    train, _ = converters

    def rows(_: int) -> int:
        with train.make_tf_dataset(batch_size=20) as dataset:
            return sum(len(batch.label) for batch in dataset)

    assert spark.sparkContext.parallelize([0], 1).map(rows).collect() == [300]


def below(pid: int) -> Iterator[int]:
    """The processes that it has started, and those that they have, the last ones first."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            yield from below(child)
            yield child


def show_stacks() -> None:
    """Have what torchrun started, and torchrun, end with their stacks, which are in the output then."""
    for pid in list(below(os.getpid())):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "torch.distributed.run" in command or any(word.endswith("train.py") for word in command[:4]):
                os.kill(pid, signal.SIGABRT)


@contextlib.contextmanager
def showing_what_hangs() -> Iterator[None]:
    timer = threading.Timer(HANGS, show_stacks)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark leaves a pipe open
def test_distributed_training(
    spark: Any, converters: tuple[SparkDatasetConverter, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor

    train, _ = converters

    def work(converter: SparkDatasetConverter) -> dict[str, Any]:
        import datetime

        import torch.distributed as dist

        from hopyard.errors import UsageError

        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2 * HANGS))
        rank, size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        refused = ""
        try:
            with converter.make_torch_dataloader():
                pass
        except UsageError as error:
            refused = str(error)
        seen: list[int] = []
        with converter.make_torch_dataloader(batch_size=16, cur_shard=rank, shard_count=size) as loader:
            for batch in loader:  # as many steps on both, or this hangs
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(batch["features"])[:, 0], batch["label"]).backward()
                optimizer.step()
                seen += batch["id"].tolist()
        everything: list[Any] = [None] * size
        dist.all_gather_object(everything, (seen, [p.tolist() for p in model.parameters()]))
        # Not after the group: as its last owner, the model waits for the group's thread while it holds the
        # interpreter's lock, for which that thread may wait to let go of the tensors above.
        del model
        dist.destroy_process_group()
        return {"size": size, "seen": everything, "refused": refused}

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # both are on this machine, whatever its name stands for
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    with showing_what_hangs():
        found = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(work, train)
    (first, weights), (second, others) = found["seen"]
    assert found["size"] == 2
    assert len(first) == len(second) == 150
    assert sorted([*first, *second]) == [row for row in range(400) if row % 4]
    assert weights == others
    assert "that this is process" in found["refused"]  # of whichever rank Spark returns
    assert "shard_count=2" in found["refused"]
