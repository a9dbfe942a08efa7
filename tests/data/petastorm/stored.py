"""The dataset that Petastorm wrote, the schemas of its versions, and how tests change a copy."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.files.unischema import METADATA_NAME, UNISCHEMA_KEY, read_unischema

HERE = Path(__file__).parent


DATASET = HERE / "dataset"


PICKLES = {
    key: base64.b64decode(text) for key, text in json.loads((HERE / "unischemas.json").read_text()).items()
}


NOT_ALIKE = ("words", "sizes")  # texts in arrays, images of several sizes


COLUMNS = [name for name in read_unischema(DATASET) if name not in NOT_ALIKE]


def files_of(directory):
    return sorted(directory.rglob("*.parquet"))


def replaced(file, name, values, groups=None):
    """Write a file again with another column, or without one; bytes keep the type that was stored."""
    table = pq.ParquetFile(file).read()
    place = table.schema.get_field_index(name)
    if values is None:
        table = table.remove_column(place)
    else:
        array = values if isinstance(values, pa.Array) else pa.array(values, table.schema.field(name).type)
        table = table.set_column(place, pa.field(name, array.type), array)
    pq.write_table(table, file, row_group_size=groups)


def stored(file, name):
    return pq.ParquetFile(file).read()[name].to_pylist()


def saved(array):
    memory = io.BytesIO()
    np.save(memory, array)
    return memory.getvalue()


def with_schema(directory, pickled):
    schema = pa.schema([("id", pa.int64())]).with_metadata({UNISCHEMA_KEY: pickled})
    pq.write_metadata(schema, directory / METADATA_NAME)


def rows_of(dataset):
    """The rows of a dataset in the order of ``id``."""
    batch = dataset[:]
    order = np.argsort(batch["id"])
    return {name: values[order] for name, values in batch.items()}
