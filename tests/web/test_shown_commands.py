"""Commands that a page shows work as they are shown, wherever they are typed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import RUN, rows, search

from hopyard import StockRoom
from hopyard.storage import LocalStore
from hopyard.web.app import STATIC


def typed(command: str, folder: Path) -> str:
    """What a shell prints for a command, in some folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_commit_of_searches_says_how_to_train_them_again_and_others_do_not(
    serve: Any, tmp_path: Path
) -> None:
    folder, elsewhere = tmp_path / "a repo", tmp_path / "elsewhere"
    elsewhere.mkdir()
    stock = StockRoom.init(folder)
    given = {name: values for name, values in rows().items() if name != "name"}
    with stock.enable_write("data"):
        for name, values in given.items():
            stock.data[name] = values
    arguments = {"stock": stock, "run_id": "one"}
    search(LocalStore(tmp_path / "store"), [0.1], **arguments).fit({name: stock.data[name] for name in given})
    with stock.enable_write("noted"), stock.run({"lr": 0.1}) as run:
        run.log(loss=0.5)
    stock.close()
    with serve([str(folder)]) as client:
        log = client.get("/api/stock/0/log").json
        noted, trained, data = (client.get(f"/api/stock/0/commit/{each['commit']}").json for each in log[:3])
        assert (len(noted["runs"]), noted["reproduce"]) == (1, []), "a run by hand is no search"
        assert (data["runs"], data["reproduce"]) == ([], [])
        assert trained["runs"] == ["run/one"]
        [command] = trained["reproduce"]
        assert command == f"cd '{folder}' && hopyard stock reproduce {log[1]['commit'][:12]} --trust"
    assert "reproduced: equal to the last bit" in typed(command, elsewhere)


@pytest.mark.long
@pytest.mark.skipif(not (STATIC / "index.html").exists(), reason="the pages are not built: make dashboard")
def test_commands_of_a_run_name_its_store_from_wherever_the_dashboard_was_started(
    place: Path, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `dashboard/src/run/commands.ts` makes them: the place's address, and the run."""
    (tmp_path / "my stores").mkdir()
    shutil.copytree(place, tmp_path / "my stores" / "one")
    monkeypatch.chdir(tmp_path / "my stores")
    with serve(["one"]) as client:
        store = shlex.quote(client.get("/api/places").json["places"][0]["url"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert f"run {RUN}: completed" in typed(f"hopyard run describe {store} {RUN}", elsewhere)
    typed(f"hopyard web export {store} {RUN} run.html", elsewhere)
    assert (elsewhere / "run.html").exists()
    assert f"run {RUN}" in typed(f"hopyard run resume {store} {RUN}", elsewhere), "it has ended, and says so"
