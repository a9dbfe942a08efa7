"""A run as one page that needs no server and no network: a file, or the output of a cell of a notebook."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hopyard import __version__
from hopyard.errors import NotFoundError, UsageError
from hopyard.missing import missing_extra
from hopyard.storage import Store, open_store
from hopyard.wording import describe_bytes

if find_spec("starlette") is None:
    raise missing_extra("starlette", "web", "hopyard.web.export")

from hopyard.web.answers import encoded
from hopyard.web.app import NOT_BUILT, STATIC
from hopyard.web.importance import importance_json
from hopyard.web.runs import (
    curves_bytes,
    described_json,
    listed_json,
    metrics_of,
    points_of,
    schedule_bytes,
    trial_detail_json,
)
from hopyard.web.watched import WatchedRun

__all__ = ["InlinePage", "export_page", "inline"]

_MOST_DETAILED = 500
"""Trials whose histories are in the file one by one; those of others are in its curves."""
_PIXELS = 4000
_UNESCAPED = "-_.!~*'()"  # by encodeURIComponent, by which the page names what it asks for


def export_page(
    store: Store | str | os.PathLike[str],
    run_id: str,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    static: Path = STATIC,
) -> Path:
    """Write a run, as it is now, as one HTML file with all that its pages show; logs are not in it.

    Args:
        target: the file.
        overwrite: replace what is there.
        static: folder of the built pages.

    Raises:
        NotFoundError: there is no such run, or the pages of the dashboard are not built.
        UsageError: the file is there.
    """
    file = Path(target)
    if file.exists() and not overwrite:
        raise UsageError(
            f"{file} is there already, and stays as it is. Name another file, or give --overwrite."
        )
    page = _page(store, run_id, static)
    part = file.with_name(f"{file.name}.part")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file


@dataclass(frozen=True)
class InlinePage:
    """The page of a run as the last line of a cell: notebooks show it, and keep it with their outputs.

    Attributes:
        run_id: of the run.
        page: the HTML file.
        height: of the frame that it is shown in, in pixels.
    """

    run_id: str
    page: str
    height: int

    def __repr__(self) -> str:
        return f"<page of run {self.run_id}, {describe_bytes(len(self.page.encode()))}>"

    def _repr_html_(self) -> str:
        """A frame that holds the page, which may run its own scripts and has no access to the notebook."""
        held = self.page.replace("&", "&amp;").replace(
            "'", "&#39;"
        )  # JSON has many double quotes, which stay
        name = f"run {self.run_id}".replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
        style = "width:100%;border:1px solid #8888;border-radius:4px"
        return (
            f'<iframe title="{name}" sandbox="allow-scripts" loading="lazy" height="{self.height}" style="{style}" '
            f"srcdoc='{held}'></iframe>"
        )


def inline(
    store: Store | str | os.PathLike[str],
    run_id: str,
    *,
    height: int = 720,
    most_mb: float = 16,
    static: Path = STATIC,
) -> InlinePage:
    """A run's pages, as they are now, below the cell of a notebook, without a server and without a network. It is kept
    in the notebook, whose file grows by as much.

    Args:
        height: of the frame, in pixels.
        most_mb: megabytes that the notebook may grow by.
        static: folder of the built pages.

    Raises:
        NotFoundError: there is no such run, or the pages of the dashboard are not built.
        UsageError: the page is larger than ``most_mb``.
    """
    made = InlinePage(run_id, _page(store, run_id, static), height)
    size = len(made._repr_html_().encode())
    if size > most_mb * 1e6:
        raise UsageError(
            f"the page of run {run_id} is {describe_bytes(size)}, and a notebook would keep all of it; at most "
            f"most_mb={most_mb:g} megabytes are. Write it beside the notebook by export_page(store, {run_id!r}, "
            '"run.html"), or give a larger most_mb.'
        )
    return made


def _page(store: Store | str | os.PathLike[str], run_id: str, static: Path) -> str:
    opened = open_store(store)
    run = WatchedRun(opened, run_id, 0.0)
    run.refresh()
    return _inlined(static, _held(run, opened), f"#/runs/0/{quote(run_id, safe=_UNESCAPED)}")


def _held(run: WatchedRun, store: Store) -> dict[str, Any]:
    """All answers that the page asks for, by their addresses."""
    own = f"/api/runs/0/{quote(run.run_id, safe=_UNESCAPED)}"
    name = store.url.rstrip("/").rpartition("/")[2]
    place = {"place": "0", "url": name, "kind": "store", "error": None}
    runs = {"runs": [listed_json(0, run.run_id, run)]}
    trials = sorted(run.state.trials)[:_MOST_DETAILED]
    return {
        "exported": datetime.now(UTC).replace(microsecond=0),
        "runs": runs,
        "responses": {
            "/api/places": {"version": __version__, "control": False, "places": [place]},
            "/api/runs": runs,
            own: described_json(run),
            f"{own}/importance": importance_json(points_of(run)),
            f"{own}/schedule": _bytes(schedule_bytes(run, None, None, _PIXELS)),
            **{
                f"{own}/curves?metric={quote(metric, safe=_UNESCAPED)}": _bytes(curves_bytes(run, metric))
                for metric in metrics_of(run.state)
            },
            **{f"{own}/trials/{number}": trial_detail_json(run, number) for number in trials},
        },
    }


def _bytes(data: bytes) -> dict[str, Any]:
    """Bytes as the page reads them: compressed, by half; without a time in it."""
    return {"base64": base64.b64encode(gzip.compress(data, mtime=0)).decode(), "gzip": True}


def _inlined(static: Path, held: dict[str, Any], first: str) -> str:
    """The page with its script, its style and the answers in it, which begins with the view ``first``. A module script
    would not load from a file."""
    try:
        page, script, style = (
            (static / name).read_text(encoding="utf-8") for name in ("index.html", "app.js", "app.css")
        )
    except FileNotFoundError:
        raise NotFoundError(NOT_BUILT) from None
    answers = encoded(held).decode().replace("<", "\\u003c")
    script = re.sub("</(?=script)", r"<\\/", script, flags=re.IGNORECASE)
    script = f"if (!location.hash) location.hash = {json.dumps(first)};\n{script}"
    style = re.sub("</(?=style)", r"<\\/", style, flags=re.IGNORECASE)
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{style}</style>'
    body = f'<script type="application/json" id="hopyard-export">{answers}</script><script>{script}</script>'
    page = re.sub(r'<link rel="stylesheet"[^>]*>', "", page)
    page = re.sub(r"<script[^>]*></script>", "", page)
    return page.replace("</head>", f"{head}</head>", 1).replace("</body>", f"{body}</body>", 1)
