"""``hopyard data``: look at datasets, prepare them, measure how fast they are read."""

from __future__ import annotations

import shlex
import time
from enum import StrEnum
from typing import Annotated

import typer

from hopyard.cli import data_cache
from hopyard.cli.terminal import JsonOption, console, say, show_json
from hopyard.data import Prepared, as_source, open_dataset
from hopyard.data import inspect as inspect_dataset
from hopyard.data import prepare as prepare_dataset
from hopyard.data import throughput as measure_throughput
from hopyard.data import verify as verify_data
from hopyard.data.petastorm.convert import convert_petastorm
from hopyard.data.progress import RowProgress
from hopyard.data.sources.csv_files import types_in
from hopyard.documents.data import prepared_json, summary_json, throughput_json, verified_json
from hopyard.storage import open_store
from hopyard.wording import describe_seconds

app: typer.Typer = typer.Typer(help="Look at datasets, prepare them, measure them.", no_args_is_help=True)
app.add_typer(data_cache.app, name="cache")

DataPath = Annotated[str, typer.Argument(help="A store, a prepared dataset, or Parquet files.")]
TargetStore = Annotated[
    str, typer.Argument(help="The store to write into: a directory, which is made, or a URL.")
]
Validation = Annotated[
    str, typer.Option(help="A share of the rows, the name of a bool or int column, or none.")
]
Seed = Annotated[int, typer.Option(help="Of the order of the rows, and of a share for validation.")]


class NullPolicy(StrEnum):
    """Policies for nulls."""

    error = "error"
    fill = "fill"
    mask = "mask"


class RaggedRows(StrEnum):
    """Policies for rows of different lengths."""

    error = "error"
    keep = "keep"
    pad = "pad"


class EncodedImages(StrEnum):
    """Policies for images that Petastorm encoded."""

    decode = "decode"
    keep = "keep"


class ArrayKind(StrEnum):
    """Kinds of arrays in batches."""

    numpy = "numpy"
    torch = "torch"


NullsOption = Annotated[
    NullPolicy, typer.Option(help="fill: zeros instead; mask: and a column that says where.")
]
RaggedOption = Annotated[
    RaggedRows, typer.Option(help="keep: values and offsets; pad: zeros up to the longest.")
]


@app.callback()
def data() -> None:
    """Look at datasets, prepare them, measure them."""


@app.command()
def inspect(path: DataPath, as_json: JsonOption = False) -> None:
    """Show the columns, rows, row groups and statistics of a dataset."""
    found = inspect_dataset(path)
    if as_json:
        show_json(summary_json(found))
    else:
        console().print(found)


@app.command()
def prepare(
    source: Annotated[
        list[str], typer.Argument(help="Parquet or CSV files: paths, directories, patterns in quotes.")
    ],
    store: TargetStore,
    validation: Validation = "0.25",
    features: Annotated[str | None, typer.Option(help="Columns to keep, with commas between.")] = None,
    labels: Annotated[str | None, typer.Option(help="More columns to keep.")] = None,
    nulls: NullsOption = NullPolicy.error,
    ragged: RaggedOption = RaggedRows.error,
    seed: Seed = 0,
    types: Annotated[str, typer.Option(help="Of columns of CSV files: id=text,age=int16.")] = "",
    delimiter: Annotated[str, typer.Option(help="Between columns of CSV files: one character, or tab.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Write files as a training and a validation set that can be mapped; what is there already is found again."""
    began = time.monotonic()
    rows = as_source(source, types=types_in(types) or None, delimiter=delimiter or None)
    with RowProgress() as progress:
        prepared = prepare_dataset(
            rows, open_store(store), _validation(validation), _names(features), _names(labels), seed,
            nulls.value, ragged.value, watch=progress,
        )  # fmt: skip
    _show_prepared(prepared, store, time.monotonic() - began, as_json)


@app.command("convert-petastorm")
def convert_petastorm_command(
    source: Annotated[str, typer.Argument(help="The Petastorm dataset: a directory.")],
    store: TargetStore,
    columns: Annotated[str | None, typer.Option(help="Fields to convert, with commas between.")] = None,
    validation: Validation = "none",
    nulls: NullsOption = NullPolicy.error,
    ragged: RaggedOption = RaggedRows.error,
    seed: Seed = 0,
    images: Annotated[
        EncodedImages, typer.Option(help="keep: as encoded bytes, for images of different sizes.")
    ] = EncodedImages.decode,
    as_json: JsonOption = False,
) -> None:
    """Convert a Petastorm dataset: fields are decoded as its Unischema says, and no pickle of it is loaded."""
    began = time.monotonic()
    with RowProgress() as progress:
        prepared = convert_petastorm(
            source, store, columns=_names(columns), validation=_validation(validation), seed=seed,
            nulls=nulls.value, ragged=ragged.value, images=images.value,
            progress=lambda done, total: progress("converting", done, total),
        )  # fmt: skip
    _show_prepared(prepared, store, time.monotonic() - began, as_json)


@app.command()
def verify(path: DataPath, as_json: JsonOption = False) -> None:
    """Compare every byte of all prepared datasets in a store with what was written. Status 1 if something is wrong."""
    with RowProgress(unit="files") as progress:
        verified = verify_data(path, lambda done, total: progress("checking", done, total))
    if as_json:
        show_json(verified_json(verified))
    else:
        say(str(verified))
    if not verified.ok:
        raise typer.Exit(1)


@app.command()
def throughput(
    path: DataPath,
    batch_size: Annotated[int, typer.Option(help="Rows of a batch.", min=1)] = 1024,
    shuffle: Annotated[bool, typer.Option(help="A permutation of the rows, or their natural order.")] = True,
    columns: Annotated[
        str | None, typer.Option(help="Columns to read, with commas between; all if none.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="Passes over the data; the first may have to decode.", min=1)
    ] = 3,
    batches: Annotated[
        int | None, typer.Option(help="Batches of each pass at most; all if none.", min=1)
    ] = None,
    output: Annotated[ArrayKind, typer.Option(help="What batches hold.")] = ArrayKind.numpy,
    seed: Annotated[int, typer.Option(help="Of the permutations.")] = 0,
    nulls: NullsOption = NullPolicy.error,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast a dataset is read here, beside the limits of the machine, and how well it is shuffled."""
    with RowProgress() as progress:
        measured = measure_throughput(
            open_dataset(path, nulls=nulls.value), batch_size, shuffle, _names(columns), epochs, output.value,
            seed=seed, batches=batches, progress=progress,
        )  # fmt: skip
    if as_json:
        show_json(throughput_json(measured))
    else:
        console().print(measured)


def _validation(given: str) -> float | str | None:
    if given == "none":
        return None
    try:
        return float(given)
    except ValueError:
        return given


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",")]


def _show_prepared(prepared: Prepared, store: str, seconds: float, as_json: bool) -> None:
    """Show the rows prepared, the time taken, the place of each split, and the commands for the next step."""
    if as_json:
        show_json(prepared_json(prepared, seconds))
        return
    splits = [split for split in (prepared.train, prepared.val) if split is not None]
    rows = sum(map(len, splits))
    counted = " and ".join(f"{len(split):,} rows for {split.split}" for split in splits)
    if prepared.reused:
        say(f"{counted} are there already, with the same arguments; nothing was written")
    else:
        speed = f"{rows / seconds:,.0f} rows/s" if seconds else ""
        say(f"{counted} in {describe_seconds(seconds)}, {speed}")
    for split in splits:
        assert split.store is not None
        say(f"  {split.split}: {split.store.url}")
    say(f"next: hopyard data inspect {shlex.quote(store)}, or hopyard data throughput {shlex.quote(store)}")
