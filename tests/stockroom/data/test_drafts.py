"""Writing columns: what samples may be, keys, and that nothing is half written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from hopyard.errors import DataError, StorageFullError, UsageError
from hopyard.objects.tensors import Tensor
from hopyard.stockroom.data import ColumnDraft, SampleColumn, drafts
from hopyard.stockroom.maps import encode
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.storage import MemoryStore

Publish = Callable[[ColumnDraft], SampleColumn]
RANDOM = np.random.default_rng(0)


# What a sample may be


@pytest.mark.parametrize("dtype", ["bool", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("large", [False, True])
def test_arrays_of_every_layout_come_back_bit_for_bit(
    dtype: str, large: bool, draft: ColumnDraft, published: Publish
) -> None:
    array = RANDOM.integers(0, 2, (3000 if large else 6, 4, 6)).astype(dtype)
    if array.dtype.kind == "f":
        array[0, 0, :3] = np.nan, -0.0, np.inf
    layouts = [
        array,
        np.asfortranarray(array),
        array[::-1, ::-2],
        array.astype(array.dtype.newbyteorder(">")),
    ]
    for layout in layouts:
        draft.replace(layout)
        column = published(draft)
        found = np.asarray(column)
        assert found.dtype == array.dtype
        assert column.dtype == array.dtype.name
        assert found.tobytes() == np.ascontiguousarray(layout, array.dtype).tobytes()
        assert column[2].tobytes() == np.ascontiguousarray(layout[2], array.dtype).tobytes()
        assert column[2].flags.writeable


@pytest.mark.parametrize("dtype", ["bool", "u1", "i8", "f2", "f8", "c8"])
def test_single_numbers_come_back_as_scalars_of_their_dtype(
    dtype: str, draft: ColumnDraft, published: Publish
) -> None:
    numbers = np.array([1, 0, 1]).astype(dtype)
    draft.replace(numbers)
    draft[3] = draft[0]
    column = published(draft)
    assert column.dtype == numbers.dtype.name
    for found in (draft[0], column[0], *column.values()):
        assert type(found) is numbers.dtype.type
    assert {column[key] for key in column} == set(numbers.tolist())


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32, torch.complex64, torch.bool],
)
def test_tensors_of_pytorch_come_back(dtype: torch.dtype, draft: ColumnDraft, published: Publish) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype).transpose(1, 2)
    if dtype == torch.float32:
        tensor.requires_grad_()
    draft.extend(tensor)
    draft[7] = tensor[1]
    column = published(draft)
    wanted = [tensor[0], tensor[1], tensor[1]]
    for found, value in zip([*column.values(), *column.take([0, 1, 2])], wanted * 2, strict=True):
        assert torch.equal(
            torch.as_tensor(found).view(torch.uint8), value.detach().contiguous().view(torch.uint8)
        )
    assert column.dtype == str(dtype).removeprefix("torch.")
    if dtype == torch.bfloat16:
        assert column[0].dtype == column[[0, 1]].dtype == dtype
        with pytest.raises(DataError, match=r"bfloat16, which NumPy lacks"):
            np.asarray(column)


def test_arrays_of_jax_come_back(draft: ColumnDraft, published: Publish) -> None:
    draft.extend(jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3))
    draft.extend([jnp.ones(3, jnp.bfloat16)])
    assert published(draft)[[0, 1, 2]].tolist() == [[0, 1, 2], [3, 4, 5], [1, 1, 1]]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(3, "int64"), (2.5, "float64"), (True, "bool"), (1j, "complex128"), ([[1, 2]], "int64"), ([1, 2.5], "float64"),
     (2**63, "uint64"), (Tensor.from_numpy(np.ones(1, np.float32)), "float32"), (np.float16(1), "float16")],
)  # fmt: skip
def test_numbers_and_lists_are_tensors(
    value: Any, dtype: str, draft: ColumnDraft, published: Publish
) -> None:
    draft["a"] = value
    draft.extend([value, value])
    column = published(draft)
    assert column.dtype == dtype
    wanted = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    for found in column.values():
        assert_array_equal(found, wanted)


def test_numbers_take_the_columns_dtype_where_that_is_exact(draft: ColumnDraft) -> None:
    draft.create(dtype="float32")
    draft.extend([1, 2.5, 3])
    draft["x"] = 2**20
    assert draft["x"].dtype == np.float32
    for value in (0.1, 2**24 + 1, True, 1j):
        with pytest.raises(
            DataError, match=r"'x' is .*which float32, the dtype of the others, cannot hold exactly"
        ):
            draft["x"] = value
    assert draft["x"] == 2**20


@pytest.mark.parametrize(
    "values",
    [["", "a", "\N{SNOWMAN}\0x", "x" * 3_000_000], [b"", b"\0", bytes(3_000_000)], [np.str_("a"), "b"],
     [bytearray(b"x"), memoryview(b"y")]],
)  # fmt: skip
def test_strings_and_bytes_of_any_size_come_back(
    values: list[Any], draft: ColumnDraft, published: Publish
) -> None:
    draft.extend(values)
    column = published(draft)
    wanted = [value if isinstance(value, str) else bytes(value) for value in values]
    assert list(column.values()) == column[...] == [column[n] for n in range(len(values))] == wanted


@pytest.mark.parametrize("dtype", ["U3", "S3", np.dtypes.StringDType()])
def test_arrays_of_text_are_text(dtype: Any, draft: ColumnDraft, published: Publish) -> None:
    array = np.array(["a", "bcd"]).astype(dtype)
    draft.extend(array)
    draft["last"] = array[0]
    assert published(draft)[...] == [*array.tolist(), array.tolist()[0]]


def test_samples_of_different_lengths_in_one_call_make_lengths_vary(
    draft: ColumnDraft, published: Publish
) -> None:
    arrays = [RANDOM.normal(size=(3, n, 4 + n % 2)) for n in (0, 5, 2)]
    draft.extend(arrays)
    draft.update({"more": np.ones((3, 1, 1))})
    column = published(draft)
    assert column.shape == (3, None, None)
    for found, wanted in zip(column[...], [*arrays, np.ones((3, 1, 1))], strict=True):
        assert_array_equal(found, wanted, strict=True)


def test_empty_arrays_of_different_shapes_are_different_samples(
    draft: ColumnDraft, published: Publish
) -> None:
    shapes = [(0, 3), (3, 0), (0, 0), (2, 6), (6, 2), (3, 4)]
    draft.update({str(shape): np.zeros(shape) for shape in shapes})
    column = published(draft)
    assert [column[str(shape)].shape for shape in shapes] == shapes


def obj(*values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.datetime64("2020-01-01"), r"times: convert it with \.astype\('int64'\) and say"),
        (obj(1, "a"), "dtype object.*tolist.* of text, or arrays if their shapes differ"),
        ([[1], [1, 2]], "list whose parts differ in length"),
        (["a", "b"], "list of text.*nested column"),
        (None, "type builtins.NoneType. Samples are arrays, numbers, strings or bytes"),
        ({1, 2}, "type builtins.set"),
        (np.ma.masked_array([1, 2], [True, False]), "masked array.*fill it"),
        (np.zeros(2, [("a", "i4")]), r"dtype \[\('a', '<i4'\)\]"),
        ("\ud800", "half of a surrogate pair"),
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo.*to_dense"),
        (
            torch.empty(2, dtype=torch.bits8),
            r"dtype torch.bits8. Convert it with .to\(...\) to one of float64",
        ),
        (np.array(["a"]), "array of text"),
        ({}, "dict without parts"),
    ],
)
def test_what_is_no_sample_is_refused_with_advice(value: Any, text: str, draft: ColumnDraft) -> None:
    with pytest.raises(
        DataError, match=f"(?s)column 'image': the sample 'key' .*{text}.*Nothing was written"
    ):
        draft["key"] = value
    assert len(draft) == 0
    assert draft.flush() is None


@pytest.mark.parametrize("values", ["text", b"bytes", 3, np.float32(1), {"a": 1}])
def test_extending_takes_many_samples(values: Any, draft: ColumnDraft) -> None:
    with pytest.raises(DataError, match=r"column 'image' is extended with"):
        draft.extend(values)


def test_appending_adds_one_sample_under_the_next_int(draft: ColumnDraft) -> None:
    assert [draft.append(np.full((2, 3), n, np.float32)) for n in (4, 5)] == [0, 1]
    draft[7] = np.zeros((2, 3), np.float32)
    assert draft.append(np.ones((2, 3), np.float32)) == 8
    with pytest.raises(DataError, match=r"the sample 9 is float32 of shape \(3,\), but the column holds"):
        draft.append(np.ones(3, np.float32))
    assert list(draft) == [0, 1, 7, 8]
    assert draft[1].tolist() == [[5.0] * 3] * 2


@pytest.mark.parametrize("format", ["csr", "coo", "dia", "dok"])
def test_sparse_matrices_are_refused_with_advice(format: str, draft: ColumnDraft) -> None:
    sparse = pytest.importorskip("scipy.sparse").random(3, 3, 0.5, format=format)
    for write in (draft.extend, draft.replace, draft.update):
        with pytest.raises(
            DataError, match=r"was given a sparse .*_matrix, but columns are dense. Give it whole"
        ):
            write(sparse)


def test_sparse_tensors_are_refused_with_advice(draft: ColumnDraft) -> None:
    sparse = torch.eye(3).to_sparse()
    for write in (draft.extend, draft.replace):
        with pytest.raises(DataError, match=r"was given a sparse Tensor, .* Give it whole \(.to_dense\(\)\)"):
            write(sparse)


def test_a_column_of_times_is_refused_as_a_whole(draft: ColumnDraft) -> None:
    with pytest.raises(
        DataError, match=r"0 and those behind it: what was given is of dtype datetime64.*int64"
    ):
        draft.extend(np.zeros(3, "M8[s]"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            np.zeros((2, 3), np.float64),
            r"is float64 of shape \(2, 3\), but the column holds float32 of shape \(2, 3\)",
        ),
        (np.zeros((3, 2), np.float32), r"is float32 of shape \(3, 2\), but"),
        (np.zeros(2, np.float32), r"shape \(2,\)"),
        ("text", "is string, but the column holds float32"),
    ],
)
def test_samples_that_do_not_fit_are_refused_and_none_is_written(
    value: Any, text: str, draft: ColumnDraft
) -> None:
    fits = np.zeros((2, 3), np.float32)
    draft.extend([fits])
    before = draft.flush()
    writes: list[Callable[[], None]] = [
        lambda: draft.__setitem__("x", value),
        lambda: draft.extend([fits, value]),
        lambda: draft.extend(each for each in [fits, value]),
        lambda: draft.update({5: fits, 6: value}),
    ]
    for write in writes:
        with pytest.raises(
            DataError, match=text + ".*Convert it, or replace the whole column.*Nothing was written"
        ):
            write()
    assert draft.flush() == before


# Keys


def test_keys_continue_after_the_largest_int(draft: ColumnDraft) -> None:
    draft.extend([1.0, 2.0])
    draft["a"] = 3.0
    draft[-5] = 4.0
    draft.extend([5.0])
    draft[np.int16(40)] = 6.0
    draft.extend(np.array([7.0, 8.0]))
    del draft[42]
    draft.extend([9.0])
    assert list(draft) == [-5, 0, 1, 2, 40, 41, 42, "a"]
    assert draft[42] == 9.0
    with pytest.raises(UsageError, match=r"keys are ints"):
        draft[True] = 1.0


def test_keys_end_at_64_bits(draft: ColumnDraft) -> None:
    draft.update({2**63 - 1: 1})
    for values in ([2], np.zeros(3, np.int64), [np.int64(4)], iter([5])):
        with pytest.raises(UsageError, match=r"92233720368547758\d\d does not fit into 64 bits"):
            draft.extend(values)
    assert len(draft) == 1


def test_a_missing_key_of_a_draft_is_told_by_what_the_draft_has(draft: ColumnDraft) -> None:
    draft.update({"cat": 1, "dog": 2})
    with pytest.raises(KeyError, match=r"no sample 'cow'.* It has 2 samples, from 'cat' to 'dog'"):
        draft["cow"]
    del draft["cat"]
    with pytest.raises(KeyError, match=r"no sample 'cat'.* It has 1 sample"):
        del draft["cat"]
    assert draft.get("cat") is None


def test_a_column_may_be_made_of_another(draft: ColumnDraft, writer: PackfileWriter) -> None:
    draft.update({"cat": 1, "dog": 2})
    other = ColumnDraft(writer, writer, "other")
    other.replace(draft)
    assert dict(other.items()) == {"cat": 1, "dog": 2}
    assert other.flush() == draft.flush()


def test_nested_samples_continue_and_are_replaced_as_a_whole(draft: ColumnDraft) -> None:
    draft.extend([{"x": 1, "y": 2}, {"x": 3}])
    draft.extend([{"z": 4}])
    draft[0] = {"y": 5}
    draft.update({1: {"w": 6}, (1, "v"): 7})
    assert dict(draft.items()) == {(0, "y"): 5, (1, "v"): 7, (1, "w"): 6, (2, "z"): 4}
    del draft[1]
    del draft[2, "z"]
    assert list(draft) == [(0, "y")]
    with pytest.raises(KeyError):
        del draft[1]
    with pytest.raises(
        DataError, match=r"is nested, so its keys are .*dict of parts for a sample, but one is 9"
    ):
        draft[9] = 3


def test_keys_of_pairs_need_a_nested_column(draft: ColumnDraft) -> None:
    draft.extend([1, 2])
    for key, value in (((1, "a"), 3), (5, {"a": 3})):
        with pytest.raises(
            DataError, match=r"is not nested, so its keys are one number or name each, but one is"
        ):
            draft[key] = value
    assert len(draft) == 2


# The draft


@given(data=st.data())
def test_a_draft_is_a_dict_whatever_is_done(data: st.DataObject) -> None:
    keys = st.one_of(st.integers(0, 12), st.sampled_from("abc"))
    values = st.binary(max_size=8)
    with Objects(MemoryStore()).writing() as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "SMALL_COUNT", 3)
        patch.setattr(drafts, "_HELD_COUNT", 6)
        draft, model = ColumnDraft(writer, writer, "x"), dict[Any, bytes]()
        draft.create(kind="bytes")
        for _ in range(data.draw(st.integers(0, 12))):
            match data.draw(st.sampled_from(["set", "del", "update", "extend", "flush", "clear"])):
                case "set":
                    key = data.draw(keys)
                    draft[key] = model[key] = data.draw(values)
                case "del" if model:
                    key = data.draw(st.sampled_from(sorted(model, key=str)))
                    del draft[key], model[key]
                case "update":
                    new = data.draw(st.dictionaries(keys, values, max_size=6))
                    draft.update(new)
                    model.update(new)
                case "extend":
                    some = data.draw(st.lists(values, max_size=5))
                    draft.extend(some)
                    first = max((key for key in model if isinstance(key, int)), default=-1) + 1
                    model.update(enumerate(some, first))
                case "flush":
                    draft.flush()
                case "clear":
                    draft.clear()
                    model.clear()
            assert len(draft) == len(model)
            assert dict(draft.items()) == model
            assert all(draft[key] == value and key in draft for key, value in model.items())
        record = draft.flush()
        assert record is not None
        assert record.count == len(model)
        assert dict(SampleColumn(writer, "x", record).items()) == model


def test_what_was_given_may_be_changed_afterwards(draft: ColumnDraft) -> None:
    array = np.ones(3)
    draft["a"] = array
    draft.extend([array])
    array[:] = 0
    assert draft["a"].tolist() == draft[0].tolist() == [1, 1, 1]
    draft["a"][:] = 5
    assert draft["a"].tolist() == [1, 1, 1]


def test_an_iterator_that_fails_leaves_all_as_it_was(draft: ColumnDraft) -> None:
    draft.extend([b"first"])

    def endless(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(100_000)
        raise RuntimeError("the source is gone")

    for count in (1, 500):
        with pytest.raises(RuntimeError, match=r"source is gone"):
            draft.extend(endless(count))
        with pytest.raises(RuntimeError):
            draft.replace(endless(count))
    assert dict(draft.items()) == {0: b"first"}
    draft.extend([b"second"])
    assert list(draft) == [0, 1]


def test_a_column_is_replaced_by_what_holds_something_else(draft: ColumnDraft) -> None:
    draft.extend(np.zeros((5, 2)))
    draft.replace({"a": "text"})
    assert (len(draft), draft.kind, draft["a"]) == (1, "string", "text")
    draft.replace(np.zeros((0, 3), np.int8))
    assert (len(draft), draft.dtype, draft.shape) == (0, "int8", (3,))
    with pytest.raises(DataError, match=r"no samples, so nothing says what it holds"):
        draft.replace([])
    assert draft.dtype == "int8"


def test_an_array_and_its_samples_one_by_one_are_the_same_column(
    objects: Objects, writer: PackfileWriter
) -> None:
    array = RANDOM.integers(0, 255, (2000, 900), np.uint8)
    roots = set()
    for step in (2000, 700, 1):
        draft = ColumnDraft(objects, writer, "x")
        for start in range(0, 2000, step):
            draft.extend(array[start : start + step])
        roots.add(draft.flush())
    assert len(roots) == 1


@pytest.mark.long
def test_changes_are_told_when_they_are_made_and_undone_if_that_fails(writer: PackfileWriter) -> None:
    told: list[Any] = []
    full = False

    def tell(edit: drafts.Edit | None) -> None:
        if full:
            raise StorageFullError("no space is left")
        if edit is None:
            told.append("bulk")
        else:
            told.append((list(edit.gone), None if edit.new is None else edit.new.rows.data.tolist()))

    draft = ColumnDraft(writer, writer, "x", None, tell)
    draft["a"] = np.float32(1)
    draft.extend(np.zeros(5000, np.float32))
    del draft["a"]
    one = np.array([[1]], np.float32).view(np.uint8)
    assert told == [([], one.tolist()), "bulk", ([encode("a")], None)]
    full = True
    before = dict(draft.items())
    changes: list[Callable[[], None]] = [
        lambda: draft.__setitem__(1, np.float32(3)),
        lambda: draft.__delitem__(3),
        lambda: draft.extend(np.ones(4000, np.float32)),
        lambda: draft.replace(["text"]),
        lambda: draft.clear(),
    ]
    for change in changes:
        with pytest.raises(StorageFullError):
            change()
        assert dict(draft.items()) == before
        assert len(draft) == 5000
    new = ColumnDraft(writer, writer, "y", None, tell)
    with pytest.raises(StorageFullError):
        new["a"] = "text"
    assert new.flush() is None
    full = False
    draft.extend([1])
    assert draft[5000] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "needs a dtype"),
        ({"dtype": "float33"}, "dtype='float33' is none that tensors"),
        ({"dtype": "f4", "shape": (3, -1)}, "lengths of at least 0"),
        ({"kind": "text"}, "must be 'tensor', 'string' or 'bytes'"),
        ({"kind": "string", "dtype": "u1"}, "has no dtype and no shape"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments: Any, text: str, draft: ColumnDraft) -> None:
    with pytest.raises(UsageError, match=text):
        draft.create(**arguments)
    with pytest.raises(UsageError, match=r"has no samples yet, which would say what it holds"):
        _ = draft.dtype


def test_settings_are_said_once(draft: ColumnDraft) -> None:
    draft.create(dtype=torch.bfloat16, shape=(3, None), nested=True)
    assert (draft.dtype, draft.shape, draft.is_nested) == ("bfloat16", (3, None), True)
    with pytest.raises(UsageError, match=r"is there already"):
        draft.create(dtype="u1")
    with pytest.raises(UsageError, match=r"update of column 'image' was given list"):
        draft.update([("a", 1)])  # type: ignore[arg-type]
