"""Claim: LoRA adapters of one model take less time together than in turns, with the same bits.

    python benchmarks/packs_adapters.py [--members 8] [--rounds 3] [--rows 1 4 16]

Eight adapters (r=8) of a Llama 256 wide, 8 layers, vocabulary 8,192, fp32, in batches of 1, 4 and 16 rows of 32 tokens;
the adapters are at the queries and values, or at all seven products of a layer. One CPU thread; CPU seconds of a visit,
optimizer's steps and all; medians of rounds, in each of which the trials train first together and then in turns. The
states must be the same to the last bit. Where ``make weights`` was run, the same with SmolLM2-135M, one row a batch.
Prints a JSON line for each: ``ratio`` is the time together / in turns; and one for the first visit, in which it is
measured how, and plans are made: in how many batches that is won back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hopyard.objects import flatten
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context, OneBatch, Visit
from hopyard.training.session import Session
from hopyard.training.torch import pack
from hopyard.training.torch.replica import TorchReplica
from hopyard.transformers import causal_lm

LENGTH, VOCABULARY = 32, 8192
TARGETS = {
    "q, v": ["q_proj", "v_proj"],
    "all seven": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
BATCHES = {1: 24, 4: 8, 16: 3}
SMOLLM2 = Path(__file__).parents[1] / "build" / "weights" / "SmolLM2-135M-Instruct"


class Rows(OneBatch):
    """Columns in memory, in batches as a partition gives them, in their order."""

    def batches(self, batch_size: int, *given: Any, columns: Any = None, **options: Any) -> Any:  # type: ignore[override]
        for start in range(0, len(self), batch_size):
            yield {name: self._columns[name][start : start + batch_size] for name in columns or self._columns}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def members(base: torch.nn.Module, targets: list[str], count: int, size: int, rows: int) -> list[Any]:
    made = []
    for number in range(count):
        torch.manual_seed(number)

        def model(module: Any) -> torch.nn.Module:
            config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
            return peft.get_peft_model(module, config)

        estimator = TorchEstimator(
            base=base, model=model, step=causal_lm, optimizer=torch.optim.AdamW, batch_size=rows,
            optimizer_params={"lr": 1e-4 * (1 + number)},
        )  # fmt: skip
        made.append(estimator.replica(Context(("input_ids",), ("labels",), "cpu", (size,), 1)))
    return made


def digests(replicas: list[Any]) -> Any:
    return [
        {path: tensor.digest for path, tensor in flatten(replica.state())[0].items()} for replica in replicas
    ]


def seconds(replicas: list[Any], visit: Visit, together: bool) -> tuple[float, bool]:
    """CPU seconds of a visit, and whether the replicas did train together."""
    began, found = time.process_time(), None
    if together:
        found = TorchReplica.train_together(replicas, visit, list(range(len(replicas))))
    if found is None:
        for number, replica in enumerate(replicas):
            torch.manual_seed(number)
            replica.train(visit)
    else:
        errors = [each for each in found if isinstance(each, Exception)]
        if errors:
            raise errors[0]
    return time.process_time() - began, found is not None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    given = parser.parse_args()
    base = network()
    for name, targets in TARGETS.items():
        for rows in given.rows:
            compare(base, VOCABULARY, name, targets, rows, BATCHES.get(rows, 4), given.members, given.rounds,
                    pack._BATCHES_FIRST)  # fmt: skip
    if SMOLLM2.exists() and 1 in given.rows:
        base = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32)
        name = "q, v of SmolLM2-135M"
        compare(base, base.config.vocab_size, name, TARGETS["q, v"], 1, 6, given.members, given.rounds, 5000)


def compare(
    base: torch.nn.Module,
    vocabulary: int,
    name: str,
    targets: list[str],
    rows: int,
    batches: int,
    count: int,
    rounds: int,
    trained: int,
) -> None:
    ids = np.random.default_rng(0).integers(0, vocabulary, (rows * batches, LENGTH))
    visit = Visit(Rows({"input_ids": ids, "labels": ids}), 0, 0, 0)
    with Session(1):
        ours, theirs = (members(base, targets, count, len(ids), rows) for _ in range(2))
        # measured at once, as if so many batches had been trained in turns
        pack._in_turns[ours[0].signature, 1] = trained
        first, packed = seconds(ours, visit, True)
        seconds(theirs, visit, False)
        taken: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            taken[True].append(seconds(ours, visit, packed)[0])
            taken[False].append(seconds(theirs, visit, False)[0])
        why = ours[0].trains_alone
    if digests(ours) != digests(theirs):
        raise SystemExit("members and single trials differ: this is a bug in Hopyard, please report it.")
    value, turns = (statistics.median(taken[key]) for key in (True, False))
    case = f"{count} LoRA adapters at {name}, {rows}x{LENGTH} tokens"
    line = {
        "name": case + ("" if packed else f", trained in turns: {why}"),
        "value": round(value, 3),
        "unit": "s of CPU",
        "peer": f"in turns: {turns:.3f} s",
    }
    print(json.dumps(line | {"ratio": round(value / turns, 3)}), flush=True)
    saved = (turns - value) / batches
    line = {
        "name": f"{case}: measuring and plans",
        "value": round(first - value, 2),
        "unit": "s of CPU",
        "peer": "saved by a batch" if saved > 0 else "nothing is saved",
    }
    print(json.dumps(line | {"ratio": round((first - value) / saved) if saved > 0 else None}), flush=True)


if __name__ == "__main__":
    main()
