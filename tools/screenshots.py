"""Makes the pictures of docs/web.md: a search, its schedule, data and versions, as Chromium shows them.

`python tools/screenshots.py` runs an ASHA search of 81 models on this machine, and writes docs/images/web-*.png anew.
`python tools/screenshots.py FOLDER` writes these pages into FOLDER, light and dark, in three widths, to be looked at.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from sklearn.datasets import load_digits

from browsing import Web, browser_program, launch
from hopyard import StockRoom
from hopyard.backend import LocalBackend
from hopyard.data import prepare
from hopyard.storage import LocalStore
from pictures import IMAGES, search

Scheme = Literal["light", "dark"]

_COLOURS = 128
_COLUMNS = "%40trial,%40status,%40value,%40epochs,width,lr,batch_size"
_LOOKS: list[tuple[Scheme, int]] = [("light", 1440), ("dark", 1440), ("light", 1000), ("dark", 360)]


def main(folder: Path | None) -> None:
    """Make what is shown, and the pictures of it."""
    program = browser_program()
    if program is None:
        sys.exit(
            "The pictures need Chromium or Chrome, which is not here; tools/browser.sh says how to get it."
        )
    place = Path(tempfile.gettempdir(), "hopyard-pictures")  # pages show it
    place.mkdir()
    try:
        store, room = place / "experiments", place / "repo"
        _run(store)
        _data(store)
        _versions(room)
        with Web(str(store), str(room)) as web, sync_playwright() as playwright:
            browser = launch(playwright, program)
            for name, route, shown, height in _pages(web):
                if folder is None:
                    _save(
                        browser, web.page(route), shown, IMAGES / f"web-{name}.png", "light", (1360, height)
                    )
                    continue
                for scheme, width in _LOOKS:
                    target = folder / f"web-{name}-{scheme}-{width}.png"
                    _save(browser, web.page(route), shown, target, scheme, (width, height))
            browser.close()
    finally:
        shutil.rmtree(place)


def _run(store: Path) -> None:
    backend = LocalBackend(num_workers=2, device="cpu")
    backend.start()
    search(backend, str(store), "first", 1)  # the first units of a process load libraries
    search(backend, str(store), "asha", 81)
    backend.stop()


def _data(store: Path) -> None:
    digits = load_digits()
    images = (digits.images * 15.9).astype(np.uint8)
    texts = np.array([f"a {digit}, written by hand" for digit in digits.target], dtype=object)
    prepare(
        {"image": images, "text": texts, "label": digits.target}, store=LocalStore(store), validation=0.25
    )


def _versions(folder: Path) -> None:
    """Four commits of samples and a network, and a branch."""
    os.environ |= {"GIT_AUTHOR_NAME": "Ada Example", "GIT_AUTHOR_EMAIL": "ada@example.org"}
    stock = StockRoom.init(folder)
    images = (load_digits().images * 15.9).astype(np.uint8)
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def commit(message: str, samples: range, rate: float) -> None:
        with stock.enable_write(message=message):
            stock.data["digits"] = {key: images[key] for key in samples}
            with torch.no_grad():
                for weights in network.parameters():
                    weights.add_(torch.randn_like(weights) * rate * 0.1)
            stock.model["net"] = network.state_dict()
            stock.experiment["lr"] = rate

    torch.manual_seed(0)
    commit("First 200 digits, network as initialized", range(200), 0.1)
    commit("200 more digits", range(400), 0.1)
    stock.branch("wider", "HEAD~1")
    commit("Trained for 20 epochs", range(400), 0.05)
    commit("Trained on, at a lower rate", range(420), 0.01)
    stock.close()


def _pages(web: Web) -> Iterator[tuple[str, str, str, int]]:
    """Name of a picture, the page, what is there once all is, and how many pixels from its top are shown."""
    asha = next(place["place"] for place in _json(web, "/api/places")["places"] if place["kind"] == "store")
    late, early = (commit["commit"] for commit in _json(web, "/api/stock/1/log?all=1")[:2])
    data = _json(web, f"/api/data/{asha}")["datasets"]
    pictures = next(
        each["path"]
        for each in data
        if each["path"].startswith("train_data/") and _has_images(web, asha, each["path"])
    )
    yield "run", f"runs/{asha}/asha?cols={_COLUMNS}", "[aria-label=Leaderboard] tbody tr:nth-child(12)", 1180
    yield "schedule", f"runs/{asha}/asha/schedule?hops=1", "canvas", 620
    yield "data", f"data/{asha}?path={pictures}", "[aria-label=Rows] img", 900
    yield "versions", f"stock/1?at={late}&a={early}&b={late}", "[aria-label=Difference] article", 1000


def _has_images(web: Web, place: str, path: str) -> bool:
    (split, *_) = _json(web, f"/api/data/{place}/describe?path={path}")
    return any(column["name"] == "image" for column in split["columns"])


def _json(web: Web, path: str) -> Any:
    with urlopen(web.url + path) as answer:
        return json.load(answer)


def _save(
    browser: Browser, address: str, shown: str, target: Path, scheme: Scheme, size: tuple[int, int]
) -> None:
    """A picture with few colours, which is small."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(shown)
    _settled(page)
    picture = Image.open(io.BytesIO(page.screenshot(full_page=size[0] < 1000)))
    picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(target, f"{target.stat().st_size / 1000:.0f} kB", picture.size)
    context.close()


def _settled(page: Page) -> None:
    """Wait until pictures are loaded, and lines are drawn, of which each frame draws some."""
    page.wait_for_function(
        """() => {
            const looks = [...document.querySelectorAll('canvas')].map(each => each.toDataURL().length).join();
            window.alike = looks === window.looks ? (window.alike ?? 0) + 1 : 0;
            window.looks = looks;
            return window.alike > 20 && [...document.images].every(image => image.complete);
        }"""
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
