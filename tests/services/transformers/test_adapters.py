"""Adapters of PEFT in searches, and the folders that they are written to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from transformers import BertConfig, BertForSequenceClassification  # noqa: E402

from hopyard import load_model  # noqa: E402
from hopyard.backend import InlineBackend  # noqa: E402
from hopyard.errors import NotFoundError, NotWritableError, TrialError, UsageError  # noqa: E402
from hopyard.storage import MemoryStore  # noqa: E402
from hopyard.torch import TorchEstimator  # noqa: E402
from hopyard.transformers import sequence_classification  # noqa: E402
from hopyard.tune import GridSearch, Model, hp_choice  # noqa: E402

WORDS, ROWS, LENGTH = 30, 48, 6

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


def base() -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
        )
    )


def rows() -> dict[str, np.ndarray[Any, Any]]:
    ids = np.random.default_rng(0).integers(0, WORDS, (ROWS, LENGTH))
    return {"input_ids": ids, "labels": (ids[:, 0] > WORDS // 2).astype("int64")}


def search(make: Any, shared: Any = None) -> GridSearch:
    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            model=make(params),
            base=shared,
            optimizer=torch.optim.AdamW,
            optimizer_params={"lr": 0.05},
            step=sequence_classification,
            metrics=["accuracy"],
            inputs={"input_ids": "input_ids"},
            predict=lambda outputs: outputs.logits,
            batch_size=12,
        )

    return GridSearch(
        InlineBackend(), MemoryStore(), estimator, {"r": hp_choice([2])}, num_epochs=2, num_partitions=2,
        feature_columns=["input_ids"], label_columns=["labels"], evaluation_metric="accuracy", progress=False,
    )  # fmt: skip


def with_lora(params: dict[str, Any], targets: Any = ("query", "value")) -> Any:
    config = peft.LoraConfig(r=params["r"], target_modules=list(targets), task_type="SEQ_CLS")
    return peft.get_peft_model(base(), config)


@pytest.fixture(scope="module")
def trained() -> Model:
    return search(with_lora).fit(rows())


@pytest.mark.parametrize("loaded", [False, True])
def test_peft_loads_what_is_written_and_predicts_the_same(
    trained: Model, loaded: bool, tmp_path: Path
) -> None:
    model = load_model(trained.save(tmp_path / "saved")) if loaded else trained
    folder = model.adapter(tmp_path / "adapter")
    assert {"adapter_config.json", "adapter_model.safetensors"} < {path.name for path in folder.iterdir()}
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 2
    umask = os.umask(0)
    os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~umask}
    other = peft.PeftModel.from_pretrained(base(), folder).eval()
    ids = torch.from_numpy(rows()["input_ids"])
    with torch.no_grad():
        logits, untrained = other(input_ids=ids).logits, base().eval()(input_ids=ids).logits
        assert torch.equal(logits, trained.torch()(input_ids=ids).logits)
    np.testing.assert_allclose(trained.predict(rows()["input_ids"]), logits.numpy(), rtol=1e-4)  # one thread
    assert not torch.equal(untrained, logits)


def test_what_is_there_is_not_overwritten_and_nothing_is_half_written(
    trained: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(
        UsageError, match=r"taken exists already\. Give the path of a folder that is to be made"
    ):
        trained.adapter(tmp_path / "taken")
    with pytest.raises(NotFoundError, match=r"there is no directory \S+/nowhere\. Make it first"):
        trained.adapter(tmp_path / "nowhere" / "adapter")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    # The last file of PEFT's, after the tensors.
    monkeypatch.setattr(peft.LoraConfig, "save_pretrained", refuse)
    with pytest.raises(NotWritableError, match=r"adapter cannot be written: Permission denied"):
        trained.adapter(tmp_path / "adapter")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def assert_peft_loads_the_model(model: Model, folder: Path) -> None:
    other = peft.PeftModel.from_pretrained(base(), folder).eval()
    ids = torch.from_numpy(rows()["input_ids"])
    with torch.no_grad():
        assert torch.equal(other(input_ids=ids).logits, model.torch()(input_ids=ids).logits)
        assert not torch.equal(other(input_ids=ids).logits, base().eval()(input_ids=ids).logits)


def second_active(params: dict[str, Any]) -> Any:
    model = with_lora(params)
    model.add_adapter("second", peft.LoraConfig(r=3, target_modules=["dense"], task_type="SEQ_CLS"))
    model.set_adapter("second")
    return model


def compiled(params: dict[str, Any]) -> Any:
    return torch.compile(with_lora(params), backend="eager")


def compiled_within(params: dict[str, Any]) -> Any:
    model = base()
    model.bert.encoder = torch.compile(model.bert.encoder, backend="eager")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))


@pytest.mark.parametrize(("make", "rank"), [(second_active, 3), (compiled, 2), (compiled_within, 2)])
def test_the_folder_is_of_the_adapter_that_the_model_uses(make: Any, rank: int, tmp_path: Path) -> None:
    model = search(make).fit(rows())
    folder = model.adapter(tmp_path / "adapter")
    assert [path.name for path in folder.iterdir() if path.is_dir()] == []
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == rank
    assert_peft_loads_the_model(model, folder)


def with_norms(params: dict[str, Any], **options: Any) -> Any:
    config = peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS", **options)
    model = peft.get_peft_model(base(), config)
    for name, parameter in model.named_parameters():
        if name.endswith("LayerNorm.weight") and not options:
            parameter.requires_grad_(True)
    return model


def with_a_head(params: dict[str, Any]) -> Any:
    model = peft.get_peft_model(base(), peft.LoraConfig(r=2, target_modules=["query"]))
    model.classifier.requires_grad_(True)
    return model


def with_batch_norm(params: dict[str, Any]) -> Any:
    model = base()
    model.dropout = torch.nn.BatchNorm1d(16)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))


def both_active(params: dict[str, Any]) -> Any:
    model = peft.get_peft_model(base(), peft.LoraConfig(r=2, target_modules=["query"]))
    model.add_adapter("second", peft.LoraConfig(r=3, target_modules=["value"]))
    model.base_model.set_adapter(["default", "second"])
    return model


class Wrapped(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.inner(input_ids=input_ids)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            with_norms,
            (
                r"changed tensors .* adapter 'default', .*: base_model\S+\.LayerNorm\.weight, "
                r".* \(modules_to_save=\['LayerNorm'\]\) and train again, or .* model\.save\(path\)"
            ),
        ),
        (with_a_head, r"base_model\.model\.classifier\.bias\. .* \(modules_to_save=\['classifier'\]\)"),
        (
            with_batch_norm,
            r": base_model\.model\.dropout\.running_mean\. .* \(modules_to_save=\['dropout'\]\)",
        ),
        (
            both_active,
            r"2 active adapters \('default', 'second'\), but PEFT loads one from a folder\. Keep .* model\.save",
        ),
        (
            lambda params: base(),
            r"a BertForSequenceClassification without adapters of PEFT\. .* give the estimator peft\.get_peft_model",
        ),
        (
            lambda params: Wrapped(with_lora(params)),
            r"a Wrapped, of which only 'inner' has .* write that part: model\.torch\(\)\.get_submodule\(\"inner\"\)",
        ),
    ],
)
def test_what_is_no_adapter_alone_is_refused(make: Any, message: str, tmp_path: Path) -> None:
    model = search(make).fit(rows())
    with pytest.raises(UsageError, match=message):
        model.adapter(tmp_path / "adapter")
    assert list(tmp_path.iterdir()) == []


def test_modules_to_save_are_in_the_folder(tmp_path: Path) -> None:
    model = search(lambda params: with_norms(params, modules_to_save=["LayerNorm"])).fit(rows())
    assert_peft_loads_the_model(model, model.adapter(tmp_path / "adapter"))


@pytest.mark.parametrize("shared", [False, True])
def test_an_adapter_that_matches_nothing_is_told_what_it_could_match(shared: bool) -> None:
    def over(module: torch.nn.Module) -> Any:
        return peft.get_peft_model(module, peft.LoraConfig(r=2, target_modules=["q_proj"]))

    with pytest.raises(
        TrialError,
        match=r"Target modules \{'q_proj'\} not found in the base model\..* target_modules of "
        r"BertForSequenceClassification can be: word_embeddings, .*query, key, value, dense, classifier\.",
    ):
        search(lambda params: over if shared else over(base()), base() if shared else None).check(rows())
