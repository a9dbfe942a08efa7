"""What is hidden is masked in texts, and in what Python code writes."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from hopyard import masking
from hopyard.masking import hide, masked, masked_output


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_hidden", set())


def test_longer_texts_are_masked_first() -> None:
    hide("secret")
    hide("secret-longer")
    hide("abc")  # too short
    assert masked("a secret, secret-longer secrets abc") == "a ***, *** ***s abc"


def test_output_is_masked_while_the_context_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    hide("secret")
    with masked_output(sys.stdout, sys.stderr):
        with masked_output(sys.stdout, None):
            print("one secret")
        print("two", "secret")
        logger.warning("three secret")
    print("four secret")
    found = capsys.readouterr()
    assert found.out == "one ***\ntwo ***\nfour secret\n"
    assert found.err == "three ***\n"


def test_a_stream_that_takes_no_attributes_stays(capsys: pytest.CaptureFixture[str]) -> None:
    class Plain:
        __slots__ = ("text",)

        def write(self, text: str) -> None:
            self.text = text

    hide("secret")
    plain = Plain()
    with masked_output(plain, io.StringIO()):  # type: ignore[arg-type]
        plain.write("secret")
    assert plain.text == "secret"
