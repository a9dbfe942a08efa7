"""Folders of weights are there as a whole, or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import weights

TOOLS = Path(weights.__file__).parent


def write(folder: Path) -> None:
    save_file({"a": np.arange(6.0), "b": np.zeros((2, 3), "float32")}, folder / "model.safetensors")


def digest(folder: Path) -> str:
    folder.mkdir()
    write(folder)
    return weights.digest_of(folder)


def test_what_is_killed_in_the_middle_leaves_nothing_and_is_done_again(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(TOOLS)!r})
import weights

def write(folder):
    (folder / "model.safetensors").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

weights.place(Path("weights/model").absolute(), write, "")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    folder = tmp_path / "weights" / "model"
    assert not folder.exists()
    assert len(list(folder.parent.iterdir())) == 1
    weights.place(folder, write, digest(tmp_path / "other"))
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]


def test_other_weights_do_not_come_in_place_of_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    right = digest(folder)
    with pytest.raises(SystemExit, match=rf"have the digest {right}, but those of the weights have 0123\."):
        weights.place(folder, write, "0123")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert weights.digest_of(folder) == right


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": np.arange(6.0), "b": np.ones((2, 3), "float32")},
        {"a": np.arange(6.0), "c": np.zeros((2, 3), "float32")},
        {"a": np.arange(6.0), "b": np.zeros((3, 2), "float32")},
        {"a": np.arange(6.0), "b": np.zeros((2, 3), "int32")},
    ],
)
def test_values_names_shapes_and_dtypes_count(
    tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]], tmp_path: Path
) -> None:
    right = digest(tmp_path / "right")
    save_file(tensors, tmp_path / "model.safetensors")
    assert weights.digest_of(tmp_path) != right
    assert weights.digest_of(tmp_path / "nowhere") == ""
