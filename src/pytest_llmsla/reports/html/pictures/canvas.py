"""A matplotlib figure becomes inline SVG that follows the page: its colours, fonts and width.

Colours are drawn as marker values and replaced by CSS variables, so that one picture serves
light, dark and paper. Foreign text never reaches matplotlib: a placeholder is drawn and replaced
in the SVG, where the browser has the fonts and the writing direction.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unicodedata import east_asian_width
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ...escape import shortened

WIDTH = 380
"""Width of a picture in CSS pixels at its natural size: one column on a phone."""

INK, MUTED, GRID = "#0a0b01", "#0a0b02", "#0a0b03"
DATA, BAND, LIMIT, BOUND = "#0a0b04", "#0a0b05", "#0a0b06", "#0a0b07"
HEAT = tuple(f"#0c0d0{n}" for n in range(8))
"""From least to most."""

_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    DATA: "--data",
    BAND: "--band",
    LIMIT: "--limit",
    BOUND: "--bound",
    **{color: f"--heat{n}" for n, color in enumerate(HEAT)},
}
_COLOR = re.compile("|".join(_VARIABLES), re.IGNORECASE)
_LONG_DECIMAL = re.compile(r"(\d+\.\d{2})\d+")
_FAMILY = re.compile(r" font-family: [^;]*;")
_PLACEHOLDER = re.compile(r"zz(\d+)zz")
_CHARACTER = 7.6
"""Pixels that a character of a picture takes at most, on average."""
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"


@dataclass(frozen=True)
class Table:
    """The data behind a picture: every cell is text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Key:
    """One line of a picture's legend: the class of its mark, and words with their figures."""

    mark: str
    text: str


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    id: str
    title: str
    description: str
    svg: Markup
    table: Table
    keys: tuple[Key, ...] = ()


@dataclass
class Canvas:
    """One figure while it is drawn; ``ax`` fills it but for its margins (pixels)."""

    height: int = 220
    left: int = 58
    right: int = 12
    top: int = 12
    bottom: int = 40
    foreign: list[str] = field(default_factory=list)
    tags: list[tuple[float, str, str]] = field(default_factory=list)
    """Short words above the plot: (x, word, colour)."""
    beyond: str = ""
    """What lies outside the plot, told above its right end: ``limit →``."""

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(WIDTH / 72, self.height / 72), dpi=72)
        FigureCanvasSVG(self.figure)
        box = (
            self.left / WIDTH,
            self.bottom / self.height,
            (WIDTH - self.left - self.right) / WIDTH,
            (self.height - self.top - self.bottom) / self.height,
        )
        self.ax: Axes = self.figure.add_axes(box)

    def labels(self, x: str, y: str) -> None:
        """Names of the axes. Own words only."""
        self.ax.set_xlabel(x)
        self.ax.set_ylabel(y)

    def place(self, text: object, longest: int = 24) -> str:
        """A stand-in for foreign text, to be drawn; its middle is cut where it is too long.

        ``longest`` is in narrow characters; Chinese, Japanese and Korean ones take two.
        """
        shown = shortened(text)
        head, tail = (
            _fitting(shown, longest // 2),
            _fitting(shown[::-1], longest - longest // 2 - 1),
        )
        whole = len(_fitting(shown, longest)) == len(shown)
        self.foreign.append(shown if whole else f"{head}…{tail[::-1]}")
        return f"zz{len(self.foreign) - 1}zz"

    def _place_tags(self) -> None:
        """Each tag above its line, in the lowest row where it touches no other."""
        ends: list[float] = []
        right = self.ax.get_xlim()[1]
        placed = [(*tag, "center", 0.5) for tag in sorted(self.tags)]
        if self.beyond:
            placed.append((right, self.beyond, LIMIT, "right", 1.0))
        for x, word, color, side, before in placed:
            at = float(self.ax.transData.transform((x, 0))[0])
            width = _CHARACTER * len(word)
            begin = at - before * width
            row = next((n for n, end in enumerate(ends) if begin > end), len(ends))
            ends[row : row + 1] = [begin + width]
            self.ax.annotate(
                word,
                (x, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2 + 10 * row),
                textcoords="offset points",
                ha=side,
                color=color,
                annotation_clip=False,
            )

    def svg(self, name: str) -> Markup:
        """The picture as an ``<svg>`` element; ids in it begin with ``name``."""
        self._place_tags()
        out = io.BytesIO()
        self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return Markup(_inline(out.getvalue(), name, self.foreign))


def _fitting(text: str, width: int) -> str:
    """The beginning of ``text`` that takes at most ``width`` narrow characters."""
    for end, ch in enumerate(text):
        width -= 2 if east_asian_width(ch) in "WF" else 1
        if width < 0:
            return text[:end]
    return text


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib with this page's settings and none of the user's."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "llmsla",
    "text.parse_math": False,
    "font.size": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.4,
    "path.simplify": True,
}


def plain_ticks(ax: Axes, axis: str, *, log: bool = False, most: int = 5) -> None:
    """Ticks as plain numbers, few of them."""
    chosen = ax.xaxis if axis == "x" else ax.yaxis
    if log:
        (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
        low, high = sorted(chosen.get_view_interval())
        wide = low > 0 and high / low > 50
        subs = (1.0,) if wide else (1.0, 2.0, 5.0)
        chosen.set_major_locator(LogLocator(base=10, subs=subs, numticks=20))
        chosen.set_minor_locator(NullLocator())
    else:
        chosen.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    chosen.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace(",", " ")))


def _inline(raw: bytes, name: str, foreign: Sequence[str]) -> str:
    root = ElementTree.fromstring(raw)
    for parent in root.iter():
        for child in list(parent):
            if child.tag == f"{_SVG}metadata" or child.tag == f"{_SVG}style":
                parent.remove(child)
    used = {
        value.partition("#")[2].rstrip(")")
        for element in root.iter()
        for key, value in element.attrib.items()
        if key == _XLINK or "url(#" in value
    }
    for element in root.iter():
        element.tag = str(element.tag).removeprefix(_SVG)
        if element.tag != "text":
            element.text = None
        element.tail = None
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            if key == "id":
                if value in used:
                    element.set("id", f"{name}-{value}")
            elif key == _XLINK:
                element.set("href", f"#{name}-{value[1:]}")
            elif not value.startswith("rotate(-0 "):
                element.set(key, _attribute(key, value, name))
        if element.text and "zz" in element.text:
            element.text = _PLACEHOLDER.sub(lambda m: foreign[int(m[1])], element.text)
            element.set("style", f"{element.get('style', '')}; unicode-bidi: plaintext")
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-t {name}-d")
    root.set("focusable", "false")
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _attribute(key: str, value: str, name: str) -> str:
    value = value.replace("url(#", f"url(#{name}-")
    if key == "d":
        return _LONG_DECIMAL.sub(r"\1", value).replace(" \n", " ").replace("\n", "").strip()
    if key == "style":
        value = _FAMILY.sub("", value)
        value = _COLOR.sub(lambda m: f"var({_VARIABLES[m[0].lower()]})", value)
    return _LONG_DECIMAL.sub(r"\1", value) if key in ("x", "y", "transform", "style") else value
