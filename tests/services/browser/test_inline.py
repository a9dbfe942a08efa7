"""A run below the cell of a notebook: a kernel makes it, and Chromium shows it, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import Page, expect
from tests.web.conftest import RUN

import notebooks

CELL = "from hopyard.web.export import inline\ninline({store!r}, {run!r}, height=600)"
AROUND = "<!doctype html><title>Notebook</title><p id=around>a notebook</p><div>{output}</div>"


def shown(store: Path, run: str, folder: Path) -> Any:
    """What a cell of a notebook shows. Its client has a loop of events, as Playwright has: it runs in a thread."""
    cell = nbformat.v4.new_code_cell(CELL.format(store=str(store), run=run))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=notebooks.SECONDS, resources=resources)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(client.async_execute())).result()
    nbformat.validate(notebook)
    (output,) = notebook.cells[0].outputs
    return output.data


def test_a_cell_shows_a_run_in_a_frame_that_is_apart(
    visit: Callable[..., Page], place: Path, tmp_path: Path
) -> None:
    data = shown(place, RUN, tmp_path)
    assert data["text/plain"].startswith(f"<page of run {RUN}, ")
    (tmp_path / "notebook.html").write_text(AROUND.format(output=data["text/html"]))
    page = visit((tmp_path / "notebook.html").as_uri(), offline=True)
    frame = page.frame_locator(f"iframe[title='run {RUN}']")
    expect(frame.get_by_role("heading", name=RUN)).to_be_visible()
    rows = frame.get_by_role("region", name="Leaderboard", exact=True).locator("tbody tr:not(.gap)")
    expect(rows).to_have_count(12)
    frame.get_by_role("link", name="Schedule").click()
    expect(frame.locator("summary", has_text="Idle time of each worker")).to_be_visible()
    inner = page.frames[1]
    assert inner.evaluate("window.origin") == "null"
    assert (
        inner.evaluate("(() => { try { return parent.document.title } catch { return 'refused' } })()")
        == "refused"
    )
    assert page.locator("iframe").bounding_box()["height"] == 602, "with its border"  # type: ignore[index]
