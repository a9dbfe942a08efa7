"""The documentation is true: its code runs, its commands exist, all are in it. Rules: tools/pages.py."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import forked

import pages
import weights
from hopyard import StockRoom, errors
from hopyard.experiment.determined import ADVICE
from hopyard.keras import KerasEstimator
from hopyard.lightning import LightningEstimator
from hopyard.stockroom.experiments import RunView, StockRun
from hopyard.torch import TorchEstimator
from hopyard.tune.search import Common

DOCS = pages.ROOT / "docs"


def test_commands_and_links_exist_and_every_command_is_documented() -> None:
    assert pages.problems() == []


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: str(path.relative_to(pages.ROOT)))
def test_code_runs(
    path: Path, tmp_path: Path, needs: Callable[[object, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pages.read_page(path)
    if "pyspark" in pages.script(page):
        needs(shutil.which("java"), "Java 17 or newer, for Spark")
    for name in forked.MORE:
        if f"import {name}" in pages.script(page):
            monkeypatch.setenv(forked.WITH, name)
    folder = tmp_path / "empty"
    folder.mkdir()
    if "build/weights" in pages.script(page):
        needs(weights.available(weights.MINILM), f"the weights of {weights.MINILM} (make weights)")
        (folder / "build").mkdir()
        (folder / "build" / "weights").symlink_to(weights.FOLDER)
    done = pages.run_page(page, folder)
    assert done.returncode == 0, done.stdout


def test_every_call_of_a_stockroom_and_its_runs_is_in_the_table_of_calls() -> None:
    table = (DOCS / "stockroom.md").read_text(encoding="utf-8").partition("## Calls")[2]
    named = set(re.findall(r"\w+", table))
    for kind, inner in (
        (StockRoom, {"guard", "local", "place", "view"}),
        (StockRun, set()),
        (RunView, {"reached"}),
    ):
        public = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
        assert public - inner - named == set(), kind


def test_every_error_says_what_to_do() -> None:
    classes = [
        name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")
    ]
    text = (DOCS / "errors.md").read_text()
    assert [name for name in classes if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("page", "estimator"),
    [("estimators", TorchEstimator), ("keras", KerasEstimator), ("lightning", LightningEstimator)],
)
def test_every_argument_of_an_estimator_is_explained(page: str, estimator: type) -> None:
    text = (DOCS / f"{page}.md").read_text()
    arguments = inspect.signature(estimator).parameters
    assert [name for name in arguments if f"{name}=" not in text and f"`{name}" not in text] == []


def test_every_argument_of_the_trainer_is_on_the_page_of_fine_tuning() -> None:
    arguments = pytest.importorskip("transformers").TrainingArguments
    table = (DOCS / "fine-tuning.md").read_text().partition("## Arguments of TrainingArguments")[2]
    known = [field.name for field in dataclasses.fields(arguments)]
    assert sorted(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]+) \|", table, re.M)))) == sorted(
        known
    )


def test_every_argument_of_a_search_is_explained() -> None:
    text = "".join(path.read_text() for path in DOCS.glob("*.md"))
    assert [
        name for name in Common.__annotations__ if f"{name}=" not in text and f"`{name}`" not in text
    ] == []


def test_every_field_of_determined_without_counterpart_is_on_its_page() -> None:
    text = (DOCS / "determined.md").read_text()
    sections = {field.split(".")[0] for field in ADVICE if "." in field}
    fields = {field.rpartition(".")[2] for field in ADVICE} - sections
    assert [field for field in sorted(fields) if not re.search(rf"\b{field}\b", text)] == []
