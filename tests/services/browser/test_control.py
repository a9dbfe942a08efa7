"""Commands to a run from its page: they need the token, and the run's driver does them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.driving import Driver
from tests.services.browser.looking import fact, leaders, region
from tests.web.test_runs import printed

Serve = Callable[..., Dashboard]


def described(driver: Driver) -> Any:
    return printed("run", "describe", str(driver.store), "steps")


def opened(visit: Watched, dashboard: Dashboard) -> Page:
    page = visit(dashboard.page("runs"))
    page.get_by_role("link", name="steps").click()
    expect(fact(page, "Status")).to_have_text("running")
    return page


def test_commands_need_the_token_and_are_done(visit: Watched, serve: Serve, driver: Driver) -> None:
    driver.start(2)
    dashboard = serve(driver.store)
    page = opened(visit, dashboard)
    dialog = page.get_by_role("dialog")
    button = page.get_by_role("button", name="Pause", exact=True)

    # Without a token, nothing is sent; a wrong one is refused.
    visit.expected.append(r"/commands: 403|status of 403")
    button.click()
    token = dialog.get_by_label("Token, which hopyard web printed")
    expect(token).to_be_focused()
    dialog.get_by_role("button", name="Pause the run").click()
    assert token.evaluate("field => field.validity.valueMissing")
    token.fill("not this")
    dialog.get_by_role("button", name="Pause the run").click()
    expect(dialog).to_contain_text("token")
    expect(dialog.locator(".note")).to_be_visible()
    assert described(driver)["status"] == "running"

    token.fill(dashboard.token or "")
    dialog.get_by_role("button", name="Pause the run").click()
    expect(dialog).to_have_count(0)
    driver.step()
    expect(fact(page, "Status")).to_have_text("paused")
    assert described(driver)["status"] == "paused"

    # The token is known now.
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(fact(page, "Status")).to_have_text("running")
    assert described(driver)["status"] == "running"

    region(page, "Leaderboard").get_by_role("link", name="Trial 1", exact=True).click()
    region(page, "Trial 1").get_by_role("button", name="Stop this trial").click()
    expect(dialog).not_to_contain_text("Token")
    expect(dialog).to_contain_text("stays stopped when the run goes on or is extended")
    dialog.get_by_role("button", name="Stop trial 1").click()
    expect(dialog).to_have_count(0)
    driver.step(2)
    expect(region(page, "Trial 1")).to_contain_text("Stopped by")
    (stopped,) = (trial for trial in described(driver)["trials"] if trial["trial"] == 1)
    assert (stopped["status"], stopped["epochs"] < 3) == ("stopped", True)

    page.get_by_role("button", name="Extend …").click()
    dialog.get_by_label("Models in all").fill("3")
    dialog.get_by_role("button", name="Extend the run").click()
    expect(dialog).to_have_count(0)
    leaders(page, 3)
    driver.step(10)
    expect(fact(page, "Status")).to_have_text("completed")
    driver.wait()
    known = described(driver)
    assert (known["num_trials"], known["status"]) == (3, "completed")
    assert {trial["trial"]: trial["status"] for trial in known["trials"]} == {
        0: "completed",
        1: "stopped",
        2: "completed",
    }


def test_a_trial_is_cloned_with_another_value_from_its_panel(
    visit: Watched, serve: Serve, driver: Driver
) -> None:
    driver.start(2)
    dashboard = serve(driver.store)
    page = opened(visit, dashboard)
    region(page, "Leaderboard").get_by_role("link", name="Trial 1", exact=True).click()
    panel = region(page, "Trial 1")
    panel.get_by_role("button", name="Clone …").click()
    form = panel.get_by_role("form", name="Clone of trial 1")
    before = {trial["trial"]: trial["params"] for trial in described(driver)["trials"]}[1]
    expect(form.get_by_label("width")).to_have_value(str(before["width"]))
    form.get_by_label("lr").fill("fast")
    form.get_by_role("button", name="Clone trial 1").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill(dashboard.token or "")
    visit.expected.append("/commands: 400|status of 400")
    dialog.get_by_role("button", name="Clone trial 1").click()
    expect(dialog.locator(".note")).to_contain_text("lr is 'fast', but it takes a number")
    dialog.get_by_role("button", name="Cancel").click()

    form.get_by_label("lr").fill("0.5")
    form.get_by_role("button", name="Clone trial 1").click()
    expect(dialog.locator("dl")).to_have_text("lr0.5")
    dialog.get_by_role("button", name="Clone trial 1").click()
    expect(dialog).to_have_count(0)
    expect(
        page.get_by_text("trial 2 of run steps is a clone of trial 1 with lr=0.5; it begins")
    ).to_be_visible()
    assert {row["Trial"]: row["Clone of"] for row in leaders(page, 3)} == {"0": "", "1": "", "2": "1"}
    driver.step(9)
    expect(fact(page, "Status")).to_have_text("completed")
    driver.wait()
    region(page, "Leaderboard").get_by_role("link", name="Trial 2", exact=True).click()
    expect(region(page, "Trial 2").locator("dl").first).to_contain_text("Clone oftrial 1")
    (clone,) = (trial for trial in described(driver)["trials"] if trial["trial"] == 2)
    assert (clone["clone_of"], clone["copy_of"], clone["params"]) == (1, None, {**before, "lr": 0.5})


def test_what_is_asked_while_nobody_drives_the_run_is_shown_until_it_goes_on(
    visit: Watched, serve: Serve, driver: Driver
) -> None:
    driver.start(2)
    dashboard = serve(driver.store)
    page = opened(visit, dashboard)
    leaders(page, 2)
    driver.kill()
    expect(fact(page, "Driver")).to_have_text("nobody drives it")
    region(page, "Leaderboard").get_by_role("row").nth(2).click(position={"x": 300, "y": 10})
    page.get_by_role("button", name="Clone …").click()
    form = page.get_by_role("form", name="Clone of trial 1")
    form.get_by_label("lr").fill("0.5")
    form.get_by_role("button", name="Clone trial 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("A new trial begins once the run goes on. Nobody drives the run now")
    expect(dialog).not_to_contain_text("when a worker is free")
    dialog.get_by_label("Token").fill(dashboard.token or "")
    dialog.get_by_role("button", name="Clone trial 1").click()
    expect(page.get_by_text("nobody drives run steps now: the command is kept")).to_be_visible()
    waits = "1 command waits until the run goes on: clone trial 1 with lr=0.5"
    expect(page.get_by_text(waits)).to_be_visible()
    page.get_by_role("button", name="Extend …").click()
    expect(dialog).to_contain_text("Nobody drives the run now: the command is kept until it goes on.")
    dialog.get_by_label("Models in all").fill("3")
    dialog.get_by_role("button", name="Extend the run").click()
    more = "2 commands wait until the run goes on: clone trial 1 with lr=0.5; extend num_models=3"
    expect(page.get_by_text(more)).to_be_visible()
    later = visit(page.url)
    expect(later.get_by_text(more)).to_be_visible()
    driver.start(2)
    for each in (page, later):
        expect(fact(each, "Status")).to_have_text("running")
        leaders(each, 4)
        expect(each.get_by_text("the command is kept")).to_have_count(0)
        expect(each.get_by_text("until the run goes on")).to_have_count(0)
    driver.step(20)
    driver.wait()
    assert described(driver)["num_trials"] == 4


def test_a_run_is_stopped_from_its_page_and_goes_on_later(
    visit: Watched, serve: Serve, driver: Driver
) -> None:
    driver.start(2)
    dashboard = serve(driver.store)
    page = opened(visit, dashboard)
    page.get_by_role("button", name="Stop …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill(dashboard.token or "")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Stop …").click()
    dialog.get_by_label("Token").fill(dashboard.token or "")
    dialog.get_by_role("button", name="Stop the run").click()
    expect(dialog).to_have_count(0)
    driver.step(2)
    expect(fact(page, "Driver")).to_have_text("nobody drives it")
    assert described(driver)["status"] != "running"
    driver.start(2)
    expect(fact(page, "Status")).to_have_text("running")
    driver.step(10)
    expect(fact(page, "Status")).to_have_text("completed")
    driver.wait()


def test_a_dashboard_for_reading_has_no_commands(visit: Watched, serve: Serve, driver: Driver) -> None:
    driver.start(2)
    dashboard = serve(driver.store, options=("--read-only",))
    assert dashboard.token is None
    page = opened(visit, dashboard)
    region(page, "Leaderboard").get_by_role("link", name="Trial 0", exact=True).click()
    expect(region(page, "Trial 0")).to_be_visible()
    expect(page.get_by_role("group", name="Control of the run")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop this trial")).to_have_count(0)
