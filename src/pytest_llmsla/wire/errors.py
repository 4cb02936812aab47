"""What goes wrong on the wire."""

from __future__ import annotations

from ..errors import TargetError


class WireError(TargetError):
    """A request failed; the message says how. It becomes a failed request, never a lost one."""


class RefusedError(WireError):
    """The server answered, but not with the stream that was asked for.

    Attributes:
        status: HTTP status.
        said: the server's own words, cut; empty when it sent none.
        retry_after_s: seconds of its Retry-After header, None without one.
    """

    def __init__(
        self, message: str, *, status: int, said: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.said = said
        self.retry_after_s = retry_after_s
