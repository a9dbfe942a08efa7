"""A compiled model that trials of one architecture use in turn, each with its own values in its variables."""

from __future__ import annotations

import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from hopyard.training.keras.architecture import own_attributes
from hopyard.training.keras.loss import noting
from hopyard.training.keras.state import Array, assign, values_of
from hopyard.training.keras.steps import KerasSteps, StepKind, steps_of


class Holder:
    """Holder of values that a compiled model may have in its variables.

    Attributes:
        values: of ``Compiled.variables``, while the model does not have them.
    """

    def __init__(self) -> None:
        self.values: list[Array] | None = None


class Compiled:
    """A Keras model that is built and compiled.

    Attributes:
        weights, optimizer: the variables that a state consists of.
        steps: what the model does with a batch.
        nbytes: of these.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.lock: threading.RLock = threading.RLock()
        self.weights: list[Any] = list(model.weights)
        self.optimizer: list[Any] = [] if model.optimizer is None else list(model.optimizer.variables)
        kept = {id(variable) for variable in self.weights}
        self._seeds = [variable for variable in model.variables if id(variable) not in kept]
        self.nbytes: int = sum(value.nbytes for value in values_of(self.variables))
        self._averages = _averages(model.optimizer)
        self.steps: KerasSteps = steps_of(model)
        self._own = own_attributes(model)
        self._holder: weakref.ref[Holder] | None = None

    def holder(self) -> Holder:
        """A new holder, of the values that the variables have."""
        found = Holder()
        self._holder = weakref.ref(found)
        return found

    @property
    def variables(self) -> list[Any]:
        return [*self.weights, *self.optimizer]

    def take(self, holder: Holder) -> None:
        """Put the holder's values into the variables, and give the former values to the holder before."""
        before = None if self._holder is None else self._holder()
        if before is holder:
            return
        if before is not None:
            before.values = values_of(self.variables)
        assert holder.values is not None
        assign(self.variables, holder.values)
        holder.values = None
        self._holder = weakref.ref(holder)

    def values(self, holder: Holder) -> list[Array]:
        """Values of ``holder``, in the compiled model or in the holder."""
        return values_of(self.variables) if holder.values is None else holder.values

    def give(self, holder: Holder, values: list[Array]) -> None:
        """Make ``values`` those of ``holder``."""
        if holder.values is None:
            assign(self.variables, values)
        else:
            holder.values = values

    def averaged(self, values: list[Array]) -> dict[int, Array]:
        """The averages that the optimizer keeps instead of weights (``use_ema``), by place in ``values``, its own."""
        if self._averages is None:
            return {}
        place = {id(variable): number for number, variable in enumerate(self.variables)}
        iterations, pairs = self._averages
        if not values[place[id(iterations)]]:  # there is nothing to average yet
            return {}
        return {place[id(weight)]: values[place[id(average)]] for weight, average in pairs}

    @contextmanager
    def with_averages(self) -> Iterator[None]:
        """Have averages in the weights meanwhile, as ``fit`` leaves them when it ends."""
        averages = {} if self._averages is None else self.averaged(values_of(self.variables))
        weights = [self.weights[number] for number in averages]
        trained = values_of(weights)
        assign(weights, list(averages.values()))
        try:
            yield
        finally:
            assign(weights, trained)

    def changed(self) -> None:
        """Trace and compile anew: the model does something else now, or to other variables."""
        self.steps = steps_of(self.model)
        for kind in ("train", "test", "predict"):
            setattr(self.model, f"{kind}_function", None)

    @property
    def has_changed(self) -> bool:
        """Whether the model is no longer as it was built, apart from its variables."""
        return bool(self.changed_attributes())

    def changed_attributes(self) -> list[str]:
        """Names of the attributes of the user's own layers that are no longer as they were when the model was built."""
        before, now = self._own, own_attributes(self.model)
        if before is None or now is None:
            return [] if before is now else ["attributes of the model's layers"]
        names = before.keys() | now.keys()
        return sorted(name for name in names if before.get(name) != now.get(name))

    def run(self, kind: StepKind, batches: Iterable[tuple[Any, ...]]) -> Any:
        """All batches, with random numbers from where Python's own generator is now; see ``KerasSteps.run``."""
        assign(self._seeds, list(self.seeds(random.getrandbits).values()))
        with self.in_steps(kind):
            return self.steps.run(kind, batches)

    def seeds(self, draw: Callable[[int], int]) -> dict[int, Array]:
        """By the ``id`` of their variables, seeds of what is random in the model's layers, of so many bits drawn."""
        return {id(variable): np.array([draw(31), 0], variable.dtype) for variable in self._seeds}

    def in_steps(self, kind: StepKind) -> AbstractContextManager[None]:
        """Context that steps are made in."""
        return noting(self.model) if kind == "test" else nullcontext()


def _averages(optimizer: Any) -> tuple[Any, list[tuple[Any, Any]]] | None:
    """The optimizer's count of steps, and pairs of a weight and its moving average; None: it keeps none."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a scaled loss
    if not getattr(inner, "use_ema", False):
        return None
    pairs = zip(inner._trainable_variables, inner._model_variables_moving_average, strict=True)
    return inner.iterations, [(weight, average) for weight, average in pairs if average is not None]


@contextmanager
def all_trainable(model: Any) -> Iterator[None]:
    """Make all layers trainable meanwhile, so that an optimizer is built for frozen ones, too."""
    layers = list(model._flatten_layers())
    before = [layer.trainable for layer in layers]
    model.trainable = True
    try:
        yield
    finally:
        for layer, trainable in zip(layers, before, strict=True):
            layer.trainable = trainable


_KEPT = 2
_shared: weakref.WeakValueDictionary[str, Compiled] = weakref.WeakValueDictionary()
_last: deque[Compiled] = deque(maxlen=_KEPT)  # also while no replica has them: the next trial may be alike


def shared(architecture: str | None, own: Compiled) -> Compiled:
    """The compiled model of that architecture that this process has; ``own`` becomes it if there is none."""
    if architecture is None:
        return own
    found = _shared.get(architecture)
    if found is None or found.has_changed:
        found = _shared[architecture] = own
    if found in _last:
        _last.remove(found)
    _last.append(found)
    return found
