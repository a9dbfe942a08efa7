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

JPEG is decoded by simplejpeg where it is installed, which is faster, else by Pillow as everything is; what simplejpeg
does not take (CMYK, odd subsampling, files with damage that libjpeg mends) goes to Pillow, so that both accept the same
files. Their pixels are the same if both carry the same libjpeg-turbo, which nothing promises: the decoder's name and
version belong to an ``ImageDecoder``, and a process that has another one refuses it.

Where a size is asked for, JPEG is decoded at 1/2, 1/4 or 1/8, by dropping the finer cosines, as long as that is no
smaller than what is asked for; the rest is done by Pillow's bilinear filter, which averages over all pixels where it
shrinks.

Pixels are as they are stored: neither turned by an EXIF orientation nor changed by a colour profile, and
of several frames the first. To turn them, give a function of bytes that calls ``ImageOps.exif_transpose``.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from hopyard.checks import choice
from hopyard.data.files.named import Root, read_named
from hopyard.errors import CorruptError, DataError, HopyardError, UsageError
from hopyard.missing import missing_extra

if TYPE_CHECKING:
    from PIL.Image import Image

Fit: TypeAlias = Literal["stretch", "crop"]
MODES = ("L", "LA", "RGB", "RGBA")
_KEPT = (*MODES, "I", "F")  # Pillow's modes whose arrays are what was encoded
_SHOWN_BYTES = 12
_JPEG = b"\xff\xd8\xff"
_SCALES = (8, 4, 2)  # that libjpeg shrinks by without a filter
# Colours of JPEG that simplejpeg decodes, and Pillow's mode of them.
_MODE_OF = {"Gray": "L", "YCbCr": "RGB", "RGB": "RGB"}
_COLORSPACE = {"L": "GRAY", "RGB": "RGB"}

Box: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True)
class ImageDecoder:
    """Bytes of one encoded image -> array (h, w) or (h, w, channels).

    Attributes:
        size: (h, w) in pixels that images are resized to, bilinear and smoothed where they shrink; None: as encoded.
        mode: ``"L"`` (grey), ``"LA"``, ``"RGB"`` or ``"RGBA"``; None: as encoded. Alpha that a mode lacks is
            dropped, not blended; of grey of 16 bits the upper 8 are taken.
        fit: ``"stretch"``: the whole image has the size; ``"crop"``: the largest part around the middle that has the
            size's proportions.
        codec: name and version of the decoder of JPEG; ``""``: the one that is here.
        root: folder, URL or store that names of image files are relative to.
    """

    size: tuple[int, int] | None = None
    mode: str | None = None
    fit: Fit = "stretch"
    codec: str = ""
    root: Root = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _checked_size(self.size))
        if self.mode is not None and self.mode not in MODES:
            raise UsageError(f"mode={self.mode!r} is unknown; it must be None or one of {', '.join(MODES)}.")
        choice("fit", self.fit, get_args(Fit))
        pillow()
        if not self.codec:
            object.__setattr__(self, "codec", jpeg_codec())

    def __call__(self, encoded: bytes | memoryview, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The pixels.

        Args:
            out: contiguous array that the pixels may be written to, if they are of its shape and dtype; it is
                returned then.

        Raises:
            CorruptError: it is no image, or a truncated one.
            DataError: it is too large, or has no conversion into the mode.
            UsageError: this process has another decoder of JPEG than the one that the pixels are to come from.
        """
        if self.codec != (here := jpeg_codec()):
            raise self._other_codec(here)
        if not encoded:
            raise CorruptError(
                "it is empty, which is no image. Remove the row, or make it null and say nulls='fill' or nulls='mask'."
            )
        if encoded[:3] == _JPEG and (pixels := self._fast(encoded, out)) is not None:
            return pixels
        image = pillow()
        _refuse_filling()
        try:
            with image.open(io.BytesIO(encoded)) as opened:
                box = self._box(*opened.size)
                scale = self._scale(box)
                if scale > 1:  # of JPEG; other formats stay as they are
                    opened.draft(opened.mode, (opened.width // scale, opened.height // scale))
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
            begin = bytes(encoded[:_SHOWN_BYTES])
            raise CorruptError(
                f"its {len(encoded)} bytes, which begin with {begin!r}, cannot be decoded as an image "
                f"({type(error).__name__}: {_without_address(error)}). Remove the row, or decode it by a function."
            ) from error

    def _fast(self, encoded: bytes | memoryview, out: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        """The pixels of JPEG by simplejpeg; None: Pillow must look at it."""
        simplejpeg, limit = _simplejpeg(), pillow().MAX_IMAGE_PIXELS
        if simplejpeg is None:
            return None
        try:
            height, width, colors, _ = simplejpeg.decode_jpeg_header(encoded)
            if colors not in _MODE_OF or (limit is not None and height * width > limit):
                return None
            stored = _MODE_OF[colors]
            decoded = stored if self.mode not in _COLORSPACE or stored == "RGB" else self.mode
            channels = (3,) if decoded == "RGB" else ()
            scale = 1 if self.size is None else self._scale(self._box(width, height))
            height, width = -(-height // scale), -(-width // scale)
            is_final = self.mode in (None, decoded) and self.size in (None, (height, width))
            fits = out is not None and out.shape == (height, width, *channels) and out.dtype == np.uint8
            into = out if is_final and fits else np.empty((height, width, *channels), np.uint8)
            least = (height, width) if scale > 1 else (0, 0)
            simplejpeg.decode_jpeg(encoded, _COLORSPACE[decoded], False, False, *least, 1, into)
        except ValueError:
            return None
        return into if is_final else self._resized(self._converted(pillow().fromarray(into)))

    def _box(self, width: int, height: int) -> Box:
        """The part of an image of that size that is resized: left, top, right, bottom."""
        if self.size is None or self.fit == "stretch":
            return 0, 0, width, height
        wide, high = (
            min(width, height * self.size[1] / self.size[0]),
            min(height, width * self.size[0] / self.size[1]),
        )
        return (width - wide) / 2, (height - high) / 2, (width + wide) / 2, (height + high) / 2

    def _scale(self, box: Box) -> int:
        """The most that JPEG may be shrunk by when it is decoded."""
        if self.size is None:
            return 1
        wide, high = (box[2] - box[0]) / self.size[1], (box[3] - box[1]) / self.size[0]
        return next((scale for scale in _SCALES if min(wide, high) >= scale), 1)

    def _other_codec(self, here: str) -> UsageError:
        name, _, version = self.codec.partition(" ")
        return UsageError(
            f"images of the dataset are decoded by {self.codec}, but this process has {here}, whose pixels may differ "
            f"in the last bits. All processes must have one decoder: pip install '{name.lower()}=={version}' where "
            "this one runs, or open the dataset again with what is there."
        )

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
        box = self._box(*image.size)
        if self.size is None or image.size == self.size[::-1]:
            array = np.asarray(image)
        elif image.mode.startswith("I"):  # resized as floats, which hold 16 bits exactly, and then rounded
            wide = np.asarray(image)
            floats = pillow().fromarray(wide.astype(np.float32)).resize(self.size[::-1], bilinear, box)
            limits = np.iinfo(wide.dtype)
            array = np.rint(np.asarray(floats, np.float64)).clip(limits.min, limits.max).astype(wide.dtype)
        else:
            array = np.asarray(image.resize(self.size[::-1], bilinear, box))
        return array.astype(array.dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True)
class NamedImageDecoder:
    """Path or URL of one encoded image, as text or UTF-8 -> array; see :class:`ImageDecoder`."""

    image: ImageDecoder

    def __call__(self, name: str | bytes, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The pixels of the image in the file of that name.

        Raises:
            NotFoundError, StorageError: the file cannot be read.
            UsageError: it is a relative path, or a URL that no store has.
            CorruptError, DataError, UsageError: as of :class:`ImageDecoder`.
        """
        name = name if isinstance(name, str) else name.decode()
        encoded = read_named(name, self.image.root)
        try:
            return self.image(encoded, out)
        except HopyardError as error:
            raise type(error)(f"{name}: {error}") from error.__cause__


def pillow() -> ModuleType:
    """``PIL.Image``, whose import takes a moment: only those pay who decode images."""
    try:
        import PIL.Image
    except ImportError as error:
        raise missing_extra("pillow", "images", "Decoding images") from error
    return PIL.Image


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    found: ModuleType = simplejpeg
    return found


@cache
def jpeg_codec() -> str:
    """Name and version of what decodes JPEG in this process."""
    found = _simplejpeg()
    if found is not None:
        return f"simplejpeg {found.__version__}"
    import PIL

    return f"Pillow {PIL.__version__}"


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
