"""What is drawn: points of slices, curves and their axes, bars of schedules."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.looking import is_drawn, region

_INK = """canvas => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 3; i < data.length; i += 4) count += Number(data[i] > 0);
    return count;
}"""


def has_ink(canvas: Locator) -> None:
    """Wait until anything is drawn on a canvas that is transparent before."""
    canvas.page.wait_for_function(f"canvas => ({_INK})(canvas) > 0", arg=canvas.element_handle())


def test_failed_trials_have_no_place_in_a_slice_on_any_scale(visit: Watched, shown: Dashboard) -> None:
    for query in ("", "&ylog=1"):
        page = visit(shown.page(f"runs/0/grid/slices?status=failed{query}"))
        canvas = page.get_by_role("img", name="val_accuracy of trials by lr")
        has_ink(canvas)
        assert is_drawn(canvas, above=-1) < 9, "a point has more; those with a value are grey"
        expect(page.get_by_text("0 of 8 trials in colour; 4 without a value")).to_be_visible()
    page.get_by_role("button", name="Show all trials").click()
    expect(page.get_by_text("8 trials; 4 without a value")).to_be_visible()


def axes_of(page: Page) -> str:
    """The picture of the axes of the curves, with their labels and lines."""
    return str(region(page, "Curves").locator(".u-wrap canvas").evaluate("canvas => canvas.toDataURL()"))


def test_curves_have_the_same_axes_on_a_scale_that_is_chosen_as_on_one_of_a_link(
    visit: Watched, shown: Dashboard
) -> None:
    page = visit(shown.page("runs/0/grid"))
    curves = region(page, "Curves")
    is_drawn(curves.get_by_role("img"))
    linear = axes_of(page)
    curves.get_by_label("Log scale").check()
    is_drawn(curves.get_by_role("img"))
    other = visit(page.url)
    is_drawn(region(other, "Curves").get_by_role("img"))
    logarithmic = axes_of(other)
    assert logarithmic != linear
    assert axes_of(page) == logarithmic
    curves.get_by_label("Log scale").uncheck()
    is_drawn(curves.get_by_role("img"))
    assert axes_of(page) == linear


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_curve_of_one_point_is_a_dot(
    visit: Watched, shown: Dashboard, scheme: Literal["light", "dark"]
) -> None:
    (run,) = (each["run"] for each in shown.json("/api/runs")["runs"] if each["place"] == "3")
    assert sum(trial["value"] is not None for trial in shown.json(f"/api/runs/3/{run}")["trials"]) == 1
    page = visit(shown.page(f"runs/3/{run}"), color_scheme=scheme)
    # A disc with a radius of 3 has 28 pixels.
    is_drawn(region(page, "Curves").get_by_role("img"), above=27, below=60)


def test_axes_of_whole_numbers_have_whole_ticks(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid?axes=%40epochs,%40value"))
    is_drawn(page.get_by_role("img", name="Parallel coordinates"))
    ticks = page.locator("text.tick").all_text_contents()
    assert ticks[:3] == ["0", "1", "2"]
