"""A run as one file."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import HOSTILE, RUN, Client

from hopyard.errors import NotFoundError, UsageError
from hopyard.web.app import NOT_BUILT
from hopyard.web.export import InlinePage, export_page, inline
from hopyard.wording import describe_bytes

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
            assert answer["gzip"] is True
            assert gzip.decompress(base64.b64decode(answer["base64"])) == found.body
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


class Frames(HTMLParser):
    """Attributes of the elements of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def timeless(page: str) -> str:
    """The page without the moment of its export."""
    found, count = re.subn(r'"exported":"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(Z|\+00:00)"', "", page)
    assert count == 1
    return found


def test_a_notebook_gets_the_same_page_in_a_frame_of_its_own(
    place: Path, static: Path, tmp_path: Path
) -> None:
    file = export_page(str(place), RUN, tmp_path / "run.html", static=static)
    shown = inline(str(place), RUN, height=500, static=static)
    [(tag, frame)] = Frames(shown._repr_html_()).found
    assert tag == "iframe"
    assert frame["srcdoc"] == shown.page
    assert timeless(shown.page) == timeless(file.read_text())
    assert (frame["sandbox"], frame["height"], frame["title"]) == ("allow-scripts", "500", f"run {RUN}")
    assert repr(shown) == f"<page of run {RUN}, {describe_bytes(len(shown.page.encode()))}>"


def test_texts_of_a_page_do_not_leave_their_frame() -> None:
    page = "<p title=\"a\">it's &amp; 'more'</p></iframe><script>alert(1)</script>"
    [(tag, frame)] = Frames(InlinePage("<\"&'>", page, 100)._repr_html_()).found
    assert (tag, frame["srcdoc"], frame["title"]) == ("iframe", page, "run <\"&'>")


def test_a_page_begins_with_its_run(place: Path, static: Path) -> None:
    page = inline(str(place), RUN, static=static).page
    assert f'<script>if (!location.hash) location.hash = "#/runs/0/{RUN}";\n' in page


def test_a_page_that_is_too_large_for_a_notebook_says_what_to_do(place: Path, static: Path) -> None:
    with pytest.raises(UsageError) as caught:
        inline(str(place), RUN, most_mb=0.001, static=static)
    size = describe_bytes(len(inline(str(place), RUN, static=static)._repr_html_().encode()))
    assert str(caught.value) == (
        f"the page of run {RUN} is {size}, and a notebook would keep all of it; at most most_mb=0.001 megabytes are. "
        f"Write it beside the notebook by export_page(store, '{RUN}', \"run.html\"), or give a larger most_mb."
    )


def test_without_the_extra_it_says_which_to_install() -> None:
    code = "import sys; sys.modules['starlette'] = None; import hopyard.web.export"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "hopyard.web.export needs the package 'starlette', which is not installed. Install it with: pip install "
        "'hopyard[web]'" in done.stderr
    )
