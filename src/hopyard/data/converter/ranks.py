"""Share of the rows that a process reads, checked against the rank that its launcher gave it."""

from __future__ import annotations

import os

from hopyard.checks import integer
from hopyard.errors import UsageError

_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),  # torchrun, TorchDistributor
)


def checked_share(cur_shard: int | None, shard_count: int | None) -> tuple[int, int]:
    """The rank and the number of ranks to read for; ``(0, 1)`` reads all rows, also on purpose under a launcher.

    Raises:
        UsageError: one is given without the other, or they contradict the launcher's environment.
    """
    if (cur_shard is None) != (shard_count is None):
        raise UsageError(
            f"cur_shard={cur_shard!r} and shard_count={shard_count!r} were given, but a share is both: which, and of "
            "how many. Give both or neither."
        )
    names, rank, size = _launched()
    if cur_shard is None or shard_count is None:
        if size > 1:
            raise UsageError(
                f"{names} say that this is process {rank} of {size}, but no share was asked for: each would read all "
                f"rows. Give cur_shard={rank}, shard_count={size}; or cur_shard=0, shard_count=1 to read all rows "
                "in each process on purpose."
            )
        return 0, 1
    count = integer("shard_count", shard_count, 1)
    shard = integer("cur_shard", cur_shard, 0)
    if shard >= count:
        raise UsageError(
            f"cur_shard={shard} of shard_count={count}: shards are 0 to {count - 1}. Give one of them."
        )
    if names and (shard, count) not in ((rank, size), (0, 1)):
        raise UsageError(
            f"cur_shard={shard}, shard_count={count} were given, but {names} say that this is process {rank} of "
            f"{size}: rows would be read twice or never. Give cur_shard={rank}, shard_count={size}."
        )
    return shard, count


def _launched() -> tuple[str, int, int]:
    """The names of the variables that a launcher has set, the rank and the number of ranks they say."""
    for rank, size in _LAUNCHERS:
        values = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(value.isdigit() for value in values):
            return f"{rank} and {size}", int(values[0]), int(values[1])
    return "", 0, 1
