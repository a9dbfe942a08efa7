"""The address of a view shows the same in another window, and the way back leads through the views before."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.looking import is_drawn, leaders, region, rows_of


def test_all_that_is_chosen_in_a_run_is_in_its_address(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid"))
    leaders(page, 12)
    board = region(page, "Leaderboard")
    board.get_by_role("button", name="lr", exact=True).click()
    board.get_by_text("Columns").click()
    board.get_by_label("train_loss").check()
    board.get_by_text("Columns").click()
    board.get_by_label("Status of trials").select_option("completed")
    board.get_by_role("link", name="Trial 9", exact=True).click()
    curves = region(page, "Curves")
    curves.get_by_label("Metric").select_option("val_loss")
    curves.get_by_label("Smoothing").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    curves.get_by_label("Log scale").check()
    page.locator("summary", has_text="Axes and ranges").click()
    page.get_by_label("val_accuracy: least").fill("0.5")
    page.get_by_label("val_accuracy: least").press("Enter")
    page.get_by_label("val_accuracy: logarithmic").check()
    page.get_by_role("button", name="Move lr to the left").click()
    region(page, "Trial 9").get_by_label("Metric").select_option("train_loss")

    def view(page: Page) -> dict[str, Any]:
        leaders(page, sum(trial["value"] is not None and trial["value"] >= 0.5 for trial in trials))
        curves = region(page, "Curves")
        is_drawn(curves.get_by_role("img"))
        panel = region(page, "Trial 9")
        expect(panel.get_by_role("img", name="train_loss of trial 9 by epoch")).to_be_visible()
        rows = region(page, "Leaderboard").locator("table")
        return {
            "rows": rows.inner_text(),
            "sorted": rows.locator("th[aria-sort]").inner_text(),
            "axes": page.locator("text.name").all_text_contents(),
            "ticks": page.locator("text.tick").all_text_contents(),
            "ranges": page.locator("rect.range").evaluate_all("all => all.map(each => each.outerHTML)"),
            "curves": [
                curves.get_by_label("Metric").input_value(),
                curves.get_by_label("Smoothing").input_value(),
                curves.get_by_label("Log scale").is_checked(),
                curves.get_by_role("img").get_attribute("aria-label"),
            ],
        }

    trials = shown.json("/api/runs/0/grid")["trials"]
    here = view(page)
    assert here["curves"][:3] == ["val_loss", "0.03", True]
    assert [name.strip() for name in here["axes"]] == ["lr", "width", "val_accuracy"]
    assert len(here["ranges"]) == 1
    assert view(visit(page.url)) == here


def test_trials_and_commits_are_links_which_keep_what_is_chosen(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid?sort=-lr"))
    leaders(page, 12)
    link = region(page, "Leaderboard").get_by_role("link", name="Trial 9", exact=True)
    other = visit(str(link.evaluate("link => link.href")))
    expect(region(other, "Trial 9")).to_be_visible()
    assert leaders(other, 12) == leaders(page, 12)
    late, early = (commit["commit"] for commit in shown.json("/api/stock/1/log?all=1"))
    page = visit(shown.page(f"stock/1?a={early}&b={late}"))
    commits = region(page, "Commits")
    links = {
        commits.get_by_role("link", name=f"Commit {early[:10]}").evaluate("link => link.href"),
        commits.get_by_role("link", name="first", exact=True).evaluate("link => link.href"),
    }
    (address,) = links
    other = visit(str(address))
    expect(region(other, f"Commit {early[:10]}")).to_be_visible()
    expect(region(other, "Difference")).to_be_visible()


def test_a_zoom_is_in_the_address_and_the_way_back_undoes_it(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid"))
    curves = region(page, "Curves")
    is_drawn(curves.get_by_role("img"))
    over = curves.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.8)
    page.mouse.up()
    expect(page).to_have_url(re.compile("zoom="))
    expect(curves.get_by_role("button", name="Show all")).to_be_visible()
    expect(region(visit(page.url), "Curves").get_by_role("button", name="Show all")).to_be_visible()
    page.go_back()
    expect(curves.get_by_role("button", name="Show all")).to_have_count(0)
    page.go_forward()
    expect(curves.get_by_role("button", name="Show all")).to_be_visible()
    over.dblclick(position={"x": 20, "y": 20})
    expect(page).not_to_have_url(re.compile("zoom="))


def test_a_part_of_the_schedule_is_in_the_address(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/2/asha/schedule"))
    chart = page.locator("canvas")
    is_drawn(chart)
    whole = chart.get_attribute("aria-label")
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile(r"begin=[\d.]+&end=[\d.]+"))
    expect(chart).not_to_have_attribute("aria-label", whole or "")
    other = visit(page.url).locator("canvas")
    expect(other).to_have_attribute("aria-label", chart.get_attribute("aria-label") or "")
    page.get_by_role("button", name="Whole run").click()
    expect(chart).to_have_attribute("aria-label", whole or "")


@pytest.mark.parametrize("run", ["runs?sort=-best&status=completed&q=asha&chosen=2%2Fasha"])
def test_the_list_is_that_of_its_address(visit: Watched, shown: Dashboard, run: str) -> None:
    page = visit(shown.page(run))
    expect(page.get_by_label("Search in runs")).to_have_value("asha")
    expect(page.get_by_label("Status")).to_have_value("completed")
    expect(page.get_by_label("Choose run asha")).to_be_checked()
    rows = rows_of(region(page, "Runs").locator("table"), 2)
    best = {each["run"]: each["best"] for each in shown.json("/api/runs")["runs"]}
    assert [row["Run"] for row in rows] == sorted(("asha", "other"), key=lambda name: -best[name])


def test_the_way_back_leads_through_the_pages(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs"))
    region(page, "Runs").get_by_role("link", name="asha").click()
    expect(page.locator("h1")).to_have_text("asha")
    expect(page).to_have_title("asha · Hopyard")
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_role("heading", name="Search space")).to_be_visible()
    page.go_back()
    expect(region(page, "Leaderboard")).to_be_visible()
    page.go_back()
    expect(page.locator("h1")).to_have_text("Runs")
    page.go_forward()
    expect(page.locator("h1")).to_have_text("asha")


def test_versions_that_are_compared_are_in_the_address(visit: Watched, shown: Dashboard) -> None:
    late, early = (commit["commit"] for commit in shown.json("/api/stock/1/log?all=1"))
    page = visit(shown.page("stock/1"))
    page.get_by_label(f"Difference from {early[:10]}").check()
    page.get_by_label(f"Difference to {late[:10]}").check()
    page.get_by_role("button", name="Histograms before and now").click()
    expect(region(page, "Model model/net")).to_be_visible()
    other = visit(page.url)
    expect(
        region(other, "Difference").get_by_role("heading", name=f"From {early[:10]} to {late[:10]}")
    ).to_be_visible()
    expect(region(other, "Model model/net")).to_be_visible()
    expect(region(other, f"Commit {late[:10]}")).to_be_visible()


def test_a_plan_and_a_place_in_data_are_in_the_address(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("plan"))
    page.get_by_label("Models", exact=False).first.fill("7")
    page.get_by_role("button", name="Estimate").click()
    table = region(page, "Estimates").inner_text()
    other = visit(page.url)
    assert region(other, "Estimates").inner_text() == table
    expect(other.get_by_label("Models", exact=False).first).to_have_value("7")
    page.goto(shown.page("data/0"))
    page.get_by_role("button", name="Next").click()
    table = region(page, "Rows").get_by_role("row").nth(1)
    expect(table).to_contain_text("20")
    other = visit(page.url)
    expect(region(other, "Rows").get_by_role("row").nth(1)).to_have_text(table.text_content() or "")
