"""Whatever git does with commits, the data are those that git itself makes of text files with one line for each sample.

Beside ``head.stock`` lies a text file for each sample, which git merges: it is the oracle.
"""

from __future__ import annotations

import itertools
import os
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.sampling import by_level, sample
from tests.stockroom.git.repositories import run_git

from hopyard import StockRoom
from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.git.driver import ARGUMENTS, install

KEYS = 6


class Project:
    """A git repository with a stockroom, whose samples are also text files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def begun(cls, folder: Path) -> Project:
        folder.mkdir()
        run_git(folder, "init")
        with StockRoom.init(folder) as stock:
            install(stock.place)
        project = cls(folder)
        project.commit("start", **{f"k{key}": 0 for key in range(KEYS)})
        return project

    def git(self, *arguments: str, code: int = 0) -> str:
        return run_git(self.folder, *arguments, code=code)

    def write(self, **samples: int | None) -> None:
        """Write samples (None: delete) to both."""
        with StockRoom(self.folder) as stock, stock.enable_write():
            if "x" not in stock.data:
                stock.data["x"] = {key: np.array(value) for key, value in samples.items()}
            for key, value in samples.items():
                if value is None:
                    del stock.data["x"][key]
                else:
                    stock.data["x"][key] = np.array(value)
        for key, value in samples.items():
            file = self.folder / f"{key}.txt"
            if value is None:
                file.unlink()
            else:
                file.write_text(f"{value}\n")

    def commit(self, message: str, **samples: int | None) -> str:
        self.write(**samples)
        self.git("add", "-A")
        self.git("commit", "-m", message)
        return self.git("rev-parse", "HEAD").strip()

    @property
    def data(self) -> dict[str, int]:
        with StockRoom(self.folder) as stock:
            column = stock.data["x"]
            return {str(key): int(column[key]) for key in column}

    @property
    def texts(self) -> dict[str, int]:
        return {file.stem: int(file.read_text()) for file in self.folder.glob("*.txt")}

    def check(self, **expected: int | None) -> None:
        """The data are those of the text files, and these."""
        assert self.data == self.texts
        found = {key: self.texts.get(key) for key in expected}
        assert found == expected
        with StockRoom(self.folder) as stock:
            assert stock.verify().ok


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project that is copied for each test; the first one makes it."""
    return tmp_path_factory.mktemp("template") / "project"


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    """``main`` and ``dev`` with three commits each since they parted; main is checked out."""
    if not template.exists():
        make(template)
    return Project(shutil.copytree(template, tmp_path / "project"))


def make(folder: Path) -> None:
    made = Project.begun(folder)
    made.git("switch", "-c", "dev")
    for number in (1, 2, 3):
        made.commit(f"dev {number}", **{f"k{number}": 10 + number})
    made.git("switch", "main")
    made.commit("main 1", k4=24, new=1)
    made.commit("main 2", k5=25)


# Cherry-pick


def test_one_commit_is_picked_alone(project: Project) -> None:
    project.git("cherry-pick", "dev~1")
    project.check(k1=0, k2=12, k3=0, k4=24, k5=25)
    with StockRoom(project.folder) as stock:
        log = stock.log()
        assert log[0].message.startswith("data/x\n")
        assert "This has what changed from" in log[0].message
        assert len(log[0].parents) == 1


def test_a_pick_whose_base_both_sides_follow_claims_no_merge(project: Project) -> None:
    project.git("cherry-pick", "dev~2")
    project.check(k1=11, k2=0, k4=24)
    with StockRoom(project.folder) as stock:
        (picked, *_) = stock.log()
        theirs = stock.resolve("dev~2")
        assert "Merge" not in picked.message
        assert f"to {theirs}" in picked.message
        assert len(picked.parents) == 1


def test_a_range_is_picked_and_no_more(project: Project) -> None:
    project.git("cherry-pick", "dev~2..dev")
    project.check(k1=0, k2=12, k3=13, k4=24)


def test_what_was_picked_merges_later(project: Project) -> None:
    project.git("cherry-pick", "dev~1")
    project.git("merge", "dev", "-m", "all")
    project.check(k1=11, k2=12, k3=13, k4=24, k5=25, new=1)
    with StockRoom(project.folder) as stock:
        assert stock.merge(stock.branches()["dev"]).how == "up to date"


@pytest.mark.parametrize(("parent", "k1", "k4"), [("1", 11, 0), ("2", 0, 24)])
def test_a_merge_is_picked_against_a_parent(project: Project, parent: str, k1: int, k4: int) -> None:
    project.git("merge", "dev", "-m", "both")
    merge = project.git("rev-parse", "HEAD").strip()
    project.git("switch", "-c", "other", "main~3")
    project.git("cherry-pick", "-m", parent, merge)
    project.check(k1=k1, k4=k4, k0=0)


# Revert


def test_the_last_commit_is_reverted(project: Project) -> None:
    project.git("revert", "--no-edit", "HEAD")
    project.check(k4=24, k5=0)


def test_an_older_commit_is_reverted_and_again(project: Project) -> None:
    project.git("revert", "--no-edit", "HEAD~1")
    project.check(k4=0, k5=25, new=None)
    project.git("revert", "--no-edit", "HEAD")
    project.check(k4=24, k5=25, new=1)


@pytest.mark.parametrize("more", [False, True])
def test_a_merge_is_reverted(project: Project, more: bool) -> None:
    project.git("merge", "dev", "-m", "both")
    merge = project.git("rev-parse", "HEAD").strip()
    if more:
        project.commit("later", k0=9)
    project.git("revert", "--no-edit", "-m", "1", merge)
    project.check(k0=9 if more else 0, k1=0, k2=0, k4=24)
    project.git("switch", "dev")
    project.commit("dev 4", k1=99)
    project.git("switch", "main")
    # As with files: what was reverted does not come back by a merge, what is newer comes, or conflicts.
    project.git("merge", "dev", code=1)


# Rebase


def test_a_branch_is_rebased(project: Project) -> None:
    project.git("switch", "dev")
    project.git("rebase", "main")
    project.check(k1=11, k2=12, k3=13, k4=24, k5=25, new=1)


def edited(project: Project, todo: str, *arguments: str) -> None:
    """Rebase with this list of things to do; ``#n`` is the nth commit."""
    script = project.folder.parent / "editor.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        "file = Path(sys.argv[1])\n"
        "picks = [line.split()[1] for line in file.read_text().splitlines() if line.startswith('pick')]\n"
        f"todo = {todo!r}\n"
        "for number, pick in enumerate(picks, 1):\n    todo = todo.replace(f'#{number}', pick)\n"
        "file.write_text(todo)\n"
    )
    editor = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
    environment = os.environ | {"GIT_SEQUENCE_EDITOR": editor, "GIT_EDITOR": "true"}
    ended = subprocess.run(
        ["git", "rebase", "-i", *arguments],
        cwd=project.folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


REBASES = {
    "pick #1\npick #3\n": {"k1": 11, "k2": 0, "k3": 13},
    "drop #1\npick #2\npick #3\n": {"k1": 0, "k2": 12, "k3": 13},
    "pick #1\npick #2\n": {"k1": 11, "k2": 12, "k3": 0},
    "pick #3\npick #1\npick #2\n": {"k1": 11, "k2": 12, "k3": 13},
    "pick #1\nsquash #3\n": {"k1": 11, "k2": 0, "k3": 13},
    "pick #2\nfixup #1\n": {"k1": 11, "k2": 12, "k3": 0},
}


@pytest.mark.parametrize(
    ("todo", "onto"), sample("rebases", itertools.product(REBASES, ["main", "dev~3"]), quick=2, ci=3)
)
def test_a_rebase_drops_squashes_and_reorders(project: Project, todo: str, onto: str) -> None:
    project.git("switch", "dev")
    edited(project, todo, onto)
    project.check(**REBASES[todo], k4=24 if onto == "main" else 0)


def test_a_part_of_a_branch_is_rebased_onto_another(project: Project) -> None:
    project.git("rebase", "--onto", "main", "dev~1", "dev")
    project.check(k1=0, k2=0, k3=13, k4=24, k5=25)


# Stash, octopus, mail


def test_stashed_samples_come_back_upon_another_commit(project: Project) -> None:
    project.write(k0=7)
    project.git("stash")
    project.check(k0=0, k4=24)
    project.git("switch", "dev")
    project.git("stash", "pop")
    project.check(k0=7, k1=11, k4=0)


def test_an_octopus_conflicts_or_is_right(project: Project) -> None:
    project.git("switch", "-c", "third", "main~2")
    project.commit("third", k0=30)
    head = (project.folder / "head.stock").read_bytes()
    project.git("merge", "main", "dev", "-m", "three", code=2)
    project.git("reset", "--hard")
    assert (project.folder / "head.stock").read_bytes() == head
    project.check(k0=30, k1=0, k4=0)


@pytest.mark.parametrize("three_way", [False, True])
def test_mailed_patches_apply_rightly_or_not_at_all(project: Project, three_way: bool) -> None:
    project.git("format-patch", "-1", "dev~1", "-o", "../patches", "--binary", "--full-index")
    (patch,) = (project.folder.parent / "patches").iterdir()
    if three_way:
        project.git("am", "-3", str(patch))
        project.check(k1=0, k2=12, k3=0, k4=24)
    else:
        project.git("am", str(patch), code=128)
        project.git("am", "--abort")
        project.check(k1=0, k2=0, k4=24)


# Merges


def test_criss_cross_merges_have_the_base_that_both_histories_give(project: Project) -> None:
    for branch, other, key in (("main", "dev", 8), ("dev", "main~1", 9)):
        project.git("switch", branch)
        project.git("merge", other, "-m", f"{other} into {branch}")
        project.commit(f"after {branch}", **{f"k{branch}": key})
    project.git("switch", "main")
    project.git("merge", "dev", "-m", "criss-cross")
    project.check(kmain=8, kdev=9, k1=11, k4=24)


def test_a_conflict_names_the_command_that_settles_it(project: Project) -> None:
    project.git("switch", "dev")
    project.commit("clash", k5=15)
    picked = project.git("rev-parse", "HEAD").strip()
    project.git("switch", "main")
    said = project.git("cherry-pick", picked, code=1)
    assert "1 change conflicts" in said
    (line,) = [line.strip() for line in said.splitlines() if "hopyard stock merge" in line]
    assert " --base " in line
    assert "--resolve theirs" in said
    # As it is printed: it takes the side that the message says it does.
    subprocess.run(
        [sys.executable, "-m", "hopyard", *line.split()[1:]],
        cwd=project.folder,
        check=True,
        capture_output=True,
    )
    (project.folder / "k5.txt").write_text("25\n")
    project.git("add", "-A")
    project.git("-c", "core.editor=true", "commit", "--allow-empty", "-m", "clash, ours")
    project.check(k1=0, k4=24, k5=25)


def test_a_conflict_that_is_committed_unmerged_is_told_until_it_is_merged(project: Project) -> None:
    """As who is used to git does it: git add, git commit."""
    project.git("switch", "dev")
    project.commit("clash", k5=15)
    project.git("switch", "main")
    project.git("merge", "dev", code=1)
    (project.folder / "k5.txt").write_text("25\n")
    project.git("add", "-A")
    project.git("-c", "core.editor=true", "commit", "-m", "theirs is forgotten")
    with StockRoom(project.folder) as stock:
        (advice,) = [line for line in stock.status().advice if "unmerged" in line]
    assert "but its data conflicted and are not here. Merge them: hopyard stock merge " in advice
    with pytest.warns(UserWarning, match="its data conflicted and are not here"):
        stock = StockRoom(project.folder, enable_write=True)
    stock.experiment["other"] = 1
    stock.commit("other work")
    assert "unmerged" in str(stock.status())
    words = advice.partition("Merge them: hopyard ")[2].partition(" (or theirs)")[0].split()
    stock.close()
    subprocess.run([sys.executable, "-W", "ignore", "-m", "hopyard", *words], cwd=project.folder, check=True)
    with StockRoom(project.folder, enable_write=True) as stock:
        assert "unmerged" not in str(stock.status())
        assert stock.experiment["other"] == 1
    project.check(k1=11, k2=12, k4=24, k5=25)


def test_a_conflict_without_the_driver_is_merged_by_it_later(project: Project) -> None:
    project.git("config", "--remove-section", "merge.hopyard")
    said = project.git("cherry-pick", "dev~1", code=1)
    assert "CONFLICT" in said
    with pytest.raises(UsageError, match=r"git checkout --merge -- head.stock") as caught:
        StockRoom(project.folder)
    commands = [line.strip() for line in str(caught.value).splitlines() if line.startswith("    ")]
    for command in commands:
        words = shlex.split(command)
        if words[0] == "hopyard":
            words[:1] = [sys.executable, "-m", "hopyard"]
        subprocess.run(words, cwd=project.folder, check=True, capture_output=True)
    assert project.git("config", "merge.hopyard.driver").strip().endswith(" ".join(ARGUMENTS))
    project.git("cherry-pick", "--continue", "--no-edit")
    project.check(k1=0, k2=12, k4=24)


# Branches follow git's


def test_a_feature_branch_merges_and_is_pushed_by_itself(tmp_path: Path) -> None:
    project = Project.begun(tmp_path / "project")
    project.git("branch", "-m", "master")  # is main here
    project.git("switch", "-c", "feature")
    with StockRoom(project.folder) as stock:
        assert stock.head.branch == "feature"
    project.commit("feature", k1=1)
    project.git("switch", "master")
    project.commit("main", k2=2)
    project.git("merge", "feature", "-m", "both")
    with StockRoom(project.folder) as stock:
        assert stock.head.branch == "main"
        assert "that is the branch of git's 'master'" in str(stock.status())
        stock.push(tmp_path / "remote")
        assert stock.branches()["main"] == stock.head.commit
    project.git("switch", "feature")
    project.git("merge", "master")
    with StockRoom(project.folder) as stock:
        assert stock.head.branch == "feature"
        stock.push()
        assert stock.branches()["feature"] == stock.branches()["main"]
    with StockRoom.clone(tmp_path / "remote", tmp_path / "copy") as copy:
        assert copy.head.branch == "main"
        assert copy.resolve("origin/feature") == copy.head.commit


def test_a_branch_that_was_chosen_holds_until_git_moves_on(tmp_path: Path) -> None:
    project = Project.begun(tmp_path / "project")
    with StockRoom(project.folder) as stock:
        stock.branch("dev")
        stock.switch("dev")
        assert "that was chosen here, while git is on 'main'" in str(stock.status())
    project.commit("to dev", k1=1)
    with StockRoom(project.folder) as stock:
        assert stock.head.branch == "dev"
        assert stock.branches()["dev"] == stock.head.commit != stock.branches()["main"]
    project.git("switch", "-c", "feature")
    with StockRoom(project.folder) as stock:
        assert stock.head.branch == "feature"
    project.git("switch", "main")
    with StockRoom(project.folder) as stock:
        assert stock.head.branch == "dev"


@pytest.mark.parametrize("how", ["revert", "reset", "rebase", "amend"])
def test_what_git_takes_back_stays_in_the_branch_and_can_be_pushed(project: Project, how: str) -> None:
    remote = project.folder.parent / "remote"
    with StockRoom(project.folder) as stock:
        stock.push(remote)
        tip = stock.branches()["main"]
    if how == "revert":
        project.git("revert", "--no-edit", "HEAD")
    elif how == "reset":
        project.git("reset", "--hard", "HEAD~1")
    elif how == "rebase":
        edited(project, "pick #2\n", "HEAD~2")
    else:
        project.git("checkout", "HEAD~1", "--", "head.stock", "k5.txt")
        project.git("commit", "--amend", "--allow-empty", "-m", "nothing")
    with StockRoom(project.folder) as stock:
        assert stock.head.branch == "main"
        assert f"the branch itself is at {tip[:12]}: git has gone back from there" in str(stock.status())
        stock.push()
        assert stock.head.commit != stock.branches()["main"]  # which is no reason to change head.stock
    assert project.git("status", "--porcelain") == ""
    project.commit("next", k0=5)
    project.check(k0=5, k1=0, k4=0 if how == "rebase" else 24, k5=25 if how == "rebase" else 0)
    with StockRoom(project.folder) as stock:
        assert stock.head.branch == "main"
        assert tip in [commit.digest for commit in stock.log()]
        stock.push()
    with StockRoom.clone(remote, project.folder.parent / "copy") as copy:
        assert int(copy.data["x"]["k0"][()]) == 5


def test_every_commit_of_git_opens_in_a_fresh_clone(project: Project) -> None:
    """Nothing of the stockroom ran between the merge, by the driver, and its revert: no branch ever had it."""
    remote = project.folder.parent / "remote"
    project.git("merge", "dev", "-m", "both")
    project.git("revert", "-m", "1", "--no-edit", "HEAD")
    expected = {}
    for commit in project.git("rev-list", "HEAD").split():
        project.git("checkout", "--quiet", commit)
        expected[commit] = project.data
    project.git("switch", "main")
    with StockRoom(project.folder) as stock:
        pushed = stock.push(remote)
        assert len(pushed.kept) == 1
        again = stock.push(remote)
        assert (again.kept, again.objects, again.notes) == ([], 0, [])
        stock.gc(remote=remote)
    run_git(remote.parent, "clone", str(project.folder), "cloned")
    cloned = remote.parent / "cloned"
    StockRoom.clone(remote, cloned).close()
    assert len(expected) == 8
    for commit, data in expected.items():
        run_git(cloned, "checkout", "--quiet", commit)
        with StockRoom(cloned) as stock:
            assert {str(key): int(stock.data["x"][key]) for key in stock.data["x"]} == data


def test_a_push_tells_of_commits_in_git_that_are_nowhere(project: Project) -> None:
    head = project.folder / "head.stock"
    good = head.read_text()
    head.write_text(f"{good.rpartition('commit ')[0]}commit {'ab' * 32}\n")
    project.git("commit", "-am", "of another clone")
    head.write_text(good)
    project.git("commit", "-am", "and back")
    with StockRoom(project.folder) as stock:
        pushed = stock.push(project.folder.parent / "remote")
        assert pushed.branches["main"] == (None, stock.head.commit)
        (note,) = pushed.notes
        assert "git's history names 1 commit neither at" in note
        assert "nor here: abababababab. Who checks out" in note


def test_a_merge_after_git_has_gone_back_keeps_the_branch(project: Project) -> None:
    with StockRoom(project.folder) as stock:
        tip = stock.branches()["main"]
    project.git("revert", "--no-edit", "HEAD")
    with StockRoom(project.folder) as stock:
        stock.merge("dev")
        assert tip in [commit.digest for commit in stock.log()]
        assert (stock.head.branch, stock.head.commit) == ("main", stock.branches()["main"])
    assert {key: project.data[key] for key in ("k1", "k4", "k5")} == {"k1": 11, "k4": 24, "k5": 0}


def test_a_branch_that_moved_elsewhere_is_never_undone(project: Project) -> None:
    """Another worktree has moved it, so git's history here never had that commit."""
    project.git("worktree", "add", "../tree", "dev")
    tree = project.folder.parent / "tree"
    with StockRoom(tree) as other:
        other.switch("main")
        with other.enable_write():
            other.data["x"]["k0"] = np.array(77)
        tip = other.branches()["main"]
    with StockRoom(project.folder) as stock:
        assert stock.head.branch is None
        with (
            pytest.warns(UserWarning, match=r"but its branch 'main' has gone on to .* To go to the end"),
            stock.enable_write(),
        ):
            stock.data["x"]["k1"] = np.array(78)
        assert stock.branches()["main"] == tip
        with pytest.raises(UsageError, match=r"push is for branches"):
            stock.push(project.folder.parent / "remote")


def test_a_head_that_git_puts_back_says_how_to_go_on_and_how_to_take_the_commit_back(
    project: Project,
) -> None:
    def put_back() -> tuple[str, str, str]:
        project.write(k1=int(np.random.default_rng().integers(1 << 30)))
        with StockRoom(project.folder) as stock:
            tip = str(stock.head.commit)
        project.git("checkout", "head.stock")
        with StockRoom(project.folder) as stock:
            assert stock.head.branch is None
            return tip, str(stock.head.commit), str(stock.status())

    tip, old, told = put_back()
    assert (
        f"head.stock was put back to {old[:12]}, by git or by hand, but its branch 'main' has gone on to {tip[:12]}"
        in told
    )
    assert "To go to the end of the branch: hopyard stock switch main; to take" in told
    assert (
        f"off the branch: hopyard stock switch main && hopyard stock reset {old[:12]}. Make a branch" in told
    )
    with StockRoom(project.folder) as stock:
        stock.switch("main")
        assert (stock.head.branch, stock.head.commit) == ("main", tip)
    project.git("checkout", "head.stock")
    with StockRoom(project.folder) as stock:
        stock.switch("main")
        stock.reset(old[:12])
        assert (stock.head.branch, stock.head.commit, stock.branches()["main"]) == ("main", old, old)
    assert project.data["k1"] == 0


def test_after_a_stash_on_a_new_branch_the_advice_works(project: Project) -> None:
    project.git("switch", "-c", "new")
    project.write(k1=71)
    with StockRoom(project.folder) as stock:
        tip, branch = stock.head.commit, stock.head.branch
    project.git("stash")
    with StockRoom(project.folder) as stock:
        if stock.head.branch is None:
            assert f"hopyard stock switch {branch}" in str(stock.status())
        stock.switch(str(branch))
        assert stock.branches()[str(branch)] == tip


def test_git_merges_what_was_merged_here_before(project: Project) -> None:
    """Both changed k1; the data are merged first, then git merges the branch."""
    project.write(k1=99)
    (project.folder / "k1.txt").write_text("0\n")  # git's own file does not conflict
    project.git("add", "-A")
    project.git("commit", "-m", "main 3")
    with StockRoom(project.folder) as stock:
        merged = stock.merge("dev", resolve="ours").commit
    project.git("add", "-A")
    project.git("commit", "-m", "merged here")
    project.git("merge", "dev", "-m", "by git")
    with StockRoom(project.folder) as stock:
        assert stock.head.commit == merged
        assert "unmerged" not in stock.place.head.read_text()
    assert {key: project.data[key] for key in ("k1", "k2", "k4")} == {"k1": 99, "k2": 12, "k4": 24}


def test_a_push_tells_of_what_is_unmerged_until_it_is_merged_under_any_name(
    project: Project,
) -> None:
    project.write(k1=99)
    (project.folder / "k1.txt").write_text("0\n")
    project.git("add", "-A")
    project.git("commit", "-m", "main 3")
    project.git("merge", "dev", "-m", "by git", code=1)
    remote = project.folder.parent / "remote"
    with StockRoom(project.folder) as stock:
        assert "unmerged" in stock.place.head.read_text()
        with pytest.warns(UserWarning, match=r"git merged .* but its data conflicted and are not here"):
            stock.push(remote)
        stock.branch("later", "dev")
        stock.switch("later")
        with stock.enable_write():
            stock.experiment["more"] = 1
        stock.switch("main")
        stock.merge("later", resolve="ours")
        assert "unmerged" not in stock.place.head.read_text()
        stock.push(remote)


def test_a_commit_that_git_has_checked_out_has_no_branch(project: Project) -> None:
    project.git("checkout", "--detach")
    with StockRoom(project.folder) as stock:
        assert stock.head.branch is None
        assert "git has checked out a commit, and no branch" in str(stock.status())
        with pytest.warns(UserWarning, match=r"git has checked out a commit"), stock.enable_write():
            stock.data["x"]["k1"] = np.array(78)
        made = stock.head.commit
    project.git("add", "-A")
    project.git("commit", "-m", "detached")
    project.git("switch", "-c", "kept")
    with StockRoom(project.folder) as stock:
        assert (stock.head.branch, stock.head.commit) == ("kept", made)


# Folders


def test_a_folder_is_renamed_copied_and_cloned(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    run_git(folder, "init")
    with StockRoom.init(folder / "a", enable_write=True) as stock:
        stock.experiment["lr"] = 1
        stock.commit("lr")
        stock.push(tmp_path / "remote")
        run_git(folder, "add", "-A")
        run_git(folder, "commit", "-m", "a")
        stock.experiment["wd"] = 2  # staged
    run_git(folder, "mv", "a", "b")
    with StockRoom(folder / "b", enable_write=True) as stock:
        assert (stock.experiment["lr"], stock.experiment["wd"]) == (1, 2)
    shutil.copytree(folder / "b", folder / "c")
    with StockRoom(folder / "c", enable_write=True) as copy:
        assert copy.experiment["lr"] == 1
        assert "wd" not in copy.experiment  # what is staged is the first one's
        copy.branch("copy")
        copy.switch("copy")
        copy.experiment["lr"] = 3
        copy.commit("copy")
    with StockRoom(folder / "b", enable_write=True) as stock:
        stock.commit("staged")
        assert (stock.experiment["lr"], stock.head.branch) == (1, "main")
    with StockRoom.init(folder / "a") as other:
        assert "lr" not in other.experiment
        assert other.place.objects != stock.place.objects
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-m", "b and c")
    run_git(folder, "worktree", "add", "../tree")
    with StockRoom(tmp_path / "tree" / "b") as there:
        assert there.experiment["wd"] == 2
    run_git(tmp_path, "clone", str(folder), "cloned")
    with pytest.raises(NotFoundError, match="hopyard stock clone URL"):
        StockRoom(tmp_path / "cloned" / "b")
    with StockRoom(folder / "b") as stock:
        stock.push()
    with StockRoom.clone(tmp_path / "remote", tmp_path / "cloned" / "b") as cloned:
        assert cloned.experiment["wd"] == 2
        assert run_git(tmp_path / "cloned", "status", "--porcelain") == ""


def test_data_merge_into_a_folder_that_the_other_side_has_renamed(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    run_git(folder, "init")
    with StockRoom.init(folder / "a", enable_write=True) as stock:
        install(stock.place)
        (folder / "a" / ".gitattributes").rename(folder / ".gitattributes")
        stock.experiment["lr"] = 1
        stock.commit("lr")
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-m", "a")
    run_git(folder, "switch", "-c", "renamed")
    run_git(folder, "mv", "a", "b")
    with StockRoom(folder / "b") as stock, stock.enable_write():
        stock.experiment["wd"] = 2
    run_git(folder, "commit", "-am", "b")
    run_git(folder, "switch", "main")
    with StockRoom(folder / "a") as stock, stock.enable_write():
        stock.experiment["lr"] = 3
    run_git(folder, "commit", "-am", "lr")
    run_git(folder, "merge", "renamed", "-m", "both")
    with StockRoom(folder / "b") as stock:
        assert (stock.experiment["lr"], stock.experiment["wd"]) == (3, 2)
        assert stock.head.branch == "main"


# A walk


def test_a_random_walk_of_git_commands(tmp_path: Path) -> None:
    chosen = random.Random(18)
    project = Project.begun(tmp_path / "project")
    project.git("branch", "dev")
    for step in range(by_level(6, 6, 12)):
        project.git("switch", chosen.choice(["main", "dev"]))
        for _ in range(chosen.randrange(1, 3)):
            project.commit(f"{step}", **{f"k{chosen.randrange(KEYS)}": chosen.randrange(1000)})
        own = project.git("branch", "--show-current").strip()
        other = "dev" if own == "main" else "main"
        commits = project.git("rev-list", "--no-merges", "--max-count=6", other).split()
        commit = chosen.choice(commits[:-1] or commits)
        command = chosen.choice(
            [
                ["merge", other, "-m", "merge"],
                ["cherry-pick", commit],
                ["revert", "--no-edit", f"HEAD~{chosen.randrange(2)}"],
                ["rebase", other],
                ["reset", "--hard", "HEAD~1"],
            ]
        )
        ended = subprocess.run(["git", *command], cwd=project.folder, capture_output=True, text=True)
        if ended.returncode:
            # Where files are in conflict, the data are too, and not otherwise.
            unmerged = project.git("diff", "--name-only", "--diff-filter=U").split()
            assert (len(unmerged) > 1) == ("head.stock" in unmerged), (command, ended.stdout + ended.stderr)
            subprocess.run(["git", command[0], "--abort"], cwd=project.folder, capture_output=True)
            project.git("reset", "--hard")
        assert project.data == project.texts, command
