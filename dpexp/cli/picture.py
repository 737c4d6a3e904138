"""Take README's picture: one table of the results page, photographed by chromium."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from dpexp.cli import groups
from dpexp.types import ConfigError

ROOT = groups.CONF.parent
PAGE = ROOT / "results" / "embedded" / "index.html"
ARTICLE = "rgp-table3"
PICTURE = ROOT / "docs" / "table3.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (960, 900)  # the window, in pixels; what is empty below the table is cut off
LOW = """body { padding: 2px 1rem; } article { border: 0; padding: 0; } ul.claims { margin: 0; }
.place, .scaled, .verdict, .why, td i { display: none; }"""
"""Style of the picture: a table whose rows are one line each, and the verdict."""


def shown() -> str:
    """Return the results page with one table alone, without notes, in the colours of daylight."""
    page = PAGE.read_text(encoding="utf-8")
    style = re.search(r"<style>.*?</style>", page, re.S)
    article = re.search(rf'<article id="{ARTICLE}".*?</article>', page, re.S)
    if not (style and article):
        raise ConfigError(f"Expected {PAGE} to have {ARTICLE}. Run make all first.")
    small_print = r'<details>.*?</details>|<ul class="notes">.*?</ul>'
    body = re.sub(small_print, "", article[0], flags=re.S)
    body = body.replace("<br>", " ")
    light = f"<style>:root {{ color-scheme: light only; }} {LOW}</style>"
    return f'<!doctype html><meta charset="utf-8">{style[0]}{light}{body}'


def digest() -> str:
    """Return the hash of what the picture shows, which its file carries as `shows`."""
    return hashlib.sha256(shown().encode()).hexdigest()


def take() -> Path:
    """Write the picture; return its path.

    Raises:
        ConfigError: no chromium is found, or it takes no picture.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        raise ConfigError(f"Expected one of {', '.join(BROWSERS)} on PATH; found none.")
    with tempfile.TemporaryDirectory() as folder:
        page, taken = Path(folder, "page.html"), Path(folder, "taken.png")
        page.write_text(shown(), encoding="utf-8")
        words = ["--headless", "--hide-scrollbars", f"--screenshot={taken}"]
        words += [f"--window-size={SIZE[0]},{SIZE[1]}", page.as_uri()]
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # chromium refuses root a sandbox
            words.insert(0, "--no-sandbox")
        done = subprocess.run([browser, *words], capture_output=True, text=True)
        if not taken.is_file():
            raise ConfigError(f"Expected a picture from {browser}; got {done.stderr[-200:]!r}.")
        with Image.open(taken) as image:
            _save(image.convert("RGB"))
    return PICTURE


def _save(image: Image.Image) -> None:
    """Write a picture without the empty part below, in 256 colours."""
    empty = Image.new("RGB", image.size, image.getpixel((0, image.height - 1)))
    bottom = image.height
    while bottom > 1 and image.crop((0, bottom - 1, image.width, bottom)) == empty.crop(
        (0, 0, image.width, 1)
    ):
        bottom -= 1
    about = PngInfo()
    about.add_text("shows", digest())
    kept = image.crop((0, 0, image.width, min(image.height, bottom + 4)))
    kept.quantize(256).save(PICTURE, optimize=True, pnginfo=about)
