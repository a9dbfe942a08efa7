"""Recipe of a search, so that it can be made again elsewhere: its class and arguments, with the user's code inside.

Code of installed packages is named, as everywhere; the user's own modules travel as they were, so that what changes in
the working tree afterwards changes nothing. Large tensors that this code holds, such as the weights of a base, stay out
of the pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from hopyard.backend.base import Backend
from hopyard.backend.remote import RemoteBackend
from hopyard.errors import CorruptError, EstimatorError, FormatError
from hopyard.objects import Tensor
from hopyard.objects.identity.usercode import user_code_by_value
from hopyard.objects.pickles import UNPICKLABLE, dumps, loads
from hopyard.training import Program, pickled
from hopyard.tune.arguments import Arguments

_HEADER = b"hopyard search 1\n"
_WITH_TENSORS = b"hopyard search 2\n"


class PickledSearch(NamedTuple):
    """A search's class and arguments.

    Attributes:
        data: the pickle, behind a line that says of which version it is.
        tensors: large tensors that it names, by digest.
    """

    data: bytes
    tensors: dict[str, Tensor]


def pickle_search(search: type, arguments: Arguments, own: Mapping[str, Any]) -> PickledSearch:
    """Pickle a search's class and arguments, but for those of where it runs and its data.

    Args:
        search: the class. One of ``hopyard.tune`` is named, another is the user's code.
        own: the arguments that this class has beside those of all searches.

    Raises:
        EstimatorError: the estimator function reaches what cannot be pickled.
    """
    is_ours = search.__module__.startswith("hopyard.")
    fields = {
        "search": search.__name__ if is_ours else search,
        "arguments": {**arguments.committed, **own},
    }
    tensors: dict[str, Tensor] = {}
    try:
        with user_code_by_value():
            data = dumps(fields, tensors=tensors)
    except UNPICKLABLE as error:
        raise EstimatorError(
            f"The estimator function cannot be committed with all its code ({error}). With stock=, the modules of "
            "yours that it uses are pickled as they are: make locks, threads, open files and connections inside "
            "functions, or leave stock= out."
        ) from error
    for digest, tensor in tensors.items():  # training may write to the user's memory
        tensors[digest] = replace(tensor, data=tensor.data.copy())
        tensors[digest].know(digest)
    return PickledSearch((_WITH_TENSORS if tensors else _HEADER) + data, tensors)


def load_search(data: bytes, tensors: Mapping[str, Tensor], where: str) -> tuple[str | type, dict[str, Any]]:
    """The name in ``hopyard.tune`` of its class, or the class; and the arguments. This runs code that is in ``data``.

    Args:
        tensors: those that were apart.

    Raises:
        FormatError: another version wrote it; CorruptError: it cannot be read.
    """
    if not data.startswith((_HEADER, _WITH_TENSORS)):
        raise FormatError(
            f"{where} starts with {data[:20]!r}; this version of Hopyard reads {_HEADER!r} and {_WITH_TENSORS!r} only. "
            "Install the version that committed it."
        )
    try:
        fields = loads(memoryview(data)[len(_HEADER) :], tensors)
        return fields["search"], fields["arguments"]
    except (ModuleNotFoundError, AttributeError) as error:
        raise CorruptError(
            f"{where} needs what is not installed here: {error}. Install the packages that it was committed with."
        ) from error


def code_along(backend: Backend, program: Program) -> AbstractContextManager[None]:
    """Context in which the user's modules are pickled as they are, if workers run where these modules are not:
    not if they cannot be pickled, since they may be there all the same."""
    if not isinstance(backend, RemoteBackend):
        return nullcontext()
    try:
        with user_code_by_value():
            pickled(program)
    except EstimatorError:
        return nullcontext()
    return user_code_by_value()
