"""See that type checkers know the type of every name that a module of Hopyard has; for ``make check``.

basedpyright takes each name without an underscore for public, also in internal modules: what public names lead to is
there. A type that it would have to infer, and that another checker could infer differently, counts as not known.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

UNKNOWN_BASES = {"hopyard.data.outputs.keras_output.KerasDataset"}
"""Internal classes whose base is another library's, made by a decorator that has no types."""


def verified(package: str, source: Path) -> dict[str, Any]:
    """The report of ``basedpyright --verifytypes`` on ``package`` in the directory ``source``."""
    # It looks for other packages where the first Python of PATH finds them, whichever --pythonpath is given.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    options = ["--verifytypes", package, "--ignoreexternal", "--outputjson"]
    command = [sys.executable, "-m", "basedpyright", *options]
    python_path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": python_path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=source, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"basedpyright gave no report:\n{done.stdout}{done.stderr}")
    return report


def problems(report: dict[str, Any]) -> list[str]:
    """A sentence for every name whose type is not known, or that could not be looked at."""
    found = [problem["message"] for problem in report["generalDiagnostics"]]
    for symbol in report["typeCompleteness"]["symbols"]:
        if symbol["name"] in UNKNOWN_BASES or (symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]):
            continue
        reasons = [_said(each) for each in symbol["diagnostics"] if each["severity"] == "error"]
        # Without a reason of its own, a name is not known because another one is not.
        found += [f"{symbol['name']}: {reason}" for reason in reasons]
    return found


def _said(diagnostic: dict[str, Any]) -> str:
    text = " ".join(diagnostic["message"].split())
    place = diagnostic.get("range")
    return f"{diagnostic['file']}:{place['start']['line'] + 1}: {text}" if place else text


def main() -> int:
    report = verified("hopyard", ROOT / "src")
    found = problems(report)
    for problem in found:
        print(problem)
    if found:
        print("Annotate these, where they are first assigned: self.rows: int = ...")
        return 1
    print(f"typed: {len(report['typeCompleteness']['symbols'])} names, and the types of all are known")
    return 0


if __name__ == "__main__":
    sys.exit(main())
