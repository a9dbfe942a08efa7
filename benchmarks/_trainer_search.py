"""One of several processes of a search by ``Trainer.hyperparameter_search`` with Optuna; see adapters.py.

python benchmarks/_trainer_search.py STUDY TRIALS TRAINING_ROWS VALIDATION_ROWS
"""

from __future__ import annotations

import copy
import sys
import tempfile
from typing import Any

import optuna
import torch
from transformers import Trainer, TrainingArguments

from adapters import BATCH, Classifier, base, rows


class WithLoss(Classifier):
    """As Trainer has models: they get labels, and give the loss first."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        outputs = super().forward(input_ids)
        return {"loss": torch.nn.functional.cross_entropy(outputs, labels), "logits": outputs}


class Rows:
    """Rows in memory, gathered by the batch."""

    def __init__(self, count: int) -> None:
        given = rows(count)
        self._columns = {
            "input_ids": torch.from_numpy(given["input_ids"]),
            "labels": torch.from_numpy(given["label"]),
        }

    def __len__(self) -> int:
        return len(self._columns["labels"])

    def __getitem__(self, row: int) -> Any:
        return self.__getitems__([row])

    def __getitems__(self, chosen: list[int]) -> Any:
        index = torch.tensor(chosen)
        return {name: values[index] for name, values in self._columns.items()}


def main(study: str, trials: int, training: int, validation: int) -> None:
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    module = base()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, per_device_eval_batch_size=4 * BATCH, num_train_epochs=1,
            eval_strategy="epoch", save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
            use_cpu=True, optim="adamw_torch_fused", lr_scheduler_type="constant", max_grad_norm=0,
            label_names=["labels"], remove_unused_columns=False, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(
            model_init=lambda trial: WithLoss(copy.deepcopy(module)),  # loaded once
            args=arguments,
            train_dataset=Rows(training),  # type: ignore[arg-type]
            eval_dataset=Rows(validation),  # type: ignore[arg-type]
            data_collator=lambda batch: batch,
        )
        trainer.hyperparameter_search(
            lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)},
            n_trials=trials, direction="minimize", backend="optuna", study_name="adapters", load_if_exists=True,
            storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(study)),
            sampler=optuna.samplers.RandomSampler(),
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
