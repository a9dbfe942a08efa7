"""Tables that are sorted and filtered, and trials that are chosen by ranges, which tables, curves and lines follow."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Page, expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.looking import is_drawn, leaders, number, region


def falling(values: list[Any]) -> bool:
    return values == sorted(values, reverse=True)


def drag(page: Page, axis: str, begin: float, end: float) -> None:
    """Along an axis of the parallel coordinates, from one share of its height, from below, to another."""
    plot = region(page, "Parallel coordinates").locator(".plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    at = plot.locator("svg:not(.over) text.name", has_text=axis).evaluate(
        "label => { const line = label.nextElementSibling; return [+line.getAttribute('x1'), "
        "+line.getAttribute('y1'), +line.getAttribute('y2')]; }"
    )
    assert box is not None
    x, top, bottom = box["x"] + at[0], box["y"] + at[1], box["y"] + at[2]
    page.mouse.move(x, bottom + (top - bottom) * begin)
    page.mouse.down()
    page.mouse.move(x, bottom + (top - bottom) * (begin + end) / 2)
    page.mouse.move(x, bottom + (top - bottom) * end)
    page.mouse.up()


def test_runs_are_sorted_and_found(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs"))
    table = region(page, "Runs")
    names = table.locator("tbody a")
    expect(names).to_have_count(5)
    table.get_by_role("button", name="Run", exact=True).click()
    expect(table.get_by_role("columnheader", name="Run")).to_have_attribute("aria-sort", "ascending")
    assert names.all_inner_texts() == sorted(names.all_inner_texts())
    table.get_by_role("button", name="Best").click()
    expect(table.get_by_role("columnheader", name="Best")).to_have_attribute("aria-sort", "descending")
    best = [number(text) for text in table.locator("tbody tr td:nth-child(5)").all_inner_texts()]
    assert falling([each for each in best if each is not None])
    page.get_by_label("Status").select_option("interrupted")
    expect(names).to_have_count(1)
    page.get_by_label("Status").select_option("")
    page.get_by_label("Search in runs").fill("ash 9")
    expect(table).to_contain_text("No run fits the search.")
    page.get_by_label("Search in runs").fill("ASHA other")
    expect(names).to_have_text(["other"])


def test_trials_are_sorted_found_and_shown_with_other_columns(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid"))
    board = region(page, "Leaderboard")
    leaders(page, 12)
    board.get_by_role("button", name="lr", exact=True).click()
    expect(board.get_by_role("columnheader", name="lr")).to_have_attribute("aria-sort", "descending")
    assert falling([number(row["lr"]) for row in leaders(page, 12)])
    board.get_by_label("Status of trials").select_option("failed")
    assert {row["Trial"] for row in leaders(page, 4)} == {"4", "5", "6", "7"}
    expect(board.get_by_role("status").first).to_have_text("4 of 12 trials")
    board.get_by_role("button", name="Show all trials").click()
    board.get_by_label("Search in trials").fill("valueerror three")
    assert {row["Status"] for row in leaders(page, 4)} == {"failed"}
    board.get_by_label("Search in trials").fill("")
    board.get_by_text("Columns").click()
    board.get_by_label("train_loss").check()
    board.get_by_label("lr", exact=True).uncheck()
    rows = leaders(page, 12)
    assert "train_loss" in rows[0]
    assert "lr" not in rows[0]
    known = {trial["trial"]: trial for trial in shown.json("/api/runs/0/grid")["trials"]}
    for row in rows:
        loss = known[int(row["Trial"])]["metrics"].get("train_loss")
        assert (number(row["train_loss"]) is None) == (loss is None)


def brushed(page: Page, trials: list[dict[str, Any]], count: int) -> tuple[float, float]:
    """The range of the value that the address has, which the table keeps to; it leaves so many trials."""
    expect(page).to_have_url(re.compile("b\\.%40value="))
    text = parse_qs(page.url.partition("?")[2])["b.@value"][0]
    low, high = (
        float(end) if end else default for end, default in zip(text.split(".."), (-9.0, 9.0), strict=True)
    )
    inside = {str(trial["trial"]) for trial in trials if low <= (trial["value"] or -10) <= high}
    assert {row["Trial"] for row in leaders(page, count)} == inside
    return low, high


def test_a_range_on_an_axis_is_followed_by_the_table_and_the_curves(visit: Watched, shown: Dashboard) -> None:
    trials = shown.json("/api/runs/0/grid")["trials"]
    values = [trial["value"] for trial in trials if trial["value"] is not None]
    least, most = min(values), max(values)
    page = visit(shown.page("runs/0/grid"))
    leaders(page, 12)
    curves = page.get_by_role("img", name="Curves of val_accuracy")
    lines = page.get_by_role("img", name="Parallel coordinates of 12 trials")
    every = is_drawn(curves), is_drawn(lines)

    drag(page, "val_accuracy", 0.75, 1.0)
    among = [value for value in values if value > least + 0.75 * (most - least)]
    assert 0 < len(among) < len(values)
    low, high = brushed(page, trials, len(among))
    assert (low, high) == (pytest.approx(least + 0.75 * (most - least), abs=0.01), 9.0), (
        "the end of an axis is open"
    )
    expect(curves).to_have_accessible_name(re.compile(f", {len(among)} of them in colour"))
    fewer = is_drawn(curves, below=every[0]), is_drawn(lines, below=every[1])

    # The range is moved as a whole, and a click on its axis takes it away.
    drag(page, "val_accuracy", 0.87, 0.2)
    expect(page).to_have_url(re.compile("b\\.%40value=[^&]*\\.\\.[0-9]"))
    low_ones = [value for value in values if 0.08 < (value - least) / (most - least) < 0.33]
    low, high = brushed(page, trials, len(low_ones))
    assert high - low == pytest.approx(0.25 * (most - least), abs=0.02)
    drag(page, "val_accuracy", 0.6, 0.6)
    leaders(page, 12)
    is_drawn(curves, above=fewer[0])
    is_drawn(lines, above=fewer[1])


def test_a_trial_under_the_pointer_is_told_of_and_chosen_by_a_click(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid"))
    row = region(page, "Leaderboard").locator("tbody tr").nth(2)
    name = f"trial {leaders(page, 12)[2]['Trial']}"
    row.hover()
    expect(page.locator(".hint strong")).to_have_text(name)
    expect(page.locator("path.hovered")).to_have_count(2)
    row.click(position={"x": 300, "y": 10})
    expect(region(page, name.capitalize())).to_be_visible()


def test_ranges_are_chosen_without_a_pointer(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid"))
    leaders(page, 12)
    page.locator("summary", has_text="Axes and ranges").click()
    page.get_by_label("val_accuracy: least").fill("0.9")
    page.get_by_label("val_accuracy: least").press("Enter")
    count = sum((trial["value"] or 0) >= 0.9 for trial in shown.json("/api/runs/0/grid")["trials"])
    assert all(number(row["val_accuracy"]) >= 0.9 for row in leaders(page, count))  # type: ignore[operator]
