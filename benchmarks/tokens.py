"""How fast documents become rows of tokens, and how full the rows are.

    python benchmarks/tokens.py [--documents 20000] [--length 2048] [--repeats 5]

Prints one JSON line per measurement: name, value, unit, peer (what the peer did, same unit), ratio. Speeds are tokens
for each second of CPU time, of all threads, medians of runs in turns.

Packing is best fit of documents that are tokens already, and the three columns of rows. Its limit is
``numpy.concatenate`` of the documents, cut into rows, and the other two columns made of it, which cuts documents at the
rows' ends. ``prepare_tokens`` is the whole way from texts to a dataset in a store, with a tokenizer of the library
``tokenizers``; its limit is that tokenizer alone over the same texts. Fill is the share of the rows' tokens that
documents have; peers are first fit over all documents at once, in their order, and concatenating and cutting, with
the share of documents that stay whole (``whole``, ``peer_whole``). Lengths of documents are lognormal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from hopyard.data import prepare_tokens
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.tokens.rows import NOT_LEARNED, Rows, Tokens, first_fit, in_rows, windows
from hopyard.storage import LocalStore


def lengths_of(documents: int, median: int) -> npt.NDArray[np.int64]:
    drawn = np.random.default_rng(0).lognormal(np.log(median), 1, documents)
    return drawn.astype(np.int64) + 1


def tokens_of(lengths: npt.NDArray[np.int64]) -> Tokens:
    ids = np.random.default_rng(1).integers(0, 50_000, int(lengths.sum())).astype(np.int32)
    return Tokens(Ragged(ids, offsets_of(lengths)), np.ones(len(ids), bool))


def packed(documents: Tokens, length: int) -> list[Rows]:
    parts = (documents[start : start + 1000] for start in range(0, len(documents), 1000))
    return [in_rows(window, length, 0, pack=True) for window in windows(parts, length)]


def concatenated(documents: list[npt.NDArray[np.int32]], length: int) -> Rows:
    whole = np.concatenate(documents)
    whole = whole[: len(whole) // length * length].reshape(-1, length)
    labels = whole.copy()
    labels[:, 0] = NOT_LEARNED
    positions = np.tile(np.arange(length, dtype=np.int32), (len(whole), 1))
    return Rows(whole, labels, positions)


def texts_of(lengths: npt.NDArray[np.int64]) -> list[str]:
    random = np.random.default_rng(2)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(random.choice(letters, size)) for size in random.integers(2, 9, 5000)]
    frequencies = 1 / np.arange(1, len(words) + 1)
    frequencies /= frequencies.sum()
    return [" ".join(random.choice(words, length, p=frequencies)) for length in lengths]


def tokenizer_of(texts: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8000, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts[:1000], trainer)
    return made


def seconds(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def in_turns(repeats: int, ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    """Medians of both; each ran once before."""
    ours(), peer()
    taken = [(seconds(ours), seconds(peer)) for _ in range(repeats)]
    mine, its = (statistics.median(each) for each in zip(*taken, strict=True))
    return mine, its


def print_line(name: str, value: float, unit: str, peer: float, **more: Any) -> None:
    line = {"name": name, "value": value, "unit": unit, "peer": peer, "ratio": round(value / peer, 3), **more}
    print(json.dumps(line))


def measure_packing(lengths: npt.NDArray[np.int64], median: int, length: int, repeats: int) -> None:
    documents = tokens_of(lengths)
    each = list(documents.ids)
    mine, its = in_turns(repeats, lambda: packed(documents, length), lambda: concatenated(each, length))
    total = int(lengths.sum())
    print_line(
        f"packing, median {median}, against concatenate", round(total / mine), "tokens/s", round(total / its)
    )


def measure_fill(lengths: npt.NDArray[np.int64], median: int, length: int) -> None:
    documents = tokens_of(lengths)
    total = int(lengths.sum())
    rows = sum(len(part.input_ids) for part in packed(documents, length))
    first = int(first_fit(_pieces(lengths, length), length).max()) + 1
    fill, its = (round(total / (count * length), 5) for count in (rows, first))
    print_line(f"fill of rows, median {median}, against first fit over all", fill, "share", its)
    ends = np.cumsum(lengths)
    whole = ((ends - lengths) // length == (ends - 1) // length).mean()
    fits = (lengths <= length).mean()
    print_line(
        f"fill of rows, median {median}, against concatenate and cut", fill, "share", 1.0,
        whole=round(float(fits), 4), peer_whole=round(float(whole), 4),
    )  # fmt: skip


def _pieces(lengths: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    return np.array(
        [min(length, rest - start) for rest in lengths.tolist() for start in range(0, rest, length)], np.int64
    )


def measure_preparation(lengths: npt.NDArray[np.int64], length: int, repeats: int) -> None:
    texts = texts_of(lengths)
    tokenizer = tokenizer_of(texts)
    total = sum(len(each.ids) for each in tokenizer.encode_batch(texts))

    def prepared() -> None:
        with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as temporary:
            store = LocalStore(Path(temporary))
            prepare_tokens({"text": texts}, tokenizer, store, length, eos_token_id=0, pad_token_id=0)

    def tokenized() -> None:
        for start in range(0, len(texts), 1000):
            [each.ids for each in tokenizer.encode_batch(texts[start : start + 1000])]

    mine, its = in_turns(repeats, prepared, tokenized)
    name = "prepare_tokens, against the tokenizer alone"
    print_line(name, round(total / mine), "tokens/s", round(total / its))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for median in (50, 400):
        lengths = lengths_of(options.documents, median)
        measure_packing(lengths, median, options.length, options.repeats)
        measure_fill(lengths, median, options.length)
    measure_preparation(lengths_of(options.documents // 4, 100), options.length, options.repeats)


if __name__ == "__main__":
    main()
