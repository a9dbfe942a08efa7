"""The files in examples/ are what docs/ray.md shows, and run as far as one machine can run them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pages

EXAMPLES = pages.ROOT / "examples"


def there_is_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.sbatch")), ids=lambda path: str(path.name))
def test_job_files_are_good_bash(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])  # Slurm would not see them


def test_the_page_shows_the_job_file_as_it_is() -> None:
    blocks = pages.read_page(pages.ROOT / "docs" / "ray.md").blocks
    assert (EXAMPLES / "slurm" / "symmetric.sbatch").read_text().strip() in {block.code for block in blocks}


def test_every_example_with_ray_is_linked_from_the_page() -> None:
    text = (pages.ROOT / "docs" / "ray.md").read_text()
    files = [EXAMPLES / "ray_on_spark.py", *(EXAMPLES / "slurm").glob("*.*")]
    assert len(files) == 4
    assert [path.name for path in files if f"(../{path.relative_to(pages.ROOT)})" not in text] == []


def test_the_script_for_slurm_runs_on_a_cluster(tmp_path: Path, cluster: Any) -> None:
    environment = {
        **os.environ,
        "RAY_ADDRESS": cluster.address,
        "STORE": str(tmp_path / "store"),
        "THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "slurm" / "search.py")],
        cwd=tmp_path, env=environment, timeout=280, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "best: {'width':" in done.stdout
    assert "Traffic(hops=" in done.stdout


STAND_INS = {
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "ray": 'if [ "$1" = start ]; then exec tail -f /dev/null; fi',
    "python": 'if [ "$1" = -c ]; then echo 1; else exec "$PYTHON" "$@"; fi',
    "scontrol": 'echo "$@" >> asked',
}
"""Slurm's and Ray's commands for a job on one machine, which has all its nodes at once."""

ENDINGS = {
    "told": (
        "from hopyard.hopper.notice import Notice\nwith Notice() as notice:\n    notice.check()\n    wait()",
        75,
    ),
    "done": ("pass", 0),
    "failed": ("sys.exit(3)", 3),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_job_is_queued_again_if_its_script_was_told_to_end(ending: str, tmp_path: Path) -> None:
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    code, status = ENDINGS[ending]
    head = (
        "import sys, threading\ndef wait():\n    print('hopping', flush=True)\n    threading.Event().wait()\n"
    )
    (tmp_path / "search.py").write_text(head + code)
    variables = {"SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": "4711", "SLURM_NNODES": "1"}
    variables |= {"SLURM_SUBMIT_DIR": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    job = subprocess.Popen(
        ["bash", str(EXAMPLES / "slurm" / "search.sbatch")],
        cwd=tmp_path, env={**os.environ, **variables, "PYTHON": sys.executable}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        if ending == "told":
            assert job.stdout is not None
            assert job.stdout.readline() == "hopping\n"
            job.send_signal(signal.SIGUSR1)  # as --signal=B:USR1@60 has it: to the shell alone
        assert job.wait(timeout=120) == status
    finally:
        os.killpg(job.pid, signal.SIGKILL)  # as Slurm does with what a job leaves
        job.communicate()
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else "") == ("requeue 4711\n" if ending == "told" else "")


def test_ray_on_spark_is_called_as_ray_has_it(needs: Callable[[object, str], None]) -> None:
    needs(there_is_ray() and importlib.util.find_spec("pyspark"), "Ray and PySpark")
    from ray.util import spark

    tree = ast.parse((EXAMPLES / "ray_on_spark.py").read_text())
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    checked = set()
    for call in calls:
        assert isinstance(call.func, ast.Name)
        if call.func.id.endswith("_ray_cluster"):
            parameters = inspect.signature(getattr(spark, call.func.id)).parameters
            assert {keyword.arg for keyword in call.keywords} <= parameters.keys()
            checked.add(call.func.id)
    assert checked == {"setup_ray_cluster", "shutdown_ray_cluster"}
