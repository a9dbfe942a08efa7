"""Arguments of ``make_torch_dataloader`` and ``make_tf_dataset``, in Petastorm's words and in Hopyard's."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hopyard.checks import flag, integer
from hopyard.data.converter.ranks import checked_share
from hopyard.data.loader import Loader
from hopyard.data.opening.opening import open_dataset
from hopyard.errors import UsageError
from hopyard.wording import nearest

_OF_LOADERS = ("seed", "remainder", "window", "transform", "tail", "epoch", "drop_last")
_SHARES_AND_ORDER = (
    "cur_shard",
    "shard_count",
    "shuffle",
    "shuffle_row_groups",
    "shuffle_rows",
    "shard_seed",
)
_INSTEAD = {
    "cache_location": "cache=NodeCache(path)",
    "cache_size_limit": "cache=NodeCache(path, limit=bytes)",
    "cache_type": "cache=: what must be decoded is kept on the machine without being asked for",
    "convert_early_to_numpy": "nothing: leave it out",
    "data_loader_fn": "nothing: batches are made in bulk, so there is no loader to choose",
    "hdfs_driver": "nothing: leave it out",
    "predicate": "filters=",
    "pyarrow_serialize": "nothing: leave it out",
    "rank": "cur_shard=",
    "reader_pool_type": "nothing: decoding runs ahead in threads",
    "results_queue_size": "nothing: leave it out",
    "rowgroup_selector": "filters=",
    "schema_fields": "columns=",
    "shuffle_row_drop_partitions": "nothing: rows are shuffled as a whole",
    "transform_spec": "transform=fn(batch, rng), or cached_transform=fn(arrays) if it gives the same each time",
    "world_size": "shard_count=",
    "zmq_copy_buffers": "nothing: leave it out",
}


def _opening() -> list[str]:
    parameters = inspect.signature(open_dataset).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


@dataclass(frozen=True)
class Asked:
    """Arguments of a loader, sorted by the function that takes them.

    Attributes:
        opening: of ``open_dataset``.
        loading: of ``dataset.loader``.
        more: arguments that only the framework's loader knows.
    """

    opening: Mapping[str, Any]
    loading: Mapping[str, Any]
    more: Mapping[str, Any]


def asked(
    function: str,
    batch_size: int | None,
    num_epochs: int | None,
    workers_count: int | None,
    shuffling_queue_capacity: int | None,
    options: Mapping[str, Any],
    of_framework: Iterable[str] = (),
) -> Asked:
    """Check and sort the arguments.

    Raises:
        UsageError: an argument is unknown (says what there is instead), or has an impossible value.
    """
    of_framework = tuple(of_framework)
    known = [*_opening(), *_OF_LOADERS, *_SHARES_AND_ORDER, *of_framework]
    for name in options:
        if name not in known:
            raise _unknown(function, name, known)
    if num_epochs is not None:
        integer("num_epochs", num_epochs, 1)
    if workers_count is not None:
        integer("workers_count", workers_count, 1)
    capacity = integer("shuffling_queue_capacity", shuffling_queue_capacity or 0, 0)
    rank, world_size = checked_share(options.get("cur_shard"), options.get("shard_count"))
    loading = {name: options[name] for name in _OF_LOADERS if name in options}
    seed = options.get("seed") if options.get("seed") is not None else options.get("shard_seed")
    loading |= {
        "batch_size": 32 if batch_size is None else batch_size,
        "rank": rank,
        "world_size": world_size,
        "seed": 0 if seed is None else seed,
        "shuffle": _shuffled(options, capacity),
    }
    opening = {name: options[name] for name in _opening() if name in options}
    return Asked(opening, loading, {name: options[name] for name in of_framework if name in options})


def _shuffled(options: Mapping[str, Any], capacity: int) -> bool:
    """Rows are shuffled as a whole if anything asks for it: Petastorm's own default shuffles row groups."""
    if "shuffle" in options:
        return flag("shuffle", options["shuffle"])
    groups = flag("shuffle_row_groups", options.get("shuffle_row_groups", True))
    rows = flag("shuffle_rows", options.get("shuffle_rows", False))
    return groups or rows or capacity > 0


def _unknown(function: str, name: str, known: Iterable[str]) -> UsageError:
    if name in _INSTEAD:
        return UsageError(
            f"{function}({name}=...) was called, which Petastorm's converter takes and this one does not. Instead: "
            f"{_INSTEAD[name]}."
        )
    return UsageError(
        f"{function}({name}=...) was called, but there is no such argument{nearest(name, known, '.')} It takes "
        f"{', '.join(known)}."
    )


class Epochs:
    """Several epochs of a loader in one iteration; the next iteration goes on with the epochs after them."""

    def __init__(self, loader: Loader | Any, num_epochs: int) -> None:
        self.loader = loader
        self.num_epochs = num_epochs

    def __len__(self) -> int:
        """Batches of all the epochs."""
        return self.num_epochs * len(self.loader)

    def __iter__(self) -> Any:
        for _ in range(self.num_epochs):
            yield from self.loader
