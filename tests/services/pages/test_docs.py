"""The documentation is true: its code runs, its commands exist, all are in it. Rules: tools/pages.py."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

import pages
from hopyard import StockRoom, errors
from hopyard.keras import KerasEstimator
from hopyard.lightning import LightningEstimator
from hopyard.stockroom.experiments import Run, RunView
from hopyard.torch import TorchEstimator
from hopyard.tune.search import Common

DOCS = pages.ROOT / "docs"

# Imports PyTorch, and what its first optimizer imports, once. Then each page is a process that begins there. Were it
# not frozen, each would look through all of PyTorch for garbage, and copy it by that.
PROCESSES = """
import gc, json, os, sys, types, warnings
import numpy, torch, torch._dynamo

gc.freeze()
for line in sys.stdin:
    file, output = json.loads(line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the threads of NumPy, which have nothing to do
        child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

folder, name = os.path.split(file)
os.chdir(folder)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
os.dup2(1, 2)
sys.argv, sys.path[0] = [name], folder
sys.modules["__main__"] = page = types.ModuleType("__main__")
page.__file__, page.__builtins__ = file, __builtins__
with open(file) as source:
    code = compile(source.read(), file, "exec")
exec(code, vars(page))
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[IO[str], IO[str]]]:
    command = [sys.executable, "-W", "error:::__main__", "-c", PROCESSES]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin, process.stdout
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def run_with_torch(
    processes: tuple[IO[str], IO[str]], tmp_path: Path
) -> Callable[[pages.Page, Path], tuple[int, str]]:
    """As ``pages.run_page``, without the seconds in which PyTorch is imported: the status, and what it said."""

    def run(page: pages.Page, folder: Path) -> tuple[int, str]:
        file, output = folder / f"{page.path.stem}_page.py", tmp_path / "output"
        file.write_text(pages.script(page))
        requests, answers = processes
        print(json.dumps([str(file), str(output)]), file=requests, flush=True)
        return int(answers.readline()), output.read_text()

    return run


def test_commands_and_links_exist_and_every_command_is_documented() -> None:
    assert pages.problems() == []


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: str(path.relative_to(pages.ROOT)))
def test_code_runs(
    path: Path,
    tmp_path: Path,
    needs: Callable[[object, str], None],
    run_with_torch: Callable[[pages.Page, Path], tuple[int, str]],
) -> None:
    page = pages.read_page(path)
    if "pyspark" in pages.script(page):
        needs(shutil.which("java"), "Java 17 or newer, for Spark")
    folder = tmp_path / "empty"
    folder.mkdir()
    if "import torch" in pages.script(page):
        status, said = run_with_torch(page, folder)
    else:
        done = pages.run_page(page, folder)
        status, said = done.returncode, done.stdout
    assert status == 0, said


def test_every_call_of_a_stockroom_and_its_runs_is_in_the_table_of_calls() -> None:
    table = (DOCS / "stockroom.md").read_text(encoding="utf-8").partition("## Calls")[2]
    named = set(re.findall(r"\w+", table))
    for kind, inner in (
        (StockRoom, {"guard", "local", "place", "view"}),
        (Run, set()),
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


def test_every_argument_of_a_search_is_explained() -> None:
    text = "".join(path.read_text() for path in DOCS.glob("*.md"))
    assert [
        name for name in Common.__annotations__ if f"{name}=" not in text and f"`{name}`" not in text
    ] == []
