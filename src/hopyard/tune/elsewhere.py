"""``frozen_at=``: frozen tensors that are read where they lie already, and not stored with the runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard import stockroom
from hopyard.errors import HopyardError, UsageError
from hopyard.objects.elsewhere import Found
from hopyard.objects.frozen import SMALLEST
from hopyard.storage import Store, open_store
from hopyard.training import FrozenTensor
from hopyard.wording import brief, describe_bytes


def checked_place(given: Any) -> Store | None:
    """The store that ``frozen_at`` names.

    Raises:
        UsageError: it is none, or one that other processes cannot open.
    """
    if given is None:
        return None
    if isinstance(given, stockroom.StockRoom):
        return given.local.store
    if not isinstance(given, str | os.PathLike | Store):
        raise UsageError(
            f"frozen_at={brief(given)}, but it must be a folder of safetensors files, the URL of one, a Store or a "
            "StockRoom. Give for example the folder from which the base is loaded."
        )
    text = "" if isinstance(given, Store) else os.fspath(given)
    if text.lower().endswith(".safetensors") or (text and Path(text).is_file()):
        raise UsageError(
            f"frozen_at={text!r} is a file. Give the folder in which it lies: {text.rpartition('/')[0] or '.'!r}."
        )
    try:
        place = open_store(given)
    except UsageError as error:
        raise UsageError(f"frozen_at={text!r} cannot be opened: {error}") from error
    try:
        reopened = open_store(place.url).url
    except HopyardError:
        reopened = ""
    if reopened != place.url or not place.shared:
        raise UsageError(
            f"frozen_at={place.url!r} is a store that other processes cannot open by its URL. Give a folder, or "
            "the URL of a bucket or of HDFS."
        )
    return place


def said(found: Found, frozen: Mapping[str, FrozenTensor]) -> str:
    """A sentence on which frozen tensors of a trial are read elsewhere.

    Args:
        frozen: by digest.

    Raises:
        UsageError: none is, or there are none.
    """
    url = found.elsewhere.url
    if not frozen:
        raise UsageError(
            f"frozen_at={url!r}, but training changes every tensor of the first trial. Give requires_grad_(False) to "
            "what is not trained, or base=; or leave frozen_at out."
        )
    there = sum(each.nbytes for digest, each in frozen.items() if digest in found.tensors)
    if not there:
        largest = max(frozen.values(), key=lambda each: each.nbytes)
        dtypes = sorted({tensor.dtype for tensor in found.tensors.values()})
        raise UsageError(
            f"frozen_at={url!r}, but none of the {len(frozen)} frozen tensors of the first trial lies there: the "
            f"largest is {largest.path}, of {largest.dtype} {[*largest.shape]}, and the files there have "
            f"{len(found.tensors)} tensors of {', '.join(dtypes)}. Load the base from there, with the dtype that the "
            "files have (dtype='auto' of from_pretrained); or leave frozen_at out."
        )
    if there < SMALLEST:
        return (
            f"the frozen tensors that lie at {url} have {describe_bytes(there)}, and are stored with the states: below "
            f"{describe_bytes(SMALLEST)} frozen_at saves nothing."
        )
    total = sum(each.nbytes for each in frozen.values())
    rest = "" if there == total else f" The other {describe_bytes(total - there)} are stored with the runs."
    return (
        f"{describe_bytes(there)} of frozen tensors are read from {url}, which must stay as it is as long as the run "
        f"is kept.{rest}{''.join(f' Not read there: {reason}' for reason in found.left_out.values())}"
    )
