"""Claim: an experiment begins once its framework is imported, trials cost little, and streams are as fast as the wire.

    HOPYARD_S3_SERVER=versitygw python benchmarks/experiments.py [--rounds 3] [--megabytes 300] [--trials 100]

Prints a JSON line for each of these, one after the other:

- seconds from the start of the command ``hopyard experiment create`` to the first batch of the first trial, beyond
  those that a bare process takes to import PyTorch; beyond those that one takes for PyTorch and its compiler, which
  ``torch.optim`` imports for any optimizer; and beyond those that a plain program takes for the first step of
  the same model; all in turns. There is one worker.
- seconds of ``hopyard --help``, beside those of Python alone, in turns.
- seconds for an experiment of bare functions that do nothing, with two workers, beside Ray Tune with two of its own.
- MB/s of ``context.stream`` over a bucket behind a wire with 30 ms of latency and 100 MB/s, of objects of 4 MB and of
  records, beside the wire's bandwidth; and the anonymous memory that each stream adds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.s3_gateway import PROGRAM, Gateway
from tests.slow_wire import Settings, slow_wire

TRIAL = """
import time
import torch
from hopyard.experiment import TorchTrial


class Trial(TorchTrial):
    def build_model(self):
        return torch.nn.Linear(8, 2)

    def build_optimizer(self, model):
        return torch.optim.Adam(model.parameters())

    def build_training_data_loader(self):
        random = torch.Generator().manual_seed(0)
        return [(torch.randn(32, 8, generator=random), torch.zeros(32, dtype=torch.long)) for _ in range(4)]

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, model):
        with open("batches", "a") as file:  # the check of one batch has a working directory of its own
            if file.tell() == 0 and __import__("os").environ["WHEN"]:
                with open(__import__("os").environ["WHEN"], "a") as times:
                    times.write(f"{time.time()}\\n")
            file.write(".")
        inputs, labels = batch
        return {"loss": torch.nn.functional.cross_entropy(model(inputs), labels)}

    def evaluate_batch(self, batch, model):
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}


def noop(context):
    context.report(accuracy=context.get_hparam("x"))
"""

PLAIN = """
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters())
loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 8)), torch.zeros(32, dtype=torch.long))
loss.backward()
optimizer.step()
"""

CONFIG = """
entrypoint: model_def:Trial
searcher: {name: single, metric: accuracy, max_length: {epochs: 1}}
resources: {workers: 1}
"""

HOPYARD = """
import sys, time
from hopyard.experiment import complete, create
from hopyard.storage import LocalStore

if __name__ == "__main__":
    began = time.perf_counter()
    config = complete({
        "entrypoint": "model_def:noop",
        "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {"name": "random", "metric": "accuracy", "max_trials": int(sys.argv[3])},
        "resources": {"workers": 2},
    })
    run = create(config, sys.argv[1], LocalStore(sys.argv[2]), progress=False)
    assert len(run.state.trials) == int(sys.argv[3]) and run.status == "completed"
    print(time.perf_counter() - began)
"""

RAY_TUNE = """
import os, sys, time
import ray
from ray import tune

def noop(config):
    tune.report({"accuracy": config["x"]})

if __name__ == "__main__":
    began = time.perf_counter()
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    results = tune.Tuner(
        noop,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=int(sys.argv[3]), metric="accuracy", mode="max"),
        run_config=tune.RunConfig(storage_path=sys.argv[2], verbose=0),
    ).fit()
    assert len(results) == int(sys.argv[3]) and not results.errors
    print(time.perf_counter() - began)
    ray.shutdown()
"""

STREAM = """
import json, sys, threading, time
import numpy as np
from hopyard.experiment.streams import stream


def anonymous():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) * 1024


url, records = sys.argv[1], sys.argv[2] == "records"
options = {"record_bytes": 4000, "batch_size": 1000} if records else {}
before, peak, stop = anonymous(), 0, threading.Event()


def watch():
    global peak
    while not stop.wait(0.02):
        peak = max(peak, anonymous())


threading.Thread(target=watch, daemon=True).start()
began, total = time.perf_counter(), 0
batches = stream(url, lambda data: np.frombuffer(data, np.float32), **options)
for number in range(len(batches)):
    total += batches[number].nbytes
seconds = time.perf_counter() - began
stop.set()
print(json.dumps({"seconds": seconds, "bytes": total, "memory": max(peak - before, 0)}))
"""

OBJECT = 4_000_000
LATENCY, BANDWIDTH = 0.03, 100e6


def report(name: str, value: float, unit: str, peer: str, than: float) -> None:
    figure = {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "peer": peer,
        "ratio": round(value / than, 3),
    }
    print(json.dumps(figure), flush=True)


def timed(*command: str, **environment: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    return time.perf_counter() - began


def output_of(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


def start(root: Path, definition: Path, rounds: int) -> None:
    hopyard = str(Path(sys.executable).with_name("hopyard"))
    created: list[float] = []
    peers: dict[str, tuple[str, list[float]]] = {
        "import torch": ("import torch", []),
        "import torch and its compiler": ("import torch; import torch._dynamo", []),
        "a plain program's first step": (PLAIN, []),
    }
    for number in range(rounds + 1):
        for code, seconds in peers.values():
            seconds.append(timed(sys.executable, "-c", code))
        when = root / f"when-{number}"
        began = time.time()
        timed(
            hopyard, "experiment", "create", str(definition / "const.yaml"), str(definition), "--store",
            str(root / f"start-{number}"), WHEN=str(when), HOPYARD_CACHE=str(root / f"cache-{number}"),
        )  # fmt: skip
        created.append(
            float(when.read_text().splitlines()[-1]) - began
        )  # the first is of the check of one batch
    first = statistics.median(created[1:])
    for peer, (_, seconds) in peers.items():
        than = statistics.median(seconds[1:])
        report(f"experiment create to first batch, beyond {peer}", first - than, "s", peer, than)
    python, shown = [], []
    for _ in range(rounds + 1):
        python.append(timed(sys.executable, "-c", "pass"))
        shown.append(timed(hopyard, "--help"))
    report(
        "hopyard --help", statistics.median(shown[1:]), "s", "python -c pass", statistics.median(python[1:])
    )


def trials(root: Path, definition: Path, count: int) -> None:
    ours = [
        float(output_of(HOPYARD, str(definition), str(root / f"trials-{n}"), str(count))) for n in range(3)
    ]
    quiet = {"RAY_AIR_NEW_OUTPUT": "0", "RAY_DEDUP_LOGS": "0"}
    peer = float(output_of(RAY_TUNE, str(definition), str(root / "ray"), str(count), **quiet))
    report(
        f"experiment of {count} bare functions that do nothing",
        statistics.median(ours),
        "s",
        "Ray Tune",
        peer,
    )


def streaming(root: Path, megabytes: int) -> None:
    program = os.environ.get(PROGRAM)
    if program is None:
        print(f"streams: not measured, as {PROGRAM} does not name the server", file=sys.stderr)
        return
    gateway = Gateway(program, root)
    try:
        bucket = gateway.data / "bucket" / "train"
        bucket.mkdir(parents=True)
        content = os.urandom(OBJECT)
        for number in range(megabytes * 1_000_000 // OBJECT):
            (bucket / f"{number:05d}.bin").write_bytes(content)
        with slow_wire(Settings(gateway.url, LATENCY, BANDWIDTH)) as wire:
            for kind in ("objects", "records"):
                found = [
                    json.loads(output_of(STREAM, "s3://bucket/train/", kind, **gateway.environment(wire.url)))
                    for _ in range(3)
                ]
                rate = statistics.median(each["bytes"] / each["seconds"] for each in found)
                memory = max(each["memory"] for each in found)
                peer = "the wire: 100 MB/s, 30 ms"
                report(f"context.stream of {kind}", rate / 1e6, "MB/s", peer, BANDWIDTH / 1e6)
                report(f"context.stream of {kind}, memory added", memory / 1e6, "MB", "300 MB", 300.0)
    finally:
        gateway.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--trials", type=int, default=100)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as folder:
        root = Path(folder)
        definition = root / "definition"
        definition.mkdir()
        (definition / "model_def.py").write_text(TRIAL)
        (definition / "const.yaml").write_text(CONFIG)
        os.environ.setdefault("WHEN", "")
        start(root, definition, asked.rounds)
        trials(root, definition, asked.trials)
        streaming(root, asked.megabytes)


if __name__ == "__main__":
    main()
