"""History: commits and what leads to them, merges, and how a draft becomes a commit.

Rules:

* **Order.** What a commit needs is durable before the commit, the commit before the reference that leads to it. So
  whoever is killed at any moment leaves the old state or the new one, and at worst packfiles that nothing needs.
* **References** (``references``) are moved by one conditional write, and never by whoever has not seen the last entry.
  Nobody waits for a lock to commit: who was slower carries the changes onto what is there (``publish``).
* **Nothing is decided silently**: what both sides changed differently is a conflict, also if a whole was removed on one
  side and a part of it changed on the other, and also after criss-cross merges (``merge``).
* **The stage** (``stage``) keeps writes that are not committed yet, each durable before it returns, and only for the
  commit upon which they were made.
* **Locks** (``locks``) are between those who add objects or read old ones and whoever deletes; they die with their
  holder.
* Generations, not clocks, say which commit comes before which (``commits``).

``References`` and ``Stage`` may be shared by threads and processes and pickled, over any store.
"""
