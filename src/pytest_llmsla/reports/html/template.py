"""jinja2, set up so that nothing in a report can be anything but text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..escape import in_order, visible

_PACKAGE = "pytest_llmsla.reports.html"
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028",
              "\u2029": "\\u2029"}  # fmt: skip


def page(name: str, **content: Any) -> str:
    """A template of this package, filled; everything that is no Markup is escaped and visible."""
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_inert,
    )
    environment.filters["breakable"] = _breakable
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    text = environment.get_template(name).render(
        # Our own files, and hashed as they stand: they are not escaped.
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=digest,
        **{**content, "data": in_script(content.get("data") or {})},
    )
    return text.rstrip("\n") + "\n"


def in_script(value: Mapping[str, Any]) -> Markup:
    """JSON that may stand in a ``<script>``: no tag can end or begin in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup("".join(_IN_SCRIPT.get(ch, ch) for ch in text))


_TOGETHER = re.compile(
    r"(?<=\d) (?=(?:%|ms|s|tokens/s|GiB|MiB|min|h)(?!\w))| (?=[≤≥×] )|(?<=[≤≥×]) |(?<=P\d\d) (?=\d)"
)
"""Spaces at which no line may break: between a figure and its unit, sign or name."""


def _inert(value: object) -> object:
    return value if isinstance(value, Markup) else _TOGETHER.sub("\xa0", in_order(visible(value)))


def _breakable(name: object, after: str) -> Markup:
    """A name that breaks behind the characters ``after`` before it breaks anywhere else."""
    parts = re.split(f"(?<=[{re.escape(after)}])", str(_inert(name)))
    return Markup("<wbr>").join(part for part in parts if part)


def _asset(name: str) -> str:
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")
