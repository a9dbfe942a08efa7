"""Pages follow what goes on in other processes, without being loaded again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.driving import Driver
from tests.services.browser.looking import epochs_done, fact, is_drawn, leaders, number, region
from tests.web.test_runs import printed
from typer.testing import CliRunner

from hopyard.cli import app

Serve = Callable[..., Dashboard]


def epoch_of(page: Page, trial: int) -> Locator:
    """The cell with the epochs of a trial in the leaderboard."""
    link = page.get_by_role("link", name=f"Trial {trial}", exact=True)
    return region(page, "Leaderboard").locator("tbody tr", has=link).locator("td").nth(3)


def stays(page: Page) -> Callable[[], bool]:
    """Marks the page; the answer says whether it is the same, and was not loaded again."""
    page.evaluate("window.marked = true")
    return lambda: bool(page.evaluate("window.marked === true"))


def test_a_search_appears_and_its_trials_as_they_train(visit: Watched, serve: Serve, driver: Driver) -> None:
    driver.store.mkdir()
    dashboard = serve(driver.store)
    page = visit(dashboard.page("runs"))
    listing = visit.beside(page.context, dashboard.page("runs"))
    expect(page.get_by_text("There are no runs here yet")).to_be_visible()
    same, listed = stays(page), stays(listing)
    driver.start(1, 1)
    page.get_by_role("link", name="steps").click()
    expect(fact(page, "Status")).to_have_text("running")
    expect(epoch_of(page, 0)).to_have_text("1/1")
    curves = page.get_by_role("img", name="Curves of val_accuracy")
    point = is_drawn(curves)
    driver.step()
    expect(epoch_of(page, 0)).to_have_text(re.compile("./2"))
    expect(fact(page, "Trials")).to_have_text("0 of 1 ended")
    epochs_done(page, 67)
    expect(region(listing, "Runs").get_by_role("row", name="steps")).to_contain_text("running")
    is_drawn(curves, above=point)
    driver.step()
    expect(fact(page, "Status")).to_have_text("completed")
    expect(fact(page, "Trials")).to_have_text("1 of 1 ended")
    expect(region(listing, "Runs").get_by_role("row", name="steps")).to_contain_text("completed")
    driver.wait()
    (known,) = printed("run", "describe", str(driver.store), "steps")["trials"]
    best = pytest.approx(known["value"], abs=5e-5)
    assert number(leaders(page, 1)[0]["val_accuracy"]) == best
    assert number(fact(page, "Best val_accuracy").inner_text().split()[0]) == best
    assert same()
    assert listed()


def test_a_driver_that_is_killed_and_started_again_is_told_of(
    visit: Watched, serve: Serve, driver: Driver
) -> None:
    driver.start(2)
    dashboard = serve(driver.store)
    page = visit(dashboard.page("runs"))
    page.get_by_role("link", name="steps").click()
    expect(fact(page, "Status")).to_have_text("running")
    same = stays(page)
    first = fact(page, "Driver").inner_text()
    assert re.search(r", process \d+$", first)
    driver.step(3)
    epochs_done(page, 50)
    driver.kill()
    expect(fact(page, "Status")).to_have_text("interrupted")
    expect(fact(page, "Driver")).to_have_text("nobody drives it")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    command = f"hopyard run resume {driver.store} steps"
    expect(page.locator(".note code")).to_have_text(command)
    expect(page.get_by_text("Its driver has ended without a word")).to_be_visible()
    assert {row["Status"] for row in leaders(page, 2)} == {"interrupted"}
    page.get_by_role("link", name="Settings").click()
    expect(page.locator("section code", has_text=command)).to_be_visible()
    page.get_by_role("link", name="Trials", exact=True).click()
    driver.start(2)
    expect(fact(page, "Status")).to_have_text("running")
    expect(fact(page, "Driver")).to_have_text(re.compile(r", process \d+$"))
    assert fact(page, "Driver").inner_text() != first
    expect(page.locator(".note code")).to_have_count(0)
    assert "running" in {row["Status"] for row in leaders(page, 2)}
    driver.step(8)
    expect(fact(page, "Status")).to_have_text("completed")
    driver.wait()
    known = printed("run", "describe", str(driver.store), "steps")
    assert {
        int(row["Trial"]): (number(row["val_accuracy"]), row["Epoch"][-2:]) for row in leaders(page, 2)
    } == {trial["trial"]: (pytest.approx(trial["value"], abs=5e-5), "/3") for trial in known["trials"]}
    assert same()


def test_a_run_that_is_deleted_is_said_to_be_gone(
    visit: Watched, serve: Serve, searches: Path, tmp_path: Path
) -> None:
    shutil.copytree(searches, tmp_path / "store")
    dashboard = serve(tmp_path / "store")
    page = visit(dashboard.page("runs/0/other"))
    listing = visit.beside(page.context, dashboard.page("runs"))
    expect(fact(page, "Status")).to_have_text("completed")
    expect(region(listing, "Runs").get_by_role("link", name="other")).to_be_visible()
    shutil.rmtree(tmp_path / "store" / "runs" / "other")
    expect(page.get_by_text("holds no run 'other'")).to_be_visible()
    expect(page.get_by_role("button", name="Extend")).to_have_count(0)
    expect(region(listing, "Runs").get_by_role("link")).to_have_text(["asha"])


def test_a_store_that_vanishes_is_said_to_be_gone_in_the_list_and_by_a_run(
    visit: Watched, serve: Serve, searches: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(searches, store)
    dashboard = serve(store)
    page = visit(dashboard.page("runs/0/other"))
    listing = visit.beside(page.context, dashboard.page("runs"))
    expect(fact(page, "Status")).to_have_text("completed")
    expect(region(listing, "Runs").get_by_role("link")).to_have_count(2)
    store.rename(tmp_path / "moved")
    said = re.compile(
        f"{re.escape(str(store))} is no directory, so it holds no runs. .*; if it was moved, start"
    )
    for each in (page, listing):
        expect(each.get_by_role("alert")).to_have_text(said)
    expect(listing.get_by_text("There are no runs here yet")).to_have_count(0)
    (tmp_path / "moved").rename(store)
    expect(region(listing, "Runs").get_by_role("link")).to_have_count(2)
    expect(listing.get_by_role("alert")).to_have_count(0)


def test_a_store_without_runs_that_vanishes_is_said_to_be_gone_in_the_list(
    visit: Watched, serve: Serve, searches: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    page = visit(serve(searches, empty).page("runs"))
    expect(region(page, "Runs").get_by_role("link")).to_have_count(2)
    expect(page.get_by_role("alert")).to_have_count(0)
    same = stays(page)
    empty.rmdir()
    expect(page.get_by_role("alert")).to_contain_text(f"{empty} is no directory, so it holds no runs.")
    empty.mkdir()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert same()


def test_a_command_from_a_shell_that_waits_for_a_driver_is_shown(
    visit: Watched, serve: Serve, searches: Path, tmp_path: Path
) -> None:
    shutil.copytree(searches, tmp_path / "store")
    page = visit(serve(tmp_path / "store").page("runs/0/other"))
    expect(fact(page, "Status")).to_have_text("completed")
    same = stays(page)
    typed = CliRunner().invoke(app, ["run", "extend", str(tmp_path / "store"), "other", "--num-epochs", "99"])
    assert "the command is kept until it goes on" in typed.output
    expect(page.get_by_text("1 command waits until the run goes on: extend num_epochs=99")).to_be_visible()
    expect(fact(page, "Status")).to_have_text("completed")
    assert same()


def test_a_page_goes_on_once_the_server_is_back(visit: Watched, serve: Serve, driver: Driver) -> None:
    visit.expected.append("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET")
    driver.start(1, 1)
    dashboard = serve(driver.store)
    page = visit(dashboard.page("runs"))
    page.get_by_role("link", name="steps").click()
    listing = visit.beside(page.context, dashboard.page("runs"))
    expect(epoch_of(page, 0)).to_have_text("1/1")
    expect(region(listing, "Runs").get_by_role("row", name="steps")).to_contain_text("running")
    same, listed = stays(page), stays(listing)
    dashboard.end()
    expect(page.get_by_text("The connection to the server is lost")).to_be_visible()
    expect(listing.get_by_text("The connection is lost")).to_be_visible()
    driver.step(2)
    driver.wait()
    dashboard.start_again()
    expect(page.get_by_text("The connection to the server is lost")).to_have_count(0)
    expect(fact(page, "Status")).to_have_text("completed")
    expect(epoch_of(page, 0)).to_have_text(re.compile("./3"))
    expect(region(listing, "Runs").get_by_role("row", name="steps")).to_contain_text("completed")
    expect(listing.get_by_text("The connection is lost")).to_have_count(0)
    assert same()
    assert listed()
