"""Tapes: all operations on tensors that a computation made, as they were given to PyTorch's kernels.

A tape holds what eager PyTorch did, gradients included, below autograd: each operation with its options, and where its
tensors came from. Done again on tensors of other values it gives the bits that the computation would give, unless
that looks at values: numbers and truths that it read are on the tape, too, for whoever does it again to compare.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _NotRecordedError(Exception):
    """A computation cannot be done again from a tape; says why."""


class _TouchedError(_NotRecordedError):
    """Besides, to record it has changed what the computation's owner keeps."""


class Ref(NamedTuple):
    """A tensor on a tape, by its number."""

    number: int


class Recorded(NamedTuple):
    """One operation.

    Attributes:
        arguments: with a ``Ref`` for each tensor, also within lists.
        results: by their places in what the operation gives; None: no tensor, or one that was there before.
        read: the number or truth that the operation gave, in a tuple; None: it gave tensors, or nothing.
        written: the tensors that it changed in place.
    """

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: tuple[int | None, ...]
    read: tuple[Any] | None
    written: frozenset[int]

    def refs(self) -> Iterator[Ref]:
        """The tensors that it takes."""
        yield from refs_in([self.arguments, self.keywords])


class Tape(NamedTuple):
    """A recording.

    Attributes:
        given: names of the tensors from outside, by their numbers.
        constants: tensors of no name, which the computation had made, or keeps, by their numbers.
        result: what the computation returned, with a ``Ref`` for each tensor.
        storages: for each tensor a number of the memory that it is in.
    """

    operations: list[Recorded]
    given: dict[int, str]
    constants: dict[int, torch.Tensor]
    result: Any
    storages: dict[int, int]

    def reads(self) -> tuple[Any, ...]:
        """The numbers and truths that the computation read, in its order."""
        return tuple(each.read for each in self.operations if each.read is not None)

    def digest(self) -> str:
        """A text that is equal for tapes on which the same is done with tensors of the same names."""
        numbers: dict[int, int] = {}
        memory = [numbers.setdefault(storage, len(numbers)) for storage in self.storages.values()]
        constants = [(number, str(each.dtype), each.tolist()) for number, each in self.constants.items()]
        text = repr((self.operations, self.given, constants, self.result, memory))
        return hashlib.blake2b(text.encode()).hexdigest()


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value``, also within tuples, lists and dicts, as ``change`` makes it of each."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [mapped(item, change) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return change(value)


def refs_in(value: Any) -> Iterator[Ref]:
    """The references in ``value``, also within tuples, lists and dicts."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from refs_in(item)
    elif isinstance(value, dict):
        yield from refs_in(list(value.values()))


def record(compute: Callable[[], Any], named: Mapping[str, torch.Tensor]) -> Tape:
    """Do a computation, and record it.

    Args:
        named: tensors from outside, by names; of equal ones the first name counts.

    Raises:
        _NotRecordedError: it does what cannot be recorded.
    """
    recorder = _Recorder(named)
    with PATCHING, _readers_refused(), recorder:
        result = compute()
    return recorder.tape(result)


PATCHING = threading.RLock()
"""Held while something of PyTorch's or Python's is replaced: what replaced it has to be put back in order."""
_READERS: tuple[tuple[Any, str], ...] = (
    *((torch.Tensor, name) for name in ("numpy", "tolist", "__dlpack__", "tensor_split")),
    (torch, "tensor_split"),
)
"""What takes numbers out of tensors past PyTorch's operations."""
_PACKED = ("aten::_pack_padded_sequence", "aten::_pad_packed_sequence")
"""Operations for which lengths are numbers, which no tape can tell from constants."""


@contextmanager
def _readers_refused() -> Iterator[None]:
    """Refuse, in this thread, what gives numbers of tensors to Python without a trace on the tape."""
    thread = threading.get_ident()

    def refusing(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(read)
        def reader(tensor: torch.Tensor, *given: Any, **options: Any) -> Any:
            if threading.get_ident() == thread:
                raise _NotRecordedError(f"it reads a tensor by {name}(), past PyTorch's operations")
            return read(tensor, *given, **options)

        return reader

    own = [(owner, name, vars(owner).get(name)) for owner, name in _READERS]
    for owner, name in _READERS:
        setattr(owner, name, refusing(name, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, function in own:
            if function is None:
                delattr(owner, name)
            else:
                setattr(owner, name, function)


_Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""The memory of a tensor, and how it is read: autograd keeps tensors under other objects."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names: dict[_Place, str] = {}
        for name, tensor in named.items():
            self._names.setdefault(_place(tensor), name)
        self._named_memory = {place[0] for place in self._names}
        self._made: set[int] = set()
        self._numbers: dict[_Place, int] = {}
        self._kept: list[torch.Tensor] = list(named.values())  # so that no memory is given out twice
        self._operations: list[Recorded] = []
        self._given: dict[int, str] = {}
        self._constants: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        _check_size(func, args)
        if func._schema.name in _PACKED:
            raise _NotRecordedError("it packs sequences, whose lengths no tape can tell from constants")
        arguments = mapped(tuple(args), self._ref), mapped(keywords, self._ref)
        written = [self._ref(tensor).number for tensor in _written(func, args, keywords)]
        found = func(*args, **keywords)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        if any(isinstance(each, torch.Tensor) for each in results) or written:
            numbers = tuple(
                self._result(each) if isinstance(each, torch.Tensor) else None for each in results
            )
            if written or any(number is not None for number in numbers):
                self._operations.append(Recorded(func, *arguments, numbers, None, frozenset(written)))
        elif isinstance(found, (bool, int, float)):
            self._operations.append(Recorded(func, *arguments, (), (found,), frozenset()))
        else:
            raise _NotRecordedError(f"it calls {func}, which gives no tensor")
        return found

    def _ref(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        place = _place(value)
        if place in self._numbers:
            return Ref(self._numbers[place])
        number = self._number(value, place)
        if place in self._names:
            self._given[number] = self._names[place]
        elif place[0] in self._made or place[0] in self._named_memory:
            raise _NotRecordedError("it reads memory of a tensor in a way that is not recorded")
        else:
            self._constants[number] = value.detach()
        return Ref(number)

    def _result(self, value: torch.Tensor) -> int | None:
        """A number for what an operation gave; None: it was there before."""
        place = _place(value)
        if place in self._numbers:
            return None
        if place[0] not in self._named_memory:
            self._made.add(place[0])
        return self._number(value, place)

    def _number(self, value: torch.Tensor, place: _Place) -> int:
        number = self._numbers[place] = len(self._numbers)
        self._kept.append(value)
        return number

    def tape(self, result: Any) -> Tape:
        refs = mapped(result, self._ref)
        storages = {number: place[0] for place, number in self._numbers.items()}
        return Tape(self._operations, self._given, self._constants, refs, storages)


def _place(tensor: torch.Tensor) -> _Place:
    if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise _NotRecordedError(f"it has a tensor of another kind ({type(tensor).__name__}, {tensor.layout})")
    storage: Any = tensor.untyped_storage()
    return storage._cdata, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _written(func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operation changes in place."""
    found: list[torch.Tensor] = []
    for number, name in _writing(func):
        value = args[number] if number < len(args) else keywords.get(name)
        found += [
            each for each in (value if isinstance(value, (list, tuple)) else [value]) if each is not None
        ]
    if func is _BATCH_NORM and args[5]:  # whose schema does not say it
        found += [statistic for statistic in args[3:5] if statistic is not None]
    return found


_BATCH_NORM: Any = torch.ops.aten.native_batch_norm.default


@functools.cache
def _writing(func: Any) -> list[tuple[int, str]]:
    """Arguments that an operation changes in place."""
    return [
        (number, argument.name)
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


@functools.cache
def _has_dynamic_size(func: Any) -> bool:
    return torch.Tag.dynamic_output_shape in func.tags


def _check_size(func: Any, args: Sequence[Any]) -> None:
    """Raise _NotRecordedError if the size of the result depends on values."""
    if not _has_dynamic_size(func):
        return
    indices = args[1] if func in _INDEXING and len(args) > 1 else [None]
    if not all(
        isinstance(each, torch.Tensor) and each.dtype in _INTEGERS for each in indices if each is not None
    ) or (func not in _INDEXING):
        raise _NotRecordedError(f"it calls {func}, whose result has a size that depends on values")


_INTEGERS = (torch.int64, torch.int32)
_INDEXING = (torch.ops.aten.index.Tensor,)
