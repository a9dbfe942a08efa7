"""No two trials may train the same tensors.

An estimator function that returns a model made outside of it would hand every trial, and every
rebuild of a trial, what the others have trained. Frozen parameters may be shared.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch

from hopyard.errors import EstimatorError

_claimed: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


def claim(module: torch.nn.Module) -> None:
    """Note that the module's trainable parameters and buffers belong to a replica, as long as they live.

    Raises:
        EstimatorError: one of them belongs, or belonged, to another.
    """
    named: list[tuple[str, torch.Tensor]] = [
        (name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad
    ]
    named += module.named_buffers()
    for name, tensor in named:
        if _claimed.get(id(tensor)) is tensor:
            raise EstimatorError(
                f"The estimator function returned a model whose {name!r} an earlier call returned too, so trials would "
                "train each other's weights; make the model inside the function, or use copy.deepcopy(model) there."
            )
    _claimed.update((id(tensor), tensor) for _, tensor in named)
