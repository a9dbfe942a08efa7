"""Lightning's own Trainer over the loader, alone and with two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":  # there it must not be missing
    pytest.importorskip("lightning")

import lightning.pytorch as lightning
import torch

# Lightning's own: it advises worker processes, which the loader does without, and calls an old name of PyTorch's.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:.*You requested to overfit but enabled train dataloader shuffling"),
]


class Model(lightning.LightningModule):
    def __init__(self, save_at=None, path=None):
        super().__init__()
        self.layer = torch.nn.Linear(15, 1)
        self.seen = []
        self.save_at = save_at
        self.path = path

    def training_step(self, batch, number):
        self.seen.append((self.current_epoch, number, batch["id"].tolist()))
        return self.layer(batch["image"].flatten(1)).mean()

    def on_train_batch_end(self, outputs, batch, number):
        if self.save_at == (self.current_epoch, number):
            self.trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self):
        if self.save_at == (self.current_epoch, "end"):
            self.trainer.save_checkpoint(self.path)

    def predict_step(self, batch, number):
        return batch["id"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(**options):
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    return lightning.Trainer(accelerator="cpu", **dict.fromkeys(quiet, False), **options)


@pytest.fixture
def dataset(make_dataset):
    return make_dataset([[10, 10, 7]], ("id", "image"))


@pytest.fixture
def whole(dataset):
    """What three epochs give: (epoch, batch, ids)."""
    loader = dataset.loader(4, shuffle=True, seed=3)
    return [
        (epoch, number, batch["id"].tolist()) for epoch in range(3) for number, batch in enumerate(loader)
    ]


def test_a_trainer_sees_the_stream_epoch_by_epoch(dataset, whole):
    model = Model()
    trainer(max_epochs=3).fit(model, dataset.loader(4, shuffle=True, seed=3, output="torch"))
    assert model.seen == whole


@pytest.mark.parametrize("save_at", [(0, 0), (1, 3), (1, 6), (1, "end"), (2, 5)])
def test_training_goes_on_behind_the_last_batch_that_was_trained(dataset, whole, tmp_path, save_at):
    first = Model(save_at, tmp_path / "checkpoint")
    trainer(max_epochs=3).fit(first, dataset.loader(4, shuffle=True, seed=3, output="torch"))
    rest = Model()
    loader = dataset.loader(4, shuffle=True, seed=3, output="torch")
    trainer(max_epochs=3).fit(rest, loader, ckpt_path=first.path, weights_only=False)
    epoch, number = save_at
    done = 7 * (epoch + 1) if number == "end" else 7 * epoch + number + 1
    assert rest.seen == whole[done:]


def test_predictions_are_of_all_rows_in_their_order(dataset):
    written = []

    class Writer(lightning.callbacks.BasePredictionWriter):
        def write_on_batch_end(self, trainer, module, prediction, indices, batch, number, loader):
            written.extend(indices)

    predictions = trainer(callbacks=[Writer("batch")]).predict(Model(), dataset.loader(4, output="torch"))
    assert torch.cat(predictions).tolist() == list(range(27))
    assert written == list(range(27))


def test_overfitting_turns_shuffling_off(dataset):
    model = Model()
    trainer(max_epochs=2, overfit_batches=2).fit(model, dataset.loader(4, shuffle=True, output="torch"))
    assert [batch for _, _, batch in model.seen] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


# Forked processes need a parent without threads, hence a process of their own.
TWO_PROCESSES = """
import json, sys
import lightning.pytorch as lightning
sys.path.insert(0, {folder!r})
from test_loader import Model, trainer
from hopyard.data import open_dataset

class Ranked(Model):
    def on_train_end(self):
        with open(f"{{self.name}}{{self.global_rank}}.json", "w") as file:
            json.dump(self.seen, file)

dataset = open_dataset("rows.parquet")
for name, save_at, resume in ("whole", (1, 1), None), ("rest", None, "checkpoint"):
    model = Ranked(save_at, "checkpoint")
    model.name = name
    loader = dataset.loader(4, shuffle=True, seed=3, output="torch")
    options = dict(ckpt_path=resume, weights_only=False) if resume else {{}}
    trainer(max_epochs=2, devices=2, strategy="ddp_fork").fit(model, loader, **options)
"""


def test_two_processes_share_the_steps_and_resume(tmp_path):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests import forked

    from hopyard.data import open_dataset

    images = pa.FixedSizeListArray.from_arrays(np.zeros(27 * 15, np.float32), 15)
    pq.write_table(pa.table({"id": np.arange(27), "image": images}), tmp_path / "rows.parquet")
    code = TWO_PROCESSES.format(folder=str(Path(__file__).parent))
    environment = {**os.environ, forked.WITH: "lightning"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        loader = open_dataset(tmp_path / "rows.parquet").loader(
            4, shuffle=True, seed=3, rank=rank, world_size=2
        )
        expected = [
            [epoch, number, batch["id"].tolist()] for epoch in range(2) for number, batch in enumerate(loader)
        ]
        assert json.loads((tmp_path / f"whole{rank}.json").read_text()) == expected
        assert json.loads((tmp_path / f"rest{rank}.json").read_text()) == expected[len(loader) + 2 :]
