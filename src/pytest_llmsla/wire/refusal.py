"""Why an answer is not the stream that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time

from .errors import RefusedError
from .said import words_of

_MAX_SAID = 300
PROXY_WANTS = (
    "the proxy wants a user name and a password, or others: target.proxy takes "
    "http://${USER}:${PASSWORD}@host:port"
)


_NO_CODING = ("identity", "none", "", "utf-8")
"""What some write who mean none. If it were one after all, no event could be read."""


def coding(headers: Mapping[str, str]) -> str | None:
    """The content coding of an answer as it was named; None where it has none."""
    coded = headers.get("content-encoding", "identity").strip(" \t")
    return None if coded.lower() in _NO_CODING else coded


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> RefusedError:
    """Why an answer is not the stream that was asked for, in words."""
    said = words_of(body)
    kind = headers.get("content-type", "")
    # Words of the server stay as they are: a secret that it echoes must be known again.
    coded = coding(headers)
    if 300 <= status < 400:
        where = headers.get("location", "nowhere")[:_MAX_SAID]
        message = (
            f"HTTP {status}: the server redirects to {where}; redirects are not followed, because "
            "they would be timed: give the final address as base_url"
        )
    elif status == 407:
        message = f"HTTP 407: {PROXY_WANTS}" + (f" ({said})" if said else "")
    elif status != 200:
        message = f"HTTP {status}" + (f": {said}" if said else "")
    elif coded is not None:
        message = (
            f"the answer is compressed ({coded[:_MAX_SAID]}) although identity was asked for: what "
            "stands between compresses and buffers; switch that off"
        )
    else:
        message = (
            f"not streamed: the server answered with content type {kind or 'none'!r}, "
            "not text/event-stream" + (f": {said}" if said else "")
        )
    return RefusedError(
        message, status=status, said=said, retry_after_s=_retry_after(headers.get("retry-after"))
    )


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header: a number, or an HTTP date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    value = value.strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, TypeError, OverflowError):
        return None
