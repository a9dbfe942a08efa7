"""``hopyard stock``: things on the shelves, and ways in and out."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Annotated, Any

import typer
from rich.table import Table

from hopyard.cli.completing import (
    complete_column,
    complete_dataset_columns,
    complete_import_option,
    complete_importer,
    complete_revision,
    complete_shelf,
    complete_thing,
)
from hopyard.cli.terminal import JsonOption, complain, console, say, show_json
from hopyard.data.progress import RowProgress
from hopyard.documents.shelves import (
    column_json,
    dataset_json,
    imported_json,
    leaks_json,
    model_json,
    run_json,
)
from hopyard.documents.stockroom import listed_json
from hopyard.errors import ColumnError, DataError, HopyardError, NotFoundError, UsageError
from hopyard.stockroom import StockRoom
from hopyard.stockroom.catalog.exporting import export as export_thing
from hopyard.stockroom.catalog.shelves import Shelves, list_shelves
from hopyard.stockroom.data.leaks import Leaks
from hopyard.stockroom.data.leaks import leaks as leaks_of
from hopyard.stockroom.git import find
from hopyard.stockroom.history.commits import short
from hopyard.stockroom.importers.registry import find_importer, importer_names
from hopyard.stockroom.importers.storing import Imported
from hopyard.stockroom.models import describe
from hopyard.stockroom.models.describe import Spread, TensorFacts, describe_column
from hopyard.stockroom.records import SHELVES, thing_of
from hopyard.wording import counted, describe_bytes, describe_seconds, nearest, one_line

_MOST = 20
_LOOKED_AT = 256 << 20  # bytes of a column that statistics are of, unless all are asked for
_BARS = " ▁▂▃▄▅▆▇█"

ThingPath = Annotated[
    str,
    typer.Argument(
        help="SHELF/NAME: data/image, model/resnet, experiment/lr.", autocompletion=complete_thing
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at", help="A revision; none: what is here, with what is staged.", autocompletion=complete_revision
    ),
]


def import_(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An importer; none: all are listed, with their options.", autocompletion=complete_importer
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="The archive, file or folder; none: it is downloaded.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="A setting of the importer: name=value.",
            autocompletion=complete_import_option,
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="That read; 0: this one.", min=0)] = 0,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Of the commit.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Import a dataset, and commit it. An interrupted import goes on when it is run again."""
    if name is None:
        _show_importers(as_json)
        return
    importer = find_importer(name)
    if source is None and importer.needs_source:
        raise UsageError(f"{name} reads what you have. Give its place: --from PATH.\n\n{importer.help()}")
    options = dict(_option(each) for each in option or ())
    began = time.monotonic()
    with _found_or_made(complain if as_json else say) as room, RowProgress(unit="samples") as progress:
        imported = room.import_from(
            name, source, options, processes, message,
            watch=lambda now: progress(name, now.done, now.total),
            watch_download=lambda file, done, total: progress(file, done, total),
        )  # fmt: skip
        seconds = time.monotonic() - began
    if as_json:
        show_json(imported_json(imported, room.head.branch, seconds))
    else:
        _say_imported(imported, room, seconds)


def _show_importers(as_json: bool) -> None:
    found = []
    for name in importer_names():
        try:
            found.append({"importer": name, "help": find_importer(name).help(), "error": None})
        except UsageError as error:  # its package is broken
            found.append({"importer": name, "help": None, "error": str(error)})
    if as_json:
        show_json(found)
        return
    for each in found:
        say(str(each["importer"]))
        say(textwrap.indent(str(each["help"] or each["error"]), "  "))


def _say_imported(imported: Imported, room: StockRoom, seconds: float) -> None:
    new = sum(imported.columns.values()) - imported.resumed
    for column, count in imported.columns.items():
        say(f"data/{column}: {counted(count, 'sample')}")
    again = f"; {imported.resumed:,} were there from an interrupted import" if imported.resumed else ""
    say(f"{counted(new, 'sample')} in {describe_seconds(seconds)}, {new / seconds:,.0f} samples/s{again}")
    for note in imported.notes:
        say(f"note: {one_line(note)}")
    done = "committed as" if imported.is_new else "all of it is there already, in"
    say(f"{done} {short(imported.commit)} on {room.head.branch or 'no branch'}")


def _found_or_made(tell: Callable[[str], None]) -> StockRoom:
    try:
        find()
    except NotFoundError:
        room = StockRoom.init()
        tell(f"a stockroom is in {room.place.root}; its objects are in {room.place.objects}")
        return room
    return StockRoom()


def _option(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"--option {text!r} must be name=value.")
    return name, value


def export(
    path: ThingPath,
    target: Annotated[
        str, typer.Argument(help="A file (.npy, .npz, .parquet, .safetensors, .json) or a folder.")
    ],
    at: At = None,
    as_json: JsonOption = False,
) -> None:
    """Write something out of a shelf as a file that other programs read."""
    with StockRoom(enable_write=at is None) as room:
        file = export_thing(room if at is None else room.at(at), path, target)
        size = sum(each.stat().st_size for each in ([file] if file.is_file() else file.iterdir()))
        if as_json:
            show_json({"path": path, "file": file, "file_bytes": size})
            return
        say(f"{path}: {describe_bytes(size)} in {file}")
        if file.suffix == ".npy":
            say("the samples are in the order of their keys, which .npy does not hold; .npz and .parquet do")


def list_(
    shelf: Annotated[
        str | None,
        typer.Argument(help="data, model, experiment or run; none: all.", autocompletion=complete_shelf),
    ] = None,
    at: At = None,
    as_json: JsonOption = False,
) -> None:
    """List what is on the shelves."""
    if shelf is not None and shelf not in SHELVES:
        raise UsageError(
            f"there is no shelf {shelf!r}{nearest(shelf, SHELVES, '.')} Shelves: {', '.join(SHELVES)}."
        )
    with StockRoom(enable_write=at is None) as room:
        shown: Shelves = room if at is None else room.at(at)
        found = list(list_shelves(shown, shelf))
        if as_json:
            show_json(listed_json(found))
            return
        table = _table("", "", "samples", "size")
        for each in found:
            count = "" if each.count is None else f"{each.count:,}"
            table.add_row(
                each.path, each.what, count, "" if each.nbytes is None else describe_bytes(each.nbytes)
            )
        if table.row_count:
            console().print(table)
        else:
            say(f"nothing is {'on the shelf' if shelf else 'on the shelves'} {shelf or ''}".rstrip())


def inspect(
    path: ThingPath,
    at: At = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="Of a model: how far it moved since this revision.",
            autocompletion=complete_revision,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Of a column: read all samples for the statistics, not the first 256 MB."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one thing: a model's tensors with norms and histograms; a column's first samples and statistics; a run.

    How many elements are NaN or infinite is said of both; the other statistics are those of the finite ones.
    """
    with StockRoom(enable_write=at is None) as room:
        shown: Shelves = room if at is None else room.at(at)
        shelf, name = thing_of(path)
        if shelf == "model":
            other = None if against is None else room.at(against).model.record(name)
            _show_model(path, describe(shown.model, name, other), other is not None, as_json)
        elif shelf == "data":
            _show_data(path, shown.data[name], name, None if every else _LOOKED_AT, as_json)
        elif shelf == "experiment":
            value = shown.experiment[name]
            if as_json:
                show_json({"path": path, "value": value})
            else:
                say(repr(value))
        else:
            run = shown.experiment.run(name)
            if as_json:
                show_json(run_json(path, run))
            else:
                _show_run(run)


def _show_model(path: str, facts: Sequence[TensorFacts], against: bool, as_json: bool) -> None:
    if as_json:
        show_json(model_json(path, facts))
        return
    total = sum(fact.nbytes for fact in facts if fact.change != "removed")
    say(f"{counted(len(facts), 'tensor')}, {describe_bytes(total)}")
    nonfinite = any(fact.spread is not None and fact.spread.nan + fact.spread.infinite for fact in facts)
    titles = ["tensor", "dtype", "shape", "norm", "mean", "std", "histogram"]
    titles += ["NaN", "infinite"] if nonfinite else []
    table = _table(*titles, *(["moved"] if against else []))
    for fact in facts:
        shape = "x".join(map(str, fact.shape)) or "scalar"
        if fact.spread is None:
            cells = [""] * (len(titles) - 3)
        else:
            spread = fact.spread
            cells = [f"{number:.3g}" for number in (spread.norm, spread.mean, spread.std)]
            cells.append(_bars(spread.histogram))
            cells += [f"{spread.nan:,}", f"{spread.infinite:,}"] if nonfinite else []
        moved: list[str] = []
        if against:
            moved = [fact.change or ""] if fact.moved is None else [f"{fact.moved:.3g}"]
        table.add_row(fact.path, fact.dtype, shape, *cells, *moved)
    console().print(table)


def _bars(histogram: tuple[int, ...]) -> str:
    most = max(histogram, default=0) or 1
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in histogram)


def _show_data(path: str, item: Any, name: str, most: int | None, as_json: bool) -> None:
    is_dataset = hasattr(item, "schema")
    described = None
    if not is_dataset and item.kind == "tensor" and len(item):
        described = describe_column(item, most)
    if as_json:
        show_json(dataset_json(path, item) if is_dataset else column_json(path, item, described))
        return
    if is_dataset:
        say(f"dataset {name}: {counted(len(item), 'row')}")
        for column in item.schema:
            say(f"    {column}")
        return
    shape = ", ".join("?" if length is None else str(length) for length in item.shape)
    say(f"{item.kind} column of {counted(len(item), 'sample')}, {describe_bytes(item.nbytes)}")
    if item.kind == "tensor":
        say(f"dtype {item.dtype}, shape ({shape})")
        if described is not None:
            _show_statistics(item, *described)
    for key, _ in zip(item, range(_MOST // 2), strict=False):
        sample = item[key]
        text = _short_array(sample) if hasattr(sample, "ndim") else repr(sample)
        say(f"    [{key!r}] {text if len(text) <= 70 else text[:67] + '...'}")
    if len(item) > _MOST // 2:
        say(f"    and {len(item) - _MOST // 2:,} more")


def _show_statistics(column: Any, samples: int, spread: Spread) -> None:
    if not math.isnan(spread.mean):
        numbers = {"min": spread.min, "max": spread.max, "mean": spread.mean, "std": spread.std}
        say(", ".join(f"{name} {number + 0.0:.4g}" for name, number in numbers.items()))  # no -0
    some = "" if samples == len(column) else f"among the first {samples:,} samples; --all reads all"
    if not str(column.dtype).startswith(("int", "uint", "bool")):
        some = f"{spread.nan:,} NaN, {spread.infinite:,} infinite {some}".strip()
    if some:
        say(some)


def _short_array(array: Any) -> str:
    if not array.ndim:
        return str(array)
    values = array.reshape(-1)[:6].tolist()
    shown = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
    return f"{list(array.shape)} {', '.join(shown)}"


def _show_run(run: Any) -> None:
    say(f"run {run.id}: {run.status}, {describe_seconds(run.seconds)}")
    for title, values in (("params", run.params), ("tags", run.tags)):
        for name, value in values.items():
            say(f"    {title} {one_line(name)} = {value!r}")
    for name, (steps, values) in run.metrics.items():
        if len(values):
            last = f"last {values[-1]:.6g} at step {steps[-1]}"
            say(f"    metric {one_line(name)}: {counted(len(values), 'value')}, {last}")
    for name, size in run.artifacts.items():
        say(f"    artifact {one_line(name)}: {describe_bytes(size)}")
    if run.error is not None:
        say(f"    {run.error['kind']}: {run.error['message']}")


def leaks(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Columns or datasets, at least two, such as train val test: each with each.",
            autocompletion=complete_column,
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            help="Of datasets: compare these, with commas between.", autocompletion=complete_dataset_columns
        ),
    ] = None,
    at: At = None,
    as_json: JsonOption = False,
) -> None:
    """Find samples that stand in several columns or datasets. Status 1 if there are any, 2 if some cannot be compared.

    Samples of one dtype are compared byte by byte; numbers of different dtypes by their values, exactly.
    """
    if len(set(names)) < len(names) or len(names) < 2:
        raise UsageError(
            f"leaks was given {', '.join(names)}, but compares at least two columns or datasets, each named once: "
            "hopyard stock leaks train val test"
        )
    with StockRoom(enable_write=at is None) as room:
        data = (room if at is None else room.at(at)).data
        chosen = None if columns is None else [name.strip() for name in columns.split(",")]
        given = {name: data[name.removeprefix("data/")] for name in names}
        found: list[tuple[str, str, Leaks | HopyardError]] = []
        for first, second in combinations(names, 2):
            try:
                each: Leaks | HopyardError = leaks_of(given[first], given[second], chosen)
            except (DataError, ColumnError, UsageError) as error:
                each = error
            found.append((first, second, each))
            if not as_json:
                _show_leaks(first, second, each)
    if as_json:
        show_json(leaks_json(found))
    if any(isinstance(each, Leaks) and len(each) for *_, each in found):
        raise typer.Exit(1)
    if any(isinstance(each, HopyardError) for *_, each in found):
        raise typer.Exit(2)


def _show_leaks(first: str, second: str, each: Leaks | HopyardError) -> None:
    if isinstance(each, HopyardError):
        say(f"{first} and {second} cannot be compared: {each}")
        return
    say(f"{first} and {second}: {each}")
    for pair in each.pairs[:_MOST]:
        say(f"    {first}[{pair[0]!r}] = {second}[{pair[1]!r}]")
    if len(each.pairs) > _MOST:
        say(f"    and {len(each.pairs) - _MOST:,} more")


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        is_number = title in ("samples", "size", "norm", "mean", "std", "NaN", "infinite", "moved")
        table.add_column(title, justify="right" if is_number else "left", no_wrap=number > 0, overflow="fold")
    return table


def add(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("import")(import_)
    app.command("list")(list_)
    for command in (export, inspect, leaks):
        app.command()(command)
