"""Pictures of the pages for docs/images: ``python tests/browser/shoot.py [FOLDER]``.

report-example.png is the page at docs/example, all others are made-up runs.

Needs chromium, pdftoppm (poppler-utils) and Pillow, which matplotlib brings.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from pages import make  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402

from conftest import chromium  # noqa: E402

DOCS = HERE.parents[1] / "docs"
IMAGES = DOCS / "images"
EXAMPLE = DOCS / "example" / "report.html"
COLORS = 160
"""The pages have few colours: a palette makes the files small."""


def main() -> None:
    """Write every picture anew."""
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as p:
        scratch = Path(name)
        pages = make(scratch / "pages")
        browser = p.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        fail, passed = pages["fail"], pages["pass"]
        _save(_window(browser, EXAMPLE, scratch, 1280, 1000), where / "report-example.png")
        leaves = _beside(
            _window(browser, EXAMPLE, scratch, 390, 1100), _paper(browser, EXAMPLE, scratch)
        )
        _save(leaves, where / "report-phone-paper.png")
        _save(_window(browser, fail, scratch, 1280, 1000), where / "report-fail.png")
        dark = _window(browser, passed, scratch, 1280, 1000, dark=True)
        _save(dark, where / "report-pass-dark.png")
        _save(_window(browser, pages["services"], scratch, 1280, 870), where / "services.png")
        _save(_buckets(browser, fail, scratch), where / "report-bucket.png")
        browser.close()


def _window(
    browser: Browser, file: Path, scratch: Path, width: int, height: int, *, dark: bool = False
) -> Image.Image:
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    page.goto(file.as_uri())
    out = scratch / "window.png"
    page.screenshot(path=str(out))
    page.close()
    return Image.open(out).copy()


def _buckets(browser: Browser, file: Path, scratch: Path) -> Image.Image:
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(file.as_uri())
    out = scratch / "bucket.png"
    page.locator(".bucket").first.screenshot(path=str(out))
    page.close()
    return Image.open(out).copy()


def _paper(browser: Browser, file: Path, scratch: Path) -> list[Image.Image]:
    """First and last page of the printed sheet."""
    for leaf in scratch.glob("leaf-*.png"):
        leaf.unlink()
    page = browser.new_page()
    page.goto(file.as_uri())
    pdf = scratch / "sheet.pdf"
    page.pdf(path=str(pdf), prefer_css_page_size=True, print_background=True)
    page.close()
    subprocess.run(["pdftoppm", "-r", "80", "-png", str(pdf), str(scratch / "leaf")], check=True)
    leaves = sorted(scratch.glob("leaf-*.png"))
    return [Image.open(leaf).copy() for leaf in (leaves[0], leaves[-1])]


def _beside(first: Image.Image, others: list[Image.Image]) -> Image.Image:
    """Pictures in a row, of one height, on grey."""
    gap, height = 16, first.height
    row = [first, *(o.resize((o.width * height // o.height, height)) for o in others)]
    width = sum(each.width for each in row) + gap * (len(row) + 1)
    out, x = Image.new("RGB", (width, height + 2 * gap), "#8a8f96"), gap
    for each in row:
        out.paste(each.convert("RGB"), (x, gap))
        x += each.width + gap
    return out


def _save(picture: Image.Image, where: Path) -> None:
    picture.convert("RGB").quantize(COLORS).save(where, optimize=True)
    print(f"{where.name}: {where.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
