"""What users and drivers did to a run is marked in its schedule, and is no idle time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.looking import fact
from tests.web.conftest import RUN

from hopyard.hopper.journal import Journal, read_records
from hopyard.storage import LocalStore


def test_a_pause_is_marked_and_no_idle_time(
    visit: Watched, serve: Callable[..., Dashboard], place: Path, tmp_path: Path
) -> None:
    """A run that was paused for 100 s after its third unit."""
    records = list(read_records(LocalStore(place).runs.at(RUN)))
    units = [number for number, record in enumerate(records) if record["r"] == "unit"]
    pause = units[2] + 1
    since = records[units[2]]["z"]
    later = [
        {name: value + 100.0 if name in ("a", "z") else value for name, value in record.items()}
        for record in records[pause:]
    ]
    commands = [
        {"r": "control", "c": number, "do": do, "z": since + seconds}
        for number, (do, seconds) in enumerate((("pause", 0.0), ("resume", 100.0)), start=1)
    ]
    journal = Journal(LocalStore(tmp_path).runs.at(RUN))
    for record in [*records[:pause], *commands, *later]:
        journal.append(record)
    journal.close()
    shown = serve(tmp_path)
    page = visit(shown.page(f"runs/0/{RUN}/schedule"))
    expect(page.get_by_text("Dashed lines: paused at")).to_be_visible()
    expect(page.get_by_text("resumed at")).to_be_visible()
    expect(fact(page, "From first to last unit")).to_contain_text("paused")
    known = shown.json(f"/api/runs/0/{RUN}")["schedule"]
    assert 99 < known["paused_seconds"] <= 100
    assert known["busy"] > 0.1, "a pause is no idle time"
    expect(fact(page, "Idle, of all workers' time")).to_have_text(f"{100 - 100 * known['busy']:.1f} %")
