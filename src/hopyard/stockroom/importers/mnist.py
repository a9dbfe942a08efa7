"""MNIST and Fashion-MNIST: four gzip files of the IDX format.

Source: LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/ (the format is described there);
https://github.com/zalandoresearch/fashion-mnist.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from hopyard.errors import CorruptError, DataError
from hopyard.stockroom.importers.base import ColumnSource, Importer
from hopyard.stockroom.importers.download import RemoteFile
from hopyard.stockroom.importers.mapped import MappedRange
from hopyard.stockroom.importers.parts import describe_files, gunzipped, listed

_UBYTE = 0x08
_FILES = (  # column, dimensions, name
    ("image", 3, "train-images-idx3-ubyte"),
    ("label", 1, "train-labels-idx1-ubyte"),
    ("test-image", 3, "t10k-images-idx3-ubyte"),
    ("test-label", 1, "t10k-labels-idx1-ubyte"),
)


def read_header(path: Path, dimensions: int, shown: Path) -> tuple[int, tuple[int, ...]]:
    """Position of the first value of an IDX file of uint8, and the array's shape.

    Raises:
        DataError: it is another file.
        CorruptError: it is shorter or longer than its header says.
    """
    start = 4 + 4 * dimensions
    with path.open("rb") as file:
        header = file.read(start)
    if len(header) < start and header.startswith(bytes([0, 0, _UBYTE, dimensions])):
        raise CorruptError(
            f"{shown} is truncated: it ends after {len(header)} bytes, within its header of {start}. Download or copy "
            "it again."
        )
    if header[:4] != bytes([0, 0, _UBYTE, dimensions]):
        raise DataError(
            f"{shown} is no IDX file of uint8 with {dimensions} dimension{'s' * (dimensions > 1)}: it begins with "
            f"{header[:4]!r} instead of {bytes([0, 0, _UBYTE, dimensions])!r}. Give the original file."
        )
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = path.stat().st_size
    if size != start + math.prod(shape):
        raise CorruptError(
            f"{shown} is truncated or changed: its header says {' x '.join(map(str, shape))}, which are "
            f"{start + math.prod(shape):,} bytes, but there are {size:,}. Download or copy it again."
        )
    return start, shape


class Mnist(Importer):
    """MNIST: 70,000 grey images of handwritten digits.

    Columns image and test-image (uint8, 28 x 28), label and test-label (uint8, as in the files). The source is a folder
    with the four original files, packed (.gz) or not. The names of the classes are in the metadata of the import.
    """

    needs_source = False
    folder: ClassVar[str] = "MNIST"
    urls: ClassVar[tuple[str, ...]] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    )
    md5s: ClassVar[tuple[str, ...]] = (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )
    classes: ClassVar[tuple[str, ...]] = (
        "0 - zero", "1 - one", "2 - two", "3 - three", "4 - four", "5 - five", "6 - six", "7 - seven", "8 - eight",
        "9 - nine",
    )  # fmt: skip

    @functools.cached_property
    def _files(self) -> list[Path]:
        """The four files, as they are given."""
        if self.source is None:
            return [self.download(remote, self.folder) for remote in self._remotes()]
        for place in (self.source, self.source / self.folder / "raw"):
            found = [
                next((p for p in (place / f"{name}.gz", place / name) if p.is_file()), None)
                for _, _, name in _FILES
            ]
            if None not in found:
                files = [path for path in found if path is not None]
                self._refuse_sibling(files[1])
                return files
        raise self._wrong()

    def _remotes(self) -> list[RemoteFile]:
        names = [f"{name}.gz" for _, _, name in _FILES]
        return [
            RemoteFile(name, tuple(f"{url}{name}" for url in self.urls), md5)
            for name, md5 in zip(names, self.md5s, strict=True)
        ]

    def _wrong(self) -> DataError:
        assert self.source is not None
        there = sorted(path.name for path in self.source.iterdir()) if self.source.is_dir() else ["one file"]
        return DataError(
            f"{self.source} is not what the importer {self.typed_name()!r} reads: expected is a folder with the files "
            f"{', '.join(name for _, _, name in _FILES)}, packed (.gz) or not, but there "
            f"{'is ' + listed(there) if there else 'is nothing'}. Give the folder with the original files."
        )

    def _refuse_sibling(self, labels: Path) -> None:
        """MNIST and Fashion-MNIST have files of the same names: the labels' checksum tells the original ones apart."""
        md5 = hashlib.md5(labels.read_bytes(), usedforsecurity=False).hexdigest()
        for other in (Mnist, FashionMnist):
            if other is not type(self) and md5 == other.md5s[1]:
                raise DataError(
                    f"{labels.parent} holds the files of the importer {other.typed_name()!r}, but was given to "
                    f"{self.typed_name()!r}. Use {other.typed_name()!r}, or give another folder."
                )

    def columns(self) -> list[ColumnSource]:
        columns = []
        for (name, dimensions, _), path in zip(_FILES, self._files, strict=True):
            plain = gunzipped(path, self.scratch)
            start, shape = read_header(plain, dimensions, path)
            read = MappedRange(str(plain), "uint8", shape, start)
            split = "test" if name.startswith("test-") else ""
            columns.append(ColumnSource(name, shape[0], "tensor", "uint8", shape[1:], read, split=split))
        for images, labels in (columns[:2], columns[2:]):
            if images.count != labels.count or not images.count:
                raise DataError(
                    f"{self._files[0].parent} has {images.count} images but {labels.count} labels for the column "
                    f"{images.name}. Give files that belong together."
                )
        return columns

    def identity(self) -> Mapping[str, Any]:
        return {"files": describe_files(self._files), "classes": list(self.classes)}


class FashionMnist(Mnist):
    """Fashion-MNIST: 70,000 grey images of clothes in 10 classes.

    Columns image and test-image (uint8, 28 x 28), label and test-label (uint8, as in the files). The source is a folder
    with the four original files, packed (.gz) or not. The names of the classes are in the metadata of the import.
    """

    folder = "FashionMNIST"
    urls: ClassVar[tuple[str, ...]] = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
    md5s: ClassVar[tuple[str, ...]] = (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    )
    classes: ClassVar[tuple[str, ...]] = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
