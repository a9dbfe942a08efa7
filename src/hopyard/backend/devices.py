"""GPUs and cores that this machine has for workers, found without importing a framework."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hopyard.errors import UsageError

DEVICES = ("auto", "cpu", "cuda")


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPU cores that this process may use, at least 1: its affinity, and the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def visible_gpus(
    environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc/driver/nvidia/gpus")
) -> list[str]:
    """The GPUs (or MIG slices) that CUDA would use here, as values for CUDA_VISIBLE_DEVICES.

    ``CUDA_VISIBLE_DEVICES`` decides if it is set and there is a GPU at all; then ``nvidia-smi``, whose
    identifiers name MIG slices too; then the number of devices that the driver lists.
    """
    tool = shutil.which("nvidia-smi", path=environ.get("PATH"))
    listed = sorted(proc.iterdir()) if proc.is_dir() else []
    if not listed and tool is None:
        return []
    if "CUDA_VISIBLE_DEVICES" in environ:
        return _up_to_the_first_invalid(environ["CUDA_VISIBLE_DEVICES"])
    if tool is not None:
        answer = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return _identifiers(answer.stdout)
    return [str(index) for index in range(len(listed))]


def _up_to_the_first_invalid(value: str) -> list[str]:
    """CUDA ignores what follows an identifier that it does not know, such as -1."""
    found: list[str] = []
    for item in value.split(","):
        if not item.strip() or item.strip().startswith("-"):
            break
        found.append(item.strip())
    return found


def _identifiers(listing: str) -> list[str]:
    """The UUIDs in the answer of ``nvidia-smi -L``; a GPU that is split stands for its MIG slices."""
    found: list[str] = []
    for uuid in re.findall(r"UUID: ((?:GPU|MIG)-[^)\s]+)", listing):
        if uuid.startswith("MIG-") and found and found[-1].startswith("GPU-"):
            found.pop()
        found.append(uuid)
    return found


def assign_gpus(gpus: list[str], num_workers: int | None, gpus_per_worker: int) -> list[str]:
    """``CUDA_VISIBLE_DEVICES`` of each worker; more workers than GPUs share them in turn.

    Raises:
        UsageError: a worker would need more GPUs than there are.
    """
    if gpus_per_worker > len(gpus):
        raise UsageError(
            f"gpus_per_worker={gpus_per_worker} was given, but this machine shows {len(gpus)}; "
            f"give at most {len(gpus)}, or see CUDA_VISIBLE_DEVICES."
        )
    count = len(gpus) // gpus_per_worker if num_workers is None else num_workers
    return [
        ",".join(gpus[(worker * gpus_per_worker + i) % len(gpus)] for i in range(gpus_per_worker))
        for worker in range(count)
    ]
