"""``hopyard run resume`` on runs whose script was killed."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

from hopyard import open_run
from hopyard.storage import LocalStore
from hopyard.tune import Run, list_runs


def only_run(folder: Path) -> Run:
    store = LocalStore(folder / "store")
    [run_id] = list_runs(store)
    return open_run(store, run_id)


def results(run: Run) -> dict[int, Any]:
    return {
        n: (t.params, t.status, t.history, t.best and t.best.state.digest)
        for n, t in run.state.trials.items()
    }


def test_a_killed_script_is_started_again_where_it_was_and_ends_in_the_same_result(
    script: Path, finished: Path, python: Any, hopyard: Any, tmp_path_factory: Any
) -> None:
    """Also one that says ``fresh=True``: what was begun afresh is what goes on."""
    assert python("search.py", "--fresh", cwd=script).returncode == -signal.SIGKILL
    killed = only_run(script)
    assert killed.status == "interrupted"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    described = hopyard("run", "describe", str(script / "store"), killed.run_id, cwd=elsewhere)
    assert f"hopyard run resume {script / 'store'} {killed.run_id}" in described.stdout
    resumed = hopyard("run", "resume", str(script / "store"), killed.run_id, cwd=elsewhere)
    assert resumed.returncode == 0, resumed.stderr
    assert f"goes on after {killed.state.units} units" in resumed.stdout
    assert "the best:" in resumed.stdout
    after = only_run(script)
    assert after.status == "completed"
    assert results(after) == results(only_run(finished))


def test_a_script_that_makes_another_run_now_is_an_error_that_says_so(killed: Path, hopyard: Any) -> None:
    [run_id] = list_runs(LocalStore(killed / "store"))
    resumed = hopyard("run", "resume", "store", run_id, cwd=killed, env={"SEED": "1"})
    [other] = set(list_runs(LocalStore(killed / "store"))) - {run_id}
    shutil.rmtree(killed / "store/runs" / other)
    assert resumed.returncode == 1
    assert f"the command ended, but run {run_id} is still interrupted" in resumed.stderr
    assert "Traceback" not in resumed.stderr.partition("the command ended")[2]


def test_a_script_that_fails_gives_its_status(killed: Path, hopyard: Any) -> None:
    script = (killed / "search.py").read_text()
    (killed / "search.py").write_text("raise SystemExit(7)")
    resumed = hopyard("run", "resume", "store", only_run(killed).run_id, cwd=killed)
    (killed / "search.py").write_text(script)
    assert resumed.returncode == 7


def test_a_finished_run_is_left_alone(finished: Path, hopyard: Any) -> None:
    run = only_run(finished)
    done = hopyard("run", "resume", "store", run.run_id, cwd=finished)
    assert done.returncode == 0
    assert done.stdout == f"run {run.run_id} is finished; see `hopyard run describe store {run.run_id}`.\n"


def test_a_run_without_a_command_says_how_to_go_on(script: Path, python: Any, hopyard: Any) -> None:
    assert python("-", cwd=script, stdin=(script / "search.py").read_text()).returncode == -signal.SIGKILL
    resumed = hopyard("run", "resume", "store", only_run(script).run_id, cwd=script)
    assert resumed.returncode == 1
    assert "was begun from a notebook, a prompt or standard input" in resumed.stderr
    assert "Call fit again there, with the same arguments: it goes on." in resumed.stderr


def test_a_run_whose_folder_is_gone_shows_its_command(killed: Path, hopyard: Any) -> None:
    moved = killed.rename(killed.with_name(f"{killed.name}-moved"))
    run_id = only_run(moved).run_id
    resumed = hopyard("run", "resume", "store", run_id, cwd=moved)
    moved.rename(killed)
    assert resumed.returncode == 1
    assert (
        f"run {run_id} was begun in {killed}, which does not exist here. Start its script yourself"
        in resumed.stderr
    )
    assert "search.py" in resumed.stderr
