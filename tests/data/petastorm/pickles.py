"""Pickled schemas, spelled by hand: of names that need not exist, and of whatever does harm."""

import io
import pickle

import numpy as np


class Stand:
    """Pickled as whatever it is told."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def made(module, name):
    """A function that is pickled as a name of a module that need not exist."""

    def function():
        """Never called."""

    function.__module__, function.__qualname__, function.__name__ = module, name, name
    return function


class Pickler(pickle._Pickler):
    """Pickles the functions of ``made`` without looking for them."""

    def save_global(self, obj, name=None):
        self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__qualname__}\n".encode())
        self.memoize(obj)

    dispatch = {**pickle._Pickler.dispatch, type(made): save_global, type: save_global}  # noqa: RUF012


def unischema(*fields):
    """A pickled Unischema of these fields, spelled by hand."""
    memory = io.BytesIO()
    items = iter([(str(number), field) for number, field in enumerate(fields)])
    ordered = Stand(made("collections", "OrderedDict"), (), None, None, items)
    Pickler(memory, 2).dump(
        Stand(made("petastorm.unischema", "Unischema"), (), {"_name": "x", "_fields": ordered})
    )
    return memory.getvalue()


def field(name="a", dtype=np.int32, shape=(), codec=None, nullable=False):
    return Stand(made("petastorm.unischema", "UnischemaField"), (name, dtype, shape, codec, nullable))
