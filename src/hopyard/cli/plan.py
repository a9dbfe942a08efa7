"""``hopyard plan``: estimates for a search before it is begun."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hopyard.cli.terminal import JsonOption, console, say, show_json
from hopyard.documents.plans import Preview, estimates_of, lacking, packing_of, plan_json, preview_of
from hopyard.errors import UsageError
from hopyard.hopper.packs import PackingPlan
from hopyard.hopper.plan import Estimate
from hopyard.wording import beginning, counted


def plan(
    searcher: Annotated[
        Path | None, typer.Option(help="A JSON or YAML file with a searcher's config, or an experiment's.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Workers of the cluster.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of the training data.")] = None,
    rows_per_second: Annotated[float | None, typer.Option(help="One model on one worker.")] = None,
    seconds_per_unit: Annotated[float | None, typer.Option(help="Of one visit to one partition.")] = None,
    state_mb: Annotated[float, typer.Option(help="A model with its optimizer, in MB.")] = 100,
    data_gb: Annotated[float | None, typer.Option(help="The training data, in GB.")] = None,
    models: Annotated[int | None, typer.Option(min=1, help="How many models; or give --searcher.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="How many epochs; or give --searcher.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="How many the data is divided into.")] = 8,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a mini-batch.")] = 256,
    gbit: Annotated[float, typer.Option(help="Network of one worker, in Gbit/s.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Estimate time, bytes moved and worker hours of a search; show what a searcher would do, in which packs."""
    config = None if searcher is None else _config(searcher)
    preview = None if config is None else preview_of(config)
    if workers is None and preview is not None:
        _show(preview, None, None, as_json)
        return
    numbers: dict[str, float | None] = {
        "workers": workers, "rows": rows, "rows_per_second": rows_per_second, "seconds_per_unit": seconds_per_unit,
        "state_mb": state_mb, "data_gb": data_gb, "models": models, "epochs": epochs, "partitions": partitions,
        "batch_size": batch_size, "gbit": gbit,
    }  # fmt: skip
    if missing := lacking(config, numbers):
        raise _missing([_options(name) for name in missing])
    for name in ("rows_per_second", "seconds_per_unit", "state_mb", "data_gb", "gbit"):
        value = numbers[name]
        if value is not None and not 0 < value < math.inf:
            raise UsageError(
                f"{_options(name)} {value:g} was given; it must be greater than 0. See: hopyard plan --help."
            )
    estimates = estimates_of(config, numbers)
    _show(preview, estimates, packing_of(config, preview, numbers), as_json)


def _options(names: str) -> str:
    """``--rows-per-second or --seconds-per-unit`` from the names of numbers."""
    return " or ".join(f"--{name.replace('_', '-')}" for name in names.split(" or "))


def _show(
    preview: Preview | None, estimates: list[Estimate] | None, packing: PackingPlan | None, as_json: bool
) -> None:
    if as_json:
        show_json(plan_json(preview, estimates, packing))
        return
    if preview is not None:
        _print_preview(preview)
    if estimates is not None:
        _print_estimates(estimates)
    if packing is not None:
        say(f"\n{f'If models are alike: {packing}' if packing.packs else beginning(str(packing))}.")


def _print_estimates(estimates: list[Estimate]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("way")
    for title in ("hours", "GB moved", "GB of data stored", "worker hours", "GB out of a bucket", "requests"):
        table.add_column(title, justify="right")
    for each in estimates:
        numbers = (
            each.seconds / 3600, each.bytes_moved / 1e9, each.bytes_stored / 1e9, each.worker_hours,
            each.bytes_read / 1e9,
        )  # fmt: skip
        table.add_row(each.way, *(f"{number:,.2f}" for number in numbers), f"{each.requests:,.0f}")
    console().print(table)


def _missing(options: list[str]) -> UsageError:
    return UsageError(
        f"hopyard plan lacks {', '.join(options)} to estimate a search; --searcher FILE alone shows what a searcher "
        "would do. Try: hopyard plan --workers 8 --rows 1000000 --rows-per-second 5000 --data-gb 50 --models 16 "
        "--epochs 10"
    )


def _print_preview(preview: Preview) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("trials", justify="right")
    table.add_column(f"{preview.unit} each", justify="right")
    for trials, units in preview.groups:
        table.add_row(f"{trials:,}", f"{units:,}")
    console().print(table)
    say(f"{counted(preview.trials, 'trial')}, {preview.units:,} {preview.unit} in all\n")


def _config(path: Path) -> dict[str, Any]:
    """The searcher's config in a file, or that of an experiment in it."""
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(
            f"--searcher {path} cannot be read: {error.strerror}. Name a JSON or YAML file."
        ) from None
    try:
        found = json.loads(text)
    except ValueError:
        found = _yaml(path, text)
    if isinstance(found, dict) and isinstance(found.get("searcher"), dict):
        found = {"hyperparameters": found.get("hyperparameters")} | found["searcher"]
        if (
            found.get("name") != "grid" or found["hyperparameters"] is None
        ):  # no other searcher counts their values
            del found["hyperparameters"]
    if not isinstance(found, dict):
        raise UsageError(
            f"--searcher {path} holds no searcher: needed is a mapping with a name, such as name: random."
        )
    return found


def _yaml(path: Path, text: str) -> Any:
    try:
        yaml: Any = import_module("yaml")  # optional, and without types
    except ImportError:
        raise UsageError(f"--searcher {path} is not JSON; to read YAML, pip install pyyaml.") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--searcher {path} is neither JSON nor YAML: {error}") from None
