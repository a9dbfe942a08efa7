"""Clones that are asked for through the server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import RUN, TOKEN, search

from hopyard import open_run
from hopyard.storage import LocalStore

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({"trial": 0, "params": {"rate": 1}}, f"run {RUN} did not clone: there is no hyperparameter 'rate'"),
        (
            {"trial": 0, "params": {"lr": "<b>"}},
            f"run {RUN} did not clone: lr is '<b>', but it takes a number",
        ),
        (
            {"trial": 0, "params": [1]},
            "params is [1]; give a mapping from names of hyperparameters to values of JSON",
        ),
        ({}, "clone needs trial: the number of the trial that is cloned."),
    ],
)
def test_a_clone_that_cannot_be_is_refused(client: Any, sent: dict[str, Any], text: str) -> None:
    found = client.post(f"/api/runs/0/{RUN}/commands", {"do": "clone", **sent}, **AUTHORIZED)
    assert found.status == 400
    assert text in found.error


def test_a_clone_of_a_run_that_has_ended_is_kept_and_is_shown_once_it_goes_on(
    serve: Any, place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place, tmp_path / "own")
    with serve([str(tmp_path / "own")]) as client:
        before = {each["trial"]: each for each in client.get(f"/api/runs/0/{RUN}").json["trials"]}
        found = client.post(
            f"/api/runs/0/{RUN}/commands", {"do": "clone", "trial": 0, "params": {"lr": 3}}, **AUTHORIZED
        )
        assert found.status == 200
        assert found.json["said"].startswith(f"nobody drives run {RUN} now: the command is kept")
    search(LocalStore(tmp_path / "own")).fit_on_prepared_data()
    with serve([str(tmp_path / "own")]) as client:
        (clone,) = (
            each for each in client.get(f"/api/runs/0/{RUN}").json["trials"] if each["trial"] == len(before)
        )
        assert (clone["clone_of"], clone["copy_of"], clone["status"]) == (0, None, "completed")
        assert clone["params"] == {**before[0]["params"], "lr": 3}
    assert open_run(LocalStore(tmp_path / "own"), RUN).is_done
