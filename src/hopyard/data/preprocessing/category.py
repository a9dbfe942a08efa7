"""Columns of categories as the numbers of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.checks import choice, integer
from hopyard.data.preprocessing.base import FittedState, Fitting, Missing, Step, present_rows, refuse_lists
from hopyard.data.reading.strings import Coded, as_objects
from hopyard.data.reading.views import Batch
from hopyard.errors import DataError, UsageError


class Category(Step):
    """Texts, bytes, bools or integers as int64: 0 for a category that no training row has, and for null; 1, 2, ... for
    for the training rows' categories, sorted. An ``Embedding`` for it has ``1 + number of categories`` rows.

    Args:
        columns: each has its own categories; of a column of arrays, all elements share them.
        most: only the so many most frequent categories are known (of equally frequent ones the smaller), so that the
            size of an embedding can be written before the data was seen: ``most + 1``.
        values: the categories, in the order of their numbers; the training rows are then not looked at.
        unknown: ``"index"``: a category that training did not see is 0. ``"error"``: it is an error.

    >>> Category("city", "country", most=100)
    """

    def __init__(
        self,
        *columns: str,
        most: int | None = None,
        values: Sequence[Any] | None = None,
        unknown: Literal["index", "error"] = "index",
    ) -> None:
        super().__init__(columns)
        if most is not None:
            most = integer("most", most, 1, rule="an integer of at least 1, or None")
        choice("unknown", unknown, ("index", "error"))
        if values is not None and (isinstance(values, str) or not len(values) or most is not None):
            raise UsageError(
                f"Category was given values={values!r}{'' if most is None else f' and most={most}'}, but values are a "
                "list of at least one category, and there is no most= beside them."
            )
        if values is not None and len(set(values)) < len(values):
            raise UsageError(f"Category was given values={values!r}. Name each category once.")
        self.most: int | None = most
        self.unknown: Literal["index", "error"] = unknown
        self.values: tuple[Any, ...] | None = None if values is None else tuple(values)

    def options(self) -> dict[str, Any]:
        given: dict[str, Any] = {"most": self.most, "values": self.values and list(self.values)}
        if self.unknown != "index":
            given["unknown"] = self.unknown
        return {name: value for name, value in given.items() if value is not None}

    def definition(self) -> Any:
        options = self.options()
        if "values" in options:
            options["values"] = list(map(repr, options["values"]))
        return [type(self).__name__, list(self.columns), options]

    def fitting(self) -> Fitting:
        return _Counting(self)


class _Counting(Fitting):
    def __init__(self, step: Category) -> None:
        self._step = step
        self._counts: dict[str, Counter[Any]] = {name: Counter() for name in step.columns}

    def add(self, batch: Batch, missing: Missing) -> None:
        if self._step.values is not None:
            return
        for name, counts in self._counts.items():
            values = _as_arrow(name, present_rows(batch[name], missing.get(name)))
            for pair in pc.value_counts(values).to_pylist():
                counts[pair["values"]] += pair["counts"]

    def result(self) -> FittedState:
        return Categories(
            {name: self._known(name, counts) for name, counts in self._counts.items()}, self._step.unknown
        )

    def _known(self, name: str, counts: Counter[Any]) -> pa.Array:
        step = self._step
        if step.values is not None:
            return _as_arrow(name, np.array(list(step.values), object))
        kept = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[: step.most]
        if not counts:
            raise DataError(
                f"Category found no category in column {name!r}: all rows are null. Leave it out."
            )
        return pa.array(sorted(value for value, _ in kept))


@dataclass(frozen=True)
class Categories(FittedState):
    """Attributes: known: of each column, the categories whose numbers are 1, 2, ...; unknown: as of ``Category``."""

    known: dict[str, pa.Array]
    unknown: str
    takes_coded: ClassVar[bool] = True

    def apply(self, batch: Batch, missing: Missing) -> dict[str, Any]:
        return {name: self._numbers(name, batch[name], missing.get(name)) for name in self.known}

    @cached_property
    def _numbers_of(self) -> dict[str, dict[Any, int]]:
        """Numbers of the categories of each column of texts or bytes."""
        return {
            name: {value: number for number, value in enumerate(known.to_pylist(), 1)}
            for name, known in self.known.items()
            if not pa.types.is_primitive(known.type)
        }

    def __getstate__(self) -> dict[str, Any]:
        return {"known": self.known, "unknown": self.unknown}

    def _looked_up(self, name: str, values: Any) -> npt.NDArray[np.int64] | None:
        """The numbers, if the values are objects and all of them are known: loaders often give the same objects
        again and again, which a dict finds faster than Arrow."""
        numbers_of = self._numbers_of.get(name)
        if numbers_of is None or not isinstance(values, np.ndarray) or values.dtype != object:
            return None
        try:
            found = np.fromiter(
                map(numbers_of.get, values.ravel().tolist(), repeat(0)), np.int64, values.size
            )
        except TypeError:  # something is no text and cannot be looked up, which Arrow says better
            return None
        return found.reshape(values.shape) if found.all() else None

    @cached_property
    def _latest(self) -> dict[str, tuple[pa.Array, npt.NDArray[np.int64]]]:
        """Values of each column in the batch before, and their numbers."""
        return {}

    def _of_codes(self, name: str, values: Coded) -> npt.NDArray[np.int64] | None:
        """The numbers, if the values are of the categories' type; batches of a loader mostly share
        their values, which are looked up once."""
        before, numbers = self._latest.get(name, (None, None))
        if numbers is None or before is not values.values:
            known = self.known[name]
            if pa.types.is_large_string(values.values.type) != pa.types.is_string(known.type):
                return None
            found = pc.index_in(values.values.cast(known.type), value_set=known)
            numbers = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
            self._latest[name] = values.values, numbers
        made: npt.NDArray[np.int64] = numbers.take(values.numbers)
        return made

    def _numbers(self, name: str, values: Any, lost: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.int64]:
        if isinstance(values, Coded):
            coded = self._of_codes(name, values) if lost is None and name in self._numbers_of else None
            if coded is not None and (self.unknown != "error" or coded.all()):
                return coded
            values = as_objects(values)
        looked_up = None if lost is not None else self._looked_up(name, values)
        if looked_up is not None:
            return looked_up
        known, given = self.known[name], _as_arrow(name, values, check=False)
        _check_kinds(name, known, given)
        try:
            # Whole numbers come as floats where a frame has a null among them.
            known = known.cast(given.type) if pa.types.is_floating(given.type) else known
            found = pc.index_in(given.cast(known.type), value_set=known)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"Column {name!r} holds {given.type}, but its categories are {self.known[name].type}: "
                f"{error}. Give the same type as in training."
            ) from error
        places = pc.fill_null(found, -1).to_numpy(zero_copy_only=False)
        numbers: npt.NDArray[np.int64] = places.astype(np.int64).reshape(np.shape(values)) + 1
        if lost is not None:
            numbers[lost] = 0
        if self.unknown == "error":
            self._refuse_unknown(name, values, numbers, lost)
        return numbers

    def _refuse_unknown(
        self, name: str, values: Any, numbers: npt.NDArray[np.int64], lost: npt.NDArray[np.bool_] | None
    ) -> None:
        unknown = numbers == 0
        if lost is not None:
            unknown[lost] = False
        if unknown.any():
            first = np.asarray(values)[unknown][0]
            raise DataError(
                f"Column {name!r} holds {first!r}, a category that no training row has, and Category was given "
                f"unknown='error'. Leave out the {int(unknown.sum())} such values, or train with unknown='index', "
                "which gives them the number 0."
            )


def _check_kinds(name: str, known: pa.Array, given: pa.Array) -> None:
    """Raise DataError if numbers stand where the categories are texts, or the reverse: Arrow would cast them, so that
    007 and "7", or 100.0 and "100", would be one in some rows and not in others."""
    kinds = [
        "numbers" if pa.types.is_primitive(array.type) else "texts"
        for array in (given, known)
        if not pa.types.is_null(array.type)
    ]
    if len(set(kinds)) < 2:
        return
    here, there = kinds
    advice = (
        f"frame.astype({{{name!r}: str}}), or types={{{name!r}: 'text'}} of as_source(path) for CSV,"
        if there == "texts"
        else f"frame.astype({{{name!r}: int}}), or pandas.to_datetime(frame[{name!r}]) of dates, which are nanoseconds,"
    )
    raise DataError(
        f"Column {name!r} holds {here}, such as {given.drop_null()[0].as_py()!r}, but its categories are {there}, such "
        f"as {known[0].as_py()!r}: none of them is one of those, whatever it looks like. Give {there}, as in training; "
        f"{advice} makes them so where they are written alike."
    )


def _as_arrow(name: str, values: Any, check: bool = True) -> pa.Array:
    """All elements of a column; integers and bools as int64, floats as float64.

    Raises:
        DataError: they are no categories.
    """
    refuse_lists("Category", name, values)
    flat = np.asarray(values).ravel()
    if flat.dtype.kind in "bi" or (flat.dtype.kind == "u" and flat.dtype.itemsize < 8):
        flat = flat.astype(np.int64)
    elif flat.dtype.kind == "f":
        flat = flat.astype(np.float64)
        if check and np.isnan(flat).any():
            raise DataError(
                f"Category found NaN in column {name!r}, which is no category. Give it a value first, with "
                f"Impute({name!r}, by='most_frequent')."
            )
    try:
        return pa.array(flat.tolist() if flat.dtype.kind in "US" else flat)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"Category takes texts, bytes, bools or numbers, all of one kind, but column {name!r} holds others: "
            f"{error}. Make them texts."
        ) from error
