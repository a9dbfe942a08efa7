"""Datasets with columns of encoded images, and of names of image files: decoded for every batch, or cached."""

import io
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.sampling import diagonal

from hopyard.data import NodeCache, image, list_cache, mix, open_dataset, prepare
from hopyard.data.recipe import decoding
from hopyard.data.recipe import images as images_module
from hopyard.errors import CorruptError, DataError, NotFoundError, NullsError, UsageError
from hopyard.storage import LocalStore, MemoryStore, open_store

ROWS = 60


def pictures(count=ROWS, height=16, width=24):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def encoded(pixels, kind="JPEG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def jpegs(count=ROWS):
    return [encoded(each) for each in pictures(count)]


def decoded(items):
    """What Pillow makes of images."""
    return np.stack([np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in items])


def write(path, items, **columns):
    kind = pa.string() if isinstance(items[0], str) else pa.binary()
    table = {"id": np.arange(len(items)), "photo": pa.array(items, kind), **columns}
    pq.write_table(pa.table(table), path, row_group_size=11)
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "photos.parquet", jpegs())


@pytest.fixture
def opened(file, tmp_path):
    """Opens the file with the built-in decoder and a cache of its own."""

    def opened(cached=False, **more):
        cache = NodeCache(tmp_path / f"cache-{cached}")
        return open_dataset(file, decode={"photo": image(cached=cached)}, cache=cache, **more)

    return opened


# Rows


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("cores", [1, 2, 5])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_batches_are_the_images_whoever_decodes_them(tmp_path, cached, cores, kind, monkeypatch):
    monkeypatch.setattr(decoding, "usable_cores", lambda: cores)
    items = [encoded(each, kind) for each in pictures()]
    expected = decoded(items)
    path = write(tmp_path / "a.parquet", items)
    dataset = open_dataset(path, decode={"photo": image(cached=cached)}, cache=NodeCache(tmp_path / "cache"))
    assert dataset.schema["photo"].shape == (16, 24, 3)
    for shuffle in (False, True):
        seen = []
        for batch in dataset.loader(7, shuffle=shuffle, seed=3):
            assert batch["photo"].dtype == np.uint8
            assert batch["photo"].flags.writeable
            np.testing.assert_array_equal(batch["photo"], expected[batch["id"]])
            seen += batch["id"].tolist()
        assert sorted(seen) == list(range(ROWS))
    np.testing.assert_array_equal(dataset[[5, 50, -1, 5]]["photo"], expected[[5, 50, -1, 5]])
    assert [np.array_equal(row["photo"], expected[row["id"]]) for row in dataset] == [True] * ROWS


def test_few_different_images_are_decoded_for_every_row(tmp_path):
    items = [jpegs(3)[row * row % 3] for row in range(ROWS)]
    path = write(tmp_path / "a.parquet", items)
    dataset = open_dataset(path, decode={"photo": image()}, cache=NodeCache(tmp_path / "cache"))
    expected = decoded(items)
    for batch in dataset.loader(7, shuffle=True):
        assert np.array_equal(batch["photo"], expected[batch["id"]])


def test_what_is_cached_decides_neither_the_rows_nor_their_order_nor_the_fingerprint(opened):
    lazy, kept = opened(), opened(cached=True)
    assert lazy.fingerprint == kept.fingerprint
    for one, other in zip(
        lazy.loader(7, shuffle=True, window=20_000), kept.loader(7, shuffle=True, window=20_000), strict=True
    ):
        np.testing.assert_array_equal(one["id"], other["id"])
        np.testing.assert_array_equal(one["photo"], other["photo"])


def test_the_node_cache_holds_what_is_encoded_unless_arrays_are_asked_for(opened, file, tmp_path):
    def listed(name):
        return list_cache(NodeCache(tmp_path / name))

    list(open_dataset(file, cache=NodeCache(tmp_path / "cache-raw")).loader(7))
    for cached in (False, True):
        list(opened(cached).loader(7))
    assert listed("cache-False").nbytes == listed("cache-raw").nbytes
    assert listed("cache-True").nbytes > pictures().nbytes > listed("cache-raw").nbytes
    other = open_dataset(file, decode={"photo": image((4, 4))}, cache=NodeCache(tmp_path / "cache-raw"))
    list(other.loader(7))
    assert listed("cache-raw").nbytes == listed("cache-False").nbytes, "other sizes share what is encoded"


def test_a_size_makes_one_shape_of_all_images_and_without_one_the_way_out_is_named(tmp_path):
    items = [encoded(pictures(1, 30 + number, 40)[0]) for number in range(20)]
    path = write(tmp_path / "a.parquet", items)
    sized = open_dataset(path, decode={"photo": image((12, 12), "RGB")}, cache=False)
    assert {batch["photo"].shape for batch in sized.loader(5)} == {(5, 12, 12, 3)}
    with pytest.raises(DataError) as caught:
        list(open_dataset(path, decode={"photo": image()}, cache=False).loader(5))
    assert str(caught.value) == (
        f"{path}, row group 0, column 'photo', row 1 is uint8[31, 40, 3] when decoded, but the dataset has photo: "
        "uint8[30, 40, 3]. All images must have one size and one mode: give decode=image(size=(h, w), mode='RGB')."
    )


def test_batches_are_tensors_and_the_transform_sees_arrays_of_the_loop(opened):
    torch = pytest.importorskip("torch")

    def flipped(batch, rng):
        if rng.random() < 0.5:
            batch["photo"] = batch["photo"].flip(2)
        return batch

    one, same = (list(opened().loader(7, shuffle=True, output="torch", transform=flipped)) for _ in range(2))
    assert all(torch.equal(a["photo"], b["photo"]) for a, b in zip(one, same, strict=True))
    assert {batch["photo"].dtype for batch in one} == {torch.uint8}


def test_prepared_data_is_decoded_too(tmp_path):
    items = jpegs()
    prepare({"photo": items, "id": np.arange(ROWS)}, LocalStore(tmp_path / "store"), validation=None)
    dataset = open_dataset(LocalStore(tmp_path / "store"), decode={"photo": "image"}, cache=False)
    for batch in dataset.loader(9, shuffle=True):
        np.testing.assert_array_equal(batch["photo"], decoded(items)[batch["id"]])


def test_what_is_prepared_of_decoded_images_is_arrays(opened, tmp_path):
    train = prepare(opened(), LocalStore(tmp_path / "store"), validation=None).train
    assert train.schema["photo"].shape == (16, 24, 3)
    for batch in train.loader(9):
        np.testing.assert_array_equal(batch["photo"], decoded(jpegs())[batch["id"]])


def test_a_cached_transform_is_given_arrays_and_only_what_it_makes_is_kept(file, tmp_path):
    cache = NodeCache(tmp_path / "cache")
    means = open_dataset(
        file, decode={"photo": image()}, cache=cache,
        cached_transform=lambda columns: {"id": columns["id"], "mean": columns["photo"].mean((1, 2, 3))},
    )  # fmt: skip
    assert not means.decodes({"mean": "mean"})
    np.testing.assert_allclose(means[:]["mean"], decoded(jpegs()).mean((1, 2, 3)))
    assert list_cache(cache).nbytes < len(jpegs(1)[0]) * ROWS


def test_windows_mixtures_and_partitions_decode_too(opened):
    expected = decoded(jpegs())
    windows = opened().windows(3, step=2)
    mixture = mix([opened(), opened(filters=pc.field("id") < 20)])
    for dataset in (windows, mixture, *opened().partitions(2)):
        assert dataset.decodes({"photo": "photo"})
        assert not dataset.decodes({"id": "id"})
        for batch in dataset.loader(8, shuffle=True):
            np.testing.assert_array_equal(batch["photo"], expected[batch["id"]])


def test_nothing_is_decoded_where_the_column_is_not_asked_for(tmp_path):
    path = write(tmp_path / "a.parquet", [*jpegs(20), b"no image"])
    dataset = open_dataset(path, decode={"photo": image()}, cache=False)
    assert [batch["id"].tolist() for batch in dataset.loader(21, columns=["id"])] == [list(range(21))]


# Loaders


def test_a_state_restores_the_rest_of_the_epoch_on_any_number_of_cores(opened, monkeypatch):
    expected = list(opened().loader(7, shuffle=True, seed=5))
    loader = opened().loader(7, shuffle=True, seed=5)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["rows"] == 21, "what is made ahead does not count"
    batches.close()
    monkeypatch.setattr(decoding, "usable_cores", lambda: 1)
    restored = opened(cached=True).loader(7, shuffle=True)
    restored.load_state_dict(state)
    for one, other in zip(expected[3:], restored, strict=True):
        np.testing.assert_array_equal(one["id"], other["id"])
        np.testing.assert_array_equal(one["photo"], other["photo"])


def test_ranks_get_their_slices(opened):
    whole = [batch["id"] for batch in opened().loader(12, shuffle=True)]
    ranks = [list(opened().loader(4, shuffle=True, rank=rank, world_size=3)) for rank in range(3)]
    for step, ids in enumerate(whole):
        assert np.concatenate([rank[step]["id"] for rank in ranks]).tolist() == ids.tolist()
        photos = np.concatenate([rank[step]["photo"] for rank in ranks])
        np.testing.assert_array_equal(photos, decoded(jpegs())[ids])


def test_frameworks_that_take_the_loader_apart_get_the_same_batches(opened):
    torch = pytest.importorskip("torch")
    expected = list(opened().loader(7, shuffle=True, seed=2, output="torch"))
    loader = opened().loader(7, shuffle=True, seed=2, output="torch")
    rebuilt = torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    for one, other in zip(expected, rebuilt, strict=True):
        assert torch.equal(one["id"], other["id"])
        assert torch.equal(one["photo"], other["photo"])


def test_two_iterations_of_a_loader_at_once_do_not_share_memory(opened):
    expected = decoded(jpegs())
    loader = opened().loader(7)
    for one, other in zip(loader, loader, strict=True):
        for batch in (one, other):
            np.testing.assert_array_equal(batch["photo"], expected[batch["id"]])


def test_datasets_travel_and_decode_alike_where_they_arrive(opened):
    arrived = pickle.loads(pickle.dumps(opened()))
    np.testing.assert_array_equal(arrived[:]["photo"], opened()[:]["photo"])


def test_a_process_with_another_decoder_is_refused(opened, monkeypatch):
    dataset = pickle.loads(pickle.dumps(opened()))
    before = dataset.fingerprint
    monkeypatch.setattr(images_module, "jpeg_codec", lambda: "simplejpeg 0.1")
    with pytest.raises(
        UsageError, match=r"row group 0, column 'photo', row 0: images of the dataset are decoded by"
    ):
        dataset[:1]
    assert opened().fingerprint != before


# Rows that cannot be decoded


def test_a_bad_image_names_file_row_group_column_and_row_also_behind_a_filter(tmp_path):
    items = jpegs()
    items[30] = items[30][:-300]
    path = write(tmp_path / "a.parquet", items)
    for filters in (None, pc.field("id") > 25):
        dataset = open_dataset(path, decode={"photo": image()}, filters=filters, cache=False)
        with pytest.raises(CorruptError) as caught:
            list(dataset.loader(8, shuffle=True))
        text = str(caught.value)
        assert text.startswith(
            f"{path}, row group 2, column 'photo', row 8: its {len(items[30])} bytes, which begin with"
        )
        assert text.endswith("Remove the row, or decode it by a function.")


def test_the_batches_before_a_bad_image_come(tmp_path):
    items = jpegs()
    items[40] = b"no image"
    path = write(tmp_path / "a.parquet", items)
    batches = iter(open_dataset(path, decode={"photo": image()}, cache=False).loader(10))
    assert [next(batches)["id"][0] for _ in range(4)] == [0, 10, 20, 30]
    with pytest.raises(CorruptError, match="row group 3, column 'photo', row 7: its 8 bytes"):
        next(batches)


def test_corrupt_images_are_left_out_with_their_row_groups(tmp_path):
    items = jpegs()
    items[30] = items[30][:-300]
    path = write(tmp_path / "a.parquet", items)
    dataset = open_dataset(path, decode={"photo": image()}, corrupt="skip", cache=False)
    assert len(dataset) == ROWS - 11
    assert [(part.row_group, part.rows) for part in dataset.skipped] == [(2, 11)]
    assert set(dataset[:]["id"]) == {*range(22), *range(33, ROWS)}


@pytest.mark.parametrize("name", ["gone.jpg", ".", "a\0b.jpg", "x" * 300])
def test_names_of_no_file_are_left_out_with_their_row_groups(tmp_path, name):
    names = [f"{row}.jpg" for row in range(4)]
    for each, data in zip(names, jpegs(), strict=False):
        (tmp_path / each).write_bytes(data)
    table = pa.table({"id": range(5), "photo": [*names, name]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    decode = {"photo": image(root=str(tmp_path))}
    with pytest.raises(NotFoundError, match="Mend the name, or remove the row"):
        open_dataset(tmp_path / "a.parquet", decode=decode, cache=False)[:]
    dataset = open_dataset(tmp_path / "a.parquet", decode=decode, cache=False, corrupt="skip")
    assert dataset[:]["id"].tolist() == [0, 1, 2, 3]
    assert [(part.row_group, part.rows) for part in dataset.skipped] == [(2, 1)]


def test_nulls_follow_their_policy(tmp_path):
    items = [None if row % 7 == 3 else item for row, item in enumerate(jpegs())]
    path = write(tmp_path / "a.parquet", items)
    with pytest.raises(NullsError, match="column 'photo' has 9 nulls"):
        open_dataset(path, decode={"photo": image()})
    masked = open_dataset(path, decode={"photo": image()}, nulls="mask", cache=False)
    expected = decoded(jpegs())
    expected[3::7] = 0
    for batch in masked.loader(9, shuffle=True):
        np.testing.assert_array_equal(batch["photo_mask"], batch["id"] % 7 == 3)
        np.testing.assert_array_equal(batch["photo"], expected[batch["id"]])


def test_an_empty_value_is_no_null(tmp_path):
    path = write(tmp_path / "a.parquet", [None, *jpegs(5), b""])
    dataset = open_dataset(path, decode={"photo": image()}, nulls="fill", cache=False)
    with pytest.raises(CorruptError) as caught:
        dataset[:2]
    assert str(caught.value) == (
        f"{path}, row group 0, column 'photo', row 6 is empty, which is no image. Remove the row, or make it null and "
        "say nulls='fill' or nulls='mask'."
    )


# Names of files


@pytest.fixture
def folder(tmp_path):
    """Images in files ``class/N.jpg``."""
    for number, item in enumerate(jpegs()):
        file = tmp_path / "images" / str(number % 2) / f"{number} é.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(item)
    return tmp_path / "images"


def names(prefix=""):
    return [f"{prefix}{number % 2}/{number} é.jpg" for number in range(ROWS)]


@pytest.mark.parametrize(
    ("how", "cached"), diagonal("paths of images", ["absolute", "root", "file URL", "store"], [False, True])
)
def test_a_column_of_paths_is_decoded_from_the_files(tmp_path, folder, how, cached):
    prefix = {"absolute": f"{folder}/", "file URL": f"file://{folder}/"}.get(how, "")
    root = {"root": folder, "store": LocalStore(folder)}.get(how)
    path = write(tmp_path / "a.parquet", names(prefix))
    dataset = open_dataset(
        path, decode={"photo": image(root=root, cached=cached)}, cache=NodeCache(tmp_path / "cache")
    )
    for batch in dataset.loader(9, shuffle=True):
        np.testing.assert_array_equal(batch["photo"], decoded(jpegs())[batch["id"]])


@pytest.mark.parametrize("absolute", [True, False])
def test_a_column_of_urls_is_decoded_from_the_objects(tmp_path, absolute):
    store = MemoryStore("pictures")
    for name, item in zip(names(), jpegs(), strict=True):
        store.put(f"some/{name.replace(' é', '')}", item)
    named = [name.replace(" é", "") for name in names("memory://pictures/some/" if absolute else "")]
    path = write(tmp_path / "a.parquet", named)
    root = None if absolute else "memory://pictures/some"
    dataset = open_dataset(path, decode={"photo": image(root=root)}, cache=NodeCache(tmp_path / "cache"))
    for batch in dataset.loader(9, shuffle=True):
        np.testing.assert_array_equal(batch["photo"], decoded(jpegs())[batch["id"]])


def test_other_roots_are_other_datasets(tmp_path, folder):
    path = write(tmp_path / "a.parquet", names())
    copied = tmp_path / "copied"
    folder.rename(copied)
    folder.symlink_to(copied)
    made = [
        open_dataset(path, decode={"photo": image(root=root)}, cache=False)
        for root in (folder, copied, str(folder))
    ]
    assert made[0].fingerprint == made[2].fingerprint != made[1].fingerprint


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("{folder}/0/no.jpg", NotFoundError, "there is no file {folder}/0/no.jpg. Mend the name, or remove the row."),
        ("{folder}/0/0 é.jpg/x", NotFoundError, "there is no file {folder}/0/0 é.jpg/x. Mend the name"),
        ("{folder}/0", NotFoundError, "'{folder}/0' is a directory. Mend the name, or remove the row."),
        ("{folder}/text", CorruptError, "{folder}/text: its 8 bytes, which begin with b'no image', cannot be decoded"),
        ("0/0 é.jpg", UsageError, "a relative path, and nothing says what it is relative to. Give image(root=...)"),
        ("http://host/0.jpg", UsageError, "has the scheme 'http', but a store is a path or begins with one of"),
        ("memory://pictures/no.jpg", NotFoundError, "no.jpg"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_names_the_row_and_the_next_step(tmp_path, folder, name, error, text):
    (folder / "text").write_bytes(b"no image")
    open_store("memory://pictures").put("some.jpg", jpegs(1)[0])
    good = names(f"{folder}/")
    good[13] = name.format(folder=folder)
    path = write(tmp_path / "a.parquet", good)
    dataset = open_dataset(path, decode={"photo": image()}, cache=False)
    with pytest.raises(error) as caught:
        dataset[:]
    assert str(caught.value).startswith(f"{path}, row group 1, column 'photo', row 2: ")
    assert text.format(folder=folder) in str(caught.value)


def test_names_of_files_are_decoded_as_images_only(tmp_path, folder):
    path = write(tmp_path / "a.parquet", names(f"{folder}/"))
    with pytest.raises(
        DataError, match=r"column 'photo' is photo: string\. .*Names of image files are decoded by"
    ):
        open_dataset(path, decode={"photo": lambda raw: np.zeros(3)})
    with pytest.raises(UsageError, match=r"root=5 must be the folder, the URL or the store"):
        image(root=5)
