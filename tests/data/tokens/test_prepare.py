"""Texts prepared as rows of tokens: split as documents, found again, the same from anywhere, refused with reasons."""

import itertools
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset, prepare, prepare_tokens
from hopyard.data.tokens import rows as rows_module
from hopyard.data.tokens import source as source_module
from hopyard.data.tokens.tokenizer import Tokenizer
from hopyard.errors import ColumnError, DataError, SettingsError, UsageError
from hopyard.storage import LocalStore, MemoryStore


def test_documents_are_split_as_prepare_splits_rows_and_each_is_there_once(
    store, letters, texts, documents_in
):
    prepared = prepare_tokens({"text": texts()}, letters, store, 64, seed=3)
    rows = prepare({"text": texts()}, MemoryStore(), seed=3)
    assert documents_in(prepared.train) == sorted(rows.train[:]["text"])
    assert documents_in(prepared.val) == sorted(rows.val[:]["text"])
    assert str(prepared.train.schema) == "input_ids: int32[64], labels: int32[64], position_ids: int32[64]"
    assert not set(documents_in(prepared.train)) & set(documents_in(prepared.val))


def test_rows_are_nearly_full_or_each_holds_one_document(letters, texts, documents_in):
    packed = prepare_tokens({"text": texts()}, letters, MemoryStore(), 64, validation=None)
    tokens = sum(len(text) + 1 for text in texts())
    assert len(packed.train) == -(-tokens // 64)
    alone = prepare_tokens({"text": texts()}, letters, MemoryStore(), 64, validation=None, pack=False)
    assert alone.val is None
    assert len(alone.train) == len(texts())
    assert documents_in(alone.train) == documents_in(packed.train) == sorted(texts())
    assert (np.count_nonzero(alone.train[:]["position_ids"] == 0, axis=1) <= 2).all()


def test_labels_are_the_ids_but_at_the_begin_of_documents_and_in_the_filling(letters, texts):
    letters.pad_token_id = letters.eos_token_id
    batch = prepare_tokens({"text": texts()}, letters, MemoryStore(), 64, validation=None).train[:]
    ids, labels = batch["input_ids"], batch["labels"]
    learned = labels != -100
    assert (labels[learned] == ids[learned]).all()
    assert (learned & (ids == letters.eos_token_id)).sum() == len(texts()), "every document's end is learned"
    assert learned.sum() == sum(map(len, texts()))


def test_a_document_longer_than_a_row_is_cut_into_pieces(letters):
    long = "abcdefghijklmnopqrstuvwxyz"
    batch = prepare_tokens({"text": [long, "AB"]}, letters, MemoryStore(), 8, validation=None).train[:]
    pieces = set()
    for ids, positions in zip(batch["input_ids"], batch["position_ids"], strict=True):
        begins = [*np.flatnonzero(positions == 0), 8]
        pieces |= {"".join(map(chr, ids[a:b])) for a, b in itertools.pairwise(begins)}
    assert {"abcdefgh", "ijklmnop", "qrstuvwx", "yz\1", "AB\1"} <= pieces
    assert len(batch["input_ids"]) == 4


@pytest.mark.parametrize("form", ["rows", "reversed", "reader", "parquet", "pandas", "polars"])
def test_files_depend_on_the_documents_alone(form, tmp_path, monkeypatch, letters, texts, files_of):
    expected = LocalStore(tmp_path / "expected")
    frame = pd.DataFrame({"text": texts(), "other": np.arange(120)})
    monkeypatch.setattr(rows_module, "_WINDOW", 300)
    monkeypatch.setattr(rows_module, "_WINDOW_ROWS", 4)
    fingerprint = prepare_tokens(frame, letters, expected, 48).fingerprint
    monkeypatch.setattr("hopyard.data.sources.collect.MEMORY", 500)
    monkeypatch.setattr(source_module, "_TEXT_BYTES", 100)
    monkeypatch.setattr(source_module, "_FEWEST_BYTES", 10)
    data = frame
    if form == "rows":
        data = ({"text": text} for text in texts())
    elif form == "reversed":
        data = {"text": texts()[::-1]}
    elif form == "reader":
        data = pa.table({"text": texts()}).to_reader(max_chunksize=7)
    elif form == "parquet":
        for part in (0, 1):
            frame[part::2].to_parquet(tmp_path / f"{part}.parquet", index=False)
        data = [tmp_path / "1.parquet", tmp_path / "0.parquet"]
    elif form == "polars":
        data = pytest.importorskip("polars").DataFrame({"text": texts()})
    store = LocalStore(tmp_path / "store")
    prepared = prepare_tokens(data, letters, store, 48)
    assert (prepared.fingerprint, prepared.reused) == (fingerprint, False)
    assert files_of(store) == files_of(expected)


def test_the_same_call_finds_the_dataset_without_a_token_and_others_do_not(
    store, monkeypatch, letters, texts
):
    first = prepare_tokens({"text": texts()}, letters, store, 64)
    for change in ({"length": 65}, {"pack": False}, {"seed": 1}, {"validation": 0.5}, {"eos_token_id": 2}):
        assert not prepare_tokens({"text": texts()}, letters, store, **{"length": 64, **change}).reused

    def refuse(*_, **__):
        raise AssertionError("nothing is tokenized")

    monkeypatch.setattr(Tokenizer, "encode", refuse)
    for data in ({"text": texts()}, ({"text": text} for text in texts())):
        again = prepare_tokens(data, letters, store, 64)
        assert again.reused
        assert again.fingerprint == first.fingerprint


def test_another_tokenizer_makes_another_dataset(store, letters, texts):
    first = prepare_tokens({"text": texts()}, letters, store, 64)

    class Capitals(type(letters)):
        def __call__(self, texts):
            return super().__call__([text.upper() for text in texts])

    other = prepare_tokens({"text": texts()}, Capitals(), store, 64)
    assert not other.reused
    assert other.fingerprint != first.fingerprint


def test_where_nothing_tells_what_a_tokenizer_does_its_tokens_tell(store, letters, texts, documents_in):
    lock = threading.Lock()  # nobody can digest it

    def locked(texts):
        with lock:
            return {"input_ids": [np.array(ids) for ids in letters(texts)]}

    assert Tokenizer(locked, 1, 0).digest is None
    first = prepare_tokens({"text": texts()}, locked, store, 64, eos_token_id=1, pad_token_id=0)
    again = prepare_tokens({"text": texts()}, locked, store, 64, eos_token_id=1, pad_token_id=0)
    assert (first.reused, again.reused) == (False, True)
    assert documents_in(again.train) == documents_in(
        prepare_tokens({"text": texts()}, letters, store, 64).train
    )


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from conftest import Letters, texts_to_prepare
from hopyard.data import prepare_tokens
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore
store = FaultyStore(LocalStore({path!r}), Fault("kill_after", at={at}))
prepare_tokens({{"text": texts_to_prepare()}}, Letters(), store, 64)
"""


@pytest.mark.parametrize("at", [1, 2])
def test_a_killed_preparation_is_done_again_with_the_same_files(at, tmp_path, letters, texts, files_of):
    expected = LocalStore(tmp_path / "expected")
    prepare_tokens({"text": texts()}, letters, expected, 64)
    path = tmp_path / "killed"
    program = KILLED.format(tests=str(Path(__file__).parent), path=str(path), at=at)
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    store = LocalStore(path)
    assert not prepare_tokens({"text": texts()}, letters, store, 64).reused
    assert files_of(store) == files_of(expected)
    assert prepare_tokens({"text": texts()}, letters, store, 64).reused


def test_a_column_or_a_second_frame_splits_documents(letters, texts, documents_in):
    flags = np.arange(100) % 5 == 0
    mine = texts()[:100]
    by_column = prepare_tokens({"text": mine, "held": flags}, letters, MemoryStore(), 64, validation="held")
    held = [text for text, flag in zip(mine, flags, strict=True) if flag]
    assert documents_in(by_column.val) == sorted(held)
    assert len(documents_in(by_column.train)) == 80
    rest = [text for text, flag in zip(mine, flags, strict=True) if not flag]
    for argument in ("val", "validation"):
        apart = prepare_tokens({"text": rest}, letters, MemoryStore(), 64, **{argument: {"text": held}})
        assert documents_in(apart.val) == sorted(held)
        assert documents_in(apart.train) == sorted(rest)


def test_equal_documents_of_two_frames_are_said(letters, texts, caplog):
    prepare_tokens({"text": texts()[:50]}, letters, MemoryStore(), 64, val={"text": texts()[45:60]})
    assert "5 of the 15 rows of the validation set are equal to rows for training" in caplog.text


def test_other_readers_of_parquet_find_the_numbers(store, letters, texts):
    prepared = prepare_tokens({"text": texts()}, letters, store, 64, validation=None)
    file = prepared.train.store.path(prepared.train.manifest.files[0].name)
    stored = pq.read_table(file)
    for name, values in prepared.train[:].items():
        found = [np.frombuffer(row, np.int32) for row in stored[name].to_pylist()]
        assert np.array_equal(np.stack(found), values)


def test_the_manifest_has_what_rows_were_made_by(store, letters, texts):
    prepare_tokens({"text": texts()}, letters, store, 64)
    assert open_dataset(store, "train").manifest.settings["tokens"] == {
        "columns": {"text": "text"},
        "length": 64,
        "pack": True,
        "tokenizer": Tokenizer(letters, None, None).digest,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "validation": 0.25,
    }


def test_an_explicit_path_says_what_differs(tmp_path, letters, texts):
    store = LocalStore(tmp_path / "store", train_path=str(tmp_path / "train"))
    prepare_tokens({"text": texts()}, letters, store, 64)
    with pytest.raises(SettingsError, match=r"what differs: tokens \{.*'length': 64.*there, .*'length': 32"):
        prepare_tokens({"text": texts()}, letters, store, 32)


def test_progress_tells_of_documents_and_of_rows(store, letters, texts, monkeypatch):
    monkeypatch.setattr(source_module, "_TEXT_BYTES", 100)
    monkeypatch.setattr(rows_module, "_WINDOW", 300)
    monkeypatch.setattr(rows_module, "_WINDOW_ROWS", 1)
    seen, written = [], []
    prepared = prepare_tokens(
        ({"text": text} for text in texts()),
        letters,
        store,
        64,
        watch=lambda *said: seen.append(said),
        progress=lambda *said: written.append(said),
    )
    rows = len(prepared.train) + len(prepared.val)
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == ["reading", "tokenizing", "writing"]
    of_phase = {phase: [said for said in seen if said[0] == phase] for phase, _, _ in seen}
    assert of_phase["reading"][-1] == ("reading", 120, None)
    assert len(of_phase["tokenizing"]) > 2
    assert of_phase["tokenizing"][-1] == ("tokenizing", 120, 120)
    assert [done for _, done, _ in of_phase["tokenizing"]] == sorted(
        done for _, done, _ in of_phase["tokenizing"]
    )
    assert of_phase["writing"][-1] == ("writing", rows, rows)
    assert written[-1] == (rows, rows)


def prompts(count=40):
    return {
        "question": [f"{row} and {row}?" for row in range(count)],
        "answer": [f" {2 * row}" for row in range(count)],
    }


def test_of_prompts_only_the_completion_and_the_end_are_learned(letters):
    data = {**prompts(), "text": ["not this"] * 40}
    made = prepare_tokens(
        data, letters, MemoryStore(), 32, prompt="question", completion="answer", validation=None, pack=False
    )
    found = {}
    for ids, labels in zip(made.train[:]["input_ids"], made.train[:]["labels"], strict=True):
        text = "".join(map(chr, ids[ids > 1]))
        found[text] = "".join(map(chr, labels[labels != -100]))
    assert found == {
        question + answer: f"{answer}\1"
        for question, answer in zip(prompts()["question"], prompts()["answer"], strict=True)
    }


class Pairs:
    """Two letters are a token, from the first letter on; the end token stands behind every text."""

    eos_token_id = 1
    pad_token_id = 0

    def __call__(self, texts):
        pairs = [[text[at : at + 2] for at in range(0, len(text), 2)] for text in texts]
        return [
            [*(sum(ord(letter) << 8 * at for at, letter in enumerate(pair)) for pair in row), 1]
            for row in pairs
        ]


@pytest.mark.parametrize(
    ("prompt", "completion", "learned"), [("abcd", "ef", "ef"), ("abc", "def", "cdef"), ("abcd", "", "")]
)
def test_a_token_with_the_begin_of_the_completion_is_learned_and_so_is_one_end(prompt, completion, learned):
    made = prepare_tokens(
        {"prompt": [prompt], "completion": [completion]},
        Pairs(),
        MemoryStore(),
        16,
        prompt="prompt",
        completion="completion",
        validation=None,
    ).train[:]
    labels = made["labels"][made["labels"] != -100].tolist()
    assert labels[-1] == 1
    assert 1 not in labels[:-1]
    assert "".join(chr(label & 255) + chr(label >> 8) for label in labels[:-1]) == learned
    assert np.count_nonzero(made["input_ids"] == 1) == 1, "the tokenizer's own end is not doubled"


def refused(error, said, data, tokenizer, **arguments):
    store = MemoryStore()
    with pytest.raises(error, match=re.escape(said)):
        prepare_tokens(data, tokenizer, store, **{"length": 32, **arguments})
    assert not list(store.list()), "nothing was written"


class Fails:
    """Fails on one text, also among others."""

    eos_token_id = 1
    pad_token_id = 0

    def __call__(self, texts):
        if "bad" in texts:
            raise ZeroDivisionError("division by zero")
        return [[7]] * len(texts)


@pytest.mark.parametrize(
    ("given", "error", "said", "advice"),
    [
        (
            {"length": 0},
            UsageError,
            "length=0, but it must be an integer of at least 2.",
            "Give the tokens of a row, at most as many as the model has positions: length=2048.",
        ),
        (
            {"eos_token_id": "</s>"},
            UsageError,
            "eos_token_id='</s>', but it must be an integer of at least 0.",
            "Give the number of the token: eos_token_id=tokenizer.convert_tokens_to_ids('</s>').",
        ),
        (
            {"pad_token_id": -5},
            UsageError,
            "pad_token_id=-5, but it must be an integer of at least 0.",
            "Give the number that the token has in the vocabulary, or leave pad_token_id= out for the tokenizer's own.",
        ),
        (
            {"tokenizer": "gpt2"},
            UsageError,
            "or a function from a list of texts to a list of ids for each.",
            "Load it first: transformers.AutoTokenizer.from_pretrained('gpt2').",
        ),
        (
            {"tokenizer": Fails()},
            DataError,
            "The tokenizer (Fails) failed on the text of row 2, 'bad' (ZeroDivisionError: division by zero).",
            "Leave such texts out, or give another tokenizer.",
        ),
    ],
)
def test_arguments_and_tokenizers_that_are_wrong_are_told_with_the_next_step(
    given, error, said, advice, letters
):
    arguments = {"tokenizer": letters, "validation": None, **given}
    refused(error, f"{said} {advice}", {"text": ["good", "fine", "bad"]}, **arguments)


class Without:
    """A tokenizer without special tokens."""

    def __call__(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


def test_a_tokenizer_without_an_end_or_a_padding_token_is_refused(texts):
    data = {"text": texts()}
    refused(
        UsageError,
        "The tokenizer (Without) has no end token, which is put behind each text. Give eos_token_id=...",
        data,
        Without(),
        pad_token_id=0,
    )
    refused(
        UsageError,
        "The tokenizer (Without) has no padding token, which fills rows at their end. Give pad_token_id=...; the end "
        "token is good for it, as labels are masked by position.",
        data,
        Without(),
        eos_token_id=1,
    )
    prepare_tokens(data, Without(), MemoryStore(), eos_token_id=1, pad_token_id=1)


def test_a_text_that_is_longer_than_its_row_is_refused_where_it_is(tmp_path, letters):
    data = {"text": ["ab", "abc" * 20, "c", "abcd" * 30]}
    text = (
        "tokens, but with pack=False a document has a row of length=32 tokens. Give a larger length= (of the "
    )
    text += "documents read so far the longest has 121), leave longer ones out, or cut them with pack=True."
    with pytest.raises(DataError, match=rf"The document of row [13] has (61|121) {re.escape(text)}"):
        prepare_tokens(data, letters, MemoryStore(), 32, pack=False, validation=None)
    for number in (0, 1):
        rows = slice(0, 1) if number == 0 else slice(2, 4)
        pq.write_table(pa.table({"text": data["text"][rows]}), tmp_path / f"{number}.parquet")
    refused(
        DataError,
        "1.parquet, row 1 has 121 tokens",
        tmp_path,
        letters,
        pack=False,
        validation=None,
    )


def test_columns_that_are_missing_or_no_texts_are_refused(letters, texts):
    refused(ColumnError, "Unknown column: 'text'. The columns there are: words.", {"words": ["a"]}, letters)
    refused(
        ColumnError,
        "Unknown column: 'answer'; did you mean 'answers'? The columns there are: question, answers.",
        {"question": ["a"], "answers": ["b"]},
        letters,
        prompt="question",
        completion="answer",
    )
    refused(ColumnError, "Unknown validation column: 'held'", {"text": texts()}, letters, validation="held")
    refused(
        DataError,
        "Column 'text' holds no texts: it is text: int64. Name a column of texts, or make texts of it; bytes are made "
        "texts by decoding.",
        {"text": [1, 2, 3]},
        letters,
    )
    refused(DataError, "it is text: bytes", {"text": [b"a", b"b"]}, letters)
    refused(
        DataError,
        "Column 'text' splits the data and cannot be one of texts as well.",
        {"text": texts()},
        letters,
        validation="text",
    )
    refused(
        DataError,
        "Column 'text' is null in 2 rows, the first is row 1. Leave such rows out, for example "
        "with .dropna(subset=['text']) in pandas.",
        {"text": ["a", None, "b", None]},
        letters,
    )


def test_arguments_that_do_not_go_together_are_refused(letters, texts):
    data = {"text": texts()}
    refused(
        UsageError,
        "text='text' and messages='chat' cannot be given together. Name the columns of one kind of documents: text=, "
        "messages=, or prompt= and completion=.",
        data,
        letters,
        text="text",
        messages="chat",
    )
    refused(UsageError, "prompt='text' cannot be given alone.", data, letters, prompt="text")
    refused(UsageError, "text=5, but it must be the name of a column.", data, letters, text=5)
    refused(UsageError, "length=1, but it must be an integer of at least 2.", data, letters, length=1)
    refused(UsageError, "pack='yes', but it must be True or False.", data, letters, pack="yes")
    refused(DataError, "validation=1.5 is not a share", data, letters, validation=1.5)
    refused(DataError, "leaves the validation set empty", {"text": ["a", "b"]}, letters, validation=0.1)
    refused(
        UsageError,
        "tokenizer='gpt2', but it must be a tokenizer of transformers or tokenizers, or a function from a list of "
        "texts to a list of ids for each.",
        data,
        "gpt2",
    )


@pytest.mark.parametrize(
    ("tokenize", "text"),
    [
        (lambda texts: [[1]], "gave 1 rows for 3 texts. It must give a list of ids for each text."),
        (lambda texts: None, "gave NoneType for 3 texts."),
        (lambda texts: [[0.5]] * 3, "The tokenizer gave [0.5] for a text, but it must give a list of ids"),
        (lambda texts: [[-1]] * 3, "The tokenizer gave [-1] for a text"),
        (lambda texts: [["a"]] * 3, "The tokenizer gave ['a'] for a text"),
    ],
)
def test_a_function_that_gives_no_ids_is_refused(tokenize, text):
    refused(
        DataError,
        text,
        {"text": ["a", "b", "c"]},
        tokenize,
        validation=None,
        eos_token_id=1,
        pad_token_id=0,
    )
