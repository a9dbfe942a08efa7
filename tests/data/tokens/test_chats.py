"""Chats: what the assistant says is learned, found by rendering up to each answer; whatever chats come in."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import prepare_tokens
from hopyard.errors import DataError, UsageError
from hopyard.storage import LocalStore, MemoryStore


def chat(*said):
    """Messages, the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]


CHATS = [
    [{"role": "system", "content": "be brief"}, *chat("hello", "hi", "who", "me")],
    chat("one", "two"),
    chat("one", "two", "three", "four", "five"),
    chat("to be", ""),
    [*chat("use it", "calling"), {"role": "tool", "content": "42"}, {"role": "assistant", "content": "it is 42"}],
] * 4  # fmt: skip


def learned_in(dataset):
    """The text of every row, and its learned stretches."""
    found = set()
    batch = dataset[:]
    for ids, labels, positions in zip(
        *(batch[n] for n in ("input_ids", "labels", "position_ids")), strict=True
    ):
        end = np.flatnonzero(ids == 0)[0]
        marked = "".join(chr(label) if label > 0 else "|" for label in labels[:end])
        found.add(("".join(map(chr, ids[:end])), tuple(filter(None, marked.split("|")))))
        assert (labels[end:] == -100).all()
        assert positions[:end].tolist() == list(range(end))
    return found


EXPECTED = {
    ("<system>be brief;<user>hello;<assistant>hi;<user>who;<assistant>me;", ("hi;", "me;")),
    ("<user>one;<assistant>two;", ("two;",)),
    ("<user>one;<assistant>two;<user>three;<assistant>four;<user>five;", ("two;", "four;")),
    ("<user>to be;<assistant>;", (";",)),
    ("<user>use it;<assistant>calling;<tool>42;<assistant>it is 42;", ("calling;", "it is 42;")),
}


def prepared(data, tokenizer, store=None, **arguments):
    arguments = {"length": 100, "messages": "messages", "pack": False, "validation": None, **arguments}
    return prepare_tokens(data, tokenizer, MemoryStore() if store is None else store, **arguments)


def test_what_the_assistant_says_is_learned_up_to_the_end_of_its_turn(letters):
    assert learned_in(prepared({"messages": CHATS}, letters).train) == EXPECTED


@pytest.mark.parametrize("form", ["rows", "json", "arrow", "parquet", "pandas", "polars", "csv"])
def test_chats_are_the_same_in_any_container(form, tmp_path, letters, files_of):
    expected, store = LocalStore(tmp_path / "expected"), LocalStore(tmp_path / "store")
    prepared({"messages": CHATS}, letters, expected)
    data = {"messages": CHATS}
    if form == "rows":
        data = ({"messages": chat, "number": number} for number, chat in enumerate(CHATS))
    elif form == "json":
        data = {"messages": [json.dumps(chat, sort_keys=True) for chat in CHATS]}
    elif form in ("arrow", "parquet"):
        # Every message of Arrow has the keys of all.
        named = [{**CHATS[0][0], "name": None}, *CHATS[0][1:]]
        data = pa.table({"messages": [named, *CHATS[1:]], "number": range(len(CHATS))})
        assert "name" in str(data.schema)
    elif form == "pandas":
        data = pa.table({"messages": CHATS}).to_pandas()
        assert isinstance(data["messages"][0], np.ndarray)
    elif form == "polars":
        data = pytest.importorskip("polars").DataFrame({"messages": CHATS})
    elif form == "csv":
        texts = [json.dumps(chat, sort_keys=True) for chat in CHATS]
        pd.DataFrame({"messages": texts}).to_csv(tmp_path / "chats.csv", index=False)
        data = tmp_path / "chats.csv"
    if form == "parquet":
        pq.write_table(data, tmp_path / "chats.parquet", row_group_size=7)
        data = tmp_path / "chats.parquet"
    prepared(data, letters, store)
    assert files_of(store) == files_of(expected)


def test_chats_are_packed_like_texts(letters):
    made = prepared({"messages": CHATS}, letters, pack=True).train
    batch = made[:]
    assert len(made) < len(CHATS)
    texts = {text for text, _ in EXPECTED}
    found = set()
    for ids, positions in zip(batch["input_ids"], batch["position_ids"], strict=True):
        begins = [*np.flatnonzero(positions == 0), len(ids)]
        found |= {"".join(map(chr, ids[a:b])) for a, b in itertools.pairwise(begins) if ids[a]}
    assert found == texts


def test_chats_need_no_end_token(letters):
    letters.eos_token_id = None
    assert learned_in(prepared({"messages": CHATS}, letters).train) == EXPECTED


def refused(error, said, chats, tokenizer, **arguments):
    with pytest.raises(error, match=re.escape(said)):
        prepared({"messages": chats}, tokenizer, **arguments)


def test_rows_that_are_no_chats_are_refused_where_they_are(tmp_path, letters):
    right = chat("one", "two")
    rule = "A chat is a list of messages such as {'role': 'user', 'content': '...'}, or such a list as JSON, but "
    rule += "row 1 holds"
    refused(DataError, f'{rule} [{{"from": "user"}}]', [right, [{"from": "user"}]], letters)
    refused(DataError, f"{rule} []", [right, []], letters)
    refused(
        DataError,
        f"{rule} hello. Make chats of such rows, or leave them out.",
        [json.dumps(right), "hello"],
        letters,
    )
    for number, message in enumerate(right):
        empty = [{**each, "content": None} if each is message else each for each in right]
        said = f"the chat of row 1: its message {number}, of the role {message['role']!r}, has no content. Give the "
        refused(
            DataError, f"{said}message a text, which may be empty, or leave the row", [right, empty], letters
        )
    refused(DataError, "Column 'messages' is null in 1 row, the first is row 1.", [right, None], letters)
    pq.write_table(pa.table({"messages": [right]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"messages": [chat("a", "b"), chat("c")]}), tmp_path / "1.parquet")
    said = r"The assistant says nothing in the chat of .*1\.parquet, row 1 \(its roles: user\), so that nothing could "
    with pytest.raises(DataError, match=said + r"be learned of it\. Leave such rows out\."):
        prepared(tmp_path, letters)


def test_a_template_that_does_not_render_message_by_message_is_refused(letters):
    class Forgetful(type(letters)):
        """Only the last answer keeps what was thought."""

        def apply_chat_template(self, chat, tokenize, add_generation_prompt):
            last = len(chat) - 1
            chat = [
                {**message, "content": ("(hm)" if number == last else "") + message["content"]}
                if message["role"] == "assistant"
                else message
                for number, message in enumerate(chat)
            ]
            return super().apply_chat_template(chat, tokenize, add_generation_prompt)

    single = prepared({"messages": [chat("one", "two")]}, Forgetful()).train
    assert learned_in(single) == {("<user>one;<assistant>(hm)two;", ("(hm)two;",))}
    refused(
        DataError,
        "The chat template does not render the chat of row 0 message by message, so that the assistant's tokens cannot "
        "be found: before message 1 it gives '<user>one;<assistant>', with it '<user>one;<assistant>(hm)two;', and one "
        "does not begin the other, or not the whole chat. Give the tokenizer a chat template that marks answers: "
        "{% generation %}...{% endgeneration %}.",
        [chat("one", "two", "three", "four")],
        Forgetful(),
    )


def test_a_chat_that_begins_with_the_assistant_is_refused(letters):
    refused(
        DataError,
        "The chat of row 0 begins with the assistant, and where its answer begins is found by what is rendered before "
        "it. Give the tokenizer a chat template that marks answers: {% generation %}...{% endgeneration %}, or put a "
        "message of the system or the user first.",
        [chat("one", "two")[1:]],
        letters,
    )


def test_a_chat_that_the_template_refuses_is_named(letters):
    class Strict(type(letters)):
        def apply_chat_template(self, chat, tokenize, add_generation_prompt):
            if chat[0]["role"] == "system":
                raise ValueError("no system here")
            return super().apply_chat_template(chat, tokenize, add_generation_prompt)

    refused(
        DataError,
        "The chat template cannot render the chat of row 0 (ValueError: no system here). Give every chat the roles "
        "that the template wants, in its order, or give the tokenizer another template.",
        CHATS[:3],
        Strict(),
    )


def test_a_tokenizer_that_renders_no_chats_is_refused():
    refused(
        UsageError,
        "messages= was given with a tokenizer (<lambda>) that has no apply_chat_template, which makes chats texts. "
        "Give a tokenizer of transformers, or make texts of the chats and say text= or prompt= and completion=.",
        CHATS,
        lambda texts: [[1]] * len(texts),
        pad_token_id=0,
    )


def test_chats_of_frames_of_clusters_are_texts_of_json(letters):
    dataframe = pytest.importorskip("dask.dataframe")
    texts = pd.DataFrame({"messages": [json.dumps(chat, sort_keys=True) for chat in CHATS], "number": 1})
    made = prepared(dataframe.from_pandas(texts, npartitions=3), letters)
    assert made.fingerprint == prepared({"messages": CHATS}, letters).fingerprint
    frame = dataframe.from_pandas(pd.DataFrame({"messages": [1, 2]}), npartitions=1)
    said = "Rows of 'messages' cannot be read as lists of dicts from this data. Write it to Parquet files and give "
    with pytest.raises(DataError, match=re.escape(said + "their paths, or make the column texts of JSON.")):
        prepared(frame, letters)
