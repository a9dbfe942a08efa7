"""Builds the pages of the dashboard into wheels and source archives, so that who installs one needs no Node.js."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PagesHook(BuildHookInterface[Any]):
    """Hook of hatchling, which calls it before it builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the pages, unless this is an editable installation, or a source archive, which has them."""
        root = Path(self.root)
        if version == "editable" or (root / "PKG-INFO").exists():
            return
        if shutil.which("npm") is None:
            self.app.display_warning(
                "Node.js is missing, so the dashboard is installed without its pages. Install Node.js 20 or newer, "
                "and build again."
            )
            return
        for command in (["npm", "ci", "--no-audit", "--no-fund"], ["npm", "run", "build"]):
            subprocess.run(command, cwd=root / "dashboard", check=True)
