"""Ranks: several processes train one trial as one process would that accumulates gradients, and end together."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.sampling import diagonal
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.nn.functional import cross_entropy, dropout
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hopyard.backend import LocalBackend
from hopyard.backend.testing import PATIENCE, error_of, result_of
from hopyard.data import open_dataset, prepare
from hopyard.errors import EstimatorError, UsageError, WorkerLostError
from hopyard.experiment import ranks
from hopyard.experiment.context import Distributed, TrialContext
from hopyard.experiment.downloads import Downloads
from hopyard.experiment.function_trial import FunctionEstimator
from hopyard.experiment.lengths import Facts, Stretch, Visits
from hopyard.experiment.ranks import place, ranks_of, together, turns
from hopyard.experiment.surrounded import TrialEstimator, TrialSurroundings
from hopyard.experiment.torch_trial import TorchTrial, TorchTrialEstimator
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context, Estimator, OneBatch, Replica, Visit
from hopyard.training.session import Session

ROWS = 52


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """End the ranks of this process after a test, and see that they have."""
    yield
    if ranks._ranks is not None:
        ended = ranks._ranks.call(list, os.getpid)[1] if ranks._ranks.alive else []
        ranks._ranks.stop()
        ranks._ranks = None
        for pid in ended:
            assert_ends(pid)
    assert not dist.is_initialized()


def assert_ends(pid: int) -> None:
    """Wait until a process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor)
        assert poll.poll(PATIENCE * 1000), f"process {pid} is left over"
    finally:
        os.close(descriptor)


# Trials


def data(rows: int = ROWS, seed: int = 1) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=random)
    return TensorDataset(x, (x.sum(1) > 0).long())


class Network(torch.nn.Module):
    """Has what makes ranks differ: buffers of its own batches, and parameters that are not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        self.seldom = torch.nn.Parameter(torch.zeros(2))
        self.never = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(torch.relu(self.first(self.norm(x))))
        return outputs + self.seldom if x[0, 0] > 0.4 else outputs


class Trial(TorchTrial):
    batch_size = 8

    def build_model(self) -> torch.nn.Module:
        return Network()

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

    def build_training_data_loader(self) -> Any:
        return DataLoader(data(), batch_size=self.batch_size)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(data(30, 2), batch_size=8)

    def train_batch(self, batch: Any, model: torch.nn.Module) -> Any:
        x, y = batch
        return {"loss": cross_entropy(model(x), y), "rank": float(self.context.distributed.get_rank())}

    def evaluate_batch(self, batch: Any, model: torch.nn.Module) -> Mapping[str, Any]:
        x, y = batch
        outputs = model(x)
        return {"loss": cross_entropy(outputs, y), "accuracy": (outputs.argmax(1) == y).float().mean()}


def function_of(trial: Callable[[TrialContext], Any], folder: Path) -> Callable[[dict[str, Any]], Estimator]:
    """What a search calls for the estimator of a trial class, or of a function."""
    around = TrialSurroundings(folder, folder, {})

    def make(params: dict[str, Any]) -> Estimator:
        context = TrialContext({}, params, Downloads(), place())
        if isinstance(trial, type):
            return TorchTrialEstimator(trial(context), around, Visits(2, 4, "epochs", 2))
        return FunctionEstimator(trial, context, around, "value")

    return make


CONTEXT = Context((), (), "cpu", (), 1)


def built(
    trial: Callable[[TrialContext], Any], folder: Path, size: int, params: dict[str, Any] | None = None
) -> Replica:
    """A trial's replica on so many ranks; on one as without ranks."""
    make = function_of(trial, folder)
    with Session(1) as session:
        session.seed(7, "init")
        estimator = together(make, params or {}, size) if size > 1 else make(params or {})
        return estimator.replica(CONTEXT)


def trained(replica: Replica, first: int = 0, last: int = 4) -> list[dict[str, list[float]]]:
    """Train visits; what each gave."""
    sums = []
    for visit in range(first, last):
        with Session(1) as session:
            session.seed(7, visit)
            sums.append(replica.train(Visit(Stretch(0), 7, visit // 2, 0)))
    return sums


def validated(replica: Replica) -> dict[str, float]:
    with Session(1):
        return replica.validate(Visit(Stretch(0), 7, 0, 0)).compute()


def weights(replica: Replica) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in replica.module.state_dict().items()}


def by_hand(size: int, count: int = 4) -> tuple[Network, list[float]]:
    """The network as one process trains it that takes the gradients of ``size`` batches for a step, each with the
    buffers of its rank; and the sums of losses, by rows, of each visit."""
    with Session(1) as session:
        session.seed(7, "init")
        networks = [Network()]
    for _ in range(1, size):
        networks.append(Network())
    first = networks[0]
    optimizer = torch.optim.AdamW(first.parameters(), lr=0.01, weight_decay=0.1)
    batches = list(DataLoader(data(), batch_size=8))
    losses = []
    # Visits of 3 and 4 batches, twice: the passes of 7 batches in two visits each.
    for begin, end in [(0, 3), (3, 7), (0, 3), (3, 7)][:count]:
        total = 0.0
        for other in networks[1:]:
            other.load_state_dict(first.state_dict())
        for start in range(begin, end, size):
            group = batches[start : min(start + size, end)]
            rows = sum(len(x) for x, _ in group)
            gradients: dict[str, torch.Tensor] = {}
            for network, (x, y) in zip(networks, group, strict=False):
                with torch.no_grad():
                    for own, its in zip(network.parameters(), first.parameters(), strict=True):
                        own.copy_(its)
                network.zero_grad()
                loss = cross_entropy(network(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach()) * len(x)
                for name, parameter in network.named_parameters():
                    if parameter.grad is not None:
                        part = parameter.grad * (len(x) / rows)
                        gradients[name] = gradients[name] + part if name in gradients else part
            for name, parameter in first.named_parameters():
                parameter.grad = gradients.get(name)
            optimizer.step()
        losses.append(total)
    return first, losses


# Results


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_train_as_one_process_that_averages_their_gradients(tmp_path: Path, size: int) -> None:
    replica = built(Trial, tmp_path, size)
    sums = trained(replica)
    expected, losses = by_hand(size)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(weights(replica)[name], value, rtol=0, atol=2e-6, msg=name)
    assert [each["loss"][0] for each in sums] == pytest.approx(losses, abs=1e-4)
    assert [each["loss"][1] for each in sums] == [24, 28, 24, 28]  # the last batch of a pass has 4 rows
    # Batches 0, 1, 2 of a visit are those of ranks 0, 1, 2 or 0, 1, 0, each with its rows.
    assert sums[0]["rank"] == ([8.0, 24.0] if size == 2 else [24.0, 24.0])
    expected.eval()
    x, y = data(30, 2).tensors
    with torch.no_grad():
        outputs = expected(x[:30])
    found = validated(replica)
    assert found["accuracy"] == pytest.approx(float((outputs.argmax(1) == y).float().mean()), abs=1e-6)
    assert found["loss"] > 0


def test_all_ranks_have_the_same_weights_to_the_last_bit(tmp_path: Path) -> None:
    replica = built(Trial, tmp_path, 3)
    trained(replica)
    mine, others = ranks_of(3).call(lambda: _bits(replica), _bits_there)
    assert others == [mine, mine]


def _bits(replica: Replica) -> dict[str, Any]:
    return {name: value.tolist() for name, value in replica.module.named_parameters()}


def _bits_there() -> dict[str, Any]:
    (replica,) = ranks._replicas.values()
    return _bits(replica)


def test_turns_are_as_many_on_each_rank_and_weigh_rows() -> None:
    batches = [torch.zeros(8), torch.zeros(8), torch.zeros(4), torch.zeros(2)]
    taken = [list(turns(batches, Distributed(rank, 3, rank), len)) for rank in range(3)]
    assert [[turn.share for turn in each] for each in taken] == [[0.4, 1.0], [0.4, 0.0], [0.2, 0.0]]
    assert [[turn.batch is not None for turn in each] for each in taken] == [
        [True, True],
        [True, False],
        [True, False],
    ]
    assert list(turns([], Distributed(0, 2, 0), len)) == []


class Divided(Trial):
    """A trial whose loader gives each rank a part of its own."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Linear(4, 2)

    def build_training_data_loader(self) -> Any:
        here = self.context.distributed
        sampler: Any = DistributedSampler(data(), here.size, here.rank, shuffle=False)
        return DataLoader(data(), batch_size=4, sampler=sampler)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(data(8, 2), batch_size=8)  # one batch: nothing for rank 1


def test_ranks_train_on_all_that_a_divided_loader_gives_them(tmp_path: Path) -> None:
    replica = built(Divided, tmp_path, 2)
    sums = trained(replica, 0, 2)  # one pass: 26 rows on each rank, in 7 batches
    assert [each["loss"][1] for each in sums] == [24.0, 28.0]
    with Session(1) as session:
        session.seed(7, "init")
        model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    x, y = data().tensors
    for start in range(0, 26, 4):
        optimizer.zero_grad()
        parts = [
            cross_entropy(model(x[rank::2][start : start + 4]), y[rank::2][start : start + 4])
            for rank in (0, 1)
        ]
        (sum(parts) / 2).backward()  # type: ignore[union-attr]
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights(replica)[name], value, rtol=0, atol=2e-6)
    x, y = data(8, 2).tensors
    with torch.no_grad():
        expected = float(cross_entropy(model(x), y))
    assert validated(replica)["loss"] == pytest.approx(expected, abs=1e-6)


class OverDataset(Trial):
    """A trial over a dataset of Hopyard's, which visits its partitions."""

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Linear(4, 2)

    def build_training_data_loader(self) -> Any:
        train = open_dataset(self.context.get_hparam("data"), "train")
        return train.loader(8, shuffle=True, columns=["x", "y"], tail="join", output="torch")

    def build_validation_data_loader(self) -> Any:
        return open_dataset(self.context.get_hparam("data"), "val").loader(
            16, columns=["x", "y"], output="torch"
        )

    def train_batch(self, batch: Any, model: torch.nn.Module) -> Any:
        return {"loss": cross_entropy(model(batch["x"]), batch["y"].long())}

    def evaluate_batch(self, batch: Any, model: torch.nn.Module) -> Mapping[str, Any]:
        return self.train_batch(batch, model)  # type: ignore[no-any-return]


def test_partitions_are_visited_on_all_ranks_as_with_accumulated_gradients(tmp_path: Path) -> None:
    x, y = (values.numpy() for values in data(400).tensors)
    store = LocalStore(tmp_path / "data")
    prepare({"x": x, "y": y}, store, validation=0.25, feature_columns=["x"], label_columns=["y"])
    partitions, validation = open_dataset(store, "train").partitions(3), open_dataset(store, "val")
    with Session(1) as session:
        session.seed(7, "init")
        beside = TorchEstimator(
            torch.nn.Linear(4, 2),
            lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
            step=lambda model, batch: {"loss": cross_entropy(model(batch["x"]), batch["y"].long())},
            batch_size=8,
            accumulate=2,
        ).replica(replace(CONTEXT, feature_columns=("x",), label_columns=("y",)))
    replica = built(OverDataset, tmp_path, 2, {"data": store.url})
    with Session(1):
        for epoch in range(2):
            for number, partition in enumerate(partitions):
                visit = Visit(partition, 7, epoch, number)
                sums, expected = replica.train(visit)["loss"], beside.train(visit)["loss"]
                assert sums[1] == expected[1] == len(partition)
                assert sums[0] == pytest.approx(expected[0], abs=1e-4)
        for name, value in weights(beside).items():
            torch.testing.assert_close(weights(replica)[name], value, rtol=0, atol=2e-6)
        visit = Visit(validation, 7, 0, 0)
        assert replica.validate(visit).compute() == pytest.approx(beside.validate(visit).compute(), abs=1e-6)


class Dropping(Trial):
    def train_batch(self, batch: Any, model: torch.nn.Module) -> Any:
        x, y = batch
        drawn = torch.rand(())
        return {
            "loss": cross_entropy(dropout(model(x), 0.5), y),
            f"drawn_{self.context.distributed.rank}": drawn,
        }


def test_random_numbers_differ_between_ranks_and_repeat(tmp_path: Path) -> None:
    first = built(Dropping, tmp_path, 2)
    (sums,) = trained(first, 0, 1)
    assert sums["drawn_0"][0] / sums["drawn_0"][1] != pytest.approx(sums["drawn_1"][0] / sums["drawn_1"][1])
    again = built(Dropping, tmp_path, 2)
    assert trained(again, 0, 1) == [sums]
    for name, value in weights(first).items():
        assert torch.equal(weights(again)[name], value)


@pytest.mark.parametrize("how", ["loaded", "ranks killed"])
def test_a_trial_that_goes_on_elsewhere_goes_on_the_same(tmp_path: Path, how: str) -> None:
    whole = built(Dropping, tmp_path, 2)
    expected = trained(whole)
    replica = built(Dropping, tmp_path, 2)
    trained(replica, 0, 2)
    if how == "loaded":
        tree = replica.state()
        replica = built(Dropping, tmp_path, 2)
        replica.load(tree)
    else:
        (pid,) = ranks_of(2).call(list, os.getpid)[1]
        os.kill(pid, signal.SIGKILL)
        assert_ends(pid)
    assert trained(replica, 2, 4) == expected[2:]
    for name, value in weights(whole).items():
        assert torch.equal(weights(replica)[name], value), name


def test_trials_that_are_not_used_any_more_are_forgotten_on_all_ranks(tmp_path: Path) -> None:
    first, second = built(Divided, tmp_path, 2), built(Divided, tmp_path, 2)
    trained(first, 0, 1)
    assert ranks_of(2).call(list, _kept)[1] == [2]
    del first
    trained(second, 0, 1)
    assert ranks_of(2).call(list, _kept)[1] == [1]


def _kept() -> int:
    return len(ranks._replicas) + len(ranks._estimators)


def test_one_batch_is_trained_and_validated_on_all_ranks_to_try_a_trial(tmp_path: Path) -> None:
    replica = built(Trial, tmp_path, 2)
    visit = Visit(OneBatch({}), 7, 0, 0)
    with Session(1):
        assert replica.train(visit)["loss"][1] == 8
        assert 0 <= replica.validate(visit).compute()["accuracy"] <= 1


# Places


class Placed(Trial):
    def build_model(self) -> torch.nn.Module:
        here = self.context.distributed
        assert (here.get_rank(), here.get_size(), here.get_local_rank()) == (
            dist.get_rank(),
            2,
            dist.get_rank(),
        )
        total = torch.tensor(here.rank + 1)
        dist.all_reduce(total)
        assert total == 3
        return torch.nn.Linear(4, 2)

    def train_batch(self, batch: Any, model: torch.nn.Module) -> Any:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        rank, local, size = (int(os.environ[name]) for name in names)
        assert rank == local == dist.get_rank()
        assert size == dist.get_world_size() == 2
        assert os.environ["MASTER_ADDR"] == "127.0.0.1"
        assert int(os.environ["MASTER_PORT"]) > 0
        if rank:
            print("this is heard")
        return super().train_batch(batch, model)


def test_code_of_a_trial_finds_its_rank_as_with_torchrun(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "of another")
    replica = built(Placed, tmp_path, 2)
    with Session(1):
        replica.train(Visit(Stretch(0), 7, 0, 0))
    assert os.environ["RANK"] == "of another"
    assert "MASTER_PORT" not in os.environ
    assert place() == Distributed()
    assert "[rank 1] this is heard\n" in capfd.readouterr().out


def test_a_group_of_torch_distributed_that_is_there_is_refused(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(
            UsageError,
            match=r"^torch\.distributed is initialized in this process, .* on 2 ranks .* slots_per_trial: 1\.$",
        ):
            built(Trial, tmp_path, 2)
    finally:
        dist.destroy_process_group()


# Failures


class Failing(Trial):
    """Fails on a rank, in the batch and the way that a parameter says."""

    def train_batch(self, batch: Any, model: torch.nn.Module) -> Any:
        self.count = getattr(self, "count", 0) + 1
        params = self.context.get_hparams()
        if self.context.distributed.rank in params["ranks"] and self.count == 2:
            if params["how"] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if params["how"] == "exit":
                os._exit(3)
            raise {"raises": ValueError, "runtime": RuntimeError}[params["how"]]("the second batch is odd")
        return super().train_batch(batch, model)


class FailingFunction:
    """As an experiment's: of a trial with hyperparameters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, params: dict[str, Any]) -> Estimator:
        context = TrialContext({}, params, Downloads(), place())
        return TorchTrialEstimator(
            Failing(context), TrialSurroundings(self.folder, self.folder, {}), Visits(1, 2, "epochs", 2)
        )


def failing(folder: Path, size: int, how: str, *numbers: int) -> Replica:
    with Session(1) as session:
        session.seed(7, "init")
        estimator = together(FailingFunction(folder), {"how": how, "ranks": list(numbers)}, size)
        return estimator.replica(CONTEXT)


@pytest.mark.parametrize(
    ("place", "how"), diagonal("errors on ranks", [(2, 1), (3, 1), (3, 2)], ["raises", "runtime"])
)
def test_an_error_on_a_rank_is_raised_with_its_traceback_and_ends_the_others(
    tmp_path: Path, place: tuple[int, int], how: str
) -> None:
    size, rank = place
    replica = failing(tmp_path, size, how, rank)
    pids = ranks_of(size).call(list, os.getpid)[1]
    with pytest.raises((ValueError, RuntimeError), match=r"^the second batch is odd") as caught:
        trained(replica, 0, 1)
    (note,) = caught.value.__notes__
    assert note.startswith(f"Traceback on rank {rank} (pid {pids[rank - 1]}):\n")
    assert "in train_batch" in note
    for pid in pids:
        assert_ends(pid)
    assert not dist.is_initialized()
    trained(built(Trial, tmp_path, size), 0, 1)  # others are started


DEATHS = {"killed": r"was killed by SIGKILL \(.*\)", "exit": r"ended by itself with exit code 3 \(.*\)"}


@pytest.mark.parametrize(("place", "how"), diagonal("dead ranks", [(2, 1), (3, 1), (3, 2)], DEATHS))
def test_a_rank_that_dies_is_named_and_ends_the_others(
    tmp_path: Path, place: tuple[int, int], how: str
) -> None:
    size, rank = place
    replica = failing(tmp_path, size, how, rank)
    pids = ranks_of(size).call(list, os.getpid)[1]
    with pytest.raises(
        WorkerLostError,
        match=rf"^Rank {rank} \(pid {pids[rank - 1]}\) {DEATHS[how]} while it ran the task 'train'\.",
    ):
        trained(replica, 0, 1)
    for pid in pids:
        assert_ends(pid)
    trained(built(Trial, tmp_path, size), 0, 1)


@pytest.mark.parametrize(
    ("numbers", "how"), diagonal("errors on rank 0", [(0,), (0, 1), (0, 1, 2)], ["raises", "runtime"])
)
def test_an_error_on_rank_0_is_raised_as_it_is(tmp_path: Path, numbers: tuple[int, ...], how: str) -> None:
    replica = failing(tmp_path, 3, how, *numbers)
    pids = ranks_of(3).call(list, os.getpid)[1]
    with pytest.raises((ValueError, RuntimeError), match=r"^the second batch is odd$") as caught:
        trained(replica, 0, 1)
    assert not hasattr(caught.value, "__notes__")
    for pid in pids:
        assert_ends(pid)


class Unbuildable(Trial):
    def build_model(self) -> torch.nn.Module:
        if self.context.distributed.rank:
            raise EstimatorError("no model here. Build one.")
        dist.barrier()  # which rank 1 never reaches
        return torch.nn.Linear(4, 2)


def test_a_trial_that_cannot_be_built_on_a_rank_is_its_error(tmp_path: Path) -> None:
    with pytest.raises(EstimatorError, match=r"^no model here\. Build one\.\nTraceback on rank 1 \("):
        built(Unbuildable, tmp_path, 2)


class Sparse(Trial):
    def build_model(self) -> torch.nn.Module:
        return torch.nn.EmbeddingBag(10, 2, sparse=True)

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train_batch(self, batch: Any, model: torch.nn.Module) -> Any:
        return {"loss": model(torch.zeros(2, 2, dtype=torch.int64)).sum()}


def test_sparse_gradients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        EstimatorError, match=r"gradient of shape \(10, 2\) is sparse, .* Leave out sparse=True"
    ):
        trained(built(Sparse, tmp_path, 2), 0, 1)


class Another(TrialEstimator):
    batch_size = 1

    def replica(self, context: Context) -> Replica:
        raise NotImplementedError

    def facts(self) -> Facts:
        raise NotImplementedError


def test_a_trial_of_another_framework_is_refused() -> None:
    with pytest.raises(
        EstimatorError,
        match=r"^resources\.slots_per_trial is 2, but several processes train only a TorchTrial or a function "
        r"together\. Write slots_per_trial: 1, or make the trial one of these\.$",
    ):
        together(lambda params: Another(), {}, 2)


# Ends


def ranks_there(folder: Path) -> list[int]:
    """Start ranks on a worker; their processes."""
    replica = built(Trial, folder, 3)
    trained(replica, 0, 1)
    return ranks_of(3).call(list, os.getpid)[1]


@pytest.mark.parametrize("how", ["stopped", "killed", "killed in the middle"])
def test_ranks_end_with_their_worker(tmp_path: Path, how: str) -> None:
    with LocalBackend(num_workers=1, device="cpu") as backend:
        pids = result_of(backend.submit(0, ranks_there, tmp_path))
        for pid in pids:
            os.kill(pid, 0)  # they stay for the next unit
        if how == "stopped":
            backend.stop()
        else:
            worker = result_of(backend.submit(0, os.getpid))
            if how == "killed":
                os.kill(worker, signal.SIGKILL)
            else:
                future = backend.submit(0, failing_there, tmp_path)
                assert isinstance(error_of(future), WorkerLostError)
        for pid in pids:
            assert_ends(pid)


def failing_there(folder: Path) -> None:
    trained(failing(folder, 3, "killed", 0), 0, 1)


# Functions


def count(context: Any) -> None:
    """Reports the sum of what all ranks know, and saves how far it came."""
    begun = (context.restored() or {"step": 0})["step"]
    for step in range(begun, 4):
        total = torch.tensor(10 * step + context.distributed.rank)
        dist.all_reduce(total)
        context.save({"step": step + 1, "rank": context.distributed.rank})
        context.report(value=float(total), begun=begun)


def test_functions_run_on_all_ranks_from_report_to_report(tmp_path: Path) -> None:
    replica = built(count, tmp_path, 2)
    values = []
    for visit in range(2):
        trained(replica, visit, visit + 1)
        values.append(validated(replica))
    assert values == [{"value": 1.0, "begun": 0.0}, {"value": 21.0, "begun": 0.0}]
    tree = replica.state()
    again = built(count, tmp_path, 2)
    again.load(tree)
    trained(again, 2, 3)
    assert validated(again) == {"value": 41.0, "begun": 2.0}
    (pid,) = ranks_of(2).call(list, os.getpid)[1]
    os.kill(pid, signal.SIGKILL)
    assert_ends(pid)
    trained(again, 3, 4)
    assert validated(again) == {"value": 61.0, "begun": 3.0}
    assert not again.has_ended
    trained(again, 4, 5)
    assert again.has_ended
