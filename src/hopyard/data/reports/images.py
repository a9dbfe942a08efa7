"""Sample images of a report: columns that look like images, as small PNGs inside the page."""

from __future__ import annotations

import base64
import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.reports.sample import Sample
from hopyard.data.schema import Column

_SIDE = 8  # arrays of fewer pixels on a side are no images
_MOST_SIDE = 8192
THUMBNAIL = 40
"""Pixels of the longer side of an image in a row of a table, at most."""

_SHOWN = 128  # the same of a sample image
_SMALL, _MANY, _FEW = 64, 24, 12
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


@dataclass(frozen=True)
class Picture:
    """An image of the page: of which row, its size in the dataset in pixels, and its PNG as a data URI."""

    row: int
    width: int
    height: int
    uri: str


@dataclass(frozen=True)
class Pictures:
    """Images of a column, and what to know about those that are not shown."""

    shown: tuple[Picture, ...]
    note: str = ""


def find_pictures(sample: Sample) -> Pictures | None:
    """Some images of the sample, spread over it; None if the column does not look like images."""
    chosen = _chosen(sample)
    layout = _layout_of(sample.column)
    encoded = layout is None and _is_encoded(sample, chosen)
    if layout is None and not encoded:
        return None
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError:
        return Pictures(
            (), "Images are not shown: that needs Pillow, which pip install 'hopyard[images]' installs."
        )
    shown, broken = [], 0
    for place in chosen:
        picture = picture_of(sample.column, sample.values[place], int(sample.rows[place]))
        if picture is None:
            broken += 1
        else:
            shown.append(picture)
    return Pictures(tuple(shown), f"{broken} of {len(chosen)} could not be decoded." if broken else "")


def picture_of(column: Column, value: Any, row: int, most: int = _SHOWN) -> Picture | None:
    """A value of a column of images, of at most so many pixels a side; None if it cannot be decoded."""
    layout = _layout_of(column)
    found = _encoded(value, most) if layout is None else _png(_pixels(value, layout), most)
    return None if found is None else Picture(row, *found)


def _chosen(sample: Sample) -> list[int]:
    """Places of the images to show: more if they are small."""
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
    return layout if min(sides) >= _SIDE and max(sides) <= _MOST_SIDE else None


def _pixels(value: npt.NDArray[np.uint8], layout: str) -> npt.NDArray[np.uint8]:
    """(h, w) or (h, w, 3 or 4)."""
    pixels = value.transpose(1, 2, 0) if layout == "chw" else value
    return pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _is_encoded(sample: Sample, chosen: list[int]) -> bool:
    return sample.column.kind == "bytes" and any(sample.values[place].startswith(_MAGIC) for place in chosen)


def _png(pixels: npt.NDArray[np.uint8], most: int) -> tuple[int, int, str]:
    from PIL import Image

    return _shrunk(Image.fromarray(np.ascontiguousarray(pixels)), most)


def _encoded(value: bytes, most: int) -> tuple[int, int, str] | None:
    """None if it is no image, or one that is too large to be safe."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(value))
            return _shrunk(opened.convert("RGBA" if "A" in opened.getbands() else "RGB"), most)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError):
        return None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None


def _shrunk(image: Any, most: int) -> tuple[int, int, str]:
    width, height = image.size
    image.thumbnail((most, most))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return width, height, "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
