"""A model as files, which ``Model.save`` writes, ``load_model`` reads, and engines that predict are sent."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, dataclass, replace
from typing import Any

from hopyard.data.columns.policies import Policies
from hopyard.errors import CorruptError, EstimatorError, NotFoundError
from hopyard.objects import StateRef, load_state, save_state
from hopyard.objects.identity.usercode import user_code_by_value
from hopyard.objects.states import file_name
from hopyard.storage import MemoryStore, Store
from hopyard.storage.format import check_format, format_header
from hopyard.training import (
    Program,
    build_replica,
    has_trunk,
    load_program,
    save_program,
    with_estimator,
)

INFO = "model.json"
STATE_FOLDER = "weights"
_KIND = "model"


@dataclass(frozen=True)
class ModelInfo:
    """Facts known of a model without loading it. All fields are JSON values.

    Attributes:
        run_id, trial: origin of the model.
        params: the trial's point of the search space.
        epoch: number of epochs after which the trial had these weights, the best ones; a fraction within one.
        value: the evaluation metric at that epoch.
        metric: the history key of that metric.
        history: one value an epoch for each metric; the last may be of a part of one.
        feature_columns, label_columns: as the search was given them.
    """

    run_id: str
    trial: int
    params: dict[str, Any]
    epoch: float
    value: float
    metric: str
    history: dict[str, list[float]]
    feature_columns: tuple[str, ...]
    label_columns: tuple[str, ...]


@dataclass(frozen=True)
class Weights:
    """Place of a model's bytes: its program, and its weights below ``folder``."""

    store: Store
    program: str
    folder: str
    state: StateRef

    def load_program(self) -> Program:
        return load_program(self.store, self.program)


def load_weights(info: ModelInfo, weights: Weights, held: Any = None) -> Any:
    """The tree of the weights.

    Args:
        held: such a tree in memory, of which what is the same is taken: a frozen base.

    Raises:
        NotFoundError: they were not kept.
    """
    store = weights.store.at(weights.folder)
    try:
        return load_state(store, weights.state, verify=True, held=held)
    except NotFoundError as error:
        if were_kept(weights):
            raise  # what is gone is a file that they share with others
        raise NotFoundError(
            f"the weights of trial {info.trial} were not kept: a run keeps those of completed trials and of the "
            "best one. To keep every trial's, search with keep='all', or write checkpoints: {keep: all} into the "
            "configuration of an experiment."
        ) from error


def were_kept(weights: Weights) -> bool:
    """Whether a model's own file is there; one that it shares with others, as the base's, may be gone nevertheless."""
    return weights.store.at(weights.folder).exists(file_name(weights.state.digest))


def policies_of(program: Program) -> Policies:
    """The columns that a model was trained on, and what became of nulls and ragged rows in them."""
    found = program.policies if program.train is None else program.train.policies
    assert found is not None, "only programs of saved models have no training data"
    return found


def write_model(store: Store, info: ModelInfo, weights: Weights) -> None:
    """Write a model without its run and data; the file that says that it is there comes last."""
    program = weights.load_program()
    program = replace(
        program,
        train=None,
        val=None,
        init_from=None,
        policies=policies_of(program),
        known_rows=program.partition_rows,
    )
    tree = load_weights(info, weights)
    if has_trunk(tree):
        program = _with_trunk(program, info, tree)
    make = program.estimator_gen_fn
    if hasattr(make, "with_definition"):  # an experiment's, whose code is in the store of the run
        program = replace(program, estimator_gen_fn=make.with_definition())
    name = _save_with_code(store, program)
    state = save_state(store.at(STATE_FOLDER), tree)
    content = {
        "format": format_header(_KIND),
        "info": asdict(info),
        "program": name,
        "state": state.to_json(),
    }
    store.put(INFO, json.dumps(content, indent=1).encode())


def is_written(store: Store, info: ModelInfo, weights: Weights, where: str) -> bool:
    """Whether the model in ``store`` is this one: of the same trial and epoch, with the same weights.

    Raises:
        CorruptError, FormatError: as of ``read_model``.
    """
    there, its_weights = read_model(store, where)
    same = json.dumps(asdict(there), sort_keys=True) == json.dumps(asdict(info), sort_keys=True)
    return same and its_weights.state.digest == weights.state.digest


def _with_trunk(program: Program, info: ModelInfo, tree: Any) -> Program:
    """The program with the model's estimator, whose trunk no weights hold.

    Raises:
        EstimatorError: the estimator function gives another trunk now than the model was trained with.
    """
    with user_code_by_value():
        kept = with_estimator(program, info.params, info.trial)
    build_replica(kept, info.params, info.trial, device="cpu").load({"model": tree})
    return kept


def _save_with_code(store: Store, program: Program) -> str:
    """The program with the user's own modules, which are not where the model goes, if they can be pickled."""
    try:
        with user_code_by_value():
            return save_program(store, program)
    except EstimatorError:
        return save_program(store, program)


def read_model(store: Store, where: str) -> tuple[ModelInfo, Weights]:
    """The model that ``write_model`` wrote; its weights are not loaded yet.

    Raises:
        CorruptError: it is not what was written; FormatError: a newer version of Hopyard wrote it.
    """
    try:
        content = json.loads(store.get(INFO))
        header, info = content["format"], content["info"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(
            f"{where}/{INFO} is not what model.save(...) wrote ({error!r}). Restore it from a copy, or save the model "
            "again."
        ) from error
    check_format(header, _KIND, where=f"the model in {where}")
    columns = {name: tuple(info[name]) for name in ("feature_columns", "label_columns")}
    weights = Weights(store, content["program"], STATE_FOLDER, StateRef.from_json(content["state"]))
    return ModelInfo(**(info | columns)), weights


def pack_model(info: ModelInfo, weights: Weights) -> bytes:
    """The files of a model as bytes, for a place that cannot read its store."""
    store = MemoryStore()
    write_model(store, info, weights)
    return pickle.dumps({entry.name: store.get(entry.name) for entry in store.list()}, protocol=5)


def unpack_model(data: bytes) -> tuple[ModelInfo, Weights]:
    """Unpack a model of ``pack_model`` into the memory of this process."""
    store = MemoryStore()
    for name, content in pickle.loads(data).items():
        store.put(name, content)
    return read_model(store, store.url)
