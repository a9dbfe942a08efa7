"""``hopyard store``: try stores, and measure them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hopyard.cli.terminal import JsonOption, say, show_json
from hopyard.storage import StoreReport, check_store, open_store

app: typer.Typer = typer.Typer(help="Try stores, and measure them.", no_args_is_help=True)


@app.callback()
def store() -> None:
    """Try stores, and measure them."""


@app.command()
def check(
    url: Annotated[
        str, typer.Argument(help="The store: a directory, or the URL of a bucket or a folder on HDFS.")
    ],
    megabytes: Annotated[
        int, typer.Option(help="Size of the object that speed is measured with.", min=1)
    ] = 16,
    as_json: JsonOption = False,
) -> None:
    """Try a store as a search uses it, and say what works, how fast, and what is missing. Status 1 if something is."""
    report = check_store(open_store(url), megabytes)
    if as_json:
        show_json(_report_json(report))
    else:
        say(str(report))
    if not report.ok:
        raise typer.Exit(1)


def _report_json(report: StoreReport) -> dict[str, Any]:
    return {
        "url": report.url,
        "ok": report.ok,
        "checks": [{"name": each.name, "ok": each.ok, "found": each.found} for each in report.checks],
        "request_seconds": report.seconds,
    }
