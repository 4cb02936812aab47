"""Numbers that are many and seldom looked at: in a file, so that a long run holds its memory.

An hour of 64 streams gives over ten million tokens. Each has a moment and a gap; as numbers of
a process they would stay in memory to the end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

N = TypeVar("N", int, float)
Keep = Callable[["array[float]"], Sequence[float]]
"""Takes numbers and gives them back, wherever they are now."""

_PIECE = 4 << 20
"""Bytes after which what is kept leaves memory; a multiple of any page size."""
_LARGEST = 256 << 20
"""Bytes of the largest window on the file. Each takes a descriptor as long as anyone looks
through it, so each is twice the one before."""
_LEAST = 256
"""Bytes under which numbers stay where they are: the way to them would take more."""


def in_memory(numbers: array[float]) -> Sequence[float]:
    """A :data:`Keep` that leaves them where they are."""
    return numbers


class Shelf:
    """Keeps numbers in an unnamed file; they are read there like any sequence.

    The file takes eight bytes a number and is gone with the process. Where it cannot be written
    (no space left, a folder that cannot be written to), numbers stay in memory.

    Args:
        folder: asked for when the file is first needed; on a disk, not in memory.
    """

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._file: int | None = None
        self._window: mmap.mmap | None = None
        self._view = memoryview(b"")
        self._size, self._used, self._left = 0, 0, 0
        """Bytes of the window, of them in use, of these out of memory."""
        self._end = 0
        self._full = False

    def keep(self, numbers: array[N]) -> Sequence[N]:
        """The same numbers, in order; a view of the file, or what was given."""
        size = len(numbers) * numbers.itemsize
        if size < _LEAST or size > _PIECE or self._full:
            return numbers
        if self._used + size > self._size and not self._next():
            return numbers
        view: Any = self._view[self._used : self._used + size]
        view[:] = memoryview(numbers).cast("B")
        self._used += -(-size // 8) * 8
        if self._used - self._left >= _PIECE:
            self._leave(_PIECE)
        return cast("Sequence[N]", view.cast(numbers.typecode))

    def _leave(self, size: int) -> None:
        """So much more of the window leaves memory, and is read from the file if need be."""
        if self._window is not None and size and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):  # pages that are locked stay
                self._window.madvise(mmap.MADV_DONTNEED, self._left, size)
        self._left += size

    def _next(self) -> bool:
        """A fresh window, twice as large; False where there is no room for it."""
        size = min(max(2 * self._size, _PIECE), _LARGEST)
        self._leave(self._size - self._left)
        try:
            if self._file is None:
                with tempfile.TemporaryFile(dir=self._folder(), buffering=0) as f:
                    self._file = os.dup(f.fileno())
            self._reserve(self._file, size)
            self._window = mmap.mmap(self._file, size, offset=self._end)
        except OSError:
            self._full = True
            return False
        self._view = memoryview(self._window)
        self._end += size
        self._size, self._used, self._left = size, 0, 0
        return True

    def _reserve(self, file: int, size: int) -> None:
        """Space that is not there now would end the process when it is written to."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, self._end, size)
            return
        os.lseek(file, self._end, os.SEEK_SET)
        for _ in range(size // _PIECE):
            if os.write(file, bytes(_PIECE)) < _PIECE:
                raise OSError("no space left")

    def close(self) -> None:
        """No more numbers; what was given out can still be read."""
        self._full = True
        self._window, self._view = None, memoryview(b"")
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
