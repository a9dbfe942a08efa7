"""Names, memory stores, URLs, formats and waiting."""

from pathlib import Path

import pytest

from hopyard import __version__
from hopyard.errors import CorruptError, FormatError, NotFoundError, StorageFullError, UsageError
from hopyard.storage import LocalStore, MemoryStore, open_store
from hopyard.storage.format import check_format, claim_format, format_header, read_format, root_format
from hopyard.storage.waiting import wait_for_store


def test_paths_and_urls_open_stores(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert isinstance(store, LocalStore)
    assert open_store(f"file://{tmp_path}").url == open_store(str(tmp_path)).url == str(tmp_path)
    assert open_store(store) is store
    assert open_store(store.url).url == store.url


def test_memory_stores_are_found_by_name_and_apart_without() -> None:
    MemoryStore("shared-one").put("runs/a", b"x")
    assert open_store("memory://shared-one").get("runs/a") == b"x"
    assert open_store("memory://shared-one/runs").get("a") == b"x"
    assert open_store(MemoryStore("shared-one").url).exists("runs/a")
    assert list(open_store("memory://").list()) == []
    unnamed = MemoryStore()
    unnamed.put("a", b"x")
    assert open_store(unnamed.url).get("a") == b"x"
    assert list(MemoryStore().list()) == []
    with pytest.raises(
        NotFoundError, match=r"'runs/b' in the store memory://shared-one; did you mean 'runs/a'"
    ):
        MemoryStore("shared-one").get("runs/b")


@pytest.mark.parametrize("url", [None, 5, ["a"]])
def test_what_is_no_place_is_refused(url: object) -> None:
    with pytest.raises(UsageError, match=rf"but {type(url).__name__} was given\. Give for example"):
        open_store(url)  # type: ignore[arg-type]


def test_an_unknown_scheme_names_those_there_are() -> None:
    with pytest.raises(
        UsageError, match=r"scheme 'memry', but .*file://, memory://, s3://.*; did you mean 'memory'"
    ):
        open_store("memry://x")


def test_a_format_is_claimed_once_and_checked_afterwards() -> None:
    store = MemoryStore()
    with pytest.raises(NotFoundError):
        read_format(store, "dataset")
    claim_format(store, "dataset", flags=["packed"])
    claim_format(store, "dataset", flags=["packed"])
    assert read_format(store, "dataset", known_flags=["packed"]) == format_header("dataset", flags=["packed"])
    with pytest.raises(FormatError, match=r"holds a dataset, not a run. Give the path of a run"):
        claim_format(store, "run")


def test_a_newer_format_names_the_version_to_install() -> None:
    newer = {**format_header("run", version=3), "hopyard": "9.8.7"}
    with pytest.raises(FormatError) as caught:
        check_format(newer, "run", version=2, where="store/x")
    assert str(caught.value) == (
        f"store/x was written by Hopyard 9.8.7 in format 3; this is Hopyard {__version__}, which reads formats "
        "up to 2. Install that version or a later one: pip install 'hopyard>=9.8.7'"
    )
    check_format(newer, "run", version=3)
    with pytest.raises(FormatError, match=r"and uses 'zstd'.*pip install"):
        check_format(format_header("run", flags=["zstd", "a"]), "run", known_flags=["a"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"kind": "run"}',
        b"\xff",
        root_format(format_header("run", 2)).replace(b": 2", b": 3"),
        root_format({}),
    ],
)
def test_a_damaged_format_is_corrupt(content: bytes) -> None:
    store = MemoryStore()
    store.put("FORMAT", content)
    with pytest.raises(CorruptError, match=r"Restore it from a copy|restore it from a copy"):
        read_format(store, "run")


def test_waiting_for_space_announces_once_and_repeats_with_growing_waits() -> None:
    waits: list[float] = []
    messages: list[str] = []
    attempts = iter([StorageFullError("no space is left for x: 0 MB are free. Make space there.")] * 6)

    def action() -> str:
        for error in attempts:
            raise error
        return "done"

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    assert wait_for_store(action, messages.append, wait) == "done"
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    message = "paused: no space is left for x: 0 MB are free. Make space there. "
    assert messages == [message + "It goes on by itself as soon as there is space."]


def test_giving_up_raises_what_the_store_said() -> None:
    def action() -> None:
        raise StorageFullError("full")

    with pytest.raises(StorageFullError, match=r"full"):
        wait_for_store(action, lambda message: None, wait=lambda seconds: True)
