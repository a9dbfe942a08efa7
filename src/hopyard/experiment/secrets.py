"""Secrets by reference: a configuration has ``${secret:NAME}``, and never the value.

A reference stands in the texts of ``data`` and ``environment``, alone or within a longer text. What is stored, shown
and sent to other machines has the reference. The value is looked up where it is needed, on the machine that needs it:
in the environment variable NAME, else in the file ``$HOPYARD_SECRETS``, by default ``~/.config/hopyard/secrets.yaml``,
with lines ``NAME: 'value'``. Nobody but the user may be able to read that file. Where a trial's code prints the value,
or raises it in an error, it is masked.
"""

from __future__ import annotations

import os
import re
from pathlib import Path as FilePath
from typing import Any

from hopyard.errors import ConfigError
from hopyard.experiment.problems import Problem, problems_error, texts
from hopyard.experiment.yaml_text import read_hidden
from hopyard.masking import hide
from hopyard.search.spaces import name_of

_OPENING = "${secret:"
_REFERENCE = re.compile(r"\$\{secret:([A-Za-z_][A-Za-z0-9_]*)\}")
_CREDENTIAL = re.compile(
    "(?:.*_)?(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRET_KEY|PRIVATE_KEY|ACCESS_KEY|ACCOUNT_KEY|API_KEY|APIKEY|TOKEN|"
    "CREDENTIALS?|CONNECTION_STRING)"
)
_SHORTEST_CREDENTIAL = 8
"""Characters of a text that is taken for a credential, at least."""


def resolve_secrets(value: Any, where: str = "data") -> Any:
    """A plain value with the values of secrets in place of the references to them.

    Args:
        value: of ``data`` or ``environment``.
        where: the field that has the value, for messages.

    Raises:
        ConfigError: secrets that are nowhere, with all their names; or the file of secrets can be read by others.
    """
    found: dict[str, str] = {}
    missing: list[Problem] = []
    for path, text in texts(value, (where,)):
        for name in _REFERENCE.findall(text):
            if name in found:
                continue
            secret = os.environ.get(name) or _stored_secrets().get(name)
            if secret is not None:
                hide(secret)
                found[name] = secret
                continue
            rule = (
                f"refers to the secret {name}, which is neither in the environment nor in {secrets_file()}. Set the "
                f"environment variable {name}, or write a line {name}: '...' into that file."
            )
            missing.append((name_of(path), rule))
    if missing:
        raise problems_error("a secret is missing" if len(missing) == 1 else "secrets", missing)
    return _replaced(value, found)


def secrets_file() -> FilePath:
    """The file of the user's secrets, which need not exist."""
    named = os.environ.get("HOPYARD_SECRETS")
    if named:
        return FilePath(named).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return FilePath(base).expanduser() / "hopyard" / "secrets.yaml"


def problems_of_references(config: Any) -> list[Problem]:
    """A problem for each reference that is not well-formed, or stands where secrets are not looked up."""
    problems: list[Problem] = []
    for path, text in texts(config):
        if _OPENING not in text:
            continue
        if path[0] not in ("data", "environment"):
            rule = (
                "refers to a secret, but secrets are looked up in data and environment alone. Move it there."
            )
            problems.append((name_of(path), rule))
        elif text.count(_OPENING) != len(_REFERENCE.findall(text)):
            rule = (
                "has a reference to a secret that is not well-formed: a name is made of letters, digits and _. Write "
                "${secret:NAME}."
            )
            problems.append((name_of(path), rule))
    return problems


def credentials_in(config: Any) -> list[Problem]:
    """A warning for each text of ``data`` and ``environment`` that looks like a credential, by its key."""
    warnings: list[Problem] = []
    for path, text in texts(config):
        key = next((step for step in reversed(path) if isinstance(step, str)), "")
        if path[0] not in ("data", "environment") or not _CREDENTIAL.fullmatch(variable_for(key)):
            continue
        if len(text) < _SHORTEST_CREDENTIAL or text[0] in "<[" or _OPENING in text:
            continue
        variable = variable_for(key)
        rule = (
            "looks like a credential, which would be stored with the experiment, and shown to all who can see it. "
            f"Write ${{secret:{variable}}}, and set the environment variable {variable}."
        )
        warnings.append((name_of(path), rule))
    return warnings


def variable_for(key: str) -> str:
    """The environment variable that could hold the secret of a key: ``AWS_KEY`` for ``awsKey`` and ``aws-key``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key)
    return re.sub(r"[^A-Z0-9_]|^(?=\d)", "_", words.upper())


def _stored_secrets() -> dict[str, str]:
    path = secrets_file()
    try:
        mode = path.stat().st_mode
    except OSError:
        if os.environ.get("HOPYARD_SECRETS"):
            raise ConfigError(
                f"HOPYARD_SECRETS names {path} as the file of secrets, which cannot be read. Name another file, or "
                "unset the variable."
            ) from None
        return {}
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(
            f"{path} holds secrets and has the permissions {mode & 0o777:o}, but nobody but you may read or write it. "
            f"Run: chmod 600 {path}"
        )
    return read_hidden(path)


def _replaced(value: Any, secrets: dict[str, str]) -> Any:
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: secrets[found[1]], value)
    if isinstance(value, dict):
        return {key: _replaced(each, secrets) for key, each in value.items()}
    return [_replaced(each, secrets) for each in value] if isinstance(value, list) else value
