"""The trunk of an estimator: a frozen module whose outputs, computed once for a partition, all trials train on.

The outputs for a partition are kept in the machine's node cache under a digest of all that decides its bits: the
rows, the module's class, code and weights, the inputs, device, precision and PyTorch's settings. They are computed for
``ROWS_AT_ONCE`` rows at a time, in the order of the rows, for any batch sizes of the trials.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn

from hopyard.data.arguments import Output, Tail
from hopyard.data.base import Partitioned
from hopyard.data.combining.computed import computed_columns
from hopyard.data.order import WINDOW_BYTES, batch_bounds
from hopyard.data.reading.views import Batch
from hopyard.data.schema import TENSOR_DTYPES
from hopyard.errors import EstimatorError
from hopyard.objects import digest_json, flatten
from hopyard.objects.identity import identity
from hopyard.training.estimator import VisitRows
from hopyard.training.torch import hidden, state
from hopyard.training.torch.binding import Binding
from hopyard.training.torch.forward import shape_of
from hopyard.training.torch.session import Flags, generator_state, generators_kept

NAME = "trunk"
"""Of its output in a batch; the parts of several outputs are ``trunk.<name>`` or ``trunk.<number>`` until then."""

ROWS_AT_ONCE = 64

_AS_NUMPY = {"bfloat16": torch.uint16}  # NumPy has no such type: its bits are kept
_RULE = (
    "It must give a tensor, a tuple of tensors (the model's arguments), or a dict of tensors (its keyword arguments), "
    "each with one row for each row of the inputs."
)


def frozen(trunk: nn.Module) -> nn.Module:
    """``trunk`` in evaluation mode and without gradients; a copy, if it is not so already.

    Raises:
        EstimatorError: it cannot be copied, or what it does cannot be told.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in trunk.modules()):
        raise EstimatorError(
            "The trunk is, or has in it, a module of TorchScript, whose code cannot be told from others'. Give the "
            "module that it was made from, or put the trunk into the model with requires_grad_(False)."
        )
    if any(module.training for module in trunk.modules()) or any(p.requires_grad for p in trunk.parameters()):
        return _copied(trunk).eval().requires_grad_(False)
    return trunk


def _copied(trunk: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(trunk)
    except Exception as error:
        raise EstimatorError(
            f"The trunk cannot be copied ({type(error).__name__}: {error}), but trials share a copy, so that neither "
            "they nor you change each other's. Take out of it what copy.deepcopy does not take; detach() tensors that "
            "it computed."
        ) from error


def weights_digest(trunk: nn.Module) -> str:
    """Digest of the names and values in the state dict; a model's state names its trunk by this digest."""
    tensors, skeleton = flatten(state.to_tree(dict(trunk.state_dict()), NAME))
    values = {path: [each.dtype, list(each.shape), each.digest] for path, each in tensors.items()}
    return digest_json([skeleton, values], "hopyard.trunk-weights")


class WithTrunk(nn.Module):
    """A trunk and the model that was trained on its outputs, as one module of the trunk's inputs."""

    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        outputs = self.trunk(*arguments, **keywords)
        if isinstance(outputs, Mapping):
            return self.head(**outputs)
        return self.head(*outputs) if isinstance(outputs, tuple | list) else self.head(outputs)

    def train(self, mode: bool = True) -> WithTrunk:
        """The head's mode; the trunk stays in evaluation mode."""
        super().train(mode)
        self.trunk.eval()
        return self


class TrunkBinding(Binding):
    """Binding of a model that is trained on a trunk's outputs. The features are the trunk's inputs."""

    advice = "It gets what the trunk gives."

    def columns(self, every_feature: bool) -> list[str]:
        """The columns that a pass reads besides the trunk's outputs."""
        names = super().columns(every_feature)
        return [name for name in names if name not in self.model_columns or name in self.besides]

    def place(self, batch: Mapping[str, Any]) -> Batch:
        parts = {name: value for name, value in batch.items() if _is_output(name)}
        placed = super().place({name: value for name, value in batch.items() if name not in parts})
        moved = {name.removeprefix(f"{NAME}."): self._move(value) for name, value in parts.items()}
        if NAME in parts:
            placed[NAME] = moved[NAME]
        else:
            placed[NAME] = tuple(moved.values()) if all(name.isdigit() for name in moved) else moved
        return placed

    def arguments(self, batch: Batch) -> tuple[list[Any], dict[str, Any]]:
        outputs = batch[NAME]
        if isinstance(outputs, dict):
            return [], outputs
        return list(outputs) if isinstance(outputs, tuple) else [outputs], {}

    def rows(self, batch: Batch) -> int:
        arguments, keywords = self.arguments(batch)
        return _count(arguments, keywords)


class Trunk:
    """A frozen module on a device.

    Args:
        module: as :func:`frozen` gives it. It is copied, and trunks of one content share the copy: see :attr:`module`.
        binding: from a batch's columns to the module's inputs.
        autocast: gives the context to run it in.
        precision: names that context.

    Attributes:
        weights: see :func:`weights_digest`.

    Raises:
        EstimatorError: what the module does cannot be digested, or a column has the name of its outputs.
    """

    def __init__(
        self,
        module: nn.Module,
        binding: Binding,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[Any]],
        precision: str,
    ) -> None:
        self._binding, self._device, self._autocast, self._precision = binding, device, autocast, precision
        self._columns = list(dict.fromkeys(binding.model_columns))
        _check_names(binding)
        self.weights: str = weights_digest(module)
        known = identity(module, NAME)
        if known.digest is None:
            raise EstimatorError(
                f"The trunk cannot be told from others, because {'; '.join(known.undigestible)}; so its outputs cannot "
                "be kept for all trials. Take that out of the module, or put the trunk into the model with "
                "requires_grad_(False)."
            )
        self._content = known.digest
        self._shared = _shared(module, known.digest, device)
        self._is_checked = False

    @property
    def module(self) -> nn.Module:
        """A copy of the module, on the device: the same for all trunks of this content in this process, but for
        trunks that do not share it any more."""
        return self._shared.module

    def unshare(self) -> nn.Module:
        """Have a copy of the module, which no other trunk has; returns it."""
        self._shared = _Shared(_copied(self.module))
        return self.module

    def rows(self, rows: VisitRows) -> VisitRows:
        """``rows`` with the outputs in place of the inputs: of a partition kept, or computed now and kept."""
        if not isinstance(rows, Partitioned) or not len(rows):
            return _RowsInMemory(rows, self)
        what = f"outputs of a trunk ({type(self.module).__name__})"
        with generators_kept(self._device):
            arrays = computed_columns(rows, self._key(), lambda: self._computed(rows), what)
        return _RowsOfPartition(rows, arrays)

    def beside(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A batch with the outputs in place of the inputs, computed now."""
        inputs = set(self._columns) - set(self._binding.besides)
        return {name: batch[name] for name in batch if name not in inputs} | self._outputs(batch)

    def beside_checked(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The same as ``beside``, for rows of the check before a run.

        Raises:
            EstimatorError: the outputs are others when they are computed again, or not numbers.
        """
        made = self.beside(batch)
        if self._is_checked:
            return made
        for name, value in self._outputs(batch).items():
            _check_numbers(name, made[name], 0)
            try:
                torch.testing.assert_close(value, made[name], equal_nan=True)
            except AssertionError as error:
                raise EstimatorError(
                    "The trunk gives other outputs when it is run on the same rows again, so it has not the one "
                    "output that trials could share: it counts, keeps a buffer or draws from a generator of its own. "
                    "Take that out, or put it into the model with requires_grad_(False)."
                ) from error
        self._is_checked = True
        return made

    def head_of(self, tree: Any) -> Any:
        """The model's part of the tree of a model that was trained on this trunk's outputs.

        Raises:
            EstimatorError: it was trained on another trunk's, or on none's.
        """
        if not isinstance(tree, dict) or tree.keys() != {"head", NAME}:
            raise EstimatorError(
                "The state is that of a model without trunk=, but the estimator function now gives one. Leave trunk= "
                "out, or begin with a model that was trained on this trunk."
            )
        if tree[NAME] != self.weights:
            raise EstimatorError(
                f"The model was trained on the outputs of another trunk than the estimator function now gives: its "
                f"weights have the digest {tree[NAME][:12]}, these {self.weights[:12]}. Give the trunk that it was "
                "trained with: load the same weights, or build it once, outside of the function."
            )
        return tree["head"]

    def _key(self) -> str:
        """Digest of all that decides the bits of an output, but the rows."""
        where: Any = torch.backends.cpu.get_cpu_capability()
        if self._device.type == "cuda":
            where = [torch.cuda.get_device_name(self._device), torch.version.cuda]
        return digest_json(
            [
                *(self._content, torch.__version__, self._device.type, where, repr(Flags.now())),
                *(self._precision, self._binding.signature, ROWS_AT_ONCE),
            ],
            "hopyard.trunk",
        )

    def _computed(self, rows: Partitioned) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        first, like = 0, None
        for batch in rows.batches(ROWS_AT_ONCE, columns=self._columns, output="torch"):
            made = self._outputs(batch)
            given = {name: (value.dtype, value.shape[1:]) for name, value in made.items()}
            if like is not None and given != like:
                raise EstimatorError(
                    f"The trunk gave {_listed(given)} for the rows from {first} on, but {_listed(like)} for the first "
                    "ones; its outputs must have the same dtypes and shapes for all rows."
                )
            like = given
            for name, value in made.items():
                _check_numbers(name, value, first)
            first += len(next(iter(made.values())))
            yield {f"{name}|{_dtype(value)}": _to_numpy(value) for name, value in made.items()}
        if not self._shared.is_as_it_was:
            raise EstimatorError(
                "The trunk's weights were changed since the trial began, so its outputs are not those that other "
                "trials train on. Change a copy of it: copy.deepcopy(trunk)."
            )

    @torch.no_grad()
    def _outputs(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The outputs, by their names in batches, on the device."""
        placed = self._binding.place({name: batch[name] for name in self._columns if name in batch})
        arguments, keywords = self._binding.arguments(placed)
        rows = _count(arguments, keywords)
        drawn, before = generator_state(self._device), hidden.snapshot(self.module)
        pieces = []
        for start in range(0, max(rows, 1), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            some = [value[part] for value in arguments]
            pieces.append(self._run(some, {name: value[part] for name, value in keywords.items()}))
        if not torch.equal(drawn, generator_state(self._device)):
            raise EstimatorError(
                "The trunk draws random numbers in evaluation mode, so it has not the one output that trials could "
                "share. Put it into the model with requires_grad_(False)."
            )
        if hidden.changed(before, hidden.snapshot(self.module)):
            raise EstimatorError(
                "The trunk changes its own parameters or buffers in evaluation mode, so it is not frozen; let it do "
                "so only while `self.training` is true."
            )
        if len(pieces) == 1:
            return pieces[0]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}

    def _run(self, arguments: list[Any], keywords: dict[str, Any]) -> dict[str, torch.Tensor]:
        try:
            with self._autocast():
                outputs = self.module(*arguments, **keywords)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            given = [shape_of(value) for value in arguments]
            given += [f"{name}={shape_of(value)}" for name, value in keywords.items()]
            raise EstimatorError(
                f"The trunk failed on inputs {', '.join(given)}: {error}. {self._binding.advice}"
            ) from error
        return _named(outputs, _count(arguments, keywords))


class _RowsOfPartition:
    """A partition's rows with kept outputs."""

    def __init__(self, rows: Partitioned, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._rows, self._arrays = rows, arrays

    def __len__(self) -> int:
        return len(self._rows)

    def batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        *,
        columns: Sequence[str] | None = None,
        output: Output = "numpy",
        tail: Tail = "short",
        epoch: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """Batches of the partition, in its order, as dicts of tensors."""
        rows = self._rows
        order = rows.order(seed, epoch, shuffle, rows.reach(WINDOW_BYTES))
        bounds = batch_bounds(len(rows), batch_size, tail)
        if not columns:
            yield from (self._outputs(order[start:stop]) for start, stop in bounds)
            return
        others = rows.batches(
            batch_size, shuffle, seed, columns=columns, output=output, tail=tail, epoch=epoch
        )
        for (start, stop), batch in zip(bounds, others, strict=True):
            yield {**batch, **self._outputs(order[start:stop])}

    def _outputs(self, rows: np.ndarray[Any, Any]) -> dict[str, torch.Tensor]:
        batch = {}
        for place, array in self._arrays.items():
            name, dtype = place.split("|")
            values = torch.from_numpy(np.take(array, rows, axis=0))
            batch[name] = values.view(getattr(torch, dtype)) if dtype in _AS_NUMPY else values
        return batch


class _RowsInMemory:
    """A batch in memory, as partitions are read."""

    def __init__(self, rows: VisitRows, trunk: Trunk) -> None:
        self._rows, self._trunk = rows, trunk

    def __len__(self) -> int:
        return len(self._rows)

    def batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        *,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> Iterator[dict[str, Any]]:
        """Batches of these rows, with the trunk's outputs."""
        names = list(dict.fromkeys([*(columns or ()), *self._trunk._columns]))
        for batch in self._rows.batches(batch_size, shuffle, seed, columns=names, **options):
            yield self._trunk.beside_checked(batch)


class _Shared:
    """A module that trunks share, with a snapshot from the begin of the sharing."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._snapshot = hidden.snapshot(module)

    @property
    def is_as_it_was(self) -> bool:
        """Whether nobody trained or loaded the trunk since: models that are given out have it."""
        return not hidden.changed(self._snapshot, hidden.snapshot(self.module))


_modules: WeakValueDictionary[tuple[str, str], _Shared] = WeakValueDictionary()


def _shared(module: nn.Module, content: str, device: torch.device) -> _Shared:
    """The module on the device that stands for all of its content in this process."""
    known = _modules.get((content, str(device)))
    if known is None or not known.is_as_it_was:
        known = _Shared(_copied(module).to(device))
        _modules[content, str(device)] = known
    return known


def _count(arguments: list[Any], keywords: dict[str, Any]) -> int:
    """Rows of a batch."""
    return len(next(iter([*arguments, *keywords.values()])))


def _named(outputs: Any, rows: int) -> dict[str, torch.Tensor]:
    """The tensors that a trunk gave, by their names in batches."""
    if isinstance(outputs, torch.Tensor):
        parts: dict[str, Any] = {NAME: outputs}
    elif isinstance(outputs, Mapping) and all(isinstance(key, str) and key.isidentifier() for key in outputs):
        parts = {f"{NAME}.{key}": value for key, value in outputs.items()}
    elif isinstance(outputs, tuple | list):
        parts = {f"{NAME}.{number}": value for number, value in enumerate(outputs)}
    else:
        raise EstimatorError(f"The trunk gave a {type(outputs).__name__}. {_RULE}")
    if not parts:
        raise EstimatorError(f"The trunk gave an empty {type(outputs).__name__}. {_RULE}")
    for name, value in parts.items():
        if not isinstance(value, torch.Tensor):
            raise EstimatorError(f"The trunk gave a {type(value).__name__} as {name!r}. {_RULE}")
        if value.ndim == 0 or len(value) != rows:
            raise EstimatorError(f"The trunk gave {shape_of(value)} as {name!r} for {rows} rows. {_RULE}")
        if value.layout != torch.strided or (
            _dtype(value) not in TENSOR_DTYPES and _dtype(value) not in _AS_NUMPY
        ):
            raise EstimatorError(
                f"The trunk gave {shape_of(value)} of layout {value.layout} as {name!r}, which cannot be kept. Give "
                "dense numbers: x.to_dense(), torch.view_as_real(x)."
            )
    # What a trunk computes in inference mode, of its own accord, could not be trained on.
    return {name: value.clone() if value.is_inference() else value for name, value in parts.items()}


def _check_numbers(name: str, value: torch.Tensor, first: int) -> None:
    if value.is_floating_point() and value.isnan().any():
        row = first + int(value.reshape(len(value), -1).isnan().any(1).nonzero()[0])
        raise EstimatorError(
            f"The trunk gave NaN as {name!r} for row {row}, on which nothing can be trained. Look for missing values "
            "among its inputs and, with half precision, for numbers that are too large; or end its forward with "
            "torch.nan_to_num."
        )


def _check_names(binding: Binding) -> None:
    for name in [*binding.features, *binding.besides]:
        if _is_output(name):
            raise EstimatorError(
                f"The column {name!r} has the name of the trunk's output in a batch, {NAME!r}. Give it another name."
            )


def _is_output(name: str) -> bool:
    return name == NAME or name.startswith(f"{NAME}.")


def _listed(given: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> str:
    return ", ".join(
        f"{name} {str(dtype).removeprefix('torch.')} (rows{''.join(f', {size}' for size in shape)})"
        for name, (dtype, shape) in given.items()
    )


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _to_numpy(value: torch.Tensor) -> np.ndarray[Any, Any]:
    value = value.cpu().contiguous()
    return value.view(_AS_NUMPY[_dtype(value)]).numpy() if _dtype(value) in _AS_NUMPY else value.numpy()
