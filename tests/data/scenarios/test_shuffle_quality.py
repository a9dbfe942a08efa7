"""Shuffled batches are as good as batches drawn independently: their means vary no more."""

import numpy as np
import pytest

from hopyard.data import open_dataset

ROWS = 20_000
BATCH = 32
EPOCHS = 4
WORST = 1.2  # times as much as independent draws; chance alone gives less than 1.1 of 2,500 batches


def variation(batches):
    """Variance of the batches' mean places, which are uniform in [0, 1), in units of independent draws."""
    full = [batch for batch in batches if len(batch) == BATCH]
    return np.var([batch.mean() - 0.5 for batch in full], mean=0) * 12 * BATCH


@pytest.mark.parametrize("seed", [0, 1])
def test_batches_of_a_permutation_of_all_rows_vary_as_independent_draws(mapped, seed):
    loader = mapped([[1000] * 10, [500] * 20]).loader(BATCH, True, seed, columns=["id"])
    places = [batch["id"] / ROWS for _ in range(EPOCHS) for batch in loader]
    assert 0.8 < variation(places) < WORST


@pytest.mark.parametrize("seed", [0, 1])
def test_batches_within_a_window_vary_as_independent_draws_from_it(write, seed):
    dataset = open_dataset(write([[500] * 40], columns=["id"]))
    window = 4000  # rows, of 8 bytes
    loader = dataset.loader(BATCH, True, seed, window=window * 8)
    places = []
    for _ in range(EPOCHS):
        order = np.concatenate([batch["id"] for batch in loader])
        for start in range(3 * 500, ROWS - window + 1, window):  # behind the first two, which are smaller
            inside = order[start : start + window]
            assert len(np.unique(inside // 500)) == 8, "a window is whole row groups"
            ranks = (np.argsort(np.argsort(inside)) + 0.5) / window
            places += np.split(ranks, window // BATCH)
    assert 0.8 < variation(places) < WORST


def test_the_row_groups_of_a_window_are_drawn_from_everywhere(write):
    dataset = open_dataset(write([[10] * 200], columns=["id"]))
    means = []
    for seed in range(60):
        loader = dataset.loader(10, True, seed, window=200 * 8)  # 20 row groups of 200
        order = np.concatenate([batch["id"] for batch in loader])
        means += [np.unique(order[start : start + 200] // 10).mean() for start in range(60, 1860, 200)]
    independent = np.var(np.arange(200)) / 20 * (1 - 20 / 200)  # of 20 drawn without putting back
    assert 0.8 < np.var(means) / independent < WORST


def test_neighbours_in_the_files_are_not_neighbours_in_the_stream(mapped):
    loader = mapped([[1000] * 20]).loader(BATCH, True, seed=3, columns=["id"])
    orders = [np.concatenate([batch["id"] for batch in loader]) for _ in range(EPOCHS)]
    for order in orders:
        assert (np.abs(np.diff(order)) == 1).sum() < 12, "two are expected by chance"
        lag = np.corrcoef(order[:-1], order[1:])[0, 1]
        assert abs(lag) < 4 / np.sqrt(ROWS)
    assert abs(np.corrcoef(orders[0], orders[1])[0, 1]) < 4 / np.sqrt(ROWS)
