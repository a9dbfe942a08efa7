"""What must be installed for models of Hugging Face, and in which versions."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hopyard.training.transformers.requirements import OLDEST, unmet

ROOT = Path(__file__).resolve().parents[3]


def installed(folder: Path, name: str, version: str) -> None:
    """What pip leaves of a package, for those who ask for its version."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["0.20.0", "0.21.dev0", "1.0", "0.100.1"])
def test_newer_versions_do(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    installed(tmp_path, "peft", version)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert unmet() is None


@pytest.mark.parametrize(("package", "version"), [("peft", "0.19.1"), ("transformers", "4.57.3")])
def test_older_versions_are_named_with_what_is_needed(
    package: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    installed(tmp_path, package, version)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(unmet()) == (
        f"{package} {version} is installed, but hopyard.transformers needs {OLDEST[package]} or newer. "
        "Install it with: pip install -U 'hopyard[transformers]'"
    )


def test_the_oldest_versions_are_those_of_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extra = {each.name: str(each.specifier) for each in map(Requirement, extras["transformers"])}
    assert {name: extra[name] for name in OLDEST} == {name: f">={oldest}" for name, oldest in OLDEST.items()}


def test_without_transformers_the_face_says_what_to_install() -> None:
    code = """
import sys
sys.modules["transformers"] = None
try:
    import hopyard.transformers
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "MissingExtraError hopyard.transformers needs the package 'transformers', which is not installed. "
        "Install it with: pip install 'hopyard[transformers]'"
    )
