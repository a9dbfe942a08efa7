"""Folders of images: with classes as torchvision's ImageFolder has them, or as they lie."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.errors import DataError
from hopyard.stockroom.importers.base import ColumnSource, Importer, Option
from hopyard.stockroom.importers.mapped import MappedNumpy
from hopyard.stockroom.importers.parts import FileParts, describe_files, describe_folder, listed, read_archive
from hopyard.stockroom.importers.pictures import DECODE, ENDINGS, mode_option, picture_column

_SPLITS = ("train", "val", "valid", "validation", "test")


@dataclass(frozen=True)
class _Split:
    """The images of a split: names relative to the source, and the class of each."""

    prefix: str
    names: Sequence[str]
    labels: Sequence[int]


class _Images(Importer):
    """Base of both importers: the images below a folder, or in a tar archive."""

    @functools.cached_property
    def _parts(self) -> FileParts:
        """All images, in the order in which torchvision finds them: by folder, then by name."""
        assert self.source is not None
        if self.source.is_dir():
            names = sorted(_images_below(self.source), key=lambda name: name.rpartition("/")[::2])
            parts = FileParts(str(self.source), names, None, str(self.source))
        else:
            found = read_archive(self.source, self.scratch)
            order = sorted(
                (number for number, name in enumerate(found.names) if name.lower().endswith(ENDINGS)),
                key=lambda number: found.names[number].rpartition("/")[::2],
            )
            parts = found.select(order)
        if not parts.names:
            raise DataError(
                f"There are no images in {self.source}: no file that ends in {', '.join(ENDINGS)}. Check the path."
            )
        return parts

    def _described(self) -> dict[str, Any]:
        parts = self._parts
        if parts.ranges is None:
            return dict(describe_folder(Path(parts.path), parts.names))
        return {"files": describe_files(parts.files())}


def _images_below(root: Path) -> Iterator[str]:
    above: dict[str, set[tuple[int, int]]] = {}  # by folder: those that it is in, and itself
    for folder, _, files in os.walk(root, followlinks=True):
        status = Path(folder).stat()
        identity, parents = (status.st_dev, status.st_ino), above.get(str(Path(folder).parent), set())
        if identity in parents:
            raise DataError(
                f"{folder} is a link to a folder that it lies in, so that there is no end to its images. Delete the "
                "link, or give a folder without it."
            )
        above[folder] = {*parents, identity}
        below = Path(folder).relative_to(root).as_posix()
        for file in files:
            if file.lower().endswith(ENDINGS):
                yield file if below == "." else f"{below}/{file}"


class Images(_Images):
    """A folder (or .tar, .tar.gz) of images, searched to the bottom.

    Column image, with the files' paths below the folder as keys: uint8, height x width x channels as encoded (images
    of more than 8 bits a channel are refused), or with decode=false the bytes of the files.
    """

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        return DECODE, mode_option("keep")

    def columns(self) -> list[ColumnSource]:
        parts = self._parts
        decode, mode = self.settings["decode"], self.settings["mode"]
        return [picture_column("image", parts, decode, mode, list(parts.names))]

    def identity(self) -> Mapping[str, Any]:
        return {**self._described(), **self.settings}


class ImageFolder(_Images):
    """A folder (or .tar, .tar.gz) with one folder of images for each class, as torchvision's ImageFolder.

    Columns image (uint8, height x width x 3; with mode=keep as many channels as encoded; with decode=false the bytes of
    the files) and label (int64, the place of the class's name in their order). Folders train, val, valid, validation
    and test that hold the classes are splits: image, label, val-image, val-label, ... The names of the classes are in
    the metadata of the import.
    """

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        return DECODE, mode_option("RGB")

    @functools.cached_property
    def _found(self) -> tuple[list[str], list[_Split]]:
        """The classes, and the splits."""
        names = self._parts.names
        tops = self._folders("")
        is_split = bool(tops) and set(tops) <= set(_SPLITS) and all(name.count("/") >= 2 for name in names)
        splits = (
            [(top, f"{top}/") for top in sorted(tops, key=_SPLITS.index)] if is_split else [("train", "")]
        )
        classes = self._folders(splits[0][1])
        if not classes:
            raise DataError(
                f"{self.source} has no folders of classes: expected is <class>/<image>, but there is "
                f"{listed(names)}. For images without classes use the importer 'images'."
            )
        return classes, [self._split(split, below, classes) for split, below in splits]

    def _folders(self, below: str) -> list[str]:
        """Folders there, sorted by name, also those without images (in archives, only those with files)."""
        if self._parts.ranges is None:
            return sorted(path.name for path in Path(self._parts.path, below).iterdir() if path.is_dir())
        inner = [name.removeprefix(below) for name in self._parts.names if name.startswith(below)]
        return sorted({name.partition("/")[0] for name in inner if "/" in name})

    def _split(self, split: str, below: str, classes: Sequence[str]) -> _Split:
        numbers = {name: number for number, name in enumerate(classes)}
        inner = [name.removeprefix(below) for name in self._parts.names if name.startswith(below)]
        kept = [name for name in inner if "/" in name]  # as torchvision: images beside the classes have none
        kept.sort(key=lambda name: (name.partition("/")[0], name.rpartition("/")[::2]))
        found = {name.partition("/")[0] for name in kept}
        if empty := sorted(set(self._folders(below)) - found):
            raise DataError(
                f"{self.source}: there are no images in the folder{'s' * (len(empty) > 1)} "
                f"{listed([below + name for name in empty])}. Put images there, or remove what is no class."
            )
        if unknown := sorted(found - set(classes)):
            raise DataError(
                f"{self.source}: {below}{unknown[0]} is a class that the first split does not have "
                f"({listed(classes)}), so it has no number. Give all splits the same classes."
            )
        prefix = "" if split == "train" else f"{split}-"
        return _Split(prefix, [below + name for name in kept], [numbers[n.partition("/")[0]] for n in kept])

    def columns(self) -> list[ColumnSource]:
        columns = []
        numbers = self._parts.numbers()
        for split in self._found[1]:
            parts = self._parts.select([numbers[name] for name in split.names])
            decode, mode = self.settings["decode"], self.settings["mode"]
            name = split.prefix[:-1]
            columns.append(replace(picture_column(f"{split.prefix}image", parts, decode, mode), split=name))
            path = str(self.scratch / f"{split.prefix}label.npy")
            np.save(path, np.array(split.labels, np.int64))
            read = MappedNumpy(path)
            labels = ColumnSource(f"{split.prefix}label", len(parts), "tensor", "int64", (), read, split=name)
            columns.append(labels)
        return columns

    def identity(self) -> Mapping[str, Any]:
        return {**self._described(), **self.settings, "classes": self._found[0]}
