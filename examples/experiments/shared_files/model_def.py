"""Digits from a directory that is mounted at the same path on every machine."""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from hopyard.experiment import TorchTrial


def make_data_loader(data_path):
    arrays = (np.load(Path(data_path) / name, mmap_mode="c") for name in ("pixels.npy", "digits.npy"))
    return DataLoader(TensorDataset(*map(torch.from_numpy, arrays)), batch_size=64, shuffle=True)


class DigitsTrial(TorchTrial):
    def build_model(self):
        return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def build_optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=self.context.get_hparam("lr"))

    def build_training_data_loader(self):
        return make_data_loader(data_path="/mnt/data/training")

    def build_validation_data_loader(self):
        return make_data_loader(data_path="/mnt/data/validation")

    def train_batch(self, batch, model):
        pixels, digits = batch
        return {"loss": cross_entropy(model(pixels), digits)}

    def evaluate_batch(self, batch, model):
        pixels, digits = batch
        return {"accuracy": (model(pixels).argmax(1) == digits).float().mean()}
