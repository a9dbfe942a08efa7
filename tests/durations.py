"""CPU seconds of each test, with those of processes it started and waited for; hooks of pytest, used by conftest.py.

``build/durations.txt``, or the file that ``HOPYARD_DURATIONS`` names, has all tests of the last run, the longest
first. A run ends with the list of quick tests that took more than ``MOST`` seconds and are not in ``tests/slow.txt``,
which may only become shorter (``tools/slow.py``).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from tests import forked
from tests.arranging import SLOW_FOLDERS

MOST = 2.0
EXCEPTIONS = Path(__file__).with_name("slow.txt")
_CPU = "cpu seconds"

_begun = pytest.StashKey[float]()


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + forked.cpu()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_begun] = _cpu()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append((_CPU, _cpu() - item.stash[_begun]))


class Durations:
    """The seconds that tests took, gathered where the run ends: with xdist, in the process that leads."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.wall[report.nodeid] = self.wall.get(report.nodeid, 0.0) + report.duration
        for name, value in report.user_properties:
            if name == _CPU:
                self.cpu[report.nodeid] = float(value)  # type: ignore[arg-type]

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        every = sorted(self.cpu.items(), key=lambda item: -item[1])
        file = Path(os.environ.get("HOPYARD_DURATIONS", config.rootpath / "build" / "durations.txt"))
        file.parent.mkdir(exist_ok=True)
        lines = [f"{cpu:8.2f} {self.wall[nodeid]:8.2f} {nodeid}\n" for nodeid, cpu in every]
        file.write_text(f"{'CPU s':>8} {'wall s':>8} test\n{''.join(lines)}")
        known = set(EXCEPTIONS.read_text().splitlines())
        long = [
            (nodeid, cpu)
            for nodeid, cpu in every
            if cpu > MOST and not nodeid.startswith(SLOW_FOLDERS) and nodeid.partition("[")[0] not in known
        ]
        if long:
            terminalreporter.section(f"quick tests above {MOST:g} s of CPU time")
            for nodeid, cpu in long:
                terminalreporter.write_line(f"{cpu:6.1f} s {nodeid}")


def register(config: pytest.Config) -> None:
    """Gather the seconds where a run ends."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(), "durations")
