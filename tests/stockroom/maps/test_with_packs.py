"""Maps in the objects of a repository, as they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.errors import CorruptError, NotFoundError
from hopyard.stockroom.maps import SortedMap, encode
from hopyard.stockroom.packfiles import Objects
from hopyard.storage import LocalStore

from .pool import Pool, built

CONTENT: dict[bytes, Any] = {
    encode(number): [f"{number:064x}", number + 9, 10] for number in range(0, 50_000, 10)
}


def test_a_map_is_read_while_it_is_written_and_when_it_is_published(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "repository"))
    changes = {encode(70): None, encode(75): ["new", 75, 1], encode("name"): {"a": 1}}
    with Objects(store).writing() as writer:
        first = SortedMap(writer, None).update(writer, CONTENT)
        second = first.update(writer, changes)
        assert second.get(encode(75)) == ["new", 75, 1]
        assert [key for key, _, _ in first.diff(second)] == sorted(changes)
        writer.publish()
    wanted = {key: value for key, value in {**CONTENT, **changes}.items() if value is not None}
    objects = Objects(store)
    assert dict(SortedMap(objects, second.root).items()) == wanted
    assert dict(SortedMap(objects, first.root).items()) == CONTENT
    assert second.root == built(Pool(), wanted).root
    assert objects.missing(SortedMap(objects, second.root).pages()) == set()


def test_a_change_of_an_opened_map_writes_its_pages_only(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "repository"))
    with Objects(store).writing() as writer:
        root = SortedMap(writer, None).update(writer, CONTENT).root
        writer.publish()
    objects = Objects(store)
    opened = SortedMap(objects, root)
    with objects.writing() as writer:
        changed = opened.update(writer, {encode(30): ["x", 39, 10]})
        new = objects.missing(changed.pages())
        writer.publish()
    assert len(new) == 2
    assert [found[0] for found in opened.diff(SortedMap(objects, changed.root))] == [encode(30)]


def test_a_root_that_is_not_here_or_is_no_page_says_so(tmp_path: Path) -> None:
    objects = Objects(LocalStore(str(tmp_path / "repository")))
    with pytest.raises(NotFoundError, match="a" * 64):
        len(SortedMap(objects, "a" * 64))
    with objects.writing() as writer:
        other = writer.add("fragment", np.arange(4, dtype=np.uint8))
        writer.publish()
    with pytest.raises(CorruptError, match=f"{other} is not a page"):
        len(SortedMap(objects, other))
