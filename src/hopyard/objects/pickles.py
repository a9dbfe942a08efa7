"""Pickles of users' functions, as cloudpickle makes them, with one thing that it cannot do.

cloudpickle takes along every loaded module that a function may mean by ``torch.backends`` or, in a class,
by ``self.classes``. Some of these (``torch.backends``, ``torch.classes``, ``torch.ops``) are objects of
classes of their own, which it does not know for modules; they travel by name, like others.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cloudpickle

UNPICKLABLE = (TypeError, pickle.PicklingError, NotImplementedError, AttributeError, RecursionError)
"""What :func:`dumps` raises for values that cannot be pickled."""


def dumps(value: Any, buffer_callback: Callable[[Any], Any] | None = None) -> bytes:
    """``value`` pickled with protocol 5; see ``pickle.Pickler`` for ``buffer_callback``."""
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffer_callback).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            name = obj.__name__
            if sys.modules.get(name) is obj:
                return importlib.import_module, (name,)
        return super().reducer_override(obj)
