"""Heads over one frozen trunk, on images of handwritten digits. See README.md."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, hp_choice, hp_loguniform

CHANNELS = 16
FEATURES = 2 * CHANNELS * 4 * 4


class Trunk(nn.Module):
    """Images (n, 8, 8) -> features (n, 512). It enlarges the images itself: what is the same in every epoch belongs
    into the trunk."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *block(1, CHANNELS),
            *block(CHANNELS, CHANNELS),
            nn.MaxPool2d(2),
            *block(CHANNELS, 2 * CHANNELS),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )

    def forward(self, images):
        return self.layers(nn.functional.interpolate(images[:, None], scale_factor=3, mode="bilinear"))


def block(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()


def images_of(classes):
    """Images (n, 8, 8) float32 in [0, 1], and labels from 0 on."""
    digits = load_digits()
    chosen = np.isin(digits.target, classes)
    labels = np.searchsorted(classes, digits.target[chosen])
    return (digits.images[chosen] / 16).astype("float32"), labels


def pretrain(path, epochs):
    """Train a trunk to tell the digits 0 to 4 apart, in a plain loop, and keep its weights."""
    images, labels = map(torch.from_numpy, images_of([0, 1, 2, 3, 4]))
    torch.manual_seed(0)
    trunk, last = Trunk(), nn.Sequential(nn.Dropout(0.3), nn.Linear(FEATURES, 5))
    optimizer = torch.optim.Adam([*trunk.parameters(), *last.parameters()], lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(last(trunk(images[rows])), labels[rows]).backward()
            optimizer.step()
    torch.save(trunk.state_dict(), path)


def pretrained(path):
    trunk = Trunk()
    trunk.load_state_dict(torch.load(path))
    return trunk


def head(inputs, params):
    width = params["width"]
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(params["dropout"]), nn.Linear(width, 5)
    )


def estimator(model, params, trunk=None):
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=32,
        trunk=trunk,
    )


def on_pixels(path):
    """No trunk: what the heads can do by themselves."""
    return lambda params: estimator(nn.Sequential(nn.Flatten(), head(64, params)), params)


def on_shared_trunk(path):
    return lambda params: estimator(head(FEATURES, params), params, trunk=pretrained(path))


class Frozen(nn.Module):
    """The trunk as a part of the model, for comparison."""

    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk.requires_grad_(False)

    def forward(self, images):
        return self.trunk.eval()(images)


def on_own_trunk(path):
    def function(params):
        last = head(FEATURES, params)  # first, as on the shared trunk: the same random weights
        return estimator(nn.Sequential(Frozen(pretrained(path)), last), params)

    return function


def few(images, labels, each):
    """The first ``each`` images of every class, and all others."""
    chosen = np.concatenate([np.flatnonzero(labels == label)[:each] for label in np.unique(labels)])
    others = np.setdiff1d(np.arange(len(labels)), chosen)
    return [{"features": images[rows], "label": labels[rows]} for rows in (chosen, others)]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=Path("experiments/image_finetuning"))
    parser.add_argument("--trials", type=int, default=12, help="heads to train")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--each", type=int, default=40, help="labelled images of each of the new classes")
    parser.add_argument("--pretrain-epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2, help="processes; 0: this one")
    given = parser.parse_args(arguments)

    given.store.mkdir(parents=True, exist_ok=True)
    path = given.store.absolute() / "trunk.pt"
    began = time.perf_counter()
    pretrain(path, given.pretrain_epochs)
    print(f"the trunk was trained on the digits 0 to 4 in {time.perf_counter() - began:.1f} s")

    train, test = few(*images_of([5, 6, 7, 8, 9]), given.each)
    print(
        f"heads learn the digits 5 to 9 from {len(train['label'])} images; {len(test['label'])} others test them"
    )
    found = {}
    with LocalBackend(given.workers, device="cpu") if given.workers else InlineBackend() as backend:
        for name, function in (
            ("on raw pixels", on_pixels),
            ("on the shared trunk", on_shared_trunk),
            ("each with the trunk inside", on_own_trunk),
        ):
            began = time.perf_counter()
            model = RandomSearch(
                backend=backend,
                store=LocalStore(given.store),
                estimator_gen_fn=function(path),
                search_space={
                    "width": hp_choice([32, 64, 128]),
                    "dropout": hp_choice([0.0, 0.3]),
                    "lr": hp_loguniform(-4, -1.5),
                },
                num_models=given.trials,
                num_epochs=given.epochs,
                num_partitions=2,
                evaluation_metric="accuracy",
                fresh=True,
                progress=False,
            ).fit(train)
            seconds = time.perf_counter() - began
            accuracy = model.evaluate(test)["accuracy"]
            found[name] = model, accuracy, seconds
            print(f"{given.trials} heads {name + ':':28} accuracy {accuracy:.3f}, {seconds:.1f} s")

    best = found["on the shared trunk"][0]
    best.save(given.store / f"best-{best.run_id}")
    print(f"best head: {best.params}; saved with its trunk in {given.store / f'best-{best.run_id}'}")
    return found


if __name__ == "__main__":
    main()
