"""The stored content of a model: one ``json`` object, and an object for each different tensor.

The JSON has ``format``; ``skeleton`` (as ``objects.tree`` writes it); ``tensors``, in the tree's order, each
``[path, dtype, shape, digest, kind]``; ``tied``, lists of numbers of tensors that are one; ``ordered``, pairs of the
keys that lead to an ``OrderedDict`` and the skeleton of its metadata; and ``libraries``, which is empty. Releases of
libraries are not among it: equal models have equal digests, whoever saves them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.errors import ChangedError, CorruptError, NotFoundError, UsageError
from hopyard.objects import Tensor, Tree, flatten, unflatten
from hopyard.stockroom.models.leaves import LeafPath, Taken, give_back, in_order
from hopyard.stockroom.packfiles import Location, PackfileWriter
from hopyard.stockroom.records import ModelRecord, parsing
from hopyard.stockroom.records.quoting import check_text
from hopyard.stockroom.views.view import ObjectReader
from hopyard.storage.format import check_format, object_header
from hopyard.wording import nearest

Bytes = npt.NDArray[np.uint8]

_KIND = "model"
_LARGE = 1 << 16  # bytes; smaller tensors are hashed faster than handed to a thread


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a model. ``number`` counts them in the tree's order; tied ones have the ``tie`` of their first."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    kind: str
    number: int
    tie: int

    def is_as(self, other: TensorEntry) -> bool:
        """Whether the two may be one tensor."""
        mine = self.dtype, self.shape, self.digest, self.kind, self.tie
        return mine == (other.dtype, other.shape, other.digest, other.kind, other.tie)


class StoredModel:
    """The structure of a stored model; its tensors are read when they are asked for.

    Args:
        value: the JSON, as above.

    Raises:
        CorruptError: the object is not what was written; FormatError: a newer version of Hopyard wrote it.
    """

    def __init__(self, objects: ObjectReader, value: Any, name: str) -> None:
        self._objects, self._name = objects, name
        try:
            check_format(value["format"], _KIND, where=f"the model {name!r}")
            self.skeleton: Any = value["skeleton"]
            self.ordered: dict[LeafPath, Any] = {tuple(keys): metadata for keys, metadata in value["ordered"]}
            count = len(value["tensors"])
            ties = [[parsing.whole(number, 0, count - 1) for number in tied] for tied in value["tied"]]
            first = {number: tied[0] for tied in ties for number in tied}
            self.entries: list[TensorEntry] = [
                TensorEntry(
                    parsing.text(path), parsing.dtype(dtype), parsing.shape(shape), parsing.digest(digest),
                    parsing.text(kind), number, first.get(number, number),
                )
                for number, (path, dtype, shape, digest, kind) in enumerate(value["tensors"])
            ]  # fmt: skip
            for number in first:
                entry = self.entries[number]
                if not entry.is_as(self.entries[entry.tie]):
                    raise ValueError(f"{entry.path!r} is tied to another tensor")
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise self._corrupt(error) from error

    def only(self, prefix: str) -> None:
        """Keep what lies under those keys at the top that begin with ``prefix``.

        Raises:
            UsageError: the model is no dict; NotFoundError: none of its keys does.
        """
        check_text(prefix, "the prefix of a model's keys")
        if not isinstance(self.skeleton, dict) or "d" not in self.skeleton:
            raise UsageError(
                f"prefix={prefix!r} was given, but the model {self._name!r} is not a dict. Read all of it."
            )
        keys = [str(key) for key, _ in self.skeleton["d"]]
        pairs = [pair for pair in self.skeleton["d"] if str(pair[0]).startswith(prefix)]
        if not pairs:
            raise NotFoundError(
                f"no key of the model {self._name!r} begins with {prefix!r}{nearest(prefix, keys, '.')} "
                f"It has {_listed(keys)}."
            )
        self.skeleton = {"d": pairs}
        wanted = _Paths()
        unflatten(wanted, self.skeleton)
        self.entries = [entry for entry in self.entries if entry.path in wanted]

    def tree(self, verify: bool = True) -> Tree:
        """The tree without any library: its leaves are read-only tensors that know their digests."""
        return self._put_together(self.tensors(verify))

    def tensors(self, verify: bool = True) -> dict[str, Tensor]:
        """Path to tensor."""
        found = self._read(verify, private=False)
        tensors: dict[int, Tensor] = {}
        for entry in self.entries:
            # Tied ones are one; equal ones are not.
            if entry.tie not in tensors:
                tensors[entry.tie] = replace(found[entry.digest])
                tensors[entry.tie].know(entry.digest)
        return {entry.path: tensors[entry.tie] for entry in self.entries}

    def values(self, verify: bool = True) -> Tree:
        """The tree as it was saved. Its memory is the caller's own, mapped copy-on-write where the store has files."""
        found = self._read(verify, private=True)
        leaves: dict[int, Any] = {}
        given: set[str] = set()
        for entry in self.entries:
            if entry.tie not in leaves:
                tensor = found[entry.digest]
                if (
                    entry.digest in given
                ):  # equal but not one: they must not become one when they are written to
                    tensor = replace(tensor, data=tensor.data.copy())
                elif (
                    entry.kind == "tensor"
                ):  # whose memory may be written to, so that its digest is not known
                    tensor = replace(tensor)
                given.add(entry.digest)
                leaves[entry.tie] = give_back(tensor, entry.kind, entry.path)
        tree = self._put_together({entry.path: leaves[entry.tie] for entry in self.entries})
        try:
            ordered = {keys: metadata and unflatten({}, metadata) for keys, metadata in self.ordered.items()}
            return in_order(tree, ordered) if ordered else tree
        except (CorruptError, TypeError, ValueError, RecursionError) as error:
            raise self._corrupt(error) from error

    def _read(self, verify: bool, private: bool) -> dict[str, Tensor]:
        """The tensors by digest, of the dtypes and shapes that the model says."""
        found = self._objects.tensors(dict.fromkeys(entry.digest for entry in self.entries), verify, private)
        for entry in self.entries:
            tensor = found[entry.digest]
            if (tensor.dtype, tensor.shape) != (entry.dtype, entry.shape):
                raise self._corrupt(
                    ValueError(
                        f"{entry.path!r} is said to be {entry.dtype} of shape {entry.shape}, but is {tensor}"
                    )
                )
        return found

    def misfits(self, places: Mapping[str, Location]) -> Iterator[str]:
        """Tensors at these places that are of another dtype or shape than the model says, in words."""
        for entry in self.entries:
            place = places.get(entry.digest)
            if place is not None and (place.dtype, place.shape) != (entry.dtype, entry.shape):
                yield (
                    f"{entry.path!r} of {self._name} is said to be {entry.dtype} of shape {entry.shape}, but is "
                    f"{place.dtype} of shape {place.shape}"
                )

    def _put_together(self, leaves: dict[str, Any]) -> Tree:
        try:
            return unflatten(leaves, self.skeleton)
        except CorruptError as error:
            raise self._corrupt(error) from error

    def _corrupt(self, error: Exception) -> CorruptError:
        return CorruptError(
            f"what is stored of the model {self._name!r} cannot be read ({type(error).__name__}: {error}). Run "
            "`hopyard stock verify`, which lists all that is damaged; then fetch it from a remote that has it."
        )


class _Paths(dict[str, Any]):
    """Notes which tensors a skeleton asks for."""

    def __missing__(self, path: str) -> None:
        self[path] = None


def read(objects: ObjectReader, record: ModelRecord, name: str) -> StoredModel:
    """The model that this is a record of; ``name`` is for messages."""
    return StoredModel(objects, objects.json(record.tree), name)


def write(writer: PackfileWriter, taken: Taken) -> ModelRecord:
    """Add a model's objects. Tensors that are here are not written again.

    Raises:
        DataError: a key that cannot be stored; a tensor that was written to meanwhile. Nothing of the model is kept.
    """
    tensors, skeleton = flatten(taken.tree)
    try:
        digests = writer.add_tensors(_hashed(list(tensors.values())))
    except ChangedError as error:
        path = next(path for path, tensor in tensors.items() if tensor.digest == error.digest)
        raise ChangedError(error.digest, f"{path!r} of the model: {error}") from None
    listed = [
        [path, tensor.dtype, list(tensor.shape), digest, kind]
        for (path, tensor), digest, kind in zip(tensors.items(), digests, taken.kinds, strict=True)
    ]
    nbytes = {digest: tensor.nbytes for digest, tensor in zip(digests, tensors.values(), strict=True)}
    value = to_json(skeleton, listed, taken.ties, taken.ordered)
    return ModelRecord(writer.add_json(value), sum(nbytes.values()))


def to_json(
    skeleton: Any, tensors: list[list[Any]], ties: list[int], ordered: Iterable[tuple[LeafPath, Any]]
) -> dict[str, Any]:
    """The JSON of a model."""
    tied: dict[int, list[int]] = {}
    for number, tie in enumerate(ties):
        tied.setdefault(tie, []).append(number)
    return {
        "format": object_header(_KIND),
        "skeleton": skeleton,
        "tensors": tensors,
        "tied": [numbers for numbers in tied.values() if len(numbers) > 1],
        "ordered": [[list(keys), metadata] for keys, metadata in ordered],
        "libraries": {},  # belongs to the format
    }


def reached(objects: ObjectReader, record: ModelRecord) -> Iterator[str]:
    """The digests of all objects that reading the model needs."""
    yield record.tree
    yield from dict.fromkeys(entry.digest for entry in read(objects, record, record.tree).entries)


def _hashed(tensors: list[Tensor]) -> Iterator[Tensor]:
    """The tensors, knowing their digests: large ones are hashed by threads, ahead of what is asked for."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ahead = {id(t): pool.submit(_digest, t) for t in tensors if t.nbytes >= _LARGE}
        try:
            for tensor in tensors:
                if id(tensor) in ahead:
                    ahead[id(tensor)].result()
                yield tensor
        finally:
            pool.shutdown(cancel_futures=True)


def _digest(tensor: Tensor) -> str:
    return tensor.digest


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:10]))
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 10 else shown or "none"
