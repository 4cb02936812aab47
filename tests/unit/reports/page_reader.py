"""Reads a page back as a browser's parser would: elements, their attributes, tables, text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "input", "link", "br", "wbr", "hr", "img", "use", "path", "rect", "circle"}


@dataclass
class Element:
    """One start tag and what stands inside."""

    tag: str
    attributes: dict[str, str | None]
    text: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """Its text, white space folded."""
        return " ".join("".join(self.text).split())


class Page(HTMLParser):
    """``elements`` in document order; text belongs to every open element."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text.append(data)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Every element of a tag whose attributes hold the given words."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            e
            for e in self.elements
            if e.tag == tag
            and all(v in (e.attributes.get(n) or "").split() for n, v in wanted.items())
        ]

    def limits(self) -> dict[str, dict[str, str]]:
        """The table of rules: cells by limit id and column."""
        out: dict[str, dict[str, str]] = {}
        name, inside = "", False
        for e in self.elements:
            if e.tag == "tr":
                inside = "limit" in (e.attributes.get("class") or "").split()
            elif inside and e.tag == "th":
                name = e.shown
                assert name not in out, f"two rows for {name}"
                out[name] = {}
            elif inside and e.tag == "td" and e.attributes.get("data-name"):
                out[name][str(e.attributes["data-name"])] = e.shown
        return out

    def shown(self) -> str:
        """All text a reader can see, one line an element of the outermost kind."""
        hidden = {"style", "script", "head"}
        return "\n".join(e.shown for e in self.elements if e.tag not in hidden and e.text)
