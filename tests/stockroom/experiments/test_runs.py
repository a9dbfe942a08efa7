"""A run keeps what it was given and logged, however it ends."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.stockroom.standin import Staged

from hopyard.errors import CorruptError, DataError, NotFoundError, StorageFullError, UsageError
from hopyard.stockroom.experiments import ExperimentShelf, StockRun, series
from hopyard.stockroom.models import ModelShelf
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import RunRecord
from hopyard.storage import LocalStore


class Clock:
    """Seconds that are set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    return Staged(LocalStore(tmp_path / "repository"))


@pytest.fixture
def shelf(staged: Staged) -> ExperimentShelf:
    return ExperimentShelf(staged)


def test_a_run_is_stored_when_it_ends(staged: Staged, shelf: ExperimentShelf, tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    file.write_bytes(b"picture")
    clock = Clock()
    ModelShelf(staged)["net"] = {"w": torch.ones(1)}
    with StockRun(staged, {"lr": 0.1, "sizes": (1, 2)}, {"who": "me"}, {"commit": "abc"}, clock) as run:
        assert run.status == "running"
        run.log(loss=1.0, acc=np.float32(0.5))
        clock.now += 2
        run.log(step=10, loss=torch.tensor(0.25, requires_grad=True).detach())
        run.log(loss=math.nan, ok=True)
        run.set(who="you", best=3)
        run.log_artifact(file)
        run.log_artifact(str(file), "copy")
        run.link(model="net")
        assert shelf.runs() == []
        clock.now += 1
    file.write_bytes(b"changed")
    reader = ExperimentShelf(staged.committed())
    (found,) = reader.runs()
    assert (found.id, found.status, found.error) == (run.id, "finished", None)
    assert found.params == {"lr": 0.1, "sizes": (1, 2)}
    assert found.tags == {"who": "you", "best": 3}
    assert found.git == {"commit": "abc"}
    assert found.links == {"model": {"net": staged.records["model", "net"].to_json()}, "data": {}}
    metrics = {name: (list(steps), list(values)) for name, (steps, values) in found.metrics.items()}
    assert metrics.pop("loss")[0] == [0, 10, 11]
    assert metrics == {"acc": ([0], [0.5]), "ok": ([11], [1.0])}
    assert found.metrics["loss"][1].tolist()[:2] == [1.0, 0.25]
    assert found.times("loss").tolist() == [0.0, 2.0, 2.0]
    assert found.seconds == 3.0
    assert found.ended is not None
    assert found.ended >= found.started
    assert found.artifacts == {"plot.png": 7, "copy": 7}
    assert found.read("plot.png") == b"picture"
    path = found.artifact("copy")
    assert path is not None
    assert path.read_bytes() == b"picture"
    assert repr(found) == f"<run {run.id}: finished>"
    assert Objects(LocalStore(tmp_path / "repository")).missing(found.reached()) == set()
    with pytest.raises(
        NotFoundError, match=rf"the run {run.id} has no metric 'los'; did you mean 'loss'\? It has 'acc'"
    ):
        found.times("los")
    with pytest.raises(NotFoundError, match=r"has no artifact 'x'"):
        found.read("x")


def log_and_divide(run: StockRun) -> None:
    run.log(loss=1)
    1 / 0  # noqa: B018


def test_a_run_that_fails_is_stored_and_the_error_goes_on(staged: Staged, shelf: ExperimentShelf) -> None:
    run = StockRun(staged)
    with pytest.raises(ZeroDivisionError), run:
        log_and_divide(run)
    (found,) = shelf.runs()
    assert found.status == run.status == "failed"
    assert found.error is not None
    assert (found.error["kind"], found.error["message"]) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in found.error["traceback"]
    assert found.metrics["loss"][1].tolist() == [1.0]


def test_an_error_that_names_a_file_whose_name_is_no_text_is_stored(
    staged: Staged, shelf: ExperimentShelf
) -> None:
    with pytest.raises(OSError, match="no such"), StockRun(staged):
        raise OSError("no such file: \udcff")
    (found,) = shelf.runs()
    assert found.error is not None
    assert found.error["message"] == "no such file: \\udcff"


def test_a_run_is_stored_every_30_seconds(staged: Staged, shelf: ExperimentShelf) -> None:
    clock = Clock()
    run = StockRun(staged, clock=clock).__enter__()
    for _ in range(3):
        run.log(loss=1)
        clock.now += 20
    assert shelf.run(run.id).status == "running"
    assert shelf.run(run.id).ended is None
    assert len(shelf.run(run.id).metrics["loss"][0]) == 3
    run.log(loss=1)
    assert len(shelf.run(run.id).metrics["loss"][0]) == 3
    run.flush()
    assert len(shelf.run(run.id).metrics["loss"][0]) == 4


def test_full_parts_of_a_series_are_stored_once(
    staged: Staged, shelf: ExperimentShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "PART", 4)
    with StockRun(staged) as run:
        for number in range(11):
            run.log(x=number * 0.5)
            if number % 3 == 2:
                run.flush()
    found = shelf.run(run.id)
    steps, values = found.metrics["x"]
    assert steps.tolist() == list(range(11))
    assert values.tolist() == [number * 0.5 for number in range(11)]
    assert steps.dtype == np.int64
    assert len(run._series["x"].steps) == 3


def test_a_full_disk_in_passing_is_a_warning_and_at_the_end_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise StorageFullError("the disk is full")

    staged, clock = Staged(), Clock()
    run = StockRun(staged, clock=clock).__enter__()
    run.log(loss=1)
    monkeypatch.setattr(staged, "set", fail)
    clock.now += 31
    with pytest.warns(
        RuntimeWarning, match=f"The run {run.id} could not be stored; it goes on, and is stored again"
    ):
        run.log(loss=1)
    for store in (run.flush, lambda: run.__exit__(None, None, None)):
        with pytest.raises(StorageFullError, match="the disk is full"):
            store()
    with pytest.raises(ZeroDivisionError) as caught, StockRun(staged):
        1 / 0  # noqa: B018
    assert "could not be stored either: the disk is full" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (
            {"a": 1, "b": "0.5"},
            "The metric 'b' was logged as '0.5' of type builtins.str, but metrics are single numbers",
        ),
        ({"a": None}, "of type builtins.NoneType"),
        ({"a": 1j}, "of type builtins.complex"),
        ({"a": np.zeros(2)}, "of type numpy.ndarray"),
        ({"a": torch.ones(2)}, "of type torch.Tensor"),
        ({"a": 1, "step": 1.5}, "The step 1.5 was logged, but steps are ints of up to 64 bits"),
        ({"a": 1, "step": 2**70}, "The step 1180591620717411303424 was logged"),
    ],
)
def test_what_is_no_number_is_named_and_nothing_is_logged(
    staged: Staged, metrics: dict[str, Any], said: str
) -> None:
    with StockRun(staged) as run:
        run.log(a=1)
        with pytest.raises(DataError, match=said):
            run.log(**metrics)
        with pytest.raises(UsageError, match=r"A run's metric was given an empty name"):
            run.log(**{"a": 1, "": 2})
    found = ExperimentShelf(staged).run(run.id).metrics
    assert [(name, list(steps)) for name, (steps, _) in found.items()] == [("a", [0])]


def test_wrong_uses_are_named(staged: Staged, shelf: ExperimentShelf, tmp_path: Path) -> None:
    run = StockRun(staged)
    with pytest.raises(UsageError, match=r"The run has not begun. Use it in a block: with stock.run"):
        run.log(loss=1)
    with run:
        with pytest.raises(
            NotFoundError, match=r"there is no file .*nothing to be stored. Give the path of a file"
        ):
            run.log_artifact(tmp_path / "nothing")
        with pytest.raises(UsageError, match=r"is a directory. Log its files one by one, or an archive"):
            run.log_artifact(tmp_path)
        with pytest.raises(
            NotFoundError, match=r"cannot be linked to 'net': there is no such model in the commit 0123"
        ):
            run.link(model=["net"])
        with pytest.raises(NotFoundError, match=r"there is no such column or dataset"):
            run.link(data="train")
        with pytest.raises(DataError, match=r"The tag 'b' is a builtins.object"):
            run.set(a=1, b=object())
    assert shelf.run(run.id).tags == {}
    for use in (lambda: run.log(loss=1), lambda: run.set(a=1), run.flush, lambda: run.link(model="a")):
        with pytest.raises(UsageError, match=r"has ended, so nothing can be added to it. Begin a new one"):
            use()
    with pytest.raises(UsageError, match=r"was begun before. Make a new one: each is one `with` block"):
        run.__enter__()
    with pytest.raises(DataError, match=r"The parameter 'lr' is a builtins.object, but values are"):
        StockRun(staged, {"lr": object()})
    with pytest.raises(
        DataError, match=r"A run's parameters were given as list. Give a dict of them by name"
    ):
        StockRun(staged, [1])  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match=r"there is no run 'x' in the commit 0123abcd. It has 1 runs"):
        shelf.run("x")
    with pytest.raises(UsageError, match=r"opened for reading"):
        ExperimentShelf(staged.committed()).start()
    shelf.delete_run(run.id)
    assert shelf.runs() == []


def test_threads_may_log_to_one_run(staged: Staged, shelf: ExperimentShelf) -> None:
    with StockRun(staged) as run:
        threads = [
            threading.Thread(target=lambda: [run.log(a=1, b=2) for _ in range(1000)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for steps, _ in shelf.run(run.id).metrics.values():
        assert steps.tolist() == list(range(4000))


def test_runs_are_listed_newest_first_and_as_a_frame(staged: Staged, shelf: ExperimentShelf) -> None:
    pytest.importorskip("pandas")
    ids = []
    for lr in (0.1, 0.2):
        with shelf.start({"lr": lr}, {"who": "me"}) as run:
            run.log(loss=lr * 2)
            run.log(loss=lr)
        ids.append(run.id)
    assert [run.id for run in shelf.runs()] == ids[::-1]
    frame = shelf.to_pandas()
    assert list(frame.columns) == ["id", "status", "started", "seconds", "param.lr", "tag.who", "metric.loss"]
    assert frame["metric.loss"].tolist() == [0.2, 0.1]


@pytest.mark.parametrize("value", [[], {"format": {"kind": "stock-run", "version": 1}}])
def test_a_damaged_run_is_named(staged: Staged, shelf: ExperimentShelf, value: Any) -> None:
    record = RunRecord(staged.writer.add_json(value), "finished", "2026-01-01T00:00:00.000000+00:00")
    staged.set("run", "r", record)
    with pytest.raises(CorruptError, match=r"what is stored of the run r cannot be read"):
        _ = shelf.run("r").params


def test_runs_are_shown_bounded_and_as_text(staged: Staged, shelf: ExperimentShelf, tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    file.write_bytes(b"picture")
    ModelShelf(staged)["<b>net"] = {"w": torch.ones(1)}
    run = StockRun(staged, {"<i>": "<script>" * 1000}, {f"{number:03}": number for number in range(50)})
    assert repr(run) == "<run without an id yet: new>"
    with run:
        for step in range(3):
            run.log(**{"<u>loss": step})
        run.log_artifact(file)
        run.link(model="<b>net")
        assert repr(run) == f"<run {run.id}: running>"
    stored = shelf.runs()[0]
    page = stored._repr_html_()
    for row in (
        "<td>param &lt;i&gt;</td>",
        "<td>tag</td><td>and more</td>",
        "<td>metric &lt;u&gt;loss</td><td>3 values</td>",
        "<td>artifact plot.png</td><td>7 B</td>",
        "<td>uses</td><td>model/&lt;b&gt;net</td>",
    ):
        assert row in page
    assert stored.counts == {"<u>loss": 3}
    with pytest.raises(ZeroDivisionError), StockRun(staged, id="<b>failed") as failed:
        log_and_divide(failed)
    failure = shelf.run("<b>failed")._repr_html_()
    assert "<p>run &lt;b&gt;failed: failed</p>" in failure
    assert "<td>error</td><td>ZeroDivisionError: " in failure
    for number in range(40):
        with StockRun(staged, id=f"run-{number}"):
            pass
    runs = shelf.runs()
    lines = repr(runs).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("42 runs, times in UTC", "and 12 more", 32)
    assert lines[1].startswith("run-39  finished  20")
    table = runs._repr_html_()
    assert table.endswith("<p>and more</p></div>")
    assert "<td>run-39</td><td>finished</td>" in table
    for text in (page, failure, table):
        assert len(text) < 10_000
        assert not [each for each in ("<script>", "<b>", "<i>", "<u>") if each in text]
    assert list(runs) == runs[:]
