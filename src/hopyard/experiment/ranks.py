"""Processes that train one trial together, data-parallel, on one machine.

The worker's own process is rank 0. It starts the others, which stay with it from unit to unit, for all its trials, and
end with it however it ends. Each rank builds the trial; then all run each unit at the same time, so that the trial's
code may use ``torch.distributed``, whose default group they are, and finds its place in ``context.distributed`` and in
the variables that torchrun sets.

Rules:

* **Turns.** All ranks read the same batches, and take turns: batch i is that of rank i mod size. One step is made of a
  batch of each rank. Its gradient is the mean over the rows of all these batches, as one process has it that
  accumulates over so many. The last step of a unit may lack batches; ranks without one add nothing, so that
  ``train_batch`` must not call ``torch.distributed`` itself. Where the loader gives each rank other batches
  (``is_divided``), each trains on all that it gets, and a step is the mean of the ranks.
* **Functions.** A bare function reports on each rank, as often as on rank 0, whose reports and saved states count.
* **State.** Rank 0's counts: before a unit the others get its buffers, and after it went elsewhere, all of its state.
  Weights need no transfer, since all ranks make the same steps.
* **Random numbers.** All ranks build the trial with the same ones, and train with others each.
* **Failures.** A rank that raises, or dies, ends the others, and the unit fails with its error and traceback. The next
  unit starts them anew.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hopyard.backend.companions import Companions
from hopyard.backend.surroundings import variables_set
from hopyard.errors import EstimatorError, UsageError
from hopyard.experiment.context import Distributed
from hopyard.experiment.function_trial import FunctionEstimator, FunctionReplica
from hopyard.experiment.lengths import Facts
from hopyard.experiment.surrounded import TrialEstimator
from hopyard.experiment.torch_trial import TorchTrialEstimator, TorchTrialReplica, hopyard_loader
from hopyard.objects import derive_seed
from hopyard.training.estimator import Context, Estimator, OneBatch, Replica, Visit
from hopyard.training.metric import MetricSet
from hopyard.training.session import Session
from hopyard.training.torch.session import generators_kept
from hopyard.training.torch.training import Sums, TrainingPass
from hopyard.training.torch.validation import measure

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
_INTERFACES = {"linux": "lo", "darwin": "lo0"}

_place = Distributed()
_ranks: Ranks | None = None
_keys = itertools.count()


def place() -> Distributed:
    """The place of this process among those that train the trial whose code runs now; alone: rank 0 of 1."""
    return _place


def together(function: Callable[[dict[str, Any]], Estimator], params: dict[str, Any], size: int) -> Estimator:
    """The estimator that ``function(params)`` gives, for ``size`` processes: each builds it, and trains its replica.

    Args:
        function: as a search takes it; it can be pickled. ``place()`` tells it where it runs.

    Raises:
        UsageError: this process has a default group of ``torch.distributed`` that is not ours.
        EstimatorError: it is of a framework that cannot do so.
        Exception: what ``function`` raises on a rank, with its traceback.
    """
    shared = _Shared(function, params, size)
    own = shared.build()
    if not isinstance(own, TorchTrialEstimator | FunctionEstimator):
        raise EstimatorError(
            f"resources.slots_per_trial is {size}, but several processes train only a TorchTrial or a function "
            "together. Write slots_per_trial: 1, or make the trial one of these."
        )
    return SharedEstimator(own, shared)


class SharedEstimator(TrialEstimator):
    """Estimator of a trial that several processes train, on rank 0."""

    def __init__(self, own: TrialEstimator, shared: _Shared) -> None:
        self.own: TrialEstimator = own
        self._shared = shared
        self.batch_size: int = own.batch_size

    def replica(self, context: Context) -> Replica:
        return self._shared.replica(self.own, context)

    def facts(self) -> Facts:
        return self.own.facts()


# Processes


class Ranks:
    """The processes of ranks 1 and above, as rank 0 uses them, and the default group of ``torch.distributed`` of all.

    Args:
        size: number of all ranks, with this process.

    Raises:
        UsageError: this process has a default group already.
        WorkerLostError: one could not be started.
    """

    def __init__(self, size: int) -> None:
        if dist.is_initialized():
            raise UsageError(
                f"torch.distributed is initialized in this process, but the default group of a trial on {size} ranks "
                "is made by Hopyard. Leave out init_process_group(), or write slots_per_trial: 1."
            )
        self.size = size
        self.unused: deque[int] = deque()
        """Keys of trials that the others need not keep any more."""
        store = TCPStore(LOOPBACK, 0, size, is_master=True, wait_for_workers=False)
        self._variables = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(size)}
        if sys.platform in _INTERFACES:  # gloo would else ask for the address of the machine's name
            self._variables["GLOO_SOCKET_IFNAME"] = _INTERFACES[sys.platform]
        self._others = Companions([self._of_rank(rank) for rank in range(1, size)], "rank")
        self.stop: Callable[[], Any] = weakref.finalize(self, _end, self._others)
        """Ends the others."""
        try:
            # They import PyTorch: of one that cannot, nobody would hear who waits for its connection.
            self._others.call(place, place)
            self.call(lambda: _join(store, Distributed(0, size, 0)), _join_from, store.port)
        except BaseException:
            self.stop()
            raise

    def _of_rank(self, rank: int) -> dict[str, str]:
        return {**self._variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}

    def call(self, own: Callable[[], T], fn: Callable[..., Any], *args: Any) -> tuple[T, list[Any]]:
        """Run ``own()`` as rank 0, and ``fn(*args)`` on all other ranks, as ``Companions.call`` does."""
        global _place
        before, _place = _place, Distributed(0, self.size, 0)
        try:
            with variables_set(self._of_rank(0)):
                return self._others.call(own, fn, *args)
        except BaseException:
            self.stop()
            raise
        finally:
            _place = before

    @property
    def alive(self) -> bool:
        """Whether all can go on."""
        return self._others.alive


def ranks_of(size: int) -> Ranks:
    """The ranks of this process; they are started if there are not so many."""
    global _ranks
    if _ranks is None or _ranks.size != size or not _ranks.alive:
        if _ranks is not None:
            _ranks.stop()
        _ranks = None
        _ranks = Ranks(size)
    return _ranks


def _end(others: Companions) -> None:
    others.stop()
    if dist.is_initialized():
        dist.destroy_process_group()


def _join(store: TCPStore, here: Distributed) -> None:
    """Become one of the default group of ``torch.distributed``."""
    each_has_gpu = dist.is_nccl_available() and torch.cuda.device_count() >= here.size
    backend = "cpu:gloo,cuda:nccl" if each_has_gpu else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(_gpu(here.rank))
    dist.init_process_group(backend, store=store, rank=here.rank, world_size=here.size)


def _join_from(port: int) -> None:
    """Become what the environment variables say, for as long as this process lives."""
    global _place
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _place = Distributed(rank, size, rank)
    _join(TCPStore(LOOPBACK, port, size, is_master=False), _place)


def _gpu(rank: int) -> int:
    return rank % torch.cuda.device_count()


# A trial on all ranks


class _Shared:
    """A trial on all ranks, as rank 0 has it."""

    def __init__(
        self, function: Callable[[dict[str, Any]], Estimator], params: dict[str, Any], size: int
    ) -> None:
        self._function, self._params, self._size = function, params, size
        self._key = next(_keys)
        self._context: Context | None = None
        self._ranks: Ranks
        self.others_lag: bool = True
        """Whether the state of the other ranks is another one than that of rank 0."""

    def build(self) -> TrialEstimator:
        """Build the trial on all ranks; the estimator of this one."""
        self._ranks = ranks_of(self._size)
        weakref.finalize(self, self._ranks.unused.append, self._key).atexit = False
        function, params, key = self._function, self._params, self._key
        own, _ = self._ranks.call(
            lambda: function(copy.deepcopy(params)), _build, _Draw.now(), key, function, params
        )
        assert isinstance(own, TrialEstimator)
        return own

    def replica(self, own: TrialEstimator, context: Context) -> Replica:
        """Make the trial's replicas; the one of this rank."""
        self._context = context
        mine, _ = self._ranks.call(lambda: self._own_replica(own, context), _make_replica, self._key, context)
        return mine

    def _own_replica(self, own: TrialEstimator, context: Context) -> Replica:
        if isinstance(own, TorchTrialEstimator):
            return _FirstTorchReplica(self, own, context)
        assert isinstance(own, FunctionEstimator)
        return _FirstFunctionReplica(self, own)

    def rebuild_if_ended(self) -> bool:
        """Whether the other ranks had ended since the trial was built there, so that it was built on others. Random
        numbers go on as if nothing had happened."""
        if ranks_of(self._size) is self._ranks:
            return False
        with generators_kept(torch.device("cuda" if torch.cuda.is_available() else "cpu")):
            self.build()  # here, too: its code may use torch.distributed
            self._ranks.call(lambda: None, _make_replica, self._key, self._context)
        self.others_lag = True
        return True

    def run(self, replica: Replica, own: Callable[[], T], method: str, visit: Visit) -> tuple[T, list[Any]]:
        """Run ``own`` here and a method of the replicas on the other ranks, which have the state of ``replica``."""
        state = replica.state() if self.others_lag else None
        unused = []
        while self._ranks.unused:
            unused.append(self._ranks.unused.popleft())
        work = _Work(_Draw.now(), self._key, state, method, visit, tuple(unused))
        results = self._ranks.call(own, _run, work)
        self.others_lag = False
        return results


class _Draw(NamedTuple):
    """Threads, and the seed of random numbers, of rank 0."""

    threads: int
    seed: int

    @classmethod
    def now(cls) -> _Draw:
        return cls(torch.get_num_threads(), torch.initial_seed())

    def begin(self, *parts: str | int) -> None:
        """Have these threads, and random numbers that follow from the seed; without ``parts`` those of rank 0."""
        torch.set_num_threads(self.threads)
        seed = derive_seed(self.seed, *parts) if parts else self.seed
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)


class _Work(NamedTuple):
    """Work of one unit for a rank.

    Attributes:
        key: of the trial.
        state: to go on from; None: from that of before.
        method: of the replica.
        unused: keys of trials that are not needed any more.
    """

    draw: _Draw
    key: int
    state: Mapping[str, Any] | None
    method: str
    visit: Visit
    unused: tuple[int, ...]

    @property
    def label(self) -> str:
        return self.method


# On ranks above 0

_sessions: dict[int, Session] = {}
"""The session that a rank above 0 trains in, by its threads."""
_estimators: dict[int, Estimator] = {}
_replicas: dict[int, Replica] = {}
"""What a rank above 0 has of trials, by their keys."""


def _build(
    draw: _Draw, key: int, function: Callable[[dict[str, Any]], Estimator], params: dict[str, Any]
) -> None:
    if draw.threads not in _sessions:
        _sessions[draw.threads] = Session(draw.threads).__enter__()
    _sessions[draw.threads].reset()
    draw.begin()
    _estimators[key] = function(params)


def _make_replica(key: int, context: Context) -> None:
    estimator = _estimators.pop(key)
    if isinstance(estimator, TorchTrialEstimator):
        if torch.cuda.is_available() and context.device != "cpu":
            context = replace(context, device=f"cuda:{_gpu(place().rank)}")
        _replicas[key] = RankReplica(estimator, context)
    else:
        _replicas[key] = estimator.replica(context)


def _run(work: _Work) -> Any:
    for key in work.unused:
        _estimators.pop(key, None)
        _replicas.pop(key, None)
    replica = _replicas[work.key]
    if work.state is not None:
        replica.load(work.state)
    work.draw.begin("rank", place().rank)
    return getattr(replica, work.method)(work.visit)


# Replicas


class Turn(NamedTuple):
    """The batch of this rank in one step, and its share of the step's rows. ``batch`` is None if it has none."""

    batch: Any
    share: float


class _SharedPass(TrainingPass):
    """Training pass of one rank."""

    def run(self, batches: Iterable[tuple[Any, int]], sizes: list[int], sums: Sums) -> None:
        self._forward.module.zero_grad(set_to_none=True)
        self._optimizer.zero_grad(set_to_none=True)
        for turn, rows in batches:
            if turn.batch is not None:
                result = self._forward(turn.batch, training=True)
                self._backward(result.loss * turn.share)
                sums.add(result, rows)
            self._update()

    def _before_step(self) -> None:
        add_up(self._trained)


class RankReplica(TorchTrialReplica):
    """Replica of a trial on one rank."""

    _pass = _SharedPass

    def __init__(self, estimator: TorchTrialEstimator, context: Context) -> None:
        self._here = place()
        super().__init__(estimator, context)

    def train(self, visit: Visit) -> dict[str, list[float]]:
        self._have_buffers_of_rank_0()
        return super().train(visit)

    def validate(self, visit: Visit) -> MetricSet:
        self._have_buffers_of_rank_0()
        return super().validate(visit)

    def _have_buffers_of_rank_0(self) -> None:
        buffers = list(self._head.buffers())
        if not buffers:
            return
        together = torch.cat([_as_bytes(buffer) for buffer in buffers])
        dist.broadcast(together, 0)
        if self._here.rank:
            pieces = torch.split(together, [buffer.nbytes for buffer in buffers])
            for buffer, piece in zip(buffers, pieces, strict=True):
                buffer.copy_(piece.clone().view(buffer.dtype).view(buffer.shape))

    def _training_batches(self, visit: Visit) -> Iterable[Any]:
        batches = super()._training_batches(visit)
        size = self._here.size
        if is_divided(self._given.training, size):
            return (Turn(batch, 1 / size) for batch in batches)
        return turns(batches, self._here, self._forward.binding.rows)

    def _placed(self, batches: Iterable[Turn]) -> Iterator[tuple[Turn, int]]:  # type: ignore[override]
        binding = self._forward.binding
        for turn in batches:
            if turn.batch is None:
                yield turn, 0
            else:
                placed = binding.place(turn.batch)
                yield Turn(placed, turn.share), binding.rows(placed)

    def _validation_batches(self, visit: Visit) -> Iterable[Any]:
        batches = super()._validation_batches(visit)
        if is_divided(self._given.validation, self._here.size):
            return batches
        return itertools.islice(batches, self._here.rank, None, self._here.size)

    def _measure(self, batches: Iterable[Any]) -> MetricSet:
        return measure(
            self._forward, batches, MetricSet({}, loss=False), []
        )  # none, where others have them all


class _FirstTorchReplica(RankReplica):
    """Replica on rank 0, which the others follow."""

    def __init__(self, shared: _Shared, estimator: TorchTrialEstimator, context: Context) -> None:
        self._shared = shared
        super().__init__(estimator, context)

    def train(self, visit: Visit) -> dict[str, list[float]]:
        self._catch_up()
        sums, others = self._shared.run(
            self, lambda: super(_FirstTorchReplica, self).train(visit), "train", visit
        )
        for other in others:
            for name, (total, weight) in other.items():
                known = sums.setdefault(name, [0.0, 0.0])
                known[0] += total
                known[1] += weight
        return sums

    def validate(self, visit: Visit) -> MetricSet:
        self._catch_up()
        run = self._shared.run
        found, others = run(self, lambda: super(_FirstTorchReplica, self).validate(visit), "validate", visit)
        for other in others:
            for name, state in other.states().items():
                found.mean(name, float(state["sum"]), float(state["weight"]))
        return found if found.metrics else TorchTrialReplica._measure(self, ())

    def _catch_up(self) -> None:
        self._shared.rebuild_if_ended()
        if self._attributes.tree():
            self._shared.others_lag = True

    def load(self, tree: Mapping[str, Any]) -> None:
        super().load(tree)
        self._shared.others_lag = True

    def adopt(self, tree: Mapping[str, Any]) -> None:
        super().adopt(tree)
        self._shared.others_lag = True


class _FirstFunctionReplica(FunctionReplica):
    """A function on rank 0. Those on the other ranks run from report to report with it; what they report and save
    counts for nothing."""

    def __init__(self, shared: _Shared, estimator: FunctionEstimator) -> None:
        self._shared = shared
        super().__init__(estimator)

    def train(self, visit: Visit) -> dict[str, list[float]]:
        if isinstance(visit.rows, OneBatch):
            return super().train(visit)
        if self._shared.rebuild_if_ended():
            self.load(self.state())  # here, too, it begins again from what it saved
        run = self._shared.run
        return run(self, lambda: super(_FirstFunctionReplica, self).train(visit), "train", visit)[0]

    def load(self, tree: Mapping[str, Any]) -> None:
        super().load(tree)
        self._shared.others_lag = True


def turns(batches: Iterable[Any], here: Distributed, rows_of: Callable[[Any], int]) -> Iterator[Turn]:
    """The turns of one rank in batches that all ranks read; as many on each rank."""
    batches = iter(batches)
    while group := list(itertools.islice(batches, here.size)):
        rows = [rows_of(batch) for batch in group]
        if here.rank < len(group):
            yield Turn(group[here.rank], rows[here.rank] / sum(rows))
        else:
            yield Turn(None, 0.0)


def is_divided(loader: Any, size: int) -> bool:
    """Whether a loader gives each of the ranks other batches: it, its dataset or its sampler has ``num_replicas`` or
    ``world_size``, as that of ``torch.utils.data.DistributedSampler``, and it is their number."""
    sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    holders = [
        hopyard_loader(loader) or loader,
        getattr(loader, "dataset", None),
        sampler,
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    ]
    return any(
        size == getattr(holder, name, None) for holder in holders for name in ("num_replicas", "world_size")
    )


def add_up(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Add up the gradient of each parameter over all ranks, which have the same ones then, to the last bit. None stays
    where no rank has one.

    Raises:
        EstimatorError: a gradient is sparse.
    """
    alike: dict[tuple[torch.device, torch.dtype], list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise EstimatorError(
                f"a gradient of shape {tuple(parameter.shape)} is sparse, which ranks cannot add up. Leave out "
                "sparse=True of the embedding, or write slots_per_trial: 1."
            )
        alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for (device, dtype), group in alike.items():
        # In one tensor, since each call of all_reduce waits for all ranks. Behind the gradients: which there are.
        has = torch.tensor([each.grad is not None for each in group], dtype=dtype, device=device)
        pieces = [
            each.new_zeros(each.numel()) if each.grad is None else each.grad.reshape(-1) for each in group
        ]
        total = torch.cat([*pieces, has])
        dist.all_reduce(total)
        *sums, exists = torch.split(total, [*(each.numel() for each in group), len(group)])
        for each, its_sum, there in zip(group, sums, exists.tolist(), strict=True):
            each.grad = its_sum.view_as(each) if there else None


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
