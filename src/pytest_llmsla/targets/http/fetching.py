"""Plain requests, as the rooms that look at a server need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Answered(Protocol):
    """What :meth:`Fetches.fetch` gives back. Header names are in lower case."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The response's headers."""
        ...

    @property
    def body(self) -> bytes:
        """The whole body."""
        ...


class Fetches(Protocol):
    """The part of :class:`wire.client.Client` that looking at a server takes."""

    def fetch(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 10.0,
        root: bool = False,
    ) -> Answered:
        """One plain request; raises WireError when no sound answer came."""
        ...
