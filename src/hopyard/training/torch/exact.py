"""Whether what is done for all members of a pack at once has the bits of the members' own operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hopyard.training.torch.rules import VIEWS, Differing, Handle, JointCall, JointForm, _NoRuleError
from hopyard.training.torch.stack import PLACES, draws_of, same_numbers
from hopyard.training.torch.tape import Ref, mapped

LINE = 64
"""Bytes of a line of the processor's cache, by which kernels may choose how they begin."""


def computed(function: Any, *arguments: Any, **keywords: Any) -> Handle:
    """The result of a call, in no program."""
    return Handle(None, function(*mapped(arguments, _value), **mapped(keywords, _value)))


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Handle) else value


def is_exact(rule: JointForm, call: JointCall, is_mutable: bool) -> bool:
    """Whether a rule gives the results of members to the bit; of few numbers, on several draws of them."""
    try:
        found = rule(computed, call)
        if not _agrees(found, call):
            return False
        if call.name in VIEWS:
            return not is_mutable or _is_of_memory(found, call)
        if torch.Tag.pointwise in call.function.tags:
            draws = _draws_of_tails(call)
        else:
            least = min(each.numel() for each in call.like if each is not None) * call.count
            draws = draws_of(max(1, least))
        if any(handle.moves for handle in call.handles()):
            draws = max(draws, 1 + len(PLACES))
        others = (call.redrawn(draw, PLACES[draw % len(PLACES)]) for draw in range(1, draws))
        return all(_agrees(rule(computed, other), other) for other in others)
    except (_NoRuleError, RuntimeError, ValueError, IndexError, TypeError):
        return False


def _draws_of_tails(call: JointCall) -> int:
    """How often operations on single numbers are compared: kernels compute those behind the last whole vector by other
    code, which has other bits for some of 25 to 50 numbers."""
    if call.function.name() in _ROUNDED_ALIKE and call.options.get("alpha", 1) == 1:
        return 1
    tail = min(each.numel() % _VECTORS for each in call.like if each is not None)
    in_parts = torch.get_num_threads() > 1 and max(each.numel() for each in call.like) * call.count >= _PART
    if tail == 0 and not in_parts:
        return 1
    return 1 + -(-_TAILS_COMPARED // (call.count * (tail or 1)))


_VECTORS = 64
"""Numbers that kernels compute in whole vectors, whatever these are."""
_PART = 32768
"""Numbers from which on several threads compute parts."""
_TAILS_COMPARED = 1000
_ROUNDED_ALIKE = frozenset(
    f"aten::{name}"
    for name in (
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "mul.Scalar", "div.Tensor", "neg", "abs", "relu", "sqrt"),
        *("threshold_backward", "where.self", "maximum", "minimum", "eq.Tensor", "eq.Scalar", "ne.Scalar"),
        *(
            "gt.Scalar",
            "ge.Scalar",
            "lt.Scalar",
            "le.Scalar",
            "bitwise_not",
            "logical_not",
            "masked_fill.Scalar",
        ),
    )
)
"""Operations whose results are rounded by the standard of floating-point numbers, or not at all."""


def members_of(call: JointCall, parts: Mapping[int, Handle], start: int, stop: int) -> JointCall:
    """The call of some of its members, with ``parts`` in the places of tensors with a slot for each."""
    arguments, keywords = call.changed(lambda handle: parts.get(id(handle), handle))
    return JointCall(call.function, arguments, keywords, stop - start, call.likes[start:stop])


def _agrees(found: Sequence[Any], call: JointCall) -> bool:
    for place, handle in enumerate(found):
        if handle is None:
            continue
        if len(handle.value) != call.count:
            return False
        for own, like in zip(handle.value, call.likes, strict=True):
            if form_of(own) != form_of(like[place]) or not same_numbers(own, like[place]):
                return False
    return True


def bytes_of(call: JointCall) -> int:
    """Memory for the largest tensor that members have each, all of them together."""
    own = [handle.value[0] for handle in call.handles() if handle.stacked]
    largest: int = max(each.numel() * each.itemsize for each in [*own, *call.like] if each is not None)
    return largest * call.count


def _is_of_memory(found: Sequence[Any], call: JointCall) -> bool:
    memory = {handle.value.untyped_storage().data_ptr() for handle in call.handles()}
    return all(handle is None or handle.value.untyped_storage().data_ptr() in memory for handle in found)


def form_of(tensor: torch.Tensor) -> Any:
    """Shape, strides where they count, and dtype."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
    return tensor.shape, strides, tensor.dtype


def form_of_call(value: Any, handles: Mapping[int, Handle]) -> tuple[Any, ...]:
    """All of arguments that kernels choose by: their options, and forms and places of tensors."""
    met: dict[int, int] = {}
    found: list[Any] = []

    def add(each: Any) -> None:
        if isinstance(each, Ref):
            handle = handles[each.number]
            tensor = handle.value
            place = met.setdefault(each.number, len(met))
            found.append(
                (
                    place,
                    handle.stacked,
                    tensor.shape,
                    tensor.stride(),
                    tensor.dtype,
                    tensor.data_ptr() % LINE,
                )
            )
        elif isinstance(each, (tuple, list)):
            found.append((type(each), len(each)))
            for item in each:
                add(item)
        elif isinstance(each, dict):
            found.append(tuple(each))
            for item in each.values():
                add(item)
        else:
            found.append(repr(each.values) if isinstance(each, Differing) else (type(each), repr(each)))

    add(value)
    return tuple(found)


def forms_of(tensors: Sequence[Any]) -> Any:
    return [None if each is None else form_of(each) for each in tensors]
