"""Damaged entries are made again; files and directories of others are left alone."""

from pathlib import Path

import pytest

from hopyard.data.cache import format as cache_format
from hopyard.data.cache import node
from hopyard.data.cache.durability import durability
from hopyard.data.cache.node import NodeCache
from hopyard.errors import NotWritableError, UsageError
from hopyard.storage import files

from .entries import content_of, key, put, sized


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[1:],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"x",
        lambda data: bytes(len(data)),
        lambda data: data[:-70] + b"?" + data[-69:],
        lambda data: data[:-1] + b"\x7f",
        lambda data: data[:500] + b"d" + data[501:],
    ],
    ids=[
        "empty",
        "end cut",
        "begin cut",
        "half",
        "longer",
        "zeros",
        "description changed",
        "another version",
        "content changed",
    ],
)
def test_a_damaged_entry_is_deleted_and_made_again(cache, damage):
    path = put(cache, 1, b"c" * 1000, {"some": "description of it"}).path
    durability.join()
    path.write_bytes(damage(path.read_bytes()))
    assert cache.find(key(1)) is None
    assert cache.entries() == []
    assert not path.exists()
    assert content_of(put(cache, 1, b"again")) == b"again"


def test_a_flipped_bit_anywhere_in_an_entry_is_never_read(cache):
    """Also where nobody looked at the entry since this process did."""
    path = put(cache, 1, content := bytes(range(256)), {"some": "description of it"}).path
    durability.join()
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = cache.find(key(1))
        if found is None:
            assert not path.exists()
        else:
            assert content_of(found) == content
            assert found.description == {"some": "description of it"}
    path.write_bytes(whole)
    assert content_of(cache.find(key(1))) == content


@pytest.mark.skipif(cache_format.boot_id() is None, reason="needs a system that tells its boot's id")
def test_an_entry_is_looked_at_once_in_a_boot_and_again_if_somebody_wrote_to_it(cache, monkeypatch):
    looked = []
    real = cache_format._check
    monkeypatch.setattr(cache_format, "_check", lambda *args: looked.append(args) or real(*args))
    path = put(cache, 1, bytes(1000)).path
    durability.join()
    looked.clear()
    monkeypatch.setattr(node, "_REFRESH", 0.0)
    for _ in range(3):
        assert cache.find(key(1))
    assert not looked
    with monkeypatch.context() as another_boot:
        another_boot.setattr(cache_format, "boot_id", lambda: b"\x01" * 16)
        for _ in range(3):
            assert cache.find(key(1))
    assert len(looked) == 1
    path.touch()
    assert cache.find(key(1))
    assert len(looked) == 2


FOREIGN = ["notes.txt", "x.flat", "A" * 64 + ".flat", key(1) + ".flat.bak", "deep/" + key(3) + ".flat"]


def test_files_of_others_survive_clearing_and_eviction(cache, tmp_path):
    cache.prepare()
    for name in FOREIGN:
        (cache.path / name).parent.mkdir(exist_ok=True)
        (cache.path / name).write_bytes(b"mine")
    (outside := tmp_path / "outside").write_bytes(b"mine")
    (cache.path / f"{key(4)}.flat").symlink_to(outside)
    (cache.path / f"{key(5)}.flat").mkdir()
    assert cache.find(key(4)) is None
    assert cache.find(key(5)) is None
    small = NodeCache(cache.path, limit=1000)
    for number in range(10, 20):
        put(small, number, sized(700))
    cache.clear()
    assert {name: (cache.path / name).read_bytes() for name in FOREIGN} == dict.fromkeys(FOREIGN, b"mine")
    assert outside.read_bytes() == b"mine"
    assert (cache.path / f"{key(4)}.flat").is_symlink()
    assert (cache.path / f"{key(5)}.flat").is_dir()


@pytest.mark.parametrize("name", [key(1) + ".flat", key(1) + ".part", "CACHEDIR.TAG", "photo.jpg"])
def test_a_directory_of_someone_else_is_refused(tmp_path, name):
    content = b"Signature: 8a477f597d28d172789f06886806bc55\n# pip's"
    (tmp_path / name).write_bytes(content)
    cache = NodeCache(tmp_path)
    for use in (cache.prepare, cache.clear, cache.entries, lambda: cache.claim(key(1), wait=False)):
        with pytest.raises(UsageError, match=r"a directory with other files in it.* Give an empty directory"):
            use()
    cache.find(key(1))
    cache.admits(10**15)
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    assert (tmp_path / name).read_bytes() == content


def test_backup_tools_are_told_to_skip_it(cache):
    cache.prepare()
    tag = (cache.path / "CACHEDIR.TAG").read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


@pytest.mark.parametrize("length", [0, 10, 60])
def test_a_directory_whose_maker_was_killed_is_taken_over(cache, length):
    cache.prepare()
    tag = cache.path / "CACHEDIR.TAG"
    whole = tag.read_bytes()
    tag.write_bytes(whole[:length])
    put(NodeCache(cache.path), 1)
    assert tag.read_bytes() == whole


def test_what_came_while_the_directory_was_removed_is_kept(cache):
    """``rm -rf`` deletes the mark, then fails since the directory has a new entry."""
    put(cache, 1, b"kept")
    (cache.path / "CACHEDIR.TAG").unlink()
    again = NodeCache(cache.path)
    put(again, 2)
    assert (cache.path / "CACHEDIR.TAG").exists()
    assert content_of(again.find(key(1))) == b"kept"
    (cache.path / "CACHEDIR.TAG").unlink()
    (cache.path / "photo.jpg").write_bytes(b"")
    with pytest.raises(UsageError, match="a directory with other files in it"):
        NodeCache(cache.path).prepare()


@pytest.mark.parametrize("removals", [1, 2, 3])
def test_a_directory_that_is_removed_while_it_is_made_is_made_again(cache, monkeypatch, removals):
    make, left = files.make_directory, iter(range(removals))

    def make_and_remove(folder):
        make(folder)
        if next(left, None) is not None:
            Path(folder).rmdir()

    monkeypatch.setattr(files, "make_directory", make_and_remove)
    if removals < 3:
        cache.prepare()
        assert (cache.path / "CACHEDIR.TAG").exists()
    else:
        with pytest.raises(NotWritableError, match="cannot be written: No such file or directory"):
            cache.prepare()


def test_a_directory_that_is_removed_is_made_again(cache):
    put(cache, 1)
    durability.join()
    for path in cache.path.iterdir():
        path.unlink()
    cache.path.rmdir()
    assert cache.find(key(1)) is None
    assert content_of(put(cache, 1)) == b"content"
