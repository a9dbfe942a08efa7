"""Finds a dataset by the plan of the frame that it was made of, without a pass over the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.data.preparing.exchange import Frame
from hopyard.data.preparing.prepared import Prepared, find_prepared
from hopyard.errors import NotFoundError
from hopyard.objects.digests import digest_json
from hopyard.storage.base import Store

PLANS = "plans"


class PlanIndex:
    """Index of the fingerprint of a dataset by the plans of its frames and the arguments; kept in the store.

    It is a hint: a plan is known if its rows come from nothing but files that have not changed since.
    """

    def __init__(self, store: Store, frames: Sequence[Frame], arguments: Mapping[str, Any]) -> None:
        self._store = store
        keys = [frame.plan_key() for frame in frames]
        known = None not in keys and store.has_root
        self._name = f"{digest_json({'plans': keys, **arguments}, 'hopyard.plan')}.json" if known else None

    def find(self, settings: Mapping[str, Any]) -> Prepared | None:
        """The dataset that these plans gave before, if it is still there."""
        fingerprint = self.fingerprint()
        return None if fingerprint is None else find_prepared(self._store, fingerprint, settings)

    def fingerprint(self) -> str | None:
        """Fingerprint of the dataset that these plans gave before, also if it is no longer there; None if not known."""
        if self._name is None:
            return None
        try:
            fingerprint: str = json.loads(self._store.at(PLANS).get(self._name))["fingerprint"]
        except NotFoundError:
            return None
        return fingerprint

    def note(self, fingerprint: str) -> None:
        """Note that these plans gave the dataset of this fingerprint."""
        if self._name is not None:
            self._store.at(PLANS).put(self._name, json.dumps({"fingerprint": fingerprint}).encode())
