"""Estimates of a search on a described cluster, hopped and by the two other ways to train many models.

The formulas are those of Kumar et al., "Cerebro: A Data System for Optimized Deep Learning Model Selection" (VLDB
2020, with its errata), for w workers, p partitions, |S| models of m bytes, k epochs and D bytes of data:

* *hopping*: data is placed once (D), states move m for each of the k p |S| visits, and once more at the end;
* *copies*: every worker holds all data (w D) and trains whole models, one after another;
* *data-parallel*: one model at a time on all workers; its gradients are exchanged around a ring after
  each step, 2 m (w - 1) bytes, with steps that take a mini-batch on each worker.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopyard.checks import integer, number
from hopyard.errors import UsageError
from hopyard.search.preview import length_unit, preview

_PART = 8 << 20  # bytes of a request for data
_UNIT_REQUESTS = 3  # its state is read and written, and its record written


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of one way to train.

    Attributes:
        way: ``"hopping"``, ``"copies"`` or ``"data-parallel"``.
        seconds: from the placing of data to the last model.
        bytes_moved: over the network, by all workers.
        bytes_stored: of data, on all workers.
        worker_hours: of all workers, idle ones too.
        bytes_read: that leave a store in a bucket, if data and states are there: the data once for each place that
            keeps it, and each state that a unit begins with or an epoch ends with.
        requests: to that bucket: the data in parts of 8 MiB; of each unit a state read, a state and a record
            written.
    """

    way: str
    seconds: float
    bytes_moved: float
    bytes_stored: float
    worker_hours: float
    bytes_read: float
    requests: float


def plan(
    *,
    workers: int,
    rows: int,
    state_bytes: float,
    dataset_bytes: float,
    num_models: int | None = None,
    num_epochs: int | None = None,
    searcher: Mapping[str, Any] | None = None,
    partitions: int = 8,
    rows_per_second: float | None = None,
    seconds_per_unit: float | None = None,
    batch_size: int = 256,
    network_bytes_per_second: float = 1.25e9,
) -> list[Estimate]:
    """Estimate a search: hopping first, then task-parallel copies and data-parallel training.

    Args:
        workers: how many.
        rows: of the training data.
        state_bytes: of one model with its optimizer.
        dataset_bytes: of the training data.
        num_models, num_epochs: what is trained; or give ``searcher``.
        searcher: a searcher's config as ``hopyard.search.preview`` takes it, its lengths in epochs, as numbers
            or ``{"epochs": 3}``.
        partitions: how many the data is divided into.
        rows_per_second: one worker trains one model at this speed; or give ``seconds_per_unit``.
        seconds_per_unit: of one visit of one model to one partition.
        batch_size: rows of a mini-batch, for the exchange of gradients.
        network_bytes_per_second: of one worker. Units wait for their state's hop, steps for their exchange.

    Raises:
        UsageError: a number is missing, given twice, or impossible.
    """
    workers, partitions = integer("workers", workers, 1), integer("partitions", partitions, 1)
    batch_size = integer("batch_size", batch_size, 1)
    amounts = {
        "rows": rows,
        "state_bytes": state_bytes,
        "dataset_bytes": dataset_bytes,
        "network_bytes_per_second": network_bytes_per_second,
    }
    for name, value in amounts.items():
        _check_amount(name, value)
    unit = _unit_seconds(rows, partitions, rows_per_second, seconds_per_unit)
    epochs = _epochs(num_models, num_epochs, searcher)
    hop = state_bytes / network_bytes_per_second
    visits = [length * partitions for length in epochs]
    used = min(workers, partitions)
    placing = dataset_bytes / used / network_bytes_per_second
    hopping = max(sum(visits) / used, max(visits)) * (unit + hop) + placing
    copies = _packed(visits, workers) * unit + dataset_bytes / network_bytes_per_second
    steps = sum(epochs) * math.ceil(rows / batch_size / workers)
    exchange = 2 * state_bytes * (workers - 1)
    together = sum(visits) * unit / workers + steps * exchange / workers / network_bytes_per_second + placing
    hopped = state_bytes * (sum(visits) + len(visits))
    return [
        Estimate(
            "hopping", hopping, dataset_bytes + hopped, dataset_bytes, workers * hopping / 3600,
            dataset_bytes + hopped, _parts(dataset_bytes) + _UNIT_REQUESTS * sum(visits),
        ),
        Estimate(
            "copies", copies, workers * dataset_bytes, workers * dataset_bytes, workers * copies / 3600,
            workers * dataset_bytes, workers * _parts(dataset_bytes) + len(visits),
        ),
        Estimate(
            "data-parallel", together, dataset_bytes + steps * exchange, dataset_bytes, workers * together / 3600,
            dataset_bytes, _parts(dataset_bytes) + len(visits),
        ),
    ]  # fmt: skip


def _parts(size: float) -> int:
    return math.ceil(size / _PART)


def _packed(visits: list[float], workers: int) -> float:
    """Visits of the worker that is done last, if each takes the longest model that is left."""
    loads = [0.0] * workers
    for length in sorted(visits, reverse=True):
        heapq.heapreplace(loads, loads[0] + length)
    return max(loads)


def _unit_seconds(
    rows: int, partitions: int, rows_per_second: float | None, seconds_per_unit: float | None
) -> float:
    if (rows_per_second is None) == (seconds_per_unit is None):
        raise UsageError(
            f"rows_per_second={rows_per_second} and seconds_per_unit={seconds_per_unit} were given; "
            "exactly one is needed. A short run's schedule() has the seconds of its units."
        )
    if rows_per_second is not None:
        _check_amount("rows_per_second", rows_per_second)
        return rows / partitions / rows_per_second
    assert seconds_per_unit is not None
    _check_amount("seconds_per_unit", seconds_per_unit)
    return seconds_per_unit


def _epochs(
    num_models: int | None, num_epochs: int | None, searcher: Mapping[str, Any] | None
) -> list[float]:
    """Epochs that each model trains."""
    if searcher is not None:
        if num_models is not None or num_epochs is not None:
            raise UsageError(
                "searcher= says how many models train for how long; leave num_models and num_epochs out."
            )
        lengths = preview(searcher)
        if (unit := length_unit(searcher)) not in (None, "epochs"):
            raise UsageError(
                f"the searcher's lengths are in {unit}, but a plan takes epochs. "
                "Write {epochs: 3}, or only the number."
            )
        return [float(length) for length in lengths]
    if num_models is None or num_epochs is None:
        raise UsageError(
            f"num_models={num_models} and num_epochs={num_epochs} were given; "
            "give both, or searcher= with a searcher's config."
        )
    return [float(integer("num_epochs", num_epochs, 1))] * integer("num_models", num_models, 1)


def _check_amount(name: str, value: float) -> None:
    number(name, value, above=0, advice="Give an estimate if it was not measured.")
