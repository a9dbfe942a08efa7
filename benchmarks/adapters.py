"""Claim: trials of adapters cost what plain PEFT costs, and keep one base in memory and on disk.

    python benchmarks/adapters.py [--trials 4] [--rows 256] [--rounds 3]

Needs the weights of MiniLM: ``make weights``. One CPU thread. Prints a JSON line for each of these:

- bytes of the base on the store after four LoRA trials over two epochs of four partitions, beside those of the base;
  and bytes of all states written, beside those of trained tensors and moments times the states; the latter also where
  the base stays where it lies (frozen_at=).
- ms to swap adapters (r=8, with moments) where the module stays in memory, and where it is made anew; and ms to compare
  the base with what it was, beside BLAKE3 of a buffer of its size.
- resident memory of 32 trials over one base after a step of each, beside one trial (after four steps, the most) and 31
  times its adapters with gradients and moments: in the end, at worst while they become more, and in the end without
  what the allocator keeps of memory that is free.
- CPU seconds of a search of LoRA trials in one process, beside PEFT by hand in the same process, in turns.
- seconds, and CPU seconds, of a search with two workers, beside Trainer.hyperparameter_search with Optuna in two
  processes: as many trials of as many rows, in turns, from the start of the processes.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import peft
import torch
from transformers import AutoModel

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.objects import load_state, save_state
from hopyard.objects.frozen import RunFolder
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context, OneBatch, Visit
from hopyard.training.resident import Resident, Residents
from hopyard.training.torch.base import base_of
from hopyard.tune import GridSearch, RandomSearch, hp_choice, hp_log

WEIGHTS = Path(__file__).resolve().parent.parent / "build" / "weights" / "all-MiniLM-L6-v2"
LENGTH, BATCH, CLASSES = 32, 32, 4


def report(name: str, value: float, unit: str, peer: str, than: float) -> None:
    figure = {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "peer": peer,
        "ratio": round(value / than, 3),
    }
    print(json.dumps(figure), flush=True)


def base() -> torch.nn.Module:
    module: torch.nn.Module = AutoModel.from_pretrained(WEIGHTS, dtype=torch.float32)
    return module


class Classifier(torch.nn.Module):
    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        config = peft.LoraConfig(r=8, target_modules=["query", "value"], lora_dropout=0.05)
        self.encoder = peft.get_peft_model(encoder, config)  # type: ignore[arg-type]
        self.head = torch.nn.Linear(384, CLASSES)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids).last_hidden_state
        return self.head(hidden.mean(dim=1))  # type: ignore[no-any-return]


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        Classifier,
        torch.optim.AdamW,
        torch.nn.CrossEntropyLoss(),
        ["accuracy"],
        BATCH,
        {"lr": params["lr"]},
        base=base,
    )


def rows(count: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    ids = random.integers(1000, 20_000, (count, LENGTH))
    return {"input_ids": ids, "label": (ids[:, 0] % CLASSES).astype(np.int64)}


def replica(lr: float = 1e-3) -> Any:
    context = Context(("input_ids",), ("label",), "cpu", (BATCH,), 1)
    return estimator({"lr": lr}).replica(context)


def written(root: Path, count: int) -> None:
    whole = sum(parameter.nbytes for parameter in base().parameters())
    module = Classifier(base())
    trained = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    states = 4 * 2 * 4
    for kind, frozen_at, once in ("stored", None, whole), ("where it lies", WEIGHTS, 0):
        store = LocalStore(root / kind)
        run = GridSearch(
            InlineBackend(), store, estimator, {"lr": hp_choice([1e-4, 2e-4, 5e-4, 1e-3])}, 2, num_partitions=4,
            keep="all", checkpoint_every="unit", feature_columns=["input_ids"], label_columns=["label"],
            evaluation_metric="accuracy", progress=False, frozen_at=frozen_at,
        ).fit(rows(count)).run  # fmt: skip
        frozen = sum(entry.size for entry in store.runs.list("_frozen"))
        report(
            f"bytes of the base ({kind}) on the store, of 4 LoRA trials",
            frozen / 1e6,
            "MB",
            "the base",
            whole / 1e6,
        )
        report(
            f"bytes of {states} states, and of the base ({kind})", run.traffic().written / 1e6, "MB",
            f"{'the base, and ' if once else ''}trained tensors and two moments times the states",
            (once + 3 * trained * states) / 1e6,
        )  # fmt: skip


def swapping(root: Path) -> None:
    data = {name: values[:BATCH] for name, values in rows(BATCH).items()}
    store = RunFolder(LocalStore(root / "swapping"), "run")
    folder = store.at("00000")
    one, two = replica(), replica(2e-3)
    refs = []
    for each in (one, two):
        each.train(Visit(OneBatch(data), 0, 0, 0))
        refs.append(save_state(folder, each.state(), parts=("model",), frozen=store.frozen()))
    stays, anew = [], []
    for number in range(20):
        began = time.perf_counter()
        one.load(load_state(folder, refs[number % 2], verify=True, held=one.held()))
        stays.append(time.perf_counter() - began)
    for number in range(10):
        began = time.perf_counter()
        made = replica()
        made.load(load_state(folder, refs[number % 2], verify=True, held=made.held()))
        anew.append(time.perf_counter() - began)
    report("swapping adapters where the module stays", 1000 * statistics.median(stays), "ms", "the goal", 5)
    report(
        "swapping adapters where the module is made anew",
        1000 * statistics.median(anew),
        "ms",
        "the goal",
        60,
    )
    shared = base_of(base, torch.device("cpu"))
    checks, hashes = [], []
    buffer = np.ones(sum(parameter.nbytes for parameter in shared.given.parameters()), np.uint8)
    for _ in range(5):
        began = time.perf_counter()
        shared.check()
        checks.append(time.perf_counter() - began)
        began = time.perf_counter()
        blake3.blake3(buffer).digest()
        hashes.append(time.perf_counter() - began)
    report("comparing the base with what it was", 1000 * statistics.median(checks), "ms", "BLAKE3 of as many bytes",
           1000 * statistics.median(hashes))  # fmt: skip


def resident(is_trimmed: bool) -> int:
    if is_trimmed:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def memory(count: int) -> None:
    data = {name: values[:BATCH] for name, values in rows(BATCH).items()}
    kept, one, worst = Residents(), 0, (0.0, 0, 1)  # as workers keep them
    for number in range(count):
        made = replica()
        made.train(Visit(OneBatch(data), 0, 0, 0))
        kept.put(("run", "program", number), Resident({}, 1, None, True, made, nbytes=made.nbytes()))
        if number == 0:
            # What the allocator keeps after a step differs by 100 MB from process to process, and not after some.
            steps = [resident(False)]
            for step in range(1, 4):
                made.train(Visit(OneBatch(data), 0, step, 0))
                steps.append(resident(False))
            one, trimmed = max(steps), resident(True)
            adapters = sum(
                parameter.nbytes for parameter in made.module.parameters() if parameter.requires_grad
            )
        expected = one + 4 * number * adapters
        worst = max(worst, (resident(False) / expected, resident(False), expected)) if number else worst
    peer = "one, and the others' adapters four times"
    report(f"memory of {count} trials over one base", resident(False) / 1e6, "MB", peer, expected / 1e6)
    report(f"memory of {count} trials over one base, at worst", worst[1] / 1e6, "MB", peer, worst[2] / 1e6)
    report(f"memory of {count} trials over one base, without free memory", resident(True) / 1e6, "MB", peer,
           (trimmed + 4 * (count - 1) * adapters) / 1e6)  # fmt: skip


def by_hand(data: dict[str, np.ndarray[Any, Any]], trials: int, seed: int) -> None:
    module = base()
    for trial in range(trials):
        torch.manual_seed(seed + trial)
        model = Classifier(copy.deepcopy(module))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4 * (trial + 1), fused=True)
        ids, labels = torch.from_numpy(data["input_ids"]), torch.from_numpy(data["label"])
        model.train()
        for batch in torch.randperm(len(ids)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(ids[batch]), labels[batch]).backward()
            optimizer.step()


def search(root: Path, data: dict[str, np.ndarray[Any, Any]], trials: int) -> None:
    GridSearch(
        InlineBackend(), LocalStore(root), estimator, {"lr": hp_choice([1e-4 * (n + 1) for n in range(trials)])}, 1,
        num_partitions=2, feature_columns=["input_ids"], label_columns=["label"], evaluation_metric="loss",
        progress=False,
    ).fit(data)  # fmt: skip


def cpu_time(root: Path, trials: int, count: int, rounds: int) -> None:
    data, ours, theirs = rows(count), [], []
    for number in range(rounds):
        began = time.process_time()
        search(root / f"cpu-{number}", data, trials)
        ours.append(time.process_time() - began)
        began = time.process_time()
        by_hand(data, trials, number)
        theirs.append(time.process_time() - began)
    report(
        f"CPU time of a search of {trials} LoRA trials", statistics.median(ours), "s", "PEFT by hand",
        statistics.median(theirs),
    )  # fmt: skip


def on_two_workers(root: Path, trials: int, count: int) -> None:
    data = rows(count + count // 4)
    parts = [{name: values[of] for name, values in data.items()} for of in (slice(count), slice(count, None))]
    RandomSearch(
        LocalBackend(num_workers=2, device="cpu"), LocalStore(root), estimator, {"lr": hp_log(1e-4, 1e-2)}, trials, 1,
        feature_columns=["input_ids"], label_columns=["label"], evaluation_metric="loss", progress=False,
    ).fit(*parts)  # fmt: skip


def beside_trainer(root: Path, trials: int, count: int, rounds: int) -> None:
    here = Path(__file__).resolve()
    taken: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for number in range(rounds):
        options = ["--trials", str(trials), "--rows", str(count), "--root", str(root / f"two-{number}")]
        our_processes = [[sys.executable, str(here), "--part", "two workers", *options]]
        peer = [sys.executable, str(here.with_name("_trainer_search.py")), str(root / f"study-{number}")]
        their_processes = [[*peer, str(trials // 2), str(count), str(count // 4)]] * 2
        for name, commands in {"ours": our_processes, "theirs": their_processes}.items():
            began, before = time.perf_counter(), os.times()
            processes = [
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for command in commands
            ]
            codes = [process.wait() for process in processes]
            if any(codes):
                raise RuntimeError(f"a process of {name} failed: {commands[0]}")
            after = os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            taken[name].append((time.perf_counter() - began, cpu))
    for index, kind in enumerate(("time", "CPU time")):
        ours, theirs = (statistics.median(each[index] for each in taken[name]) for name in ("ours", "theirs"))
        report(f"{kind} of a search of {trials} LoRA trials with two workers", ours, "s",
               "Trainer.hyperparameter_search in two processes", theirs)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", help="run this part alone, in this process")
    parser.add_argument(
        "--root", type=Path, help='folder of the part "two workers", which is our side of another'
    )
    asked = parser.parse_args()
    if not WEIGHTS.exists():
        print(f"not measured, as {WEIGHTS} is not there: make weights", file=sys.stderr)
        return
    torch.set_num_threads(1)
    parts = {
        "written": lambda root: written(root, 256),
        "swapping": swapping,
        "memory": lambda root: memory(32),
        "cpu": lambda root: cpu_time(root, asked.trials, asked.rows, asked.rounds),
        "beside Trainer": lambda root: beside_trainer(root, asked.trials, asked.rows, asked.rounds),
    }
    if asked.part == "two workers":
        on_two_workers(asked.root, asked.trials, asked.rows)
        return
    if asked.part is None:
        for part in parts:  # each in a process of its own: memory and caches of one are not another's
            options = [
                "--trials",
                str(asked.trials),
                "--rows",
                str(asked.rows),
                "--rounds",
                str(asked.rounds),
            ]
            options += ["--part", part]
            subprocess.run([sys.executable, __file__, *options], check=True)
        return
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as folder:
        os.environ["HOPYARD_CACHE"] = f"{folder}/cache"
        parts[asked.part](Path(folder))


if __name__ == "__main__":
    main()
