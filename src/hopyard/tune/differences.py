"""Differences between the settings of a run and those given now, in words."""

from __future__ import annotations

import json
from typing import Any

from hopyard.wording import shortened

NOT_SET = object()
LONGEST = 60


def what_differs(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A line for each setting that differs, ``num_epochs: 5 (run) -> 8 (now)``; both are JSON values.

    Of identities (``Identity.to_json()``) the line names the pieces of code and the values that changed.
    """
    return _differences("", old, new)


def _differences(path: str, old: Any, new: Any) -> list[str]:
    if old is not NOT_SET and new is not NOT_SET and _canonical(old) == _canonical(new):
        return []
    if _is_identity(old) and _is_identity(new):
        return [_code_line(path, old, new)]
    if isinstance(old, dict) and isinstance(new, dict) and (not path or set(old) & set(new)):
        lines = []
        for key in [*old, *(key for key in new if key not in old)]:
            below = f"{path}.{key}" if path else key
            lines += _differences(below, old.get(key, NOT_SET), new.get(key, NOT_SET))
        return lines
    before, now = _short(old), _short(new)
    return [f"{path}: {before} (run) -> {now} (now)" if before != now else f"{path}: changed beyond {before}"]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _is_identity(value: Any) -> bool:
    return isinstance(value, dict) and {"digest", "parts"} <= set(value)


def _code_line(path: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    what = "the estimator function's code" if path == "estimator_gen_fn" else path
    before, now = old["parts"], new["parts"]
    changed = [name for name in before if name in now and before[name] != now[name]]
    changed += [f"{name} (new)" for name in now if name not in before]
    changed += [f"{name} (gone)" for name in before if name not in now]
    return f"{what} changed: {', '.join(changed)}" if changed else f"{what} changed"


def _short(value: Any) -> str:
    if value is NOT_SET:
        return "not set"
    text = json.dumps(value)
    return shortened(text, LONGEST)
