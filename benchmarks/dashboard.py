"""Claim: a run of 10,000 trials of 100 epochs is looked at as smoothly as a small one, by a server in little memory.

A run with as many records as such a search writes (two million units) lies in a store; ``hopyard web`` shows it in
headless Chromium without a GPU and without its limit of frames. Measured are:

* first paint, and the moment at which the leaderboard and all curves are there, once the server has read the journal;
  the server's seconds for that are a line of their own;
* frames, from one to the next, while a range is drawn along an axis of the parallel coordinates, and while the pointer
  goes over the curves: the 95th percentile of 100, all of the page's and the compositor's work included;
* bytes that were sent for the page, compressed;
* the time from a new record's being durable to its being on the page;
* the server's largest memory, and its share of a core while it watches a run that goes on and is looked at.

Limits: 1.5 s, 16 ms, 5 MB, 1 s, 200 MB, 1 %. The peers then show the same trials, in the same browser: optuna-dashboard
(SQLite), MLflow (SQLite) and TensorBoard. A line of theirs has our figure of this run as its value and theirs as its
peer, or why they have none, with what of the trials they show for it. ``dashboard.py 1000``: so many trials.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from _dashboards import FRAMES, OURS, PEERS, first_paint, frames, opened, report, report_own
from _many_trials import further_records, write_run
from _peers import PeerError
from hopyard.hopper.journal import Journal
from hopyard.storage import LocalStore

TRIALS, EPOCHS, RECORDS, IDLE_SECONDS = 10_000, 100, 20, 20.0
_CHROMIUM = [
    "--disable-gpu", "--disable-frame-rate-limit", "--disable-gpu-vsync", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
_PLOT = "[aria-label='Hyperparameters and value'] .plot"
_FIRST_AXIS = 64 / 1360  # of its width
_WHOLE = """() => document.querySelectorAll('[aria-label=Leaderboard] tbody tr').length > 5
    && performance.getEntriesByType('resource').some(each => each.name.includes('/curves') && each.responseEnd > 0)
    && performance.now()"""


@contextmanager
def server(store: Path) -> Iterator[tuple[str, int]]:
    """``hopyard web`` over a store: its address and process."""
    command = [sys.executable, "-m", "hopyard", "web", str(store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        try:
            yield found[0], process.pid
        finally:
            process.terminate()


def memory(process: int) -> tuple[float, float]:
    """Largest and present memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return tuple(int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmHWM", "VmRSS"))  # type: ignore[index,return-value]


def cpu(process: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until_read(address: str, run_id: str) -> float:
    """Seconds until the server has read a run."""
    began = time.perf_counter()
    while True:
        with urllib.request.urlopen(f"{address}/api/runs/0/{run_id}") as answer:
            if json.load(answer)["reading"] is None:
                return time.perf_counter() - began


def look(browser: Browser, address: str, run_id: str) -> None:
    """The page of a run: when it is there, what was sent for it, and how long frames take."""
    link = f"{address}/#/runs/0/{run_id}"
    paints, wholes, sizes = [], [], []
    for _ in range(3):
        page, sent = opened(browser, link)
        paints.append(first_paint(page))
        wholes.append(float(page.wait_for_function(_WHOLE, timeout=120_000).json_value()) / 1000)
        sizes.append(sum(sent) / 1e6)
        if len(paints) < 3:
            page.close()
    report_own("first paint", statistics.median(paints), "s", 1.5)
    report_own("leaderboard and curves there", statistics.median(wholes), "s")
    report_own("sent for a run's page", max(sizes), "MB", 5)
    page.wait_for_timeout(3000)  # lines are drawn a few milliseconds a frame
    across = [(0.15 + 0.7 * i / FRAMES, 0.2 + 0.6 * (i * 37 % 101) / 101) for i in range(FRAMES)]
    along = [(_FIRST_AXIS, 0.15 + 0.7 * i / FRAMES) for i in range(FRAMES)]
    for name, selector, kind, points, press in (
        ("hovering over parallel coordinates", _PLOT, "pointermove", across, False),
        ("hovering over curves", "[aria-label=Curves] .u-over", "mousemove", across, False),
        ("brushing", _PLOT, "pointermove", along, True),
    ):
        found = frames(page, selector, kind, points, press)
        report_own(f"{name}, 95th percentile", found, "ms", 16)
    page.close()


def live(browser: Browser, address: str, process: int, store: Path, run_id: str, trials: int) -> None:
    """New records of a run that goes on, and what watching it costs."""
    page, _ = opened(browser, f"{address}/#/runs/0/{run_id}")
    page.wait_for_function(_WHOLE, timeout=120_000)
    waits = []
    journal = Journal(LocalStore(store).runs.at(run_id))
    try:
        for number, record in zip(range(RECORDS), further_records(trials), strict=False):
            journal.append(record)
            journal.flush()
            began = time.perf_counter()
            shown = f"{trials + number + 1:,} ended".replace(",", "\\D")
            page.wait_for_function(
                f"() => /of {shown}/.test(document.querySelector('dl.facts-row').innerText)"
            )
            waits.append(time.perf_counter() - began)
        before = cpu(process)
        page.wait_for_timeout(IDLE_SECONDS * 1000)
        share = (cpu(process) - before) / IDLE_SECONDS
    finally:
        journal.close()
    report_own("new record on the page, slowest", max(waits), "s", 1)
    report_own("server watching a run", share * 100, "% of a core", 1)
    page.close()


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS
    if not (resources.files("hopyard.web") / "static" / "index.html").is_file():
        print("not measured, as the pages of the dashboard are not built: make dashboard", file=sys.stderr)
        return
    program = shutil.which("chromium") or shutil.which("google-chrome")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(dir=".") as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*_CHROMIUM, *root])
        store = Path(folder).resolve() / "store"
        run_id = write_run(store, trials, EPOCHS, ends=False)
        with server(store) as (address, process):
            seconds = until_read(address, run_id)
            report_own("journal read", seconds, "s")
            look(browser, address, run_id)
            live(browser, address, process, store, run_id, trials)
            largest, _ = memory(process)
            report_own("memory of the server, largest", largest, "MB", 200)
        for peer in PEERS:
            try:
                peer.measure(browser, Path(folder).resolve(), trials, EPOCHS)
            except PeerError as error:
                report("journal read", OURS["journal read"], "s", f"{peer.name}: {error}")
        browser.close()


if __name__ == "__main__":
    main()
