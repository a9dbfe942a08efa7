"""Public names for fine-tuning models of Hugging Face: steps for :class:`hopyard.torch.TorchEstimator`.

transformers and PEFT themselves are imported where models are made.
"""

from __future__ import annotations

from hopyard.training.transformers.requirements import unmet

if (_problem := unmet()) is not None:
    raise _problem

from hopyard.training.transformers.preference import dpo, dpo_reference
from hopyard.training.transformers.steps import causal_lm, sequence_classification, token_classification

__all__ = ["causal_lm", "dpo", "dpo_reference", "sequence_classification", "token_classification"]
