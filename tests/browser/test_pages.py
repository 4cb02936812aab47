"""Pages in a real browser: quiet, self-contained, accessible, readable on a phone and on paper."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import SCRIPTS

from conftest import Opener

pytestmark = pytest.mark.browser

NAMES = ("pass", "fail", "inconclusive", "error", "hostile", "services", "strangers")
RUNS = NAMES[:-2]
OPEN_SOME = """document.querySelectorAll('.how, .overview details, .bucket:first-of-type details')
  .forEach(d => d.open = true)"""
"""One of each kind: thousands of equal cells tell axe nothing more, and take it minutes."""
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLORS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_quiet_and_asks_for_nothing(
    opened: Opener, name: str, width: int, scheme: str
) -> None:
    """No console message, no dialog, no request but for itself, nothing wider than the window."""
    seen = opened(name, width=width, scheme=scheme)
    seen.page.evaluate(OPEN_ALL)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    assert seen.said == []
    assert seen.asked == [opened.address(name)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_serious(opened: Opener, name: str, scheme: str) -> None:
    """WCAG A and AA, with details open, in both colour schemes and on a phone."""
    seen = opened(name, width=390 if scheme == "dark" else 1280, scheme=scheme)
    seen.page.evaluate(OPEN_SOME)
    # What dark changes is colour; everything else of a page is the same.
    found = Axe().run(seen.page, options={"runOnly": COLORS if scheme == "dark" else STANDARDS})
    serious = [
        (v["id"], v["impact"], [n["html"][:120] for n in v["nodes"][:3]])
        for v in found.response["violations"]
        if v["impact"] in ("serious", "critical", "moderate")
    ]
    assert serious == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_is_seen_without_scrolling(opened: Opener, name: str, width: int) -> None:
    """Word and shape stand in the first window."""
    page = opened(name, width=width).page
    verdict = page.locator("header .verdict")
    box = verdict.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900
    wanted = {"hostile": "FAIL"}.get(name, name.upper())
    assert verdict.inner_text().startswith(wanted)
    assert verdict.locator("svg.icon").count() == 1


def test_without_scripts_nothing_is_missing(opened: Opener) -> None:
    """The page says the same with JavaScript off; only the comfort is gone."""
    on, off = opened("fail").page, opened("fail", script=False).page
    assert off.locator("nav button").count() == 0
    assert on.locator("nav button").count() == 1
    assert off.locator("main").inner_text() == on.locator("main").inner_text()


def test_the_keyboard_reaches_everything(opened: Opener) -> None:
    """The skip link comes first; details open by Enter; tables that scroll take the focus."""
    page = opened("fail", width=390).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.url.endswith("#rules")
    summary = page.locator("figure summary").first
    summary.focus()
    details = page.locator("figure details").first
    was = details.get_attribute("open")
    page.keyboard.press("Enter")
    assert (details.get_attribute("open") is None) != (was is None)
    page.evaluate(OPEN_ALL)
    for region in page.locator("[role=region]").all():
        assert region.get_attribute("tabindex") == "0"
        assert region.get_attribute("aria-label") or region.get_attribute("aria-labelledby")


def test_one_button_opens_and_closes_all(opened: Opener) -> None:
    """Pressed once every table is open, pressed again none is."""
    page = opened("pass").page
    button = page.locator("nav button")
    every = page.locator("main details").count()
    button.click()
    assert page.locator("main details[open]").count() == every
    button.click()
    assert page.locator("main details[open]").count() == 0


@pytest.mark.parametrize("name", NAMES)
def test_text_over_pictures_keeps_inside(opened: Opener, name: str) -> None:
    """No label of a picture is cut off at its edge."""
    page = opened(name).page
    outside = page.evaluate(
        """() => [...document.querySelectorAll('figure > svg')].flatMap(svg => {
          const box = svg.getBoundingClientRect();
          return [...svg.querySelectorAll('text')].filter(t => {
            const b = t.getBoundingClientRect();
            return b.left < box.left - 2 || b.right > box.right + 2 ||
                   b.top < box.top - 2 || b.bottom > box.bottom + 2;
          }).map(t => t.textContent);
        })"""
    )
    assert outside == []


def test_foreign_text_has_its_own_direction(opened: Opener) -> None:
    """Right-to-left names are isolated: they turn nothing around that stands beside them."""
    page = opened("hostile").page
    assert SCRIPTS in page.locator("h1").inner_text()
    loose = page.evaluate(
        """() => [...document.querySelectorAll('h1 bdi, td bdi, dd bdi')]
          .filter(e => getComputedStyle(e).unicodeBidi !== 'isolate').length"""
    )
    assert loose == 0
    drawn = page.locator("figure svg text", has_text="一个模型").first
    assert "plaintext" in drawn.evaluate("e => getComputedStyle(e).unicodeBidi")


@pytest.mark.parametrize("name", RUNS)
def test_it_prints_as_a_sheet_to_sign(opened: Opener, name: str, tmp_path: Path) -> None:
    """A4, few pages, the place to sign in one piece on the last, with both checksums."""
    page = opened(name).page
    page.locator("input[aria-label='Name, Reviewer']").fill("R. Viewer")
    page.get_by_label("stop", exact=True).check()
    file = tmp_path / "signed.pdf"
    page.pdf(path=str(file), prefer_css_page_size=True, print_background=True)
    raw = file.read_bytes()
    sizes = {tuple(map(float, s)) for s in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", raw)}
    assert all(abs(w - 595) < 2 and abs(h - 842) < 2 for w, h in sizes)
    if shutil.which("pdftotext") is None:
        pytest.skip("NO pdftotext: what the printed sheet says was not read (poppler-utils)")
    text = subprocess.run(
        ["pdftotext", "-layout", str(file), "-"], capture_output=True, check=True
    ).stdout.decode("utf-8")
    leaves = [leaf for leaf in text.split("\f") if leaf.strip()]
    assert 2 <= len(leaves) <= 9
    last = leaves[-1]
    for words in ("Sign-off", "Service owner", "Signature", "R. Viewer", "Decision", "SHA-256"):
        assert words in last
    for file_name in ("report.json", "timelines.jsonl"):
        assert f"SHA-256 of {file_name}" in last
    assert len(re.findall(r"\b[0-9a-f]{64}\b", last)) >= 2
    if name == "hostile":
        assert "一个模型" in text
        assert "モデル" in text
