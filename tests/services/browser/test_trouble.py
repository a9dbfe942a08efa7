"""What goes wrong is said once and in full: journals of later versions, merges, failures that are alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.looking import region
from tests.services.browser.searches import rows

from hopyard.backend import InlineBackend
from hopyard.hopper.journal import Journal, read_records
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

Serve = Callable[..., Dashboard]


def test_why_a_run_of_a_later_version_is_not_read_is_said_in_full(
    visit: Watched, serve: Serve, searches: Path, tmp_path: Path
) -> None:
    shutil.copytree(searches, tmp_path / "store")
    store = LocalStore(tmp_path / "store")
    header = next(iter(read_records(store.runs.at("asha"))))
    later = {"run_id": "later", "format": header["format"] | {"version": 9, "hopyard": "9.9.0"}}
    journal = Journal(store.runs.at("later"))
    journal.append(header | later)
    journal.close()
    page = visit(serve(tmp_path / "store").page("runs"), viewport={"width": 1000, "height": 800})
    note = page.get_by_role("alert")
    expect(note).to_contain_text("later: run later in ")
    expect(note).to_contain_text("was written by Hopyard 9.9.0 in format 9; this is Hopyard")
    expect(note).to_contain_text("Install that version or a later one: pip install 'hopyard>=9.9.0'")
    expect(region(page, "Runs").get_by_role("row", name="later")).to_contain_text("unreadable")


def test_a_merge_that_git_has_begun_is_said_once(
    visit: Watched, serve: Serve, room: Path, tmp_path: Path
) -> None:
    shutil.copytree(room, tmp_path / "room")
    visit.expected.append("400")
    head = tmp_path / "room" / "head.stock"
    whole = head.read_text()
    ours = whole.index("branch ")
    dashboard = serve(tmp_path / "room")
    late, early = (commit["commit"] for commit in dashboard.json("/api/stock/0/log?all=1"))
    head.write_text(
        f"{whole[:ours]}<<<<<<< HEAD\nbranch main\ncommit {late}\n=======\nbranch dev\ncommit {early}\n>>>>>>> dev\n"
    )
    page = visit(dashboard.page("stock/0"))
    said = page.get_by_text("holds a merge conflict of git between")
    expect(said.first).to_be_visible()
    expect(page.get_by_text("Reading ")).to_have_count(0)
    expect(said).to_have_count(1)


def _estimator(params: dict[str, Any]) -> TorchEstimator:
    if params["lr"] > 0.1:
        raise ValueError(f"partition 3 has {params['lr']} of nan at 0x{int(params['lr'] * 1e6):x}")
    model = torch.nn.Linear(4, 2)
    return TorchEstimator(model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), batch_size=16)


def test_failures_that_differ_by_numbers_alone_are_one_group(
    visit: Watched, serve: Serve, tmp_path: Path
) -> None:
    space = {"lr": hp_choice([0.01, 0.5, 0.02, 0.25, 0.03, 1.5])}
    store = LocalStore(tmp_path / "store")
    GridSearch(
        InlineBackend(),
        store,
        _estimator,
        space,
        num_epochs=1,
        num_partitions=1,
        run_id="apart",
        progress=False,
    ).fit(rows())
    page = visit(serve(tmp_path / "store").page("runs/0/apart/ended"))
    failures = page.locator("section", has=page.get_by_role("heading", name="Failures"))
    expect(failures.get_by_role("heading", level=3)).to_have_text(["3 trials"])
    expect(failures.locator(".links a")).to_have_text(["trial 1", "trial 3", "trial 5"])
    expect(failures).to_contain_text("ValueError: partition 3 has 0.5 of nan")
    expect(failures).to_contain_text(
        "This is how trial 1 failed; the messages of the others differ in their numbers."
    )
