"""One lock for what the threads of a process share here; no thread holds it while the process is forked.

A forked child has only the thread that forked: a lock that another one held would stay held there for ever, and what
it was changing half changed. It is held for moments only, never while a store is waited for.
"""

from __future__ import annotations

import os
import threading

LOCK = threading.RLock()

os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)
