"""Recipe of a search, so that it can be made again elsewhere: its class and arguments, with the user's code inside.

Code of installed packages is named, as everywhere; the user's own modules travel as they were, so that what changes in
the working tree afterwards changes nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hopyard.backend.base import Backend
from hopyard.backend.remote import RemoteBackend
from hopyard.errors import CorruptError, EstimatorError, FormatError
from hopyard.objects.identity.usercode import user_code_by_value
from hopyard.objects.pickles import UNPICKLABLE, dumps
from hopyard.training import Program, pickled
from hopyard.tune.arguments import Arguments

_HEADER = b"hopyard search 1\n"


def pickle_search(search: type, arguments: Arguments, own: Mapping[str, Any]) -> bytes:
    """Pickle a search's class and arguments, but for those of where it runs and its data.

    Args:
        search: the class. One of ``hopyard.tune`` is named, another is the user's code.
        own: the arguments that this class has beside those of all searches.

    Raises:
        EstimatorError: the estimator function reaches what cannot be pickled.
    """
    is_ours = search.__module__.startswith("hopyard.")
    try:
        with user_code_by_value():
            return _HEADER + dumps(
                {
                    "search": search.__name__ if is_ours else search,
                    "arguments": {**arguments.committed, **own},
                }
            )
    except UNPICKLABLE as error:
        raise EstimatorError(
            f"The estimator function cannot be committed with all its code ({error}). With stock=, the modules of "
            "yours that it uses are pickled as they are: make locks, threads, open files and connections inside "
            "functions, or leave stock= out."
        ) from error


def load_search(data: bytes, where: str) -> tuple[str | type, dict[str, Any]]:
    """The name in ``hopyard.tune`` of its class, or the class; and the arguments. This runs code that is in ``data``.

    Raises:
        FormatError: another version wrote it; CorruptError: it cannot be read.
    """
    if not data.startswith(_HEADER):
        raise FormatError(
            f"{where} starts with {data[:20]!r}; this version of Hopyard reads {_HEADER!r} only. Install the version "
            "that committed it."
        )
    try:
        fields = pickle.loads(memoryview(data)[len(_HEADER) :])
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
