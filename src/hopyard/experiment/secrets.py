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
from typing import Any, NamedTuple

from hopyard.errors import ConfigError
from hopyard.experiment.problems import Problem, problems_error, texts
from hopyard.experiment.yaml_text import read_hidden
from hopyard.masking import hide
from hopyard.search.points import Path
from hopyard.search.spaces import name_of

_OPENING = "${secret:"
_REFERENCE = re.compile(r"\$\{secret:([A-Za-z_][A-Za-z0-9_]*)\}")
_CREDENTIAL = re.compile(
    "(?:.*_)?(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRET_KEY|PRIVATE_KEY|ACCESS_KEY|ACCOUNT_KEY|API_KEY|APIKEY|TOKEN|"
    "CREDENTIALS?|CONNECTION_STRING)"
)
_PASSWORD_IN_URL = re.compile(r"://[^/?#\s:@]*:([^/?#\s]+)@")
_SHORTEST_CREDENTIAL = 8
"""Characters of a text that is taken for a credential, at least."""


class Credential(NamedTuple):
    """A part of a text that looks like a credential.

    Attributes:
        variable: name of the environment variable that could hold it.
        start: index of its first character in the text.
        end: index behind its last one.
    """

    variable: str
    start: int
    end: int


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
    """A warning for each text of ``data`` and ``environment`` in which ``credential_in`` finds one."""
    warnings: list[Problem] = []
    for path, text in texts(config):
        found = credential_in(path, text) if path[0] in ("data", "environment") else None
        if found is None:
            continue
        whole = found.end - found.start == len(text)
        rule = (
            f"{'looks like a credential' if whole else 'has a password'}, which would be stored with the experiment, "
            f"and shown to all who can see it. Write ${{secret:{found.variable}}}{'' if whole else ' in its place'}, "
            f"and set the environment variable {found.variable}."
        )
        warnings.append((name_of(path), rule))
    return warnings


def credential_in(path: Path, text: str) -> Credential | None:
    """The part of a text that looks like a credential: all of it, by the last key of its path, or the password in a
    URL. None: there is none, or the text has a reference already."""
    variable = variable_for(next((step for step in reversed(path) if isinstance(step, str)), ""))
    if _OPENING in text:
        return None
    if _CREDENTIAL.fullmatch(variable):
        is_real = len(text) >= _SHORTEST_CREDENTIAL and text[0] not in "<["
        return Credential(variable, 0, len(text)) if is_real else None
    password = _PASSWORD_IN_URL.search(text)
    if password is None or password[1][0] in "<[$*":
        return None
    return Credential(f"{variable}_PASSWORD", *password.span(1))


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
