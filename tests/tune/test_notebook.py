"""What notebooks show of runs and models: well-formed, escaped, of any size, at any moment."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hopyard.hopper.state import JournalRecord
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.format import format_header
from hopyard.tune import Run, load_model
from hopyard.tune.listing import RUN_FORMAT
from hopyard.tune.pages import MOST_TRIALS, run_html
from hopyard.tune.pictures import COLOURS, MOST_UNITS, MOST_WORKERS, curves, schedule


class Made:
    """Records of a run of one partition, for training and validation, on some workers."""

    def __init__(self, mode: str = "max", workers: int = 2) -> None:
        self.workers, self.clock = workers, 0.0
        self.records: list[JournalRecord] = [
            {
                "r": "run", "run_id": "r", "format": format_header(RUN_FORMAT), "created": 0.0,
                "settings": {"kind": "random", "seed": 0, "data": "d", "search_space": {}},
                "layout": {"train": 1, "validate": 1}, "num_epochs": 2,
                "metric": {"key": "val_accuracy", "mode": mode},
            },
            {"r": "session", "offset": 0.0, "workers": workers, "backend": "local"},
        ]  # fmt: skip
        self.visits: dict[int, int] = {}

    def trial(self, number: int, params: Any = None) -> None:
        params = {"lr": number / 7} if params is None else params
        self.records.append({"r": "trial", "n": number, "params": params, "g": 0})
        self.visits[number] = 0

    def epoch(self, number: int, value: float) -> None:
        part = {"digest": f"{number}-{self.visits[number]}", "files": [], "nbytes": 0}
        measured = {"loss": [value, 1.0]}, {"values": {"accuracy": value, "loss": 1 - value}}
        states = {**part, "parts": {"model": part}}, None
        for phase, metrics, state in zip(("train", "validate"), measured, states, strict=True):
            visit = self.visits[number]
            self.visits[number] += 1
            self.records.append(
                {
                    "r": "unit", "t": [number], "e": visit // 2, "ph": phase, "p": 0, "w": number % self.workers,
                    "v": visit, "n": visit // 2 + visit % 2, "to": None, "last": False,
                    "a": self.clock, "z": self.clock + 0.5,
                    "s": [state], "m": [metrics], "written": 0, "moved": 0, "read": 0,
                }
            )  # fmt: skip
            self.clock += 0.5

    def end(self, number: int, status: str = "completed", message: str | None = None) -> None:
        error = {"error": {"kind": "ValueError", "message": message}} if message else {}
        self.records.append({"r": "end", "t": number, "status": status, **error})

    @property
    def run(self) -> Run:
        return Run(MemoryStore(), "r", self.records)

    def units(self) -> list[JournalRecord]:
        return [record for record in self.records if record["r"] == "unit"]

    def schedule(self) -> ElementTree.Element:
        return parsed(schedule(self.run.state, self.units()))

    def curves(self) -> ElementTree.Element:
        return parsed(curves(self.run.state))


def parsed(markup: str | None) -> ElementTree.Element:
    assert markup is not None
    assert "nan" not in markup
    return ElementTree.fromstring(markup)


def words(element: ElementTree.Element) -> list[str]:
    return [text for text in element.itertext() if text]


def rows(page: ElementTree.Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]


def drawn(picture: ElementTree.Element) -> dict[str, str]:
    """The paths of trials by what is said of them."""
    found = [each for each in picture.iter() if each.tag.endswith("path")]
    return {"".join(each.itertext()): each.attrib["d"] for each in found}


def test_a_run_shows_its_best_trials_and_what_became_of_the_others() -> None:
    made = Made()
    for number, value in enumerate([0.5, 0.75, math.nan]):
        made.trial(number, {"lr": 0.1, "net": {"kind": "cnn"}} if number else {"lr": 0.1})
        made.epoch(number, value)
        made.end(number)
    made.trial(3)
    made.end(3, "failed", "no <room> & no time")
    page = parsed(run_html(made.run, chosen=1))
    assert "run r: interrupted; 4 trials (3 completed, 1 failed), 3.0 s" in "".join(words(page))
    assert rows(page)[:2] == [
        ["trial", "lr", "net.kind", "val_accuracy", "train_loss", "val_loss", "epochs", "state", "seconds"],
        ["■ 1", "0.1", "cnn", "0.7500", "0.7500", "0.2500", "1", "completed", "1.0"],
    ]
    assert [row[0] for row in rows(page)] == ["trial", "■ 1", "■ 0", "■ 2", "■ 3"]
    assert [row[3] for row in rows(page)[2:]] == ["0.5000", "", ""]
    assert "trial 3 failed: ValueError: no <room> & no time" in words(page)
    bold = [cell.text for row in page.iter("tr") for cell in row.iter("b")]
    assert bold[1:] == ["0.1", "cnn", "0.7500", "0.7500", "0.2500", "1", "completed", "1.0"]


def test_texts_of_users_are_text() -> None:
    made = Made()
    made.trial(0, {"<script>": "</svg><b>&'\""})
    made.epoch(0, 0.5)
    page = run_html(made.run)
    assert "<script" not in page
    assert "</svg><b>" not in page
    assert rows(parsed(page))[1][1] == "</svg><b>&'\""


def test_a_run_that_has_only_begun_shows_what_there_is() -> None:
    made = Made()
    assert "run r: interrupted; 0 trials, 0.0 s" in "".join(words(parsed(run_html(made.run))))
    made.trial(0)
    page = run_html(made.run)
    assert len(rows(parsed(page))) == 2
    assert "<svg" not in page
    assert repr(made.run) == "<Run r: interrupted, 1 trial>"
    made.epoch(0, 0.25)
    assert repr(made.run) == "<Run r: interrupted, 1 trial, best val_accuracy 0.25>"
    assert len(drawn(made.curves())) == len(drawn(made.schedule())) == 1


def test_curves_are_interrupted_where_a_value_is_no_number_and_points_are_seen() -> None:
    made = Made()
    made.trial(0)
    for value in (0.25, math.nan, 0.75, 0.5, math.inf):
        made.epoch(0, value)
    (path,) = drawn(made.curves()).values()
    assert (path.count("M"), path.count("L"), path.count("h0")) == (2, 1, 2)
    made = Made()
    made.trial(0)
    made.epoch(0, math.nan)
    assert curves(made.run.state) is None


def test_a_trial_that_exploded_does_not_flatten_the_others() -> None:
    made = Made("min")
    for number in range(5):
        made.trial(number)
        made.epoch(number, 0.5 + number / 100)
        made.epoch(number, 0.4 + number / 100 if number < 4 else 1e9)
    path = drawn(made.curves())["0:  0.4000  lr=0"]
    heights = [float(point.split()[1].partition("h")[0]) for point in path[1:].split("L")]
    assert heights[1] - heights[0] > 5


def test_of_many_trials_the_best_are_named_and_the_others_are_grey() -> None:
    made = Made()
    for number in range(300):
        made.trial(number)
        made.epoch(number, number / 300)
        made.epoch(number, number / 300)
    markup = run_html(made.run)
    page = parsed(markup)
    assert [row[0] for row in rows(page)[1:]] == [
        f"■ {number}" for number in range(299, 299 - MOST_TRIALS, -1)
    ]
    assert "and 290 more trials; trials() has all of them" in words(page)
    assert "pale: the best 190 of 290 others" in words(page)
    assert len(markup) < 100_000
    strokes = [each.attrib["stroke"] for each in page.iter() if each.tag.endswith("path")]
    assert [colour for colour in strokes if colour != "currentColor"] == list(reversed(COLOURS))
    picture = made.schedule()
    assert "1,200 units on 2 workers, a colour per trial" in words(picture)
    assert "grey: other trials; half height: validation" in words(picture)
    assert len(drawn(picture)) == 300


def test_of_a_long_run_on_many_workers_a_part_is_drawn() -> None:
    made = Made(workers=100)
    for number in range(100):
        made.trial(number)
        for _ in range(30):
            made.epoch(number, 0.5)
    picture = schedule(made.run.state, made.units())
    assert len(picture or "") < 300_000
    title = next(text for text in words(parsed(picture)) if "units" in text)
    assert title.endswith(f" units (of 6,000) on {MOST_WORKERS} workers, a colour per trial")
    assert int(title.split()[0].replace(",", "")) < MOST_UNITS


def test_a_model_shows_its_run_or_of_a_file_its_history(search: Any, make_rows: Any, tmp_path: Path) -> None:
    model = search(LocalStore(tmp_path / "store")).fit(make_rows())
    page = parsed(model._repr_html_())
    assert f"model of trial {model.trial}" in words(page)
    assert len([each for each in page.iter() if each.tag.endswith("svg")]) == 4
    assert len(rows(page)) == 1 + 3
    loaded = load_model(model.save(tmp_path / "best"))
    shutil.rmtree(tmp_path / "store")
    assert len(rows(parsed(model._repr_html_()))) == 1 + 3, "what was read of its run stays"
    page = parsed(loaded._repr_html_())
    assert rows(page)[0] == ["hyperparameter", "value"]
    history = rows(page)[1 + len(model.params) :]
    assert history[0] == ["epoch", *model.get_history()]
    assert [row[0] for row in history[1:]] == ["1", "2"]
