"""The side of git: ``head.stock``, places of objects, facts of git, roots in git's history, the merge driver.

Rules:

* ``head.stock`` is the user's file, tracked by git: it is replaced whole or not at all, and what this room does not
  understand in it is never overwritten.
* Objects lie in git's common directory, which ``git clean`` cannot reach and worktrees share; without git in
  ``.hopyard/``.
* Git's folders are found by reading files. What needs git itself goes through one function (`command.ask`), which knows
  few subcommands, all reading. The one exception is `driver.install`, which the user asks for.
* What was not readable is never taken for "there is nothing": `history.commits_in_history` raises, so that gc deletes
  nothing.

Any number of threads and processes may call anything here at once; of two that write one ``head.stock``, the later
wins. Digests are strings here: this room knows nothing of packfiles, maps or commits.
"""

from hopyard.stockroom.git.facts import GitFacts, author, branch_like, current_branch, facts, finding
from hopyard.stockroom.git.head import (
    HEAD_NAME,
    Head,
    discard,
    id_of,
    mark_unmerged,
    parse,
    read,
    write,
    write_beside,
)
from hopyard.stockroom.git.history import commits_in_history, has_had, named_commits
from hopyard.stockroom.git.place import Place, at, find, folders, make_folder, mark_of, prepare, settle

__all__ = [
    "HEAD_NAME",
    "GitFacts",
    "Head",
    "Place",
    "at",
    "author",
    "branch_like",
    "commits_in_history",
    "current_branch",
    "discard",
    "facts",
    "find",
    "finding",
    "folders",
    "has_had",
    "id_of",
    "make_folder",
    "mark_of",
    "mark_unmerged",
    "named_commits",
    "parse",
    "prepare",
    "read",
    "settle",
    "write",
    "write_beside",
]
