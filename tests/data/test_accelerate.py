"""Accelerate's own loops over the loader; what it reads ahead is not in the state."""

import os

import pytest

if os.environ.get("CI") != "true":  # there it must not be missing
    pytest.importorskip("accelerate")

from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, GradientState, PartialState


@pytest.fixture(autouse=True)
def own_state():
    """Accelerate keeps what it knows for the process."""
    yield
    for state in AcceleratorState, PartialState, GradientState:
        state._reset_state()


@pytest.fixture
def dataset(make_dataset):
    return make_dataset([[10, 10, 7]], ("id", "image"))


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_a_prepared_loader_gives_the_same_stream(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch", num_workers=2)
    prepared = Accelerator(cpu=True).prepare(loader)
    expected = dataset.loader(4, shuffle=True)
    assert len(prepared) == 7
    for _ in range(2):
        assert ids(prepared) == ids(expected)


def test_a_state_taken_in_the_loop_counts_what_the_loop_has_seen(dataset):
    whole = ids(dataset.loader(4, shuffle=True, seed=2))
    loader = dataset.loader(4, shuffle=True, seed=2, output="torch")
    prepared = Accelerator(cpu=True).prepare(loader)
    states = []
    for number, batch in enumerate(prepared):
        assert batch["id"].tolist() == whole[number]
        states.append(loader.state_dict())
    assert loader.state_dict()["rows"] == 27
    for number, state in enumerate(states):
        assert state["rows"] == min(27, 4 * (number + 1))
        again = dataset.loader(4, output="torch")
        again.load_state_dict(state)
        assert ids(Accelerator(cpu=True).prepare(again)) == whole[number + 1 :]


def test_a_loop_that_was_left_early_counts_what_it_has_seen(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch")
    prepared = Accelerator(cpu=True).prepare(loader)
    for number, _ in enumerate(prepared):
        if number == 2:
            break
    assert loader.state_dict()["rows"] == 12


def test_accelerate_saves_and_restores_a_registered_loader(dataset, tmp_path):
    whole = ids(dataset.loader(4, shuffle=True, epoch=1))
    accelerator = Accelerator(cpu=True)
    loader = dataset.loader(4, shuffle=True, epoch=1, output="torch")
    accelerator.register_for_checkpointing(loader)
    for number, _ in enumerate(accelerator.prepare(loader)):
        if number == 3:
            accelerator.save_state(str(tmp_path))
    accelerator = Accelerator(cpu=True)
    again = dataset.loader(4, shuffle=True, output="torch")
    accelerator.register_for_checkpointing(again)
    prepared = accelerator.prepare(again)
    accelerator.load_state(str(tmp_path))
    assert ids(prepared) == whole[4:]


def test_first_batches_can_be_skipped(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch")
    prepared = skip_first_batches(Accelerator(cpu=True).prepare(loader), 2)
    rows = []
    for _ in prepared:
        rows.append(loader.state_dict()["rows"])
    assert rows == [12, 16, 20, 24, 27]


@pytest.mark.parametrize(("batch_size", "processes"), [(4, 2), (4, 3), (3, 3), (5, 2), (27, 2)])
def test_processes_take_equal_steps_and_no_row_is_lost(dataset, batch_size, processes):
    PartialState(cpu=True)
    seen, steps, states = [], [], []
    for process in range(processes):
        loader = dataset.loader(batch_size, shuffle=True, output="torch")
        prepared = prepare_data_loader(loader, num_processes=processes, process_index=process)
        states.append([])
        batches = []
        for batch in prepared:
            batches.append(batch["id"].tolist())
            states[-1].append(loader.state_dict()["rows"])
        assert len(batches) == len(prepared)
        steps.append([len(batch) for batch in batches])
        seen += [row for batch in batches for row in batch]
    assert set(seen) == set(range(27))
    assert all(each == steps[0] for each in steps)
    assert len(seen) - 27 < processes * batch_size  # Accelerate fills up the last step from the first rows
    assert all(each == states[0] for each in states)
    assert states[0] == [min(27, processes * batch_size * (step + 1)) for step in range(len(states[0]))]


def test_full_steps_of_processes_are_those_of_ranks(dataset):
    PartialState(cpu=True)
    for process in range(2):
        loader = dataset.loader(4, shuffle=True, output="torch")
        prepared = prepare_data_loader(loader, num_processes=2, process_index=process)
        ranked = dataset.loader(4, shuffle=True, rank=process, world_size=2)
        assert ids(prepared)[:3] == ids(ranked)[:3]


def test_a_real_loop_resumes_to_the_same_weights(dataset):
    import torch

    def train(state, weights, stop=None):
        """The weights, and what goes on from there."""
        accelerator = Accelerator(cpu=True)
        torch.manual_seed(0)
        model = torch.nn.Linear(15, 1)
        if weights is not None:
            model.load_state_dict(weights)
        loader = dataset.loader(4, shuffle=True, output="torch")
        if state is not None:
            loader.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader)
        for number, batch in enumerate(batches):
            loss = (model(batch["image"].flatten(1)).squeeze(1) - batch["id"]).square().mean() / 1000
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if number == stop:
                break
        return accelerator.unwrap_model(model).state_dict(), loader.state_dict()

    whole, _ = train(None, None)
    half, state = train(None, None, stop=2)
    rest, _ = train(state, half)
    assert all(torch.equal(whole[name], rest[name]) for name in whole)
