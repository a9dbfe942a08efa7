"""Rules that hold for the package as a whole."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import hopyard
import pages
from hopyard import data, errors
from hopyard.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "hopyard"

# What a user pays for only when using it: frameworks, frames and pictures.
HEAVY = {
    "PIL", "accelerate", "jax", "keras", "lightning", "matplotlib", "pandas", "peft", "polars", "pyspark", "ray",
    "scipy", "sklearn", "tensorboard", "tensorflow", "torch", "torchmetrics", "transformers",
}  # fmt: skip

MAX_LINES_OF_FILE = 800  # a smell, no target: an idea is kept whole
MAX_LINES_OF_FUNCTION = 60


def modules(*folders: Path) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


@cache
def nodes(file: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree; it is parsed once for all tests."""
    return list(ast.walk(ast.parse(file.read_text())))


def test_version_is_the_one_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert hopyard.__version__ == project["version"]


def loaded_by(statement: str) -> set[str]:
    """Names of the modules that a new process has after ``statement``."""
    code = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(loaded.stdout.split())


@pytest.mark.parametrize("name", ["hopyard", "hopyard.data", "hopyard.tune"])
def test_import_loads_no_framework(name: str) -> None:
    assert {module.partition(".")[0] for module in loaded_by(f"import {name}")} & HEAVY == set()


def test_a_stockroom_loads_only_what_it_uses_of_data() -> None:
    assert loaded_by("import hopyard.data") & {"numpy", "pyarrow", "rich"} == set()
    loaded = loaded_by("from hopyard import StockRoom")
    assert {"hopyard.data.dataset", "hopyard.data.ragged"} < loaded
    rooms = [
        "combining.mixing",
        "opening.opening",
        "petastorm",
        "preparing.prepare",
        "reports",
        "sources.sources",
    ]
    assert {"rich", "pyarrow.csv", *(f"hopyard.data.{room}" for room in rooms)} & loaded == set()


def test_a_stockroom_loads_no_importers_no_care_and_nothing_that_takes_long() -> None:
    loaded = loaded_by("from hopyard import StockRoom")
    slow = {"http.client", "importlib.metadata", "multiprocessing", "pyarrow.compute", "urllib.request"}
    rooms = {"hopyard.stockroom.importers", "hopyard.stockroom.maintenance.garbage", "hopyard.storage.hdfs"}
    assert (slow | rooms) & loaded == set()


def test_names_of_data_are_there_when_asked_for() -> None:
    everything: dict[str, object] = {}
    exec("from hopyard.data import *", everything)
    assert set(data.__all__) == set(data._ELSEWHERE) == everything.keys() - {"__builtins__"}
    assert set(data.__all__) <= set(dir(data))
    with pytest.raises(AttributeError, match=r"module 'hopyard\.data' has no attribute 'Datasets'"):
        getattr(data, "Datasets")  # noqa: B009 - type checkers know the names


@pytest.mark.parametrize(("module", "names"), pages.public_names().items())
def test_names_that_a_public_module_defines_are_documented_or_have_an_underscore(
    module: str, names: list[str]
) -> None:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = nodes(Path(spec.origin))[0]
    assert isinstance(tree, ast.Module)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    assert [name for name in sorted(defined - set(names)) if not name.startswith("_")] == []


def test_every_module_says_what_it_is() -> None:
    begins = re.compile(r'(#.*\n|\s)*r?"""\s*[^\s"]')  # parsing them all takes seconds
    silent = [str(file.relative_to(SRC)) for file in modules(SRC) if not begins.match(file.read_text())]
    assert silent == []


def test_files_and_functions_stay_small() -> None:
    def body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        """Lines of a function without its docstring."""
        first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
        return (node.end_lineno or 0) - first.lineno + 1

    too_long = []
    for file in modules(SRC):
        text = file.read_text()
        if len(text.splitlines()) > MAX_LINES_OF_FILE:
            too_long.append(f"{file.relative_to(SRC)}: {len(text.splitlines())} lines")
        for node in nodes(file):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and body(node) > MAX_LINES_OF_FUNCTION
            ):
                too_long.append(f"{file.relative_to(SRC)}: {node.name} has {body(node)} lines")
    assert too_long == []


def sleeps(text: str) -> Iterator[int]:
    """Lines that call or import ``time.sleep``."""
    for node in ast.walk(ast.parse(text)) if "sleep" in text else ():
        if isinstance(node, ast.Attribute) and node.attr == "sleep" and ast.unparse(node.value) == "time":
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (node.lineno for alias in node.names if alias.name == "sleep")


def test_nothing_waits_by_sleeping() -> None:
    files = modules(SRC, ROOT / "tests", ROOT / "tools", ROOT / "benchmarks", ROOT / "examples")
    found = [f"{file}:{line}" for file in files for line in sleeps(file.read_text())]
    assert found == []


@pytest.mark.parametrize("code", ["import time\ntime.sleep(1)", "from time import monotonic, sleep"])
def test_a_sleep_is_found(code: str) -> None:
    assert list(sleeps(code))


def drawn_tree(text: str) -> dict[str, str | None]:
    """Class -> parent, as drawn with box characters, four columns a level."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in text.splitlines():
        drawn = re.match(r"(?P<lead>[ │├└─]*)(?P<name>[A-Z]\w+Error)\b", line.removeprefix("    "))
        if drawn is None or not line.startswith("    "):
            continue
        path[len(drawn["lead"]) // 4 :] = [drawn["name"]]
        parents[drawn["name"]] = path[-2] if len(path) > 1 else None
    return parents


def test_the_drawn_error_tree_is_the_real_one() -> None:
    def parent(cls: type) -> str | None:
        return next((base.__name__ for base in cls.__bases__ if issubclass(base, errors.HopyardError)), None)

    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    real = {cls.__name__: parent(cls) for cls in classes if issubclass(cls, errors.HopyardError)}
    assert errors.__doc__ is not None
    assert drawn_tree(errors.__doc__) == real


def test_every_public_exception_is_in_the_tree() -> None:
    """Conformance suites raise what a user's own code might raise, so they may define exceptions."""
    values = [*vars(builtins).values(), *vars(errors).values()]
    exceptions = {
        value.__name__ for value in values if isinstance(value, type) and issubclass(value, Exception)
    }
    files = [file for file in modules(SRC) if file.name not in ("errors.py", "testing.py")]
    public = [
        (node, file)
        for file in files
        for node in nodes(file)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    found = [
        f"{file.relative_to(SRC)}:{node.lineno}: {node.name}"
        for node, file in public
        if exceptions & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    ]
    assert found == []


def test_change_notes_are_named_by_kind() -> None:
    kinds = {"added", "changed", "fixed", "removed"}
    notes = [file for file in (ROOT / "changes").glob("*") if file.name != "README.md"]
    assert [
        file.name for file in notes if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", file.name)
    ] == []


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_service_skips_at_home_and_fails_in_ci(
    needs: Callable[[object, str], None],
    monkeypatch: pytest.MonkeyPatch,
    ci: str,
    outcome: type[BaseException],
) -> None:
    monkeypatch.setenv("CI", ci)
    needs(True, "Python")
    with pytest.raises(outcome, match="this test needs a bucket, which is not available here"):
        needs(None, "a bucket")


@pytest.mark.parametrize(
    ("module", "name", "text"),
    [
        ("hopyard.keras", "KerasTrial", "What hopyard.keras has: KerasEstimator, SparkEstimator."),
        ("hopyard.torch", "TorchTrial", "What hopyard.torch has: TorchEstimator."),
    ],
)
def test_trial_classes_looked_for_elsewhere_are_imported_and_say_where_they_are_when_used(
    module: str, name: str, text: str
) -> None:
    scope: dict[str, Any] = {}
    exec(f"from {module} import {name}", scope)  # line one of a script, which may not use it
    expected = re.escape(f"{name} is in hopyard.experiment: from hopyard.experiment import {name}. {text}")
    with pytest.raises(UsageError, match=expected):
        scope[name]("prefix", train_path="elsewhere")
    with pytest.raises(UsageError, match=expected):
        type("Own", (scope[name],), {})


def test_names_of_cerebro_are_imported_and_say_what_to_use_when_they_are_made() -> None:
    from hopyard.tune import HILGridSearch, TPESearch  # type: ignore[attr-defined]

    with pytest.raises(UsageError, match=r"Cerebro has TPESearch; it is called HyperOpt here"):
        TPESearch(num_models=3)
    with pytest.raises(UsageError, match=r"write GridSearch, and steer the run with `hopyard run pause`"):
        HILGridSearch(exp_id=1)
    with pytest.raises(ImportError, match="cannot import name 'TPESearch'"):
        exec("from hopyard.data import TPESearch")


@pytest.mark.parametrize("module", ["hopyard", "hopyard.spark", "hopyard.storage"])
def test_other_names_are_pythons_error(module: str) -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec(f"from {module} import Nonsense")
