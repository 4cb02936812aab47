"""While a gate measures, here or in a worker, a polite kill ends the run as Ctrl-C does: with its
report."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process was told to end (SIGTERM)."""


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` here. A second one kills, as ever.

    Only where nobody else has taken the signal, and in the main thread, the only one that can.
    """
    free = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not free:
        yield
        return

    def end(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated("terminated (SIGTERM)")

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
