"""Pascal VOC from its tar archive and from its folder."""

import numpy as np
import pytest
from PIL import Image

from hopyard.errors import DataError
from hopyard.stockroom.importers.testing import ImporterSuite
from hopyard.stockroom.importers.voc import VocSegmentation

from .formats import encoded, tar, unpack, voc


class TestVoc(ImporterSuite):
    @pytest.fixture
    def importer(self, tmp_path):
        with VocSegmentation(tar(tmp_path / "VOCtrainval_11-May-2012.tar", voc()[0])) as importer:
            yield importer


@pytest.mark.parametrize("base", ["VOCdevkit/VOC2012", "TrainVal/VOCdevkit/VOC2011"])
def test_archive_and_folders_hold_images_and_palette_indices(tmp_path, base):
    files, splits, masks = voc(base=base)
    folder = unpack(tmp_path / "folder", files)
    (tmp_path / "kept").mkdir()
    tar(tmp_path / "kept" / "VOCtrainval_11-May-2012.tar", files)
    for source in (tar(tmp_path / "v.tar", files), folder, folder / base, tmp_path / "kept"):
        with VocSegmentation(source) as importer:
            columns = {column.name: column for column in importer.columns()}
            assert list(columns) == ["image", "mask", "val-image", "val-mask"]
            for split, prefix in (("train", ""), ("val", "val-")):
                image, mask = columns[f"{prefix}image"], columns[f"{prefix}mask"]
                ids = splits[split]
                assert image.keys(0, image.count) == mask.keys(0, mask.count) == ids
                for name, found in zip(ids, mask.read(0, len(ids)), strict=True):
                    np.testing.assert_array_equal(found, masks[name])
                first = np.asarray(Image.open(folder / base / "JPEGImages" / f"{ids[0]}.jpg"))
                np.testing.assert_array_equal(image.read(0, 1)[0], first)
            assert importer.identity()["classes"][20] == "tvmonitor"


def test_bytes_are_those_of_the_files(tmp_path):
    files, splits, _ = voc()
    with VocSegmentation(unpack(tmp_path, files), decode=False) as importer:
        mask = importer.columns()[1]
        assert mask.kind == "bytes"
        assert mask.read(0, 1) == [files[f"VOCdevkit/VOC2012/SegmentationClass/{splits['train'][0]}.png"]]


def test_missing_files_are_named(tmp_path):
    files, _, _ = voc()
    del files["VOCdevkit/VOC2012/SegmentationClass/2007_000039.png"]
    with pytest.raises(
        DataError,
        match=r"train.txt names 3 images, but 1 of their files are not there: .*Class/2007_000039.png. Restore",
    ):
        VocSegmentation(tar(tmp_path / "v.tar", files)).columns()


def test_a_mask_of_colours_is_refused(tmp_path):
    files, _, _ = voc()
    files["VOCdevkit/VOC2012/SegmentationClass/2007_000039.png"] = encoded(np.zeros((7, 9, 3), np.uint8))
    with VocSegmentation(unpack(tmp_path, files)) as importer:
        mask = importer.columns()[1]
        with pytest.raises(DataError, match=r"2007_000039.png: it is of mode RGB, but a mask has a palette"):
            mask.read(1, 2)


def test_another_archive_says_what_was_expected(tmp_path):
    other = tar(tmp_path / "other.tar", {"a/b.txt": b"1"})
    for source in (other, tmp_path):
        with pytest.raises(
            DataError,
            match=r"is no Pascal VOC: expected is a folder VOCdevkit/VOC<year> .* there is (a/b.txt|other.tar). Give",
        ):
            VocSegmentation(source).columns()


def test_a_list_without_names_is_refused(tmp_path):
    files, _, _ = voc()
    files["VOCdevkit/VOC2012/ImageSets/Segmentation/val.txt"] = b"\n"
    with pytest.raises(DataError, match=r"val.txt names no images"):
        VocSegmentation(unpack(tmp_path, files)).columns()


def test_of_several_years_the_one_asked_for_is_taken(tmp_path):
    for year in ("2007", "2012"):
        files, _, _ = voc(base=f"VOCdevkit/VOC{year}")
        names = f"VOCdevkit/VOC{year}/ImageSets/Segmentation/train.txt"
        files[names] = b"\n".join(files[names].split()[: 3 if year == "2012" else 2])
        unpack(tmp_path, files)
    for year, count in (("2007", 2), ("2012", 3)):
        with VocSegmentation(tmp_path, year=year) as importer:
            assert importer.columns()[0].count == count
