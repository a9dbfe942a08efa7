"""Cases of tests as data files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.experiment.yaml_text import read_yaml


def cases(file: str) -> pytest.MarkDecorator:
    """Parametrization of a test's argument ``case`` by the cases in a file below ``cases``, named by their ``name``."""
    path = Path(__file__).with_name("cases") / file
    found: list[dict[str, Any]] = read_yaml(path.read_bytes(), file)
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in found])


def pairs(problems: list[list[str]]) -> list[tuple[str, str]]:
    """Problems as a case file has them, as the package gives them."""
    return [(path, text) for path, text in problems]
