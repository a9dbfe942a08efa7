"""Encoded images, made by Pillow or byte by byte, as arrays; and those that are none."""

import io
import pickle
import struct
import sys
import zlib

import numpy as np
import PIL
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from hopyard.data import image
from hopyard.data.recipe import images as module
from hopyard.data.recipe.images import ImageDecoder
from hopyard.errors import CorruptError, DataError, MissingExtraError, UsageError


def pixels(*shape, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def encoded(picture, kind="PNG", **options):
    """An array, or an image, encoded."""
    picture = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(array, color):
    """A PNG of 16 bits a channel, which Pillow does not write; ``color`` is PNG's type of colours."""
    height, width = array.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in array)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def equal(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def with_pillow_only(monkeypatch):
    """Decoding as where simplejpeg is not installed."""
    monkeypatch.setattr(module, "_simplejpeg", lambda: None)
    monkeypatch.setattr(module, "jpeg_codec", lambda: f"Pillow {PIL.__version__}")


@pytest.fixture(params=["simplejpeg", "Pillow"])
def codec(request, monkeypatch):
    """The decoder of JPEG."""
    if request.param == "Pillow":
        with_pillow_only(monkeypatch)
    else:
        pytest.importorskip("simplejpeg")
    assert ImageDecoder().codec.startswith(request.param)
    return request.param


# As encoded


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_grey_and_colour_are_what_was_encoded(kind, shape):
    equal(ImageDecoder()(encoded(pixels(*shape), kind)), pixels(*shape))


@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_is_the_last_channel(channels):
    equal(ImageDecoder()(encoded(pixels(5, 7, channels))), pixels(5, 7, channels))


def close(found, expected, most=2):
    """Equal but for how the last bits are rounded."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.abs(found.astype(int) - expected).max(initial=0) <= most


def test_jpeg_is_what_pillow_makes_of_it(codec):
    jpeg = encoded(pixels(16, 24, 3), "JPEG", quality=95)
    close(ImageDecoder()(jpeg), np.asarray(Image.open(io.BytesIO(jpeg))))
    assert ImageDecoder()(encoded(pixels(16, 24), "JPEG")).shape == (16, 24)


@given(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from(["L", "RGB", "CMYK"]), st.sampled_from([10, 75, 100]),
    st.sampled_from([0, 1, 2, "4:1:1"]), st.booleans(), st.sampled_from([None, "L", "RGB", "RGBA"]),
)  # fmt: skip
def test_any_jpeg_is_what_pillow_makes_of_it(height, width, stored, quality, subsampling, progressive, mode):
    picture = Image.fromarray(pixels(height, width, 3, seed=height * width)).convert(stored)
    jpeg = encoded(picture, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive)
    expected = Image.open(io.BytesIO(jpeg))
    expected = expected.convert("RGB") if stored == "CMYK" else expected
    close(ImageDecoder(mode=mode)(jpeg), np.asarray(expected.convert(mode or expected.mode)))


def test_pixels_are_written_into_an_array_that_is_as_they_are(codec):
    jpeg = encoded(pixels(16, 24, 3), "JPEG")
    batch = np.zeros((3, 16, 24, 3), np.uint8)
    found = ImageDecoder()(jpeg, batch[1])
    batch[1] = found
    assert np.array_equal(batch[1], ImageDecoder()(jpeg))
    assert not batch[[0, 2]].any()
    for other in (
        np.zeros((24, 16, 3), np.uint8),
        np.zeros((16, 24, 3), np.float32),
        np.zeros((16, 24), np.uint8),
    ):
        equal(ImageDecoder()(jpeg, other), batch[1])
        assert not other.any()


def test_what_simplejpeg_does_not_take_pillow_decodes():
    """Bytes between markers are damage that libjpeg goes on from, with a warning."""
    jpeg = encoded(pixels(16, 24, 3), "JPEG")
    damaged = jpeg[:2] + b"\xff\x00\x17\x17" + jpeg[2:]
    if (simplejpeg := module._simplejpeg()) is not None:
        with pytest.raises(ValueError):
            simplejpeg.decode_jpeg(damaged)
    try:
        expected = np.asarray(Image.open(io.BytesIO(damaged)))
    except OSError:
        with pytest.raises(CorruptError):
            ImageDecoder()(damaged)
    else:
        equal(ImageDecoder()(damaged), expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_grey_of_16_bits_keeps_them(kind):
    equal(ImageDecoder()(encoded(pixels(5, 7, dtype=np.uint16), kind)), pixels(5, 7, dtype=np.uint16))


def test_grey_of_the_other_byte_order_has_that_of_the_machine():
    values = pixels(5, 7, dtype=np.uint16)
    data = encoded(Image.frombytes("I;16B", (7, 5), values.astype(">u2").tobytes()), "TIFF")
    found = ImageDecoder()(data)
    equal(found, values)
    assert found.dtype.isnative


def test_grey_of_32_bits_and_of_floats_are_kept():
    floats = np.random.default_rng(0).random((5, 7), np.float32)
    equal(ImageDecoder()(encoded(floats, "TIFF")), floats)
    equal(ImageDecoder()(encoded(pixels(5, 7, dtype=np.int32), "TIFF")), pixels(5, 7, dtype=np.int32))


def test_colour_of_16_bits_a_channel_keeps_the_upper_8():
    values = pixels(5, 7, 3, dtype=np.uint16)
    equal(ImageDecoder()(png(values, color=2)), (values >> 8).astype(np.uint8))


def test_black_and_white_are_0_and_255():
    values = np.where(pixels(5, 7) > 128, 255, 0).astype(np.uint8)
    equal(ImageDecoder()(encoded(Image.fromarray(values).convert("1"))), values)


def test_a_palette_becomes_its_colours():
    picture = Image.fromarray(pixels(5, 7, 3)).convert("P")
    equal(ImageDecoder()(encoded(picture)), np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize("transparency", [0, bytes([0, 128])])
def test_a_palette_with_transparency_has_alpha_unless_the_mode_has_none(transparency):
    picture = Image.fromarray(pixels(5, 7) % 3, "L").convert("P")
    data = encoded(picture, transparency=transparency)
    assert ImageDecoder()(data).shape == (5, 7, 4)
    equal(ImageDecoder(mode="RGB")(data), ImageDecoder()(data)[:, :, :3])


def test_cmyk_becomes_rgb():
    picture = Image.fromarray(pixels(8, 8, 3)).convert("CMYK")
    data = encoded(picture, "TIFF")
    equal(ImageDecoder()(data), np.asarray(picture.convert("RGB")))


def test_an_orientation_does_not_turn_the_pixels(codec):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(pixels(8, 16, 3), "JPEG", exif=exif)
    assert Image.open(io.BytesIO(data)).getexif()[0x0112] == 6
    assert ImageDecoder()(data).shape == (8, 16, 3)
    equal(ImageDecoder()(data), ImageDecoder()(encoded(pixels(8, 16, 3), "JPEG")))


def test_of_several_frames_the_first_counts():
    first, second = (Image.fromarray(pixels(5, 7, seed=seed)) for seed in (1, 2))
    data = encoded(first, "TIFF", save_all=True, append_images=[second])
    equal(ImageDecoder()(data), pixels(5, 7, seed=1))


# Modes and sizes


@pytest.mark.parametrize(("mode", "shape"), [("L", ()), ("LA", (2,)), ("RGB", (3,)), ("RGBA", (4,))])
@pytest.mark.parametrize("stored", ["L", "LA", "RGB", "RGBA", "P", "CMYK", "1"])
def test_a_mode_gives_every_image_its_channels(mode, shape, stored):
    picture = Image.fromarray(pixels(5, 7, 3)).convert(stored)
    found = ImageDecoder(mode=mode)(encoded(picture, "TIFF" if stored == "CMYK" else "PNG"))
    assert (found.dtype, found.shape) == (np.uint8, (5, 7, *shape))


def test_alpha_is_dropped_not_blended():
    values = pixels(5, 7, 4)
    equal(ImageDecoder(mode="RGB")(encoded(values)), values[:, :, :3])


def test_grey_of_16_bits_gives_a_mode_its_upper_8():
    values = pixels(5, 7, dtype=np.uint16)
    upper = (values >> 8).astype(np.uint8)
    equal(ImageDecoder(mode="L")(encoded(values)), upper)
    equal(ImageDecoder(mode="RGB")(encoded(values)), np.stack([upper] * 3, axis=2))


def test_grey_without_a_scale_has_no_mode():
    with pytest.raises(DataError, match="grey values of 32 bits, which have no scale on which to become L"):
        ImageDecoder(mode="L")(encoded(np.zeros((2, 2), np.float32), "TIFF"))


@pytest.mark.parametrize("shape", [(40, 60), (40, 60, 3), (3, 5)])
def test_resizing_is_pillows_bilinear_and_takes_the_height_first(shape):
    values = pixels(*shape)
    expected = Image.fromarray(values).resize((12, 8), Image.Resampling.BILINEAR)
    equal(ImageDecoder(size=(8, 12))(encoded(values)), np.asarray(expected))


def test_resizing_keeps_16_bits():
    values = np.full((40, 60), 54321, np.uint16)
    equal(ImageDecoder(size=(8, 12))(encoded(values)), np.full((8, 12), 54321, np.uint16))
    mixed = pixels(40, 60, dtype=np.uint16)
    expected = mixed.reshape(8, 5, 12, 5).astype(float).mean(axis=(1, 3))
    found = ImageDecoder(size=(8, 12))(encoded(mixed)).astype(float)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.8


SMOOTH = Image.fromarray(pixels(9, 12, 3)).resize((500, 375), Image.Resampling.BICUBIC)


@pytest.mark.parametrize(
    ("size", "scale"),
    [((224, 224), 1), ((188, 250), 1), ((187, 250), 2), ((90, 120), 4), ((46, 20), 8), ((1, 1), 8)],
)
def test_jpeg_is_shrunk_while_it_is_decoded_to_no_less_than_the_size(codec, size, scale):
    jpeg = encoded(SMOOTH, "JPEG", quality=95)
    drafted = Image.open(io.BytesIO(jpeg))
    drafted.draft("RGB", (500 // scale, 375 // scale))
    assert drafted.size == (-(-500 // scale), -(-375 // scale))
    found = ImageDecoder(size)(jpeg)
    close(found, np.asarray(drafted.resize(size[::-1], Image.Resampling.BILINEAR)))
    whole = Image.open(io.BytesIO(jpeg)).resize(size[::-1], Image.Resampling.BILINEAR)
    assert np.abs(found.astype(int) - np.asarray(whole)).mean() < 4


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 90), st.integers(1, 90), st.booleans())
def test_jpeg_is_never_shrunk_below_the_size(width, height, wide, high, crop):
    decoder = ImageDecoder((high, wide), fit="crop" if crop else "stretch")
    left, top, right, bottom = decoder._box(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    scale = decoder._scale((left, top, right, bottom))
    if scale > 1:
        assert right - left >= wide * scale
        assert bottom - top >= high * scale
    if scale < 8:
        assert right - left < 2 * wide * scale or bottom - top < 2 * high * scale


@pytest.mark.parametrize("shape", [(40, 60, 3), (60, 40, 3), (8, 12, 3), (7, 90), (5, 4)])
def test_cropping_takes_the_largest_part_around_the_middle(shape):
    values = pixels(*shape)
    expected = ImageOps.fit(Image.fromarray(values), (12, 8), Image.Resampling.BILINEAR)
    equal(ImageDecoder((8, 12), fit="crop")(encoded(values)), np.asarray(expected))


def test_cropping_jpeg_is_cropping_what_it_decodes_to(codec):
    jpeg = encoded(SMOOTH, "JPEG", quality=95)
    drafted = Image.open(io.BytesIO(jpeg))
    drafted.draft("RGB", (125, 93))
    box = (125 - 94) / 2, 0, (125 + 94) / 2, 94
    expected = drafted.resize((90, 90), Image.Resampling.BILINEAR, box)
    close(ImageDecoder((90, 90), fit="crop")(jpeg), np.asarray(expected))


def test_an_unknown_fit_is_refused():
    with pytest.raises(UsageError, match=r"fit='contain'.*stretch.*crop"):
        image((8, 8), fit="contain")


def test_an_image_of_the_size_is_left_alone():
    equal(ImageDecoder(size=(5, 7))(encoded(pixels(5, 7, 3))), pixels(5, 7, 3))


@pytest.mark.parametrize("size", [(224,), (0, 5), (5, -1), 224, "ab", (1.5, 2), (True, 2), (1, 2, 3)])
def test_an_impossible_size_is_refused(size):
    with pytest.raises(
        UsageError, match=r"size=.* must be \(height, width\) in pixels, both at least 1, or None"
    ):
        image(size=size)


def test_an_unknown_mode_is_refused():
    with pytest.raises(UsageError, match="mode='BGR' is unknown; it must be None or one of L, LA, RGB, RGBA"):
        image(mode="BGR")


# Identity


def test_equal_settings_are_equal_decoders_and_travel():
    assert image((8, 12), "RGB") == image([8, np.int64(12)], "RGB")
    assert pickle.loads(pickle.dumps(image((8, 12)))) == image((8, 12))
    decoders = [
        image(), image((8, 12)), image((12, 8)), image(mode="RGB"), image((8, 12), "RGB"), image((8, 12), fit="crop"),
    ]  # fmt: skip
    assert len({decoder.digest for decoder in decoders}) == len(decoders)


def test_the_digest_of_images_is_pinned(monkeypatch):
    """It is part of cache keys and fingerprints: another one makes users decode again."""
    monkeypatch.setattr(module, "jpeg_codec", lambda: "simplejpeg 1.9.0")
    assert image((224, 224), "RGB").digest[:16] == "baf0a76aa32265fc"


def test_another_decoder_of_jpeg_is_another_decoder_which_a_process_with_this_one_refuses(monkeypatch):
    mine = image()
    monkeypatch.setattr(module, "jpeg_codec", lambda: "simplejpeg 0.1")
    assert image() != mine
    with pytest.raises(UsageError) as caught:
        mine.function(encoded(pixels(5, 7)))
    name, version = mine.function.codec.split()
    assert str(caught.value) == (
        f"images of the dataset are decoded by {name} {version}, but this process has simplejpeg 0.1, whose pixels may "
        f"differ in the last bits. All processes must have one decoder: pip install '{name.lower()}=={version}' where "
        "this one runs, or open the dataset again with what is there."
    )


# What cannot be decoded


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_image_is_an_error(codec, kind, share):
    data = encoded(pixels(64, 64, 3), kind)
    with pytest.raises(
        CorruptError, match=r"its \d+ bytes, which begin with .*, cannot be decoded .*[tT]runcated"
    ):
        ImageDecoder()(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"restart_marker_rows": 1}),
        ("PNG", {}),
        ("WEBP", {}),
    ],
)
def test_wherever_an_image_ends_its_pixels_are_all_there_or_it_is_an_error(codec, kind, options):
    data = encoded(pixels(24, 24, 3), kind, **options)
    whole, refused = ImageDecoder()(data), 0
    for end in range(len(data)):
        try:
            found = ImageDecoder()(data[:end])
        except CorruptError:
            refused += 1
        else:
            np.testing.assert_array_equal(found, whole)
    assert refused > 0.9 * len(data)


def test_a_damaged_image_is_an_error():
    data = bytearray(encoded(pixels(64, 64, 3)))
    data[len(data) // 2] ^= 255
    with pytest.raises(CorruptError, match=r"cannot be decoded as an image .*broken"):
        ImageDecoder()(bytes(data))


def test_nothing_is_no_image(codec):
    with pytest.raises(
        CorruptError, match=r"it is empty, which is no image. Remove the row, or make it null"
    ):
        ImageDecoder()(b"")


@pytest.mark.parametrize("data", [b"not an image at all", encoded(pixels(5, 7))[:20], b"\xff\xd8\xff"])
def test_bytes_that_are_no_image_are_named_by_their_beginning(codec, data):
    with pytest.raises(CorruptError) as caught:
        ImageDecoder()(data)
    text = str(caught.value)
    assert text.startswith(
        f"its {len(data)} bytes, which begin with {data[:12]!r}, cannot be decoded as an image"
    )
    assert text.endswith("Remove the row, or decode it by a function.")
    assert "0x" not in text.replace(repr(data[:12]), "")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_beyond_pillows_limit_is_an_error(codec, kind, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(
        DataError, match=r"too large for Pillow's limit .*raise PIL\.Image\.MAX_IMAGE_PIXELS if"
    ):
        ImageDecoder()(encoded(pixels(20, 30), kind))


def test_grey_areas_are_not_switched_on_behind_the_datasets_back(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for data in (encoded(pixels(5, 7)), encoded(pixels(64, 64, 3), "JPEG")[:-500]):
        with pytest.raises(UsageError, match="LOAD_TRUNCATED_IMAGES is set, which makes grey areas"):
            ImageDecoder()(data)


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(
        MissingExtraError, match=r"needs the package 'pillow'.*pip install 'hopyard\[images\]'"
    ):
        image()
