"""Pictures of a report page, taken with headless Chromium: `tools/screenshots.py page.html docs/images`.

report.png is the top of the page, report-dark.png the same in the dark, report-phone.png the map on a phone; each is
kept small. With `--all` also the whole page and a PDF, to look at before a change is committed.
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import extra

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage")
TOP = {"report": (1240, 1230, "light"), "report-dark": (1240, 1230, "dark"), "report-phone": (390, 844, "light")}


@contextmanager
def browser(width: int, height: int, scheme: str = "light") -> Iterator[Any]:
    """A headless Chromium of Debian's, or wherever it is on the path, with a window and a colour scheme."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise SystemExit(
            "I need chromium and chromedriver on the path; on Debian: apt install chromium chromium-driver."
        )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={max(width, 500)},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        opened = webdriver.Chrome(options=options, service=Service(driver))
        try:
            resize(opened, width, height)
            dress(opened, scheme)
            yield opened
        finally:
            opened.quit()


def resize(opened: Any, width: int, height: int) -> None:
    """Make the page exactly so wide, which may be narrower than a window can be."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def dress(opened: Any, scheme: str) -> None:
    """Have the page drawn as in a light or dark system."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def open_page(opened: Any, page: Path) -> None:
    """Open the page from the disk and wait until its charts are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    opened.get(page.resolve().as_uri())
    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(opened, 30).until(lambda _: opened.execute_script(ready))


def picture(opened: Any, path: Path, whole: bool = False) -> None:
    """What the window shows, or the whole page, as PNG with few colours."""
    options: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
    if whole:
        size = opened.execute_script(
            "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
        )
        options["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    path.write_bytes(_few_colours(base64.b64decode(opened.execute_cdp_cmd("Page.captureScreenshot", options)["data"])))


def _few_colours(content: bytes) -> bytes:
    """The PNG with 256 colours, which is less than half of the size; as it is where pillow is not installed."""
    sys.path.append(str(extra.FOLDER))
    try:
        from PIL import Image
    except ImportError:
        return content
    stream = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        stream, "PNG", optimize=True
    )
    return stream.getvalue()


def main() -> None:
    """Take the pictures of one page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="also the whole page, in each dress, and a PDF")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, (width, height, scheme) in TOP.items():
        with browser(width, height, scheme) as opened:
            open_page(opened, given.page)
            if width < 500:  # the map and the slider that stays in reach
                opened.execute_script("document.querySelector('.explorer')?.scrollIntoView({behavior: 'instant'})")
            picture(opened, given.folder / f"{name}.png")
            if given.all:
                picture(opened, given.folder / f"{name}-whole.png", whole=True)
            if given.all and name == "report":
                printed = opened.execute_cdp_cmd(
                    "Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True}
                )
                (given.folder / "report.pdf").write_bytes(base64.b64decode(printed["data"]))


if __name__ == "__main__":
    main()
