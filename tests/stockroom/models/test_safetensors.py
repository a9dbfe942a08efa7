"""Models leave as files that every tool reads, and come back as they were."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from tests.stockroom.standin import Staged

from hopyard.errors import CorruptError, DataError, NotFoundError
from hopyard.stockroom.models import ModelShelf, export_safetensors, import_safetensors


@pytest.fixture
def shelf() -> ModelShelf:
    return ModelShelf(Staged())


def test_other_tools_read_what_is_exported(shelf: ModelShelf, tmp_path: Path) -> None:
    tied = torch.ones(3)
    shelf["m"] = OrderedDict(
        {
            "a/b": tied,
            "c~": tied,
            "half": torch.ones(2, 2, dtype=torch.bfloat16),
            "step": 3,
            "none": torch.empty(0),
        }
    )
    file = tmp_path / "m.safetensors"
    export_safetensors(shelf, "m", file)
    loaded = safetensors.torch.load_file(file)
    assert loaded.keys() == {"a/b", "c~", "half", "none"}
    assert all(torch.equal(loaded[key], shelf["m"][key]) for key in loaded)
    with safetensors.safe_open(file, "numpy") as opened:
        assert opened.metadata()["format"] == "pt"
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_exported_comes_back_whole(shelf: ModelShelf, tmp_path: Path) -> None:
    tied = torch.ones(3)
    models: dict[str, Any] = {
        "flat": OrderedDict({"b": tied, "a": tied, "lr": 0.1, "__metadata__": torch.ones(1)}),
        "nested": {"state": {0: {"step": torch.tensor(3.0), "n": np.float32(2)}}, "groups": [(1, None), {}]},
        "one": np.arange(3),
        "empty": {},
    }
    for name, model in models.items():
        shelf[name] = model
        export_safetensors(shelf, name, tmp_path / "file.safetensors")
        import_safetensors(shelf, "back", tmp_path / "file.safetensors")
        assert shelf.record("back") == shelf.record(name)
    import_safetensors(shelf, "flat2", tmp_path / "file.safetensors")


def test_files_of_others_come_in(shelf: ModelShelf, tmp_path: Path) -> None:
    state = {"w": torch.rand(3, 2), "h": torch.ones(2, dtype=torch.bfloat16), "s": torch.tensor(1)}
    safetensors.torch.save_file(state, tmp_path / "a", metadata={"format": "pt"})
    safetensors.torch.save_file(state, tmp_path / "b")
    for file in ("a", "b"):
        import_safetensors(shelf, file, tmp_path / file)
        loaded = shelf[file]
        assert type(loaded) is OrderedDict
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[key], state[key]) for key in state)
    safetensors.numpy.save_file({"w": np.ones(2)}, tmp_path / "c", metadata={"format": "np"})
    import_safetensors(shelf, "c", tmp_path / "c")
    assert type(shelf["c"]["w"]) is np.ndarray


def test_what_cannot_be_exported_is_named(shelf: ModelShelf, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"before")
    shelf["m"] = {"a": {"z": np.ones(2, complex)}}
    with pytest.raises(
        DataError, match=r"'m' cannot be exported: 'a/z' is of complex128, which safetensors does not have"
    ):
        export_safetensors(shelf, "m", file)
    with pytest.raises(NotFoundError, match=r"there is no model 'x' in"):
        export_safetensors(shelf, "x", file)
    assert file.read_bytes() == b"before"
    shelf["m"] = {}
    with pytest.raises(
        NotFoundError, match=r"cannot be exported to .*: there is no directory .*nowhere. Make it"
    ):
        export_safetensors(shelf, "m", tmp_path / "nowhere" / "m.safetensors")


def header(text: bytes, rest: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + rest


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"", CorruptError, "is not a whole safetensors file: it has 0 bytes. Get it again"),
        (b"\xff" * 100, CorruptError, "its header cannot be read"),
        (header(b"[]"), CorruptError, "its header cannot be read"),
        (
            header(b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"x"),
            CorruptError,
            "it has 62 bytes, but its header says 63",
        ),
        (
            header(b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', b"x"),
            DataError,
            "holds tensors of F4, which cannot be stored. Convert them to another dtype first",
        ),
        (
            header(json.dumps({"__metadata__": {"hopyard": "{}"}}).encode()),
            CorruptError,
            "what its metadata says under 'hopyard' does not fit it",
        ),
    ],
)
def test_what_cannot_be_imported_is_named(
    shelf: ModelShelf, tmp_path: Path, content: bytes, error: type[Exception], said: str
) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(content)
    with pytest.raises(error, match=said):
        import_safetensors(shelf, "m", file)
    assert len(shelf) == 0


def test_a_missing_file_is_named(shelf: ModelShelf, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"There is no model to be imported at .*x: it does not exist"):
        import_safetensors(shelf, "m", tmp_path / "x")
    with pytest.raises(NotFoundError, match=r"it is a directory; name one file in it"):
        import_safetensors(shelf, "m", tmp_path)
