"""Secrets are looked up where they are needed, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.errors import ConfigError
from hopyard.experiment.secrets import resolve_secrets, secrets_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's file of secrets would be."""
    monkeypatch.delenv("HOPYARD_SECRETS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("A_KEY", "B_KEY", "C_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "hopyard").mkdir()
    return tmp_path / "hopyard" / "secrets.yaml"


def store(file: Path, text: str, mode: int = 0o600) -> None:
    file.write_text(text)
    file.chmod(mode)


def test_values_come_from_the_environment_then_from_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(file, "A_KEY: from file\nB_KEY: 'x${secret:A_KEY}'\n")
    monkeypatch.setenv("A_KEY", "from environment")
    data = {
        "a": "${secret:A_KEY}",
        "list": ["Bearer ${secret:B_KEY}, ${secret:A_KEY}", 1, None],
        "b": "plain",
    }
    assert resolve_secrets(data) == {
        "a": "from environment",
        "list": ["Bearer x${secret:A_KEY}, from environment", 1, None],
        "b": "plain",
    }
    assert data["a"] == "${secret:A_KEY}"


def test_no_file_is_read_where_the_environment_has_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(file, "not: [yaml", 0o644)
    monkeypatch.setenv("A_KEY", "a")
    assert resolve_secrets({"a": "${secret:A_KEY}", "b": 1}) == {"a": "a", "b": 1}


def test_all_missing_secrets_are_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "a")
    monkeypatch.setenv("C_KEY", "")
    with pytest.raises(ConfigError) as caught:
        resolve_secrets({"a": "${secret:A_KEY}", "b": ["${secret:B_KEY}"], "c": "${secret:C_KEY}"})
    missing = [("data.b[0]", "B_KEY"), ("data.c", "C_KEY")]
    assert list(caught.value.problems) == [
        (
            path,
            (
                f"refers to the secret {name}, which is neither in the environment nor in {file}. Set the environment "
                f"variable {name}, or write a line {name}: '...' into that file."
            ),
        )
        for path, name in missing
    ]
    with pytest.raises(
        ConfigError, match=r"^a secret is missing: environment\.X refers to the secret B_KEY, which"
    ):
        resolve_secrets({"X": "${secret:B_KEY}"}, "environment")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_file_that_others_can_read_or_write_is_refused(file: Path, mode: int) -> None:
    store(file, "A_KEY: hidden", mode)
    with pytest.raises(ConfigError) as caught:
        resolve_secrets({"a": "${secret:A_KEY}"})
    assert str(caught.value) == (
        f"{file} holds secrets and has the permissions {mode:o}, but nobody but you may read or write it. "
        f"Run: chmod 600 {file}"
    )


def test_values_of_the_file_are_texts_and_are_not_shown(file: Path) -> None:
    store(file, "A_KEY: 12345\nB_KEY: hidden\nC_KEY: [67890]")
    with pytest.raises(ConfigError) as caught:
        resolve_secrets({"a": "${secret:B_KEY}"})
    assert str(caught.value) == (
        f"{file} holds something else than names and texts in lines 1, 3, and what is there is not shown, as it may be "
        "secret. Write each name once, and put its value in quotes: NAME: 'value'."
    )


@pytest.mark.usefixtures("nothing_collected")
@pytest.mark.parametrize(
    "text",
    [
        "TOKEN: !S3cr3tPw",
        "TOKEN: *S3cr3tPw",
        "TOKEN: {S3cr3tPw: no}",
        "TOKEN: !<S3cr3tPw> x",
        "TOKEN: %S3cr3tPw",
        "TOKEN: [S3cr3tPw",
        "S3cr3tPw: a\nS3cr3tPw: b",
        "S3cr3tPw",
        "!S3cr3tPw {A: b}",
        "<<: S3cr3tPw",
        "TOKEN: '\a S3cr3tPw'",
        "TOKEN: 'S3cr3tPw",
        "? [S3cr3tPw]\n: a",
        "TOKEN: 99994444e99999 # S3cr3tPw",
        "TOKEN: &S3cr3tPw [*S3cr3tPw]",
        "TOKEN: a\n--- S3cr3tPw",
        "TOKEN: no # S3cr3tPw",
        "TOKEN: " + "[" * 5000 + "S3cr3tPw",
    ],
)
def test_errors_about_the_file_name_lines_and_nothing_that_it_holds(file: Path, text: str) -> None:
    store(file, f"A_KEY: 'a'\n{text}\n")
    with pytest.raises(ConfigError, match=r"in lines? [1-4], and what is there is not shown") as caught:
        resolve_secrets({"a": "${secret:A_KEY}"})
    assert not any(part in str(caught.value) for part in ("S3cr3t", "TOKEN", "9999"))
    assert not caught.value.problems


def test_a_byte_that_is_no_utf_8_is_not_shown(file: Path) -> None:
    file.write_bytes(b"A_KEY: 'a'\n\nTOKEN: '\xf6'\n")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="in line 3, and what is there is not shown"):
        resolve_secrets({"a": "${secret:A_KEY}"})


def test_an_empty_file_has_no_secrets(file: Path) -> None:
    store(file, "# none\n")
    with pytest.raises(ConfigError, match=r"^a secret is missing: data\.a refers to the secret A_KEY"):
        resolve_secrets({"a": "${secret:A_KEY}"})


def test_the_file_can_be_named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.yaml"
    store(other, "A_KEY: a")
    monkeypatch.setenv("HOPYARD_SECRETS", str(other))
    assert secrets_file() == other
    assert resolve_secrets("${secret:A_KEY}") == "a"
    other.unlink()
    with pytest.raises(
        ConfigError, match=r"^HOPYARD_SECRETS names .*other\.yaml as the file of secrets, which cannot be"
    ):
        resolve_secrets("${secret:A_KEY}")


def test_without_xdg_it_is_below_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOPYARD_SECRETS", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert secrets_file() == tmp_path / ".config" / "hopyard" / "secrets.yaml"
