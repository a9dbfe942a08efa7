"""Schemas, manifests and ragged rows survive the way to JSON and back, and say what is wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.manifest import MANIFEST_DOMAIN, ColumnStatistics, FileEntry, Manifest
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.errors import ColumnError, CorruptError, FormatError
from hopyard.objects.digests import digest_json

SCHEMA = Schema(
    [Column("image", "tensor", "uint8", (28, 28)), Column("label", "tensor", "int64"), Column("text", "string"),
     Column("ids", "ragged", "int32")]
)  # fmt: skip
MANIFEST = Manifest(
    "train",
    "ab" * 32,
    SCHEMA,
    (FileEntry("a.parquet", 100, "aa", "0a", (10, 10, 3)), FileEntry("b.parquet", 50, "bb", "0b", (10,))),
    {"label": ColumnStatistics(0, 9, 4.5, 2.9, distinct=(0, 1, 9)), "text": ColumnStatistics(missing=2)},
    {"seed": 3, "validation": 0.25},
    "2026-01-01T00:00:00+00:00",
)


def test_a_schema_survives_json():
    assert Schema.from_json(json.loads(json.dumps(SCHEMA.to_json()))) == SCHEMA
    assert hash(Schema(SCHEMA.columns)) == hash(SCHEMA)
    assert SCHEMA.select(["label", "image", "text", "ids"]) != SCHEMA


def test_a_schema_reads_well():
    assert str(SCHEMA) == "image: uint8[28, 28], label: int64, text: string, ids: int32[*]"
    assert SCHEMA["image"].width == 784
    assert SCHEMA["text"].width is None
    assert "label" in SCHEMA
    assert "lable" not in SCHEMA


def test_an_unknown_column_is_named_with_those_there_are_and_the_nearest():
    with pytest.raises(ColumnError) as caught:
        SCHEMA["lable"]
    assert str(caught.value) == (
        "Unknown column: 'lable'; did you mean 'label'? The columns there are: image, label, text, ids."
    )
    with pytest.raises(ColumnError, match="Unknown columns: 'xyz', 'imag'; did you mean 'image'"):
        SCHEMA.select(["label", "xyz", "imag"])


def test_a_manifest_survives_its_bytes():
    back = Manifest.from_bytes(MANIFEST.to_bytes())
    assert back == MANIFEST
    assert (back.rows, back.nbytes, back.num_row_groups) == (33, 150, 4)
    assert back.group_rows().tolist() == [10, 10, 3, 10]


def test_row_groups_are_numbered_through_all_files():
    assert [MANIFEST.locate(group) for group in range(4)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    with pytest.raises(IndexError, match="row group 4 of 4"):
        MANIFEST.locate(4)


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-20], lambda b: b"[]", lambda b: b.replace(b'"rows": 33', b'"rows": 34'),
     lambda b: b.replace(b'"ragged"', b'"ragger"'), lambda b: b.replace(b'"kind": "dataset"', b'"kind": 3')],
)  # fmt: skip
def test_a_damaged_manifest_is_named(damage):
    with pytest.raises(CorruptError, match=r"store/manifest\.json"):
        Manifest.from_bytes(damage(MANIFEST.to_bytes()), "store/manifest.json")


def test_a_manifest_with_an_unknown_feature_is_refused():
    fields = json.loads(MANIFEST.to_bytes())
    fields["format"]["flags"] = ["encrypted"]
    del fields["digest"]
    fields["digest"] = digest_json(fields, MANIFEST_DOMAIN)
    with pytest.raises(FormatError, match="uses 'encrypted'"):
        Manifest.from_bytes(json.dumps(fields).encode())


def test_an_empty_column_statistics_is_kept_as_unknown():
    manifest = replace(MANIFEST, statistics={"text": ColumnStatistics()})
    assert Manifest.from_bytes(manifest.to_bytes()).statistics["text"] == ColumnStatistics()


lists = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=8)


@given(
    rows=lists, picks=st.lists(st.integers(0, 7), max_size=10), bounds=st.tuples(*[st.integers(-9, 9)] * 2)
)
def test_ragged_rows_behave_as_a_list_of_arrays(rows, picks, bounds):
    ragged = Ragged.from_rows(rows, np.int64)
    assert len(ragged) == len(rows)
    assert [row.tolist() for row in ragged] == rows
    assert [row.tolist() for row in ragged[slice(*bounds)]] == rows[slice(*bounds)]
    assert [row.tolist() for row in ragged[:: -1 if len(rows) % 2 else 2]] == rows[
        :: -1 if len(rows) % 2 else 2
    ]
    picks = [pick for pick in picks if pick < len(rows)]
    assert [row.tolist() for row in ragged.take(picks)] == [rows[pick] for pick in picks]
    assert Ragged.concatenate([ragged, ragged]) == Ragged.from_rows(rows + rows, np.int64)
    if rows:
        assert ragged[-1].tolist() == rows[-1]
    with pytest.raises(IndexError):
        ragged[len(rows)]
