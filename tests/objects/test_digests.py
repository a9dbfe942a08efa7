"""Digests are stable for ever: names of stored objects and seeds of runs depend on them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.objects import Hasher, Tensor, derive_seed, digest, digest_json

# Changing one of these makes every stored object unfindable and every run another one.
PINNED = {
    "bytes": "202c20850a53568a8d5ab537fa3af4ab58b1a395fcd935ffd82b9a9bf3398da6",
    "json": "972ea224b3fc53e2db2def02f285e2c1b11da429fb6f1f46b24797c688b55b4b",
    "tensor": "4317a87f4d23de23fec47a3be02c2aac050d2effd44b7189c3f17656bcfa8f98",
}


def test_digests_never_change() -> None:
    value = {"b": [1, 1.5, None, True, "ü"], "a": {}}
    tensor = Tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert {
        "bytes": digest(b"hopyard", "hopyard.test"),
        "json": digest_json(value, "hopyard.test"),
        "tensor": tensor.digest,
    } == PINNED
    assert derive_seed(0, "init", 3) == 4017320244360184731


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_pieces_count_only_together(pieces: list[bytes]) -> None:
    hasher = Hasher("a")
    for piece in pieces:
        hasher.update(piece)
    assert hasher.hexdigest() == digest(b"".join(pieces), "a")
    assert hasher.hexdigest() != digest(b"".join(pieces), "b")


def test_all_kinds_of_buffers_are_equal() -> None:
    data = bytes(range(100))
    kinds = (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8))
    assert len({digest(kind, "x") for kind in kinds}) == 1


def test_the_order_of_keys_does_not_count_but_that_of_lists_does() -> None:
    assert digest_json({"a": 1, "b": 2}, "x") == digest_json({"b": 2, "a": 1}, "x")
    assert digest_json([1, 2], "x") != digest_json([2, 1], "x")
    assert digest_json(1, "x") != digest_json(1.0, "x")


@given(st.lists(st.integers() | st.text(), max_size=4), st.lists(st.integers() | st.text(), max_size=4))
def test_seeds_tell_parts_apart(one: list[int | str], other: list[int | str]) -> None:
    assert 0 <= derive_seed(*one) < 2**63
    assert (derive_seed(*one) == derive_seed(*other)) == (one == other)


def test_seeds_tell_types_and_places_apart() -> None:
    seeds = [
        derive_seed(*parts) for parts in ((1, 2), (2, 1), (12,), ("1", "2"), ("12",), (1, "2"), (), ("",))
    ]
    assert len(set(seeds)) == len(seeds)
    with pytest.raises(TypeError, match=r"int and str parts, not from 1\.5; convert it first"):
        derive_seed(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not from True"):
        derive_seed(True)


def test_all_bits_of_seeds_are_used() -> None:
    seeds = np.array([derive_seed("bits", i) for i in range(2000)])
    for bit in range(63):
        assert 0.4 < np.mean(seeds >> bit & 1) < 0.6
