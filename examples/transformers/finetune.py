"""Fine-tuning a pretrained model of Hugging Face to tell praise from blame: heads, then adapters. See README.md.

make weights
python examples/transformers/finetune.py
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from reviews import make_reviews
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import prepare
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.transformers import sequence_classification
from hopyard.tune import RandomSearch, hp_choice, hp_loguniform

WEIGHTS = Path(__file__).resolve().parents[2] / "build" / "weights" / "all-MiniLM-L6-v2"  # of `make weights`
LENGTH = 24  # tokens of a text; shorter ones are padded
INPUTS = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
NEW = ["the pool was not lovely", "although the garden felt calm , the staff was rude"]


class Vectors(torch.nn.Module):
    """Sentences as vectors: the mean over the model's outputs for their tokens, of length 1."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        total = (outputs * attention_mask[..., None]).sum(dim=1)
        return torch.nn.functional.normalize(total, dim=1)


def heads(trunk):
    """Estimators of linear heads, for one frozen model, which is run once for all of them."""

    def estimator_gen_fn(params):
        return TorchEstimator(
            model=torch.nn.Linear(384, 2), trunk=trunk, inputs=INPUTS,
            optimizer=torch.optim.AdamW, optimizer_params={"lr": params["lr"]},
            loss=torch.nn.CrossEntropyLoss(), metrics=["accuracy"], batch_size=32,
        )  # fmt: skip

    return estimator_gen_fn


def load_base(weights):
    """The model with a head for two classes, whose first weights are the same in each process."""
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_pretrained(weights, num_labels=2)


def adapters(weights):
    """Estimators of adapters, all over one base, which each process loads once."""

    def estimator_gen_fn(params):
        def with_adapters(base):
            config = LoraConfig(
                task_type="SEQ_CLS", r=params["rank"], lora_alpha=2 * params["rank"],
                target_modules=params["targets"], lora_dropout=0.05,
            )  # fmt: skip
            return get_peft_model(base, config)

        return TorchEstimator(
            base=partial(load_base, weights), model=with_adapters, inputs=INPUTS,
            optimizer=torch.optim.AdamW, optimizer_params={"lr": params["lr"]},
            step=sequence_classification, metrics=["accuracy"], batch_size=32, gradient_clip=1.0,
            predict=lambda outputs: outputs.logits,
        )  # fmt: skip

    return estimator_gen_fn


def encode(tokenizer, texts):
    """Columns ``input_ids`` and ``attention_mask``, int64 (n, LENGTH)."""
    encoded = tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="np")
    return {name: encoded[name].astype("int64") for name in INPUTS}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("experiments/finetuning"))
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of a pretrained model")
    parser.add_argument("--rows", type=int, default=1_600)
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="0: in this process")
    given = parser.parse_args(arguments)
    if not (given.weights / "config.json").exists():
        parser.error(
            f"there is no pretrained model in {given.weights}. Run `make weights` in the folder of the repository, or "
            "name the folder of one: --weights FOLDER."
        )

    texts, labels = make_reviews(given.rows)
    tokenizer, store = AutoTokenizer.from_pretrained(given.weights), LocalStore(given.folder)
    prepared = prepare(
        {**encode(tokenizer, texts), "labels": np.array(labels)}, store=store, validation=0.25,
        feature_columns=list(INPUTS), label_columns=["labels"],
    )  # fmt: skip
    common = {
        "backend": LocalBackend(num_workers=given.workers) if given.workers else InlineBackend(),
        "store": store, "num_models": given.models, "num_epochs": given.epochs, "evaluation_metric": "accuracy",
        "feature_columns": list(INPUTS), "label_columns": ["labels"],
    }  # fmt: skip
    trunk = Vectors(AutoModel.from_pretrained(given.weights))
    head = RandomSearch(
        estimator_gen_fn=heads(trunk), search_space={"lr": hp_loguniform(-3, -1)}, **common
    ).fit(prepared.train, prepared.val)
    tuned = RandomSearch(
        estimator_gen_fn=adapters(given.weights.absolute()),
        search_space={
            "lr": hp_loguniform(-3.2, -2.3),
            "rank": hp_choice([4, 8]),
            "targets": hp_choice([["query", "value"], ["query", "key", "value", "dense"]]),
        },
        **common,
    ).fit(prepared.train, prepared.val)

    for name, best in (("heads", head), ("adapters", tuned)):
        for model in best.get_all_models():
            print(f"{name:>8}  {max(model.get_history()['val_accuracy']):.3f}  {model.params}")

    folder = given.folder / "adapter"
    if not folder.exists():
        tuned.adapter(folder)
    loaded = PeftModel.from_pretrained(load_base(given.weights), folder).eval()
    inputs = {name: torch.from_numpy(values) for name, values in encode(tokenizer, NEW).items()}
    with torch.no_grad():
        told = loaded(**inputs).logits
    for text, row in zip(NEW, told, strict=True):
        print(f"{'praise' if row[1] > row[0] else 'blame':>8}  {text}")
    return head, tuned, told


if __name__ == "__main__":
    main()
