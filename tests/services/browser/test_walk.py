"""Pages that stay open while a run goes through anything: after each step they show what the command line tells."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.sampling import SEED, by_level
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.driving import Driver
from tests.services.browser.looking import PATIENCE, facts, number
from tests.web.test_runs import printed
from typer.testing import CliRunner

from hopyard.cli import app

RUN = "steps"
EPOCHS = 3
STEPS = by_level(6, 25, 60)
ENDED = ("completed", "failed", "stopped")
TABLE = """page => [...document.querySelectorAll('section[aria-label=Leaderboard] table')].map(table => {
    const text = cell => cell.innerText.replace(/[↑↓]/g, '').trim();
    const columns = [...table.querySelectorAll('thead tr > *')].map(text);
    return [...table.querySelectorAll('tbody tr:not(.gap)')].map(
        row => Object.fromEntries([...row.cells].map((cell, i) => [columns[i], text(cell)])));
})[0] ?? []"""


class Walk:
    """A run, and pages that look at it: its own, and the list.

    Attributes:
        done: the steps so far, for messages.
    """

    def __init__(self, visit: Watched, dashboard: Dashboard, driver: Driver, draw: random.Random) -> None:
        self.driver, self.draw = driver, draw
        self.page = visit(dashboard.page("runs"))
        self.listing = visit.beside(self.page.context, dashboard.page("runs"))
        self.done: list[str] = []
        self._models = 2
        self._is_open = False
        for page in (self.page, self.listing):
            page.evaluate("window.marked = true")

    def step(self) -> None:
        """Do something that can be done now, and see that it is shown."""
        known = self.known()
        steps = [self.train, self.train, self.kill] if self.driver.is_alive else [self.start, self.start]
        if known is not None and self.driver.is_alive:
            steps += [
                self.pause,
                self.resume,
                self.extend,
                self.clone,
                self.stop_trial,
                self.finish,
                self.finish,
            ]
        elif known is not None:
            steps += [self.clone, self.delete]
        chosen = self.draw.choice(steps)
        self.done.append(chosen.__name__)
        chosen()
        self.look()

    # What is done

    def start(self) -> None:
        self.driver.start(self._models, self.draw.randrange(3))

    def train(self) -> None:
        self.driver.step(self.draw.randint(1, 3))

    def kill(self) -> None:
        self.driver.kill()

    def delete(self) -> None:
        shutil.rmtree(self.driver.store / "runs" / RUN)

    def finish(self) -> None:
        self.resume()
        self.driver.step(100)
        self.driver.wait()

    def pause(self) -> None:
        self._command("pause")

    def resume(self) -> None:
        self._command("resume")

    def extend(self) -> None:
        self._models += 1
        self._command("extend", "--num-models", str(self._models))

    def clone(self) -> None:
        self._command(
            "clone", self._trial(), "--set", f"lr={self.draw.choice([0.5, 0.001])}", *self._weights()
        )

    def stop_trial(self) -> None:
        self._command("stop", "--trial", self._trial())

    def _command(self, name: str, *words: str) -> None:
        """A command, which the run may refuse as things stand."""
        said = CliRunner().invoke(app, ["run", name, str(self.driver.store), RUN, *words])
        assert said.exit_code in (0, 1), (self.done, said.output)

    def _trial(self) -> str:
        known = self.known()
        return str(self.draw.choice([0, *(each["trial"] for each in (known or {"trials": []})["trials"])]))

    def _weights(self) -> list[str]:
        return self.draw.choice([[], ["--weights"]])

    # What is seen

    def known(self) -> Any:
        """What the command line tells of the run; None: there is none."""
        listed = printed("run", "list", str(self.driver.store))
        return printed("run", "describe", str(self.driver.store), RUN) if listed else None

    def look(self) -> None:
        """Wait until both pages show what the command line tells, without being loaded again."""
        until = time.monotonic() + PATIENCE / 1000
        while (different := self._different()) and time.monotonic() < until:
            self.page.evaluate("new Promise(done => setTimeout(done, 100))")
        assert not different, (self.done, different)
        assert self.page.evaluate("window.marked")
        assert self.listing.evaluate("window.marked")

    def _different(self) -> Any:
        known = self.known()
        shown = self.listing.locator("table").get_by_role("link", name=RUN, exact=True).count()
        if (known is not None) != (shown == 1):
            return "listed", known and known["status"], shown
        if known is None:
            if self._is_open:
                expect(self.page.get_by_text(f"holds no run '{RUN}'")).to_be_visible()
                self.page.get_by_role("link", name="Runs", exact=True).first.click()
                self._is_open = False
            return None
        if not self._is_open:
            self.page.get_by_role("link", name=RUN, exact=True).click()
            self._is_open = True
            expect(self.page.locator("dl.facts-row")).to_be_visible()
        row = self.listing.get_by_role("row", name=RUN).inner_text()
        if known["status"] not in row:
            return "listed as", row, known["status"]
        expected, found = expected_facts(known), shown_facts(self.page)
        if expected != found:
            return found, expected
        expected, found = expected_rows(known), shown_rows(self.page)
        return None if expected == found else (found, expected)


def expected_facts(known: Any) -> dict[str, Any]:
    trials, driver = known["trials"], known["driver"]
    values = [each["value"] for each in trials if each["value"] is not None]
    return {
        "Status": known["status"],
        "Trials": f"{sum(each['status'] in ENDED for each in trials)} of {known['num_trials']} ended",
        "Driver": "nobody drives it" if driver is None else f"{driver['host']}, process {driver['pid']}",
        "Best": pytest.approx(max(values), abs=5e-5) if values else None,
    }


def shown_facts(page: Page) -> dict[str, Any]:
    found = facts(page.locator("dl.facts-row"))
    best = found["Best val_accuracy"]
    return {name: found[name] for name in ("Status", "Trials", "Driver")} | {
        "Best": None if best == "none yet" else number(best.split()[0])
    }


def expected_rows(known: Any) -> dict[int, Any]:
    return {
        each["trial"]: {
            "Status": each["status"] if known["driver"] or each["status"] != "running" else "interrupted",
            "val_accuracy": each["value"] and pytest.approx(each["value"], abs=5e-5),
            "Epoch": [each["best_epoch"], each["epochs"]]
            if each["best_epoch"] is not None
            else [each["epochs"]],
            "Clone of": each["clone_of"],
            "Copy of": each["copy_of"],
            "width": each["params"]["width"],
            "lr": pytest.approx(each["params"]["lr"], rel=1e-3),
        }
        for each in known["trials"]
    }


def shown_rows(page: Page) -> dict[int, Any]:
    """The rows of the leaderboard; a column that is not there is empty."""
    return {
        int(row["Trial"]): {
            "Status": row["Status"],
            "val_accuracy": number(row["val_accuracy"]),
            "Epoch": [number(each) for each in row["Epoch"].split("/")],
            "Clone of": number(row.get("Clone of", "")),
            "Copy of": number(row.get("Copy of", "")),
            "width": number(row["width"]) if "width" in row else None,
            "lr": number(row["lr"]),
        }
        for row in page.evaluate(TABLE)
    }


@pytest.mark.parametrize("walk", range(by_level(1, 3, 20)))
def test_pages_show_what_the_command_line_tells_whatever_becomes_of_the_run(
    walk: int, visit: Watched, serve: Callable[..., Dashboard], driver: Driver
) -> None:
    driver.store.mkdir()
    walker = Walk(visit, serve(driver.store), driver, random.Random(f"{SEED} dashboard {walk}"))
    for _ in range(STEPS):
        walker.step()
