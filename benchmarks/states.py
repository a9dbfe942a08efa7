"""Saving and loading states: Hopyard against safetensors and torch.save, all durable, interleaved.

One JSON line per result: the median of 9 rounds, in ms (small) or MB/s (large), the same for the
peer in the same rounds, and how many times faster Hopyard is. The peers write a file, sync it,
rename it and sync the directory, as Hopyard does; they compute no digests.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from hopyard.objects import StateRef, Tensor, load_state, save_state
from hopyard.storage import LocalStore

ROUNDS = 9
Arrays = dict[str, np.ndarray[Any, Any]]


def durably(write: Callable[[Path], object], target: Path) -> None:
    temporary = target.with_suffix(".tmp")
    write(temporary)
    for path, rename in ((temporary, True), (target.parent, False)):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        if rename:
            temporary.replace(target)


def touch(arrays: Arrays) -> float:
    """Read every byte, as training would."""
    return float(sum(array.view(np.uint32).sum(dtype=np.uint64) for array in arrays.values()))


class Bench:
    def __init__(self, directory: Path, name: str, arrays: int, elements: int, repeats: int) -> None:
        self.directory, self.name, self.repeats = directory, name, repeats
        self.rng = np.random.default_rng(0)
        self.arrays: Arrays = {f"layer{i}.weight": self._random(elements) for i in range(arrays)}
        self.nbytes = sum(array.nbytes for array in self.arrays.values())
        self.store = LocalStore(directory / "hopyard")
        self.ref: StateRef | None = None

    def _random(self, elements: int) -> np.ndarray[Any, Any]:
        return self.rng.random(elements, dtype=np.float32)

    def change(self) -> None:
        for array in self.arrays.values():
            array[0] += 1

    def save(self) -> None:
        tree = {name: Tensor.from_numpy(array) for name, array in self.arrays.items()}
        previous, self.ref = self.ref, save_state(self.store, tree, previous=self.ref)
        if previous is not None:
            self.store.delete(previous.files[0])

    def load(self) -> Arrays:
        assert self.ref is not None
        return {name: tensor.numpy() for name, tensor in load_state(self.store, self.ref).items()}

    def safetensors_save(self) -> None:
        durably(lambda path: safetensors.numpy.save_file(self.arrays, path), self.directory / "st")

    def safetensors_load(self) -> Arrays:
        return safetensors.numpy.load_file(self.directory / "st")

    def torch_save(self) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        durably(lambda path: torch.save(tensors, path), self.directory / "pt")

    def torch_load(self) -> Arrays:
        tensors = torch.load(self.directory / "pt", mmap=True, weights_only=True)
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def time(self, action: Callable[[], object]) -> float:
        """Seconds for one action, the mean of a few: each save is of a changed state."""
        total = 0.0
        for _ in range(self.repeats):
            self.change()
            start = time.perf_counter()
            action()
            total += time.perf_counter() - start
        return total / self.repeats

    def run(self) -> None:
        saves = {"hopyard": self.save, "safetensors": self.safetensors_save, "torch": self.torch_save}
        loads = {
            "hopyard": lambda: touch(self.load()),
            "safetensors": lambda: touch(self.safetensors_load()),
            "torch": lambda: touch(self.torch_load()),
        }
        for what, actions in (("save", saves), ("load", loads)):
            times: dict[str, list[float]] = {who: [] for who in actions}
            for _ in range(ROUNDS):
                for who, action in actions.items():
                    times[who].append(self.time(action))
            self.report(what, {who: statistics.median(values) for who, values in times.items()})

    def report(self, what: str, seconds: dict[str, float]) -> None:
        ours = seconds.pop("hopyard")
        small = self.nbytes < 1_000_000
        for peer, theirs in seconds.items():
            value, other = (
                (ours * 1e3, theirs * 1e3)
                if small
                else (self.nbytes / ours / 1e6, self.nbytes / theirs / 1e6)
            )
            result = {
                "name": f"state {what} {self.name} against {peer}",
                "value": round(value, 3),
                "unit": "ms" if small else "MB/s",
                "peer": round(other, 3),
                "ratio": round(value / other, 3),
            }
            print(json.dumps(result), flush=True)


def main() -> None:
    # Beside the sources, not in a temporary directory: that may be memory.
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as directory:
        for name, arrays, elements, repeats in (("60 KB", 20, 750, 10), ("400 MB", 100, 1 << 20, 1)):
            target = Path(directory) / name.replace(" ", "")
            target.mkdir()
            Bench(target, name, arrays, elements, repeats).run()


if __name__ == "__main__":
    main()
