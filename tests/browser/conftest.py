"""Debian's chromium by Playwright, over pages that are made once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pages import make
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """The browser of this machine; ``LLMSLA_CHROMIUM`` names another."""
    named = os.environ.get("LLMSLA_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


# Not for the session: its event loop runs in this thread, and async tests need that for theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip(
            "NO BROWSER: the HTML report was opened by none. Install Debian's chromium "
            "(apt-get install chromium fonts-noto-cjk poppler-utils) or name one in "
            "LLMSLA_CHROMIUM"
        )
    with sync_playwright() as p:
        # The sandbox of a browser needs rights that a container's root lacks.
        found = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make(tmp_path_factory.mktemp("pages"))


@dataclass
class Watched:
    """An open page, and everything it said, asked for or tried."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Begin to listen."""
        self.page.on("console", lambda m: self.said.append(f"console: {m.text}"))
        self.page.on("pageerror", lambda e: self.said.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.said.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.asked.append(r.url))


class Opener:
    """Opens pages and closes them all at the end."""

    def __init__(self, browser: Browser, pages: dict[str, Path]) -> None:
        self._browser = browser
        self._pages = pages
        self._open: list[Page] = []

    def __call__(
        self, name: str, *, width: int = 1280, scheme: str = "light", script: bool = True
    ) -> Watched:
        """The page ``name`` in a window of ``width`` pixels."""
        page = self._browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            java_script_enabled=script,
        )
        self._open.append(page)
        watched = Watched(page)
        watched.watch()
        page.goto(self.address(name))
        return watched

    def address(self, name: str) -> str:
        """Where a page lies."""
        return self._pages[name].as_uri()

    def close(self) -> None:
        """Close what was opened."""
        for page in self._open:
            page.close()


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Iterator[Opener]:
    opener = Opener(browser, pages)
    yield opener
    opener.close()
