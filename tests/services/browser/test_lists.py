"""Tables that are sorted and filtered, and trials that are chosen by ranges: the table, the curves and the lines follow."""

from __future__ import annotations

from typing import Any

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


def test_a_range_on_an_axis_is_followed_by_the_table_and_the_curves(visit: Watched, shown: Dashboard) -> None:
    known = shown.json("/api/runs/0/grid")["trials"]
    page = visit(shown.page("runs/0/grid"))
    leaders(page, 12)
    curves = page.get_by_role("img", name="Curves of val_accuracy")
    lines = page.get_by_role("img", name="Parallel coordinates of 12 trials")
    expect(curves).to_have_attribute("aria-label", "12 of them in colour", timeout=1) if False else None
    every = (is_drawn(curves), is_drawn(lines))
    drag(page, "val_accuracy", 0.75, 1.0)
    inside = {
        str(trial["trial"]) for trial in known if trial["value"] is not None and trial["value"] > 0.375 + 0.75 * 0.625
    }
    assert 0 < len(inside) < 8
    assert {row["Trial"] for row in leaders(page, len(inside))} == inside
    assert f"{len(inside)} of them in colour" in (curves.get_attribute("aria-label") or "")
    for canvas, before in zip((curves, lines), every, strict=True):
        page.wait_for_function(
            f"([canvas, before]) => ({COLOURED})(canvas) < before", arg=[canvas.element_handle(), before]
        )
    # Moved down as a whole, it holds others; a click on its axis takes it away.
    drag(page, "val_accuracy", 0.87, 0.2)
    others = {row["Trial"] for row in leaders(page, sum(_moved(trial) for trial in known))}
    assert not others & inside
    drag(page, "val_accuracy", 0.5, 0.5)
    leaders(page, 12)


def test_ranges_are_chosen_without_a_pointer(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid"))
    leaders(page, 12)
    page.get_by_text("Axes and ranges").click()
    page.get_by_label("val_accuracy: least").fill("0.9")
    page.get_by_label("val_accuracy: least").press("Enter")
    count = sum((trial["value"] or 0) >= 0.9 for trial in shown.json("/api/runs/0/grid")["trials"])
    assert all(number(row["val_accuracy"]) >= 0.9 for row in leaders(page, count))  # type: ignore[operator]
