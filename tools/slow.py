"""See that ``tests/slow.txt``, the quick tests that may take long, has become no longer; for ``make check``.

Each line is a test as pytest names it, without its parameters. A line may be there only if it was in the version of the
last commit that changed the file; in a repository without history nothing is compared.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAME = "tests/slow.txt"


def added(root: Path) -> list[str]:
    """The lines of the file that neither of its last two committed versions has, or only the last one."""
    now = (root / NAME).read_text().splitlines()
    commits = _git(root, "log", "--format=%H", "--", NAME).split()
    # The last commit that changed the file is compared with the one before it, and the working tree with both.
    before = [_git(root, "show", f"{commit}:{NAME}").splitlines() for commit in commits[:2]]
    return [line for line in now if any(line not in version for version in before)]


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def main() -> None:
    if lines := added(Path(__file__).resolve().parents[1]):
        sys.exit(
            f"{NAME} may only become shorter, but these lines are new:\n"
            + "\n".join(lines)
            + "\nMake the test "
            "quick (tests/sampling.py), or move it to tests/long."
        )


if __name__ == "__main__":
    main()
