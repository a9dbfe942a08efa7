"""Metric states between units: small ones as JSON in the answer, large ones as an object of the trial."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from hopyard.objects import StateRef, Tensor, load_state, save_state
from hopyard.storage import Store
from hopyard.training.metric import MetricState

_INLINE_BYTES = 4096


def pack_states(store: Store, states: Mapping[str, MetricState]) -> tuple[dict[str, Any], int]:
    """The JSON form of metric states, and the bytes written for it to ``store``."""
    if sum(array.nbytes for state in states.values() for array in state.values()) <= _INLINE_BYTES:
        inline = {
            name: {key: _to_json(array) for key, array in state.items()} for name, state in states.items()
        }
        return {"inline": inline}, 0
    tree = {
        name: {key: Tensor.from_numpy(array) for key, array in state.items()}
        for name, state in states.items()
    }
    ref = save_state(store, tree)
    return {"ref": ref.to_json()}, ref.nbytes


def unpack_states(store: Store, packed: Mapping[str, Any]) -> dict[str, MetricState]:
    """The states of ``pack_states``."""
    if "inline" in packed:
        return {
            name: {key: _from_json(array) for key, array in state.items()}
            for name, state in packed["inline"].items()
        }
    tree = load_state(store, StateRef.from_json(packed["ref"]))
    return {name: {key: tensor.numpy() for key, tensor in state.items()} for name, state in tree.items()}


def _to_json(array: np.ndarray[Any, Any]) -> list[Any]:
    """dtype, shape and base64 of the bytes: exact, also for nan, and valid JSON everywhere."""
    data = np.ascontiguousarray(array)
    return [array.dtype.str, list(array.shape), base64.b64encode(data.tobytes()).decode()]


def _from_json(fields: list[Any]) -> np.ndarray[Any, Any]:
    dtype, shape, data = fields
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
