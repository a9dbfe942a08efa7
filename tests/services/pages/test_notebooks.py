"""The notebooks of examples/ run in a kernel, and a search looks right there: one table that changes, workers' lines,
and a run that goes on after the kernel was interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import notebooks

QUICKSTART = notebooks.NOTEBOOKS / "quickstart.ipynb"

CELLS = [
    """
import threading
import numpy as np, torch
from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, RandomSearch, hp_log

features = np.random.default_rng(0).standard_normal((64, 4)).astype("float32")
data = {"features": features, "label": (features.sum(axis=1) > 0).astype("int64")}

def estimator(params):
    print("building", params["lr"])
    return TorchEstimator(torch.nn.Linear(4, 2), torch.optim.Adam, torch.nn.CrossEntropyLoss(), ["accuracy"], 8, params)

class Wait(Callback):
    def on_epoch_end(self, trial, epoch, metrics):
        if waits:
            print("waiting", flush=True)
            threading.Event().wait()

search = RandomSearch(LocalBackend(num_workers=1, device="cpu"), LocalStore("store"), estimator,
                      {"lr": hp_log(1e-3, 1e-1)}, num_models=3, num_epochs=3, num_partitions=2, callbacks=[Wait()])
waits = True
""",
    "model = search.fit(data)",
    "waits = False\nmodel = search.fit(data)",
    "print(model.run.broken_rules(), model.run.state.units)\nmodel",
]


class Interrupting(NotebookClient):
    """Interrupts the kernel, as the button does, when a cell has printed that it waits."""

    sent: Any = None

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "stream" and "waiting" in msg["content"]["text"]:
            self.sent = asyncio.ensure_future(self.km.interrupt_kernel())
        return super().process_message(msg, cell, cell_index)


def cell_of(notebook: Any, name: str) -> Any:
    return next(cell for cell in notebook.cells if cell.id == name)


def printed(cell: Any) -> list[str]:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream").splitlines()


def html(cell: Any) -> list[str]:
    return [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


def kinds(cell: Any) -> list[Any]:
    return [(output.output_type, *sorted(output.get("data", {}))) for output in cell.get("outputs", [])]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The quick start, run now."""
    return notebooks.run(QUICKSTART, tmp_path_factory.mktemp("quickstart"))


def test_the_quick_start_shows_one_table_that_ends_with_all_trials_and_few_lines(quickstart: Any) -> None:
    fit = cell_of(quickstart, "fit")
    (table,) = html(fit)
    assert "9 completed" in table
    assert table.count("<tr>") == 1 + 9
    assert printed(fit) == ["checking one batch on 2 local workers", "prepared 1,797 rows"]


def test_the_quick_start_shows_its_model_with_trials_curves_and_schedule(quickstart: Any) -> None:
    (page,) = html(cell_of(quickstart, "model"))
    assert page.count("<svg") >= 4  # two pictures, and the planes in them
    assert "val_accuracy of 9 trials by epoch" in page
    assert "units on 2 workers, a colour per trial" in page
    assert cell_of(quickstart, "model").outputs[0].data["text/plain"].startswith("<Model of trial ")
    assert cell_of(quickstart, "again").outputs[-1].data["text/plain"] == "True"
    assert "is finished: its result is returned" in printed(cell_of(quickstart, "again"))[0]


def test_the_quick_start_is_stored_with_the_outputs_that_it_has(quickstart: Any) -> None:
    stored = nbformat.read(QUICKSTART, as_version=nbformat.NO_CONVERT)
    nbformat.validate(stored)
    assert (stored.nbformat, stored.nbformat_minor) == (4, 5)
    outdated = "run `make notebooks`"
    assert [kinds(cell) for cell in stored.cells] == [kinds(cell) for cell in quickstart.cells], outdated
    assert printed(cell_of(stored, "fit")) == printed(cell_of(quickstart, "fit")), outdated
    assert QUICKSTART.stat().st_size < 150_000


def test_an_interrupted_search_goes_on_when_its_cell_is_run_again(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    notebook.cells[1].metadata.tags = ["raises-exception"]
    resources = {"metadata": {"path": str(tmp_path)}}
    Interrupting(notebook, timeout=notebooks.SECONDS, resources=resources).execute()
    _, interrupted, again, shown = notebook.cells
    assert interrupted.outputs[-1].ename == "KeyboardInterrupt"
    said = printed(interrupted)
    assert any(line.startswith("[trial 0 · worker 0] building 0.") for line in said)
    assert any(line.startswith("interrupted after ") and "run the same script again" in line for line in said)
    assert "running" in html(interrupted)[0]
    assert any("goes on after" in line for line in printed(again))
    assert "3 completed" in html(again)[0]
    assert printed(shown) == [f"[] {3 * 3 * (2 + 2)}"]
    assert "<b>model of trial" in html(shown)[0]
