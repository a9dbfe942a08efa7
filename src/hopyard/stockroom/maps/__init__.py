"""Sorted maps of pages: equal content has equal pages, so changes and differences cost what they touch.

A map goes from encoded keys (``keys``) to JSON values, and is a tree of immutable pages named by digest (``pages``),
in the manner of the prolly trees of Noms and of Merkle search trees (Auvolat, Taiani, "Merkle Search Trees", 2019):

* Entries in the order of their keys are cut into leaf pages; first keys and digests of a level's pages are the
  entries of the level above, cut by the same rule; the first level that is one page is the root.
* Where a page ends depends on the hash of its last entry's key and on the page's own length only. So equal
  content gives equal pages and an equal root, whatever was written before and in which order.
* A change rewrites the pages from where it falls to the next place where old and new pages end alike:
  mostly one page a level (``update``). What two maps have in common is never read to compare them (``diff``).

Maps are immutable, may be shared by threads, and pickle if their objects do.
"""

from hopyard.stockroom.maps.keys import Key, check_key, decode, encode
from hopyard.stockroom.maps.merge import merge
from hopyard.stockroom.maps.pages import PageReader, PageWriter
from hopyard.stockroom.maps.sorted import SortedMap

__all__ = ["Key", "PageReader", "PageWriter", "SortedMap", "check_key", "decode", "encode", "merge"]
