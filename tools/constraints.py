"""Keeps constraints.txt: exact versions of everything that the extras `bench`, `dev` and `demo` install.

`python tools/constraints.py write` resolves the newest versions (nothing is installed).
`python tools/constraints.py check` compares what is installed with the file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
EXTRAS = "bench,demo,dev"

# Versions that `write` keeps: every figure of the benchmarks was measured with this PyTorch.
HELD = {"torch": "2.13.0"}

HEADER = f"""\
# Exact versions of all that `pip install -c constraints.txt -e '.[{EXTRAS}]'` brings.
# Resolved on Linux with Python {sys.version_info.major}.{sys.version_info.minor} by `make constraints`; \
`make check` compares.
"""


def resolve() -> dict[str, str]:
    """What pip would install into an empty environment: canonical name -> version without local label."""
    with tempfile.TemporaryDirectory() as folder:
        report, held = Path(folder, "report.json"), Path(folder, "held.txt")
        held.write_text("".join(f"{name}=={version}\n" for name, version in HELD.items()))
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-c", str(held)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, f"{ROOT}[{EXTRAS}]"], check=True)
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    pins = {canonicalize_name(item["name"]): Version(item["version"]).public for item in found}
    return {name: version for name, version in sorted(pins.items()) if name != "hopyard"}


def read_pins(text: str) -> dict[str, str]:
    """Canonical name -> version; raises ValueError for a line that is not ``name==version``."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, version = line.partition("==")
        if not equals or set(version) & set(" ;,*<>=!~"):
            raise ValueError(f"constraints.txt has the line {line!r}; each line must be name==version")
        pins[canonicalize_name(name)] = version
    return pins


def problems(pins: dict[str, str], root: str = "hopyard") -> list[str]:
    """A sentence for every installed distribution that ``root`` reaches and that is not pinned as installed.

    A distribution that whoever requires it pins (as PyTorch does with its GPU libraries) needs no line.
    """
    found: list[str] = []
    for name, (version, pinned_by_requirer) in reached(root).items():
        if name not in pins:
            if not pinned_by_requirer:
                found.append(f"{name} {version} is installed but has no line in constraints.txt")
        elif not SpecifierSet(f"=={pins[name]}").contains(version, prereleases=True):
            found.append(f"{name} {version} is installed but constraints.txt says {pins[name]}")
    return sorted(found)


def reached(root: str) -> dict[str, tuple[str, bool]]:
    """What ``root`` needs with any of its extras, as far as installed.

    Returns canonical name -> (version, whether a distribution that requires it pins it).
    """
    top = distribution(root)
    queue = [(top, extra) for extra in ["", *(top.metadata.get_all("Provides-Extra") or [])]]
    seen: set[tuple[str, str]] = set()
    found: dict[str, tuple[str, bool]] = {}
    while queue:
        owner, extra = queue.pop()
        for requirement in _active_requirements(owner, extra):
            name = canonicalize_name(requirement.name)
            try:
                installed = distribution(name)
            except PackageNotFoundError:
                continue  # an extra that nobody asked for; `pip check` reports what is really missing
            pinned = any(part.operator == "==" for part in requirement.specifier)
            found[name] = (installed.version, pinned or (name in found and found[name][1]))
            wanted = {(name, extra) for extra in ["", *requirement.extras]} - seen
            seen |= wanted
            queue += [(installed, extra) for _, extra in wanted]
    found.pop(canonicalize_name(root), None)  # extras that name other extras
    return found


def _active_requirements(owner: Distribution, extra: str) -> list[Requirement]:
    requirements = [Requirement(text) for text in owner.requires or []]
    return [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": extra})]


def main(command: str) -> int:
    if command == "write":
        FILE.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in resolve().items()))
        return 0
    found = problems(read_pins(FILE.read_text()))
    for problem in found:
        print(problem)
    if found:
        print(f"Install with `pip install -c constraints.txt -e '.[{EXTRAS}]'`, or run `make constraints`.")
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["write"], ["check"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
