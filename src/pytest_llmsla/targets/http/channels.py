"""The channels of a chat delta: everything that a model generates counts, whatever it is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...wire.errors import WireError
from .dialect import Piece
from .reading import clean, items, mapping, text

_THOUGHT = ("thinking", "reasoning")
_OTHERS = ("user", "system", "developer", "tool", "function")
"""Roles whose text the model has read, not generated: a server that repeats it."""
_PLAIN = frozenset(("content", "role"))


def read_delta(delta: Mapping[str, Any], piece: Piece) -> None:
    """Add the generated text of ``delta`` to ``piece``. Unknown channels say nothing.

    Raises:
        WireError: a known channel of a type that it cannot have.
    """
    if delta.get("role") in _OTHERS:
        return
    content = delta.get("content")
    if isinstance(content, str) and delta.keys() <= _PLAIN:  # what nearly every delta is
        content = clean(content)
        piece.text += content
        piece.visible += content
        return
    thought = _said(delta.get("reasoning"), "reasoning")
    again = _said(delta.get("reasoning_content"), "reasoning_content")
    piece.text += thought if again == thought else thought + again  # some send it under both names
    seen, unseen = _content(content)
    seen += text(delta.get("text"), "text")
    piece.text += unseen + seen
    piece.visible += seen
    piece.text += text(delta.get("refusal"), "refusal")
    piece.text += text(mapping(delta.get("audio"), "audio").get("transcript"), "audio.transcript")
    piece.text += _called(mapping(delta.get("function_call"), "function_call"))
    for raw in items(delta.get("tool_calls"), "tool_calls"):
        call = mapping(raw, "a tool call")
        piece.text += _called(mapping(call.get("function"), "function"))
        piece.text += _called(mapping(call.get("custom"), "custom"))


def _called(call: Mapping[str, Any]) -> str:
    """Name and arguments of a call. A name with empty arguments is text."""
    arguments = call.get("arguments", call.get("input"))
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return text(call.get("name"), "name") + clean(text(arguments, "arguments"))


def _said(value: Any, what: str) -> str:
    """Reasoning as text, or as an object that holds some."""
    if isinstance(value, dict):
        value = value.get("content", value.get("text"))
    return text(value, what)


def _content(value: Any) -> tuple[str, str]:
    """``content`` as (what a user sees, what is thought): a text, or a list of parts."""
    if not isinstance(value, list):
        return text(value, "content"), ""
    seen, unseen = "", ""
    for part in value:
        if isinstance(part, str):
            seen += clean(part)
            continue
        found = mapping(part, "a part of content")
        for key in _THOUGHT:
            unseen += _thought(found.get(key))
        words = found.get("text")
        words = text(words.get("value") if isinstance(words, dict) else words, "content text")
        if found.get("type") in _THOUGHT:
            unseen += words
        else:
            seen += words
        unseen += text(found.get("refusal"), "refusal")
    return seen, unseen


def _thought(value: Any) -> str:
    if isinstance(value, list):
        return "".join(text(mapping(part, "a thought").get("text"), "a thought") for part in value)
    if value is not None and not isinstance(value, str):
        raise WireError(f"malformed event: a thought is no text: {ascii(value)[:40]}")
    return text(value, "a thought")
