"""The networks of ``packs.py`` by JAX, stacked by hand: half of them in each of two processes of one thread.

``vmap`` over the networks' steps, each epoch compiled as one loop; compiling counts. Fewer rows than a batch at an
epoch's end are left out.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _pack_table import BATCH, COLUMNS, EPOCHS, arrays, in_two_processes


def train_half(path: Path, rates: Sequence[float], half: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[half % len(cores)]})
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    import jax
    import jax.numpy as jnp

    def made(key: Any) -> list[Any]:
        sizes, layers = (COLUMNS, 64, 64, 1), []
        for inputs, outputs in itertools.pairwise(sizes):
            key, first, second = jax.random.split(key, 3)
            bound = inputs**-0.5
            weight = jax.random.uniform(first, (inputs, outputs), minval=-bound, maxval=bound)
            layers.append((weight, jax.random.uniform(second, (outputs,), minval=-bound, maxval=bound)))
        return layers

    def loss_of(layers: list[Any], x: Any, y: Any) -> Any:
        for weight, bias in layers[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        weight, bias = layers[-1]
        return jnp.mean((x @ weight + bias - y) ** 2)

    def step_of(state: Any, rate: Any, x: Any, y: Any) -> Any:
        layers, means, squares, number = state
        loss, gradients = jax.value_and_grad(loss_of)(layers, x, y)
        number = number + 1
        each = jax.tree.map
        means = each(lambda mean, own: 0.9 * mean + 0.1 * own, means, gradients)
        squares = each(lambda square, own: 0.999 * square + 0.001 * own**2, squares, gradients)
        scale, shrink = rate / (1 - 0.9**number), 1 / (1 - 0.999**number)
        layers = each(
            lambda own, mean, square: own - scale * mean / (jnp.sqrt(square * shrink) + 1e-8),
            layers,
            means,
            squares,
        )
        return (layers, means, squares, number), loss

    @functools.partial(jax.jit, donate_argnums=0)
    def epoch(state: Any, rates: Any, features: Any, target: Any, order: Any) -> Any:
        def step(state: Any, rows: Any) -> Any:
            return jax.vmap(step_of, in_axes=(0, 0, None, None))(state, rates, features[rows], target[rows])

        return jax.lax.scan(step, state, order)

    features, target = map(jnp.asarray, arrays(path))
    keys = jax.random.split(jax.random.key(0), len(rates))
    layers = jax.vmap(made)(keys)
    zeros = jax.tree.map(jnp.zeros_like, layers)
    state = (layers, zeros, jax.tree.map(jnp.zeros_like, layers), jnp.zeros(len(rates)))
    random = np.random.default_rng(0)
    for _ in range(EPOCHS):
        order = random.permutation(len(features))[: len(features) // BATCH * BATCH].reshape(-1, BATCH)
        state, losses = epoch(state, jnp.asarray(rates, jnp.float32), features, target, jnp.asarray(order))
    if not bool(jnp.isfinite(losses[-1]).all()):
        raise RuntimeError("a loss of JAX's networks is not finite")


if __name__ == "__main__":
    print(in_two_processes(train_half, Path(sys.argv[1]), json.loads(sys.argv[2])))
