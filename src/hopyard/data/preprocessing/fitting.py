"""Steps fitted on the training rows of a dataset in one pass, and datasets whose rows go through them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.base import BaseDataset, Partitioned
from hopyard.data.cache.node import NodeCache
from hopyard.data.contract import EpochStream
from hopyard.data.order import Reach, Rows
from hopyard.data.preparing.prepared import check_filled
from hopyard.data.preprocessing.base import FittedState, Step
from hopyard.data.preprocessing.category import Categories
from hopyard.data.ragged import Ragged
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.strings import Coded, as_objects
from hopyard.data.reading.views import Batch, Wanted, columns_of
from hopyard.data.schema import Column, Schema
from hopyard.data.sources.sources import as_source
from hopyard.data.stream import WindowStream
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.objects.digests import digest_json
from hopyard.storage.base import Store
from hopyard.wording import nearest

_ROWS_AT_ONCE = 65_536
_BYTES_AT_ONCE = 64 << 20
_TEXT_BYTES = 64
_DOMAIN = "hopyard.preprocessing"
KEPT_IN = "_preprocessing"
"""Folder in a store of the steps that were fitted on its data."""

_log = logging.getLogger("hopyard")


@dataclass(frozen=True)
class Steps:
    """Steps in the order in which they are applied."""

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, given: Any) -> Steps:
        """The steps that a user gave.

        Raises:
            UsageError: one of them is none.
        """
        if isinstance(given, Step):
            given = [given]
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise UsageError(
                f"preprocess={given!r}, but it must be a list of steps, such as [StandardScale('age'), "
                "Category('city')]."
            )
        steps = tuple(given)
        for step in steps:
            if not isinstance(step, Step):
                name = type(step).__name__
                advice = (
                    f"Apply({name}(), 'column')"
                    if not isinstance(step, type)
                    else f"{step.__name__}('column')"
                )
                raise UsageError(
                    f"preprocess holds {step!r}, which is no step. Steps are StandardScale, Category, Impute, and "
                    f"Apply for transformers of scikit-learn and layers of Keras: {advice}."
                )
        return cls(steps)

    def definition(self) -> Any:
        """Definition as a JSON value, which differs where something else would be learned."""
        return [step.definition() for step in self.steps]

    def made(self) -> set[str]:
        """The columns that steps add to those they read."""
        return {name for step in self.steps for name in step.outputs if name not in step.columns}

    def check_made(self, there: Collection[str]) -> None:
        """Raise UsageError if a column that a step adds is in the data already: the step would replace it."""
        for step in self.steps:
            for name in step.outputs:
                if name in there and name in self.made():
                    raise UsageError(
                        f"preprocess has {step}, which makes a column {name!r}, but the data has one of that name. "
                        f"Rename {name!r} in the data, or drop it."
                    )

    def sources(self, names: Iterable[str]) -> list[str]:
        """The columns that the data must have for columns ``names`` to be made."""
        needed = list(dict.fromkeys(names))
        for step in reversed(self.steps):
            if set(step.outputs).isdisjoint(needed):
                continue
            kept = [name for name in needed if name not in step.outputs or name in step.columns]
            needed = list(dict.fromkeys([*kept, *step.columns]))
        return needed

    def filled(self, names: Iterable[str]) -> list[str]:
        """Sources of ``names`` whose missing values a step gives a value."""
        return self._first_read(names, [step for step in self.steps if step.fills])

    def read(self, names: Iterable[str]) -> list[str]:
        """Sources of ``names`` that a step reads: it gets a mask of their null rows."""
        return self._first_read(names, self.steps)

    def _first_read(self, names: Iterable[str], by: Sequence[Step]) -> list[str]:
        """Sources of ``names`` that one of the steps ``by`` reads before any step has written them."""
        sources, found, written = self.sources(names), [], set[str]()
        for step in self.steps:
            found += [name for name in step.columns if step in by and name in sources and name not in written]
            written.update(step.outputs)
        return list(dict.fromkeys(found))

    def masked(self, names: Iterable[str], nulls: str) -> list[str]:
        """The columns of data that must come with a mask for ``names`` to be made.

        Args:
            nulls: the data's policy. Under ``"fill"`` each column that steps read has one: a null stays null to
                them, and is not the zero or empty text that was written there.
        """
        return self.read(names) if nulls == "fill" else self.filled(names)

    def check(self, features: Collection[str], labels: Collection[str]) -> None:
        """Raise UsageError where a step is of no use for the features, or changes a label."""
        needed = set(features)
        for step in reversed(self.steps):
            changed = [name for name in (*step.outputs, *step.columns) if name in labels]
            if changed:
                raise UsageError(
                    f"preprocess has {step}, but {changed[0]!r} is a label column. Labels are not preprocessed: "
                    "metrics would be of other numbers than the data's. Change them in the data."
                )
            if needed.isdisjoint(step.outputs):
                names = ", ".join(map(repr, step.outputs))
                raise UsageError(
                    f"preprocess has {step}, which makes {names}, but no feature is made of it: feature_columns are "
                    f"{list(features)}{nearest(step.outputs[0], features, '.')} Name {names} in feature_columns, or "
                    "leave the step out."
                )
            needed.update(step.columns)

    def levels(self) -> list[int]:
        """Number of passes that must end before each step's own can begin."""
        found: list[int] = []
        for place, step in enumerate(self.steps):
            mine = {*step.columns, *step.outputs}
            before = [
                found[other] + 1
                for other in range(place)
                if not mine.isdisjoint({*self.steps[other].outputs, *self.steps[other].columns})
            ]
            found.append(max(before, default=0))
        return found


@dataclass(frozen=True)
class FittedSteps:
    """Steps with all that they learned from training rows.

    Attributes:
        steps: as given.
        states: of each of them.
        columns: the columns that steps wrote, as batches hold them.
        digest: of the steps and of the rows that they were fitted on.
    """

    steps: Steps
    states: tuple[FittedState, ...]
    columns: Mapping[str, Column]
    digest: str

    def __repr__(self) -> str:
        return f"FittedSteps({', '.join(map(repr, self.steps.steps))})"

    def categories(self, column: str) -> list[Any]:
        """The categories of a column; the first has the number 1.

        Raises:
            ColumnError: no ``Category`` step has that column.
        """
        known = {}
        for state in self.states:
            if isinstance(state, Categories):
                known.update(state.known)
        if column not in known:
            raise ColumnError(
                f"No Category step has column {column!r}{nearest(column, known, '.')} Those that have categories are "
                f"{list(known)}."
            )
        found: list[Any] = known[column].to_pylist()
        return found

    def sources(self, names: Iterable[str]) -> list[str]:
        """See :meth:`Steps.sources`."""
        return self.steps.sources(names)

    @property
    def takes_coded(self) -> frozenset[str]:
        """Columns that may be ``Coded``: all steps that read them take these, and one replaces them."""
        known: dict[str, bool] = {}
        for step, state in zip(self.steps.steps, self.states, strict=True):
            for name in step.columns:
                known[name] = known.get(name, name in step.outputs) and state.takes_coded
        return frozenset(name for name, are in known.items() if are)

    def apply(self, batch: Any) -> dict[str, Any]:
        """Rows with the columns that the steps make, as a dict of arrays, as models get them.

        Args:
            batch: a frame of pandas, polars or Arrow, or a dict of arrays or lists, with the columns of the data as
                they are before the steps. Nulls may be in it; where a bool column ``<name>_mask`` stands beside a
                column, it says which of its rows are null.

        Raises:
            DataError: it has no rows, or holds values that a dataset cannot, or that a step does not take.
        """
        columns = as_source(batch).collect().columns
        assert columns is not None
        masks = {f"{name}_mask": data.missing for name, data in columns.items() if data.missing is not None}
        return self.apply_to_arrays({**masks, **{name: data.as_batch() for name, data in columns.items()}})

    def apply_to_arrays(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the steps to a batch as loaders give it: nulls only by its masks, times as int64 nanoseconds."""
        return _applied(zip(self.steps.steps, self.states, strict=True), batch)

    def of(self, dataset: Partitioned, names: Sequence[str] | None = None) -> Partitioned:
        """``dataset`` with the steps applied to every batch; ``names``: the columns it then has, by default all."""
        _check_not_padded(dataset, _read_by(self.steps))
        every = dict.fromkeys([*dataset.schema.names, *self.columns])
        return Preprocessed(dataset, self, tuple(every if names is None else names))


def fit_steps(steps: Any, dataset: BaseDataset) -> FittedSteps:
    """Fit steps on all rows of a dataset, which must be the training rows.

    >>> fitted = fit_steps([Category("city")], prepare(frame, store).train)
    >>> fitted.categories("city")

    Raises:
        UsageError: one of them is no step.
        ColumnError: the dataset lacks a column that a step reads.
        DataError: a column holds values that its step does not take, or its nulls were filled before.
    """
    steps = steps if isinstance(steps, Steps) else Steps.of(steps)
    needed = [name for name in _read_by(steps) if name not in steps.made()]
    for name in needed:
        if name not in dataset.schema.names:
            raise ColumnError(
                f"preprocess reads column {name!r}, which the data has not{nearest(name, dataset.schema.names, '.')} "
                f"It has {dataset.schema.names}."
            )
    steps.check_made(dataset.schema.names)
    check_filled([dataset], needed)
    _check_not_padded(dataset, needed)
    schema = dataset.schema.select(list(dict.fromkeys([*needed, *masks_of(dataset.schema, needed)])))
    width = sum(_TEXT_BYTES if column.width is None else column.width for column in schema)
    rows = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(width, 1)))

    def batches() -> Iterable[Mapping[str, Any]]:
        return dataset.loader(rows, columns=schema.names)

    return _fitted(steps, batches, _digest(steps, dataset))


def fit_steps_in(store: Store, steps: Steps, dataset: BaseDataset) -> FittedSteps:
    """Fitted steps, kept in ``store`` under the digest of rows and steps: fitted once."""
    name = f"{KEPT_IN}/{_digest(steps, dataset)}"
    if store.exists(name):
        try:
            found = pickle.loads(store.get(name))
        except Exception as error:  # written by other versions, or damaged: it is made anew
            _log.info("%s in %s cannot be read (%s) and is fitted again", name, store.url, error)
        else:
            if isinstance(found, FittedSteps):
                return found
    fitted = fit_steps(steps, dataset)
    store.put(name, pickle.dumps(fitted, protocol=5))
    return fitted


def _digest(steps: Steps, dataset: BaseDataset) -> str:
    return digest_json([dataset.fingerprint, dataset.split, steps.definition()], _DOMAIN)


def fit_steps_on_rows(steps: Steps, rows: Mapping[str, Any]) -> FittedSteps:
    """Fit steps on a few rows in memory, to try a trial out; columns that are missing in all of them count as there:
    others will have values."""
    some = dict(rows)
    for name, values in rows.items():
        mask = rows.get(f"{name}_mask")
        if isinstance(mask, np.ndarray) and mask.dtype == bool and mask.all():
            some[f"{name}_mask"] = np.zeros_like(mask)
        elif isinstance(values, np.ndarray) and values.dtype.kind == "f":
            lost = np.isnan(values)
            some[name] = np.where(lost.all(0), np.zeros_like(values), values)
    return _fitted(steps, lambda: [some], "")


def _check_not_padded(dataset: BaseDataset, names: Iterable[str]) -> None:
    """Raise DataError if rows of a column that steps read were padded: steps would take the zeros for values."""
    for name in names:
        if name in dataset.policies.padded:
            raise DataError(
                f"preprocess reads column {name!r}, whose rows ragged='pad' filled with zeros up to the longest one; "
                f"a step would take these zeros for values. Leave {name!r} out of preprocess, and change its rows in "
                f"transform= and val_transform=: {name}_length says how long each one is."
            )


def _read_by(steps: Steps) -> list[str]:
    return list(dict.fromkeys(name for step in steps.steps for name in step.columns))


def _fitted(steps: Steps, batches: Any, digest: str) -> FittedSteps:
    levels = steps.levels()
    states: dict[int, FittedState] = {}
    columns: dict[str, Column] = {}
    for level in range(max(levels, default=-1) + 1):
        fittings = {place: steps.steps[place].fitting() for place, its in enumerate(levels) if its == level}
        before = [(steps.steps[place], states[place]) for place in sorted(states)]
        for batch in batches():
            work, missing = _apply_to(before, batch)
            for place, fitting in fittings.items():
                fitting.add(_of(steps.steps[place], work), missing)
        states |= {place: fitting.result() for place, fitting in fittings.items()}
    ordered = tuple(states[place] for place in range(len(levels)))
    for batch in batches():
        head = {name: values[:2] for name, values in batch.items()}
        made = _applied(zip(steps.steps, ordered, strict=True), head)
        written = dict.fromkeys(name for step in steps.steps for name in step.outputs)
        columns = {name: _column(name, made[name]) for name in written}
        break
    return FittedSteps(steps, ordered, columns, digest)


def _applied(states: Iterable[tuple[Step, FittedState]], batch: Mapping[str, Any]) -> dict[str, Any]:
    return _apply_to(states, batch)[0]


def _apply_to(
    states: Iterable[tuple[Step, FittedState]], batch: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The batch after these steps, and the rows of its columns that are still missing."""
    work = dict(batch)
    masks = {name: batch.get(f"{name}_mask") for name in batch}
    missing = {
        name: _with_nan(mask, batch[name])
        for name, mask in masks.items()
        if isinstance(mask, np.ndarray) and mask.dtype == bool
    }
    for step, state in states:
        if not all(name in work for name in step.columns):  # of no use for the columns asked for
            continue
        work.update(state.apply(_of(step, work), missing))
        for name in (*step.columns, *step.outputs) if step.fills else ():
            missing.pop(name, None)
    return work, missing


def _with_nan(mask: npt.NDArray[np.bool_], values: Any) -> npt.NDArray[np.bool_]:
    """The rows that are null, and those of NaN: where rows may be missing, frames differ in how they say so."""
    is_float = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind == "f"
    return mask | np.isnan(values) if is_float else mask


def _of(step: Step, work: Mapping[str, Any]) -> dict[str, Any]:
    return {name: work[name] for name in step.columns}


def _column(name: str, values: Any) -> Column:
    if isinstance(values, Ragged):
        raise DataError(f"preprocess made column {name!r} with rows of different lengths. Pad them first.")
    if values.dtype.kind == "O":
        return Column(name, "bytes" if len(values) and isinstance(values.flat[0], bytes) else "string")
    return Column(name, "tensor", values.dtype.name, values.shape[1:])


def masks_of(schema: Schema, names: Iterable[str]) -> list[str]:
    """The bool columns of a schema that say which rows of others are null."""
    there = set(schema.names)
    masks = [f"{name}_mask" for name in names]
    return [mask for mask in masks if mask in there and schema[mask].dtype == "bool"]


def schema_of(base: Schema, fitted: FittedSteps, names: Sequence[str]) -> Schema:
    """Schema of a dataset after the steps.

    Raises:
        ColumnError: a name is neither of the data nor of a step.
    """
    return Schema(
        [
            fitted.columns[name] if name in fitted.columns else next(iter(base.select([name])))
            for name in names
        ]
    )


class Preprocessed(Partitioned):
    """``base`` after ``fitted``, with the columns ``names``: the same rows in the same order."""

    def __init__(self, base: Partitioned, fitted: FittedSteps, names: tuple[str, ...]) -> None:
        self.base = base
        self.fitted = fitted
        self._names = names
        self._schema = schema_of(base.schema, fitted, names)

    @property
    def schema(self) -> Schema:
        """The columns, after the steps."""
        return self._schema

    @property
    def fingerprint(self) -> str:
        """Digest of the rows before the steps, and of the steps."""
        return self._digest(self.base.fingerprint)

    def filled(self) -> dict[str, int | None]:
        """As of the rows before the steps, for the columns that no step makes."""
        made = self.fitted.steps.made()
        return {name: count for name, count in self.base.filled().items() if name not in made}

    def content(self) -> str:
        """Digest like the fingerprint, of the rows on this machine and now."""
        return self._digest(self.base.content())

    def _digest(self, base: str) -> str:
        return digest_json([base, self.fitted.digest, list(self._names)], "hopyard.preprocessed")

    @property
    def split(self) -> str:
        """The split of the rows before the steps."""
        return self.base.split

    def __len__(self) -> int:
        return len(self.base)

    def __repr__(self) -> str:
        return f"Preprocessed({self.base!r}, {self.fitted!r})"

    @property
    def num_row_groups(self) -> int:
        """The most partitions there can be."""
        return self.base.num_row_groups

    def partitions(self, p: int) -> Sequence[Preprocessed]:
        """Partitions of the rows before the steps, each after the steps."""
        return [Preprocessed(part, self.fitted, self._names) for part in self.base.partitions(p)]

    def order(self, seed: int, epoch: int, shuffle: bool, reach: Reach) -> Rows:
        """The order of the rows before the steps."""
        return self.base.order(seed, epoch, shuffle, reach)

    def node_cache(self) -> NodeCache | None:
        """The node cache of the rows before the steps."""
        return self.base.node_cache()

    def reach(self, window: int | None) -> Reach:
        """The reach of a permutation of the rows before the steps."""
        return self.base.reach(window)

    def stream(self, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: Reach) -> EpochStream:
        """The rows of an epoch."""
        read = self._read(wanted)
        return _PreprocessedStream(self, wanted, self.base.stream(read, seed, epoch, shuffle, reach))

    def take(self, rows: Rows, wanted: Wanted) -> Batch:
        """Any rows, by number."""
        return self.after(self.base.take(rows, self._read(wanted)), wanted)

    def decodes(self, wanted: Wanted) -> bool:
        """Whether images among the rows before the steps are decoded for every batch."""
        return self.base.decodes(self._read(wanted))

    def check_not_written(self) -> None:
        """Raise CorruptError if a file was written to since it was opened; names it."""
        self.base.check_not_written()

    def _read(self, wanted: Wanted) -> dict[str, str]:
        """The columns of the base, with the masks that go with them."""
        sources = self.fitted.sources(columns_of(wanted))
        return {name: name for name in (*sources, *masks_of(self.base.schema, sources))}

    def after(self, batch: Batch, wanted: Wanted) -> Batch:
        """Wanted columns after the steps, from a batch of the base."""
        made = self.fitted.apply_to_arrays(batch)
        return {name: _side_by_side(made, columns) for name, columns in wanted.items()}


class _PreprocessedStream(EpochStream):
    def __init__(self, dataset: Preprocessed, wanted: Wanted, rows: EpochStream) -> None:
        self._dataset, self._wanted, self._rows = dataset, wanted, rows
        self._takes_coded = dataset.fitted.takes_coded

    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        # Not where rows come by way of others, as windows and mixtures, which take arrays.
        buffers.coded = isinstance(self._rows, WindowStream)
        try:
            batch = self._rows.batch(first, last, buffers)
        finally:
            buffers.coded = False
        objects = {
            name: values if name in self._takes_coded and isinstance(values, Coded) else as_objects(values)
            for name, values in batch.items()
        }
        return self._dataset.after(objects, self._wanted)

    def close(self) -> None:
        self._rows.close()


def _side_by_side(made: dict[str, Any], columns: str | Iterable[str]) -> Any:
    if isinstance(columns, str):
        return made[columns]
    return np.stack([made[name] for name in columns], axis=1)
