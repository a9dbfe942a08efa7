"""The built-in decoder of images: all that Pillow reads, JPEG and PNG above all, as arrays.

===========================================  ==================================================
encoded as                                   decoded as, where no mode is given
===========================================  ==================================================
grey, and black and white (0 and 255)        uint8 (h, w)
grey of 16 bits; of 32 bits; of floats       uint16, int32, float32 (h, w)
grey and alpha                               uint8 (h, w, 2)
colour, also CMYK, YCbCr and the like: RGB   uint8 (h, w, 3); of 16 bits a channel, the upper 8
colour and alpha                             uint8 (h, w, 4)
palette: its colours, with alpha if it has   uint8 (h, w, 3) or (h, w, 4)
===========================================  ==================================================

Pixels are as they are stored: neither turned by an EXIF orientation nor changed by a colour profile, and
of several frames the first. To turn them, give a function of bytes that calls ``ImageOps.exif_transpose``.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError, DataError, UsageError
from hopyard.missing import missing_extra

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = ("L", "LA", "RGB", "RGBA")
_KEPT = (*MODES, "I", "F")  # Pillow's modes whose arrays are what was encoded
_SHOWN_BYTES = 12


@dataclass(frozen=True)
class ImageDecoder:
    """Bytes of one encoded image -> array (h, w) or (h, w, channels).

    Attributes:
        size: (h, w) in pixels that images are resized to, bilinear and smoothed where they shrink; None: as encoded.
        mode: ``"L"`` (grey), ``"LA"``, ``"RGB"`` or ``"RGBA"``; None: as encoded. Alpha that a mode lacks is
            dropped, not blended; of grey of 16 bits the upper 8 are taken.
    """

    size: tuple[int, int] | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _checked_size(self.size))
        if self.mode is not None and self.mode not in MODES:
            raise UsageError(f"mode={self.mode!r} is unknown; it must be None or one of {', '.join(MODES)}.")
        pillow()

    def __call__(self, encoded: bytes) -> npt.NDArray[Any]:
        """The pixels.

        Raises:
            CorruptError: it is no image, or a truncated one.
            DataError: it is too large, or has no conversion into the mode.
        """
        image = pillow()
        _refuse_filling()
        try:
            with image.open(io.BytesIO(encoded)) as opened:
                opened.load()
                return self._resized(self._converted(opened))
        except (DataError, MemoryError):
            raise
        except image.DecompressionBombError as error:
            raise DataError(
                f"it is an image too large for Pillow's limit ({error}). Drop it, or raise PIL.Image.MAX_IMAGE_PIXELS "
                "if you trust the data."
            ) from error
        except Exception as error:  # each of Pillow's formats has its own
            raise CorruptError(
                f"its {len(encoded)} bytes, which begin with {encoded[:_SHOWN_BYTES]!r}, cannot be decoded as an image "
                f"({type(error).__name__}: {_without_address(error)}). Remove the row, or decode it by a function."
            ) from error

    def _converted(self, image: Image) -> Image:
        """The image in the mode wanted, or in one whose array is what was encoded."""
        if self.mode is not None and image.mode in ("I", "F"):
            raise DataError(
                f"it has grey values of 32 bits, which have no scale on which to become {self.mode}. Give mode=None, "
                "or decode it by a function."
            )
        if image.mode.startswith("I;16"):
            return image if self.mode is None else _upper_bits(image).convert(self.mode)
        if image.mode == "1":
            image = image.convert("L")
        elif image.mode in ("P", "PA"):
            image = image.convert("RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB")
        elif image.mode not in _KEPT:
            image = image.convert("RGB")
        return image if self.mode in (None, image.mode) else image.convert(self.mode)

    def _resized(self, image: Image) -> npt.NDArray[Any]:
        bilinear = pillow().Resampling.BILINEAR
        if self.size is None or image.size == self.size[::-1]:
            array = np.asarray(image)
        elif image.mode.startswith("I"):  # resized as floats, which hold 16 bits exactly, and then rounded
            wide = np.asarray(image)
            floats = pillow().fromarray(wide.astype(np.float32)).resize(self.size[::-1], bilinear)
            limits = np.iinfo(wide.dtype)
            array = np.rint(np.asarray(floats, np.float64)).clip(limits.min, limits.max).astype(wide.dtype)
        else:
            array = np.asarray(image.resize(self.size[::-1], bilinear))
        return array.astype(array.dtype.newbyteorder("="), copy=False)


def pillow() -> ModuleType:
    """``PIL.Image``, whose import takes a moment: only those pay who decode images."""
    try:
        import PIL.Image
    except ImportError as error:
        raise missing_extra("pillow", "images", "Decoding images") from error
    return PIL.Image


def _refuse_filling() -> None:
    """Refuse a switch of this process that changes decoded images: other processes read them from the cache."""
    from PIL import ImageFile

    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise UsageError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, which makes grey areas of what a truncated image lacks. "
            "Set it to False, or decode by a function."
        )


def _checked_size(size: Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    whole = isinstance(size, Sequence) and all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) for n in size
    )
    if not whole or len(size) != 2 or min(size) < 1:
        raise UsageError(f"size={size!r} must be (height, width) in pixels, both at least 1, or None.")
    return int(size[0]), int(size[1])


def _upper_bits(image: Image) -> Image:
    upper: Image = pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return upper


def _without_address(error: Exception) -> str:
    """Pillow names the buffer it read, by its address: no use to anybody, and different each time."""
    return str(error).partition(" <")[0]
