"""Objects on top of stores: digests, tensors, states, numbered logs, leases."""

from hopyard.objects.digests import Hasher, derive_seed, digest, digest_json
from hopyard.objects.lease import Lease
from hopyard.objects.numbered import NumberedLog
from hopyard.objects.states import StateRef, load_part, load_state, save_state, state_digest
from hopyard.objects.tensors import Tensor
from hopyard.objects.tree import Tree, flatten, unflatten

__all__ = [
    "Hasher",
    "Lease",
    "NumberedLog",
    "StateRef",
    "Tensor",
    "Tree",
    "derive_seed",
    "digest",
    "digest_json",
    "flatten",
    "load_part",
    "load_state",
    "save_state",
    "state_digest",
    "unflatten",
]
