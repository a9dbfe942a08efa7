"""Batches on their way to a device: page-locked memory, and copies that overlap with the work on the batch before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from hopyard.data.outputs.torch_output import as_tensors
from hopyard.data.ragged import Ragged
from hopyard.data.reading.buffers import AlignedBuffer, Buffers
from hopyard.data.reading.views import Batch


class HostBuffers(Buffers):
    """Every buffer is a new tensor of PyTorch's caching allocator for host memory, which recycles them.

    A copy to a device with ``non_blocking=True`` reads host memory after the call has returned, and
    maybe after the batch is gone. PyTorch's allocator notes which streams read a block and gives it
    out again only when they are done. A pool that goes by reference counts, as ``Buffers`` does,
    cannot know that and would overwrite a batch while it is being copied.

    Args:
        pinned: page-locked; False where there is no device.
        arrow_strings: as of ``Buffers``.
    """

    def __init__(self, pinned: bool, arrow_strings: bool = False) -> None:
        super().__init__(arrow_strings)
        self._pinned = pinned

    def buffer(self, rows: int, width: int) -> AlignedBuffer:
        # The allocator's blocks begin at multiples of 64 bytes.
        owner = torch.empty(rows * width, dtype=torch.uint8, pin_memory=self._pinned).numpy()
        return AlignedBuffer(owner, 0, owner.reshape(rows, width))


def as_host_tensors(batch: Batch, pinned: bool = True) -> Batch:
    """Arrays in ``HostBuffers`` as tensors of the allocator's own storage, by which it knows them again.

    ``torch.from_numpy`` would make a storage that the allocator does not know, and copies from it would
    not be noted. What is elsewhere (values of ragged columns, say) is copied to page-locked memory.
    """
    return {name: _as_host_tensor(values, pinned) for name, values in batch.items()}


def _as_host_tensor(values: Any, pinned: bool) -> Any:
    owner = getattr(values, "base", None)
    host = getattr(owner, "base", None)
    if not isinstance(owner, np.ndarray) or not isinstance(host, torch.Tensor):
        elsewhere = as_tensors({"": values})[""]
        return _each_tensor(elsewhere, torch.Tensor.pin_memory) if pinned else elsewhere
    itemsize = values.itemsize
    start = (values.ctypes.data - owner.ctypes.data) // itemsize
    whole = host[: host.numel() // itemsize * itemsize].view(_dtype(values.dtype))
    return whole.as_strided(values.shape, [step // itemsize for step in values.strides], start)


def _dtype(dtype: np.dtype[Any]) -> torch.dtype:
    if dtype not in _dtypes:
        _dtypes[dtype] = torch.from_numpy(np.empty(0, dtype)).dtype
    return _dtypes[dtype]


_dtypes: dict[np.dtype[Any], torch.dtype] = {}


def to_device(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """Every tensor of a batch (dicts, lists, tuples and ``Ragged`` of tensors) on the device; the rest stays."""
    return _each_tensor(batch, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def _each_tensor(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Ragged):
        return Ragged(_each_tensor(batch.values, change), _each_tensor(batch.offsets, change))
    if isinstance(batch, dict):
        return {name: _each_tensor(values, change) for name, values in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_each_tensor(values, change) for values in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_each_tensor(values, change) for values in batch)
    return batch


def ahead_on_cuda(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Batches on a GPU, each copied on a stream of its own while the one before it is in use.

    Batches should be in page-locked memory; from other memory a copy waits.
    """
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ahead: tuple[Any, torch.cuda.Event] | None = None
    for batch in batches:
        with torch.cuda.stream(copying):
            copied = to_device(batch, device, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(copying)
        del batch  # its memory may be used again once the copy is done, which the allocator knows
        if ahead is not None:
            yield _handed_over(*ahead, device)
        ahead = copied, done
    if ahead is not None:
        yield _handed_over(*ahead, device)


def _handed_over(batch: Any, done: torch.cuda.Event, device: torch.device) -> Any:
    """The batch for the stream that the caller works on: it waits for the copy, not the CPU."""
    using = torch.cuda.current_stream(device)
    using.wait_event(done)

    # The tensors were allocated on the copying stream. Without this their memory would be free for the next
    # copy as soon as the caller drops them, though kernels that read them may still be queued.
    def note(tensor: torch.Tensor) -> torch.Tensor:
        tensor.record_stream(using)
        return tensor

    return _each_tensor(batch, note)
