"""Three whole streams, fixed forever: no version of a library changes what a training run reads."""

from hopyard.data import open_dataset

MAPPED = [
    [20, 27, 23, 22, 32, 19, 3, 17, 4, 15, 28, 24, 10, 26, 2, 12, 13, 11, 0, 5, 8, 30, 29, 7, 34,
    16, 33, 21, 6, 25, 9, 1, 31, 14, 18], [21, 26, 11, 33, 22, 13, 0, 2, 3, 12, 19, 5, 30, 29, 16,
    31, 10, 24, 8, 18, 25, 34, 9, 14, 23, 15, 17, 1, 28, 4, 32, 7, 27, 20, 6],
]  # fmt: skip
DECODED = [
    [9, 8, 7, 10, 11, 21, 29, 35, 38, 36, 37, 28, 34, 33, 30, 31, 39, 32, 24, 5, 23, 27, 4, 1, 2, 6,
    22, 25, 26, 0, 3, 19, 16, 17, 12, 20, 14, 15, 13, 18], [25, 24, 27, 26, 22, 23, 29, 32, 36, 31,
    30, 38, 35, 28, 39, 33, 34, 37, 13, 7, 21, 14, 9, 11, 17, 19, 15, 12, 8, 16, 20, 18, 10, 1, 6,
    4, 0, 5, 2, 3],
]  # fmt: skip
RANKS = [
    [[12, 19, 0, 4, 18], [2, 3, 9, 17, 14], [13, 11]], [[5, 10, 15, 21, 1], [7, 16, 8, 20, 22], [6,
    12]],
]  # fmt: skip


def test_a_mapped_stream_is_fixed_forever(mapped, rows):
    loader = mapped([[10, 10], [10, 5]]).loader(8, True, seed=3)
    assert [rows.ids(loader) for _ in range(2)] == MAPPED


def test_a_stream_decoded_in_windows_is_fixed_forever(write, rows):
    # Columns of fixed width: how many bytes others are in a file is up to the library that wrote it.
    dataset = open_dataset(write([[7, 5], [9, 1], [6, 12]], columns=["id", "x"]))
    loader = dataset.loader(8, True, seed=11, window=12 * 17)
    assert loader.state_dict()["window"] == 17
    assert [rows.ids(loader) for _ in range(2)] == DECODED


def test_the_streams_of_two_ranks_are_fixed_forever(write, rows):
    dataset = open_dataset(write([[10], [3, 10]], columns=["id", "x"]))
    loaders = [
        dataset.loader(5, True, seed=0, rank=rank, world_size=2, remainder="repeat") for rank in (0, 1)
    ]
    assert [[batch["id"].tolist() for batch in loader] for loader in loaders] == RANKS
