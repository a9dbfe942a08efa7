"""Weights of a search's model, as other places than its run take them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

from hopyard.objects import StateRef, load_state
from hopyard.storage import Store
from hopyard.training import has_trunk


class HasWeights(Protocol):
    """A model of a search, whose weights are stored."""

    def weights(self) -> tuple[Store, StateRef]:
        """Store and reference of the weights."""

    def torch(self) -> Any:
        """The trained module."""


def weights_of(model: HasWeights) -> OrderedDict[str, Any]:
    """A model's weights as the state dict of its module."""
    from hopyard.training.torch.state import from_tree  # takes long to import

    return OrderedDict(from_tree(weights_tree(model)))


def weights_tree(model: HasWeights) -> Any:
    """A model's weights as tensors without a framework; with its trunk's weights, if it has one."""
    tree = load_state(*model.weights(), verify=True)
    if has_trunk(tree):
        from hopyard.training.torch.state import to_tree

        tree = to_tree(dict(model.torch().state_dict()), "model")
    return tree
