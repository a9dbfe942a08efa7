"""One loader in a process of its own: reads commands, runs epochs and says what they took.

Started by ``_peers.Worker`` with the interpreter that has the loader. Every line of the input is a JSON
command, every line of the output its answer:

* ``{"do": "open", "loader", "workload", "rows", "root"}``: opens the loader, converts the data if need be;
* ``{"do": "cores", "cores": [0, 1]}``: pins the process, and chooses the loader's fastest setting there;
* ``{"do": "epoch"}``: one epoch, and what it took.

The consumer adds up every tensor. The sums of whole numbers must be those of the data, modulo 2**64, so a
row that is lost, read twice or mixed up is found, and those of fractions must be near.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from _serve import serve
from _workloads import WORKLOADS, raw_arrays

Epoch = Callable[[], Iterable[Any]]
EXPECTED_ERROR = 1e-3
LONG = 3.0  # seconds


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, however a loader nests them."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for each in batch.values():
            yield from tensors_of(each)
    elif isinstance(batch, (list, tuple)):
        for each in batch:
            yield from tensors_of(each)
    else:
        yield torch.as_tensor(batch)


class Sums:
    """Of all values, read once: those of small whole numbers as int64, eight bytes of a row at a time."""

    def __init__(self) -> None:
        self.whole = 0
        self.fractions = 0.0
        self.rows = 0

    def add(self, batch: Any) -> None:
        rows = None
        for tensor in tensors_of(batch):
            rows = len(tensor) if rows is None else rows
            if tensor.is_floating_point():
                self.fractions += float(tensor.sum())
            else:
                self.whole += int((packed(tensor) if is_packable(tensor) else tensor).sum())
        self.rows += rows or 0


def is_packable(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 1 and tensor.element_size() < 8 and tensor[0].nbytes % 8 == 0


def packed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(len(tensor), -1).view(torch.int64)


class Expected:
    """What an epoch adds up to. Whole numbers may also come as wider ones, which add up to something else."""

    def __init__(self, workload: str, root: Path, rows: int) -> None:
        self.rows, self.fractions = rows, 0.0
        self.whole = {0}
        for array in raw_arrays(WORKLOADS[workload], root, rows).values():
            plain = wide = 0
            for start in range(0, rows, 8192):
                tensor = torch.tensor(array[start : start + 8192])
                if tensor.is_floating_point():
                    self.fractions += float(tensor.sum(dtype=torch.float64))
                else:
                    plain += int(tensor.sum())
                    wide += int((packed(tensor) if is_packable(tensor) else tensor).sum())
            sums = {plain, wide}
            self.whole = {(one + other) % 2**64 for one in self.whole for other in sums}

    def check(self, found: Sums) -> None:
        if found.rows != self.rows or found.whole % 2**64 not in self.whole:
            raise AssertionError(
                f"{found.rows} rows came with the sum {found.whole % 2**64}, not {self.rows} with {self.whole}"
            )
        if abs(found.fractions - self.fractions) > EXPECTED_ERROR * abs(self.fractions):
            raise AssertionError(f"the fractions add up to {found.fractions}, not {self.fractions}")


def processes() -> list[int]:
    """This process and those below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds() -> float:
    """Of this process and all below it, living or waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + gone.ru_utime + gone.ru_stime
    for pid in processes()[1:]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def memory_mb() -> dict[str, float]:
    """Of all processes: the highest resident size since ``forget_peak``, and what is their own now."""
    found = {"VmHWM": 0, "RssAnon": 0}
    for pid in processes():
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(":")
            if name in found:
                found[name] += int(value.split()[0])
    return {"peak_mb": round(found["VmHWM"] / 1e3, 1), "anonymous_mb": round(found["RssAnon"] / 1e3, 1)}


def forget_peak() -> None:
    for pid in processes():
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:  # another's, or gone
            continue


def measured(epoch: Epoch, expected: Expected | None) -> dict[str, Any]:
    """One epoch: seconds, CPU seconds, rows, seconds to the first batch, memory."""
    getattr(epoch, "before", lambda: None)()
    gc.collect()
    forget_peak()
    sums, first = Sums(), None
    cpu, start = cpu_seconds(), time.perf_counter()
    for batch in epoch():
        if first is None:
            first = time.perf_counter() - start
        sums.add(batch)
        del batch
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - cpu
    if expected is not None:
        expected.check(sums)
    return {"seconds": seconds, "cpu_s": cpu, "rows": sums.rows, "first_batch_s": first, **memory_mb()}


class Commands:
    """What the process does; the loader's module has ``open(name, workload, rows, root)``."""

    def open(self, module: str, loader: str, workload: str, rows: int, root: str) -> dict[str, Any]:
        opener = importlib.import_module(module).OPENERS[loader]
        self.workload = WORKLOADS[workload]
        self.row_bytes = sum(
            array.nbytes // len(array) for array in raw_arrays(self.workload, Path(root), rows).values()
        )
        self.expected = None if loader in UNCHECKED else Expected(workload, Path(root), rows)
        started = time.perf_counter()
        self.settings = opener(self.workload, Path(root), rows)
        return {"row_bytes": self.row_bytes, "seconds": time.perf_counter() - started}

    def cores(self, cores: list[int]) -> dict[str, Any]:
        os.sched_setaffinity(0, cores)
        for task in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)
        times: dict[str, float] = {}
        settings = self.settings(len(cores))
        for name, epoch in settings.items():
            seconds = measured(epoch, self.expected)["seconds"]
            if seconds < LONG and len(settings) > 1:  # the first epoch has what is done once
                seconds = min(seconds, measured(epoch, self.expected)["seconds"])
            times[name] = seconds
        self.setting = min(times, key=times.__getitem__)
        self.epoch_of = settings[self.setting]
        return {"setting": self.setting, "seconds": times}

    def epoch(self) -> dict[str, Any]:
        return measured(self.epoch_of, self.expected)


UNCHECKED = frozenset({"decode", "memcpy"})  # limits that hand out no rows to a consumer


def main() -> None:
    torch.set_num_threads(1)
    serve(Commands())


if __name__ == "__main__":
    main()
