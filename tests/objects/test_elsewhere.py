"""Frozen tensors that lie in somebody else's safetensors files are read there, and written nowhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as as_bytes
from safetensors.numpy import save_file
from tests.objects.test_frozen import LARGE, another_process, check, save, state, tensor

from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.hopper.removal import remove_run
from hopyard.objects.elsewhere import find_elsewhere
from hopyard.objects.frozen import RunFolder, urls_elsewhere
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


def test_tensors_are_read_where_they_lie(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1, 2)
    pretrained(tmp_path / "llama", 3, name="model-00002-of-00002")
    (tmp_path / "llama" / "config.json").write_text("{}")
    runs = LocalStore(tmp_path / "store").runs
    folder = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    saved = []
    for trial in range(3):
        another_process()
        tree = state(trial, 1, 2, 3)
        saved.append((folder, trial, save(folder, trial, tree), tree))
    another_process()
    for each in saved:
        check(*each)
    assert written(runs) == 0
    assert sum(entry.size for entry in runs.list()) < 30_000
    assert urls_elsewhere(folder) == [LocalStore(tmp_path / "llama").url]


def test_a_run_that_was_not_told_of_a_place_does_not_depend_on_it(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1, 2)
    pretrained(tmp_path / "copy", 1, 2)
    runs = LocalStore(tmp_path / "store").runs
    told = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    save(told, 0, state(0, 1, 2))
    other = refer(runs, "grid-2", LocalStore(tmp_path / "copy"))
    refs = [(other, 0, save(other, 0, state(1, 1, 2)), state(1, 1, 2))]
    assert written(runs) == 0
    plain = RunFolder(runs, "grid-3")
    refs.append((plain, 0, save(plain, 0, state(2, 1, 2)), state(2, 1, 2)))
    assert written(runs) > 2 * LARGE * 4
    shutil.rmtree(tmp_path / "llama")
    another_process()
    for each in refs:
        check(*each)
    assert [urls_elsewhere(folder) for folder in (other, plain)] == [[LocalStore(tmp_path / "copy").url], []]


def test_what_does_not_lie_there_is_written(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1, 2)
    runs = LocalStore(tmp_path / "store").runs
    folder = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    check(folder, 0, save(folder, 0, state(0, 1, 4)), state(0, 1, 4))
    assert LARGE * 4 < written(runs) < LARGE * 4 + 3_000


def test_a_deletion_takes_the_reference_and_nothing_of_the_folder(tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1)
    whole = file.read_bytes()
    runs = LocalStore(tmp_path / "store").runs
    one, two = (refer(runs, f"grid-{number}", LocalStore(tmp_path / "llama")) for number in (1, 2))
    save(one, 0, state(0, 1))
    ref = save(two, 0, state(0, 1))
    remove_run(one)
    check(two, 0, ref, state(0, 1))
    assert one.names() <= {"lease.lock", "lease.use"}
    assert file.read_bytes() == whole


def test_a_run_that_was_deleted_and_begun_anew_is_told_anew(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1)
    runs = LocalStore(tmp_path / "store").runs
    folder = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    save(folder, 0, state(0, 1))
    for name in folder.names():
        folder.delete(name)
    check(folder, 0, save(folder, 0, state(0, 1)), state(0, 1))
    assert written(runs) > LARGE * 4


def test_a_file_that_is_gone_is_named_and_a_process_that_has_its_tensors_writes_them(tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1)
    runs = LocalStore(tmp_path / "store").runs
    folder = refer(runs, "grid-1", LocalStore(tmp_path / "llama"))
    ref = save(folder, 0, state(0, 1))
    file.unlink()
    with pytest.raises(NotFoundError) as caught:
        load_state(folder.at("00000"), ref)
    assert str(caught.value) == (
        f"model.safetensors in {LocalStore(tmp_path / 'llama').url}, from which a run reads frozen tensors "
        f"(frozen_at=), is gone, and no file there has a tensor of F32 [{LARGE}] that it had. Put "
        "the file back; or call fit(...) again with frozen_at= of the folder in which these weights are now, which "
        "mends the run; or search again with fresh=True and without frozen_at=."
    )
    another_process()
    check(folder, 1, save(folder, 1, state(1, 1)), state(1, 1))
    assert written(runs) > LARGE * 4


def test_a_run_is_mended_where_its_tensors_are_now(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1, 2)
    folder = refer(LocalStore(tmp_path / "store").runs, "grid-1", LocalStore(tmp_path / "llama"))
    ref = save(folder, 0, state(0, 1, 2))
    (tmp_path / "llama").rename(tmp_path / "moved")
    pretrained(tmp_path / "half", 1)
    folder.frozen().mend(find_elsewhere(LocalStore(tmp_path / "half")))
    with pytest.raises(NotFoundError, match="is gone"):
        load_state(folder.at("00000"), ref)
    for place in ("moved", "again"):
        (tmp_path / "moved").rename(tmp_path / place)
        folder.frozen().mend(find_elsewhere(LocalStore(tmp_path / place)))
        check(folder, 0, ref, state(0, 1, 2))
        assert urls_elsewhere(folder) == [LocalStore(tmp_path / place).url]
        (tmp_path / place).rename(tmp_path / "moved")


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
    assert str(caught.value).startswith(
        f"model.safetensors in {LocalStore(tmp_path / 'llama').url}, from which a run reads frozen tensors "
        f"(frozen_at=), is not what it was, and no file there has a tensor of F32 [{LARGE}] that it had. Put "
        "the file back; or call"
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


def test_tensors_are_found_again_beside_a_new_file_of_the_name(tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1, 2)
    folder = refer(LocalStore(tmp_path / "store").runs, "grid-1", LocalStore(tmp_path / "llama"))
    ref = save(folder, 0, state(0, 1, 2))
    file.rename(tmp_path / "llama" / "v1.safetensors")
    pretrained(tmp_path / "llama", 5)
    check(folder, 0, ref, state(0, 1, 2))
    file.unlink()
    tensors = {f"layers.{number}.weight": tensor(number).numpy() for number in (1, 2)}
    (tmp_path / "llama" / "v1.safetensors").unlink()
    save_file(tensors, file, metadata={"format": "pt", "written": "anew"})  # which moves each of them
    check(folder, 0, ref, state(0, 1, 2))


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
    for name, what in ("llama", "no safetensors file"), ("nowhere", "no such folder"):
        place = LocalStore(tmp_path / name)
        with pytest.raises(NotFoundError) as caught:
            find_elsewhere(place)
        assert str(caught.value) == (
            f"frozen_at={place.url!r}, but there is {what}. Give the folder in which the files of the pretrained model "
            "lie, such as model.safetensors (huggingface_hub.snapshot_download gives that of a model of the hub); or "
            "leave frozen_at out, and frozen tensors are stored with the runs."
        )


def test_files_that_are_no_use_are_left_out(tmp_path: Path) -> None:
    file = pretrained(tmp_path / "llama", 1)
    folder, whole = tmp_path / "llama", file.read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-10])
    (folder / "list.safetensors").write_bytes((8).to_bytes(8, "little") + b"[1,2,3] ")
    (folder / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    (folder / "a name.safetensors").write_bytes(whole)
    (folder / "dangling.safetensors").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "upper.SAFETENSORS").symlink_to(file)
    found = find_elsewhere(LocalStore(folder))
    assert found.tensors.keys() == {tensor(1).digest}
    assert found.left_out.keys() == {f"{name}.safetensors" for name in ("cut", "list", "pointer", "a name")}
    assert found.left_out["cut.safetensors"].startswith(
        f"the file {folder / 'cut.safetensors'} is no whole safetensors"
    )
    assert "it is no object of JSON" in found.left_out["list.safetensors"]
    file.unlink()
    with pytest.raises(
        NotFoundError, match=r"but no safetensors file there can be read: .*a name\.safetensors"
    ):
        find_elsewhere(LocalStore(folder))


def test_dtypes_of_newer_versions_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    values = tensor(1)
    entries = (
        f'{{"weight":{{"dtype":"F32","shape":[{LARGE}],"data_offsets":[0,{values.nbytes}]}},'
        f'"scales":{{"dtype":"F4","shape":[6],"data_offsets":[{values.nbytes},{values.nbytes + 3}]}}}}'
    ).encode()
    content = len(entries).to_bytes(8, "little") + entries + values.data.tobytes() + b"123"
    (tmp_path / "llama" / "model.safetensors").write_bytes(content)
    assert find_elsewhere(LocalStore(tmp_path / "llama")).tensors.keys() == {values.digest}


def test_a_folder_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    pretrained(tmp_path / "llama", 1)
    (tmp_path / "llama" / "up").symlink_to(tmp_path)
    with pytest.raises(
        StorageError, match=r"frozen_at='.*/llama' cannot be listed: Too many levels of symbolic links"
    ):
        find_elsewhere(LocalStore(tmp_path / "llama"))


def test_files_of_runs_are_left_out(tmp_path: Path) -> None:
    """They go with their runs, by any way to them."""
    other = LocalStore(tmp_path / "project" / "other")
    folder = RunFolder(other.runs, "grid-1")
    save(folder, 0, state(0, 1))
    (tmp_path / "link").symlink_to(tmp_path / "project" / "other" / "runs")
    places = [tmp_path / "project", tmp_path / "project" / "other", tmp_path / "link"]
    places += [path for path in (tmp_path / "project" / "other" / "runs").rglob("*") if path.is_dir()]
    for place in places:
        if any(place.rglob("*.safetensors")):
            with pytest.raises(
                NotFoundError, match="no safetensors file but those of runs, which go with their runs"
            ):
                find_elsewhere(LocalStore(place))
    (tmp_path / "project" / "elsewhere").mkdir()
    pretrained(tmp_path / "project" / "elsewhere" / "llama", 3)
    assert find_elsewhere(LocalStore(tmp_path / "project")).tensors.keys() == {tensor(3).digest}


def test_tensors_in_a_bucket_are_found_there_and_not_read_to_be_compared() -> None:
    name = f"elsewhere-{np.random.default_rng().integers(1 << 60)}"
    place = MemoryStore(name)
    place.put("llama/model.safetensors", as_bytes({"weight": tensor(1).numpy()}))
    runs = MemoryStore()
    folder = refer(runs, "grid-1", open_store(f"memory://{name}/llama"))
    another_process()
    ref = save(folder, 0, state(0, 1))
    check(folder, 0, ref, state(0, 1))
    assert written(runs) == 0
    place.delete("llama/model.safetensors")
    another_process()
    with pytest.raises(NotFoundError, match=r"model\.safetensors in memory://.*/llama, .* is gone"):
        load_state(folder.at("00000"), ref)
