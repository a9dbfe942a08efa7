"""Where a stockroom and its objects are, with and without git."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.stockroom.git import Head, Place, at, facts, find, folders, prepare, read, settle, write
from hopyard.storage.names import validate_name

from .repositories import ID, A, B, Git, commit_head, stored


def test_found_from_a_folder_a_file_and_the_current_directory(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = repository / "src" / "deep"
    deep.mkdir(parents=True)
    place = find(deep)
    assert (place.root, place.head) == (repository, repository / "head.stock")
    assert (place.git, place.objects, place.worktree) == (
        repository / ".git", repository / ".git" / "hopyard" / ID, "main"
    )  # fmt: skip
    monkeypatch.chdir(deep)
    assert find() == find(Path()) == find(repository / "train.py") == find(repository / "head.stock") == place


def test_the_nearest_head_counts(repository: Path) -> None:
    inner = repository / "a" / "b"
    inner.mkdir(parents=True)
    write(inner / "head.stock", Head("main", B), ID)
    assert find(inner).root == inner
    assert find(inner.parent).root == repository


def test_a_folder_named_head_stock_is_none(tmp_path: Path) -> None:
    (tmp_path / "head.stock").mkdir()
    with pytest.raises(NotFoundError):
        find(tmp_path)


def test_found_through_a_link(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(repository)
    assert find(tmp_path / "link") == find(repository)


def test_a_git_directory_behind_a_link_is_where_the_link_leads(repository: Path, tmp_path: Path) -> None:
    (repository / ".git").rename(tmp_path / "elsewhere")
    (repository / ".git").symlink_to(tmp_path / "elsewhere")
    assert find(repository).git == tmp_path / "elsewhere"


def test_no_stockroom_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=f"{tmp_path} is in no stockroom: .*hopyard stock init"):
        find(tmp_path)
    with pytest.raises(NotFoundError, match=r"no/such does not exist\. Give a folder"):
        find(tmp_path / "no" / "such")


def test_stockrooms_below_that_git_tracks_are_named(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init")
    for folder in ("data", "a b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "head.stock", Head("main", A), ID)
    git(tmp_path, "add", "data")
    with pytest.raises(NotFoundError, match=r"git tracks 1 stockroom; go there: cd data\. Make one here"):
        find(tmp_path)
    git(tmp_path, "add", "-A")
    with pytest.raises(
        NotFoundError, match=r"git tracks 2 stockrooms; go there: cd 'a b', cd data\. Make one"
    ):
        find(tmp_path)


def test_a_head_stock_that_git_tracks_and_somebody_deleted_is_named(repository: Path, git: Git) -> None:
    (repository / "head.stock").unlink()
    said = "Git tracks one in .*, which was deleted; to have it back: git checkout -- head.stock. Make one"
    with pytest.raises(NotFoundError, match=said):
        find(repository)
    git(repository, "checkout", "--", "head.stock")
    assert find(repository).root == repository


def test_without_git_objects_ignore_themselves(tmp_path: Path, git: Git) -> None:
    place = at(tmp_path)
    assert (place.objects, place.git, place.worktree) == (tmp_path / ".hopyard", None, "main")
    assert not place.objects.exists()
    prepare(place)
    prepare(place)
    write(place.head, Head("main", None), place.id)
    git(tmp_path, "init")
    assert git(tmp_path, "status", "--porcelain", "-uall").split("\n") == ["?? head.stock", ""]


def test_with_git_no_file_of_the_user_is_touched(repository: Path, git: Git) -> None:
    (repository / ".gitignore").write_text("*.log\n")
    prepare(at(repository))
    assert (repository / ".gitignore").read_text() == "*.log\n"
    assert git(repository, "status", "--porcelain") == "?? .gitignore\n"


def test_objects_that_were_there_before_git_are_found_where_they_were(tmp_path: Path, git: Git) -> None:
    commitless = at(tmp_path)
    prepare(commitless)
    stored(tmp_path)
    write(commitless.head, Head("main", A), ID)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "later")
    place = find(tmp_path)
    assert (place.objects, place.git) == (tmp_path / ".hopyard", tmp_path / ".git")
    git(tmp_path, "worktree", "add", "../other")
    other = find(tmp_path.parent / "other")
    assert (other.objects, other.worktree) == (tmp_path / ".hopyard", "worktree-other")
    shutil.rmtree(tmp_path.parent / "other")

    assert place.exposed == other.exposed
    assert place.exposed is not None
    command = place.exposed.partition("uses it: ")[2]
    git(tmp_path, "-c", f"alias.sh=!{command}", "sh")
    assert (tmp_path / ".git" / "hopyard" / ID / "FORMAT").exists()
    assert find(tmp_path).objects == tmp_path / ".git" / "hopyard" / ID
    assert find(tmp_path).exposed is None


@pytest.mark.parametrize("damage", [b"", b"\0\0", b"a\0"])
def test_a_folder_that_was_lost_hides_no_staged_changes(repository: Path, damage: bytes) -> None:
    (repository / "a").mkdir()
    commit_head(repository / "a", Head("main", B))
    prepare(at(repository / "a"))
    file = at(repository / "a").objects / "folders" / "main"
    file.write_bytes(damage)
    with pytest.raises(
        CorruptError, match=r"folders/main holds b'.*', which is no folder\. .* Write that folder into it"
    ):
        at(repository / "a")
    file.write_bytes(b"a")
    assert at(repository / "a").worktree == "main"


def test_a_stockroom_is_found_by_its_id_wherever_its_folder_is(repository: Path, git: Git) -> None:
    (repository / "a" / "b").mkdir(parents=True)
    commit_head(repository / "a" / "b", Head("main", B))
    prepare(at(repository / "a" / "b"))
    place = at(repository / "a" / "b")
    assert folders(place.objects) == {"main": "a/b"}
    git(repository, "mv", "a/b", "c")
    moved = at(repository / "c")
    assert (moved.objects, moved.worktree) == (place.objects, "main")
    settle(moved)
    assert folders(place.objects) == {"main": "c"}
    shutil.copytree(repository / "c", repository / "copied")
    copy = at(repository / "copied")
    assert (copy.objects, copy.worktree) == (place.objects, "copy2-main")
    settle(copy)
    assert at(repository / "c").worktree == "main"
    (repository / "copied").rename(repository / "again")
    assert at(repository / "again").worktree == "copy2-main"


def test_a_head_that_names_no_stockroom_is_the_only_one_that_was_in_its_folder(repository: Path) -> None:
    place = at(repository)
    prepare(place)
    place.head.unlink()
    assert at(repository) == place
    prepare(at(repository, "f" * 16))
    assert at(repository).id not in (place.id, "f" * 16)


def test_new_stockrooms_of_one_repository_are_apart(repository: Path) -> None:
    ids = {at(repository / name).id for name in ("a", "b", "c")}
    assert len(ids) == 3
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)


def test_worktrees_share_objects_and_have_their_own_id(repository: Path, git: Git) -> None:
    file = stored(repository)
    git(repository, "worktree", "add", "-b", "dev", "../ü tree~")
    tree = repository.parent / "ü tree~"
    place = find(tree)
    assert (place.root, place.objects, place.git) == (tree, file.parent, repository / ".git")
    assert place.worktree.startswith("worktree-")
    assert validate_name(place.worktree)
    assert facts(place).branch == "dev"
    git(repository, "worktree", "move", str(tree), "../moved")
    assert find(repository.parent / "moved").worktree == place.worktree


def test_a_worktree_whose_repository_moved_says_what_to_run(repository: Path, git: Git) -> None:
    git(repository, "worktree", "add", "../tree")
    repository.rename(repository.parent / "moved")
    with pytest.raises(StorageError, match=r"tree/\.git should name a git directory.*git worktree repair"):
        find(repository.parent / "tree")


def test_worktrees_of_a_bare_repository_share_objects(repository: Path, tmp_path: Path, git: Git) -> None:
    git(tmp_path, "clone", "--bare", str(repository), "all/.bare")
    (tmp_path / "all" / ".git").write_text("gitdir: ./.bare\n")
    git(tmp_path / "all", "worktree", "add", "one", "main")
    place = find(tmp_path / "all" / "one")
    assert place.objects == tmp_path / "all" / ".bare" / "hopyard" / ID
    assert place.worktree == "worktree-one"
    bare = at(tmp_path / "all" / ".bare")
    assert bare.git == tmp_path / "all" / ".bare"
    assert (facts(bare).branch, facts(bare).dirty) == ("main", None)


def test_a_submodule_has_its_own_objects(repository: Path, tmp_path: Path, git: Git) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init")
    git(outer, "submodule", "add", str(repository), "inner")
    place = find(outer / "inner")
    assert place.objects == outer / ".git" / "modules" / "inner" / "hopyard" / ID
    assert place.worktree == "main"


def test_git_clean_leaves_objects(repository: Path, git: Git) -> None:
    file = stored(repository)
    git(repository, "clean", "-fdx")
    assert file.exists()


def test_checkout_moves_the_head_and_no_objects(repository: Path, git: Git) -> None:
    file = stored(repository)
    commit_head(repository, Head("main", B))
    git(repository, "checkout", "HEAD~1")
    place = find(repository)
    assert read(place.head) == Head("main", A)
    assert place.objects == file.parent
    assert file.exists()


def test_a_clone_by_git_alone_has_a_place_and_no_objects(repository: Path, tmp_path: Path, git: Git) -> None:
    stored(repository)
    git(tmp_path, "clone", str(repository), "copy")
    place = find(tmp_path / "copy")
    assert read(place.head) == Head("main", A)
    assert place.objects == tmp_path / "copy" / ".git" / "hopyard" / ID
    assert not place.objects.exists()


def test_an_empty_git_folder_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert at(tmp_path).git is None


def test_a_repository_that_lost_its_head_is_not_taken_for_none(repository: Path) -> None:
    stored(repository)
    (repository / ".git" / "HEAD").unlink()
    with pytest.raises(
        StorageError, match=r"\.git is not a git repository any more .* but .*hopyard is there"
    ):
        find(repository)


def test_objects_that_cannot_be_made_are_an_error() -> None:
    with pytest.raises(StorageError, match=r"/proc/no/\.hopyard"):
        prepare(Place(Path("/proc/no"), Path("/proc/no/.hopyard"), "main", None))


# Variables of the environment


def test_variables_name_a_repository_elsewhere(
    repository: Path, tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "--bare", str(repository), "dots.git")
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "inner")
    inner = at(tree / "inner", "f" * 16)
    write(tree / "head.stock", Head("main", A), ID)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "dots.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tree))
    place = find(tree)
    assert place.objects == tmp_path / "dots.git" / "hopyard" / ID
    assert place.worktree.startswith("tree-")
    assert facts(place).branch == "main"
    assert find(repository).objects == repository / ".git" / "hopyard" / ID  # another tree: not meant
    assert facts(find(repository)).commit is not None
    assert at(tree / "inner", "f" * 16) == inner  # nearer


def test_variables_of_a_hook_mean_the_repository_it_is_in(
    repository: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "worktree", "add", "../tree")
    tree = repository.parent / "tree"
    plain = find(repository), find(tree)
    nested = repository / "nested"
    nested.mkdir()
    git(nested, "init")
    inner = at(nested, ID)
    monkeypatch.chdir(repository)
    monkeypatch.setenv("GIT_DIR", ".git")
    assert (find(repository), find(tree)) == plain
    assert at(nested, ID) == inner
    monkeypatch.chdir(tree)
    monkeypatch.setenv("GIT_DIR", str(repository / ".git" / "worktrees" / "tree"))
    assert (find(repository), find(tree)) == plain
    assert facts(find(tree)).branch == "tree"
    assert facts(find(repository)).branch == "main"


def test_variables_that_name_no_repository_are_an_error(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/no/such.git")
    with pytest.raises(
        StorageError, match=r"GIT_DIR is '/no/such\.git', but no git repository is there.*unset GIT_DIR"
    ):
        find(repository)
    monkeypatch.setenv("GIT_DIR", str(repository / ".git" / "worktrees"))
    with pytest.raises(StorageError, match="no git repository is there"):
        find(repository)
