"""Chromium, and dashboards in processes of their own, over stores with runs, data and versions.

A page that a test opens may have no error in its console, no request without an answer, and none to another machine:
after each test it is seen to, but for what the test has said to expect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright
from tests.cli.conftest import killed as killed
from tests.services.browser.driving import Driver
from tests.services.browser.looking import PATIENCE
from tests.services.browser.searches import hostile_rows, hostile_run, pictures, walked
from tests.web.conftest import Client
from tests.web.conftest import place as place
from tests.web.conftest import room as room

from browsing import Web, browser_program, launch
from hopyard.data import prepare
from hopyard.storage import LocalStore
from hopyard.web.app import STATIC

ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"


@dataclass
class _Started:
    """The browser. Playwright's loop of events runs for as long as it does, which other tests cannot have."""

    playwright: Playwright | None = None
    browser: Browser | None = None

    def start(self) -> Browser | None:
        program = browser_program()
        if self.browser is None and program is not None:
            self.playwright = sync_playwright().start()
            self.browser = launch(self.playwright, program)
        return self.browser

    def stop(self) -> None:
        if self.browser is not None and self.playwright is not None:
            self.browser.close()
            self.playwright.stop()
        self.browser = self.playwright = None


_started = _Started()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        _started.stop()


@pytest.fixture
def chromium(needs: Callable[[object, str], None]) -> Browser:
    """The browser: one for all tests of this folder that follow each other."""
    needs((STATIC / "index.html").exists(), "the pages of the dashboard (make dashboard)")
    browser = _started.start()
    needs(browser, "Chromium or Chrome (tools/browser.sh)")
    assert browser is not None
    return browser


@pytest.fixture
def axe(needs: Callable[[object, str], None]) -> str:
    """The script of axe."""
    needs(AXE.exists(), "axe-core (tools/pages.sh)")
    return AXE.read_text()


@dataclass
class Watched:
    """Opens pages, and remembers what went wrong in them."""

    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Patterns of what may go wrong in this test."""

    def __call__(self, address: str, **options: Any) -> Page:
        """A page in a window of its own, with a storage of its own; ``options`` are those of Playwright's contexts."""
        settings = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce", **options}
        context = self.browser.new_context(**settings)
        context.set_default_timeout(PATIENCE)
        self.contexts.append(context)
        return self.beside(context, address)

    def beside(self, context: BrowserContext, address: str) -> Page:
        """Another page of the same window."""
        page = context.new_page()
        host = urlsplit(address).netloc

        def asked(request: Any) -> None:
            parts = urlsplit(request.url)
            if parts.scheme != "data" and (parts.scheme, parts.netloc) != (urlsplit(address).scheme, host):
                self.problems.append(f"asks {request.url}")

        def failed(request: Any) -> None:
            # What a page no longer wants it takes back.
            if request.failure != "net::ERR_ABORTED":
                self.problems.append(f"{request.url}: {request.failure}")

        def answered(response: Any) -> None:
            if response.status >= 400:
                self.problems.append(f"{response.url}: {response.status}")

        def said(message: Any) -> None:
            if message.type in ("error", "warning"):
                self.problems.append(f"{message.type}: {message.text}")

        page.on("request", asked)
        page.on("requestfailed", failed)
        page.on("response", answered)
        page.on("console", said)
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on(
            "dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        page.goto(address)
        return page

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        unexpected = [
            each for each in self.problems if not any(re.search(pattern, each) for pattern in self.expected)
        ]
        assert unexpected == []


@pytest.fixture
def visit(chromium: Browser, serve: object, tmp_path: Path) -> Iterator[Watched]:
    """``visit(address)``: a page, which must have nothing to complain of. It is closed before servers end and files of
    the test are deleted."""
    watched = Watched(chromium)
    yield watched
    watched.close()


class Dashboard(Web):
    """``hopyard web`` in a process of its own, and what it answers."""

    def json(self, path: str) -> Any:
        """The document at an address."""
        answer = self.client.get(path)
        assert answer.status == 200, answer.body
        return answer.json

    @property
    def client(self) -> Client:
        return Client(self.port)


@pytest.fixture
def serve(chromium: Browser) -> Iterator[Callable[..., Dashboard]]:
    """``serve(store, ...)``: a dashboard, which ends with the test."""
    started: list[Dashboard] = []

    def start(*stores: object, options: tuple[str, ...] = ()) -> Dashboard:
        started.append(Dashboard(*map(str, stores), options=options))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture(scope="session")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two searches that stop trials early, and prepared pictures with texts."""
    folder = tmp_path_factory.mktemp("searches")
    store = LocalStore(folder)
    walked(store, "asha")
    walked(store, "other", seed=1)
    prepare(pictures(), store=store, validation=0.25)
    return folder


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run, and data, whose texts are those of attackers."""
    folder = tmp_path_factory.mktemp("hostile")
    store = LocalStore(folder / "store")
    hostile_run(store, folder / "definition")
    prepare(hostile_rows(), store=store, validation=None)
    return folder / "store"


@pytest.fixture(scope="session")
def shown_session(
    place: Path, room: Path, searches: Path, killed: Path, hostile: Path
) -> Iterator[Dashboard]:
    with Dashboard(*map(str, (place, room, searches, killed / "store", hostile))) as dashboard:
        yield dashboard


@pytest.fixture
def shown(chromium: Browser, shown_session: Dashboard) -> Dashboard:
    """A dashboard for looking. Its places: 0 with ``grid``, whose names are hostile and some of whose trials failed,
    1 a stockroom, 2 with ``asha``, ``other`` and pictures, 3 a run whose driver was killed, 4 an experiment and data
    with the texts of attackers."""
    return shown_session


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Drives a run step by step; ended with the test."""
    found = Driver(tmp_path)
    yield found
    found.close()
