"""What users' functions reach travels with them."""

from __future__ import annotations

import pickle
import sys

import cloudpickle
import numpy as np
import pytest
import torch

from hopyard.objects.pickles import dumps


class Two(torch.nn.Module):
    """``classes``, ``ops`` and ``backends`` are also the names of what is no plain module in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.ops = torch.nn.Linear(2, 1), [torch.backends.cudnn.is_available()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(x)


def test_modules_of_classes_of_their_own_travel_by_name() -> None:
    assert pickle.loads(dumps(torch.backends)) is torch.backends
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(TypeError, match="cannot pickle"):
            cloudpickle.dumps(Two)
        copy = pickle.loads(dumps(Two))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert copy()(torch.zeros(3, 2)).shape == (3, 1)


def test_buffers_go_to_the_callback() -> None:
    array, kept = np.arange(1000), []
    data = dumps({"a": array, "f": lambda: 3}, kept.append)
    assert len(data) < array.nbytes
    back = pickle.loads(data, buffers=kept)
    assert np.array_equal(back["a"], array)
    assert back["f"]() == 3
