"""Importers by name, their options, and their help."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.importers import registry
from hopyard.stockroom.importers.base import Importer, Option
from hopyard.stockroom.importers.folders import ImageFolder
from hopyard.stockroom.importers.registry import find_importer, importer_names, open_importer

NAMES = {
    "torchvision.cifar10", "torchvision.cifar100", "torchvision.mnist", "torchvision.fashion_mnist",
    "torchvision.imagefolder", "torchvision.voc_segmentation", "numpy", "parquet", "csv", "images", "huggingface",
}  # fmt: skip


def test_every_importer_is_found_and_has_a_help_text():
    assert set(importer_names()) >= NAMES
    for name in NAMES:
        importer = find_importer(name)
        assert issubclass(importer, Importer)
        text = importer.help()
        assert len(text.splitlines()) >= 3
        assert all(f"{option.name}={option.default}: " in text for option in importer.options())


def test_an_unknown_name_says_the_nearest():
    with pytest.raises(
        UsageError,
        match=r"There is no importer 'torchvision.cifar11'; did you mean 'torchvision.cifar10'\? The "
        r"importers are: csv, ",
    ):
        find_importer("torchvision.cifar11")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            "nowhere.at_all:X",
            r"The importer 'x' is nowhere.at_all:X, which cannot be imported \(No module named 'nowhere'\)",
        ),
        ("math:nothing", r"which cannot be imported \(module 'math' has no attribute 'nothing'\)"),
        (
            "math:pi",
            r"is math:pi, which is no subclass of hopyard.stockroom.importers.base.Importer. Mend the package",
        ),
    ],
)
def test_a_broken_package_is_named(monkeypatch, value, text):
    entry = EntryPoint("x", value, registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group, name: [entry])
    with pytest.raises(UsageError, match=text):
        find_importer("x")


def test_options_come_as_texts(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    with open_importer("torchvision.imagefolder", tmp_path, {"decode": "No", "mode": "keep"}) as importer:
        assert isinstance(importer, ImageFolder)
        assert importer.settings == {"decode": False, "mode": "keep"}
    with open_importer("numpy", tmp_path) as importer:
        assert [column.name for column in importer.columns()] == ["a"]
    with pytest.raises(UsageError, match=r"the importer 'numpy' has no option 'decode'. It has none."):
        open_importer("numpy", tmp_path, {"decode": "no"})
    with pytest.raises(UsageError, match=r"Option decode='maybe' must be bool; it is True by default."):
        open_importer("images", tmp_path, {"decode": "maybe"})
    with pytest.raises(NotFoundError, match=r"There is no file or folder"):
        open_importer("images", tmp_path / "x")


def test_numbers_are_parsed_and_checked():
    option = Option("n", 3, "a number", (1, 3, 5))
    assert option.parse("5") == 5
    for bad in ("4", "five"):
        with pytest.raises(
            UsageError, match=rf"Option n='?{bad}'? must be one of 1, 3, 5; it is 3 by default."
        ):
            option.parse(bad)
    with pytest.raises(UsageError, match=r"Option n=True must be"):
        option.check(True)


def test_options_come_as_values_too(tmp_path):
    assert open_importer("images", tmp_path, {"decode": False}).settings["decode"] is False
    with pytest.raises(UsageError, match=r"Option decode=3 must be bool; it is True by default"):
        open_importer("images", tmp_path, {"decode": 3})
    with pytest.raises(UsageError, match=r"Option mode=None must be one of 'RGB', 'keep'"):
        open_importer("images", tmp_path, {"mode": None})
