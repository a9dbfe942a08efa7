"""Pictures of runs: what they say in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from hopyard.backend import InlineBackend
from hopyard.errors import NotFoundError, UsageError
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import ASHA, RandomSearch, Run, hp_log
from hopyard.tune.pictures import CLOSER_UNITS, curves, draw_curves, draw_schedule


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        torch.nn.Linear(4, 2), torch.optim.Adam, torch.nn.CrossEntropyLoss(), [], 8, {"lr": params["lr"]}
    )


def run_of(kind: type[Any], data: Any, **own: Any) -> Run:
    search = kind(
        InlineBackend(),
        MemoryStore(),
        estimator,
        {"lr": hp_log(1e-3, 1e-1)},
        num_models=4,
        num_epochs=2,
        num_partitions=4,
        progress=False,
        **own,
    )
    run: Run = search.fit(data).run
    return run


@pytest.fixture(scope="module")
def plain(make_rows: Any) -> Run:
    """Of random search."""
    return run_of(RandomSearch, make_rows())


def texts(path: Path) -> list[str]:
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    return [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_curves_of_a_search_in_rungs_say_where_and_how_many_trained_on(
    make_rows: Any, tmp_path: Path
) -> None:
    run = run_of(ASHA, make_rows(), divisor=4)
    assert "1 of 4 train on" in texts(draw_curves(run, tmp_path / "new" / "curves.svg"))


def test_curves_of_other_searches_have_no_rungs(make_rows: Any, tmp_path: Path) -> None:
    run = run_of(RandomSearch, make_rows(), patience=1)
    written = texts(draw_curves(run, tmp_path / "curves.svg"))
    assert "val_loss of 4 trials by epoch" in written
    assert not any("train on" in text for text in written)


def test_a_schedule_of_many_units_has_a_closer_look_with_numbers(plain: Run, tmp_path: Path) -> None:
    units = plain.units()
    assert len(units) > 2 * CLOSER_UNITS
    written = texts(draw_schedule(plain, tmp_path / "schedule.svg"))
    assert written[0] == f"{len(units)} units on 1 worker, a colour per trial"
    closer = written[written.index("a closer look, with the trials' numbers") :]
    assert {"0", "1", "2", "3"} & set(closer)


def test_a_picture_in_a_file_brings_its_colours_and_one_in_a_page_takes_those_around_it(
    plain: Run, tmp_path: Path
) -> None:
    alone, within = draw_curves(plain, tmp_path / "curves.svg").read_text(), curves(plain.state)
    assert within is not None
    assert "prefers-color-scheme" in alone
    assert "<style" not in within
    assert alone.replace(alone[alone.index("<style") : alone.index("</style>") + 8], "") == within


def test_other_formats_and_runs_without_units_are_refused(plain: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"path='.*curves\.png', but pictures are SVG\. Write 'curves\.svg'\."
    ):
        draw_curves(plain, tmp_path / "curves.png")
    empty = Run(MemoryStore(), plain.run_id, list(plain._records())[:1])
    for draw in (draw_curves, draw_schedule):
        with pytest.raises(NotFoundError, match=r"has nothing to draw yet\. Draw it once an epoch has ended"):
            draw(empty, tmp_path / "empty.svg")
    assert list(tmp_path.iterdir()) == []
