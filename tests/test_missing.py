"""Names that are imported when they are first asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from hopyard.errors import MissingExtraError, UsageError
from hopyard.missing import imported_later

PACKAGES = ["", ".backend", ".cli", ".data", ".experiment", ".stockroom", ".storage", ".tune"]


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_list_their_names_and_say_which_they_lack(name: str) -> None:
    package = import_module(f"hopyard{name}")
    names = getattr(package, "__all__", ["app"])
    assert set(names) <= set(dir(package))
    with pytest.raises(AttributeError, match=rf"module 'hopyard{name}' has no attribute 'nothing'"):
        getattr(package, "nothing")  # noqa: B009 - type checkers know the names


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package whose names are in modules of which one needs what nobody has, and one has a mistake."""
    folder = tmp_path / "later"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text("found = object()\n")
    (folder / "needy.py").write_text("import no_such_package\nother = 1\n")
    (folder / "wrong.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    return import_module("later")


def test_names_come_from_their_modules_and_what_those_need_is_said(package: ModuleType) -> None:
    places = {"found": ".part", "other": ".needy", "wrong": "later.wrong"}
    get, names = imported_later("later", places, [*places, "here"], {"no_such_package": "some"})
    assert "later.part" not in sys.modules
    assert get("found") is import_module("later.part").found
    assert {"found", "here", "__name__"} <= set(names())
    with pytest.raises(MissingExtraError) as missing:
        get("other")
    assert str(missing.value) == (
        "later.other needs the package 'no_such_package', which is not installed. Install it with: pip install "
        "'hopyard[some]'"
    )
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        get("wrong")
    with pytest.raises(
        UsageError, match=r"TorchTrial is in hopyard.experiment: from hopyard.experiment import"
    ):
        get("TorchTrial")()
