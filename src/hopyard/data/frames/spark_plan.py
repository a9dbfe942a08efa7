"""Whether two DataFrames of Spark have the same rows, told by their plans and the files they read."""

from __future__ import annotations

import re
from typing import Any

from hopyard.objects.digests import digest_json

_MOST_FIELDS = 1 << 30
_FILE_RELATION = "LogicalRelation"
_OF_USERS = re.compile(
    r'"class":"[^"]*\.\w*(UDF|UDAF|UDTF|Python|Pandas|Arrow|MapIn|MapElements|MapGroups|MapPartitions|Script|Typed)\w*"'
)
"""Nodes and expressions that run functions of users, among the classes that a plan names."""


def plan_key(data: Any) -> str | None:
    """Digest of a frame's plan and of the sizes and times of the files at its leaves.

    None where rows may differ though plan and files do not: leaves that are no files, results that are random,
    functions of the user, whose code a plan does not have; and over Spark Connect, where no plan can be seen.
    """
    if not hasattr(data, "_jdf"):
        return None
    execution = data._jdf.queryExecution()
    plan = execution.optimizedPlan()
    leaves = plan.collectLeaves()
    relations = [leaves.apply(number) for number in range(leaves.size())]
    if not relations or not plan.deterministic():
        return None
    if any(leaf.nodeName() != _FILE_RELATION for leaf in relations):
        return None
    text = _text(plan.canonicalized())
    if _OF_USERS.search(plan.toJSON()):
        return None
    files = [_files(data, leaf) for leaf in relations]
    if None in files:
        return None
    return digest_json({"plan": text, "files": files, "schema": data.schema.json()}, "hopyard.plan")


def _files(data: Any, leaf: Any) -> list[list[Any]] | None:
    """How a relation reads files, and of these [path, size, time of the last change]; None if it reads others."""
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return None
    jvm, conf = data.sparkSession._jvm, data.sparkSession._jsc.hadoopConfiguration()
    found = [[relation.schema().json(), relation.options().toString(), relation.fileFormat().toString()]]
    for name in sorted(relation.inputFiles()):
        path = jvm.org.apache.hadoop.fs.Path(name)
        status = path.getFileSystem(conf).getFileStatus(path)
        found.append([name, status.getLen(), status.getModificationTime()])
    return found


def _text(plan: Any) -> str:
    """The whole tree; ``toString`` leaves fields out."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        return str(plan.treeString(True, True, _MOST_FIELDS, False, False))
    except Py4JError:  # Spark 4.0 has one argument less
        return str(plan.treeString(True, True, _MOST_FIELDS, False))
