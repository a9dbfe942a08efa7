"""Frozen tensors that lie in somebody else's safetensors files are read there, and written nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as as_bytes
from safetensors.numpy import save_file
from tests.objects.test_frozen import LARGE, another_process, check, save, shared, state, tensor

from hopyard.errors import CorruptError, NotFoundError
from hopyard.objects.elsewhere import find_elsewhere
from hopyard.objects.frozen import RunFolder
from hopyard.objects.states import load_part, load_state
from hopyard.storage import LocalStore, MemoryStore, Store, open_store


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    another_process()
    yield
    another_process()


def pretrained(folder: Path, *bases: int, name: str = "model") -> Path:
    """A folder with the tensors of these numbers, as other programs write it."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.safetensors"
    save_file({f"layers.{number}.weight": tensor(number).numpy() for number in bases}, file)
    return file


def refer(runs: Store, run: str, place: Store) -> RunFolder:
    folder = RunFolder(runs, run)
    folder.put_new("lease", b"")
    folder.frozen().refer(find_elsewhere(place))
    return folder


def written(runs: Store) -> int:
    """Bytes below the folder of frozen tensors."""
    return sum(entry.size for entry in runs.list("_frozen"))


def test_tensors_are_read_where_they_lie_by_all_runs(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1, 2)
    pretrained(tmp_path / "llama", 3, name="model-00002-of-00002")
    (tmp_path / "llama" / "config.json").write_text("{}")
    runs = LocalStore(tmp_path / "store").runs
    refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    saved = []
    for run in ("grid-1", "grid-2"):
        another_process()
        folder = RunFolder(runs, run)
        for trial in range(2):
            tree = state(trial, 1, 2, 3)
            saved.append((folder, trial, save(folder, trial, tree), tree))
    another_process()
    for each in saved:
        check(*each)
    assert written(runs) < 3_000
    assert sum(entry.size for entry in runs.list()) < 30_000


def test_what_does_not_lie_there_is_written(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1, 2)
    runs = LocalStore(tmp_path / "store").runs
    folder = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    check(folder, 0, save(folder, 0, state(0, 1, 4)), state(0, 1, 4))
    assert LARGE * 4 < written(runs) < LARGE * 4 + 3_000


def test_what_the_store_has_already_stays_there(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1, 2)
    runs = LocalStore(tmp_path / "store").runs
    save(RunFolder(runs, "grid-1"), 0, state(0, 1, 2))
    before = shared(runs)
    another_process()
    folder = refer(runs, "grid-2", LocalStore(tmp_path / "llama"))
    assert shared(runs) == before
    RunFolder(runs, "grid-1").frozen().release()
    check(folder, 0, save(folder, 0, state(1, 1, 2)), state(1, 1, 2))


def test_a_deletion_takes_the_reference_and_nothing_of_the_folder(tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1)
    whole = file.read_bytes()
    runs = LocalStore(tmp_path / "store").runs
    one = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    two = refer(runs, "grid-2", LocalStore(tmp_path / "llama"))
    save(one, 0, state(0, 1))
    ref = save(two, 0, state(0, 1))
    one.frozen().release()
    check(two, 0, ref, state(0, 1))
    two.frozen().release()
    assert runs.at("_frozen").names() == set()
    assert file.read_bytes() == whole


def test_a_file_that_is_gone_is_named_and_a_process_that_has_its_tensors_writes_them(tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1)
    runs = LocalStore(tmp_path / "store").runs
    folder = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    ref = save(folder, 0, state(0, 1))
    file.unlink()
    with pytest.raises(NotFoundError) as caught:
        load_state(folder.at("00000"), ref)
    assert str(caught.value) == (
        f"model.safetensors in {LocalStore(tmp_path / 'llama').url} is gone, in which a run has frozen tensors "
        "(frozen_at=). Put the file back as it was. Or search again with fresh=True over the same weights, and without "
        "frozen_at=, which stores them with the runs."
    )
    another_process()
    check(folder, 1, save(folder, 1, state(1, 1)), state(1, 1))
    check(folder, 0, ref, state(0, 1))  # whose file now has the tensors
    assert written(runs) > LARGE * 4


@pytest.mark.parametrize("how", ["other bytes", "shorter", "no file of tensors"])
def test_a_file_that_was_changed_is_named(how: str, tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1, 2)
    runs = LocalStore(tmp_path / "store").runs
    folder = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    ref = save(folder, 0, state(0, 1, 2))
    whole = file.read_bytes()
    if how == "other bytes":
        file.write_bytes(whole[:-4] + b"\x00\x01\x02\x03")
    elif how == "shorter":
        save_file({"layers.1.weight": tensor(1).numpy()}, file)
    else:
        file.write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptError) as caught:
        load_state(folder.at("00000"), ref)
    assert str(file) in str(caught.value)
    if how != "no file of tensors":
        assert f"is not what it was: a tensor of F32 [{LARGE}] has other bytes. Put the file back" in str(
            caught.value
        )
    file.write_bytes(whole)
    check(folder, 0, ref, state(0, 1, 2))


def test_what_was_read_does_not_change_with_the_file(tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1)
    folder = refer(LocalStore(tmp_path / "store").runs, "grid-1", LocalStore(tmp_path / "llama"))
    tree = load_state(folder.at("00000"), save(folder, 0, state(0, 1)))
    with file.open("r+b") as opened:
        opened.truncate(0)
    assert tree == state(0, 1)


def test_tensors_are_found_again_in_files_of_other_names(tmp_path: Path) -> None:
    """As a stockroom packs its files anew."""
    file = pretrained(tmp_path / "llama", 1, 2)
    folder = refer(LocalStore(tmp_path / "store").runs, "grid-1", LocalStore(tmp_path / "llama"))
    ref = save(folder, 0, state(0, 1, 2))
    file.unlink()
    pretrained(tmp_path / "llama", 3, 1, name="a")
    pretrained(tmp_path / "llama", 2, name="b")
    check(folder, 0, ref, state(0, 1, 2))
    (tmp_path / "llama" / "b.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"model\.safetensors in .* is gone"):
        load_state(folder.at("00000"), ref)


def test_offsets_that_no_element_is_aligned_to(tmp_path: Path) -> None:
    """The format allows them: an odd number of bytes comes first."""
    (tmp_path / "llama").mkdir()
    values = tensor(1)
    entries = (
        '{"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},'
        f'"weight":{{"dtype":"F32","shape":[{LARGE}],"data_offsets":[3,{3 + values.nbytes}]}}}}'
    )
    header = entries.encode() + b" " * (-len(entries) % 8)
    content = len(header).to_bytes(8, "little") + header + b"\x00\x01\x01" + values.data.tobytes()
    (tmp_path / "llama" / "model.safetensors").write_bytes(content)
    folder = refer(LocalStore(tmp_path / "store").runs, "grid-1", LocalStore(tmp_path / "llama"))
    ref = save(folder, 0, state(0, 1))
    check(folder, 0, ref, state(0, 1))
    for each in (load_state(folder.at("00000"), ref), {"model": load_part(folder.at("00000"), ref, "model")}):
        assert each["model"]["base1"].numpy().flags.aligned


def test_a_place_without_safetensors_files_says_so(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "pytorch_model.bin").write_bytes(b"pickle")
    place = LocalStore(tmp_path / "llama")
    for empty in (place, LocalStore(tmp_path / "nowhere")):
        with pytest.raises(NotFoundError) as caught:
            find_elsewhere(empty)
        assert str(caught.value) == (
            f"frozen_at={empty.url!r}, but there is no safetensors file. Give the folder in which the files of the "
            "pretrained model lie, such as model.safetensors; or leave frozen_at out, and frozen tensors are stored "
            "with the runs."
        )


def test_a_file_that_is_not_whole_is_named(tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(
        CorruptError, match=rf"the file {file} is no whole safetensors file: it has \d+ bytes"
    ):
        find_elsewhere(LocalStore(tmp_path / "llama"))


def test_files_of_a_stores_runs_are_left_out(tmp_path: Path) -> None:
    """They go with their runs."""
    other = LocalStore(tmp_path / "other")
    save(RunFolder(other.runs, "grid-1"), 0, state(0, 1))
    with pytest.raises(NotFoundError, match="there is no safetensors file"):
        find_elsewhere(other)


def test_tensors_in_a_bucket_are_found_there_and_not_read_to_be_compared() -> None:
    name = f"elsewhere-{np.random.default_rng().integers(1 << 60)}"
    place = MemoryStore(name)
    place.put("llama/model.safetensors", as_bytes({"weight": tensor(1).numpy()}))
    runs = MemoryStore()
    folder = refer(runs, "grid-1", open_store(f"memory://{name}/llama"))
    another_process()
    ref = save(folder, 0, state(0, 1))
    check(folder, 0, ref, state(0, 1))
    assert written(runs) < 3_000
    place.delete("llama/model.safetensors")
    another_process()
    with pytest.raises(NotFoundError, match=r"model\.safetensors in memory://.*/llama is gone"):
        load_state(folder.at("00000"), ref)
