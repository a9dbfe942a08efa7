"""Pages for those who use no pointer, see little, or read on a phone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.sampling import diagonal
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.driving import Driver
from tests.services.browser.looking import fact, leaders, region, rows_of

PAGES: dict[str, Callable[[Page], Locator]] = {
    "runs": lambda page: page.get_by_role("link", name="asha"),
    "runs/0/grid?trial=9": lambda page: region(page, "Trial 9").get_by_role("img"),
    "runs/0/grid?b.%40value=0.5..": lambda page: region(page, "Leaderboard").get_by_role(
        "link", name="Trial 9"
    ),
    "runs/0/grid/importance": lambda page: page.get_by_role("row", name="width"),
    "runs/0/grid/slices": lambda page: page.locator("figure canvas").first,
    "runs/0/grid/ended": lambda page: page.get_by_label("Traceback"),
    "runs/2/asha/ended": lambda page: page.get_by_role("heading", name="8 trials"),
    "runs/2/asha/schedule": lambda page: page.get_by_role("table", name="Idle time of each worker"),
    "runs/4/EXPERIMENT/logs": lambda page: page.get_by_role("log"),
    "runs/4/EXPERIMENT/settings": lambda page: page.get_by_role("heading", name="Search space"),
    "runs/4/EXPERIMENT?trial=0": lambda page: region(page, "Leaderboard").get_by_role("link", name="Trial 3"),
    "compare?runs=2%2Fasha%2C2%2Fother": lambda page: page.get_by_role("table"),
    "data": lambda page: page.get_by_role("listitem").first,
    "data/2": lambda page: region(page, "Rows").get_by_role("row").nth(2),
    "stock": lambda page: page.get_by_role("listitem").first,
    "stock/1?at=LATE&a=EARLY&b=LATE&model=model%2Fnet": lambda page: (
        region(page, "Tensors").get_by_role("img").first
    ),
    "plan?ask=1&workers=4&rows=1000&rows_per_second=50&data_gb=1&models=4&epochs=2": lambda page: region(
        page, "Estimates"
    ),
    "nothing": lambda page: page.get_by_role("link", name="Go to the runs"),
}
_AXE = """async () => {
    const found = await axe.run(document, { resultTypes: ['violations'] });
    return found.violations.map(each => `${each.id}: ${each.nodes.map(node => node.html.slice(0, 200)).join(' | ')}`);
}"""


def named(route: str, shown: Dashboard) -> str:
    """The route with names that differ from run to run."""
    late, early = (commit["commit"] for commit in shown.json("/api/stock/1/log?all=1"))
    (run,) = (run["run"] for run in shown.json("/api/runs")["runs"] if run["place"] == "4")
    return route.replace("EXPERIMENT", run).replace("LATE", late).replace("EARLY", early)


@pytest.mark.parametrize("route", PAGES)
def test_pages_are_usable_in_light_and_dark_and_in_every_width(
    visit: Watched, shown: Dashboard, axe: str, route: str
) -> None:
    looks = sorted(diagonal(f"looks of {route}", ("light", "dark"), (1440, 1000, 360)))
    page = visit(shown.page(named(route, shown)), color_scheme=looks[0][0])
    page.evaluate(axe)
    for (before, _), (scheme, width) in zip([looks[0], *looks], looks, strict=False):
        page.set_viewport_size({"width": width, "height": 800})
        if scheme != before:
            # What is out of view has its colours of before until it is seen, and axe looks at it, too.
            page.emulate_media(color_scheme=scheme)
            page.reload()
            page.evaluate(axe)
        expect(PAGES[route](page)).to_be_visible()
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        assert page.evaluate(_AXE) == [], f"{scheme}, {width} pixels"
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, "nothing lies beside the page"


_BROKEN = """() => [...document.querySelectorAll('td.number, th.number')].filter(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const boxes = [...range.getClientRects()].filter(box => box.width > 0);
    return Math.max(...boxes.map(box => box.bottom)) - Math.min(...boxes.map(box => box.top)) > 30;
}).map(cell => cell.innerText)"""


@pytest.mark.parametrize("width", [1000, 360])
@pytest.mark.parametrize(
    "route", ["data/2", "data/4", "runs/2/asha/schedule", "stock/1?at=LATE&a=EARLY&b=LATE&model=model%2Fnet"]
)
def test_numbers_in_tables_stay_in_one_line(visit: Watched, shown: Dashboard, route: str, width: int) -> None:
    page = visit(shown.page(named(route, shown)), viewport={"width": width, "height": 800})
    expect(page.locator("td.number").first).to_be_attached()
    expect(page.get_by_text("Reading ")).to_have_count(0)
    assert page.evaluate(_BROKEN) == []
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_a_phone_shows_how_runs_stand_without_scrolling(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs"), viewport={"width": 360, "height": 800})
    rows = rows_of(region(page, "Runs").locator("table"), 5)
    assert list(rows[0])[:3] == ["Run", "Status", "Best"]
    for row in region(page, "Runs").locator("tbody tr").all():
        box = row.locator("td").nth(2).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 348


def test_places_are_told_apart_by_their_ends(
    visit: Watched, serve: Any, searches: Any, tmp_path: Any
) -> None:
    stores = [tmp_path / "a" / ("long" * 20) / name / "store" for name in ("one", "two")]
    for store in stores:
        shutil.copytree(searches, store)
    page = visit(serve(*stores).page("runs"))
    rows = rows_of(region(page, "Runs").locator("table"), 4)
    assert {row["Place"] for row in rows} == {"…/one/store", "…/two/store"}
    box = region(page, "Runs").locator("tbody tr").first.locator("td").last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 1440


def tab_to(page: Page, goal: Locator, most: int = 80) -> None:
    """Press Tab until something has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if goal.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"no Tab leads to {goal}")


def test_keys_alone_open_a_run_choose_a_trial_and_another_part(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs"))
    rows_of(region(page, "Runs").locator("table"), 5)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, region(page, "Runs").get_by_role("link", name="grid", exact=True))
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("grid")
    expect(page.locator("h1")).to_be_focused()
    leaders(page, 12)
    trial = region(page, "Leaderboard").get_by_role("link", name="Trial 9", exact=True)
    tab_to(page, trial)
    page.keyboard.press("Enter")
    expect(region(page, "Trial 9")).to_be_visible()
    expect(trial).to_be_focused()
    part = page.get_by_role("link", name="Schedule")
    part.focus()
    page.keyboard.press("Enter")
    chart = page.get_by_role("img", name="1 worker by time")
    tab_to(page, chart)
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile(r"begin=[\d.]+"))
    expect(chart).to_be_focused()
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("begin="))


def test_what_is_typed_and_chosen_keeps_the_focus_where_it_is(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs"))
    search = page.get_by_label("Search in runs")
    search.focus()
    page.keyboard.type("other", delay=5)
    expect(search).to_have_value("other")
    expect(region(page, "Runs").locator("tbody a")).to_have_text(["other"])
    expect(search).to_be_focused()
    page = visit(shown.page("runs/0/grid"))
    leaders(page, 12)
    order = region(page, "Leaderboard").get_by_role("button", name="lr", exact=True)
    order.focus()
    scrolled = page.evaluate("scrollY")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("sort=-lr"))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("sort=lr"))
    expect(order).to_be_focused()
    assert page.evaluate("scrollY") == scrolled


def test_a_dialog_is_left_by_escape_and_gives_the_focus_back(
    visit: Watched, serve: Any, driver: Driver
) -> None:
    driver.start(1)
    dashboard = serve(driver.store)
    page = visit(dashboard.page("runs"))
    page.get_by_role("link", name="steps").click()
    expect(fact(page, "Status")).to_have_text("running")
    button = page.get_by_role("button", name="Kill …")
    tab_to(page, button)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Kill the run")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()


def test_the_colours_are_those_that_were_chosen(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs"), color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_label("Colours of the page").select_option("light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
