"""Thumbnails of columns that hold images: arrays of bytes in the shape of an image, or encoded JPEG and PNG."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.reports.sample import ColumnSample
from hopyard.data.schema import Column

SIDE = 128
"""Pixels of the longer side of a thumbnail, at most."""

# Arrays of fewer or more pixels on a side are no images.
_LEAST_SIDE, _MOST_SIDE = 8, 8192
# Of images with sides of at most _SMALL pixels more are shown.
_SMALL, _MANY, _FEW = 64, 24, 12
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of an image.

    Attributes:
        row: number of the row in the dataset.
        width, height: of the image in the dataset, in pixels.
        png: the bytes of a PNG file.
    """

    row: int
    width: int
    height: int
    png: bytes


@dataclass(frozen=True)
class Thumbnails:
    """Thumbnails of a column, in order of rows; ``note`` says in words why some or all images have none."""

    shown: tuple[Thumbnail, ...]
    note: str = ""


def find_thumbnails(sample: ColumnSample) -> Thumbnails | None:
    """Thumbnails of some images of the sample, spread over it; None if the column holds no images."""
    places = _spread_places(sample)
    if _layout_of(sample.column) is None and not _is_encoded(sample, places):
        return None
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError:
        return Thumbnails(
            (), "Images are not shown: that needs Pillow, which pip install 'hopyard[images]' installs."
        )
    made = [thumbnail(sample.column, sample.values[place], int(sample.rows[place])) for place in places]
    shown = tuple(each for each in made if each is not None)
    broken = len(made) - len(shown)
    return Thumbnails(shown, f"{broken} of {len(made)} could not be decoded." if broken else "")


def thumbnail(column: Column, value: Any, row: int, side: int = SIDE) -> Thumbnail | None:
    """The thumbnail of a value of a column of images, of at most ``side`` pixels a side.

    None if it cannot be decoded, or is so large that decoding it is not safe.
    """
    from PIL import Image

    layout = _layout_of(column)
    if layout is not None:
        return _shrunk(Image.fromarray(np.ascontiguousarray(_pixels(value, layout))), row, side)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(value))
            return _shrunk(opened.convert("RGBA" if "A" in opened.getbands() else "RGB"), row, side)
    # Pillow raises these of damaged files; an image that it does not know is an OSError.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None


def _spread_places(sample: ColumnSample) -> list[int]:
    """Places in the sample of the images to show."""
    present = np.flatnonzero(~sample.missing) if sample.missing is not None else np.arange(len(sample.rows))
    small = sample.column.kind == "tensor" and max(sample.column.shape, default=0) <= _SMALL
    count = min(len(present), _MANY if small else _FEW)
    return [int(present[(2 * i + 1) * len(present) // (2 * count)]) for i in range(count)]


def _layout_of(column: Column) -> str | None:
    """``"hw"``, ``"hwc"`` or ``"chw"`` of an array of bytes that may be an image."""
    if column.kind != "tensor" or column.dtype != "uint8":
        return None
    shape = column.shape
    if len(shape) == 2:
        sides, layout = shape, "hw"
    elif len(shape) == 3 and shape[2] in (1, 3, 4):
        sides, layout = shape[:2], "hwc"
    elif len(shape) == 3 and shape[0] in (1, 3, 4):
        sides, layout = shape[1:], "chw"
    else:
        return None
    return layout if min(sides) >= _LEAST_SIDE and max(sides) <= _MOST_SIDE else None


def _pixels(value: npt.NDArray[np.uint8], layout: str) -> npt.NDArray[np.uint8]:
    """(h, w) or (h, w, 3 or 4)."""
    pixels = value.transpose(1, 2, 0) if layout == "chw" else value
    return pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _is_encoded(sample: ColumnSample, places: list[int]) -> bool:
    return sample.column.kind == "bytes" and any(sample.values[place].startswith(_MAGIC) for place in places)


def _shrunk(image: Any, row: int, side: int) -> Thumbnail:
    width, height = image.size
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return Thumbnail(row, width, height, file.getvalue())
