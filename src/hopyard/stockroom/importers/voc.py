"""Pascal VOC's segmentation task: images, and masks as palette images, in a ``.tar``.

Source: Everingham et al., "The Pascal Visual Object Classes Challenge", IJCV 2010; http://host.robots.ox.ac.uk/pascal/VOC/.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hopyard.errors import DataError
from hopyard.stockroom.importers.base import ColumnSource, Importer, Option
from hopyard.stockroom.importers.download import RemoteFile
from hopyard.stockroom.importers.parts import (
    FileParts,
    describe_files,
    describe_folder,
    listed,
    read_archive,
)
from hopyard.stockroom.importers.pictures import DECODE, picture_column

_LISTS = "ImageSets/Segmentation"
_BELOW = ("VOC20*", "VOCdevkit/VOC20*", "TrainVal/VOCdevkit/VOC20*")
_SPLITS = ("train", "val", "test")
_URL = "http://host.robots.ox.ac.uk/pascal/VOC/"
_ARCHIVES = {
    "2012": ("voc2012/VOCtrainval_11-May-2012.tar", "6cd6e144f989b92b3379bac3b3de84fd"),
    "2011": ("voc2011/VOCtrainval_25-May-2011.tar", "6c3384ef61512963050cb5d687e5bf1e"),
    "2010": ("voc2010/VOCtrainval_03-May-2010.tar", "da459979d0c395079b5c75ee67908abb"),
    "2009": ("voc2009/VOCtrainval_11-May-2009.tar", "59065e4b188729180974ef6572f6a212"),
    "2008": ("voc2008/VOCtrainval_14-Jul-2008.tar", "2629fa636546599198acfcfbfcf1904a"),
    "2007": ("voc2007/VOCtrainval_06-Nov-2007.tar", "c52e279531787c972589f7e41ab4ae64"),
}
_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


class VocSegmentation(Importer):
    """Pascal VOC 2007 to 2012, segmentation: images, and the class of each pixel.

    Columns image (uint8, height x width x 3) and mask (uint8, height x width: 0 background, 1 to 20 classes, 255 border
    or ignored), for the lists train, val (val-image, val-mask) and test of ImageSets/Segmentation that are there; keys
    are the images' names. With decode=false both are the bytes of the files. The names of the classes are in the
    metadata of the import.
    """

    needs_source = False
    classes: ClassVar[tuple[str, ...]] = _CLASSES

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        year = Option(
            "year", "2012", "what to download, or to take of a folder with several", tuple(_ARCHIVES)
        )
        return DECODE, year

    @functools.cached_property
    def _given(self) -> Path:
        if self.source is not None:
            return self.source
        path, md5 = _ARCHIVES[self.settings["year"]]
        name = path.rpartition("/")[2]
        return self.download(RemoteFile(name, (_URL + path,), md5))

    @functools.cached_property
    def _files(self) -> tuple[FileParts, str]:
        """All files, and the folder among them that holds ImageSets, ending in ``/`` unless it is the top."""
        source = self._given
        if source.is_dir():
            base = next((path.parent.parent for path in self._lists_below(source)), None)
            if base is not None:
                names = [
                    path.relative_to(base).as_posix()
                    for folder in (_LISTS, "JPEGImages", "SegmentationClass")
                    for path in (base / folder).glob("*")
                ]
                return FileParts(str(base), sorted(names), None, str(base)), ""
            archives = [path.rpartition("/")[2] for path, _ in _ARCHIVES.values()]
            archive = next((source / name for name in archives if (source / name).is_file()), None)
            if archive is None:
                raise self._wrong([path.name for path in sorted(source.iterdir())])
            source = archive
        parts = read_archive(source, self.scratch)
        bases = {name.partition(f"{_LISTS}/")[0] for name in parts.names if f"{_LISTS}/" in f"/{name}"}
        if not bases:
            raise self._wrong(parts.names)
        return parts, min(bases)

    def _lists_below(self, source: Path) -> list[Path]:
        """Folders that may hold the lists of images; that of the year asked for comes first."""
        below = [path for pattern in _BELOW for path in sorted(source.glob(pattern))]
        below.sort(key=lambda path: path.name != f"VOC{self.settings['year']}")
        places = (source, *below)
        return [place / _LISTS for place in places if (place / _LISTS).is_dir()]

    def _wrong(self, there: list[str] | Any) -> DataError:
        return DataError(
            f"{self._given} is no Pascal VOC: expected is a folder VOCdevkit/VOC<year> with {_LISTS}, JPEGImages and "
            f"SegmentationClass (the original is {_ARCHIVES['2012'][0].rpartition('/')[2]}), but there "
            f"{'is ' + listed(there) if there else 'is nothing'}. Give the original archive or its folder."
        )

    def columns(self) -> list[ColumnSource]:
        parts, base = self._files
        numbers = parts.numbers()
        columns = []
        for split in _SPLITS:
            number = numbers.get(f"{base}{_LISTS}/{split}.txt")
            if number is None:
                continue
            ids = parts[number].read().decode().split()
            if not ids:
                raise DataError(f"{parts[number].shown} names no images. Restore the original.")
            prefix = "" if split == "train" else f"{split}-"
            for name, folder, ending, mode in (
                ("image", "JPEGImages", ".jpg", "RGB"),
                ("mask", "SegmentationClass", ".png", "index"),
            ):
                wanted = [f"{base}{folder}/{each}{ending}" for each in ids]
                if missing := [file for file in wanted if file not in numbers]:
                    raise DataError(
                        f"{parts[number].shown} names {len(ids)} images, but {len(missing)} of their files are not "
                        f"there: {listed(missing)}. Restore the original."
                    )
                chosen = parts.select([numbers[file] for file in wanted])
                column = picture_column(f"{prefix}{name}", chosen, self.settings["decode"], mode, ids)
                columns.append(replace(column, split=prefix[:-1]))
        if not columns:
            raise self._wrong(parts.names)
        return columns

    def identity(self) -> Mapping[str, Any]:
        parts, _ = self._files
        folder = parts.ranges is None
        return {
            "files": describe_folder(Path(parts.path), parts.names)
            if folder
            else describe_files(parts.files()),
            "decode": self.settings["decode"],
            "classes": list(self.classes),
        }
