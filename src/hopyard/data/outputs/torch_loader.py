"""Loaders that are ``torch.utils.data.DataLoader``s, for frameworks that look for one and take it apart.

Lightning and Accelerate accept a DataLoader, read its parts, and build another one from them. All that
a loader does is therefore in its parts too: ``batch_sampler`` gives positions of the stream, ``dataset``
reads them, and both share one :class:`SharedLoader`. Iterated directly, none of this is in the way.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from hopyard.data.contract import EpochStream
from hopyard.data.loader import Loader, not_by_number
from hopyard.data.outputs.accelerate_progress import steps_used
from hopyard.data.outputs.torch_transfer import HostBuffers, ahead_on_cuda, as_host_tensors, to_device
from hopyard.data.reading.views import join
from hopyard.errors import UsageError

_log = logging.getLogger("hopyard")

_OF_WORKERS = {
    "num_workers", "prefetch_factor", "persistent_workers", "timeout", "worker_init_fn", "multiprocessing_context",
    "in_order", "generator", "pin_memory_device",
}  # fmt: skip


class Places(Sequence[int]):
    """The rows of a batch as numbers: ``epoch * rows + position in the epoch's stream``."""

    def __init__(self, epoch: int, rows: int, first: int, last: int) -> None:
        self.epoch = epoch
        self.first = first
        self.last = last
        self._all = range(epoch * rows + first, epoch * rows + last)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, key: Any) -> Any:
        return list(self._all[key]) if isinstance(key, slice) else self._all[key]

    def __add__(self, more: Sequence[int]) -> list[int]:
        return [*self, *more]


class SharedLoader:
    """The loader that batch sampler and dataset share."""

    loader: Loader
    steps = 0
    """Number of steps that the batch sampler has given in the latest iteration."""

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)


class _FollowsEpochs(Sampler[int]):
    """A sampler that frameworks call before an epoch, and recognise the order by. Its indices are not used."""

    def __init__(self, reading: SharedLoader, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._reading = reading

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._reading.set_epoch(epoch)


class _InOrder(_FollowsEpochs, SequentialSampler):
    pass


class _Shuffled(_FollowsEpochs, RandomSampler):
    pass


class _OfRank(_FollowsEpochs, DistributedSampler[Any]):
    pass


class StepSampler:
    """A batch sampler: for every batch its :class:`Places`. Each iteration is the loader's next epoch.

    Args:
        sampler: that a framework put in place of the loader's; only its ranks, or its order, count.
        batch_size, drop_last: of the loader.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.reading: SharedLoader = SharedLoader()

    def __len__(self) -> int:
        return len(self.reading.loader)

    def __iter__(self) -> Iterator[Places]:
        reading = self.reading
        epoch, steps = reading.loader.steps()
        reading.steps = 0
        rows = len(reading.loader.dataset)
        for first, last in steps:
            reading.steps += 1
            yield Places(epoch, rows, first, last)


class StreamDataset(torch.utils.data.Dataset[Any]):
    """The rows that :class:`Places` name. Pickles; every process opens a stream of its own."""

    def __init__(self, reading: SharedLoader) -> None:
        self.reading = reading
        self._stream: tuple[int, EpochStream] | None = None

    def __len__(self) -> int:
        return len(self.reading.loader.dataset)

    def __getitem__(self, place: int) -> Any:
        return {name: values[0] for name, values in self.__getitems__([place]).items()}

    def __getitems__(self, places: Sequence[int]) -> Any:
        """One batch, as the loader yields it."""
        loader = self.reading.loader
        if isinstance(places, Places):
            batch = self._stream_of(places.epoch).batch(places.first, places.last, loader.buffers)
            return loader.finished(batch, places.epoch, places.first)
        rows = len(self)
        parts = [
            self._stream_of(first // rows).batch(first % rows, first % rows + count, loader.buffers)
            for first, count in _runs(places)
        ]
        return loader.finished(join(parts, loader.buffers), places[0] // rows, places[0] % rows)

    def _stream_of(self, epoch: int) -> EpochStream:
        if self._stream is None or self._stream[0] != epoch:
            if self._stream is not None:
                self._stream[1].close()
            self._stream = epoch, self.reading.loader.stream(epoch)
        return self._stream[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of consecutive numbers."""
    first, count = places[0], 0
    for place in places:
        if place != first + count:
            yield first, count
            first, count = place, 0
        count += 1
    yield first, count


class TorchLoader(DataLoader[Any]):
    """A loader of tensors that can stand wherever a DataLoader does; made by ``dataset.loader(output="torch")``.

    Iteration, ``state_dict`` and ``load_state_dict`` are as in :class:`hopyard.data.loader.Loader`. Its
    ``sampler`` has ``set_epoch``. A framework that builds another one from its parts with a
    ``DistributedSampler`` gets the same stream with that rank's share of every step.

    Args:
        dataset: as its attribute of this name.
        batch_sampler, sampler: that a framework puts in the place of the attributes of these names.
        device: that batches are moved to. None: they stay where they are.
        options: of ``DataLoader``.
    """

    dataset: StreamDataset

    def __init__(
        self,
        dataset: StreamDataset,
        batch_sampler: Any = None,
        sampler: Any = None,
        *,
        device: torch.device | None = None,
        **options: Any,
    ) -> None:
        given = sampler if batch_sampler is None else batch_sampler.sampler
        loader = _as_told(dataset.reading.loader, given)
        self.loader: Loader = loader
        self.device = device
        self._used: int | None = None  # batches, where this loader itself reads ahead
        drop_last = loader.tail == "drop"
        steps: Any = batch_sampler
        if steps is None:
            steps = StepSampler(None, loader.batch_size, drop_last)
        # A framework wants to see what the batch sampler gives.
        self._watched = type(steps) is not StepSampler
        self._reading: SharedLoader = steps.reading
        self._reading.loader = loader
        for name in ("batch_size", "shuffle", "drop_last"):  # the loader knows them
            options.pop(name, None)
        super().__init__(StreamDataset(self._reading), batch_sampler=steps, **options)
        # DataLoader forgets these where it is given a batch sampler, and keeps them from being set again.
        object.__setattr__(self, "batch_size", loader.batch_size)
        object.__setattr__(self, "drop_last", drop_last)
        object.__setattr__(self, "sampler", _sampler(self.dataset))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches of the next epoch, or, after ``load_state_dict``, of the rest of the one it was in."""
        return super().__iter__() if self._watched else self._batches()

    def _batches(self) -> Iterator[Any]:
        # Begun at the first batch: some frameworks ask for the iterator before they name the epoch.
        self._used = None
        if self.device is None or self.device.type == "cpu":
            yield from self.loader
            return
        batches = iter(self.loader)
        if self.device.type != "cuda":
            yield from (to_device(batch, self.device) for batch in batches)
            return
        self._used = 0
        for batch in ahead_on_cuda(batches, self.device):
            self._used += 1
            yield batch

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def __getitem__(self, row: object) -> NoReturn:
        raise not_by_number()

    @property
    def columns(self) -> list[str]:
        """The names in a batch."""
        return self.loader.columns

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch: all of it, or the rest if a state in it was just loaded."""
        self.loader.set_epoch(epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """State of the loader as JSON values. Batches count once the loop over the loader has been given them.

        Batches that this loader or Accelerate has read ahead do not count. ``batches`` is the number of batches of
        the latest iteration that were used, where something else reads ahead.
        """
        if batches is None and self.loader.begun:
            batches = self._used
            if batches is None:
                batches = steps_used(self._reading, self._reading.steps)
        return self.loader.state_dict(batches)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken: the next iteration is the rest of that epoch."""
        self.loader.load_state_dict(state)


def _as_told(loader: Loader, sampler: Any) -> Loader:
    """The loader with the share, or the order, that a framework's sampler stands for."""
    if isinstance(sampler, DistributedSampler) and not isinstance(sampler, _OfRank):
        return loader.changed(rank=sampler.rank, world_size=sampler.num_replicas)
    if type(sampler) is SequentialSampler:
        return loader.changed(shuffle=False)
    return loader


def _sampler(dataset: StreamDataset) -> _FollowsEpochs:
    """The sampler that frameworks recognise the order by: if it is a DistributedSampler, they leave ranks alone."""
    loader = dataset.reading.loader
    if loader.world_size > 1:
        return _OfRank(dataset.reading, dataset, loader.world_size, loader.rank, loader.shuffle)
    return (_Shuffled if loader.shuffle else _InOrder)(dataset.reading, dataset)


def torch_loader(
    loader: Loader,
    *,
    pin_memory: bool = False,
    device: str | torch.device | None = None,
    **of_workers: Any,
) -> TorchLoader:
    """A loader as a ``torch.utils.data.DataLoader``.

    Args:
        loader: with ``output="torch"``.
        pin_memory: batches in page-locked memory, from which ``tensor.to(device, non_blocking=True)`` copies in
            the background. Without an accelerator it has no effect but a warning, as in PyTorch.
        device: where batches go. On a GPU the next batch is copied while one is in use, and memory is pinned.
        of_workers: arguments of DataLoader about worker processes (``num_workers``, ``prefetch_factor``,
            ``persistent_workers``, ...). There are none: batches are gathered from mapped files by this process,
            and data that must be decoded is decoded by threads, one window ahead. A log line says so.

    Raises:
        UsageError: an argument is unknown, or there is no such device.
    """
    unknown = sorted(of_workers.keys() - _OF_WORKERS)
    if unknown:
        raise UsageError(
            f"{', '.join(unknown)} was given to loader(output='torch'), which has no such argument. What becomes of "
            "the rows of a batch is transform=, how many they are batch_size=, and their order shuffle= and seed=."
        )
    if of_workers.get("num_workers"):
        _explain_workers()
    target = None if device is None else _device(device)
    if pin_memory and not torch.accelerator.is_available():
        warnings.warn(
            "pin_memory=True, but no accelerator is found: memory is not pinned.", UserWarning, stacklevel=3
        )
        pin_memory = False
    on_gpu = target is not None and target.type == "cuda"
    if pin_memory or on_gpu:
        host = HostBuffers(pinned=True, arrow_strings=loader.buffers.arrow_strings)
        loader = loader.changed(convert=as_host_tensors, buffers=host)
    reading = SharedLoader()
    reading.loader = loader
    # Where a framework builds a plain DataLoader from the parts, `pin_memory` finds the batches pinned already.
    return TorchLoader(StreamDataset(reading), device=target, pin_memory=pin_memory, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch


def _device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(
            f"device={str(device)!r} cannot be used here: {str(error).splitlines()[0]} Give a device that PyTorch "
            "sees, or leave it out and move batches yourself."
        ) from error
    return found


_explained = False


def _explain_workers() -> None:
    global _explained
    if not _explained:
        _log.info(
            "num_workers is accepted and starts no processes: batches are gathered from mapped files in this process, "
            "faster than a worker could send them, and what must be decoded is decoded by threads ahead of time."
        )
        _explained = True
