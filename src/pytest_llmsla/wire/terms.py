"""What an exchange is given, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .errors import WireError
from .sse import Event

if TYPE_CHECKING:
    from ..timeline import Stamp


@dataclass(frozen=True)
class Deadlines:
    """Seconds, from the moment before the first byte is written; None: no such deadline."""

    first_token_s: float | None = None
    idle_s: float | None = None
    """Longest silence after the first token; any byte ends a silence."""
    total_s: float | None = 300.0
    after_finish_s: float = 5.0
    """How long to wait for the end marker or usage once the answer was complete."""


class Reader(Protocol):
    """Takes the events of a stream."""

    @property
    def begun(self) -> bool:
        """True once a token has arrived."""
        ...

    @property
    def complete(self) -> bool:
        """True once the answer is known to be whole; more may follow (usage, an end marker)."""
        ...

    def known(self, data: bytes, start: int, end: int, t_ns: int) -> bool:
        """Take the event with the data ``data[start:end]``, if that can be told without parsing it
        and holds no end of line; False: :meth:`event` has to take it.

        Raises:
            WireError: the request has failed.
        """
        ...

    def event(self, event: Event) -> bool:
        """Take one event. True: nothing of interest can follow.

        Raises:
            WireError: the request has failed.
        """
        ...

    def ended(self, left_over: bytes) -> None:
        """The body ended, with ``left_over`` behind its last whole event.

        Raises:
            WireError: the answer is not whole.
        """
        ...


@dataclass
class Outcome:
    """How an exchange went. Times are ns of the client's clock."""

    start_ns: int
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    """A plain answer's body; empty for a stream."""
    error: WireError | None = None
    reads: int = 0
    user_stamps: int = 0
    """Reads whose stamp is the client's own, not the kernel's."""
    lag_ns: list[int] = field(default_factory=list)
    """How late the client's loop was, sampled every 10 ms while this exchange ran."""
    end_ns: int = 0

    @property
    def stamp(self) -> Stamp:
        """``kernel`` when the kernel stamped every read."""
        return "kernel" if self.reads and not self.user_stamps else "user"
