"""Remotes: push, fetch, pull and clone between repositories. A remote is a store with the same layout, and no server.

Rules:

* **A commit that is seen is whole.** What a commit needs arrives before the reference that leads to it: tombstones,
  then data, then metadata, then references. So a commit that a remote shows has all that it and those before it
  need, and a transfer looks at none of them again.
* **A reference moves by its next number**, which one of several writers gets. The others are told, pull, and push
  again. Nothing is ever moved back: a branch only goes on to commits that follow it, a tag does not move.
* **A clone has all metadata**, data as they are asked for. From what is here it is always known what exists, how
  large it is, and what needs it.
* **Whatever is interrupted can be done again.** What had arrived is found by the headers of packfiles, and not sent
  again. What had not arrived is not seen.
* **All bytes are checked** against their digests on the way: damage does not spread.
* **What is asked of a store is counted**: many objects come in one packfile or range; a push or fetch without news asks
  for references only.

``closure.needs`` is the one definition of what a commit needs; verify and gc use it too.
"""

from hopyard.stockroom.remotes.bringing import Brought, Left, Never, OnDemand, bring
from hopyard.stockroom.remotes.cloning import clone
from hopyard.stockroom.remotes.closure import Need, needs, needs_of_root
from hopyard.stockroom.remotes.fetching import Fetched, fetch, fetch_commit
from hopyard.stockroom.remotes.known import KnownRemote, forget, names, open_remote, recall, remember
from hopyard.stockroom.remotes.pulling import Pulled, pull
from hopyard.stockroom.remotes.purges import Purges
from hopyard.stockroom.remotes.pushing import Pushed, delete, push
from hopyard.stockroom.remotes.repository import KIND, Repository, check_format
from hopyard.stockroom.remotes.selecting import ALL, FetchSelection, select
from hopyard.stockroom.remotes.transfer import TransferProgress

__all__ = [
    "ALL", "KIND", "Brought", "FetchSelection", "Fetched", "KnownRemote", "Left", "Need", "Never", "OnDemand",
    "Pulled", "Purges", "Pushed", "Repository", "TransferProgress", "bring", "check_format", "clone", "delete",
    "fetch", "fetch_commit", "forget", "names", "needs", "needs_of_root", "open_remote", "pull", "push", "recall",
    "remember", "select",
]  # fmt: skip
