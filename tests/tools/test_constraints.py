"""constraints.txt is read strictly, and what is installed is compared with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import constraints


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`top` needs `a`; its extra `x` needs `b`, which pins `gpu`, which needs `a`; `z` is nobody's."""

    def install(name: str, version: str, *requires: str, extras: tuple[str, ...] = ()) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    install("top_", "1.0", "a_>=1", 'b_; extra == "x"', 'absent_; extra == "y"', extras=("x", "y"))
    install("a_", "1.2")
    install("b_", "2.0+cpu", "gpu_==3.0.*")
    install("gpu_", "3.0.1", "a_")
    install("z_", "9.0")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_is_pinned_as_installed_passes(installed: Path) -> None:
    assert constraints.problems({"a-": "1.2", "b-": "2.0"}, root="top_") == []


def test_a_missing_and_a_different_version_are_named(installed: Path) -> None:
    assert constraints.problems({"b-": "2.1"}, root="top_") == [
        "a- 1.2 is installed but has no line in constraints.txt",
        "b- 2.0+cpu is installed but constraints.txt says 2.1",
    ]


def test_a_pin_counts_even_where_a_requirer_pins_too(installed: Path) -> None:
    found = constraints.problems({"a-": "1.2", "b-": "2.0", "gpu-": "3.0.2"}, root="top_")
    assert found == ["gpu- 3.0.1 is installed but constraints.txt says 3.0.2"]


def test_the_committed_file_is_exact_and_holds_what_it_must() -> None:
    pins = constraints.read_pins(constraints.FILE.read_text())
    assert pins.items() >= constraints.HELD.items()
    assert not {"torchvision", "torchaudio", "hopyard"} & pins.keys()


@pytest.mark.parametrize("line", ["numpy>=2", "numpy", "numpy==2.*", "numpy==2.0; python_version>'3'"])
def test_a_line_that_is_not_exact_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="each line must be name==version"):
        constraints.read_pins(f"# words\n\npandas==3.0\n{line}\n")
