"""A run as one file, opened from the disk without a network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.services.browser.conftest import Watched
from tests.services.browser.looking import fact, is_drawn, leaders, number, region, rows_of
from tests.web.conftest import HOSTILE
from tests.web.test_runs import printed
from typer.testing import CliRunner

from hopyard.cli import app


def exported(store: Path, run: str, folder: Path) -> str:
    """The address of the file that the command writes."""
    done = CliRunner().invoke(app, ["web", "export", str(store), run, str(folder / "run.html")])
    assert done.exit_code == 0, done.output
    return (folder / "run.html").as_uri()


def test_a_file_shows_the_run_without_a_network(visit: Watched, place: Path, tmp_path: Path) -> None:
    known = printed("run", "describe", str(place), "grid")
    trials = {trial["trial"]: trial for trial in known["trials"]}
    page = visit(exported(place, "grid", tmp_path), offline=True)
    expect(page.get_by_text(re.compile(r"^Exported on 20\d\d-\d\d-\d\d \d\d:\d\d$"))).to_be_visible()
    rows = leaders(page, len(trials))
    assert {int(row["Trial"]): row["Status"] for row in rows} == {
        number: trial["status"] for number, trial in trials.items()
    }
    for row in rows:
        value = trials[int(row["Trial"])]["value"]
        assert number(row["val_accuracy"]) == (value if value is None else pytest.approx(value, abs=5e-5))
    is_drawn(page.get_by_role("img", name="Curves of val_accuracy"))
    is_drawn(page.get_by_role("img", name="Parallel coordinates of 12 trials"))
    region(page, "Curves").get_by_label("Metric").select_option("train_loss")
    is_drawn(page.get_by_role("img", name="Curves of train_loss"))
    region(page, "Leaderboard").get_by_role("link", name="Trial 8", exact=True).click()
    expect(
        region(page, "Trial 8").get_by_role("img", name="val_accuracy of trial 8 by epoch")
    ).to_be_visible()
    expect(page.get_by_role("group", name="Control of the run")).to_have_count(0)

    page.get_by_role("link", name="Schedule").click()
    is_drawn(page.locator("canvas"))
    expect(fact(page, "Hops").last).to_have_text(str(known["schedule"]["hops"]))
    page.get_by_role("link", name="Importance").click()
    rows_of(page.get_by_role("table", name="Importance of hyperparameters"), 2)
    page.get_by_role("link", name="Stopped and failed (4)").click()
    expect(page.locator("p.data", has_text="three is not enough")).to_have_text(
        f"ValueError: three is not enough {HOSTILE}"
    )
    page.get_by_role("link", name="Slices").click()
    is_drawn(page.get_by_role("img", name="val_accuracy of trials by lr"))
    expect(page.get_by_role("link", name="Log", exact=True)).to_have_count(0)
    page = visit(f"{page.url.partition('#')[0]}#/runs/0/grid/logs", offline=True)
    expect(page.get_by_text("This file does not hold that: it was exported from one run.")).to_be_visible()


def test_the_address_of_a_view_works_in_a_file_too(visit: Watched, searches: Path, tmp_path: Path) -> None:
    address = exported(searches, "asha", tmp_path)
    page = visit(f"{address}#/runs/0/asha?sort=%40trial&trial=2", offline=True)
    assert [row["Trial"] for row in leaders(page, 9)] == [str(trial) for trial in range(9)]
    expect(region(page, "Trial 2")).to_be_visible()
    page.get_by_role("link", name="Settings").click()
    page.go_back()
    expect(region(page, "Trial 2")).to_be_visible()
