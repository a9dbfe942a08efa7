"""Statistics: distinct values of any column with few of them, and of no other."""

import numpy as np
import pytest

from hopyard.data.preparing.statistics import MOST_DISTINCT, Statistics
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema

DTYPES = ["int16", "int64", "uint16", "uint64"]


def distinct_of(column, *groups):
    schema = Schema([column])
    total = Statistics(schema)
    for group in groups:
        total.merge(Statistics.of(schema, {column.name: group}, {}))
    return total.result()[column.name].distinct


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 700, 30_000])
def test_few_distinct_values_are_all_listed(dtype, rows):
    info = np.iinfo(dtype)
    values = np.random.default_rng(0).integers(0, MOST_DISTINCT, rows).astype(dtype)
    values[-1], values[0] = info.max, info.min
    found = distinct_of(Column("a", "tensor", dtype), values)
    assert found == (
        tuple(sorted(set(values.tolist()))) if len(set(values.tolist())) <= MOST_DISTINCT else None
    )


@pytest.mark.parametrize("late", [False, True], ids=["in all rows", "in the last rows"])
@pytest.mark.parametrize("kind", ["int64", "string"])
def test_one_value_too_many_ends_the_list(kind, late):
    for number in (MOST_DISTINCT, MOST_DISTINCT + 1):
        values = np.arange(20_000) % number
        if late:
            values = np.concatenate([np.zeros(20_000, np.int64), np.arange(number)])
        column = Column("a", "tensor", "int64") if kind == "int64" else Column("a", "string")
        rows = values if kind == "int64" else texts(values)
        expected = range(number) if kind == "int64" else sorted(map(str, range(number)))
        assert distinct_of(column, rows) == (tuple(expected) if number == MOST_DISTINCT else None)


def test_values_that_are_few_in_every_group_may_be_many_in_all():
    column = Column("a", "tensor", "int32")
    groups = [np.arange(start, start + 400, dtype=np.int32) for start in (0, 400, 600)]
    assert distinct_of(column, *groups) == tuple(range(MOST_DISTINCT))
    assert distinct_of(column, *groups, groups[2] + 1) is None


def test_bools_are_listed_as_numbers():
    found = distinct_of(Column("a", "tensor", "bool"), np.array([True, False, True]))
    assert found == (0, 1)
    assert {type(value) for value in found} == {int}


def texts(values):
    return Ragged.from_rows([np.frombuffer(str(value).encode(), np.uint8) for value in values], np.uint8)
