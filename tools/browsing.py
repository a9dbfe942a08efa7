"""The dashboard in a process of its own, and Chromium to look at it, for tests and for pictures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Self

from playwright.sync_api import Browser, Playwright

_PROGRAMS = ("chromium", "google-chrome")  # tools/browser.sh looks for them, too
_ARGUMENTS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def browser_program() -> str | None:
    """The browser that is installed here, if any is."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


def launch(playwright: Playwright, program: str) -> Browser:
    """Start the browser, which finds no host but this."""
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=program, args=[*_ARGUMENTS, *root], timeout=120_000)


class Web:
    """``hopyard web`` on some stores and stockrooms, in a process of its own.

    Attributes:
        url: its address, without a slash at its end.
        port: that it listens at.
        token: that it printed; None where it gives no commands.
    """

    def __init__(self, *stores: str, options: tuple[str, ...] = ()) -> None:
        self._command = [sys.executable, "-m", "hopyard", "web", *stores, *options, "--port"]
        self._start(0)

    def _start(self, port: int) -> None:
        self._process = subprocess.Popen(
            [*self._command, str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        address, token = (
            re.search(r"http://127\.0\.0\.1:(\d+)", said),
            re.search(r"enter the token (\S+)", said),
        )
        if address is None:
            self.end()
            raise RuntimeError(f"hopyard web did not start: {said}")
        self.url, self.port = address.group(), int(address.group(1))
        self.token = token.group(1) if token else None

    def page(self, route: str) -> str:
        """The address of a page, such as ``runs/0/grid``."""
        return f"{self.url}/#/{route}"

    def end(self) -> None:
        """Kill it, as a machine that goes down does."""
        self._process.kill()
        self._process.communicate()

    def start_again(self) -> None:
        """The same command, at the same port; the token is another one."""
        self._start(self.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
