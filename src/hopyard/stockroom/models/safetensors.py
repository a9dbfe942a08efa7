"""Models as ``.safetensors`` files, and such files as models.

A file that was exported here holds, in its metadata, what safetensors has no place for: containers, plain values,
order, ties. Importing it gives the very model that was exported; other readers see the tensors, each under its key, or
under its path where containers are nested.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.errors import CorruptError, DataError, NotFoundError
from hopyard.objects import Tensor, flatten, unflatten
from hopyard.objects.safetensorsfile import TensorSlot, file_pieces, read_header
from hopyard.stockroom.models.content import Bytes, StoredModel, to_json
from hopyard.stockroom.models.leaves import Taken
from hopyard.stockroom.models.shelf import ModelShelf
from hopyard.stockroom.records import parsing
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name

_OURS = "hopyard"
_TORCH = "pt"  # how other tools mark files that PyTorch wrote


def export_safetensors(shelf: ModelShelf, name: str, path: str | os.PathLike[str]) -> None:
    """Write a model to ``path``, which appears, or is replaced, when it is whole.

    Tied tensors are written once for each of their keys, so that every reader finds all.

    Raises:
        NotFoundError: there is no such model, or directory; DataError: it holds what safetensors cannot.
        StorageFullError, NotWritableError: as the file system says.
    """
    write_safetensors(shelf.content(name), name, Path(path))


def write_safetensors(content: StoredModel, name: str, file: Path) -> None:
    """The same for a model whose structure was read; ``name`` is for messages."""
    if not file.parent.is_dir():
        raise NotFoundError(
            f"The model {name!r} cannot be exported to {file}: there is no directory {file.parent}. Make it."
        )
    tensors = content.tensors()
    names = _names(content)
    for where, tensor in tensors.items():
        if tensor.dtype == "C128":
            raise DataError(
                f"The model {name!r} cannot be exported: {where!r} is of complex128, which safetensors does not have. "
                "Store a copy with it as complex64, or its real and imaginary parts as tensors of their own."
            )
    listed = [[e.path, e.dtype, list(e.shape), names[e.path], e.kind] for e in content.entries]
    ties = [entry.tie for entry in content.entries]
    value = to_json(content.skeleton, listed, ties, content.ordered.items())
    metadata = {_OURS: json.dumps(value, separators=(",", ":"))}
    metadata["format"] = _TORCH if all(entry.kind == "torch" for entry in content.entries) else "np"
    _replace(file, file_pieces({names[where]: tensor for where, tensor in tensors.items()}, metadata))


def _names(content: StoredModel) -> dict[str, str]:
    """Path to the name in the file: the key itself, if the model is one dict of tensors and plain values."""
    pairs = content.skeleton.get("d", []) if isinstance(content.skeleton, dict) else []
    keys = {node["T"]: key for key, node in pairs if isinstance(node, dict) and "T" in node}
    is_flat = len(keys) == len(content.entries) and all(type(key) is str for key in keys.values())
    if is_flat and "__metadata__" not in keys.values():
        return keys
    return {entry.path: entry.path for entry in content.entries}


def _replace(path: Path, pieces: list[bytes | memoryview]) -> None:
    temporary = path.with_name(temporary_name())
    try:
        with write_errors(path), temporary.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        with write_errors(path):
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def import_safetensors(shelf: ModelShelf, name: str, path: str | os.PathLike[str]) -> None:
    """Store the model in a file under ``name``.

    A file of another tool becomes an ``OrderedDict`` of tensors in the file's order: of PyTorch, unless its metadata
    says ``format`` is another library; then arrays. Other metadata is left behind.

    Raises:
        NotFoundError: there is no such file; CorruptError: it is no whole safetensors file.
        DataError: it holds a dtype that cannot be stored. The shelf is as it was.
    """
    file = Path(path)
    if not file.is_file():
        what = "is a directory; name one file in it" if file.is_dir() else "does not exist"
        raise NotFoundError(f"There is no model to be imported at {file}: it {what}.")
    if file.stat().st_size < 8:
        raise _corrupt(file, f"it has {file.stat().st_size} bytes")
    data: Bytes = np.memmap(file, np.uint8, mode="r")
    try:
        _, metadata, slots = read_header(lambda start, n: data[start : start + n].tobytes(), data.size)
        own = metadata.get(_OURS)
    except KeyError as error:
        raise DataError(
            f"The file {file} holds tensors of {error.args[0]}, which cannot be stored. Convert them to "
            "another dtype first."
        ) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _corrupt(file, f"its header cannot be read ({error})") from None
    end = max((slot.stop for slot in slots.values()), default=0)
    if end > data.size:
        raise _corrupt(file, f"it has {data.size} bytes, but its header says {end}")
    tensors = {key: _tensor(data, slot) for key, slot in slots.items()}
    shelf.put(
        name, _foreign(tensors, metadata.get("format", _TORCH)) if own is None else _own(tensors, own, file)
    )


def _tensor(data: Bytes, slot: TensorSlot) -> Tensor:
    return Tensor(slot.dtype, slot.shape, np.asarray(data[slot.start : slot.stop]))


def _foreign(tensors: dict[str, Tensor], format: str) -> Taken:
    def kind(tensor: Tensor) -> str:
        if format == _TORCH:
            return "torch"
        return "ml_dtypes" if tensor.dtype == "BF16" or tensor.dtype.startswith("F8") else "numpy"

    kinds = [kind(tensor) for tensor in tensors.values()]
    return Taken(tensors, kinds, list(range(len(tensors))), [((), None)])


def _own(tensors: dict[str, Tensor], text: str, file: Path) -> Taken:
    try:
        value: Any = parsing.json_of(text.encode())
        names = {row[0]: row[3] for row in value["tensors"]}
        kinds = [row[4] for row in value["tensors"]]
        first = {number: tied[0] for tied in value["tied"] for number in tied}
        tree = unflatten({path: tensors[name] for path, name in names.items()}, value["skeleton"])
        if len(flatten(tree)[0]) != len(kinds):
            raise ValueError("tensors that are in no place")
        ordered = [(tuple(keys), metadata) for keys, metadata in value["ordered"]]
        return Taken(tree, kinds, [first.get(i, i) for i in range(len(kinds))], ordered)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, CorruptError) as error:
        raise _corrupt(file, f"what its metadata says under {_OURS!r} does not fit it ({error!r})") from None


def _corrupt(file: Path, reason: str) -> CorruptError:
    return CorruptError(
        f"The file {file} is not a whole safetensors file: {reason}. Get it again, or export it again."
    )
