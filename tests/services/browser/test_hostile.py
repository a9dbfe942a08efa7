"""Texts of others are nothing but texts: no script in them runs, no element comes of them, none leaves its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.looking import facts, leaders, region, rows_of
from tests.services.browser.searches import IMAGE, LINK, LONG, METRIC, SCRIPT, TURNED
from tests.services.browser.test_export import exported
from tests.web.conftest import HOSTILE

from hopyard import StockRoom


def harmless(page: Page) -> None:
    """Nothing that was written has become more than a text."""
    assert page.evaluate("window.owned") is None
    assert (
        page.locator(
            "#app script, main img[src=x], main [onerror], main [onload], a[href^='javascript:' i]"
        ).count()
        == 0
    )
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), (
        "nothing lies beside the page"
    )


@pytest.fixture
def run(shown: Dashboard) -> str:
    """The hostile run."""
    (found,) = (run["run"] for run in shown.json("/api/runs")["runs"] if run["place"] == "4")
    return str(found)


def test_the_page_of_a_hostile_run(visit: Watched, shown: Dashboard, run: str) -> None:
    page = visit(shown.page(f"runs/4/{run}"))
    rows = leaders(page, 8)
    assert {row["kind"] for row in rows} == {SCRIPT, LINK, TURNED, LONG}
    assert set(rows[0]) >= {f"val_{METRIC}", IMAGE, "kind"}
    expect(page.locator("h1")).to_contain_text(IMAGE)
    # A text that turns the direction of writing ends where its cell does.
    cell = region(page, "Leaderboard").locator("td .data", has_text="constructor").first
    assert cell.evaluate("element => getComputedStyle(element).unicodeBidi") == "isolate"
    harmless(page)
    curves = region(page, "Curves")
    metrics = [f"val_{METRIC}", f"val_{IMAGE}"]
    assert curves.get_by_label("Metric").locator("option").all_text_contents() == metrics
    curves.get_by_label("Metric").select_option(f"val_{IMAGE}")
    expect(page.get_by_role("img", name=f"Curves of val_{IMAGE} by epoch")).to_be_visible()
    region(page, "Leaderboard").get_by_role("link", name="Trial 0", exact=True).click()
    panel = region(page, "Trial 0")
    assert facts(panel.locator("dl.facts").nth(1))["kind"] == SCRIPT
    page.locator("summary", has_text="Axes and ranges").click()
    page.get_by_role("checkbox", name=SCRIPT, exact=True).uncheck()
    assert {row["kind"] for row in leaders(page, 6)} == {LINK, TURNED, LONG}
    assert {row["kind"] for row in leaders(visit(page.url), 6)} == {LINK, TURNED, LONG}
    harmless(page)


@pytest.mark.parametrize(
    ("part", "texts"),
    [
        ("ended", [SCRIPT + LONG]),
        ("logs", [SCRIPT, IMAGE, TURNED, LINK]),
        ("settings", [SCRIPT, IMAGE, TURNED, METRIC]),
        ("slices", [METRIC, IMAGE]),
        ("importance", [METRIC]),
        ("schedule", []),
    ],
)
def test_the_other_parts_of_a_hostile_run(
    visit: Watched, shown: Dashboard, run: str, part: str, texts: list[str]
) -> None:
    page = visit(shown.page(f"runs/4/{run}/{part}"), viewport={"width": 360, "height": 800})
    expect(page.locator("main section").first).to_be_visible()
    for text in texts:
        expect(page.locator("main")).to_contain_text(text)
    harmless(page)


def test_hostile_runs_in_the_list_and_beside_others(visit: Watched, shown: Dashboard, run: str) -> None:
    page = visit(shown.page("runs"))
    expect(region(page, "Runs")).to_contain_text(IMAGE)
    harmless(page)
    page.goto(shown.page(f"compare?runs=4%2F{run}%2C2%2Fasha"))
    expect(region(page, "Comparison")).to_contain_text(METRIC)
    harmless(page)


def test_hostile_columns_and_texts_of_data(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("data/4"))
    table = region(page, "Rows").get_by_role("table")
    rows_of(table, 16)
    shown_texts = set(table.locator("td .text").all_text_contents())
    (cut,) = shown_texts - {SCRIPT, IMAGE, TURNED}
    assert LONG.startswith(cut.rstrip(".…")), "long texts are cut"
    expect(table.get_by_role("columnheader", name=IMAGE)).to_be_visible()
    expect(page.get_by_role("table", name="Columns of train")).to_contain_text(f"x {SCRIPT}")
    harmless(page)


def test_hostile_messages_authors_and_names_in_a_stockroom(
    visit: Watched, serve: type[Dashboard], tmp_path: Path
) -> None:
    stock = StockRoom.init(tmp_path)
    for message in (f"{SCRIPT}{IMAGE}", f"{TURNED}\n\n{LONG}", LONG):
        with stock.enable_write(message=message):
            stock.experiment["text"] = message
    stock.close()
    dashboard = serve(tmp_path)
    commit, before, _ = (each["commit"] for each in dashboard.json("/api/stock/0/log?all=1"))
    page = visit(dashboard.page(f"stock/0?at={before}&a={before}&b={commit}"))
    expect(region(page, f"Commit {before[:10]}").locator(".message")).to_have_text(f"{TURNED}\n\n{LONG}")
    expect(region(page, "Commits")).to_contain_text(f"{SCRIPT}{IMAGE}")
    expect(region(page, "Difference")).to_contain_text(LONG)
    harmless(page)


def test_hostile_addresses(visit: Watched, shown: Dashboard) -> None:
    visit.expected.append(r": 40\d$|status of 40\d")
    page = visit(shown.page("runs"))
    for route in (
        "runs/0/%3Cimg%20src%3Dx%20onerror%3D%22window.owned%3D1%22%3E",
        "runs/0/grid?sort=%3Cscript%3E&cols=%3Cimg%20src%3Dx%3E&q=%3Cimg%20src%3Dx%3E&trial=%3Cb%3E&zoom=a,b,c,d&smooth=9e9",
        "runs/0/grid?b.lr=in%3A%3Cimg%3E&axes=%2525&metric=%3Cscript%3E",
        "stock/1?at=%3Cscript%3E&a=..%2F..&b=%27",
        "data/9?path=..%2F..%2Fetc",
        "compare?runs=%3Cscript%3Ewindow.owned%3D1%3C%2Fscript%3E",
        "%E0%A4%A/__proto__/constructor",
    ):
        page.goto(shown.page(route))
        expect(page.locator("h1")).to_be_visible()
        harmless(page)


def test_a_hostile_run_in_a_file(
    visit: Watched, shown: Dashboard, hostile: Path, run: str, tmp_path: Path
) -> None:
    page = visit(exported(hostile, run, tmp_path), offline=True)
    assert {row["kind"] for row in leaders(page, 8)} == {SCRIPT, LINK, TURNED, LONG}
    harmless(page)
    page.get_by_role("link", name="Stopped and failed").click()
    expect(page.locator("main")).to_contain_text(SCRIPT + LONG)
    harmless(page)
    assert HOSTILE not in page.content()
