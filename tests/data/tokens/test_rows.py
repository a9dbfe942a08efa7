"""Rows of tokens: every token once and in order, never more rows than first fit, the same for any batches."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.ragged import Ragged
from hopyard.data.tokens import rows as rows_module
from hopyard.data.tokens.rows import NOT_LEARNED, Tokens, best_fit, first_fit, fitted, in_rows, windows

LENGTHS = st.lists(st.integers(1, 23), min_size=1, max_size=40)


def documents_of(lengths, learned=None):
    """Documents whose tokens are 1, 2, 3 and so on, through all of them."""
    ids = np.arange(1, sum(lengths) + 1, dtype=np.int32)
    bounds = np.cumsum([0, *lengths])
    return Tokens(
        Ragged(ids, bounds), np.ones(len(ids), bool) if learned is None else np.array(learned, bool)
    )


def first_fit_rows(lengths, room):
    """How many rows first fit makes, by the book."""
    left = []
    for length in lengths:
        for row, free in enumerate(left):
            if free >= length:
                left[row] -= length
                break
        else:
            left.append(room - length)
    return len(left)


def pieces_of(documents, length):
    for document in documents.ids:
        for start in range(0, len(document), length):
            yield document[start : start + length].tolist()


@given(lengths=LENGTHS, length=st.integers(2, 9), pack=st.booleans(), data=st.data())
def test_every_token_of_every_document_is_there_once_and_in_order(lengths, length, pack, data):
    learned = data.draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths)))
    documents = documents_of(lengths, learned)
    made = in_rows(documents, length, 0, pack)
    assert {each.dtype.name for each in vars(made).values()} == {"int32"}
    found = []
    for ids, labels, positions in zip(made.input_ids, made.labels, made.position_ids, strict=True):
        begins = [at for at in range(length) if positions[at] == 0]
        assert begins[0] == 0
        inside = []
        for start, stop in itertools.pairwise([*begins, length]):
            assert positions[start:stop].tolist() == list(range(stop - start))
            if not ids[start]:
                assert stop == length, "only the end of a row is filled"
                assert (ids[start:] == 0).all()
                assert (labels[start:] == NOT_LEARNED).all()
                continue
            inside.append(ids[start:stop].tolist())
            assert labels[start] == NOT_LEARNED, "nothing predicts a document's first token"
            for at in range(start + 1, stop):
                assert labels[at] == (ids[at] if learned[ids[at] - 1] else NOT_LEARNED)
        assert inside == sorted(inside), "documents of a row keep their order"
        found += inside
        assert pack or len(inside) == 1
    assert sorted(found) == list(pieces_of(documents, length))


@given(lengths=LENGTHS, room=st.integers(23, 60))
def test_there_are_never_more_rows_than_first_fit_makes(lengths, room):
    rows = fitted(np.array(lengths), room)
    assert (np.bincount(rows, lengths) <= room).all()
    assert sorted(set(rows.tolist())) == list(range(rows.max() + 1))
    first = first_fit(np.array(lengths), room)
    assert first.max() + 1 == first_fit_rows(lengths, room)
    assert rows.max() <= first.max()


def test_where_best_fit_makes_more_rows_than_first_fit_that_is_taken():
    lengths = np.array([4, 3, 3, 4, 3, 3])
    assert best_fit(lengths, 10).max() + 1 == 3
    assert fitted(lengths, 10).max() + 1 == 2


@given(lengths=LENGTHS, room=st.integers(23, 60))
def test_best_fit_leaves_the_least_room_behind_every_piece(lengths, room):
    """What is left in the rows is what the definition gives, a search through all rows for each piece."""
    left = []
    for length in sorted(lengths, reverse=True):
        fitting = [free for free in left if free >= length]
        if fitting:
            left.remove(min(fitting))
        left.append((min(fitting) if fitting else room) - length)
    rows = best_fit(np.array(lengths), room)
    assert sorted(left) == sorted((room - np.bincount(rows, lengths)).tolist())


@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 39), max_size=10),
)
def test_windows_are_the_same_for_any_batches(lengths, cuts):
    documents = documents_of(lengths)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(lengths)), len(lengths)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "_WINDOW", 50)
        patch.setattr(rows_module, "_WINDOW_ROWS", 10)
        whole = list(windows([documents], 5))
        parts = list(windows((documents[a:b] for a, b in itertools.pairwise(bounds)), 5))
    assert [part.ids for part in parts] == [part.ids for part in whole]
    assert Ragged.concatenate([part.ids for part in whole]) == documents.ids
    for part in whole[:-1]:
        assert part.ids.offsets[-2] < 50 <= part.ids.offsets[-1], (
            "a window ends with the document that fills it"
        )


def test_windows_of_long_rows_hold_more():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "_WINDOW", 50)
        patch.setattr(rows_module, "_WINDOW_ROWS", 10)
        assert [len(part) for part in windows([documents_of([20] * 30)], 20)] == [10, 10, 10]


def test_rows_of_lengths_as_texts_have_them_are_nearly_full():
    lengths = np.minimum(np.random.default_rng(0).lognormal(5.5, 1, 5000).astype(int) + 1, 2048)
    rows = fitted(lengths, 2048)
    assert lengths.sum() / ((rows.max() + 1) * 2048) > 0.999


def test_the_filling_may_be_the_end_token_and_labels_tell_them_apart():
    documents = Tokens(Ragged.from_rows([[5, 2], [6, 7, 2]], np.int32), np.ones(5, bool))
    made = in_rows(documents, 6, 2, pack=True)
    assert made.input_ids.tolist() == [[5, 2, 6, 7, 2, 2]]
    assert made.labels.tolist() == [[-100, 2, -100, 7, 2, -100]]
    assert made.position_ids.tolist() == [[0, 1, 0, 1, 2, 0]]
