"""Plans on the page: as those of the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.web.conftest import Client
from typer.testing import CliRunner

from hopyard.cli import app

NUMBERS = {"workers": 8, "rows": 1_000_000, "rows_per_second": 5000, "data_gb": 50}


def printed(*words: str) -> Any:
    done = CliRunner().invoke(app, ["plan", *words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_estimates_are_those_of_the_command_line(client: Client) -> None:
    options = [
        word for name, value in NUMBERS.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    known = printed(*options, "--models", "16", "--epochs", "10")
    assert client.post("/api/plan", NUMBERS | {"models": 16, "epochs": 10}).json == known


def test_a_searcher_alone_is_previewed(client: Client, tmp_path: Any) -> None:
    searcher = {"name": "adaptive_asha", "max_trials": 16, "max_length": 64}
    (tmp_path / "searcher.json").write_text(json.dumps(searcher))
    known = printed("--searcher", str(tmp_path / "searcher.json"))
    assert known["estimates"] is None
    assert client.post("/api/plan", {"searcher": searcher}).json == known


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (
            {},
            "a plan lacks workers, rows, data_gb, rows_per_second or seconds_per_unit, models, epochs to estimate a",
        ),
        ({"wokers": 8}, "a plan has no wokers. It has: workers, rows,"),
        (
            {"workers": "8"},
            "workers is '8'; it must be a number greater than 0, and at most 100,000. Change it.",
        ),
        ({"rows": -1}, "rows is -1; it must be a number greater than 0, and at most 1,000,000,000,000,000."),
        (
            {"partitions": 100_000},
            "partitions is 100000; it must be a number greater than 0, and at most 10,000.",
        ),
        (
            {"models": 1e9},
            "models is 1000000000.0; it must be a number greater than 0, and at most 1,000,000.",
        ),
        (
            {"searcher": []},
            "searcher is [], which is no mapping with a name. Send its configuration, or null.",
        ),
        ({"searcher": {"name": "dance"}}, "dance"),
    ],
)
def test_what_is_wrong_is_said(client: Client, sent: Any, text: str) -> None:
    found = client.post("/api/plan", sent)
    assert found.status == 400
    assert text in found.error
