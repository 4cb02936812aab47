"""Event streams read the slow way, with the whole body in hand: what the decoder is held against.

Written from the HTML Living Standard (9.2.5 and 9.2.6) alone, line by line.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")


def events(body: bytes) -> list[tuple[str, bytes]]:
    """(name, data) of every event that its blank line ends."""
    if body.startswith(b"\xef\xbb\xbf"):
        body = body[3:]
    *lines, _unended = _LINE_END.split(body)
    out: list[tuple[str, bytes]] = []
    name, data = b"", b""
    for line in lines:
        if line == b"":
            if data:
                out.append((name.decode("utf-8", "replace") or "message", data[:-1]))
            name, data = b"", b""
            continue
        if line.startswith(b":"):
            continue
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"event":
            name = value
        elif field == b"data":
            data += value + b"\n"
    return out
