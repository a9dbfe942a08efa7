"""How many partitions there are where nobody says, and what is said of too few."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hopyard
from hopyard.backend import InlineBackend
from hopyard.errors import UsageError
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import ASHA, GridSearch, Hyperband, RandomSearch, hp_choice, hp_log
from hopyard.tune.arguments import default_partitions

STEPS: list[tuple[int, int]] = []


def rows(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"features": rng.normal(size=(count, 4)).astype(np.float32), "label": rng.integers(0, 2, count)}


def linear(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        torch.nn.Linear(4, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), optimizer_params={"lr": params["lr"]},
        batch_size=params.get("batch_size", 1000),
    )  # fmt: skip


def common(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "backend": InlineBackend(), "store": MemoryStore(), "estimator_gen_fn": linear, "progress": False,
        "search_space": {"lr": hp_log(1e-3, 1e-1)},
    }  # fmt: skip
    return given | changes


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Kept()
    logging.getLogger("hopyard").addHandler(handler)
    yield lines
    logging.getLogger("hopyard").removeHandler(handler)


@pytest.mark.parametrize(
    ("rows", "groups", "wanted", "expected"),
    [(1, 1, 1, 1), (569, 24, 1, 1), (7_999, 24, 1, 1), (8_000, 24, 1, 2), (32_000, 24, 1, 8), (10**9, 240, 1, 8),
     (10**9, 3, 1, 3), (569, 24, 4, 4), (569, 2, 4, 2), (20_000, 24, 4, 5)],
)  # fmt: skip
def test_the_number_follows_from_rows_row_groups_and_what_the_search_needs(
    rows: int, groups: int, wanted: int, expected: int
) -> None:
    assert default_partitions(rows, groups, wanted) == expected


@pytest.mark.parametrize(("count", "expected"), [(600, 1), (12_000, 2)])
def test_small_data_is_one_partition_whatever_the_workers(count: int, expected: int) -> None:
    space = {"lr": hp_choice([0.1])}
    run = GridSearch(**common(search_space=space, num_epochs=1)).fit(rows(count)).run
    assert run.state.layout.train == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_models", "num_epochs", "divisor", "expected"),
    [(9, 3, 3, 3), (9, 1, 4, 4), (16, 4, 4, 4), (3, 4, 4, 1)],
)
def test_asha_has_as_many_partitions_as_its_rungs_need_and_stops_trials(
    num_models: int, num_epochs: int, divisor: int, expected: int, said: list[str]
) -> None:
    search = ASHA(**common(num_models=num_models, num_epochs=num_epochs, divisor=divisor))
    run = search.fit(rows(600)).run
    assert run.state.layout.train == expected
    stopped = [trial for trial in run.state.trials.values() if trial.status == "stopped"]
    assert bool(stopped) == (num_models >= divisor)
    assert not [line for line in said if "early" in line]


def test_a_search_that_can_stop_nobody_says_so(said: list[str]) -> None:
    ASHA(**common(num_models=9, num_epochs=1, divisor=4, num_partitions=1)).fit(rows(600))
    (line,) = [line for line in said if "early" in line]
    assert line == (
        "asha compares trials after parts of 1 epoch, for which it needs 4 partitions, but there is 1: with 1 visit a "
        "trial it stops nobody early. Give num_partitions=4, data with as many row groups, or more epochs."
    )


@pytest.mark.parametrize(("nobody", "stops"), [(None, "fewer of them"), (5, "nobody")])
def test_a_search_of_the_users_own_says_whom_too_few_partitions_stop(
    nobody: int | None, stops: str, said: list[str]
) -> None:
    class Mine(RandomSearch):
        kind = "mine"

        def _partitions_wanted(self) -> int:
            return 4

        def _stops_nobody(self, visits: int) -> bool:
            return super()._stops_nobody(visits) if nobody is None else visits < nobody

    Mine(**common(num_models=2, num_epochs=2, num_partitions=2)).fit(rows(600))
    (line,) = [line for line in said if "early" in line]
    assert line == (
        "mine compares trials after parts of 2 epochs, for which it needs 4 partitions, but there are 2: with 4 visits "
        f"a trial it stops {stops} early. Give num_partitions=4, data with as many row groups, or more epochs."
    )


def test_hyperband_without_a_number_of_trials_counts_on_eight_partitions() -> None:
    run = Hyperband(**common(num_epochs=1, divisor=3)).fit(rows(600)).run
    assert run.state.layout.train == 8
    assert len(run.state.trials) == 5  # as published for 8 visits: 3 and 2


def test_an_extension_keeps_the_partitions_of_the_run() -> None:
    given = common(num_epochs=1, divisor=4, run_id="longer")
    before = ASHA(**given, num_models=4).fit(rows(600)).run
    after = ASHA(**given, num_models=16).fit(rows(600)).run
    assert before.state.layout == after.state.layout
    assert len(after.state.trials) == 16


def test_a_budget_that_the_rows_do_not_suffice_for_begins_no_run() -> None:
    store = MemoryStore()
    search = GridSearch(
        **common(store=store, search_space={"lr": hp_choice([0.1])}, num_epochs=1, num_partitions=40)
    )
    with pytest.raises(UsageError, match="num_partitions is 40, but the training data has 24 row groups"):
        search.fit(rows(600))
    assert not list(store.list("runs"))


def test_a_batch_size_above_the_rows_of_partitions_is_said_once(said: list[str]) -> None:
    space = {"lr": hp_choice([0.1]), "batch_size": hp_choice([64, 128, 256])}
    GridSearch(**common(search_space=space, num_epochs=2, num_partitions=5)).fit(rows(569))
    lines = [line for line in said if line.startswith("batch_size=")]
    assert [line.split(",")[0] for line in lines] == ["batch_size=128", "batch_size=256"]
    assert "but the 5 partitions have 90 rows at most, and batches do not span partitions" in lines[0]
    assert lines[0].endswith("Give a smaller num_partitions, down to 1, or a batch_size of at most 90.")


def warmed_up(params: dict[str, Any]) -> TorchEstimator:
    def schedule(optimizer: Any, steps_per_epoch: int, num_epochs: int) -> Any:
        STEPS.append((steps_per_epoch, num_epochs))
        warm = steps_per_epoch * num_epochs // 10
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm))

    return TorchEstimator(
        torch.nn.Linear(4, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), batch_size=20, scheduler=schedule,
        optimizer_params={"lr": 0.1},
    )  # fmt: skip


def test_the_check_and_a_loaded_model_give_a_scheduler_the_true_number_of_steps(tmp_path: Any) -> None:
    STEPS.clear()
    search = GridSearch(
        **common(
            estimator_gen_fn=warmed_up,
            search_space={"lr": hp_choice([0.1])},
            num_epochs=2,
            num_partitions=3,
            fresh=True,
        )
    )
    search.check(rows(400))
    assert set(STEPS) == {(15, 2)}  # 300 rows in batches of 20
    path = search.fit(rows(400)).save(tmp_path / "best")
    STEPS.clear()
    assert hopyard.load_model(path).predict(rows(3)["features"]).shape == (3, 2)
    assert set(STEPS) == {(15, 2)}


def test_rows_that_are_not_counted_yet_are_taken_for_many(tmp_path: Any) -> None:
    STEPS.clear()
    stream = ({"features": np.ones(4, np.float32) * number, "label": number % 2} for number in range(400))
    search = GridSearch(
        **common(
            estimator_gen_fn=warmed_up, search_space={"lr": hp_choice([0.1])}, num_epochs=2, num_partitions=3
        )
    )
    search.fit(stream)
    assert STEPS[0] == (1000, 2)
    assert STEPS[-1] == (15, 2)


@pytest.mark.parametrize(
    ("order", "partitions", "is_said"), [("sorted", 2, True), ("sorted", 1, False), ("mixed", 2, False)]
)
def test_rows_that_are_sorted_by_a_label_are_named_where_partitions_cannot_mix_them(
    order: str, partitions: int, is_said: bool, said: list[str], tmp_path: Path
) -> None:
    given = rows(400)
    columns = {
        "features": pa.FixedSizeListArray.from_arrays(given["features"].ravel(), 4),
        "label": given["label"],
    }
    table = pa.table(columns)
    pq.write_table(
        table.sort_by("label") if order == "sorted" else table, tmp_path / "t.parquet", row_group_size=50
    )
    space = {"lr": hp_choice([0.1])}
    GridSearch(
        **common(search_space=space, num_epochs=1, num_partitions=partitions, validation=None)
    ).fit_on_parquet(tmp_path / "t.parquet")
    warnings = [line for line in said if "sorted" in line]
    assert len(warnings) == is_said
    if is_said:
        assert re.fullmatch(
            r"rows are sorted by the label 'label': the values of \d\d% of the pairs of row groups do not overlap. "
            "Models see them mixed over 4 row groups of 8 only \\(2 partitions, windows of 1 GiB\\), and learn one "
            "value after the other. Let hopyard.data.prepare shuffle them: its result goes to "
            "fit_on_prepared_data\\(\\); or write at least 32 smaller row groups.",
            warnings[0],
        )
