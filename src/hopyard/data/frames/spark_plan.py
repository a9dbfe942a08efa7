"""Identity of a DataFrame's rows, also in another process: the plan, and the files that it reads.

Two plans are one if Spark's canonical forms of them are equal as text and as JSON (either alone leaves something
out), their columns have the same names and types, and they read the same files with the same options, none
of them changed since. That is known only for plans over files and ranges, without functions written in Python or
Scala, whose content a plan does not show.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from hopyard.objects.digests import digest_json

_JVM_ID = re.compile(r'"jvmId":"[^"]*"')
_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive")
_MAX_FIELDS = "spark.sql.debug.maxToStringFields"
_OF_USERS = re.compile(
    r'"class":"[^"]*\.\w*(UDF|UDAF|UDTF|Python|Pandas|Arrow|MapIn|MapElements|MapGroups|MapPartitions|Script|Typed)\w*"'
)
"""Nodes and expressions that run functions of users, among the classes that a plan names."""

_seen: list[tuple[Any, list[Any], str]] = []
"""DataFrames of this process whose plans have no digest, the files that they read, and the keys of their rows."""


def plan_digest(frame: Any, deterministic: bool = False) -> str | None:
    """Digest of the identity of a DataFrame's rows; None where it cannot be told (also over Spark Connect).

    Args:
        deterministic: None also where rows are random, though by a seed: they depend on partitions, too.
    """
    if not hasattr(frame, "_jdf"):
        return None
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    session = frame.sparkSession
    before = session.conf.get(_MAX_FIELDS, None)
    session.conf.set(_MAX_FIELDS, str(2**31 - 1))
    try:
        plan = frame._jdf.queryExecution().analyzed()
        if _has_functions(session, plan) or (deterministic and not plan.deterministic()):
            return None
        leaves = [_leaf(session, leaf) for leaf in _leaves(plan)]
        if None in leaves:
            return None
        canonical = plan.canonicalized()
        forms = [canonical.toString(), _JVM_ID.sub("", canonical.toJSON())]
    except Py4JError:  # another version of Spark, or a file that is gone
        return None
    finally:
        session.conf.unset(_MAX_FIELDS) if before is None else session.conf.set(_MAX_FIELDS, before)
    settings = {name: session.conf.get(name, None) for name in _SETTINGS}
    return digest_json([forms, frame.schema.json(), leaves, settings, session.version], "hopyard.plan")


def _has_functions(session: Any, plan: Any) -> bool:
    """Whether the plan has functions whose content it does not show, or whose values depend on the time."""
    patterns = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    kinds = (patterns.PYTHON_UDF(), patterns.SCALA_UDF(), patterns.CURRENT_LIKE())
    if any(plan.containsPattern(kind) for kind in kinds):
        return True
    return any(_OF_USERS.search(tree.toJSON()) for tree in _trees(plan))


def _trees(plan: Any) -> list[Any]:
    """The plan, then those of its subqueries."""
    return [plan, *_items(plan.subqueriesAll())]


def _leaves(plan: Any) -> Iterator[Any]:
    """Leaves of the plan, which the rows come from, in the plan's order; leaves of subqueries last."""
    for tree in _trees(plan):
        yield from _items(tree.collectLeaves())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(place) for place in range(sequence.size())]


def _leaf(session: Any, leaf: Any) -> list[Any] | None:
    """Facts about a leaf that the plan's text does not tell; None: the leaf's rows are not known."""
    kind = leaf.getClass().getSimpleName()
    if kind in ("Range", "OneRowRelation"):
        return [kind]
    if kind != "LogicalRelation" or leaf.relation().getClass().getSimpleName() != "HadoopFsRelation":
        return None
    relation = leaf.relation()
    return [
        relation.fileFormat().getClass().getName(),
        relation.options().toString(),
        relation.dataSchema().json(),
        relation.partitionSchema().json(),
        [_file_status(session, url) for url in relation.inputFiles()],
    ]


def process_key(frame: Any) -> str:
    """Key of a DataFrame's rows in this process: equal for plans that are the same, over files that have not changed
    since, as far as can be seen from here. For plans that have no digest."""
    read = _inputs(frame)
    for other, its, key in _seen:
        if its == read and _is_same_plan(frame, other):
            return key
    _seen.append((frame, read, uuid.uuid4().hex))
    return _seen[-1][2]


def _inputs(frame: Any) -> list[Any]:
    """The files that a DataFrame reads, as they are now."""
    if hasattr(frame, "_jdf"):
        return [_file_status(frame.sparkSession, url) for url in sorted(frame.inputFiles())]
    found: list[Any] = []
    for url in sorted(frame.inputFiles()):
        with contextlib.suppress(OSError):
            status = os.stat(unquote(urlsplit(url).path))  # noqa: PTH116
            found.append([url, status.st_size, status.st_mtime_ns])
            continue
        found.append([url])
    return found


def _is_same_plan(frame: Any, other: Any) -> bool:
    """Whether two DataFrames of this process have the same rows in columns of the same names and types."""
    if type(frame) is not type(other) or frame.schema != other.schema:
        return False
    return frame is other or bool(frame.sameSemantics(other))


def _file_status(session: Any, url: str) -> list[Any]:
    """A file's URL, size in bytes and time of change in milliseconds, as Hadoop sees it."""
    path = session._jvm.org.apache.hadoop.fs.Path(session._jvm.java.net.URI(url))
    status = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).getFileStatus(path)
    return [url, status.getLen(), status.getModificationTime()]
