"""Scalar columns stacked for an argument of the model: they come as one array, with the values that they have alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import prepare
from hopyard.storage import MemoryStore
from hopyard.training.torch.binding import Binding

KINDS = ("float32", "float64", "float16", "int64", "int16", "int8", "uint8", "bool")


def binding(
    features: Sequence[str], labels: Sequence[str], inputs: Any, weight: str | None = None
) -> Binding:
    return Binding(inputs, features, labels, weight, torch.device("cpu"))


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=5),
    split=st.integers(0, 4),
    seed=st.integers(0, 9),
)
def test_arguments_are_those_of_columns_read_one_by_one(kinds: list[str], split: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = {f"c{at}": random.integers(0, 100, 40).astype(kind) for at, kind in enumerate(kinds)}
    names = list(columns)
    inputs = {name: group for name, group in (("a", names[:split]), ("b", names[split:])) if group}
    data = prepare(columns | {"y": random.standard_normal(40)}, MemoryStore(), validation=None).train
    bound = binding(names, ["y"], inputs)
    found = []
    for wanted in (bound.grouped(data.schema), bound.columns(every_feature=False)):
        [batch] = data.batches(40, columns=wanted, output="torch")
        placed = bound.place(batch)
        found.append((bound.arguments(placed)[1], bound.labels(placed), bound.rows(placed)))
    (together, labels, rows), (alone, labels_alone, rows_alone) = found
    assert rows == rows_alone == 40
    assert torch.equal(torch.as_tensor(labels), torch.as_tensor(labels_alone))
    assert list(together) == list(alone)
    for name, values in alone.items():
        assert together[name].dtype == values.dtype
        assert torch.equal(together[name], values)


@pytest.mark.parametrize(
    ("inputs", "labels", "groups"),
    [
        ({"x": ["a", "b"]}, ["y"], {"inputs['x']": ["a", "b"], "y": "y"}),
        ({"x": ["a", "b"], "z": "v"}, ["y"], {"v": "v", "y": "y", "inputs['x']": ["a", "b"]}),
        ({"x": ["a", "i"]}, ["y"], {"a": "a", "i": "i", "y": "y"}),  # of two dtypes
        ({"x": ["u", "t"]}, ["y"], {"u": "u", "t": "t", "y": "y"}),  # would be taken for an image
        (
            {"x": ["a", "b"], "z": ["b", "y"]},
            ["y"],
            {"a": "a", "b": "b", "y": "y"},
        ),  # b and y are needed twice
        ({"x": ["v"]}, ["y"], {"v": "v", "y": "y"}),  # no scalar
        (["a", "b"], ["y"], {"a": "a", "b": "b", "y": "y"}),  # arguments of their own
    ],
)
def test_groups_are_of_scalars_of_one_dtype_that_are_needed_once(
    inputs: Any, labels: list[str], groups: Any
) -> None:
    scalars = {name: np.zeros(8, np.float32) for name in ("a", "b", "y")}
    others = {"i": np.zeros(8, np.int64), "u": np.zeros(8, np.uint8), "t": np.zeros(8, np.uint8)}
    columns = scalars | others | {"v": np.zeros((8, 3), np.float32)}
    data = prepare(columns, MemoryStore(), validation=None).train
    assert binding(list(columns), labels, inputs).grouped(data.schema) == groups
