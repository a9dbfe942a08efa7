"""Turns errors of HDFS into the errors of a store, with the next step."""

from __future__ import annotations

import re
from typing import NamedTuple

from hopyard.errors import (
    ExpiredError,
    InvalidNameError,
    NotWritableError,
    StorageError,
    StorageFullError,
    UnreachableError,
)

WEB_SCHEMES = ("webhdfs", "swebhdfs")
"""What the URL of an ``HDFSStore`` begins with that is reached over HTTP, and over HTTPS."""

HDFS_SCHEMES = ("hdfs", "viewfs", *WEB_SCHEMES)
"""What the URL of an ``HDFSStore`` may begin with."""

TOKEN = "HOPYARD_WEBHDFS_TOKEN"
"""The environment variable with a delegation token for these, as ``GETDELEGATIONTOKEN`` answers it."""

NO_REPLACING = "does not rename a file over another"
NO_WEBHDFS = "is no WebHDFS"


class _Rule(NamedTuple):
    """An error of a store, for what a client says with one of these signs in it.

    Attributes:
        text: over RPC, or over both; "": there is no such error.
        over_http: over HTTP, if that is another.
    """

    signs: tuple[str, ...]
    kind: type[StorageError | InvalidNameError]
    text: str
    over_http: str | None = None


_RULES = (
    _Rule(
        (
            "ParentNotDirectoryException",
            "FileAlreadyExistsException",
            "must both be directories",
            "(is not a directory)",
        ),
        InvalidNameError,
        "cannot store {name!r} in {url}: a name would be both an object and a prefix of another, which no directory "
        "can hold. Use another name.",
    ),
    _Rule(
        ("SafeModeException", "in safe mode"),
        UnreachableError,
        "{failed}: the name node is in safe mode and takes no changes ({said}). It leaves it once enough data nodes "
        "have reported; `hdfs dfsadmin -safemode get` says whether it has.",
    ),
    _Rule(
        ("StandbyException",),
        UnreachableError,
        "{failed}: the name node is in standby ({said}). Give the name service instead of one node, "
        "hdfs://nameservice/path with HADOOP_CONF_DIR set, or make a name node active.",
        "{failed}: the name node is in standby ({said}). Give the other name node or a gateway instead of this one, or "
        "make a name node active.",
    ),
    _Rule(
        ("RetriableException",),
        UnreachableError,
        "{failed}: the name node takes no requests now ({said}). Try again later, and look at its log.",
    ),
    _Rule(
        ("QuotaExceededException", "could only be written to 0 of", "could only be replicated to 0"),
        StorageFullError,
        "no space is left for {place}: {said}. Nothing was half-written. Make space there, raise its quota, or look "
        "whether data nodes are gone: `hdfs dfsadmin -report`.",
    ),
    _Rule(
        ("is expired", "has expired"),
        ExpiredError,
        "",
        "{failed}: the delegation token has expired ({said}). Renew it by op=RENEWDELEGATIONTOKEN, or set "
        f"{TOKEN} to a new one and start this process again.",
    ),
    _Rule(
        (
            "HTTP 401",
            "AuthenticationException",
            "SASLError",
            "GSSAPI",
            "SaslException",
            "NoSASLMechanism",
            "InvalidToken",
            "libgssapi",
        ),
        StorageError,
        "{failed}: the name node does not accept who asks ({said}). Get a Kerberos ticket by kinit, and set "
        "HADOOP_CONF_DIR to the cluster's configuration.",
        "{failed}: the name node does not accept who asks ({said}). Tickets of Kerberos are not sent over HTTP: get a "
        "delegation token, for instance by `curl --negotiate -u : "
        f"'http://host:port/webhdfs/v1/?op=GETDELEGATIONTOKEN'`, and set {TOKEN} to its urlString; or use hdfs://.",
    ),
    _Rule(
        (NO_REPLACING,),
        StorageError,
        "",
        "{place} cannot be replaced: {said}, which gateways like HttpFS cannot, and to delete the old one first would "
        "leave none to readers. Give the address of the name node's own web server (dfs.namenode.http-address), or of "
        "another gateway.",
    ),
    _Rule(
        ("CERTIFICATE_VERIFY_FAILED",),
        StorageError,
        "",
        "{failed}: the server's certificate is not trusted ({said}). Set SSL_CERT_FILE to the certificate of the "
        "authority that signed it.",
    ),
    _Rule(
        (NO_WEBHDFS,),
        StorageError,
        "",
        "{failed}: {said}. Give host and port of the name node's web server (often 9870) or of HttpFS (often 14000), "
        "with swebhdfs:// if it speaks HTTPS.",
    ),
    _Rule(
        ("AccessControlException", "AuthorizationException"),
        StorageError,
        "{failed}: {said}. Give this user the right {right}, or set HADOOP_USER_NAME to another.",
    ),
    _Rule(
        ("No fs.defaultFS setting found", "No NameNode hosts found"),
        StorageError,
        "{failed}: {said}. Set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml and hdfs-site.xml, or "
        "give the name node: hdfs://host:port/path.",
    ),
    _Rule(
        (
            "the data node ",
            "Failed to find datanode",
            "no active nodes",
            "BlocksNotFound",
            "All nodes failed",
            "Failed to complete file",
            "DataTransferError",
            "DataNode",
            "Block",
        ),
        UnreachableError,
        "{failed}: data nodes do not answer ({said}). Look at them: `hdfs dfsadmin -report`.",
        "{failed}: data nodes do not answer ({said}). Look at them: `hdfs dfsadmin -report`. Their web servers must be "
        "reachable from here (dfs.datanode.http.address); where they are not, give the address of a gateway (HttpFS).",
    ),
)
_SILENT = _Rule(
    (),
    UnreachableError,
    "{failed}: no node answers ({said}). Look at the network, at the data nodes, and at the address, which is that of "
    "the name node's RPC (dfs.namenode.rpc-address; often port 8020 or 9000).",
    "{failed}: no node answers ({said}). Look at the network, at the data nodes, and at the address, which is that of "
    "the name node's web server (dfs.namenode.http-address; often port 9870) or of HttpFS (often 14000).",
)
_OTHER = _Rule((), StorageError, "{failed}: {said}. Look at the name node's log.")


def is_of_library(error: BaseException) -> bool:
    """Whether a client raised an error that it has no class of its own for: RuntimeError, OSError, or a panic."""
    return type(error).__name__ == "PanicException" or isinstance(error, RuntimeError | OSError | ValueError)


def hdfs_error(url: str, name: str, error: BaseException, writing: bool) -> StorageError | InvalidNameError:
    """The error for a call that failed.

    Args:
        error: the library's; only the first line of what it says is repeated, and not the server's stack.
    """
    seen = f"{type(error).__name__} {error}"
    is_web = url.partition(":")[0] in WEB_SCHEMES
    rule = _SILENT if isinstance(error, OSError) else _OTHER
    for each in _RULES:
        text = _text_of(each, is_web)
        if text and any(sign in seen for sign in each.signs):
            rule = each
            break
    place = f"{url}/{name}".rstrip("/")
    text = _text_of(rule, is_web).format(
        place=place,
        failed=f"{place} cannot be {'written' if writing else 'read'}",
        right="to write there" if writing else "to read it",
        said=_said(str(error)),
        name=name,
        url=url,
    )
    return NotWritableError(text) if writing and "{right}" in rule.text else rule.kind(text)


def _text_of(rule: _Rule, is_web: bool) -> str:
    return rule.text if rule.over_http is None or not is_web else rule.over_http


def _said(text: str) -> str:
    """The first line of the server's or the library's message."""
    remote = re.match(r'RPCError\("[^"]*", "(.*)', text, re.DOTALL)
    inner = re.match(r'\w+\("(.*)', text, re.DOTALL)
    over_http = re.match(r"\w+Exception: (.*)", text, re.DOTALL)
    found = remote or inner or over_http
    line = re.split(r"\\n|\n", found[1] if found else text, maxsplit=1)[0]
    return line.removesuffix('")').replace('\\"', '"').strip().rstrip(".") or "it says nothing"
