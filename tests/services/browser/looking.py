"""What a page shows, as numbers and texts."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

PATIENCE = 30_000
"""Milliseconds that a page may take for what a test waits for, on a busy machine."""

expect.set_options(timeout=PATIENCE)

_TABLE = """table => {
    const text = cell => cell.innerText.replace(/[↑↓]/g, '').trim();
    const rows = [...table.querySelectorAll('tbody tr:not(.gap)')];
    const columns = [...table.querySelectorAll('thead tr > *')].map(text);
    return rows.map(row => Object.fromEntries([...row.cells].map((cell, i) => [columns[i], text(cell)])));
}"""
_FACTS = """list => Object.fromEntries([...list.querySelectorAll('dt')].map(
    term => [term.innerText.trim(), term.nextElementSibling.innerText.trim()]))"""
_COLOURED = """canvas => {
    if (!(canvas.width && canvas.height)) return 0;
    const context = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) {
        const [red, green, blue] = data.subarray(i, i + 3);
        if (Math.max(red, green, blue) - Math.min(red, green, blue) > 24) count += 1;
    }
    return count;
}"""


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def rows_of(table: Locator, count: int) -> list[dict[str, str]]:
    """The rows of a table, by the names of its columns, once it has so many."""
    expect(table.locator("tbody tr:not(.gap)")).to_have_count(count)
    found: list[dict[str, str]] = table.evaluate(_TABLE)
    return found


def leaders(page: Page, count: int) -> list[dict[str, str]]:
    """The rows of the leaderboard."""
    return rows_of(region(page, "Leaderboard").locator("table"), count)


def facts(part: Locator) -> dict[str, str]:
    """Terms and what stands beside them."""
    found: dict[str, str] = part.evaluate(_FACTS)
    return found


def fact(page: Page, name: str) -> Locator:
    """What stands beside a term."""
    return page.locator("dl.facts-row > div", has=page.get_by_text(name, exact=True)).locator("dd")


def epochs_done(page: Page, share: int) -> None:
    """Wait until so many percent of a run's epochs are done."""
    bar = page.get_by_role("progressbar", name="Progress of the run")
    expect(bar).to_have_attribute("aria-valuenow", str(share))


def number(text: str) -> float | None:
    """The number that a text is for people."""
    return float(text.replace("−", "-").replace("\u202f", "")) if text else None


def seconds(text: str) -> float:
    """Those of a duration in words."""
    units = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    words = text.split()
    return sum(float(amount) * units[unit] for amount, unit in zip(words[::2], words[1::2], strict=True))


def is_drawn(canvas: Locator, above: float = 0, below: float = 1e9) -> int:
    """Wait until a number of pixels between these has a colour, which neither the background nor grey is; how many."""
    canvas.page.wait_for_function(
        f"([canvas, above, below]) => {{ const n = ({_COLOURED})(canvas); return n > above && n < below; }}",
        arg=[canvas.element_handle(), above, below],
    )
    return int(canvas.evaluate(_COLOURED))
