"""GPUs and cores are counted as CUDA and the scheduler would, without a framework."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopyard.backend.devices import assign_gpus, usable_cores, visible_gpus
from hopyard.errors import UsageError

TWO = """GPU 0: NVIDIA H200 (UUID: GPU-aaaa)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb)
"""
SLICED = """GPU 0: NVIDIA H200 (UUID: GPU-aaaa)
  MIG 1g.18gb     Device  0: (UUID: MIG-1111)
  MIG 1g.18gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb)
"""


def tool(folder: Path, listing: str, code: int = 0) -> dict[str, str]:
    """An environment whose nvidia-smi answers with ``listing``."""
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{listing}END\nexit {code}\n")
    script.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def driver(folder: Path, count: int) -> Path:
    for index in range(count):
        (folder / "gpus" / f"0000:0{index}:00.0").mkdir(parents=True)
    return folder / "gpus"


@pytest.mark.parametrize(
    ("listing", "found"),
    [(TWO, ["GPU-aaaa", "GPU-bbbb"]), (SLICED, ["MIG-1111", "MIG-2222", "GPU-bbbb"]), ("", [])],
)
def test_nvidia_smi_names_gpus_and_their_slices(tmp_path: Path, listing: str, found: list[str]) -> None:
    assert visible_gpus(tool(tmp_path, listing), tmp_path / "none") == found


@pytest.mark.parametrize(
    ("value", "found"), [("1,0", ["1", "0"]), ("", []), ("-1", []), ("2,-1,3", ["2"]), (" 0 , 1", ["0", "1"])]
)
def test_cuda_visible_devices_decides_where_there_are_gpus(
    tmp_path: Path, value: str, found: list[str]
) -> None:
    environ = {**tool(tmp_path, TWO), "CUDA_VISIBLE_DEVICES": value}
    assert visible_gpus(environ, tmp_path / "none") == found
    assert (
        visible_gpus({"PATH": str(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": value}, tmp_path / "none") == []
    )


def test_the_driver_is_counted_when_there_is_no_tool_or_it_fails(tmp_path: Path) -> None:
    gpus = driver(tmp_path, 3)
    assert visible_gpus({"PATH": str(tmp_path / "bin")}, gpus) == ["0", "1", "2"]
    assert visible_gpus(tool(tmp_path, "NVML: driver mismatch\n", code=18), gpus) == ["0", "1", "2"]


def test_gpus_are_dealt_to_workers() -> None:
    four = ["0", "1", "2", "3"]
    assert assign_gpus(four, None, 1) == four
    assert assign_gpus(four, None, 2) == ["0,1", "2,3"]
    assert assign_gpus(["0", "1", "2"], None, 2) == ["0,1"]
    assert assign_gpus(["0", "1"], 3, 1) == ["0", "1", "0"]
    with pytest.raises(
        UsageError, match=r"gpus_per_worker=3 was given, but this machine shows 2; give at most 2"
    ):
        assign_gpus(["0", "1"], None, 3)


@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 1), ("50000 100000", 1), ("max 100000", None), (None, None)]
)
def test_a_container_has_the_cores_of_its_quota(tmp_path: Path, quota: str | None, cores: int | None) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota)
    assert usable_cores(file) == (cores or len(os.sched_getaffinity(0)))
