"""Make foreign text inert: control characters for terminals, markup for Markdown.

Model names, prompts, error texts and test ids come from outside. Nothing of them may move a
cursor, open a link, start a tag or end a table row.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST = 400
"""Characters of one foreign text that a report shows; the rest is cut and counted."""

# Categories that a reader cannot see or that act on the display: controls, format characters
# (bidirectional overrides among them), surrogates, private use, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

_ASCII_MARKS = {
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "–": "-",
    "—": "-",
    "−": "-",
    "·": "|",
    "…": "...",
    "×": "x",
    "µ": "u",
    "“": '"',
    "”": '"',
    "’": "'",
    "α": "alpha",
    "⌈": "ceil(",
    "⌉": ")",
}
_ASCII_TABLE = str.maketrans(_ASCII_MARKS)

# Round brackets stay: a link needs the square ones, which are escaped.
_MD_SPECIAL = re.compile(r"[\\`*\[\]|~$]")
_MD_UNDERSCORE = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_MD_LINE_START = re.compile(r"^(\s*)([#+=-]|\d+(?=[.)](?:\s|$)))")
_RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
_BEFORE_FIGURE = re.compile(rf"(?<=[{_RIGHT_TO_LEFT}])(?=\s*[:;,=/(·]\s*\d)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}


def visible(text: object, *, keep_newlines: bool = False) -> str:
    r"""``text`` with every hidden character spelled out (``\x1b``, ``\u202e``, ``\udc80``).

    Line breaks become ``\n`` unless ``keep_newlines``. The result encodes as UTF-8 and holds no
    control character.
    """
    raw = str(text)
    if raw.isprintable():  # nearly always, and many times faster
        return raw
    out: list[str] = []
    for ch in raw:
        if ch == "\n" and keep_newlines:
            out.append(ch)
        elif unicodedata.category(ch) in _HIDDEN:
            out.append(_spell(ch))
        else:
            out.append(ch)
    return "".join(out)


def _spell(ch: str) -> str:
    if ch in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[ch]
    code = ord(ch)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def in_order(text: str, mark: str = "\u200e") -> str:
    """``text`` with ``mark`` where a right-to-left name would draw the figure behind it before it.

    In ``طويل: 30`` the name and the figure would change places for the eye.
    """
    return _BEFORE_FIGURE.sub(mark, text)


def shortened(text: object, longest: int = LONGEST) -> str:
    """``text`` made visible and cut to ``longest`` characters, with its full length told."""
    raw = str(text)
    if len(raw) <= longest:
        return visible(raw)
    return f"{visible(raw[:longest])}… ({len(raw)} characters)"


def ascii_only(text: str) -> str:
    r"""``text`` with our own marks in ASCII and every other foreign character as ``\uXXXX``."""
    return text.translate(_ASCII_TABLE).encode("ascii", "backslashreplace").decode("ascii")


def fit(text: str, encoding: str | None) -> str:
    """``text`` in characters that ``encoding`` can carry; unknown encodings get ASCII.

    UTF encodings keep everything. Others get ASCII marks, and keep what they can of the rest.
    """
    name = (encoding or "ascii").lower().replace("_", "-")
    if name.startswith("utf"):
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    plain = text.translate(_ASCII_TABLE)
    try:
        return plain.encode(name, "backslashreplace").decode(name)
    except LookupError:
        return ascii_only(text)


def speaks_unicode(encoding: str | None) -> bool:
    """True when a stream of this encoding can show box lines and comparison signs."""
    try:
        "≤→·–─".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def markdown(text: object, longest: int = LONGEST) -> str:
    """``text`` as inert inline Markdown: one line, no markup, no HTML, no link, no cell border."""
    shown = shortened(text, longest)
    shown = _MD_SPECIAL.sub(lambda m: "\\" + m.group(), shown)
    shown = _MD_UNDERSCORE.sub(r"\\_", shown)
    shown = in_order("".join(_ENTITIES.get(ch, ch) for ch in shown), "&lrm;")
    # GitHub links bare addresses: take the marks away by which it knows them.
    shown = shown.replace("://", "&#58;//")
    shown = re.sub(r"(?i)\bwww\.", lambda m: m.group()[:3] + "&#46;", shown)
    return _MD_LINE_START.sub(_escape_start, shown)


def _escape_start(match: re.Match[str]) -> str:
    space, mark = match.groups()
    # A number is escaped at the sign after it: "1\\." starts no list.
    return f"{space}{mark}\\" if mark.isdigit() else f"{space}\\{mark}"
