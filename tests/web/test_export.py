"""A run as one file."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import HOSTILE, RUN, Client

from hopyard.errors import NotFoundError, UsageError
from hopyard.web.app import NOT_BUILT
from hopyard.web.export import export_page

PAGE = """<!doctype html><html><head><title>Hopyard</title>
<link rel="stylesheet" href="./app.css"></head><body><div id="app"></div><script src="./app.js"></script></body></html>
"""


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """Built pages, as small as they may be."""
    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "index.html").write_text(PAGE)
    (folder / "app.js").write_text("const end = '</script>', other = '</SCRIPT >';")
    (folder / "app.css").write_text("p { color: red } /* </style> */")
    return folder


def held(page: str) -> Any:
    """The answers in a file."""
    (text,) = re.findall(
        r'<script type="application/json" id="hopyard-export">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(text)


def test_a_file_holds_what_the_server_answers(
    place: Path, client: Client, static: Path, tmp_path: Path
) -> None:
    file = export_page(str(place), RUN, tmp_path / "run.html", static=static)
    page = file.read_text()
    responses = held(page)["responses"]
    for address, answer in responses.items():
        if address in ("/api/places", f"/api/runs/0/{RUN}/schedule"):
            continue
        found = client.get(address)
        if isinstance(answer, dict) and "base64" in answer:
            assert base64.b64decode(answer["base64"]) == found.body
        else:
            assert answer == found.json, address
    assert responses["/api/places"]["control"] is False
    assert responses["/api/places"]["places"][0]["url"] == "store", "where it lay is nobody's business"


def test_nothing_ends_a_script_early_and_nothing_is_loaded(place: Path, static: Path, tmp_path: Path) -> None:
    page = export_page(str(place), RUN, tmp_path / "run.html", static=static).read_text()
    assert len(re.findall("</script", page, re.IGNORECASE)) == 2
    assert len(re.findall("</style", page, re.IGNORECASE)) == 1
    assert "const end = '<\\/script>', other = '<\\/SCRIPT >';" in page
    assert HOSTILE not in page
    assert HOSTILE in json.dumps(held(page), ensure_ascii=False)
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "connect-src" not in page, "default-src 'none' forbids every connection"


def test_a_file_that_is_there_stays(place: Path, static: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text("mine")
    with pytest.raises(
        UsageError, match=r"is there already, and stays as it is\. Name another file, or give"
    ):
        export_page(str(place), RUN, file, static=static)
    assert file.read_text() == "mine"
    export_page(str(place), RUN, file, static=static, overwrite=True)
    assert held(file.read_text())


def test_without_pages_or_a_run_nothing_is_written(place: Path, static: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        export_page(str(place), RUN, tmp_path / "run.html", static=tmp_path / "nowhere")
    assert str(caught.value) == NOT_BUILT
    with pytest.raises(NotFoundError, match="holds no run 'nothing'"):
        export_page(str(place), "nothing", tmp_path / "run.html", static=static)
    assert [each.name for each in tmp_path.iterdir()] == ["static"]
