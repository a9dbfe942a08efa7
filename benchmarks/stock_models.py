"""Models: saving and loading a state_dict of 100 layers, 400 MB, against safetensors and torch.save.

    python benchmarks/stock_models.py [--rows 1048576] [--pairs 7] [--peers all]

``--rows`` are the elements (float32) of a layer. All saves are durable; ours is a commit, and knows the tensors that
are stored already: "one layer" has another layer changed in each round, "unchanged" none. The peers write the
whole file each time, sync it, rename it and sync the directory.

Loads are mapped into memory: "load" gives the tensors, from a stockroom that is open; "open and load" opens it
first; "load and touch" reads every byte of them.

Goals: a new state is saved in 1.2 times what safetensors takes, the others in 0.3 times of that; loaded in 1.2 times.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from _stock import Turns, arguments_of, new_stock, report_turns, scratch, seconds
from hopyard import StockRoom

LAYERS = 100
ELEMENTS = 1 << 20
REPEATS = 3  # rounds of loads, which are short, to one of saves
PEERS = ("safetensors", "torch")
State = dict[str, torch.Tensor]


def durably(write: Callable[[Path], object], target: Path) -> None:
    temporary = target.with_suffix(".tmp")
    write(temporary)
    for path, rename in ((temporary, True), (target.parent, False)):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        if rename:
            temporary.replace(target)


def touch(state: State) -> float:
    """Read every byte, as training would."""
    return float(sum(tensor.numpy().view(np.uint32).sum(dtype=np.uint64) for tensor in state.values()))


class Models:
    """The state, and where it is stored by whom."""

    def __init__(self, directory: Path, elements: int) -> None:
        self.directory = directory
        random = torch.Generator().manual_seed(0)
        self.state = {f"layer{i}.weight": torch.rand(elements, generator=random) for i in range(LAYERS)}
        self.nbytes = sum(tensor.nbytes for tensor in self.state.values())
        self.number = 0
        self.stock = new_stock(directory / "hopyard")
        self.save()

    # Saving. A state that has changed is another one to all.

    def save(self, stock: StockRoom | None = None) -> None:
        stock = stock or self.stock
        with stock.enable_write():
            stock.model["net"] = self.state

    def save_new(self) -> float:
        """All layers are new to a repository, which is gone afterwards."""
        directory = self.directory / "new"
        stock = new_stock(directory)
        took = seconds(lambda: self.save(stock))
        shutil.rmtree(directory)
        return took

    def save_changed(self) -> float:
        self.number += 1
        self.state[f"layer{self.number % LAYERS}.weight"][0] = self.number
        return seconds(self.save)

    def save_unchanged(self) -> float:
        """There is nothing to commit, as it turns out."""
        return seconds(self.save)

    def save_safetensors(self) -> float:
        path = self.directory / "state.safetensors"
        return seconds(lambda: durably(lambda file: safetensors.torch.save_file(self.state, file), path))

    def save_torch(self) -> float:
        path = self.directory / "state.pt"
        return seconds(lambda: durably(lambda file: torch.save(self.state, file), path))

    # Loading

    def load(self) -> State:
        return dict(self.stock.model["net"])

    def open_and_load(self) -> State:
        return dict(StockRoom(self.directory / "hopyard").model["net"])

    def load_safetensors(self) -> State:
        return dict(safetensors.torch.load_file(self.directory / "state.safetensors"))

    def load_torch(self) -> State:
        return dict(torch.load(self.directory / "state.pt", mmap=True, weights_only=True))


def compare_saves(models: Models, peers: dict[str, Callable[[], float]], pairs: int) -> None:
    ours = {"new": models.save_new, "one layer": models.save_changed, "unchanged": models.save_unchanged}
    turns = Turns({**ours, **peers}, pairs)
    goals = {"new": "ratio <= 1.2", "one layer": "ratio <= 0.3", "unchanged": "ratio <= 0.3"}
    for name in ours:
        what = f"stock model, save {name} of {models.nbytes / 1e6:.0f} MB"
        shown = turns.only(name, *peers)
        report_turns(what, shown, "ms", lambda took: 1e3 * took, name, safetensors=goals[name])


def main() -> None:
    arguments = arguments_of(__doc__, rows=ELEMENTS)
    asked = {"all": set(PEERS), "none": set()}.get(arguments.peers, set(arguments.peers.split(",")))
    with scratch() as directory:
        models = Models(directory, arguments.rows)
        saves = {"safetensors": models.save_safetensors, "torch": models.save_torch}
        compare_saves(models, {name: saves[name] for name in PEERS if name in asked}, arguments.pairs)
        models.save(), models.save_safetensors(), models.save_torch()
        loads = {"safetensors": models.load_safetensors, "torch": models.load_torch}
        chosen = {name: loads[name] for name in PEERS if name in asked}
        assert len({touch(load()) for load in (models.load, *loads.values())}) == 1
        for what, ours, after in (
            ("load", models.load, len),
            ("open and load", models.open_and_load, len),
            ("load and touch", models.load, touch),
        ):
            actions = {
                name: (lambda load=load, after=after: seconds(lambda: after(load())))
                for name, load in {"hopyard": ours, **chosen}.items()
            }
            turns = Turns(actions, REPEATS * arguments.pairs)
            what = f"stock model, {what} {models.nbytes / 1e6:.0f} MB"
            goals = {"safetensors": "ratio <= 1.2"} if ours == models.load else {}
            report_turns(what, turns, "ms", lambda took: 1e3 * took, **goals)


if __name__ == "__main__":
    main()
