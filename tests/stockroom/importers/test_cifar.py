"""CIFAR-10 and CIFAR-100 from archives written as Python 2 wrote them."""

import os
import pickle

import numpy as np
import pytest

from hopyard.errors import CorruptError, DataError, NotFoundError
from hopyard.stockroom.importers.cifar import Cifar10, Cifar100, read_batch
from hopyard.stockroom.importers.run import read_columns
from hopyard.stockroom.importers.testing import ImporterSuite, gathered

from .formats import cifar10, cifar100, py2_pickle, tar, unpack


@pytest.fixture
def archive(tmp_path):
    return tar(tmp_path / "cifar-10-python.tar.gz", cifar10()[0], "w:gz")


class TestCifar10(ImporterSuite):
    @pytest.fixture
    def importer(self, archive):
        with Cifar10(archive) as importer:
            yield importer


def read(importer):
    return {column.name: column.read(0, column.count) for column in importer.columns()}


def check(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == (np.uint8 if name.endswith("image") else np.int64)


def test_the_archive_its_tar_its_folder_and_the_folder_around_hold_the_same(tmp_path, archive):
    files, expected = cifar10()
    plain = tar(tmp_path / "plain.tar", files)
    around = unpack(tmp_path / "around", files)
    (tmp_path / "kept").mkdir()
    archive_in_folder = archive.rename(tmp_path / "kept" / archive.name).parent
    for source in (plain, around, around / "cifar-10-batches-py", archive_in_folder):
        with Cifar10(source) as importer:
            check(read(importer), expected)
            assert importer.identity()["classes"][:2] == ["airplane", "automobile"]
            assert len(importer.identity()["files"]) == (
                7 if source.is_dir() and source != archive_in_folder else 1
            )


def test_cifar100_has_coarse_labels_too(tmp_path):
    files, expected = cifar100()
    with Cifar100(tar(tmp_path / "cifar-100-python.tar.gz", files, "w:gz")) as importer:
        check(read(importer), expected)
        identity = importer.identity()
    assert (len(identity["classes"]), identity["coarse-classes"][0]) == (100, "coarse0")


def test_what_was_unpacked_is_gone_after_close(archive):
    with Cifar10(archive) as importer:
        scratch = importer.scratch
        importer.columns()
        assert list(scratch.iterdir())
    assert not scratch.exists()


def test_another_archive_says_what_was_expected_and_what_is_there(tmp_path):
    other = tar(tmp_path / "cifar-100-python.tar.gz", cifar100()[0], "w:gz")
    expected = (
        r"what the importer 'torchvision.cifar10' reads: expected are data_batch_1, .*batches.meta \(the original is "
        r"cifar-10-python.tar.gz\), but there is cifar-100-python/train, cifar-100-python/test, cifar-100-python/meta. "
        "Give the original archive or its folder."
    )
    with pytest.raises(DataError, match=expected):
        Cifar10(other).columns()
    with pytest.raises(DataError, match=r"but there is cifar-100-python.tar.gz"):
        Cifar10(tmp_path).columns()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"but there is nothing"):
        Cifar10(tmp_path / "empty").columns()


def test_a_zip_and_a_text_are_no_archives(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04" + bytes(2000))
    (tmp_path / "a.txt").write_bytes(b"hello")
    with pytest.raises(
        DataError, match=r"a.zip is no tar archive \(it is a zip file, which has to be unpacked first\)"
    ):
        Cifar10(tmp_path / "a.zip").columns()
    with pytest.raises(DataError, match=r"a.txt is no tar archive \(it begins with b'hello'\). Give a .tar"):
        Cifar10(tmp_path / "a.txt").columns()


@pytest.mark.parametrize("mode", ["w:gz", "w"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_truncated_archive_is_named(tmp_path, mode, share):
    path = tar(tmp_path / "cifar.tar", cifar10()[0], mode)
    os.truncate(path, int(path.stat().st_size * share) // 512 * 512 + 100)
    with pytest.raises(
        CorruptError, match=r"cifar.tar \([\d,]+ bytes\) is truncated or damaged: .*Download or copy it"
    ):
        Cifar10(path).columns()


def test_a_missing_source_is_named(tmp_path):
    with pytest.raises(
        NotFoundError, match=r"There is no file or folder .*nowhere. Check the path given by --from."
    ):
        Cifar10(tmp_path / "nowhere")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("value", [Evil(), {"data": Evil()}, np.array([Evil()], object)])
def test_a_pickle_that_would_run_code_is_refused(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CorruptError, match=r"batch is not a batch of CIFAR: it asks for posix.mkdir, which no array needs"
    ):
        read_batch(pickle.dumps(value), "batch")
    assert not list(tmp_path.iterdir())


def test_damaged_batches_name_file_and_rule(tmp_path):
    for number, (batch, text) in enumerate(
        [
            (b"nonsense", "data_batch_3 is not a batch of CIFAR: "),
            (py2_pickle([1, 2]), "data_batch_3 is not a batch of CIFAR: it holds a list, not a dict."),
            (
                py2_pickle({"labels": [1]}),
                r"data_batch_3 must hold 'data' of uint8 \(n, 3072\), but has \['labels'\]",
            ),
            (py2_pickle({"data": np.zeros((1, 5), np.uint8)}), r"but has uint8 \(1, 5\). Give the original"),
            (
                py2_pickle({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}),
                "must hold 'labels' with a number for each of its 2 images, but has 1.",
            ),
        ]
    ):
        files = cifar10()[0] | {"cifar-10-batches-py/data_batch_3": batch}
        with pytest.raises((CorruptError, DataError), match=text):
            Cifar10(unpack(tmp_path / str(number), files)).columns()


def test_a_file_that_vanishes_is_named_with_the_sample(tmp_path):
    source = unpack(tmp_path / "cifar", cifar10()[0])
    with Cifar10(source) as importer:
        columns = importer.columns()
        read_columns(columns)
        (source / "cifar-10-batches-py" / "data_batch_1").unlink()
        with pytest.raises(
            NotFoundError, match=r"Sample 0 of column 'image': .*data_batch_1 is not there any more"
        ):
            gathered(read_columns(columns))
