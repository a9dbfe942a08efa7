"""A search from data to model, on the inline and the local backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hopyard import load_model, open_run
from hopyard.backend import InlineBackend
from hopyard.data import prepare
from hopyard.errors import RunHeldError, SettingsError, TrialError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, GridSearch, hp_choice


def test_the_best_model_is_the_one_with_the_highest_accuracy_at_its_best_epoch(
    search: Any, make_rows: Any
) -> None:
    model = search(MemoryStore(), num_models=4, num_epochs=3).fit(make_rows())
    histories = model.get_all_model_history()
    best = max(max(history["val_accuracy"]) for history in histories.values())
    assert model.info.value == best == max(model.get_history()["val_accuracy"])
    assert model.get_history()["val_accuracy"][model.info.epoch - 1] == best
    assert sorted(model.get_history()) == ["train_loss", "val_accuracy", "val_loss"]
    assert all(len(values) == 3 for history in histories.values() for values in history.values())


def test_evaluation_metric_loss_picks_the_lowest(search: Any, make_rows: Any) -> None:
    model = search(MemoryStore(), num_models=3, evaluation_metric="val_loss").fit(make_rows())
    lowest = min(min(history["val_loss"]) for history in model.get_all_model_history().values())
    assert model.info.value == lowest


def test_the_weights_are_those_of_the_best_epoch_not_the_last(search: Any, make_rows: Any) -> None:
    data, val = make_rows(), make_rows(40, seed=1)
    val["label"] = 1 - val["label"]  # what is learnt is wrong there
    model = search(MemoryStore(), num_models=4, num_epochs=4).fit(data, val)
    early = [m for m in model.get_all_models() if m.info.epoch < 4]
    assert early, "a trial gets worse as it learns"
    for found in early:
        assert found.evaluate(val)["accuracy"] == pytest.approx(found.info.value, abs=1e-12)


def test_all_models_come_best_first_and_predict(search: Any, make_rows: Any) -> None:
    data = make_rows()
    models = search(MemoryStore()).fit(data).get_all_models()
    values = [model.info.value for model in models]
    assert values == sorted(values, reverse=True)
    assert len(models) == 3
    assert {model.predict(data["features"]).shape for model in models} == {(96, 2)}


def test_inline_and_local_backends_give_the_same_bits(
    search: Any, make_rows: Any, contents_of: Any, local: Any, tmp_path: Path
) -> None:
    inline = search(MemoryStore()).fit(make_rows())
    hopped = search(LocalStore(tmp_path), local).fit(make_rows())
    assert contents_of(hopped.run) == contents_of(inline.run)
    assert hopped.run.broken_rules() == []
    ours, theirs = hopped.torch().state_dict(), inline.torch().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_same_call_again_returns_the_finished_run_at_once(
    search: Any, make_rows: Any, capsys: Any
) -> None:
    store, short = MemoryStore(), {"num_models": 1, "num_epochs": 1}
    first = search(store, **short).fit(make_rows())
    again = search(store, **short).fit(make_rows())
    assert again.run_id == first.run_id
    assert "is finished: its result is returned. fresh=True trains again." in capsys.readouterr().out
    fresh = search(store, fresh=True, **short).fit(make_rows())
    assert fresh.run_id == f"{first.run_id}-2"
    assert fresh.get_history() == first.get_history()


def test_other_settings_or_data_make_another_run(search: Any, make_rows: Any) -> None:
    store, short = MemoryStore(), {"num_models": 1, "num_epochs": 1}
    base = search(store, **short).fit(make_rows()).run_id
    others = [
        search(store, seed=1, **short).fit(make_rows()).run_id,
        search(store, num_models=1, num_epochs=2).fit(make_rows()).run_id,
        search(store, **short).fit(make_rows(seed=3)).run_id,
    ]
    assert len({base, *others}) == 4


def test_a_run_grows_in_models_and_epochs_and_equals_one_that_was_larger_from_the_start(
    search: Any, make_rows: Any, contents_of: Any
) -> None:
    store = MemoryStore()
    search(store, run_id="grows", num_models=1, num_epochs=1).fit(make_rows())
    grown = search(store, run_id="grows", num_models=3, num_epochs=2).fit(make_rows())
    whole = search(MemoryStore(), num_models=3, num_epochs=2).fit(make_rows())
    assert contents_of(grown.run) == contents_of(whole.run)


def test_a_run_id_with_other_settings_is_an_error_that_names_them(search: Any, make_rows: Any) -> None:
    store = MemoryStore()
    search(store, run_id="mine").fit(make_rows())
    with pytest.raises(
        SettingsError, match=r"run mine exists with other settings: seed: 0 \(run\) -> 5 \(now\)"
    ):
        search(store, run_id="mine", seed=5).fit(make_rows())
    with pytest.raises(SettingsError, match=r"num_epochs: 2 .* -> 1"):
        search(store, run_id="mine", num_epochs=1).fit(make_rows())


def test_a_search_in_progress_refuses_a_second_driver(search: Any, make_rows: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    refused: list[BaseException] = []

    class Second(Callback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            if not refused:
                try:
                    search(store, num_models=1).fit(make_rows())
                except RunHeldError as error:
                    refused.append(error)

    search(store, num_models=1, callbacks=[Second()]).fit(make_rows())
    assert len(refused) == 1


def test_callbacks_hear_the_whole_run_in_order(search: Any, make_rows: Any) -> None:
    heard: list[tuple[Any, ...]] = []

    class Ear(Callback):
        def on_run_start(self, run_id: str, settings: Any) -> None:
            heard.append(("run", settings["num_models"]))

        def on_trial_start(self, trial: Any) -> None:
            heard.append(("trial", trial.number))

        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            heard.append(("epoch", trial.number, epoch, sorted(metrics)))

        def on_trial_end(self, trial: Any) -> None:
            heard.append(("end", trial.number, trial.state))

        def on_run_end(self, run_id: str, best: Any) -> None:
            heard.append(("over", best.number))

    model = search(MemoryStore(), num_models=1, callbacks=[Ear()]).fit(make_rows())
    names = ["train_loss", "val_accuracy", "val_loss"]
    assert heard == [
        ("run", 1),
        ("trial", 0),
        ("epoch", 0, 1, names),
        ("epoch", 0, 2, names),
        ("end", 0, "completed"),
        ("over", model.trial),
    ]


def test_a_trial_that_raises_is_shown_with_its_traceback_and_stops_no_other(make_rows: Any) -> None:
    def sometimes(params: dict[str, Any]) -> TorchEstimator:
        if params["width"] == 3:
            raise ValueError("three is not enough")
        return TorchEstimator(
            torch.nn.Linear(4, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), optimizer_params={"lr": 0.1}
        )

    model = GridSearch(
        InlineBackend(), MemoryStore(), sometimes, {"width": hp_choice([2, 3, 4])}, 1, progress=False
    ).fit(make_rows())
    states = model.trials().set_index("number")["state"]
    assert dict(states) == {0: "completed", 1: "failed", 2: "completed"}
    [failed] = model.run.failures()
    assert "three is not enough" in failed.error.describe()
    assert "in sometimes" in failed.error.traceback


def test_a_diverging_trial_fails_and_the_others_go_on(make_rows: Any) -> None:
    def linear(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            torch.nn.Linear(4, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), optimizer_params=params
        )

    space = {"lr": hp_choice([0.1, 1e38, 0.2])}
    data = make_rows() | {"features": make_rows()["features"] * 1e30}
    model = GridSearch(
        InlineBackend(), MemoryStore(), linear, space, 2, progress=False, num_partitions=2
    ).fit(make_rows())
    assert model.run.status == "completed"
    with pytest.raises(TrialError, match="DivergedError"):
        GridSearch(InlineBackend(), MemoryStore(), linear, space, 2, progress=False).fit(data)


def test_what_is_wrong_for_all_trials_is_said_before_anything_is_prepared(
    make_rows: Any, tmp_path: Path
) -> None:
    def wrong(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            torch.nn.Linear(5, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), optimizer_params={"lr": 0.1}
        )

    search = GridSearch(
        InlineBackend(), LocalStore(tmp_path), wrong, {"x": hp_choice([1, 2, 3])}, 1, progress=False
    )
    with pytest.raises(
        TrialError, match="the first 3 trials fail alike on one batch, so nothing was prepared"
    ):
        search.fit(make_rows())
    assert not (tmp_path / "train_data").exists()
    with pytest.raises(TrialError, match="mat1 and mat2 shapes cannot be multiplied"):
        search.check(make_rows())


def test_patience_stops_a_trial_that_does_not_improve(search: Any, make_rows: Any) -> None:
    model = search(MemoryStore(), num_epochs=6, patience=2).fit(make_rows())
    stopped = [t for t in model.run.state.trials.values() if t.status == "stopped"]
    assert stopped
    for trial in stopped:
        values = trial.history["val_accuracy"]
        assert len(values) - 1 - values.index(max(values)) >= 2


def test_data_prepared_before_is_used_without_preparing_again(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    prepare(make_rows(), store, feature_columns=["features"], label_columns=["label"])
    model = search(store).fit_on_prepared_data()
    assert len(model.get_all_models()) == 3


def test_foreign_parquet_is_trained_on_as_it_is(search: Any, make_rows: Any, tmp_path: Path) -> None:
    data = make_rows()
    frame = pd.DataFrame({f"f{i}": data["features"][:, i] for i in range(4)} | {"label": data["label"]})
    frame.to_parquet(tmp_path / "train.parquet", row_group_size=24)
    frame[:40].to_parquet(tmp_path / "val.parquet", row_group_size=10)

    def stacked(params: dict[str, Any]) -> TorchEstimator:
        class Stack(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = torch.nn.Linear(4, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.linear(x)

        return TorchEstimator(
            Stack(),
            torch.optim.SGD,
            torch.nn.CrossEntropyLoss(),
            optimizer_params={"lr": 0.1},
            inputs={"x": ["f0", "f1", "f2", "f3"]},
        )

    model = search(
        LocalStore(tmp_path / "store"),
        estimator_gen_fn=stacked,
        evaluation_metric="loss",
        feature_columns=["f0", "f1", "f2", "f3"],
    ).fit_on_parquet(tmp_path / "train.parquet", tmp_path / "val.parquet")
    assert model.transform(frame).shape == (96, 6)


def test_one_shot_rows_are_checked_and_prepared_without_losing_any(search: Any, make_rows: Any) -> None:
    data = make_rows()
    stream = ({"features": f, "label": y} for f, y in zip(data["features"], data["label"], strict=True))
    streamed = search(MemoryStore()).fit(stream)
    given = search(MemoryStore()).fit(data)
    assert streamed.get_all_model_history() == given.get_all_model_history()
    assert streamed.run_id == given.run_id


def test_without_validation_trials_are_ranked_by_training(search: Any, make_rows: Any) -> None:
    model = search(MemoryStore(), validation=None, evaluation_metric="loss").fit(make_rows())
    assert sorted(model.get_history()) == ["train_loss"]
    assert model.info.metric == "train_loss"


def test_models_start_from_another_ones_weights(search: Any, make_rows: Any) -> None:
    wide = {"search_space": {"width": 8, "lr": hp_choice([1e-9, 2e-9])}, "num_models": 2, "num_epochs": 1}
    first = search(MemoryStore(), search_space={"width": 8, "lr": hp_choice([0.1, 0.05])}, num_models=2).fit(
        make_rows()
    )
    second = search(MemoryStore(), init_from=first, **wide).fit(make_rows())
    ours, theirs = second.torch()[0].weight, first.torch()[0].weight
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_saved_model_is_the_same_without_its_run(search: Any, make_rows: Any, tmp_path: Path) -> None:
    data = make_rows()
    model = search(MemoryStore()).fit(data)
    loaded = load_model(model.save(tmp_path / "best"))
    assert np.array_equal(loaded.predict(data["features"]), model.predict(data["features"]))
    assert loaded.get_history() == model.get_history()
    assert loaded.params == model.params


def test_an_open_run_tells_what_its_journal_says(search: Any, make_rows: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    model = search(store).fit(make_rows())
    run = open_run(store, model.run_id)
    assert run.status == "completed"
    assert list(run.trials().columns) == [
        "number",
        "params",
        "state",
        "epochs",
        "metrics",
        "seconds",
        "error",
    ]
    schedule = run.schedule()
    assert list(schedule.columns) == [
        "unit",
        "trial",
        "partition",
        "worker",
        "epoch",
        "phase",
        "start",
        "end",
    ]
    assert len(schedule) == 3 * 2 * (2 + 2)
    assert (schedule["end"] >= schedule["start"]).all()


def rectified(factor: float) -> Any:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * factor

    return Scaled


def test_classes_and_functions_as_options_reach_the_estimator_function_and_are_known_by_code(
    make_rows: Any, local: Any, tmp_path: Path
) -> None:
    def chosen(params: dict[str, Any]) -> TorchEstimator:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), params["layers"][0](), torch.nn.Linear(8, 2))
        return TorchEstimator(
            model, params["optimizer"], torch.nn.CrossEntropyLoss(), optimizer_params={"lr": 0.05}
        )

    def looked_up(params: dict[str, Any]) -> TorchEstimator:
        optimizers = {"torch.optim.sgd.SGD": torch.optim.SGD, "torch.optim.adam.Adam": torch.optim.Adam}
        return chosen({"optimizer": optimizers[params["optimizer"]], "layers": [rectified(1.0)]})

    def fit(function: Any, space: dict[str, Any], store: Any, backend: Any) -> Any:
        return GridSearch(
            backend=backend, store=store, estimator_gen_fn=function, search_space=space, num_epochs=2,
            progress=False,
        ).fit(make_rows())  # fmt: skip

    optimizers = [torch.optim.SGD, torch.optim.Adam]
    store = LocalStore(tmp_path)
    space = {"optimizer": hp_choice(optimizers), "layers": [rectified(1.0)]}
    found = fit(chosen, space, store, local)
    names = ["torch.optim.adam.Adam", "torch.optim.sgd.SGD"]
    assert sorted(model.params["optimizer"] for model in found.get_all_models()) == names
    expected = fit(
        looked_up, {"optimizer": hp_choice(["torch.optim.sgd.SGD", names[0]])}, MemoryStore(), InlineBackend()
    )
    assert found.get_all_model_history() == expected.get_all_model_history()
    assert fit(chosen, space, store, local).run_id == found.run_id
    assert fit(chosen, space | {"layers": [rectified(2.0)]}, store, local).run_id != found.run_id
    found.save(tmp_path / "best")
    assert load_model(tmp_path / "best").params == found.params
