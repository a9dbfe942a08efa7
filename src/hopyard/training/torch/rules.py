"""How an operation is done for all members of a pack at once, on tensors with a slot for each of them.

A rule says only how that may be done: whether it has the bits of the members' own operations is for others to compare.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from hopyard.training.torch.stack import placed

_ATEN: Any = torch.ops.aten


class _NoRuleError(Exception):
    """An operation has no form for all members at once."""


class Handle:
    """A tensor while a plan is made: its values then, and its name in the plan.

    Attributes:
        stacked: whether its first dimension is that of the members.
        moves: whether it is of a batch, and so in another place in lines of the cache each time.
    """

    __slots__ = ("moves", "node", "stacked", "value")

    def __init__(self, node: Any, value: Any, stacked: bool = False, moves: bool = False) -> None:
        self.node: Any = node
        self.value: Any = value
        self.stacked: bool = stacked
        self.moves: bool = moves

    @property
    def rank(self) -> int:
        """Number of dimensions of a member's tensor."""
        rank: int = self.value.dim() - self.stacked
        return rank

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a member's tensor."""
        return tuple(self.value.shape[self.stacked :])


class Differing:
    """An option that has another value for each member."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values: list[Any] = list(values)


Emit: TypeAlias = Callable[..., Any]
"""``emit(function, *arguments, **keywords)``: call a function, and put the call into the plan. Gives a handle."""
JointForm: TypeAlias = Callable[[Emit, "JointCall"], list[Any]]
"""Does a call for all members. Gives handles of its results, with None for what is no tensor.

Raises:
    _NoRuleError: it cannot.
"""


class JointCall:
    """An operation of all members, with handles for tensors.

    Attributes:
        options: arguments by their names, with defaults.
        count: number of members.
        likes: the results of each member, from its own tensors unless they are given; None for what is no tensor.
    """

    def __init__(
        self,
        function: Any,
        arguments: Sequence[Any],
        keywords: dict[str, Any],
        count: int,
        likes: list[list[Any]] | None = None,
    ) -> None:
        self.function = function
        self.count = count
        self.options: dict[str, Any] = {}
        for number, each in enumerate(function._schema.arguments):
            given = (
                arguments[number] if number < len(arguments) else keywords.get(each.name, each.default_value)
            )
            self.options[each.name] = given
        self._by_keyword = {each.name for each in function._schema.arguments if each.kwarg_only}
        self._passed = set(keywords)
        self.likes: list[list[Any]] = likes or [self._of_member(member) for member in range(count)]

    @property
    def name(self) -> str:
        """Name of the operation, without its overload."""
        name: str = self.function._schema.name.removeprefix("aten::")
        return name

    @property
    def like(self) -> list[Any]:
        """The results of one member."""
        return self.likes[0]

    def redrawn(self, seed: int, place: int = 0) -> JointCall:
        """The same with random numbers in all floating tensors.

        Args:
            place: bytes by which tensors of the batch begin behind a multiple of 64.
        """
        generator = torch.Generator().manual_seed(seed)

        def other(handle: Handle) -> Handle:
            if not handle.value.is_floating_point():
                return handle
            value = torch.empty_like(handle.value).normal_(generator=generator)
            if handle.moves:
                value = placed(value, place - place % value.itemsize)
            return Handle(handle.node, value, handle.stacked, handle.moves)

        given, keywords = self.changed(other)
        return JointCall(self.function, given, keywords, self.count)

    def _of_member(self, member: int) -> list[Any]:
        computes = self.name not in VIEWS

        def own(handle: Handle) -> Any:
            if not handle.stacked:
                return handle.value
            value = handle.value[member]
            return own_memory(value) if computes else value

        given, keywords = self.changed(own)
        given = [each.values[member] if isinstance(each, Differing) else each for each in given]
        keywords = {
            name: each.values[member] if isinstance(each, Differing) else each
            for name, each in keywords.items()
        }
        found = self.function(*given, **keywords)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def handles(self) -> Iterator[Handle]:
        """The tensors that it takes, also those in lists."""
        for value in self.options.values():
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(each, Handle):
                    yield each

    def changed(self, change: Callable[[Handle], Any], **options: Any) -> tuple[list[Any], dict[str, Any]]:
        """Arguments and keywords with other tensors and other options."""
        given: list[Any] = []
        keywords: dict[str, Any] = {}
        for name, value in {**self.options, **options}.items():
            if isinstance(value, (list, tuple)):
                value = [change(each) if isinstance(each, Handle) else each for each in value]
            elif isinstance(value, Handle):
                value = change(value)
            if name not in self._by_keyword:
                given.append(value)
            elif name in self._passed or name in options:
                keywords[name] = value
        return given, keywords

    def done(
        self, emit: Emit, arguments: Sequence[Any], keywords: dict[str, Any], function: Any = None
    ) -> list[Any]:
        """Handles of the results of a call."""
        for value in [*arguments, *keywords.values()]:
            if isinstance(value, Differing):
                raise _NoRuleError
        found = emit(function or self.function, *arguments, **keywords)
        if not isinstance(found.value, (list, tuple)):
            return [found]
        return [
            emit(operator.getitem, found, number) if isinstance(each, torch.Tensor) else None
            for number, each in enumerate(found.value)
        ]


def own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a member alone would have it, not behind others; but where it has gaps."""
    if tensor.data_ptr() % 64 == 0:
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.clone() if tensor.numel() == span else tensor


def rules_for(function: Any) -> Sequence[JointForm]:
    """The forms in which an operation may be done for all members at once, the fastest first."""
    name = function._schema.name.removeprefix("aten::")
    if name in _OF_NAMES:
        return _OF_NAMES[name]
    if torch.Tag.pointwise in function.tags:
        return (_pointwise,)
    return (_by_rows,) if name in _ROWS else ()


def _stacked(handles: Sequence[Any]) -> list[Any]:
    for handle in handles:
        if handle is not None:
            handle.stacked = True
    return list(handles)


def _whole(emit: Emit, handle: Handle, count: int) -> Handle:
    """A tensor with a slot for each member, of the same memory if all have the same tensor."""
    if handle.stacked:
        return handle
    return Handle(*_pair(emit(_ATEN.expand.default, handle, [count, *handle.shape])), stacked=True)


def _pair(handle: Handle) -> tuple[Any, Any]:
    return handle.node, handle.value


def _rows(emit: Emit, handle: Handle, count: int) -> Handle:
    """The members' rows, one member's behind another's."""
    if not handle.stacked or handle.rank == 0:
        raise _NoRuleError
    return emit(_ATEN.reshape.default, handle, [count * handle.shape[0], *handle.shape[1:]])  # type: ignore[no-any-return]


def _of_rows(emit: Emit, handle: Any, like: Any, count: int) -> Any:
    if handle is None:
        return None
    if like is None or like.dim() == 0 or handle.value.shape[0] != count * like.shape[0]:
        raise _NoRuleError
    return emit(_ATEN.view.default, handle, [count, *like.shape])


# Numbers, each for itself ---------------------------------------------------------------------


def _pointwise(emit: Emit, call: JointCall) -> list[Any]:
    handles = list(call.handles())
    rank = max(handle.rank for handle in handles)
    dtypes = {handle.value.dtype for handle in handles}
    options = {}
    for argument in call.function._schema.arguments:
        value = call.options[argument.name]
        if isinstance(value, Differing):
            if len(dtypes) > 1 or str(argument.type) != "Tensor" or not next(iter(dtypes)).is_floating_point:
                raise _NoRuleError
            numbers = torch.tensor(value.values, dtype=dtypes.pop()).view(call.count, *[1] * rank)
            options[argument.name] = emit(torch.Tensor.detach, numbers)
            options[argument.name].stacked = True

    def of_rank(handle: Handle) -> Handle:
        if not handle.stacked or handle.rank == rank:
            return handle
        shape = [call.count, *[1] * (rank - handle.rank), *handle.shape]
        return Handle(*_pair(emit(_ATEN.view.default, handle, shape)), stacked=True)

    return _stacked(call.done(emit, *call.changed(of_rank, **options)))


# Dimensions -----------------------------------------------------------------------------------


def _shifted(emit: Emit, call: JointCall) -> list[Any]:
    """Operations on dimensions by their numbers, which are others where members have a slot each."""
    rank = next(call.handles()).rank + (call.function in (_ATEN.unsqueeze.default, _ATEN.stack.default))
    options: dict[str, Any] = {}
    for name in ("dim", "dim0", "dim1", "dims"):
        if name not in call.options:
            continue
        given = call.options[name]
        if given is None or given == []:
            if call.function in (_ATEN.argmax.default, _ATEN.argmin.default):
                raise _NoRuleError
            options[name] = list(range(1, rank + 1))
        elif isinstance(given, (list, tuple)):
            options[name] = [_later(each, rank) for each in given]
        else:
            options[name] = _later(given, rank)
    if call.function is _ATEN.permute.default:
        options["dims"] = [0, *options["dims"]]
    for name in ("size", "input_sizes"):
        if name in call.options:
            options[name] = [call.count, *(call.like[0].shape if name == "size" else call.options[name])]
    arguments, keywords = call.changed(lambda handle: _whole(emit, handle, call.count), **options)
    if call.function is _ATEN.expand.default:
        arguments[0] = _pad(emit, arguments[0], call.like[0].dim(), call.count)
    return _stacked(call.done(emit, arguments, keywords))


def _later(dim: Any, rank: int) -> int:
    if not isinstance(dim, int):
        raise _NoRuleError
    return dim + rank + 1 if dim < 0 else dim + 1


def _pad(emit: Emit, handle: Handle, rank: int, count: int) -> Handle:
    if handle.rank == rank:
        return handle
    shape = [count, *[1] * (rank - handle.rank), *handle.shape]
    return Handle(*_pair(emit(_ATEN.view.default, handle, shape)), stacked=True)


def _whole_sum(emit: Emit, call: JointCall) -> list[Any]:
    """Sums and means of all that a member has."""
    arguments, keywords = call.changed(lambda handle: handle)
    (handle,) = call.handles()
    if call.function not in _OF_ALL:
        return _shifted(emit, call)
    dims = list(range(1, handle.rank + 1))
    if not dims:
        raise _NoRuleError
    return _stacked(call.done(emit, [arguments[0], dims], keywords, _OF_ALL[call.function]))


_OF_ALL = {
    _ATEN.sum.default: _ATEN.sum.dim_IntList,
    _ATEN.mean.default: _ATEN.mean.dim,
    _ATEN.all.default: _ATEN.all.dims,
    _ATEN.any.default: _ATEN.any.dims,
}


def _transposed(emit: Emit, call: JointCall) -> list[Any]:
    (handle,) = call.handles()
    if handle.rank != 2:
        raise _NoRuleError
    return _stacked([emit(_ATEN.transpose.int, handle, 1, 2)])


def _same(emit: Emit, call: JointCall) -> list[Any]:
    """Operations for which a slot for each member is one dimension more."""
    return _stacked(call.done(emit, *call.changed(lambda handle: handle)))


# Products -------------------------------------------------------------------------------------


def product_of_rows(emit: Emit, call: JointCall) -> list[Any]:
    """The members' rows times one matrix."""
    first, second = (call.options[name] for name in _FACTORS[call.function])
    if second.stacked or not first.stacked or first.value.flatten(0, 1).data_ptr() != first.value.data_ptr():
        raise _NoRuleError
    bias = call.options["self"]
    if bias is not first and bias.stacked:
        raise _NoRuleError
    arguments, keywords = call.changed(
        lambda handle: _rows(emit, handle, call.count) if handle is first else handle
    )
    return _stacked(
        [_of_rows(emit, each, call.like[0], call.count) for each in call.done(emit, arguments, keywords)]
    )


def _product_of_slots(emit: Emit, call: JointCall) -> list[Any]:
    """A product for each member, as one call."""
    first, second = (_whole(emit, call.options[name], call.count) for name in _FACTORS[call.function])
    if call.function is _ATEN.mm.default:
        return _stacked([emit(_ATEN.bmm.default, first, second)])
    if call.options["beta"] != 1 or call.options["alpha"] != 1:
        raise _NoRuleError
    bias = call.options["self"]
    if bias.stacked:
        bias = emit(_ATEN.view.default, bias, [call.count, *[1] * (2 - bias.rank), *bias.shape])
    return _stacked([emit(_ATEN.baddbmm.default, bias, first, second)])


_FACTORS = {_ATEN.mm.default: ("self", "mat2"), _ATEN.addmm.default: ("mat1", "mat2")}


# Rows -----------------------------------------------------------------------------------------


def _by_rows(emit: Emit, call: JointCall) -> list[Any]:
    """Operations that take each row by itself: of the rows of all members."""
    names = _ROWS[call.function._schema.name.removeprefix("aten::")]
    batched = [call.options[name] for name in names if call.options.get(name) is not None]
    rows = {handle.shape[0] for handle in batched if handle.rank}
    others = [handle for handle in call.handles() if all(handle is not each for each in batched)]
    if len(rows) != 1 or any(handle.rank == 0 for handle in batched) or any(each.stacked for each in others):
        raise _NoRuleError
    mask = call.options.get("attn_mask")

    def of_all(handle: Handle) -> Handle:
        is_per_row = handle is mask and handle.rank == 4 and handle.shape[0] in rows and handle.shape[0] > 1
        if is_per_row or any(handle is each for each in batched):
            return _rows(emit, _whole(emit, handle, call.count), call.count)
        return handle

    found = call.done(emit, *call.changed(of_all))
    return _stacked(
        [_of_rows(emit, each, like, call.count) for each, like in zip(found, call.like, strict=True)]
    )


_ROWS = {
    "_scaled_dot_product_flash_attention_for_cpu": ("query", "key", "value"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        *("grad_out", "query", "key", "value", "out", "logsumexp"),
    ),
    "native_layer_norm": ("input",),
    "native_layer_norm_backward": ("grad_out", "input", "mean", "rstd"),
    "_fused_rms_norm": ("input",),
    "_fused_rms_norm_backward": ("grad_out", "input", "rstd"),
    "embedding": ("indices",),
    "bmm": ("self", "mat2"),
    "baddbmm": ("self", "batch1", "batch2"),
    "convolution": ("input",),
    "convolution_backward": ("grad_output", "input"),
    "max_pool2d_with_indices": ("self",),
    "max_pool2d_with_indices_backward": ("grad_output", "self", "indices"),
    "avg_pool2d": ("self",),
    "avg_pool2d_backward": ("grad_output", "self"),
    "_adaptive_avg_pool2d": ("self",),
    "_adaptive_avg_pool2d_backward": ("grad_output", "self"),
    "_native_batch_norm_legit_no_training": ("input",),
}
"""Which tensors of such operations have a row for each of the batch; kernels do not all check the others' sizes."""

_OTHER_SHAPES = (
    *("view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "unsqueeze", "squeeze"),
    *("slice", "select", "split", "split_with_sizes", "unbind"),
)
VIEWS = frozenset([*_OTHER_SHAPES, "alias", "detach", "t", "as_strided"])
"""Operations that compute nothing."""

_SHIFTED = (
    *_OTHER_SHAPES,
    *(
        "slice_backward",
        "select_backward",
        "cat",
        "stack",
        "flip",
        "gather",
        "amax",
        "amin",
        "var",
        "logsumexp",
    ),
    *("cumsum", "_softmax", "_log_softmax", "argmax", "argmin", "index_select"),
    *("_softmax_backward_data", "_log_softmax_backward_data", "glu", "glu_backward"),
)
_OF_NAMES: dict[str, Sequence[JointForm]] = {
    **dict.fromkeys(_SHIFTED, (_shifted,)),
    **dict.fromkeys(("sum", "mean", "all", "any"), (_whole_sum,)),
    **dict.fromkeys(("mm", "addmm"), (product_of_rows, _product_of_slots)),
    **dict.fromkeys(("clone", "_to_copy", "alias", "detach", "constant_pad_nd"), (_same,)),
    "t": (_transposed,),
}
