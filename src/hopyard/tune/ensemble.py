"""Ensembles of the models of a run, selected greedily with replacement (Caruana et al., ICML 2004)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from hopyard.checks import integer
from hopyard.errors import EstimatorError, MetricError, NotFoundError, UsageError
from hopyard.hopper.state import EvaluationMetric
from hopyard.objects import save_state
from hopyard.storage import MemoryStore
from hopyard.training import Program, save_program
from hopyard.training.ensemble import ensemble_program
from hopyard.tune.predicting.frames import PREDICTION_BATCH, feature_batches
from hopyard.tune.predicting.predictor import held_by, load_replica
from hopyard.tune.predicting.saved import (
    STATE_FOLDER,
    ModelInfo,
    Weights,
    load_weights,
    policies_of,
    were_kept,
)
from hopyard.wording import counted


def ensemble_of(
    run_id: str, models: Sequence[tuple[ModelInfo, Weights]], metric: EvaluationMetric, k: int
) -> tuple[ModelInfo, Weights]:
    """The ensemble that ``Run.ensemble`` describes, in memory.

    Args:
        models: those of the run, best first.
    """
    picks = integer("k", k, 1, advice="Write run.ensemble(10): so many times a model is picked.")
    kept = _kept(run_id, models)
    program = kept[0][1].load_program()
    batches = _validation_batches(run_id, program)
    ensemble_program(program, [], [])  # what cannot be one is said before models are run
    held = held_by(*kept[0], "cpu")
    trees = [load_weights(info, weights, held) for info, weights in kept]
    replicas = [_replica(*model) for model in kept]
    from hopyard.training.torch.ensemble import Outputs, measured, tree_of_members  # needs PyTorch

    outputs = [Outputs(replica, batches(replica)) for replica in replicas]
    name = metric.key.removeprefix("val_")

    @cache
    def value_of(chosen: Chosen) -> float:
        members, counts = zip(*chosen, strict=True)
        first = replicas[members[0]]
        found = measured(first, [outputs[each] for each in members], _shares(counts), batches(first))
        value = metric.smaller_is_better(found[name])
        return math.inf if math.isnan(value) else value

    chosen, value = greedy(len(kept), picks, value_of)
    if math.isinf(value):
        raise MetricError(
            f"{metric.key} is no finite number for any ensemble of the models of run {run_id}. Validate on rows "
            "for which it is defined, or rank by another metric."
        )
    members, counts = zip(*chosen, strict=True)
    infos = [info for info, _ in kept]
    info = infos[members[0]]
    described = [
        {"trial": infos[each].trial, "count": count, "params": infos[each].params} for each, count in chosen
    ]
    store = MemoryStore()
    params = [infos[each].params for each in members]
    name_of_program = save_program(store, ensemble_program(program, params, _shares(counts)))
    about = ModelInfo(
        run_id=info.run_id,
        trial=info.trial,
        params={"members": described},
        epoch=info.epoch,
        value=metric.smaller_is_better(value),
        metric=info.metric,
        history={},
        feature_columns=info.feature_columns,
        label_columns=info.label_columns,
    )
    state = save_state(store.at(STATE_FOLDER), tree_of_members([trees[each] for each in members]))
    return about, Weights(store, name_of_program, STATE_FOLDER, state)


Chosen = tuple[tuple[int, int], ...]
"""Models of an ensemble, each with how often it was picked, in order of their numbers."""


def greedy(number: int, picks: int, value_of: Callable[[Chosen], float]) -> tuple[Chosen, float]:
    """Pick one of ``number`` models so many times, each time the one with which the ensemble has the lowest value, of
    equals the first. Returns the best of the ensembles on the way, of equals the smallest, and its value."""
    picked: Counter[int] = Counter()
    best: tuple[Chosen, float] | None = None
    for _ in range(picks):
        options = [tuple(sorted((picked + Counter([model])).items())) for model in range(number)]
        model = min(range(number), key=lambda model: value_of(options[model]))
        picked[model] += 1
        if best is None or value_of(options[model]) < best[1]:
            best = options[model], value_of(options[model])
    assert best is not None
    return best


def _shares(counts: Iterable[int]) -> list[float]:
    counts = list(counts)
    return [count / sum(counts) for count in counts]


def _kept(run_id: str, models: Sequence[tuple[ModelInfo, Weights]]) -> list[tuple[ModelInfo, Weights]]:
    """The models whose weights are kept, best first.

    Raises:
        NotFoundError: there are fewer than two.
    """
    kept = [(info, weights) for info, weights in models if were_kept(weights)]
    if len(kept) < 2:
        raise NotFoundError(
            f"run {run_id} has {counted(len(models), 'model')}, and the weights of {len(kept)} are kept, but "
            "an ensemble is made of at least two. Search with keep='all', or with keep='best' and keep_n=10."
        )
    return kept


def _validation_batches(run_id: str, program: Program) -> Callable[[Any], Iterable[Mapping[str, Any]]]:
    """A function that goes through the run's validation data, as ``Model.evaluate`` would, for a replica.

    Raises:
        UsageError: there is none.
    """
    if program.val is None:
        raise UsageError(
            f"run {run_id} has no validation data, but an ensemble is selected on rows that its members were not "
            "trained on. Search with validation=0.25 or a second frame."
        )
    columns = list(dict.fromkeys((*program.feature_columns, *program.label_columns)))

    def batches(replica: Any) -> Iterable[Mapping[str, Any]]:
        return feature_batches(
            program.val, columns, PREDICTION_BATCH, policies_of(program), program.label_columns,
            program.preprocessing, weight=replica.weight_column,
        )  # fmt: skip

    return batches


def _replica(info: ModelInfo, weights: Weights) -> Any:
    """A model that predicts, and may be a member.

    Raises:
        EstimatorError: it cannot.
    """
    replica = load_replica(info, weights, "cpu")
    if replica.framework != "torch":
        raise EstimatorError(
            f"An ensemble has members that a TorchEstimator trained, but these are models of {replica.framework}. "
            "Average what model.predict gives for each of run.models yourself."
        )
    from hopyard.training.torch.ensemble import check_replica  # needs PyTorch

    check_replica(replica)
    return replica
