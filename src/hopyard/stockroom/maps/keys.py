"""Keys of samples as bytes whose order is the order of the keys.

A key is an int, a string, or a pair of these (nested samples). Ints come first, by value; then strings, by code
point; then pairs, by their first part and then by their second. One key has one encoding::

    int     01, then 8 bytes: the value plus 2**63, big-endian
    string  02, then UTF-8
    pair    03, then the first part and the second, each as above; in the first, a string's NUL is
            written 00 FF and one 00 ends it

A key's hash is part of the format as well, for it says where fragments and pages end: of an int SplitMix64, of
anything else the first 8 bytes of BLAKE3 of the encoding, read little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from hopyard.errors import UsageError
from hopyard.wording import shown

Key: TypeAlias = int | str | tuple[int | str, int | str]
"""An int of 64 bits, a string, or a pair of these."""

_INT, _STRING, _PAIR = b"\x01", b"\x02", b"\x03"
_INT_BYTES = 9
_OFFSET = 1 << 63
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def check_key(value: Any) -> Key:
    """``value`` as a key: NumPy's ints become ints, subclasses of int and str what they hold.

    Raises:
        UsageError: it is no int of 64 bits, no text, and no pair of these.
    """
    if not isinstance(value, tuple):
        return _check_part(value, value)
    if len(value) != 2:
        raise UsageError(
            f"the key {shown(value)} has {len(value)} parts, but a tuple that is a key has two: (sample, part). "
            "Join parts into one string, or give two."
        )
    return _check_part(value[0], value), _check_part(value[1], value)


def _check_part(part: Any, key: Any) -> int | str:
    if isinstance(part, str):
        text = str.__str__(part)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the key {shown(key)} has half of a surrogate pair at character {error.start}, which is no text that "
                "can be stored. If it came from a file's name, decode that with errors='replace'."
            ) from None
        return text
    if isinstance(part, int | np.integer) and not isinstance(part, bool):
        if -_OFFSET <= part < _OFFSET:
            return int(part)
        raise UsageError(
            f"the key {shown(key)} does not fit into 64 bits with a sign: ints as keys are at least -2**63 and less "
            f"than 2**63. Give it as a string: {str(part)!r}."
        )
    raise UsageError(
        f"the key {shown(key)} is of type {type(part).__name__}, but keys are ints, strings, or pairs of these. "
        f"{_instead(part)}"
    )


def _instead(part: Any) -> str:
    if isinstance(part, bytes | bytearray):
        return "Decode bytes to a string first: key.decode()."
    if isinstance(part, float | np.floating) and part == part // 1:
        return f"Give {int(part)} for a whole number."
    if isinstance(part, tuple):
        return "Pairs cannot hold pairs: join parts into one string."
    if isinstance(part, range | slice):
        return (
            "For several samples give a slice of all keys, column[2:5], or a list of keys, column[[2, 3, 4]]."
        )
    return "Give a number or a name."


def encode(key: Key) -> bytes:
    """The bytes of one key.

    Raises:
        UsageError: it is no key; see ``check_key``.
    """
    checked = check_key(key)
    if not isinstance(checked, tuple):
        return _encode_part(checked)
    first, second = checked
    if isinstance(first, str):
        head = _STRING + first.encode().replace(b"\0", b"\0\xff") + b"\0"
    else:
        head = _encode_part(first)
    return _PAIR + head + _encode_part(second)


def _encode_part(part: int | str) -> bytes:
    if isinstance(part, str):
        return _STRING + part.encode()
    return _INT + (part + _OFFSET).to_bytes(8, "big")


def decode(data: bytes) -> Key:
    """The key that ``encode`` gives ``data`` for.

    Raises:
        UsageError: no key is encoded so.
    """
    try:
        if data[:1] != _PAIR:
            return _decode_part(data)
        if data[1:2] == _INT:
            split = 1 + _INT_BYTES
            return _decode_part(data[1:split]), _decode_part(data[split:])
        end = data.index(b"\0", 1)
        while data[end + 1 : end + 2] == b"\xff":
            end = data.index(b"\0", end + 2)
        return _decode_part(data[1:end].replace(b"\0\xff", b"\0")), _decode_part(data[end + 1 :])
    except ValueError:
        raise UsageError(
            f"the bytes {data!r} are not an encoded key. Maps of a stockroom are looked up by what keys.encode gives."
        ) from None


def _decode_part(data: bytes) -> int | str:
    if data[:1] == _INT and len(data) == _INT_BYTES:
        return int.from_bytes(data[1:], "big") - _OFFSET
    if data[:1] == _STRING:
        return data[1:].decode()
    raise ValueError


def encode_ints(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The keys of an int64 array of shape (n,), one in each row of an array of shape (n, 9)."""
    rows = np.empty((len(values), _INT_BYTES), np.uint8)
    rows[:, 0] = _INT[0]
    words = values.astype(np.int64, copy=False).view(np.uint64) ^ np.uint64(_OFFSET)
    rows[:, 1:] = words.astype(">u8").view(np.uint8).reshape(-1, 8)
    return rows


def encode_many(keys: Sequence[Key]) -> list[bytes]:
    """The bytes of each key; of a list of plain ints with few steps for each.

    Raises:
        UsageError: one of them is no key.
    """
    if set(map(type, keys)) == {int}:
        try:
            values = np.array(keys, np.int64)
        except OverflowError:
            return [encode(key) for key in keys]  # raises, and says which
        raw = encode_ints(values).tobytes()
        return [raw[at : at + _INT_BYTES] for at in range(0, len(raw), _INT_BYTES)]
    return [encode(key) for key in keys]


def decode_many(data: Sequence[bytes]) -> list[Key]:
    """The key of each element of ``data``; of encoded ints with few steps for each.

    Raises:
        UsageError: one of them is not an encoded key.
    """
    if _all_ints(data):
        return list(_ints(data).tolist())
    return [decode(key) for key in data]


def _all_ints(data: Sequence[bytes]) -> bool:
    return all(len(key) == _INT_BYTES and key[0] == _INT[0] for key in data)


def _ints(data: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """The values of encoded ints, shape (n,)."""
    rows = np.frombuffer(b"".join(data), np.uint8).reshape(-1, _INT_BYTES)
    words = np.ascontiguousarray(rows[:, 1:]).view(">u8").reshape(-1)
    return (words.astype(np.uint64) ^ np.uint64(_OFFSET)).view(np.int64)


def hash_ints(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The hash of each key of an int64 array, shape (n,): the first number of SplitMix64 seeded with it.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    z = values.astype(np.int64).view(np.uint64)
    z += _GOLDEN
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def hash_key(key: bytes) -> int:
    """The hash of an encoded key, in [0, 2**64)."""
    return int(hash_many([key])[0])


def hash_many(keys: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """The hash of each encoded key, shape (n,)."""
    if _all_ints(keys):
        return hash_ints(_ints(keys))
    hashes = np.frombuffer(b"".join([blake3(key).digest(8) for key in keys]), "<u8").astype(np.uint64)
    ints = [at for at, key in enumerate(keys) if key[:1] == _INT]
    if ints:
        hashes[ints] = hash_ints(_ints([keys[at] for at in ints]))
    return hashes
