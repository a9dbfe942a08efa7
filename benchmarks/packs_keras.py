"""Claim: Keras models on JAX train together in less time than one by one, to the same bits.

32 networks 40-64-64-1 that differ in their learning rates, batch 256, 400,000 rows of 40 float32, Adam, on JAX, on two
workers; the peer is the same search with ``packing="serial"``. Seconds from the start of ``fit`` to its end, and CPU
seconds of a worker's steps alone: a batch of all models in turns, by one program, and by ``jax.vmap`` by hand, which
has other bits. Each side is a process of its own; they take turns; medians.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value; below 1 is better).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np

from _scripts import run_again

ROWS, BATCH, EPOCHS, TURNS, TRIALS = 400_000, 256, 4, 3, 32
RATES = [10 ** (-4 + 2 * i / (TRIALS - 1)) for i in range(TRIALS)]


def network() -> Any:
    import keras

    dense = keras.layers.Dense
    return keras.Sequential([keras.Input((40,)), dense(64, "relu"), dense(64, "relu"), dense(1)])


def search(packing: str, folder: str) -> None:
    from hopyard.backend import LocalBackend
    from hopyard.keras import KerasEstimator
    from hopyard.storage import LocalStore
    from hopyard.tune import GridSearch, hp_choice

    def estimator(params: dict[str, Any]) -> KerasEstimator:
        import keras

        return KerasEstimator(network(), keras.optimizers.Adam(params["lr"]), "mse", batch_size=BATCH)

    random = np.random.default_rng(0)
    features = random.standard_normal((ROWS, 40), dtype=np.float32)
    target = np.tanh(features @ random.standard_normal(40, dtype=np.float32))
    searched = GridSearch(
        LocalBackend(num_workers=2, device="cpu"),
        LocalStore(folder),
        estimator,
        {"lr": hp_choice(RATES)},
        EPOCHS,
        validation=0.1,
        label_columns="target",
        order_groups=2,
        packing=packing,
        progress=False,
    )
    began = time.perf_counter()
    model = searched.fit({"features": features, "target": target})
    seconds = time.perf_counter() - began
    print(json.dumps([seconds, {str(t): v for t, v in model.get_all_model_history().items()}]))


def step() -> None:
    """Microseconds of CPU that a step of one of four networks takes in each way."""
    import jax

    from hopyard.training.keras.steps import JaxSteps

    model, width, count = network(), 4, 500
    model.compile("adam", "mse", jit_compile=True)
    random = np.random.default_rng(0)
    batch = (random.standard_normal((BATCH, 40), dtype=np.float32), random.standard_normal((BATCH, 1)))
    batch = jax.tree.map(lambda values: jax.numpy.asarray(values, np.float32), batch)
    model._symbolic_build(data_batch=batch)
    steps = JaxSteps(model)
    states = [
        jax.tree.map(lambda v: jax.numpy.array(v, copy=True), steps.state("train")) for _ in range(width)
    ]
    stack = jax.tree.map(lambda *values: jax.numpy.stack(values), *states)
    result, states[0] = steps.step("train", states[0], batch)
    program = steps.program(result)
    by_vmap = jax.jit(jax.vmap(model.train_step, (0, None)), donate_argnums=0)

    def in_turns(states: Any) -> Any:
        return [steps.step("train", state, batch)[1] for state in states]

    ways = {
        "in turns": (in_turns, states),
        "by one program": (lambda stack: program(stack, batch)[1], stack),
        "by vmap": (lambda stack: by_vmap(stack, batch)[1], jax.tree.map(lambda v: v.copy(), stack)),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(6):
        for name, (do, state) in ways.items():
            began = time.process_time()
            for _ in range(count):
                state = do(state)
            jax.block_until_ready(state)
            ways[name] = do, state
            if turn:  # the first one compiles
                took[name].append((time.process_time() - began) / count / width * 1e6)
    print(json.dumps({name: statistics.median(times) for name, times in took.items()}))


def main() -> None:
    if len(sys.argv) > 1:
        search(*sys.argv[1:]) if len(sys.argv) > 2 else step()
        return
    took = json.loads(run_again(__file__, "step", backend="jax").splitlines()[-1])
    for name in ("by one program", "by vmap"):
        line = {
            "name": f"a step of one of 4 Keras networks 40-64-64-1 on JAX, {name}",
            "value": round(took[name]),
            "unit": "us of CPU",
            "peer": f"in turns: {took['in turns']:.0f} us",
            "ratio": round(took[name] / took["in turns"], 3),
        }
        print(json.dumps(line), flush=True)
    times: dict[str, list[float]] = {"auto": [], "serial": []}
    histories = []
    for _ in range(TURNS):
        for packing, own in times.items():
            with tempfile.TemporaryDirectory(dir=".") as folder:
                found = run_again(__file__, packing, folder, backend="jax").splitlines()[-1]
            seconds, history = json.loads(found)
            own.append(seconds)
            histories.append(history)
    assert all(history == histories[0] for history in histories), "histories are not the same"
    ours, theirs = (statistics.median(own) for own in times.values())
    line = {
        "name": f"{TRIALS} Keras networks 40-64-64-1 on JAX x {EPOCHS} epochs x {ROWS} rows",
        "value": round(ours, 2),
        "unit": "s",
        "peer": f"packing='serial': {theirs:.1f} s, same histories",
        "ratio": round(ours / theirs, 3),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
