"""Reads a stockroom with nothing of Hopyard, written from docs/format-stockroom.md alone, as one in another language.

It shows that the document says all that there is to know, and checks what the document promises: digests, the order of
keys, where pages and fragments end.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
from blake3 import blake3

SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8, "F8_E4M3": 1,
    "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F16": 2, "BF16": 2, "F32": 4, "F64": 8,
    "C64": 8, "C128": 16,
}  # fmt: skip
NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "C128": "<c16", "BF16": "<u2",
}  # fmt: skip
"""BF16 and F8 (u1) come as their bits."""
WORD = (1 << 64) - 1


RECORDS = {
    "column": {"kind", "dtype", "shape", "nested", "bits", "pages", "count", "nbytes"},
    "dataset": {"manifest", "files", "rows", "nbytes"},
    "model": {"tree", "nbytes"},
    "run": {"content", "status", "started"},
}


class RefusedError(Exception):
    """Not of this format, or damaged."""


class PurgedError(Exception):
    """The sample is gone; the arguments say when, by whom and why."""


def digest(data: bytes, domain: str) -> str:
    return blake3(data, derive_key_context=domain).hexdigest()


def require(condition: bool, what: str) -> None:
    if not condition:
        raise RefusedError(what)


def check_header(header: dict[str, Any], kind: str) -> None:
    require(header["kind"] == kind, f"a {header['kind']}, not a {kind}")
    require(header["version"] <= 1 and not header["flags"], f"a {kind} of a newer format: {header}")


# Keys


def encode(key: Any) -> bytes:
    if isinstance(key, int):
        return b"\x01" + struct.pack(">Q", key + 2**63)
    if isinstance(key, str):
        return b"\x02" + key.encode()
    first, second = key
    text = encode(first).replace(b"\0", b"\0\xff") + b"\0" if isinstance(first, str) else encode(first)
    return b"\x03" + text + encode(second)


def decode(data: bytes) -> Any:
    if data[0] == 1:
        return struct.unpack(">Q", data[1:9])[0] - 2**63
    if data[0] == 2:
        return data[1:].decode()
    if data[1] == 1:
        return decode(data[1:10]), decode(data[10:])
    end = 2
    while data[end] or data[end + 1 : end + 2] == b"\xff":
        end += 1 if data[end] else 2
    return data[2:end].replace(b"\0\xff", b"\0").decode(), decode(data[end + 1 :])


def key_hash(key: Any) -> int:
    if not isinstance(key, int):
        return int.from_bytes(blake3(encode(key)).digest()[:8], "little")
    z = (key + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
    return z ^ z >> 31


def from_json(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


# Plain values and tensors


def plain(node: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [plain(each, tensors) for each in node]
    if not isinstance(node, dict):
        return node
    ((mark, content),) = node.items()
    if mark == "T":
        return tensors[content]
    if mark == "d":
        return {key: plain(value, tensors) for key, value in content}
    if mark == "t":
        return tuple(plain(each, tensors) for each in content)
    if mark == "f":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    require(mark == "i", f"the mark {mark}")
    return int(content, 16)


def array(data: bytes, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, NUMPY.get(dtype, "u1")).reshape(shape)


class Fragment:
    """Samples by key; ``purged``: what the header says of those that are gone."""

    def __init__(self, data: bytes) -> None:
        require(data[:8] == b"HOPFRAG1", "no fragment")
        self._data, self._end = data, 16 + struct.unpack("<Q", data[8:16])[0]
        self.header = header = json.loads(data[16 : self._end])
        count, shape, self.kind = header["count"], header["shape"], header["kind"]
        self.keys = self._keys(header["keys"], count)
        require(self.keys == sorted(set(self.keys), key=encode), "keys of a fragment that do not ascend")
        varies = shape is None or None in shape
        shapes = self._ints(count * len(shape)).reshape(count, -1) if shape and varies else self._ints(0)
        offsets = self._ints(count + 1 if varies else 0)
        width = 0 if varies else SIZES[header["dtype"]] * math.prod(shape)
        self.bounds = offsets.tolist() if varies else [width * n for n in range(count + 1)]
        self.shapes = shapes.tolist() if shape and varies else [shape] * count
        self._start = self._section()
        require(self._start + self.bounds[-1] == len(data), "a fragment of another length")
        self.purged = {self.keys[at]: what for at, *what in header.get("purged", [])}

    def _section(self) -> int:
        start: int = -(-self._end // 64) * 64
        require(not any(self._data[self._end : start]), "padding that is not zeros")
        self._end = start
        return start

    def _ints(self, count: int) -> np.ndarray[Any, Any]:
        start = self._section()
        self._end += 8 * count
        return np.frombuffer(self._data, "<i8", count, start)

    def _keys(self, described: Any, count: int) -> list[Any]:
        if isinstance(described, dict):
            self._section()
            return list(range(described["range"], described["range"] + count))
        if described == "ints":
            return list(self._ints(count).tolist())
        require(described == "bytes", f"keys that are {described}")
        bounds = self._ints(count + 1).tolist()
        start, self._end = self._end, self._end + bounds[-1]
        return [decode(self._data[start + a : start + b]) for a, b in pairwise(bounds)]

    def sample(self, at: int) -> Any:
        if self.keys[at] in self.purged:
            raise PurgedError(*self.purged[self.keys[at]])
        data = self._data[self._start + self.bounds[at] : self._start + self.bounds[at + 1]]
        if self.kind == "tensor":
            return array(data, self.header["dtype"], self.shapes[at])
        return data.decode() if self.kind == "string" else data


class Repository:
    """A root: a folder with ``FORMAT``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        header, _, check = (root / "FORMAT").read_bytes().partition(b"\n")
        require(check == b"%08x" % zlib.crc32(header), "the CRC-32 of FORMAT")
        check_header(json.loads(header), "stockroom")
        self.places: dict[str, tuple[Path, int, int, str, str, list[int]]] = {}
        for path in sorted(root.glob("packfiles/*")):
            self._read_packfile(path)
        for path in sorted(root.glob("files/*")):
            self.places[path.name] = path, 0, path.stat().st_size, "file", "U8", []

    def _read_packfile(self, path: Path) -> None:
        with path.open("rb") as file:
            head = file.read(8)
            head += file.read(struct.unpack("<Q", head)[0])
        require(digest(head, "hopyard.packfile") == path.name.partition("-")[2], f"the header of {path.name}")
        entries = json.loads(head[8:])
        about = json.loads(entries.pop("__metadata__")["hopyard"])
        check_header(about["format"], "packfile")
        kinds = {name: kind for kind, names in about["kinds"].items() for name in names}
        end = 0
        for name, entry in entries.items():
            start, stop = entry["data_offsets"]
            require(start == end, f"gaps in {path.name}")
            end = stop
            dtype, shape = (
                ("C128", entry["shape"][:-1])
                if name in about["complex"]
                else (entry["dtype"], entry["shape"])
            )
            if not name.startswith("~"):
                self.places[name] = (
                    path,
                    len(head) + start,
                    len(head) + stop,
                    kinds.get(name, about["kind"]),
                    dtype,
                    shape,
                )
        require(path.stat().st_size == len(head) + end, f"the size of {path.name}")

    # Objects

    def read(self, name: str, kind: str) -> bytes:
        """The bytes of an object, checked; of one that was purged, of what stands in for it."""
        while name not in self.places:
            name = self._instead(name)
        path, start, stop, found, dtype, shape = self.places[name]
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        described = f"{dtype}[{', '.join(map(str, shape))}]\n".encode() if kind == "tensor" else b""
        require(found == kind and digest(described + data, f"hopyard.{kind}") == name, f"the {kind} {name}")
        return data

    def _instead(self, name: str) -> str:
        found = []
        for path in (self.root / "tombstones" / name).glob("*"):
            data = path.read_bytes()
            require(digest(data, "hopyard.tombstone") == path.name, f"the tombstone {path.name}")
            tombstone = json.loads(data)
            check_header(tombstone["format"], "tombstone")
            found.append((-len(tombstone["purged"]), path.name, tombstone["instead"]))
        if not found:
            raise KeyError(name)
        return str(min(found)[2])

    def json(self, name: str, kind: str = "json") -> Any:
        data = self.read(name, kind)
        value = json.loads(data)
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        require(data == canonical, f"JSON of {name} that is not canonical")
        return value

    def items(self, root: str | None) -> Iterator[tuple[Any, Any]]:
        """The entries of a sorted map, whose shape is checked."""
        levels: dict[int, list[list[Any]]] = {}
        found = list(self._walk(root, levels)) if root else []
        for level, pages in levels.items():
            for number, keys in enumerate(pages):
                ends = [n for n in range(1, len(keys) + 1) if ends_behind(keys[n - 1], n, level)]
                require(
                    ends == [len(keys)] or (not ends and number == len(pages) - 1),
                    "a page that ends elsewhere",
                )
        require(not levels or len(levels[max(levels)]) == 1, "several roots")
        yield from found

    def _walk(self, page: str, levels: dict[int, list[list[Any]]]) -> Iterator[tuple[Any, Any]]:
        value = self.json(page, "page")
        keys = [from_json(key) for key in value["keys"]]
        level = value.get("level", 0)
        levels.setdefault(level, []).append(keys)
        require(keys == sorted(set(keys), key=encode) != [], "a page's keys")
        if not level:
            yield from zip(keys, value["values"], strict=True)
            return
        for key, count, below in zip(keys, value["counts"], value["pages"], strict=True):
            found = list(self._walk(below, levels))
            require(found[0][0] == key and len(found) == count, "what a page says of one below")
            yield from found

    # References and commits

    def references(self, kind: str) -> dict[str, str]:
        found = {}
        for numbers in sorted(
            {path.parent for path in (self.root / "refs" / kind).rglob("*") if path.is_file()}
        ):
            entries = sorted(path.name for path in numbers.iterdir())
            require(entries == [f"{n:012d}" for n in range(1, len(entries) + 1)], f"the log {numbers}")
            entry = json.loads((numbers / entries[-1]).read_bytes())
            if "check" in entry:
                rest = json.dumps(
                    {name: entry[name] for name in ("by", "commit", "time")}, separators=(",", ":")
                )
                require(entry["check"] == digest(rest.encode(), "hopyard.reference"), "the check of an entry")
            if (commit := entry["commit"]) is not None:
                segments = numbers.relative_to(self.root / "refs" / kind).parts
                found["/".join(unquote_to_bytes(s.replace("=", "%")).decode() for s in segments)] = commit
        return found

    def commit(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = self.json(name, "commit")
        check_header(value["format"], "commit")
        before = [self.commit(parent)["generation"] for parent in value["parents"]]
        require(value["generation"] == 1 + max(before, default=0), f"the generation of {name}")
        return value

    def log(self, name: str) -> list[str]:
        """The commit and all that it follows, each after all that follow it; else the latest first."""
        waiting: dict[str, dict[str, Any]] = {name: self.commit(name)}
        found: list[str] = []
        while waiting:
            found.append(max(waiting, key=lambda one: (waiting[one]["generation"], waiting[one]["time"])))
            waiting |= {one: self.commit(one) for one in waiting.pop(found[-1])["parents"]}
        return found

    def stage(self, worktree: str, base: str) -> list[tuple[dict[str, Any], dict[Any, Any]]]:
        """What is staged upon a commit: the header and the samples of each write."""
        chain: list[bytes] = []
        expected = None
        for path in sorted((self.root / "stage" / worktree / base).iterdir(), reverse=True):
            seal, content = path.read_bytes()[:32], path.read_bytes()[32:]
            place = f"{worktree}/{base}/{path.name}\n".encode()
            require(
                seal == blake3(place + content, derive_key_context="hopyard.staged").digest(),
                f"the seal of {path.name}",
            )
            if expected not in (None, seal):
                continue
            expected = content[:32]
            chain.append(content[32:])
            if expected == bytes(32):
                break
        require(expected in (None, bytes(32)), f"the beginning of what is staged upon {base}")
        found: list[tuple[dict[str, Any], dict[Any, Any]]] = []
        for content in reversed(chain):
            end = 0
            while end < len(content):
                start = end + 8
                end = start + struct.unpack("<Q", content[end:start])[0]
                found.append(self._operation(content[start:end]))
        return found

    def _operation(self, data: bytes) -> tuple[dict[str, Any], dict[Any, Any]]:
        end = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:end])
        check_header(header["format"], "operation")
        if end == len(data):
            return header, {}
        read, record = Fragment(data[end:]), header["record"]["column"]
        require(read.header["dtype"] == record["dtype"] and read.kind == record["kind"], "staged samples")
        return header, {key: read.sample(at) for at, key in enumerate(read.keys)}

    def records(self, commit: str) -> dict[tuple[str, str], Any]:
        found = dict(self.items(self.commit(commit)["root"]))
        for record in found.values():
            ((kind, fields),) = record.items()
            require(kind == "value" or fields.keys() == RECORDS.get(kind), f"the record {record}")
        return found

    # What is on the shelves

    def column(self, commit: str, name: str) -> dict[Any, Any]:
        """All samples by key; a PurgedError in place of one that is gone."""
        record = self.records(commit)["data", name]["column"]
        found: dict[Any, Any] = {}
        weight = count = nbytes = 0
        is_checked = record["bits"] == 0  # else an early version ended fragments elsewhere
        before_ends = True
        for first, (fragment, last, samples, size) in self.items(record["pages"]):
            read = Fragment(self.read(fragment, "fragment"))
            require(
                (read.keys[0], read.keys[-1], len(read.keys)) == (first, from_json(last), samples), "an entry"
            )
            sizes = [b - a for a, b in pairwise(read.bounds)]
            weights = [8 + len(encode(key)) + each for key, each in zip(read.keys, sizes, strict=True)]
            ends = [
                each >= 1 << 15 or key_hash(key) >> 45 < weight
                for key, each, weight in zip(read.keys, sizes, weights, strict=True)
            ]
            if is_checked and not read.purged:
                natural = [at for at, is_end in enumerate(ends, 1) if is_end]
                require(natural in ([], [len(read.keys)]), "a fragment that goes on behind a natural end")
                require(len(weights) == 1 or sum(weights) <= 1 << 20, "a fragment that is too large")
                if not before_ends:
                    require(weight + weights[0] > 1 << 20, "a fragment that ends too early")
            require(bool(read.purged) or sum(sizes) == size, "the size of a fragment")
            for at, key in enumerate(read.keys):
                require(isinstance(key, tuple) == record["nested"], "keys of the other kind")
                try:
                    found[key] = read.sample(at)
                except PurgedError as error:
                    found[key] = error
            before_ends, weight = bool(read.purged) or ends[-1], sum(weights)
            count, nbytes = count + samples, nbytes + size
        require((count, nbytes) == (record["count"], record["nbytes"]), "the totals of a column")
        return found

    def sample(self, commit: str, name: str, key: Any) -> Any:
        """One sample: of the fragment with the greatest first key that is not above it."""
        entries = list(self.items(self.records(commit)["data", name]["column"]["pages"]))
        fragment = [value[0] for first, value in entries if encode(first) <= encode(key)][-1]
        read = Fragment(self.read(fragment, "fragment"))
        return read.sample(read.keys.index(key))

    def dataset(self, commit: str, name: str) -> tuple[dict[str, Any], list[bytes]]:
        """The manifest with its files' entries, and the files."""
        record = self.records(commit)["data", name]["dataset"]
        entries = [entry for _, entry in self.items(record["files"])]
        require(sum(entry["size"] for entry in entries) == record["nbytes"], "the size of a dataset")
        return {**self.json(record["manifest"]), "files": entries}, [
            self.read(e["digest"], "file") for e in entries
        ]

    def model(self, commit: str, name: str) -> Any:
        value = self.json(self.records(commit)["model", name]["model"]["tree"])
        check_header(value["format"], "model")
        tensors = {
            path: array(self.read(one, "tensor"), dtype, shape)
            for path, dtype, shape, one, _ in value["tensors"]
        }
        return plain(value["skeleton"], tensors)

    def value(self, commit: str, name: str) -> Any:
        value = self.records(commit)["experiment", name]["value"]
        is_apart = isinstance(value, dict) and list(value) == ["json"]
        return plain(self.json(value["json"]) if is_apart else value, {})

    def run(self, commit: str, name: str) -> dict[str, Any]:
        value: dict[str, Any] = self.json(self.records(commit)["run", name]["run"]["content"])
        check_header(value["format"], "stock-run")
        series = {metric: self._series(one) for metric, one in value["series"].items()}
        files = {file: self.read(one, "file") for file, (one, _) in value["artifacts"].items()}
        plains = {field: plain(value[field], {}) for field in ("params", "tags", "git")}
        return {**value, **plains, "series": series, "artifacts": files}

    def _series(self, value: dict[str, Any]) -> list[tuple[Any, ...]]:
        columns = []
        for at, dtype in enumerate(("<i8", "<f8", "<f8")):
            parts = [self.read(part[at], "tensor") for part in value["parts"]]
            columns.append(np.frombuffer(b"".join(parts), dtype).tolist())
        require(all(len(column) == value["count"] for column in columns), "the length of a series")
        return list(zip(*columns, strict=True))


def ends_behind(key: Any, count: int, level: int) -> bool:
    """Whether a page of ``count`` entries ends behind this key."""
    bits = key_hash(key) >> 7 * level % 56
    return (count >= 16 and not bits & 127) or (count > 256 and not bits & 7) or count == 1024
