"""The identity of functions and values: digests that are the same in every process.

A run's id is made of them, and so is the name under which something is kept that a user's function made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hopyard.objects.digests import digest, digest_json
from hopyard.objects.identity.describing import DOMAIN, Describer

__all__ = ["Identity", "describe_value", "function_digest", "identity"]


@dataclass(frozen=True)
class Identity:
    """Identity of a value: a digest that is the same in every process.

    Attributes:
        digest: of the value and all it reaches; None if a part of it cannot be digested.
        parts: a digest for each piece of code reached, by its name, and for each value that it captures.
        undigestible: for each part without a digest, the way to it and its kind.
    """

    digest: str | None
    parts: dict[str, str]
    undigestible: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def identity(value: Any, name: str = "function") -> Identity:
    """The identity of ``value``, usually a function; ``name`` is how reasons call it."""
    description, describer = _described(value, name)
    whole = digest_json([description, describer.definitions], DOMAIN)
    parts = _parts(describer.definitions, describer.code) or {name: whole}
    return Identity(None if describer.undigestible else whole, parts, describer.undigestible)


def function_digest(function: Callable[..., Any], domain: str) -> str | None:
    """64 hex digits for a function, in ``domain``: they differ if its code, or anything that it reaches, does.

    The user's own code counts by content, a library's by name: a new version of a library is not seen.
    None if it reaches what cannot be digested; ``identity(function).undigestible`` says what and where.
    """
    whole = identity(function).digest
    return None if whole is None else digest(whole.encode(), domain)


def describe_value(value: Any) -> Any:
    """``value`` as a JSON value: ``[description, {name: definition of a function, class or object it reaches}]``.

    What cannot be described is ``{"undigestible": reason}`` there.
    """
    description, describer = _described(value, "value")
    return [description, describer.definitions]


def _described(value: Any, name: str) -> tuple[Any, Describer]:
    describer = Describer()
    try:
        description = describer.describe(value, (name,))
    except RecursionError:
        description = describer.give_up((name,), "is nested too deeply")
    return description, describer


def _parts(definitions: dict[str, Any], code: set[str]) -> dict[str, str]:
    """A digest for each piece of code, and for each value that it reaches with all that belongs to the value."""
    known: dict[str, str] = {}

    def resolved(part: Any) -> Any:
        """``part`` with digests in place of references to objects, so that their numbering does not count."""
        if isinstance(part, list):
            return [resolved(each) for each in part]
        if not isinstance(part, dict):
            return part
        name = part.get("see")
        if name is None or name in code:
            return {key: resolved(each) for key, each in part.items()}
        if name not in known:
            known[name] = "itself"
            known[name] = digest_json(resolved(definitions[name]), DOMAIN)
        return {"object": known[name]}

    parts = {}
    for name in sorted(code):
        own = {key: part for key, part in definitions[name].items() if key != "reached"}
        parts[name] = digest_json(resolved(own), DOMAIN)
        for reached, value in definitions[name].get("reached", {}).items():
            if not (
                isinstance(value, dict) and ("module" in value or "name" in value or value.get("see") in code)
            ):
                parts[f"{reached} in {name}"] = digest_json(resolved(value), DOMAIN)
    return parts
