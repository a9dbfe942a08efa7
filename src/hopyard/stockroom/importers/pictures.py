"""Columns of images: decoded, or the bytes of the files.

Images of other modes: palettes become their colours, CMYK and YCbCr become RGB, black and white becomes 0 and
255; with ``mode="RGB"`` grey is repeated in three channels and alpha is dropped, as torchvision's loader does it. What
has more than 8 bits a channel is refused, as 8 bits would lose some: ``decode=False`` keeps such files whole.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.recipe.images import ImageDecoder, pillow
from hopyard.errors import CorruptError, DataError
from hopyard.stockroom.importers.base import ColumnSource, Option, Samples
from hopyard.stockroom.importers.parts import FileParts

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Suffixes of files that torchvision takes for images."""

DECODE = Option("decode", True, "true: uint8 pixels; false: the bytes of the files as they are")


def mode_option(default: str) -> Option:
    text = "RGB: three channels always; keep: 1 to 4 channels as encoded (of images that are decoded)"
    return Option("mode", default, text, ("RGB", "keep"))


def picture(encoded: bytes, mode: str) -> npt.NDArray[np.uint8]:
    """Pixels, uint8 (h, w, channels); (h, w) palette indices of ``mode="index"``.

    Raises:
        CorruptError: it is no image, or a truncated one.
        DataError: it has more than 8 bits a channel, or no palette where indices are wanted.
    """
    if mode == "index":
        return _indices(encoded)
    pixels = ImageDecoder()(encoded)
    if pixels.dtype != np.uint8:
        raise DataError(
            f"it has pixels of {pixels.dtype}, but a column of decoded images is of uint8. Convert it, or import with "
            "decode=false, which keeps the files' bytes."
        )
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if mode == "RGB":
        pixels = np.repeat(pixels[:, :, :1], 3, axis=2) if pixels.shape[2] < 3 else pixels[:, :, :3]
    return np.ascontiguousarray(pixels)


def _indices(encoded: bytes) -> npt.NDArray[np.uint8]:
    try:
        with pillow().open(io.BytesIO(encoded)) as image:
            image.load()
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # each of Pillow's formats has its own
        raise CorruptError(
            f"it cannot be decoded as an image ({type(error).__name__}: {error}). Restore it."
        ) from error
    if mode not in ("P", "L"):
        raise DataError(
            f"it is of mode {mode}, but a mask has a palette (P) or numbers (L). Restore the original."
        )
    return pixels


@dataclass(frozen=True)
class Pictures:
    """Reads images from files; ``mode`` None: their bytes."""

    parts: FileParts
    mode: str | None

    def __call__(self, start: int, stop: int) -> Samples:
        if self.mode is None:
            return [self.parts[number].read() for number in range(start, stop)]
        return [self._decoded(number) for number in range(start, stop)]

    def _decoded(self, number: int) -> npt.NDArray[Any]:
        part = self.parts[number]
        try:
            return picture(part.read(), self.mode or "RGB")
        except DataError as error:
            raise DataError(f"{part.shown}: {error}") from error
        except CorruptError as error:
            what = str(error).rpartition(". ")[0]  # without the next step, which is for rows of a dataset
            step = "Restore or delete this file"
            if self.mode != "index":
                step += ", or keep the bytes of all files as they are: --option decode=false"
            raise CorruptError(f"{part.shown}: {what}. {step}.") from error


@dataclass(frozen=True)
class TextSamples:
    """Keys that are texts, or texts as samples."""

    names: Sequence[str]

    def __call__(self, start: int, stop: int) -> list[Any]:
        return list(self.names[start:stop])


def picture_column(
    name: str, parts: FileParts, decode: bool, mode: str, keys: Sequence[str] | None = None
) -> ColumnSource:
    """A column of the images in these files."""
    named = None if keys is None else TextSamples(keys)
    if not decode:
        return ColumnSource(name, len(parts), "bytes", "object", (), Pictures(parts, None), named)
    pillow()
    return ColumnSource(name, len(parts), "tensor", "uint8", None, Pictures(parts, mode), named)
