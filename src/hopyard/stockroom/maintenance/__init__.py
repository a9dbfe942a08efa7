"""Care: is all there that should be, and nothing that should not: verify, gc, purge.

Rules:

* **Nothing is deleted before what replaces it is durable**, and nothing at all if it is not certain what is needed:
  where git's history, a reference, a stage or metadata cannot be read, gc and purge refuse and say why.
* **Whoever is killed** at any moment leaves a repository in which all can be read; doing it again finishes it.
* **gc and purge hold** ``gc.lock`` alone. Where a store has no locks they leave alone what they have not found
  unneeded for two weeks, since somebody may be about to refer to it.
* **Only our own names** are ever deleted: packfiles, files, entries of a stage that held what was purged.
* **verify finds every problem**, not the first one, and changes nothing unless it is given a remote to repair from.
  Damaged packfiles are set aside under ``damaged/``, unless every object of theirs is here elsewhere.
* **Commits are never rewritten**: what is purged has a tombstone, which travels before all else and stays as the
  record of what was removed, when, by whom and why. A sample that was purged raises ``PurgedError``; what compares,
  merges or rewrites samples takes it for removed.

``walk.Walk`` goes through all that history reaches, also where parts of it are missing; on sound histories it reaches
what ``remotes.needs`` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.missing import imported_later

if TYPE_CHECKING:
    from hopyard.stockroom.maintenance.garbage import KEEP, Collected, collect, gc
    from hopyard.stockroom.maintenance.problems import Problem, Unproven, Verified
    from hopyard.stockroom.maintenance.purging import PurgeReport, purge
    from hopyard.stockroom.maintenance.verifying import verify, verify_place

__all__ = [
    "KEEP",
    "Collected",
    "Problem",
    "PurgeReport",
    "Unproven",
    "Verified",
    "collect",
    "gc",
    "purge",
    "verify",
    "verify_place",
]

_MODULES = {
    "KEEP": ".garbage",
    "Collected": ".garbage",
    "Problem": ".problems",
    "PurgeReport": ".purging",
    "Unproven": ".problems",
    "Verified": ".problems",
    "collect": ".garbage",
    "gc": ".garbage",
    "purge": ".purging",
    "verify": ".verifying",
    "verify_place": ".verifying",
}

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # Names are imported when first asked for: who reads and writes samples needs none of them.
    __getattr__, __dir__ = imported_later(__name__, _MODULES, __all__)
