"""``frozen_at=``: searches whose frozen tensors stay where they lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.tune import adapters
from tests.tune.adapters import RECIPES, network, rows, search
from torch import nn
from typer.testing import CliRunner

from hopyard import StockRoom
from hopyard.backend import InlineBackend
from hopyard.cli import app
from hopyard.errors import NotFoundError, UsageError
from hopyard.hopper.removal import remove_run
from hopyard.objects import load_state
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.torch import TorchEstimator
from hopyard.training.unit import residents
from hopyard.tune import GridSearch, hp_choice, load_model, open_run
from hopyard.tune.listing import find_run

ONE = ["LoRA with dropout"]
BASE = sum(parameter.nbytes for parameter in network().parameters())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the base as other programs write it, whose tied weights are in it once."""
    path = tmp_path / "pretrained"
    path.mkdir()
    tensors = {name: value for name, value in network().state_dict().items() if name != "tokens.weight"}
    save_file(tensors, path / "model.safetensors")
    return path


def frozen(store: Store) -> int:
    return sum(entry.size for entry in store.runs.list("_frozen"))


@pytest.mark.parametrize(
    "recipe", ["LoRA with dropout", "DoRA", "LoRA and a norm"]
)  # the first has a module as base
def test_bits_are_the_same_and_the_base_is_not_stored(recipe: str, folder: Path, tmp_path: Path) -> None:
    plain = search(InlineBackend(), LocalStore(tmp_path / "plain"), [recipe])
    residents.clear()
    store = LocalStore(tmp_path / "store")
    model = search(InlineBackend(), store, [recipe], frozen_at=folder)
    assert model.run_id == plain.run_id
    for ours, theirs in zip(
        model.torch().state_dict().values(), plain.torch().state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert frozen(LocalStore(tmp_path / "plain")) > BASE
    assert frozen(store) == 0
    sizes = [
        sum(entry.size for entry in LocalStore(tmp_path / name).runs.list()) for name in ("plain", "store")
    ]
    assert sizes[0] - sizes[1] > BASE - 6_000


def test_workers_and_later_calls_read_it_there(folder: Path, tmp_path: Path, local: Any) -> None:
    store = LocalStore(tmp_path / "store")
    model = search(local, store, frozen_at=str(folder))
    assert frozen(store) == 0
    assert model.run.broken_rules() == []
    data = {name: rows()[name][:9] for name in ("features", "tokens")}
    expected = model.predict(data)
    place = LocalStore(folder).url
    describe = ["run", "describe", str(tmp_path / "store"), model.run_id]
    said = CliRunner().invoke(app, describe).stdout.replace("\n", " ")
    assert f"reads frozen tensors from {place}, which must stay as long as the run is kept" in said
    assert json.loads(CliRunner().invoke(app, [*describe, "--json"]).stdout)["frozen_at"] == [place]
    again = open_run(store, model.run_id).best
    assert (again.predict(data) == expected).all()
    model.save(tmp_path / "saved")
    shutil.rmtree(folder)
    assert (load_model(tmp_path / "saved").predict(data) == expected).all()  # which is whole
    with pytest.raises(NotFoundError, match=r"frozen tensors \(frozen_at=\), is gone, .* Put the file back"):
        load_state(*model.weights())
    remove_run(find_run(store, model.run_id))
    assert frozen(store) == 0


def test_it_is_read_from_a_stockroom_also_after_a_collection(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    with StockRoom.init(tmp_path / "repository") as stock:
        with stock.enable_write():
            stock.model["other"] = {"weights": torch.randn(50_000)}
        with stock.enable_write():
            stock.model["base"] = network().state_dict()
        model = search(InlineBackend(), store, ONE, frozen_at=stock)
        assert frozen(store) == 0
        with stock.enable_write():
            del stock.model["other"]
        stock.gc()
    residents.clear()
    data = {name: rows()[name][:9] for name in ("features", "tokens")}
    plain = search(InlineBackend(), LocalStore(tmp_path / "plain"), ONE)
    assert (open_run(store, model.run_id).best.predict(data) == plain.predict(data)).all()


def test_the_search_says_what_is_read_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def checked() -> str:
        GridSearch(
            InlineBackend(), MemoryStore(), adapters.make, {"recipe": hp_choice(["DoRA"])}, 1,
            feature_columns=["features", "tokens"], frozen_at=folder,
        ).check(rows())  # fmt: skip
        return capsys.readouterr().out

    place = LocalStore(folder).url
    assert (
        f"91.2 kB of frozen tensors are read from {place}, which must stay as it is as long as the run is kept.\n"
        in checked()
    )
    (folder / "model.safetensors").unlink()
    tensors = network().state_dict()
    save_file(
        {"query": tensors["query.weight"], "value": tensors["value.weight"]}, folder / "half.safetensors"
    )
    (folder / "cut.safetensors").write_bytes(b"cut")
    assert f"73.7 kB of frozen tensors are read from {place}," in (said := checked())
    assert "is kept. The other 17.5 kB are stored with the runs. Not read there: the file " in said
    save_file({"query": tensors["query.weight"]}, folder / "half.safetensors")
    assert (
        f"the frozen tensors that lie at {place} have 36.9 kB, and are stored with the states: below 65.5 kB frozen_at "
        "saves nothing." in checked()
    )


def test_a_finished_run_is_mended_by_the_place_where_its_weights_are_now(
    folder: Path, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    model = search(InlineBackend(), store, ONE, frozen_at=folder)
    expected = model.torch().state_dict()
    folder.rename(tmp_path / "moved")
    with pytest.raises(NotFoundError, match="is gone"):
        load_state(*model.weights())
    again = search(InlineBackend(), store, ONE, frozen_at=tmp_path / "moved")
    assert again.run_id == model.run_id
    load_state(*again.weights())
    assert all(torch.equal(again.torch().state_dict()[name], value) for name, value in expected.items())
    assert open_run(store, model.run_id).frozen_at == [LocalStore(tmp_path / "moved").url]


def trained_whole(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(nn.Linear(6, 3), torch.optim.SGD, nn.CrossEntropyLoss())


def of_halves(params: dict[str, Any]) -> TorchEstimator:
    def base() -> nn.Module:
        return network().to(torch.float64)

    def step(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs = model(batch["features"].double(), batch["tokens"])
        return {"loss": nn.functional.cross_entropy(outputs, batch["label"])}

    return TorchEstimator(RECIPES["DoRA"].inject, torch.optim.SGD, step=step, base=base)


def test_what_cannot_be_said_to_lie_there_is_refused(folder: Path, tmp_path: Path) -> None:
    place, store = LocalStore(folder).url, LocalStore(tmp_path / "store")

    def refused(frozen_at: Any, make: Any = adapters.make) -> str:
        with pytest.raises((UsageError, NotFoundError)) as caught:
            GridSearch(
                InlineBackend(), store, make, {"recipe": hp_choice(ONE)}, 1, frozen_at=frozen_at,
                feature_columns=["features"] if make is trained_whole else ["features", "tokens"],
            ).fit(rows())  # fmt: skip
        return str(caught.value)

    assert refused(3) == (
        "frozen_at=3, but it must be a folder of safetensors files, the URL of one, a Store or a StockRoom. Give for "
        "example the folder from which the base is loaded."
    )
    assert refused(folder / "model.safetensors") == (
        f"frozen_at={str(folder / 'model.safetensors')!r} is a file. Give the folder in which it lies: "
        f"{str(folder)!r}."
    )
    assert refused(MemoryStore()).endswith(
        "is a store that other processes cannot open by its URL. Give a folder, or the URL of a bucket or of HDFS."
    )
    assert refused("https://huggingface.co/gpt2").startswith(
        "frozen_at='https://huggingface.co/gpt2' cannot be opened: the store 'https://huggingface.co/gpt2' has "
    )
    assert "but there is no such folder. Give the folder in which" in refused(tmp_path / "nowhere")
    assert refused(folder, trained_whole) == (
        f"frozen_at={place!r}, but training changes every tensor of the first trial. Give requires_grad_(False) to "
        "what is not trained, or base=; or leave frozen_at out."
    )
    said = refused(folder, of_halves)
    assert said.startswith(f"frozen_at={place!r}, but none of the ")
    assert said.endswith(
        " tensors of F32. Load the base from there, with the dtype that the files have "
        "(dtype='auto' of from_pretrained); or leave frozen_at out."
    )
    assert not store.names("runs")
