"""Folders of images, with and without classes."""

import sys

import numpy as np
import pytest
from PIL import Image

from hopyard.errors import CorruptError, DataError, MissingExtraError, UsageError
from hopyard.stockroom.importers.folders import ImageFolder, Images
from hopyard.stockroom.importers.run import read_columns
from hopyard.stockroom.importers.testing import ImporterSuite, gathered

from .formats import encoded, palette_mask, tar, unpack


def pixels(seed, h=4, w=5, c=3):
    return np.random.default_rng(seed).integers(0, 256, (h, w, c), np.uint8)


def folder_files():
    return {
        "dog/b.png": encoded(pixels(1)),
        "dog/a.PNG": encoded(pixels(2, 3, 7)),
        "cat/x/deep.png": encoded(pixels(3)),
        "cat/z.png": encoded(pixels(4)),
        "cat/notes.txt": b"no image",
        "Zebra/1.png": encoded(pixels(5)),
    }


class TestImageFolder(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        with ImageFolder(unpack(tmp_path / "images", folder_files())) as importer:
            yield importer


class TestImages(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        with Images(tar(tmp_path / "images.tar.gz", folder_files(), "w:gz"), decode=False) as importer:
            yield importer


def test_classes_and_images_come_in_the_order_of_torchvision(tmp_path):
    unpack(tmp_path / "folder", folder_files())
    for source in (tmp_path / "folder", tar(tmp_path / "folder.tar", folder_files())):
        with ImageFolder(source) as importer:
            image, label = importer.columns()
            assert importer.identity()["classes"] == ["Zebra", "cat", "dog"]
            assert label.read(0, 5).tolist() == [0, 1, 1, 2, 2]
            expected = [pixels(5), pixels(4), pixels(3), pixels(2, 3, 7), pixels(1)]
            assert (image.dtype, image.shape) == ("uint8", None)
            for found, array in zip(image.read(0, 5), expected, strict=True):
                np.testing.assert_array_equal(found, array)


def test_folders_of_splits_become_columns(tmp_path):
    files = {f"{split}/{name}": data for split in ("val", "train") for name, data in folder_files().items()}
    with ImageFolder(unpack(tmp_path, files)) as importer:
        assert [c.name for c in importer.columns()] == ["image", "label", "val-image", "val-label"]
        assert importer.identity()["classes"] == ["Zebra", "cat", "dog"]


def test_classes_that_are_called_as_splits_stay_classes(tmp_path):
    files = {"train/a.png": encoded(pixels(1)), "test/b.png": encoded(pixels(2))}
    with ImageFolder(unpack(tmp_path, files)) as importer:
        assert importer.identity()["classes"] == ["test", "train"]


def test_bytes_are_those_of_the_files(tmp_path):
    files = folder_files()
    with Images(unpack(tmp_path, files), decode=False) as importer:
        (column,) = importer.columns()
        names = column.keys(0, 5)
        assert names == ["Zebra/1.png", "cat/z.png", "cat/x/deep.png", "dog/a.PNG", "dog/b.png"]
        assert column.read(0, 5) == [files[name] for name in names]


def test_every_mode_has_its_rule(tmp_path):
    grey, colour, alpha = pixels(1, c=1)[..., 0], pixels(2), pixels(3, c=4)
    indices = np.arange(20, dtype=np.uint8).reshape(4, 5)
    two = np.zeros((4, 5), np.uint8)
    two[0] = 255
    unpack(
        tmp_path / "c",
        {
            "0-grey.png": encoded(grey),
            "1-colour.png": encoded(colour),
            "2-alpha.png": encoded(alpha),
            "3-palette.png": encoded(palette_mask(indices)),
            "4-two.png": encoded(Image.fromarray(two).convert("1")),
            "5-cmyk.jpg": encoded(Image.fromarray(colour).convert("CMYK"), "JPEG"),
            "6-grey-alpha.png": encoded(Image.merge("LA", [Image.fromarray(grey)] * 2)),
        },
    )
    colours = np.stack([indices, 255 - indices, np.full_like(indices, 7)], axis=2)
    with Images(tmp_path) as importer:
        kept = importer.columns()[0].read(0, 7)
        assert [each.shape for each in kept] == [(4, 5, c) for c in (1, 3, 4, 3, 1, 3, 2)]
        for found, array in zip(
            kept, [grey[..., None], colour, alpha, colours, two[..., None]], strict=False
        ):
            np.testing.assert_array_equal(found, array)
    with ImageFolder(tmp_path) as importer:
        for number, found in enumerate(importer.columns()[0].read(0, 7)):
            expected = np.asarray(Image.open(sorted((tmp_path / "c").iterdir())[number]).convert("RGB"))
            np.testing.assert_array_equal(found, expected)


def test_16_bits_are_refused_but_kept_as_bytes(tmp_path):
    data = encoded(np.full((2, 2), 1000, np.uint16))
    unpack(tmp_path, {"c/a.png": encoded(pixels(1)), "c/deep.png": data})
    for importer in (Images(tmp_path), ImageFolder(tmp_path)):
        with pytest.raises(
            DataError,
            match=r"Sample 1 of column 'image': .*c/deep.png: it has pixels of uint16, .* decode=false",
        ):
            gathered(read_columns(importer.columns()))
    assert Images(tmp_path, decode=False).columns()[0].read(1, 2) == [data]


@pytest.mark.parametrize("processes", [0, 1])
def test_a_broken_image_is_named_with_its_number(tmp_path, processes):
    unpack(tmp_path, {**folder_files(), "cat/y.png": encoded(pixels(1))[:-40]})
    with pytest.raises(
        CorruptError,
        match=r"Sample 1 of column 'image': .*cat/y.png: its .* cannot be decoded as an image \(.*\)\. Restore or "
        r"delete this file, or keep the bytes of all files as they are: --option decode=false\.",
    ):
        gathered(read_columns(ImageFolder(tmp_path).columns(), processes=processes))


def test_classes_without_images_are_named(tmp_path):
    unpack(tmp_path, folder_files())
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"there are no images in the folder empty. Put images there, or remove"
    ):
        ImageFolder(tmp_path).columns()


def test_a_split_with_a_class_of_its_own_is_refused(tmp_path):
    unpack(tmp_path, {"train/a/1.png": encoded(pixels(1)), "val/b/1.png": encoded(pixels(1))})
    with pytest.raises(
        DataError, match=r"val/b is a class that the first split does not have \(a\), so it has no number"
    ):
        ImageFolder(tmp_path).columns()


def test_folders_without_images_or_classes_are_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"There are no images in .*: no file that ends in .jpg, .* Check the path."
    ):
        Images(tmp_path).columns()
    unpack(tmp_path, {"a.png": encoded(pixels(1))})
    with pytest.raises(
        DataError, match=r"has no folders of classes: expected is <class>/<image>, but there is a.png."
    ):
        ImageFolder(tmp_path).columns()


def test_without_pillow_the_extra_is_named_but_bytes_are_read(tmp_path, monkeypatch):
    unpack(tmp_path, folder_files())
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(
        MissingExtraError, match=r"Decoding images needs the package 'pillow'.*hopyard\[images\]"
    ):
        ImageFolder(tmp_path).columns()
    assert len(ImageFolder(tmp_path, decode=False).columns()[0].read(0, 5)) == 5


def test_identity_changes_with_the_files_and_the_options(tmp_path):
    unpack(tmp_path, folder_files())
    before = Images(tmp_path).identity()
    assert Images(tmp_path, mode="RGB").identity() != before
    (tmp_path / "dog" / "b.png").write_bytes(b"longer than before" * 100)
    assert Images(tmp_path).identity() != before


def test_options_are_checked():
    with pytest.raises(
        UsageError, match=r"Option mode='L' must be one of 'RGB', 'keep'; it is 'RGB' by default."
    ):
        ImageFolder(".", mode="L")
    with pytest.raises(
        UsageError,
        match=r"importer 'torchvision.imagefolder' has no option 'decod'; did you mean 'decode'\? The options are",
    ):
        ImageFolder(".", decod=True)


def test_a_link_to_a_folder_above_it_is_no_end_of_images(tmp_path):
    root = unpack(tmp_path / "pictures", folder_files())
    elsewhere = unpack(tmp_path / "elsewhere", {"1.png": encoded(pixels(1))})
    (root / "cat" / "more").symlink_to(elsewhere)
    with Images(root) as importer:
        assert len(importer.columns()[0].read(0, 6)) == 6
    (root / "dog" / "loop").symlink_to(root)
    with (
        Images(root) as importer,
        pytest.raises(DataError, match=r"dog/loop is a link to a folder that it lies in, .* Delete the link"),
    ):
        importer.columns()
