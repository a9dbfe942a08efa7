"""Small files in the exact original formats, written byte for byte as their authors' programs did."""

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image


def py2_pickle(value):
    """As cPickle of Python 2 writes it with protocol 2: texts are BINSTRINGs, arrays are of numpy.core."""
    return b"\x80\x02" + _py2(value) + b"."


def _py2(value):
    if isinstance(value, dict):
        return b"}(" + b"".join(_py2(key) + _py2(each) for key, each in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_py2, value)) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, np.ndarray):
        array = (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
            + _py2(0)
            + b"\x85"
            + _py2("b")
            + b"tR"
        )
        dtype = b"cnumpy\ndtype\n" + _py2("u1") + _py2(0) + _py2(1) + b"\x87R"
        dtype += b"(" + _py2(3) + _py2("|") + b"NNN" + _py2(-1) * 2 + _py2(0) + b"tb"
        shape = b"(" + b"".join(map(_py2, value.shape)) + b"t"
        return array + b"(" + _py2(1) + shape + dtype + b"\x89" + _py2(value.tobytes()) + b"tb"
    text = value if isinstance(value, bytes) else value.encode("latin1")
    return (b"U" + bytes([len(text)]) if len(text) < 256 else b"T" + struct.pack("<i", len(text))) + text


def tar(path, files, mode="w"):
    """Name -> bytes as an archive; folders have entries of their own, as in the originals."""
    path = Path(path)
    with tarfile.open(path, mode) as archive:
        for folder in dict.fromkeys(name.rpartition("/")[0] for name in files if "/" in name):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def unpack(folder, files):
    for name, data in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Path(folder)


def cifar10(rows=4, seed=0):
    """The files of the archive, and the columns that they hold."""
    rng = np.random.default_rng(seed)
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    data = {name: rng.integers(0, 256, (rows, 3072), np.uint8) for name in names}
    labels = {name: rng.integers(0, 10, rows).tolist() for name in names}
    files = {
        f"cifar-10-batches-py/{name}": py2_pickle(
            {
                "data": data[name],
                "labels": labels[name],
                "batch_label": f"training batch of {name}",
                "filenames": [f"{name}_{n}.png" for n in range(rows)],
            }
        )
        for name in names
    }
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    meta = {"num_cases_per_batch": rows, "label_names": classes, "num_vis": 3072}
    files["cifar-10-batches-py/batches.meta"] = py2_pickle(meta)
    files["cifar-10-batches-py/readme.html"] = b"<html></html>"
    train, test = names[:5], names[5]
    return files, {
        "image": np.concatenate([data[name] for name in train]).reshape(-1, 3, 32, 32),
        "label": np.concatenate([labels[name] for name in train]),
        "test-image": data[test].reshape(-1, 3, 32, 32),
        "test-label": np.array(labels[test]),
    }


def cifar100(rows=4, seed=0):
    rng = np.random.default_rng(seed)
    files, columns = {}, {}
    for name, prefix in (("train", ""), ("test", "test-")):
        data = rng.integers(0, 256, (rows, 3072), np.uint8)
        fine, coarse = rng.integers(0, 100, rows).tolist(), rng.integers(0, 20, rows).tolist()
        columns |= {
            f"{prefix}image": data.reshape(-1, 3, 32, 32),
            f"{prefix}label": np.array(fine),
            f"{prefix}coarse-label": np.array(coarse),
        }
        files[f"cifar-100-python/{name}"] = py2_pickle(
            {
                "data": data,
                "fine_labels": fine,
                "coarse_labels": coarse,
                "batch_label": name,
                "filenames": ["a"] * rows,
            }
        )
    fine_names = [f"fine{n}" for n in range(100)]
    meta = {"fine_label_names": fine_names, "coarse_label_names": [f"coarse{n}" for n in range(20)]}
    files["cifar-100-python/meta"] = py2_pickle(meta)
    return files, columns


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(rows=5, seed=0, packed=True):
    rng = np.random.default_rng(seed)
    columns = {
        "image": rng.integers(0, 256, (rows, 28, 28), np.uint8),
        "label": rng.integers(0, 10, rows, np.uint8),
        "test-image": rng.integers(0, 256, (rows - 2, 28, 28), np.uint8),
        "test-label": rng.integers(0, 10, rows - 2, np.uint8),
    }
    names = [
        "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
    ]  # fmt: skip
    plain = {name: idx(array) for name, array in zip(names, columns.values(), strict=True)}
    return {f"{n}.gz": gzip.compress(data) for n, data in plain.items()} if packed else plain, columns


def encoded(pixels, form="PNG", mode=None, **options):
    """An image file's bytes, of pixels (h, w), (h, w, c) or of a Pillow image."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, form, **options)
    return file.getvalue()


def palette_mask(indices):
    image = Image.new("P", indices.shape[::-1])
    image.putdata(indices.reshape(-1).tolist())
    image.putpalette([value for n in range(256) for value in (n, 255 - n, 7)])
    return image


def voc(seed=0, base="VOCdevkit/VOC2012"):
    """The files, and for each split the ids and the masks' indices; images are JPEGs of different sizes."""
    rng = np.random.default_rng(seed)
    files, splits = (
        {},
        {"train": ["2007_000032", "2007_000039", "2007_000063"], "val": ["2007_000033", "2007_000042"]},
    )
    masks = {}
    for number, name in enumerate(splits["train"] + splits["val"]):
        shape = (6 + number, 9)
        files[f"{base}/JPEGImages/{name}.jpg"] = encoded(rng.integers(0, 256, (*shape, 3), np.uint8), "JPEG")
        masks[name] = rng.choice(np.array([0, 1, 20, 255], np.uint8), shape)
        files[f"{base}/SegmentationClass/{name}.png"] = encoded(palette_mask(masks[name]))
    files[f"{base}/JPEGImages/2007_009999.jpg"] = b"of another task"
    for split, ids in splits.items():
        files[f"{base}/ImageSets/Segmentation/{split}.txt"] = ("\n".join(ids) + "\n").encode()
    return files, splits, masks


def saved_to_disk(folder, tables, features, **state):
    """As ``datasets`` 3 saves a dataset: Arrow streams, state.json and dataset_info.json."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-{len(tables):05d}.arrow" for n in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    whole = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0123456789abcdef",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": "train",
    }
    (folder / "state.json").write_text(json.dumps(whole | state, indent=2, sort_keys=True))
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2, sort_keys=True))
    return folder
