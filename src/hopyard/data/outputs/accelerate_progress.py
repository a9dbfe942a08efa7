"""Progress of a loop over a loader that Accelerate has prepared: Accelerate reads one step ahead of it."""

from __future__ import annotations

import sys
from typing import Any


def steps_used(reading: Any, steps: int) -> int | None:
    """Number of a batch sampler's ``steps`` that have reached the loop over Accelerate's loader.

    Accelerate's loaders ask for the next batch before they yield one, to know which is the last, and deal
    consecutive steps to their processes. ``GradientState`` names the loaders that are being iterated over.

    Args:
        reading: attribute of this name of the batch sampler, which identifies it.
        steps: number of steps that it has given.

    Returns:
        None: no loop of Accelerate is over this loader, so all have been used.
    """
    module = sys.modules.get("accelerate.state")
    if module is None:
        return None
    for loader in module.GradientState().dataloader_references:
        if loader is None:
            continue
        processes, sampler = 1, loader.batch_sampler
        while sampler is not None and getattr(sampler, "reading", None) is not reading:
            if not getattr(sampler, "split_batches", False):
                processes *= getattr(sampler, "num_processes", 1)
            sampler = getattr(sampler, "batch_sampler", None)
        if sampler is not None:
            return steps if loader.end_of_dataloader else (steps - 1) // processes * processes
    return None
