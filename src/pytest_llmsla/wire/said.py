"""What a server said in the body of a refusal, as one short line."""

from __future__ import annotations

import json
from typing import Any

_MAX = 300


def words_of(body: bytes) -> str:
    """The message of a JSON error in any of its usual shapes, else the start of the text."""
    text = body[: 64 * 1024].decode("utf-8", "replace")
    try:
        found = error_words(json.loads(text))
    except (ValueError, RecursionError):
        found = None
    return short(found if found is not None else text)


def error_words(value: Any) -> str | None:
    """Message, with code or type, of an error object; None when it holds none.

    Knows ``{"error": {…}}``, ``{"error": "…"}``, ``{"message": …}``, ``{"detail": …}``.
    """
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return None
    inner = value.get("error") or value.get("errors")
    if isinstance(inner, dict):
        return error_words(inner) or json.dumps(inner)[:_MAX]
    if isinstance(inner, str):
        kind = value.get("error_type")
        return f"{inner} ({kind})" if kind else inner
    message = value.get("message", value.get("detail"))
    if message is None:
        return None
    text = message if isinstance(message, str) else json.dumps(message)[:_MAX]
    code = next((value[k] for k in ("code", "type", "status") if value.get(k)), None)
    return text if code is None else f"{text} ({code})"


def short(text: str) -> str:
    """One line of at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX else line[: _MAX - 1] + "…"
