"""Objects: immutable bytes named by their digest, many in one packfile, found again through an index.

Rules:

* **An object is of a kind** (``commit``, ``page``, ``json``; ``fragment``, ``tensor``; ``file``), and its name is
  BLAKE3-256 of its bytes with the domain ``hopyard.<kind>``. What is there already is not written again.
* **A packfile** is one store object, ``packfiles/data-<id>`` or ``packfiles/meta-<id>``, put whole or not at all, and
  never changed. It is a valid safetensors file whose header says all that it holds; ``<id>`` is the digest of the
header. * **A file** is a store object of its own, ``files/<digest>``.
* **The index** is a memory of the packfiles' headers and is rebuilt from them. It is never asked whether something is
  *not* there: before that is said, packfiles that it does not know are looked for.
* **Bytes are checked** against their digest when a process first reads them. Arrays that were read stay valid when
  their packfile is deleted; a packfile that is gone (its objects were packed anew) is noticed, and they are
  looked up again.
* **What was purged is gone**: a tombstone says what is read instead, once the object is in no packfile any more.
  Whoever asks for the object by its digest gets what stands in for it.
* **Threads and processes** may share an ``Objects`` and may be forked while using it; a pickled copy works in any
  process that sees the store. A ``PackfileWriter`` is for one thread.
"""

from hopyard.stockroom.packfiles.layout import Location
from hopyard.stockroom.packfiles.objects import Objects
from hopyard.stockroom.packfiles.writer import PackfileWriter

__all__ = ["Location", "Objects", "PackfileWriter"]
