"""Adapters of PEFT over one base that train together end where they end alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from tests.packing import pack_whatever_it_gains  # noqa: E402
from tests.training.torch.test_pack import Rows, alone, digests, together  # noqa: E402
from tests.training.torch.test_taped import ran  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM  # noqa: E402

from hopyard.backend import InlineBackend  # noqa: E402
from hopyard.hopper.history import totals_of  # noqa: E402
from hopyard.storage import MemoryStore  # noqa: E402
from hopyard.torch import TorchEstimator  # noqa: E402
from hopyard.training.estimator import Context, Visit  # noqa: E402
from hopyard.training.session import Session  # noqa: E402
from hopyard.training.torch.replica import TorchReplica  # noqa: E402
from hopyard.transformers import causal_lm, sequence_classification  # noqa: E402
from hopyard.tune import GridSearch, hp_choice  # noqa: E402

WORDS, ROWS, LENGTH = 40, 48, 6

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


@pytest.fixture(autouse=True)
def _packs_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_whatever_it_gains(monkeypatch)


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=WORDS, tie_word_embeddings=True,
        )
    )  # fmt: skip


def bert() -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
        )
    )  # fmt: skip


LLAMA, BERT = llama(), bert()
CONFIGS: dict[str, Callable[[int], Any]] = {
    "LoRA": lambda number: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
    "LoRA of other ranks, with dropout": lambda number: peft.LoraConfig(
        r=2 + 2 * number, lora_alpha=4 + number, target_modules="all-linear", lora_dropout=0.1 + 0.1 * number
    ),
    "rsLoRA": lambda number: peft.LoraConfig(r=4, use_rslora=True, target_modules=["o_proj", "gate_proj"]),
    "DoRA": lambda number: peft.LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "down_proj"]),
    "IA3": lambda number: peft.IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]
    ),
    "prompts": lambda number: peft.PromptTuningConfig(num_virtual_tokens=3),
}


def members(make: Callable[[int], dict[str, Any]], count: int = 3) -> list[TorchReplica]:
    made = []
    for number in range(count):
        torch.manual_seed(number)
        given: dict[str, Any] = {
            "optimizer": torch.optim.AdamW, "optimizer_params": {"lr": 0.01 * (1 + number)}, "batch_size": 8,
        }  # fmt: skip
        replica = TorchEstimator(**(given | make(number))).replica(
            Context(("input_ids", "attention_mask"), ("labels",), "cpu", (ROWS,), 1)
        )
        assert isinstance(replica, TorchReplica)
        made.append(replica)
    return made


def columns(whole_texts: bool) -> dict[str, Any]:
    random = np.random.default_rng(0)
    ids = random.integers(0, WORDS, (ROWS, LENGTH))
    lengths = np.full(ROWS, LENGTH) if whole_texts else random.integers(2, LENGTH + 1, ROWS)
    return {"input_ids": ids, "attention_mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)}


def check_same(make: Callable[[int], dict[str, Any]], data: dict[str, Any]) -> None:
    with Session(1):
        ones, others = members(make), members(make)
        for epoch in range(2):
            visit = Visit(Rows(data), 3, epoch, 0, last=True)
            found = together(others, visit)
            assert found is not None, others[0].trains_alone
            assert found == alone(ones, visit)
            assert list(map(digests, others)) == list(map(digests, ones))
            measured = TorchReplica.validate_together(others, visit, list(range(len(others))))
            assert measured is not None
            assert [each.compute() for each in measured] == [each.validate(visit).compute() for each in ones]  # type: ignore[union-attr]


@pytest.mark.parametrize("whole_texts", [True, False], ids=["whole texts", "padded texts"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_adapters_of_a_language_model(name: str, whole_texts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(number: int) -> dict[str, Any]:
        def model(base: Any) -> Any:
            config = CONFIGS[name](number)
            config.task_type = "CAUSAL_LM"
            return peft.get_peft_model(base, config)

        return {"model": model, "base": LLAMA, "step": causal_lm, "metrics": ["accuracy"]}

    data = columns(whole_texts)
    given = ran(monkeypatch)
    check_same(make, data | {"labels": np.where(data["attention_mask"] == 1, data["input_ids"], -100)})
    assert len(given) > 10


def test_adapters_of_a_classifier_with_dropout_in_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(number: int) -> dict[str, Any]:
        def model(base: Any) -> Any:
            config = peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")
            return peft.get_peft_model(base, config)

        return {"model": model, "base": BERT, "step": sequence_classification, "metrics": ["accuracy"]}

    given = ran(monkeypatch)
    check_same(make, columns(False) | {"labels": np.arange(ROWS) % 2})
    assert len(given) > 10


def test_a_search_ends_the_same_in_packs_and_without() -> None:
    def estimator(params: dict[str, Any]) -> TorchEstimator:
        def model(base: Any) -> Any:
            config = peft.LoraConfig(
                r=params["r"], target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", lora_dropout=0.1
            )
            return peft.get_peft_model(base, config)

        return TorchEstimator(
            base=llama, model=model, step=causal_lm, optimizer=torch.optim.AdamW, metrics=["accuracy"],
            optimizer_params={"lr": params["lr"]}, batch_size=8,
        )  # fmt: skip

    def searched(packing: str) -> Any:
        data = columns(True)
        return GridSearch(
            InlineBackend(), MemoryStore(), estimator, {"r": hp_choice([2, 4]), "lr": hp_choice([0.01, 0.02])},
            num_epochs=2, num_partitions=2, order_groups=1, feature_columns=["input_ids"],
            label_columns=["labels"], evaluation_metric="loss", progress=False, packing=packing,
        ).fit({"input_ids": data["input_ids"], "labels": data["input_ids"]}).run  # fmt: skip

    together, alone = searched("auto"), searched("off")
    assert max(totals_of(together.units()).packs) == 4
    assert {*totals_of(alone.units()).packs} == {1}
    for number, trial in together.state.trials.items():
        other = alone.state.trials[number]
        assert (trial.params, trial.history) == (other.params, other.history)
        assert trial.best.state.digest == other.best.state.digest
