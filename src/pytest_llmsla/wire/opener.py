"""Connections opened aside, so that the thread that reads never waits for one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from .connection import Connection
from .errors import WireError

Opened = Connection | WireError


class Opener(Protocol):
    """Opens connections when asked to. For one thread."""

    @property
    def pending(self) -> int:
        """Connections asked for and not taken."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when one can be taken; -1: there is none to wait for."""
        ...

    def ask(self, count: int = 1) -> None:
        """Begin to open so many."""
        ...

    def take(self) -> list[Opened]:
        """Those that are open, and why others could not be opened."""
        ...

    def close(self) -> None:
        """Close what was not taken. Idempotent."""
        ...


class AtOnce:
    """Opens in the calling thread. With a clock that is not the machine's, that takes no time."""

    def __init__(self, open_one: Callable[[], Connection]) -> None:
        self._open = open_one
        self._done: list[Opened] = []

    @property
    def pending(self) -> int:
        """Connections asked for and not taken."""
        return len(self._done)

    def fileno(self) -> int:
        """Nothing to wait for."""
        return -1

    def ask(self, count: int = 1) -> None:
        """Open so many."""
        self._done += [_opened(self._open) for _ in range(count)]

    def take(self) -> list[Opened]:
        """All of them."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Close what was not taken."""
        _close(self.take())


class Threads:
    """Opens in threads of its own, as many at a time as are asked for, ``most`` at most."""

    def __init__(self, open_one: Callable[[], Connection], most: int) -> None:
        self._open = open_one
        self._most = most
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        self._done: deque[Opened] = deque()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._reads, self._writes = socket.socketpair()
        self._reads.setblocking(False)
        self._writes.setblocking(False)
        self.pending = 0

    def fileno(self) -> int:
        """Readable when a connection can be taken."""
        return self._reads.fileno()

    def ask(self, count: int = 1) -> None:
        """Begin to open so many."""
        self.pending += count
        while len(self._threads) < min(self.pending, self._most):
            thread = threading.Thread(target=self._work, name="llmsla-connect", daemon=True)
            self._threads.append(thread)
            thread.start()
        for _ in range(count):
            self._tickets.put(True)

    def take(self) -> list[Opened]:
        """Those that are open by now, and why others could not be opened."""
        if not self._done:
            return []
        with self._lock:  # whoever has put something there has written its byte
            with contextlib.suppress(BlockingIOError):
                self._reads.recv(4096)
            out = [self._done.popleft() for _ in range(len(self._done))]
        self.pending -= len(out)
        return out

    def _work(self) -> None:
        while self._tickets.get():
            done = _opened(self._open)
            with self._lock:
                if self._closed:
                    _close([done])
                    return
                self._done.append(done)
                with contextlib.suppress(BlockingIOError):  # full: it is readable
                    self._writes.send(b"x")

    def close(self) -> None:
        """Close what was not taken; a thread that still connects ends by itself."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for _ in self._threads:
            self._tickets.put(False)
        _close(self._done)
        self._reads.close()
        self._writes.close()


def _opened(open_one: Callable[[], Connection]) -> Opened:
    try:
        return open_one()
    except WireError as e:
        return WireError(str(e))  # without the frames of the one that holds this one
    except Exception as e:
        return WireError(f"opening a connection failed: {type(e).__name__}: {e}")


def _close(opened: deque[Opened] | list[Opened]) -> None:
    for one in opened:
        if isinstance(one, Connection):
            one.close()
