"""What a target may know of its server beside the answers it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...probes.sampler import Source


class ServerView(Protocol):
    """What is known of the server beside its answers."""

    def describe(self) -> Mapping[str, Any]:
        """Facts for the report."""
        ...

    def reset(self) -> None:
        """The measured window begins."""
        ...

    def memory(self) -> Mapping[str, Any]:
        """Named figures, GiB."""
        ...

    def window(self) -> Mapping[str, Any]:
        """The server's own figures since :meth:`reset`."""
        ...

    def samples(self) -> Sequence[Source]:
        """Its figures over time, for a sampler that begins now."""
        ...

    def close(self) -> None:
        """Close what it has opened. Idempotent."""
        ...


class NoView:
    """A server that nothing is known of."""

    def describe(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def reset(self) -> None:
        """Nothing."""

    def memory(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def window(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def samples(self) -> Sequence[Source]:
        """Nothing."""
        return ()

    def close(self) -> None:
        """Nothing."""
