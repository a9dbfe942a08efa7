"""Digits from object storage: downloaded, streamed by one object per batch, or by records out of one large object."""

import io

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from hopyard.experiment import TorchTrial

BATCH = 64
RECORD = 65  # bytes: 64 pixels and the digit


class Digits(TorchTrial):
    """The network and its training. The classes below say where the rows come from."""

    def build_model(self):
        width = self.context.get_hparam("width")
        return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def build_optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=self.context.get_hparam("lr"))

    def build_training_data_loader(self):
        return self.load("train")

    def build_validation_data_loader(self):
        return self.load("val")

    def train_batch(self, rows, model):
        return {"loss": cross_entropy(model(rows[:, :64] / 16), rows[:, 64].long())}

    def evaluate_batch(self, rows, model):
        outputs, digits = model(rows[:, :64] / 16), rows[:, 64].long()
        return {
            "loss": cross_entropy(outputs, digits),
            "accuracy": (outputs.argmax(1) == digits).float().mean(),
        }

    def url(self, name):
        return f"{self.context.get_data_config()['url']}/{name}"


class Downloaded(Digits):
    """The whole file, transferred once per machine for all trials, and kept for the next experiment."""

    def load(self, split):
        path = self.context.download(self.url(f"{split}.csv"))
        rows = np.loadtxt(path, dtype=np.uint8, delimiter=",")
        return DataLoader(torch.from_numpy(rows), batch_size=BATCH)


class OneObjectPerBatch(Digits):
    """Objects that are a batch each. Nothing is kept on the machine; the next ones come while one is trained on."""

    def load(self, split):
        stream = self.context.stream(self.url(f"{split}/*.npy"), lambda data: np.load(io.BytesIO(data)))
        return DataLoader(stream.as_torch(), batch_size=None)


class Records(Digits):
    """Byte ranges of one large object that holds records of a fixed size."""

    def load(self, split):
        stream = self.context.stream(self.url(f"{split}.bin"), decode, record_bytes=RECORD, batch_size=BATCH)
        return DataLoader(stream.as_torch(), batch_size=None)


def decode(data):
    return np.frombuffer(data, np.uint8).reshape(-1, RECORD)
