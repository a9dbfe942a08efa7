"""Messages in the words of experiments."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import hopyard
from hopyard.errors import TrialError
from hopyard.tune import phrases
from hopyard.tune.phrases import of_experiments, worded, wording_of


@cache
def _messages() -> str:
    """The package's code, with the pieces of each text joined."""
    files = Path(hopyard.__file__).parent.rglob("*.py")
    code = "\n".join(each.read_text() for each in files if each.name != Path(phrases.__file__).name)
    return re.sub(r'["\']\s*\n\s*(?:\+ )?f?["\']', "", code)


@pytest.mark.parametrize("phrase", [phrase for phrase, _ in phrases.PHRASES])
def test_each_phrase_is_one_of_a_message(phrase: str) -> None:
    assert phrase in _messages()


def test_messages_of_experiments_speak_of_their_commands_and_fields() -> None:
    said = of_experiments("run a is finished: its result is returned. fresh=True trains again.")
    assert said == "run a is finished: its result is returned. --fresh runs it again."
    said = of_experiments("paused by a user's command; `hopyard run resume` goes on.")
    assert said == "paused by a user's command; `hopyard experiment resume` goes on."
    said = of_experiments("preempted by SIGTERM before its first unit; run the same script again to go on.")
    assert said == "preempted by SIGTERM before its first unit; give the command again."
    said = of_experiments("evaluation_metric is 'acc', but the estimator measures ['loss'].")
    assert said == "searcher.metric is 'acc', but the trial measures ['loss']."
    assert wording_of({"experiment": {}}) is of_experiments
    assert wording_of({})("`hopyard run resume` goes on.") == "`hopyard run resume` goes on."


def test_errors_keep_their_kind_and_evidence() -> None:
    with (
        pytest.raises(TrialError, match=r"^`hopyard experiment describe` shows it\.$"),
        worded(of_experiments),
    ):
        raise TrialError("`hopyard run describe` shows it.")
