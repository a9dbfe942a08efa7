"""Searches over adapters of one base train what plain PEFT trains, bit for bit, and keep the base once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import islice, product
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tests.long.test_hopping_equals_serial import EPOCHS, SEED
from tests.long.test_kill import WALK
from tests.sampling import LEVEL, moments, sample
from tests.tune import adapters
from tests.tune.adapters import PARTITIONS, RECIPES, by_hand, check, network, rows, search

import weights
from hopyard import StockRoom
from hopyard.backend import InlineBackend
from hopyard.data import prepare_tokens
from hopyard.hopper.journal import read_records
from hopyard.hopper.removal import remove_run
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import OneBatch, Visit
from hopyard.transformers import causal_lm
from hopyard.tune import GridSearch, Model, hp_choice, load_model
from hopyard.tune.listing import find_run
from hopyard.tune.reproduce import reproduce

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalStore, Model]:
    """The search in this process, and its store."""
    store = LocalStore(tmp_path_factory.mktemp("adapters"))
    return store, search(InlineBackend(), store)


def test_adapters_are_those_of_plain_peft(found: Any, local: Any, tmp_path: Path) -> None:
    expected = by_hand(tmp_path / "plain")
    check(found[1], expected)
    check(search(local, LocalStore(tmp_path / "local")), expected)


def test_adapters_are_those_of_plain_peft_also_when_units_lose_their_workers(
    local: Any, tmp_path: Path
) -> None:
    """All units of one search, at the level ``exhaustive``."""
    recipes = ["LoRA with dropout", "LoRA and a head"]
    killed = tmp_path / "killed"
    killed.mkdir()

    def moment(kind: str, epoch: int, partition: int) -> int:
        """What the transform of one batch draws: one in the middle of training, the only one of validation."""
        visit = Visit(OneBatch({}), SEED, epoch, partition)
        return int(visit.transform_rng(kind, 1 if kind == "transform" else 0).integers(1 << 62))

    every = product(recipes, ("transform", "val_transform"), range(EPOCHS), range(PARTITIONS))
    units = {(recipe, moment(*unit)) for recipe, *unit in sample("units of adapters", every, quick=2, ci=2)}

    def deadly(params: dict[str, Any]) -> TorchEstimator:
        def transform(batch: Any, rng: Any) -> Any:
            at = params["recipe"], int(rng.integers(1 << 62))
            if at in units and (tmp_path / "store" / "runs").exists():  # not yet while one batch is checked
                try:
                    (killed / f"{at}").touch(exist_ok=False)
                except FileExistsError:
                    return batch
                os.kill(os.getpid(), signal.SIGKILL)
            return batch

        return RECIPES[params["recipe"]].estimator(transform=transform, val_transform=transform)

    store = LocalStore(tmp_path / "store")
    model = search(local, store, recipes, deadly)
    check(model, by_hand(tmp_path / "plain", recipes))
    assert len(list(killed.iterdir())) == len(units)
    lost = [record for record in read_records(store.runs.at(model.run_id)) if record["r"] == "lost"]
    assert len(lost) == len(units)


def test_the_store_has_the_base_once_and_else_what_was_trained(found: Any) -> None:
    store, model = found
    base = sum(parameter.nbytes for parameter in network().parameters())
    sizes = {entry.name: entry.size for entry in store.runs.list()}
    shared = sum(size for name, size in sizes.items() if name.startswith("_frozen/"))
    assert base < shared < 1.1 * base + 20_000
    kept = 0
    for each in model.get_all_models():
        trained = sum(p.nbytes for p in each.torch().parameters() if p.requires_grad)
        kept += 4 * trained  # best weights; the last state: weights and two moments
    states = sum(size for name, size in sizes.items() if name.endswith(".safetensors")) - shared
    assert states < 1.1 * kept + 2 * len(RECIPES) * 6_000  # lists of tensors
    assert sum(size for name, size in sizes.items() if "/program/" in name) < 2 * 60_000


def test_models_of_adapters_are_saved_whole(found: Any, tmp_path: Path) -> None:
    model, data = found[1], rows()
    expected = model.predict({name: data[name][:9] for name in ("features", "tokens")})
    model.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "_frozen").exists()
    again = load_model(tmp_path / "saved")
    assert np.array_equal(again.predict({name: data[name][:9] for name in ("features", "tokens")}), expected)
    assert all(torch.equal(a, b) for a, b in zip(again.torch().state_dict().values(),
                                                 model.torch().state_dict().values(), strict=True))  # fmt: skip


def test_commits_branches_and_merges_of_adapters_have_the_base_once(tmp_path: Path) -> None:
    base = sum(parameter.nbytes for parameter in network().parameters())
    store = LocalStore(tmp_path / "store")

    def size(files: str = "*") -> int:
        return sum(path.stat().st_size for path in (tmp_path / "repository").rglob(files) if path.is_file())

    def of_tensors() -> int:
        return size("data-*")

    with StockRoom.init(tmp_path / "repository") as stock:
        first = search(InlineBackend(), store, ["LoRA with dropout"], stock=stock)
        assert base < of_tensors() < base + 12_000
        with stock.enable_write():
            stock.model["net"] = first.torch().state_dict()
        stock.branch("dev")
        stock.switch("dev")
        before, whole = of_tensors(), size()
        second = search(InlineBackend(), store, ["LoRA and a norm"], stock=stock)
        with stock.enable_write():
            stock.model["net"] = second.torch().state_dict()
        assert of_tensors() - before < 12_000
        assert size() - whole < base  # with records, histories and code
        [net] = [each for each in stock.diff("main", "dev") if each.path == "model/net"]
        trained = [name for name, each in second.torch().named_parameters() if each.requires_grad]
        assert [moved.path for moved in net.tensors()] == trained
        stock.switch("main")
        before = of_tensors()
        search(InlineBackend(), store, ["LoRA, another rank"], stock=stock)
        stock.merge("dev")
        assert of_tensors() - before < 8_000
        for model in (first, second):
            weights = stock.model[model.run_id]
            assert all(torch.equal(weights[key], each) for key, each in model.torch().state_dict().items())
        assert torch.equal(stock.model["net"][trained[0]], second.torch().state_dict()[trained[0]])
        again = reproduce(stock, "dev", second.run_id, trust=True, num_workers=0, progress=False)
        assert again.equal, str(again)


def test_what_runs_share_goes_with_the_last_of_them(tmp_path: Path) -> None:
    data = rows()
    store = LocalStore(tmp_path)
    runs = [
        GridSearch(
            InlineBackend(), store, adapters.make, {"recipe": hp_choice(["LoRA, another rank"])}, 1, seed=seed,
            feature_columns=["features", "tokens"], label_columns=["label"], evaluation_metric="loss", progress=False,
        ).fit({name: data[name] for name in ("features", "tokens", "label")}).run.run_id
        for seed in (1, 2)
    ]  # fmt: skip
    frozen = [name for name in store.runs.names("_frozen") if name.endswith(".safetensors")]
    remove_run(find_run(store, runs[0]))
    assert all(store.runs.exists(name) for name in frozen)
    assert find_run(store, runs[1]).names()
    remove_run(find_run(store, runs[1]))
    assert not any(store.runs.exists(name) for name in frozen)


def test_a_driver_killed_at_any_write_goes_on_to_the_same_adapters(tmp_path: Path) -> None:
    """So also while it writes the base."""
    begin, end = WALK.index("def estimator"), WALK.index("def fit(")
    walk = (
        WALK[:begin]
        + (
            "base = torch.nn.Sequential(torch.nn.Linear(4, 150), torch.nn.ReLU(), torch.nn.Linear(150, 150))\n"
            "def adapted(base):\n"
            "    return torch.nn.Sequential(base, torch.nn.Dropout(0.1), torch.nn.Linear(150, 2))\n"
            "def estimator(params):\n"
            "    return TorchEstimator(adapted, torch.optim.Adam, torch.nn.CrossEntropyLoss(), ['accuracy'],\n"
            "                          params['batch'], {'lr': params['lr']}, base=base)\n"
        )
        + WALK[end:]
    )
    at = json.dumps([1 + moment for moment in islice(moments("adapters", quick=9, ci=6), 999)])
    done = subprocess.run(
        [sys.executable, "-c", walk, str(tmp_path), at], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25
    files = [path for path in tmp_path.rglob("*.safetensors") if "_frozen" in path.parts]
    sizes = {path.name: path.stat().st_size for path in files}
    assert len(sizes) <= 3  # large weights, small ones, biases
    assert sum(sizes.values()) < 4 * (4 * 150 + 150 * 150 + 2 * 150) + len(sizes) * 6_000


def chats(count: int) -> list[list[dict[str, str]]]:
    """Questions that nobody could answer who has not seen the answers of others."""
    random = np.random.default_rng(3)
    names = ["Ada", "Bo", "Cem", "Dora", "Ede", "Fay", "Gus", "Hana"]
    asked = [(str(random.choice(names)), int(random.integers(2, 90))) for _ in range(count)]
    return [
        [
            {"role": "user", "content": f"{name} sends {number} crates."},
            {"role": "assistant", "content": f"Noted: {number} for {name}, bay {name[0]}{len(name)}."},
        ]
        for name, number in asked
    ]


@pytest.mark.skipif(LEVEL != "exhaustive", reason="minutes: make test-exhaustive")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_a_search_over_adapters_of_a_language_model_learns_what_the_model_did_not_know(
    needs: Any, tmp_path: Path
) -> None:
    needs(weights.available(weights.SMOLLM2), f"the weights of {weights.SMOLLM2} (make weights)")
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    folder = str(weights.FOLDER / weights.SMOLLM2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prepared = prepare_tokens(
        {"messages": chats(120)},
        tokenizer,
        tmp_path / "tokens",
        length=128,
        messages="messages",
        validation=0.2,
    )

    val = prepared.val
    assert val is not None

    def base() -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder)

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        def model(base: Any) -> Any:
            from peft import LoraConfig, get_peft_model

            targets = ["q_proj", "v_proj"]
            return get_peft_model(
                base, LoraConfig(task_type="CAUSAL_LM", r=params["r"], target_modules=targets)
            )

        return TorchEstimator(
            base=base, model=model, step=causal_lm, metrics=["accuracy"], batch_size=2,
            optimizer=torch.optim.AdamW, optimizer_params={"lr": params["lr"]},
        )  # fmt: skip

    found = GridSearch(
        InlineBackend(), LocalStore(tmp_path / "store"), estimator,
        {"lr": hp_choice([1e-5, 3e-3]), "r": hp_choice([4])}, 1, feature_columns=["input_ids", "position_ids"],
        label_columns=["labels"], evaluation_metric="loss", progress=False,
    ).fit(prepared.train, prepared.val)  # fmt: skip
    assert found.params == {"lr": 3e-3, "r": 4}

    def loss_of(model: Any) -> float:
        """Mean over all target tokens, one row at a time."""
        total = tokens = 0.0
        for row in range(len(val)):
            columns = val[row].items()
            batch = {name: torch.from_numpy(np.array(values)).long()[None] for name, values in columns}
            with torch.no_grad():
                logits = model(batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
            labels = batch["labels"][0, 1:]
            total += torch.nn.functional.cross_entropy(logits[0, :-1], labels, reduction="sum").item()
            tokens += (labels != -100).sum().item()
        return total / tokens

    adapter = found.adapter(tmp_path / "adapter")
    tuned = loss_of(peft.PeftModel.from_pretrained(base(), adapter).eval())
    assert tuned == pytest.approx(min(found.get_history()["val_loss"]), rel=1e-4)
    assert tuned < 0.3 * loss_of(base().eval())
    sizes = {entry.name: entry.size for entry in LocalStore(tmp_path / "store").runs.list()}
    whole = sum(parameter.nbytes for parameter in base().parameters())
    assert whole < sum(size for name, size in sizes.items() if name.startswith("_frozen/")) < 1.01 * whole
    trained = sum(p.nbytes for name, p in found.torch().named_parameters() if "lora" in name)
    assert (
        sum(size for name, size in sizes.items() if not name.startswith("_frozen/")) < 2 * 4.5 * trained + 1e6
    )
