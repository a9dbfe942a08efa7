"""States of models as files named by content; a new file holds only what has changed.

A state is a tree of tensors and plain values. Its digest is that of its logical content: of the
skeleton and of every tensor's digest, in any files. Its file is
``<digest>.safetensors``; the manifest in the file's metadata says for every tensor its digest and
the file that holds it. Tensors are looked up in a file by content, never by
position, so a state that is saved again in full may replace its file while others refer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hopyard.errors import CorruptError, NotFoundError, UsageError
from hopyard.objects.digests import digest_json
from hopyard.objects.elsewhere import Elsewhere
from hopyard.objects.safetensorsfile import Bytes, wire
from hopyard.objects.tensorfile import TensorFile, write_file
from hopyard.objects.tensors import Tensor
from hopyard.objects.tree import Tree, flatten, unflatten
from hopyard.storage import Store
from hopyard.storage.format import check_format, format_header
from hopyard.wording import nearest

FROZEN = "frozen"
"""Folder, as a state's folder sees it, of files with tensors that no training changes; see ``objects.frozen``."""
ELSEWHERE = "elsewhere"
"""Folder, as a state's folder sees it, of the files of a run that say where such tensors lie, and do not have them."""

_DOMAIN = "hopyard.state"


@dataclass(frozen=True)
class StateRef:
    """Reference to a saved state.

    Attributes:
        digest: of its logical content.
        files: all files that loading it needs, its own first. While the reference is in use,
            none of them may be deleted.
        nbytes: bytes of all its tensors.
        parts: its parts by key; each is a whole state.
    """

    digest: str
    files: tuple[str, ...]
    nbytes: int
    parts: tuple[tuple[str, StateRef], ...] = ()

    def part(self, key: str) -> StateRef:
        """The state of the subtree that was saved as a part of its own.

        Raises:
            UsageError: it has no such part.
        """
        found = dict(self.parts).get(key)
        if found is None:
            keys = [known for known, _ in self.parts]
            raise UsageError(
                f"the state {self.digest[:12]} has no part {key!r}{nearest(key, keys)}; it has {keys}. "
                "Save it with that part, or load all of it."
            )
        return found

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"digest": self.digest, "files": list(self.files), "nbytes": self.nbytes}
        if self.parts:
            fields["parts"] = {key: part.to_json() for key, part in self.parts}
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> StateRef:
        parts = tuple((key, cls.from_json(part)) for key, part in fields.get("parts", {}).items())
        return cls(fields["digest"], tuple(fields["files"]), fields["nbytes"], parts)


@dataclass(frozen=True)
class _Stored:
    """A tensor that the manifest lists."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    file: str


class _Manifest:
    """Manifest of a state, in the metadata of the state's file. ``files`` maps names to bytes of tensors in them."""

    def __init__(self, file: TensorFile, name: str) -> None:
        content = file.manifest
        try:
            check_format(content["format"], "state", where=name)
            self.skeleton: Any = content["skeleton"]
            self.files: dict[str, int] = dict(content["files"])
            names = list(self.files)
            self.tensors = [
                _Stored(path, dtype, tuple(shape), digest, names[number])
                for path, dtype, shape, digest, number in content["tensors"]
            ]
            self.order: list[Any] = content["order"]
            self.parts = tuple((key, StateRef.from_json(part)) for key, part in content["parts"])
            self.digest = _digest(
                self.skeleton, ((t.path, t.digest) for t in self.tensors), self.order, self.parts
            )
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise file.corrupt(f"its manifest cannot be read ({error!r})") from None
        if file_name(self.digest) != name.rpartition("/")[2]:
            raise file.corrupt(f"its content has the digest {self.digest}")

    def own(self, name: str) -> dict[str, str]:
        """Digest to the tensor's name in this file, for the tensors that it holds itself."""
        found: dict[str, str] = {}
        for tensor in self.tensors:
            if tensor.file == name.rpartition("/")[2]:
                found.setdefault(tensor.digest, tensor.path)
        return found


def file_name(digest: str) -> str:
    """The file of the state with this digest."""
    return f"{digest}.safetensors"


class Lender(Protocol):
    """Files of frozen tensors, as ``frozen.FrozenTensors`` has them."""

    def places(self, tensors: Mapping[str, Tensor]) -> Mapping[str, tuple[str, int]]: ...


def save_state(
    store: Store,
    tree: Tree,
    *,
    previous: StateRef | None = None,
    parts: Sequence[str] = (),
    frozen: Lender | None = None,
) -> StateRef:
    """Save ``tree`` durably, writing as little as possible. The same tree gives the same digest.

    Args:
        previous: a saved state that is still needed. Tensors that its files hold are not written
            again, unless more than half of the bytes in these files were then of no use: then
            all tensors are written anew.
        parts: keys at the top of ``tree`` whose values go to files of their own, complete in
            themselves: each can be loaded, and kept, alone.
        frozen: has, or gets, the tensors that are marked as frozen; files of the state refer to them.

    Raises:
        DataError: something in the tree cannot be stored; says what and where.
        UsageError: one of ``parts`` is not a key of the tree.
    """
    if not parts:
        return _save(store, tree, previous, frozen, (), [])
    if not isinstance(tree, dict) or not set(parts) <= tree.keys():
        keys = list(tree) if isinstance(tree, dict) else []
        raise UsageError(f"parts={tuple(parts)!r} must be keys at the top of the tree, which are {keys}.")
    rest = {key: value for key, value in tree.items() if key not in parts}
    flatten(tree)  # what cannot be stored is said before anything is written
    saved = tuple((key, _save(store, tree[key], None, frozen, (), [])) for key in parts)
    return _save(store, rest, previous, frozen, saved, list(tree))


def save_references(store: Store, tensors: Mapping[str, Tensor], elsewhere: Elsewhere) -> None:
    """Save the state ``tensors`` in a file that has none of their bytes: they are read where they lie.

    Args:
        tensors: by digest; only that, dtypes and shapes are looked at.
        elsewhere: the place of each.
    """
    found, skeleton = flatten(dict(tensors))
    rest = {"skeleton": skeleton, "order": [], "parts": ()}
    _write(store, file_name(state_digest(dict(tensors))), found, {}, rest, elsewhere)


def state_digest(tree: Tree) -> str:
    """The digest that ``save_state`` would give ``tree``, saved without parts; nothing is written."""
    tensors, skeleton = flatten(tree)
    return _digest(skeleton, ((path, tensor.digest) for path, tensor in tensors.items()), [], ())


def load_state(
    store: Store,
    ref: StateRef,
    *,
    verify: bool = False,
    held: Tree = None,
    on_read: Callable[[int], object] | None = None,
) -> Tree:
    """The tree that was saved. Its tensors are read-only, and mapped where the store has files.

    The structure of the files that are read is checked; ``verify`` checks every tensor's bytes as well.

    Args:
        held: a tree that is in memory. What it has at the same path with the same content is taken from it, sharing
            its memory, and not read; a file is not even opened if nothing else of it is needed.
        on_read: called with the bytes, headers included, that were read of each file.

    Raises:
        NotFoundError: a file is gone.
        CorruptError: a file is not what was written; names it.
    """
    name = file_name(ref.digest)
    file = TensorFile(store, name)
    manifest = _Manifest(file, name)
    inner = held if isinstance(held, dict) else {}
    parts = dict(manifest.parts)
    rest = {key: value for key, value in inner.items() if key not in parts} if parts else held
    tensors = _taken(flatten(rest)[0], manifest)
    _read_tensors(store, file, manifest, verify, tensors, on_read or (lambda nbytes: None))
    tree = unflatten({tensor.path: tensors[tensor.digest] for tensor in manifest.tensors}, manifest.skeleton)
    if not manifest.parts:
        return tree
    loaded = {
        key: load_state(store, part, verify=verify, held=inner.get(key), on_read=on_read)
        for key, part in manifest.parts
    }
    return {key: loaded[key] if key in loaded else tree[key] for key in manifest.order}


def load_part(store: Store, ref: StateRef, key: str, *, verify: bool = False) -> Tree:
    """The subtree that was saved as the part ``key``; reads nothing else."""
    return load_state(store, ref.part(key), verify=verify)


def _digest(
    skeleton: Any, tensors: Iterable[tuple[str, str]], order: list[Any], parts: Iterable[tuple[str, StateRef]]
) -> str:
    return digest_json([skeleton, list(tensors), order, [(key, part.digest) for key, part in parts]], _DOMAIN)


def _save(
    store: Store,
    tree: Tree,
    previous: StateRef | None,
    frozen: Lender | None,
    parts: tuple[tuple[str, StateRef], ...],
    order: list[Any],
) -> StateRef:
    tensors, skeleton = flatten(tree)
    digest = _digest(skeleton, ((path, t.digest) for path, t in tensors.items()), order, parts)
    name = file_name(digest)
    exists = store.exists(name)
    files = files_if_whole(store, name) if exists else None
    if files is None:
        # Others may refer to tensors in a file that is replaced: the new one must have them all.
        held = {} if exists or previous is None else _held(store, previous, tensors)
        lent = {each.digest: each for each in tensors.values() if each.is_frozen}
        held |= {} if frozen is None or not lent else frozen.places(lent)
        files = _write(store, name, tensors, held, {"skeleton": skeleton, "order": order, "parts": parts})
    nbytes = sum(tensor.nbytes for tensor in tensors.values()) + sum(part.nbytes for _, part in parts)
    needed = dict.fromkeys([*files, *(file for _, part in parts for file in part.files)])
    return StateRef(digest, tuple(needed), nbytes, parts)


def _write(
    store: Store,
    name: str,
    tensors: dict[str, Tensor],
    held: dict[str, tuple[str, int]],
    rest: dict[str, Any],
    elsewhere: Elsewhere | None = None,
) -> list[str]:
    """Write the file ``name`` of all tensors that other files do not hold, or of where they lie; returns the files of
    the state."""
    own = {tensor.digest: path for path, tensor in reversed(tensors.items()) if tensor.digest not in held}
    written = {path: tensors[path] for path in own.values()}
    sizes = {name: sum(tensor.nbytes for tensor in written.values()), **dict(held.values())}
    number = {file: i for i, file in enumerate(sizes)}
    manifest = {
        "format": format_header("state"),
        "skeleton": rest["skeleton"],
        "files": list(sizes.items()),
        "tensors": [
            (path, t.dtype, t.shape, t.digest, number[held[t.digest][0]] if t.digest in held else 0)
            for path, t in tensors.items()
        ],
        "order": rest["order"],
        "parts": [(key, part.to_json()) for key, part in rest["parts"]],
    }
    write_file(store, name, written if elsewhere is None else {}, manifest, elsewhere)
    return list(sizes)


def files_if_whole(store: Store, name: str) -> list[str] | None:
    """The files of a state that is there already; None if one of them is gone or damaged.

    On a disk every byte is compared: it may have been written without ``sync`` before power failed, and then a file of
    the right size holds zeros. What lies elsewhere may be changed by others.
    """
    try:
        file = TensorFile(store, name)
        manifest = _Manifest(file, name)
        if file.is_near:
            for _ in _tensors(store, file, manifest, True, (), lambda nbytes: None):
                pass  # each is compared, and let go
    except (CorruptError, NotFoundError):
        return None
    files = list(manifest.files)
    return files if all(store.exists(file) for file in files[1:]) else None


def _held(store: Store, previous: StateRef, tensors: dict[str, Tensor]) -> dict[str, tuple[str, int]]:
    """Digest of each tensor that the files of ``previous`` and its parts hold to that file and the bytes in it."""
    place: dict[str, tuple[str, int]] = {}
    for ref in (previous, *(part for _, part in previous.parts)):
        name = file_name(ref.digest)
        manifest = _Manifest(TensorFile(store, name), name)
        place |= {
            tensor.digest: (tensor.file, manifest.files[tensor.file])
            for tensor in manifest.tensors
            if not is_lent(tensor.file)
        }
    live = {tensor.digest: tensor.nbytes for tensor in tensors.values() if tensor.digest in place}
    held = {digest: place[digest] for digest in live}
    return held if 2 * sum(live.values()) >= sum(dict(held.values()).values()) else {}


def own_tensors(store: Store, name: str) -> dict[str, int]:
    """Digest and bytes of each tensor that a file holds itself.

    Raises:
        NotFoundError: there is no such file.
        CorruptError: it is not what was written.
    """
    file = TensorFile(store, name)
    slots = {digest: file.slot(path) for digest, path in _Manifest(file, name).own(name).items()}
    return {digest: slot.stop - slot.start for digest, slot in slots.items()}


def read_tensors(store: Store, files: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors by digest, from the files of states that hold them; every byte is checked.

    Args:
        files: the file of each, by its digest.

    Raises:
        NotFoundError: a file is gone.
        CorruptError: a file is not what was written; names it.
    """
    found: dict[str, Tensor] = {}
    for name in dict.fromkeys(files.values()):
        file = _referred(store, name)
        manifest = _Manifest(file, name)
        wanted = {tensor.digest for tensor in manifest.tensors if files.get(tensor.digest) == name}
        if {digest for digest, place in files.items() if place == name} - wanted:
            raise file.corrupt("it lacks tensors that a program says it holds")
        _read_tensors(store, file, manifest, True, found, lambda nbytes: None)
    return {digest: found[digest] for digest in files}


def is_lent(name: str) -> bool:
    """Whether a file of a state belongs to other states, too, and is deleted with none of the state's own."""
    return name.startswith((f"{FROZEN}/", f"{ELSEWHERE}/"))


def _referred(store: Store, name: str) -> TensorFile:
    """A file that a state or a program refers to for some of its tensors."""
    try:
        return TensorFile(store, name)
    except NotFoundError as error:
        if not is_lent(name):
            raise
        raise NotFoundError(
            f"{error} It held tensors that runs share, such as those of a base. Restore it from a copy, or search "
            "again with fresh=True over the same base, which writes it anew."
        ) from error


def _taken(held: dict[str, Tensor], manifest: _Manifest) -> dict[str, Tensor]:
    """Tensors by digest: the tensors of the manifest that are held under the same path."""
    taken: dict[str, Tensor] = {}
    for stored in manifest.tensors:
        tensor = held.get(stored.path)
        alike = tensor is not None and (tensor.dtype, tensor.shape) == (stored.dtype, stored.shape)
        if tensor is not None and alike and tensor.digest == stored.digest:
            taken[stored.digest] = tensor
    return taken


def _read_tensors(
    store: Store,
    file: TensorFile,
    manifest: _Manifest,
    verify: bool,
    found: dict[str, Tensor],
    on_read: Callable[[int], object],
) -> None:
    """Add the tensors of the manifest that are not found yet, by digest."""
    for digest, tensor in _tensors(store, file, manifest, verify, tuple(found), on_read):
        found[digest] = tensor


def _tensors(
    store: Store,
    file: TensorFile,
    manifest: _Manifest,
    verify: bool,
    found: Collection[str],
    on_read: Callable[[int], object],
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the manifest but for those that are found already, by digest: from files one by one, and over a
    network together."""
    known = set(found)
    for number, name in enumerate(manifest.files):
        wanted = {t.digest: t for t in manifest.tensors if t.file == name and t.digest not in known}
        if number and not wanted:
            continue
        source = _referred(store, name) if number else file
        own = (_Manifest(source, name) if number else manifest).own(name)
        if not wanted.keys() <= own.keys():
            raise source.corrupt("it lacks tensors that another state says it holds")
        for digests in [[digest] for digest in wanted] if source.is_near else [list(wanted)]:
            content = source.read(own[digest] for digest in digests)
            for digest in digests:
                path = own[digest]
                yield digest, _tensor(source, path, wanted[digest], content[path], verify)
        on_read(source.bytes_read)


def _tensor(source: TensorFile, name: str, stored: _Stored, content: Bytes, verify: bool) -> Tensor:
    slot = source.slot(name)
    if (slot.dtype, slot.shape) != wire(stored.dtype, stored.shape):
        raise source.corrupt(f"its header and its manifest differ about the tensor {name!r}")
    tensor = Tensor(stored.dtype, stored.shape, content)
    if verify and not slot.file and tensor.digest != stored.digest:
        raise source.corrupt(f"the bytes of the tensor {name!r} have changed")
    tensor.know(stored.digest)
    return tensor
