"""A search over small transformers of Hugging Face that tell praise from blame. See README.md.

python examples/transformers/classify.py
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from reviews import make_reviews
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import prepare
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, hp_choice, hp_loguniform

LENGTH = 24  # tokens of a text; shorter ones are padded
NEW = [
    "the pool was lovely",
    "the pool was not lovely",
    "the staff was rude but the garden felt calm",
    "although the garden felt calm , the staff was rude",
    "the bed was never very dusty although the lift looked broken",
]


def learn_vocabulary(texts):
    """A tokenizer whose words are those of ``texts``; others are unknown to it."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]"]
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )


def encode(tokenizer, texts):
    """Columns ``input_ids`` and ``attention_mask``, int64 (n, LENGTH)."""
    encoded = tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="np")
    return {name: encoded[name].astype("int64") for name in ("input_ids", "attention_mask")}


def step(model, batch):
    """Models of transformers compute their loss themselves, from ``labels``."""
    outputs = model(**batch)
    hits = outputs.logits.argmax(dim=1) == batch["labels"]
    return {"loss": outputs.loss, "accuracy": hits.float().mean()}


def estimator_for(vocabulary):
    """The function from hyperparameters to an estimator, for texts of so many different words."""

    def estimator_gen_fn(params):
        config = DistilBertConfig(
            vocab_size=vocabulary, max_position_embeddings=LENGTH, pad_token_id=0, num_labels=2,
            dim=params["width"], hidden_dim=2 * params["width"], n_layers=params["layers"], n_heads=4,
            dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
            initializer_range=0.1,  # the default is for models of many times the width, trained for many times as long
        )  # fmt: skip
        return TorchEstimator(
            model=DistilBertForSequenceClassification(config),
            optimizer=torch.optim.AdamW,
            optimizer_params={"lr": params["lr"]},
            step=step,
            metrics=["accuracy"],
            inputs={"input_ids": "input_ids", "attention_mask": "attention_mask"},  # when it predicts
            predict=lambda outputs: outputs.logits.softmax(dim=1)[:, 1],
            batch_size=64,
            gradient_clip=1.0,
        )

    return estimator_gen_fn


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("experiments/transformers"))
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--workers", type=int, default=2, help="0: in this process")
    given = parser.parse_args(arguments)

    texts, labels = make_reviews(given.rows)
    tokenizer = learn_vocabulary(texts)
    store = LocalStore(given.folder)
    prepared = prepare(
        {**encode(tokenizer, texts), "labels": np.array(labels)}, store=store, validation=0.25,
        feature_columns=["input_ids", "attention_mask"], label_columns=["labels"],
    )  # fmt: skip
    search = RandomSearch(
        backend=LocalBackend(num_workers=given.workers) if given.workers else InlineBackend(),
        store=store,
        estimator_gen_fn=estimator_for(len(tokenizer)),
        search_space={
            "lr": hp_loguniform(-3.2, -2.2),
            "width": hp_choice(given.widths),
            "layers": hp_choice([1, 2]),
        },
        num_models=given.models,
        num_epochs=given.epochs,
        evaluation_metric="accuracy",
        feature_columns=["input_ids", "attention_mask"],
        label_columns=["labels"],
    )
    model = search.fit(prepared.train, prepared.val)
    for other in model.get_all_models():
        print(f"{max(other.get_history()['val_accuracy']):.3f}  {other.params}")

    tests, truth = make_reviews(2_000, seed=1)
    praise = model.predict(encode(tokenizer, tests))
    accuracy = float(((praise > 0.5) == np.array(truth)).mean())
    chance = max(np.mean(truth), 1 - np.mean(truth))
    print(f"best: {model.params}; right about {accuracy:.1%} of 2,000 new reviews, by chance {chance:.1%}")
    for text, share in zip(NEW, model.predict(encode(tokenizer, NEW)), strict=True):
        print(f"{'praise' if share > 0.5 else 'blame':>6} ({share:.2f})  {text}")
    return model, accuracy, chance


if __name__ == "__main__":
    main()
