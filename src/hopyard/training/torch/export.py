"""A trained model as an ONNX file: one file, any number of rows."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hopyard.errors import EstimatorError
from hopyard.missing import missing_extra
from hopyard.storage import files
from hopyard.storage.oserrors import write_errors


def export_onnx(
    path: Path,
    module: torch.nn.Module,
    arguments: list[Any],
    keywords: dict[str, Any],
    names: list[str],
    predict: Callable[[Any], Any] | None = None,
) -> None:
    """Write ``module`` to ``path``, which appears when it is whole.

    Args:
        arguments, keywords: inputs of two rows each; the number of rows becomes free.
        names: of all inputs, in their order.
        predict: makes predictions of the module's outputs.

    Raises:
        MissingExtraError: onnx or onnxscript is not installed.
        EstimatorError: the model does what ONNX cannot express.
    """
    module.eval()
    if keywords:
        module, arguments = _ByPosition(module, list(keywords)), [*keywords.values()]
    if predict is not None:
        module = _Predicting(module, predict)
    try:
        with _silence():
            program = torch.onnx.export(
                module,
                tuple(arguments),
                dynamo=True,
                dynamic_shapes=_shapes(module, arguments),
                input_names=names,
                verbose=False,
            )
    except ImportError as error:
        raise missing_extra(error.name or "onnxscript", "onnx", "Exporting a model as ONNX") from error
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise EstimatorError(
            f"The model cannot be exported as ONNX: {reason[-1] if len(reason) < 3 else reason[0]} Its forward must be "
            "made of tensor operations that work for any number of rows. Take model.torch() to export it otherwise."
        ) from error
    assert program is not None
    _save(program, path)


class _ByPosition(torch.nn.Module):
    """A module of keyword arguments, as one of positional ones: PyTorch's exporter does not take a ``**`` parameter."""

    def __init__(self, module: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module = module
        self._names = names

    def forward(self, *arguments: Any) -> Any:
        return self.module(**dict(zip(self._names, arguments, strict=True)))


class _Predicting(torch.nn.Module):
    """A module followed by ``predict=``, which is called with its outputs."""

    def __init__(self, module: torch.nn.Module, predict: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module = module
        self._predict = predict

    def forward(self, *arguments: Any) -> Any:
        return self._predict(self.module(*arguments))


def _shapes(module: torch.nn.Module, arguments: list[Any]) -> dict[str, Any]:
    """Free dimensions of each parameter of the module's forward: the rows."""
    free = {0: torch.export.Dim("rows")}
    signature = inspect.signature(module.forward)
    shapes: dict[str, Any] = {}
    for name, value in signature.bind(*arguments).arguments.items():
        kind = signature.parameters[name].kind
        shapes[name] = tuple(free for _ in value) if kind is inspect.Parameter.VAR_POSITIONAL else free
    return shapes


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporter's words about itself: deprecations, and packages that it could know more with."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _save(program: Any, path: Path) -> None:
    with write_errors(path):
        handle, name = tempfile.mkstemp(prefix=".hopyard-", suffix=".onnx", dir=path.absolute().parent)
        os.close(handle)
        try:
            program.save(name, external_data=False)
            files.give_usual_rights(Path(name))
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
